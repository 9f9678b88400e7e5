"""Tables of the papers: their numbers, and the configs that should reproduce them (specification H)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

__all__ = ["CELLS", "ROUNDS", "TABLES", "Fields", "IdentificationTable", "PaperTable", "Row", "Scale"]

ROUNDS = "rounds_to_target"  # the only quantity that is no accuracy
CELLS = "cells"  # key of table.json for the cells that the paper prints

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """One row of a table: a quantity of the runs of one method.

    Attributes:
        label: Name of the row in the table.
        method: Name of the method. Rows of the same method with the same settings share their runs.
        printed: The paper's numbers in the first columns, accuracies in percent; empty for a row that the paper lacks.
        quantity: Metric of the runs' summaries that the row shows, if it is not the table's.
        settings: Fields of the method.
        also: Further metric, which the paper does not print and which is shown in a table of its own.
    """

    label: str
    method: str
    printed: tuple[float, ...] = ()
    quantity: str | None = None
    settings: Fields = field(default_factory=dict)
    also: str | None = None


@dataclass(frozen=True)
class Scale:
    """The size at which a table is run.

    Attributes:
        columns: Headings of the columns that are run.
        fields: Fields of the config that overrule the table's.
        rows: Fields that overrule these, by label of the row that they apply to.
        instead: Rows that replace the table's, if this scale has other models or source models.
        sources: Settings of the source models that overrule the table's.
    """

    columns: tuple[str, ...]
    fields: Fields
    rows: Mapping[str, Fields] = field(default_factory=dict)
    instead: tuple[Row, ...] = ()
    sources: Fields = field(default_factory=dict)


@dataclass(frozen=True)
class PaperTable:
    """One table of a paper.

    Attributes:
        title: Title of the table: the paper, and the subject.
        quantity: Metric of the runs' summaries that the cells show, unless a row names another.
        fields: Fields of the config for all cells.
        columns: Further fields of the config by heading of the column. The columns that the paper prints come first.
        rows: Rows from top to bottom.
        scales: Sizes at which the table can be run, by name.
        note: Remarks that a reader of the table needs.
        sources: Settings for the training of the source models that rows name (`kinfed.experiment.training.Training`).
    """

    title: str
    quantity: str
    fields: Fields
    columns: Mapping[str, Fields]
    rows: tuple[Row, ...]
    scales: Mapping[str, Scale]
    note: str = ""
    sources: Fields = field(default_factory=dict)

    def at(self, scale: str) -> Self:
        """Return the table with the rows and the source models of a scale."""
        own = self.scales[scale]
        return replace(self, rows=own.instead or self.rows, sources={**self.sources, **own.sources})

    def quantities(self) -> dict[str, dict[str, str]]:
        """Return the metric of each row by its label: for the ``cells``, and for each further metric."""
        main = {row.label: row.quantity or self.quantity for row in self.rows}
        further: dict[str, dict[str, str]] = {}
        for row in self.rows:
            if row.also is not None:
                further.setdefault(row.also, {})[row.label] = row.also
        return {CELLS: main, **further}


def _fedcka(alpha: float, *, fedprox: float, moon: float, fedcka: float) -> Fields:
    """Return a column of FedCKA's Table 2 with the paper's best μ of each method.

    SCAFFOLD is NIID-Bench's variant (``denom="steps"``), which the paper most likely used.
    """
    mu = {"fedprox": fedprox, "moon": moon, "fedcka": fedcka}
    return {"alpha": alpha, "settings": {"scaffold": {"denom": "steps"}, **{name: {"mu": m} for name, m in mu.items()}}}


@dataclass(frozen=True)
class IdentificationTable:
    """A table like SFTL's Table 1, which compares measures: how often each finds the right source model.

    Attributes:
        title: Title of the table: the paper, and the subject.
        fields: Fields of the config of the runs.
        printed: The paper's number of each measure, in percent.
        scales: Fields that overrule these, by name of the scale.
        note: Remarks that a reader of the table needs.
    """

    title: str
    fields: Fields
    printed: Mapping[str, str]
    scales: Mapping[str, Fields]
    note: str


_FEDCKA_TABLE2 = PaperTable(
    title="FedCKA (Son et al. 2021), Table 2: CIFAR-10 by how much the clients' labels differ",
    quantity="global_acc",
    fields={
        "data": "cifar10", "model": "small_cnn", "clients": 10, "partition": "dirichlet", "public": 0,
        "local_epochs": 10, "batch_size": 128, "lr": 0.01, "lr_schedule": "constant", "momentum": 0.9,
        "weight_decay": 1e-5, "checkpoint_every": 1,
    },
    columns={
        "α=5": _fedcka(5.0, fedprox=0.001, moon=0.1, fedcka=5),
        "α=0.5": _fedcka(0.5, fedprox=0.1, moon=10, fedcka=3),
        "α=0.1": _fedcka(0.1, fedprox=0.001, moon=10, fedcka=3),
    },
    rows=(
        Row("fedavg", "fedavg", (64.37, 59.81, 50.43)),
        Row("fedprox", "fedprox", (64.58, 59.98, 51.07)),
        Row("scaffold", "scaffold", (64.33, 59.47, 40.53)),
        Row("moon", "moon", (65.25, 60.65, 51.63)),
        Row("fedcka", "fedcka", (67.86, 61.13, 52.35)),
        Row("local", "local", quantity="personal_acc_weighted"),
    ),
    scales={
        "small": Scale(("α=5", "α=0.1"), {"rounds": 5}),
        "paper": Scale(("α=5", "α=0.5", "α=0.1"), {"rounds": 100, "seeds": 3}),
    },
)  # fmt: skip


_SHARDS = (2, 3, 4, 5, 8, 10, 20, 50, 100)
_FEDSHIBU_COLUMNS = {
    f"{called} s={s}": {"data": data, "shards": s}
    for called, data in (("CIFAR-10", "cifar10"), ("CIFAR-100", "cifar100"))
    for s in _SHARDS
}


def _fedshibu(label: str, printed: tuple[float, ...] = (), **settings: Any) -> Row:
    """Return a row of FedSHIBU with all fields of its mixtures, so that the table does not depend on defaults."""
    of = {
        "rep_source": "probe", "compared": "representation", "debiased": False, "kernel": "linear", "layers": "last",
        "norm": "minmax",
    }  # fmt: skip
    return Row(label, "fedshibu", printed, settings=of | settings, also="fine_tuned_acc_weighted")


_FEDSHIBU_TABLE1 = PaperTable(
    title="FedSHIBU, Table 1: CIFAR-10 and CIFAR-100 by the shards that a client has",
    quantity="personal_acc_weighted",
    fields={
        "partition": "shards", "public": 256, "local_epochs": 1, "batch_size": 50, "momentum": 0.9, "weight_decay": 0.0,
        "lr_schedule": "step:0.5,0.75", "augment": "crop_flip",
    },
    columns=_FEDSHIBU_COLUMNS,
    rows=(
        _fedshibu(
            "FedSHIBU linear",
            (
                94.04, 81.12, 85.07, 89.26, 89.32, 90.34, 90.64, 90.88, 90.93,
                91.12, 54.12, 57.96, 59.48, 63.63, 69.72, 72.33, 73.88, 72.97,
            ),
        ),
        _fedshibu(
            "FedSHIBU RBF",
            (
                90.69, 78.62, 85.9, 88.18, 89.92, 90.28, 90.93, 90.94, 91.23,
                41.65, 41.95, 49.47, 53.62, 62.71, 66.07, 69.97, 70.93, 71.31,
            ),
            kernel="rbf",
        ),
        _fedshibu("FedSHIBU linear, sum (literal)", norm="sum"),
        _fedshibu("FedSHIBU linear, each layer", layers="each", norm="distance", reach=0.2),
        Row(
            "FedBABU",
            "fedbabu",
            (
                68.43, 77.74, 84.06, 86.93, 89.38, 90.24, 90.85, 91.03, 90.87,
                15.55, 33.03, 47.22, 53.88, 60.77, 66.46, 71.86, 73.44, 73.37,
            ),
            also="fine_tuned_acc_weighted",
        ),
        Row(
            "FedAvg",
            "fedavg",
            (
                58.13, 69.58, 83.88, 85.96, 89.01, 89.67, 90.58, 91.28, 90.94,
                24.92, 37.98, 47.27, 52.36, 60.36, 62.45, 67.31, 69.01, 70.17,
            ),
            also="fine_tuned_acc_weighted",
        ),
        Row("FedPer", "fedper", also="fine_tuned_acc_weighted"),
        Row("local", "local", also="fine_tuned_acc_weighted"),
    ),
    scales={
        # 20 minutes: 16 runs of 12 rounds, with 5 CPU seconds per round, and the tests.
        "small": Scale(
            ("CIFAR-10 s=2", "CIFAR-10 s=5"),
            {
                "train_images": 5256, "model": "cnn4", "clients": 20, "rounds": 12, "evaluate_every": 4,
                "checkpoint_every": 4, "lr": 0.1,
            },
        ),
        "paper": Scale(
            (*_FEDSHIBU_COLUMNS,),
            {"model": "resnet18", "clients": 100, "rounds": 320, "lr": 0.1, "seeds": 3},
        ),
    },
    note="Each client's model on its own test images, before fine-tuning; that the paper's numbers are so is inferred "
    "from their size. FedSHIBU compares the bodies on images that the server holds, and stretches every row of "
    "similarities to [0, 1] before dividing it by its sum (minmax). The paper prints the division alone: that is "
    "the row sum (literal), with the same images. The paper's numbers stand beside the other two. Each layer is "
    "kinfed's default: every stage of the body is mixed by the similarity of its own outputs.",
)  # fmt: skip


_CRC_DATA: Mapping[str, Fields] = {
    "MNIST": {"data": "mnist", "model": "cnn4"},
    "CIFAR-10": {"data": "cifar10", "model": "cnn4", "augment": "crop_flip"},
    "CIFAR-100": {"data": "cifar100", "model": "resnet18", "augment": "crop_flip"},
}
_CRC_SKEW: Mapping[str, Fields] = {
    **{f"β={beta:g}": {"partition": "dirichlet_clients", "alpha": beta} for beta in (0.1, 0.5, 1.0)},
    "IID": {"partition": "iid"},
}
_CRC_COLUMNS = {
    f"{called} {skew}": {**_CRC_DATA[called], **_CRC_SKEW[skew]} for called in _CRC_DATA for skew in _CRC_SKEW
}


_FEDCRC_TABLE1 = PaperTable(
    title="FedCRC, Table I: MNIST, CIFAR-10 and CIFAR-100 by how much the clients' labels differ",
    quantity="global_acc_mean",
    fields={
        "clients": 100, "participation": 0.1, "public": 0, "local_epochs": 5, "batch_size": 50, "lr": 0.05,
        "momentum": 0.9, "weight_decay": 0.0, "ft_epochs": 0,
        # Of 100 rounds, counted from 1: learning rate 0.01 from round 50 on, and 0.001 from round 75 on.
        "lr_schedule": "step:0.49:5,0.74",
    },
    columns=_CRC_COLUMNS,
    rows=(
        Row(
            "FedAvg",
            "fedavg",
            (98.49, 98.74, 98.81, 99.12, 56.69, 68.64, 71.58, 75.66, 32.89, 38.84, 40.86, 44.04),
        ),
        Row(
            "FedProx",
            "fedprox",
            (98.05, 98.49, 98.66, 99.06, 55.99, 66.15, 68.69, 72.83, 28.66, 30.95, 32.27, 32.35),
            settings={"mu": 0.1},
        ),
        Row(
            "FedBABU",
            "fedbabu",
            (98.22, 98.52, 98.72, 99.13, 63.52, 71.27, 72.69, 76.09, 39.46, 43.53, 45.69, 45.99),
        ),
        Row(
            "FedPer",
            "fedper",
            (97.05, 98.47, 98.85, 99.14, 12.57, 63.29, 70.64, 75.03, 26.25, 35.79, 38.71, 41.5),
            quantity="stale_acc_mean",
            also="refreshed_acc_mean",
        ),
        Row(
            "FedRep",
            "fedrep",
            (98.47, 98.10, 98.08, 97.76, 85.57, 70.60, 65.21, 55.9, 47.76, 26.26, 20.70, 9.43),
            quantity="stale_acc_mean",
            settings={"head_epochs": 5, "body_epochs": 1},
            also="refreshed_acc_mean",
        ),
        Row(
            "FedCRC",
            "fedcrc",
            (98.37, 98.58, 98.79, 99.17, 64.61, 70.75, 72.77, 76.41, 40.00, 43.30, 44.73, 47.66),
            settings={"tau": 0.99},
        ),
        Row(
            "FedCRC-Per",
            "fedcrc",
            (99.24, 99.12, 99.10, 99.06, 79.40, 77.01, 76.02, 75.88, 48.45, 44.56, 43.94, 45.86),
            quantity="stale_acc_mean",
            settings={"tau": 0.99},
            also="refreshed_acc_mean",
        ),
        Row("local", "local", quantity="personal_acc_mean"),
    ),
    scales={
        # 15 minutes: six runs of 6 rounds with 20 CPU seconds per round (FedRep: a third), one run of 3 rounds with 40,
        # and the tests.
        "small": Scale(
            ("MNIST β=0.1",), {"rounds": 6, "evaluate_every": 3}, {"local": {"rounds": 3, "local_epochs": 1}}
        ),
        "paper": Scale((*_CRC_COLUMNS,), {"rounds": 100, "seeds": 3}),
    },
    note="Means over all clients on the fifth of their images that they keep for testing. A tenth of the clients "
    "trains in a round, but all of them where they train alone (local), which makes ten times the epochs of as "
    "many rounds; in the small table local has as many in all as the others. The head of a client that was never "
    "sampled is the initial one (stale); before refreshed each client trains its head once more.",
)  # fmt: skip


_SSL = ("fedbyol", "fedsimsiam", "fedu", "fedema", "hetero_ssfl", "local_ssl", "central_byol")
_SSL_FIELDS: Fields = {
    "clients": 5, "partition": "disjoint", "public": 5000, "local_epochs": 5, "batch_size": 200, "lr": 0.032,
    "lr_schedule": "cosine", "momentum": 0.9, "weight_decay": 5e-4, "linear_probe": True, "ft_epochs": 0,
    "settings": {name: {"hidden": 4096, "out": 2048} for name in _SSL},
}  # fmt: skip
_SSL_SMALL: Fields = {
    "train_images": 3000, "public": 500, "rounds": 15, "local_epochs": 1, "batch_size": 64, "knn_every": 5,
    "settings": {
        **{name: {"hidden": 512, "out": 128} for name in _SSL},
        # Half as many public images per step as own ones, which halves their cost.
        "hetero_ssfl": {"hidden": 512, "out": 128, "rad_batch": 32},
    },
}  # fmt: skip
_RESNETS: Fields = {"model": None, "models": "resnet18:0.4,resnet34:0.6"}
_CNNS: Fields = {"model": None, "models": "cnn4_half:0.4,cnn4:0.6"}


def _ssl_data(data: str, mu: float = 0.5) -> Fields:
    """Return a column of Hetero-SSFL's tables with the paper's μ."""
    return {"data": data, "settings": {"hetero_ssfl": {"mu": mu}}}


def _ssl(method: str, printed: tuple[float, ...] = ()) -> Row:
    """Return a row of Table 1 that learns without labels.

    The paper does not say on which data its linear probe is fitted, so both kinds are shown.
    """
    return Row(method, method, printed, also="linear_local_acc_mean")


_HETERO_SSFL_TABLE1 = PaperTable(
    title="Hetero-SSFL (Makhija et al. 2022), Table 1: five clients with classes of their own, linear evaluation",
    quantity="linear_global_acc_mean",
    fields=_SSL_FIELDS,
    columns={
        "CIFAR-10": _ssl_data("cifar10"),
        "CIFAR-100": _ssl_data("cifar100"),
        "Tiny-ImageNet": _ssl_data("tiny_imagenet", mu=1.0),
        "MNIST": _ssl_data("mnist"),
    },
    rows=(
        _ssl("fedbyol", (78.1, 58.1, 31.8)),
        _ssl("fedsimsiam", (76.7, 53.2, 29.1)),
        _ssl("fedu", (79.6, 58.9, 58.23)),
        _ssl("fedema", (81.2, 61.8, 58.2)),
        _ssl("hetero_ssfl", (90.29, 67.7, 61.5)),
        _ssl("local_ssl"),
        _ssl("central_byol", (94.3, 74.2, 78.7)),
        Row("fedavg", "fedavg", (68.5, 44.29, 27.2), quantity="global_acc", also="linear_global_acc_mean"),
    ),
    scales={
        "small": Scale(("CIFAR-10",), {"model": "cnn4", **_SSL_SMALL}, {"hetero_ssfl": _CNNS, "local_ssl": _CNNS}),
        "paper": Scale(
            ("CIFAR-10", "CIFAR-100", "Tiny-ImageNet"),
            {"model": "resnet34", "rounds": 200, "seeds": 3},
            {"hetero_ssfl": _RESNETS, "local_ssl": _RESNETS},
        ),
    },
    note="A linear classifier is fitted to the frozen body with the labels of all training images and tested on the "
    "whole test set: to the global body or, of hetero_ssfl and local_ssl, to each client's, and the mean over clients "
    "is shown. In linear_local both have the client's own classes alone. The paper does not tell which it shows; its "
    "numbers stand beside the former. fedavg learns with labels: the model itself is tested.",
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


_HETERO_SSFL_TABLE4 = PaperTable(
    title="Hetero-SSFL (Makhija et al. 2022), Table 4: what clients of each architecture have of learning together",
    quantity="linear_global_acc_mean",
    fields=_SSL_FIELDS,
    columns={"CIFAR-10": _ssl_data("cifar10")},
    rows=_by_architecture({"ResNet-18": "resnet18", "ResNet-34": "resnet34"}),
    scales={
        "small": Scale(
            ("CIFAR-10",),
            {**_CNNS, **_SSL_SMALL, "rounds": 30, "seeds": 2},
            instead=_by_architecture({"cnn4_half for ResNet-18": "cnn4_half", "cnn4 for ResNet-34": "cnn4"}),
        ),
        "paper": Scale(("CIFAR-10",), {**_RESNETS, "rounds": 200, "seeds": 3}),
    },
    note="Means over the clients of an architecture: two have the first, three the second. A linear classifier is "
    "fitted to each client's frozen body with the labels of all training images and tested on the whole test set; in "
    "linear_local both have the client's own classes alone. That the paper's numbers are of CIFAR-10 is inferred: "
    "their mean over the clients is nearly that of its Table 1.",
)  # fmt: skip


_SFTL_FIELDS: Fields = {
    "model": "mcmahan_cnn", "public": 0, "local_epochs": 5, "batch_size": 50, "lr": 0.05, "lr_schedule": "constant",
    "momentum": 0.0, "ft_epochs": 0,
}  # fmt: skip

_SFTL_TABLE1 = IdentificationTable(
    title="SFTL (FedVote), Table 1: finding the source model that learned a client's classes, MNIST",
    fields={**_SFTL_FIELDS, "data": "mnist", "clients": 50, "rounds": 5, "evaluate_every": 5},
    printed={"cca": "20", "svcca": "19", "pwcca": "20.5", "emd": "15", "sketched_cka": "79"},
    scales={"small": {"seeds": 3}, "paper": {"seeds": 10}},
    note="Five sources learn a pair of classes each, on half of the training images; the clients share the other half, "
    "train together, and compare the representation of their own model with that of each source on their own images. "
    "paired: a client has a shard of both classes of one source; guessing finds 20 %. The paper deals out two random "
    "shards of one class each, so that most clients have classes of two sources: any of two counts either as right, "
    "and guessing finds 36 %; unambiguous is of the fifth of the clients, or less, whose classes are of one source.",
)


def _transfer(label: str, source: str, printed: tuple[float, ...] = ()) -> Row:
    """Return a row of SFTL's Table 2 in which a given source is transferred without a vote."""
    return Row(label, "fedvote", printed, settings={"source": source})


