"""Tables 1 to 4 of Hetero-SSFL (Makhija et al. 2022)."""

from __future__ import annotations

from collections.abc import Mapping

from kinfed.experiment.papers.table import Fields, PaperTable, Row, Scale

__all__ = ["TABLE1", "TABLE2", "TABLE3", "TABLE4"]

_METHODS = ("fedbyol", "fedsimsiam", "fedu", "fedema", "hetero_ssfl", "local_ssl", "central_byol")
_FIELDS: Fields = {
    "clients": 5, "partition": "disjoint", "public": 5000, "local_epochs": 5, "batch_size": 200, "lr": 0.032,
    "lr_schedule": "cosine", "momentum": 0.9, "weight_decay": 5e-4, "linear_probe": True, "ft_epochs": 0,
    "settings": {name: {"hidden": 4096, "out": 2048} for name in _METHODS},
}  # fmt: skip
_SMALL: Fields = {
    "train_images": 3000, "public": 500, "rounds": 15, "local_epochs": 1, "batch_size": 64, "knn_every": 5,
    "settings": {
        **{name: {"hidden": 512, "out": 128} for name in _METHODS},
        # Half as many public images per step as own ones, which halves their cost.
        "hetero_ssfl": {"hidden": 512, "out": 128, "rad_batch": 32},
    },
}  # fmt: skip
_RESNETS: Fields = {"model": None, "models": "resnet18:0.4,resnet34:0.6"}
_CNNS: Fields = {"model": None, "models": "cnn4_half:0.4,cnn4:0.6"}


def _column(data: str, mu: float = 0.5) -> Fields:
    """Return a column of Hetero-SSFL's tables with the paper's μ."""
    return {"data": data, "settings": {"hetero_ssfl": {"mu": mu}}}


def _row(method: str, printed: tuple[float, ...] = ()) -> Row:
    """Return a row of Table 1 that learns without labels.

    The paper does not say on which data its linear probe is fitted, so both kinds are shown.
    """
    return Row(method, method, printed, also="linear_local_acc_mean")


TABLE1 = PaperTable(
    title="Hetero-SSFL (Makhija et al. 2022), Table 1: five clients with different classes, linear evaluation",
    quantity="linear_global_acc_mean",
    fields=_FIELDS,
    columns={
        "CIFAR-10": _column("cifar10"),
        "CIFAR-100": _column("cifar100"),
        "Tiny-ImageNet": _column("tiny_imagenet", mu=1.0),
        "MNIST": _column("mnist"),
    },
    rows=(
        _row("fedbyol", (78.1, 58.1, 31.8)),
        _row("fedsimsiam", (76.7, 53.2, 29.1)),
        _row("fedu", (79.6, 58.9, 58.23)),
        _row("fedema", (81.2, 61.8, 58.2)),
        _row("hetero_ssfl", (90.29, 67.7, 61.5)),
        _row("local_ssl"),
        _row("central_byol", (94.3, 74.2, 78.7)),
        Row("fedavg", "fedavg", (68.5, 44.29, 27.2), quantity="global_acc", also="linear_global_acc_mean"),
    ),
    scales={
        "small": Scale(("CIFAR-10",), {"model": "cnn4", **_SMALL}, {"hetero_ssfl": _CNNS, "local_ssl": _CNNS}),
        "paper": Scale(
            ("CIFAR-10", "CIFAR-100", "Tiny-ImageNet"),
            {"model": "resnet34", "rounds": 200, "seeds": 3},
            {"hetero_ssfl": _RESNETS, "local_ssl": _RESNETS},
        ),
    },
    note="A linear classifier is fitted on the frozen body with the labels of all training images and tested on the "
         "whole test set: on the global body or, for hetero_ssfl and local_ssl, on each client's body (mean over "
         "clients). For linear_local, it is fitted and tested on the client's own classes only. The paper does not "
         "say which of the two it shows; its numbers are beside the former. fedavg learns with labels, so its model "
         "is tested directly.",
)  # fmt: skip


TABLE2 = PaperTable(
    title="Hetero-SSFL (Makhija et al. 2022), Table 2: IID clients, linear evaluation",
    quantity="linear_global_acc_mean",
    fields={**_FIELDS, "partition": "iid"},
    columns={"CIFAR-10": _column("cifar10"), "CIFAR-100": _column("cifar100")},
    rows=(
        Row("fedbyol", "fedbyol", (82.24, 23.8)),
        Row("fedsimsiam", "fedsimsiam", (80.4, 22.19)),
        Row("fedu", "fedu", (81.6, 20.4)),
        Row("fedema", "fedema", (85.9, 25.7)),
        Row("hetero_ssfl", "hetero_ssfl", (88.5, 34.8)),
        Row("local_ssl", "local_ssl"),
    ),
    scales={
        # 7 minutes, estimated from the small Table 1: six runs like its eight.
        "small": Scale(("CIFAR-10",), {"model": "cnn4", **_SMALL}, {"hetero_ssfl": _CNNS, "local_ssl": _CNNS}),
        "paper": Scale(
            ("CIFAR-10", "CIFAR-100"),
            {"model": "resnet34", "rounds": 200, "seeds": 3},
            {"hetero_ssfl": _RESNETS, "local_ssl": _RESNETS},
        ),
    },
    note="All clients have images of all classes. The paper does not say how many clients there are: five, as in Table "
         "1. A linear classifier is fitted on the frozen body with the labels of all training images and tested on the "
         "whole test set: on the global body or, for hetero_ssfl and local_ssl, on each client's body (mean over "
         "clients). The paper has no row of local_ssl.",
)  # fmt: skip