_BASELINE, _VOTE = Row("Baseline", "fedavg", (332, 170)), Row("by vote", "fedvote")
_SFTL_TABLE2 = PaperTable(
    title="SFTL (FedVote), Table 2: rounds until the global model reads the digits of USPS, by what is transferred",
    quantity=ROUNDS,
    fields={
        **_SFTL_FIELDS, "data": "usps", "image_size": 28, "clients": 100, "participation": 0.1, "target_acc": 0.9,
        "checkpoint_every": 50, "settings": {"fedvote": {"round": 5}},
    },
    columns={"non-IID": {"partition": "sort"}, "IID": {"partition": "iid"}},
    rows=(
        _BASELINE,
        _transfer("SVHN", "svhn", (66, 31)),
        _transfer("MNIST", "mnist", (93, 51)),
        _transfer("EMNIST", "emnist", (161, 94)),
        _transfer("FMNIST", "fashion_mnist", (256, 111)),
        _transfer("STL10", "stl10", (287, 120)),
        _transfer("KMNIST", "kmnist", (571, 225)),
        _VOTE,
    ),
    scales={
        "small": Scale(
            ("non-IID", "IID"),
            {"rounds": 60},
            instead=(
                _BASELINE,
                _transfer("MNIST", "mnist", (93, 51)),
                _transfer("EMNIST letters", "emnist_letters_small"),
                _transfer("FMNIST", "fashion_mnist", (256, 111)),
                _transfer("CIFAR-10 in grey", "cifar10"),
                _transfer("PneumoniaMNIST", "pneumoniamnist"),
                _VOTE,
            ),
            sources={"train_images": 10_000},
        ),
        "paper": Scale(("non-IID", "IID"), {"rounds": 1000, "seeds": 3}),
    },
    sources={"like": "usps", "image_size": 28},
    note="A source is trained on its own data, in grey and in the target's size and normalisation, and its layers "
    "replace those of the global model, all but the last, after round 5. Rounds count from the very first. By vote: "
    "the clients choose it. In brackets: how many times sooner than the baseline; below 1 is negative transfer.",
)  # fmt: skip


TABLES: dict[str, PaperTable | IdentificationTable] = {
    "fedcka-table2": _FEDCKA_TABLE2,
    "fedshibu-table1": _FEDSHIBU_TABLE1,
    "fedcrc-table1": _FEDCRC_TABLE1,
    "hetero-ssfl-table1": _HETERO_SSFL_TABLE1,
    "hetero-ssfl-table4": _HETERO_SSFL_TABLE4,
    "sftl-table1": _SFTL_TABLE1,
    "sftl-table2": _SFTL_TABLE2,
}