def _clients(data: str, clients: int, each_round: int) -> Fields:
    """Return a column of Table 3."""
    return {**_column(data), "clients": clients, "participation": each_round / clients}


TABLE3 = PaperTable(
    title="Hetero-SSFL (Makhija et al. 2022), Table 3: more clients with different classes, linear evaluation",
    quantity="linear_global_acc_mean",
    fields=_FIELDS,
    columns={
        "CIFAR-100 5(5)": _clients("cifar100", 5, 5),
        "CIFAR-100 20(5)": _clients("cifar100", 20, 5),
        "CIFAR-100 100(10)": _clients("cifar100", 100, 10),
        "CIFAR-10 5(5)": _clients("cifar10", 5, 5),
        "CIFAR-10 20(5)": _clients("cifar10", 20, 5),
    },
    rows=(
        Row("fedu", "fedu", (58.9, 48.29, 41.1)),
        Row("fedema", "fedema", (61.8, 52.5, 42.0)),
        Row("hetero_ssfl", "hetero_ssfl", (67.7, 57.5, 43.3)),
    ),
    scales={
        # 10 minutes, estimated from the small Table 1: six runs like its eight; of those with 20 clients, hetero_ssfl
        # has a fourth of the training, and 20 bodies to test at the end instead of 5.
        "small": Scale(
            ("CIFAR-10 5(5)", "CIFAR-10 20(5)"), {"model": "cnn4", **_SMALL, "knn_every": 0}, {"hetero_ssfl": _CNNS}
        ),
        "paper": Scale(
            ("CIFAR-100 5(5)", "CIFAR-100 20(5)", "CIFAR-100 100(10)"),
            {"model": "resnet34", "rounds": 200, "seeds": 3},
            {"hetero_ssfl": _RESNETS},
        ),
    },
    note="20(5) is 20 clients, 5 of them in each round. On CIFAR-100, 5 and 20 clients have 20 and 5 classes of their "
         "own. The paper does not say how many classes each of 100 clients has: a fifth of all, 20, as in EasyFL, and "
         "each class is shared by 20 clients; likewise 2 classes each for 20 clients on CIFAR-10, which the paper does "
         "not have. A linear classifier is fitted on the frozen body with the labels of all training images and tested "
         "on the whole test set: on the global body or, for hetero_ssfl, on each client's body (mean over clients).",
)  # fmt: skip


def _by_architecture(architectures: Mapping[str, str]) -> tuple[Row, ...]:
    """Return the rows of Table 4: each method's clients of one architecture and of the other.

    Args:
        architectures: Names of the two architectures in kinfed, by their names in the table.
    """
    printed = ((71.9, 85.4), (77.8, 93.7))
    return tuple(
        Row(
            f"{method} ({called})",
            method,
            (number,),
            quantity=f"linear_global_acc_mean_of_{name}",
            also=f"linear_local_acc_mean_of_{name}",
        )
        for (called, name), numbers in zip(architectures.items(), printed, strict=True)
        for method, number in zip(("local_ssl", "hetero_ssfl"), numbers, strict=True)
    )


TABLE4 = PaperTable(
    title="Hetero-SSFL (Makhija et al. 2022), Table 4: what clients of each architecture gain from training together",
    quantity="linear_global_acc_mean",
    fields=_FIELDS,
    columns={"CIFAR-10": _column("cifar10")},
    rows=_by_architecture({"ResNet-18": "resnet18", "ResNet-34": "resnet34"}),
    scales={
        "small": Scale(
            ("CIFAR-10",),
            {**_CNNS, **_SMALL, "rounds": 30, "seeds": 2},
            instead=_by_architecture({"cnn4_half for ResNet-18": "cnn4_half", "cnn4 for ResNet-34": "cnn4"}),
        ),
        "paper": Scale(("CIFAR-10",), {**_RESNETS, "rounds": 200, "seeds": 3}),
    },
    note="Means over the clients of each architecture: two clients have the first, three the second. A linear "
         "classifier is fitted on each client's frozen body with the labels of all training images and tested on the "
         "whole test set; for linear_local, it is fitted and tested on the client's own classes only. The paper does "
         "not name the data; its numbers are probably of CIFAR-10, since their mean over clients is close to that of "
         "its Table 1.",
)  # fmt: skip
