"""Tables I, II and III and Figures 1 and 3 of FedCRC; its figures have no numbers in the text."""

from __future__ import annotations

from collections.abc import Mapping

from kinfed.experiment.papers.figure import HEAD_DISTANCE, PaperFigure
from kinfed.experiment.papers.table import Fields, PaperTable, Row, Scale

__all__ = ["FIGURE1", "FIGURE3", "TABLE1", "TABLE2", "TABLE3"]

_DATA: Mapping[str, Fields] = {
    "MNIST": {"data": "mnist", "model": "cnn4"},
    "CIFAR-10": {"data": "cifar10", "model": "cnn4", "augment": "crop_flip"},
    "CIFAR-100": {"data": "cifar100", "model": "resnet18", "augment": "crop_flip"},
}
_SKEW: Mapping[str, Fields] = {
    **{f"β={beta:g}": {"partition": "dirichlet_clients", "alpha": beta} for beta in (0.1, 0.5, 1.0)},
    "IID": {"partition": "iid:pooled=true"},
}
_COLUMNS = {f"{called} {skew}": {**_DATA[called], **_SKEW[skew]} for called in _DATA for skew in _SKEW}
_FIELDS: Fields = {
    "clients": 100, "participation": 0.1, "public": 0, "local_epochs": 5, "batch_size": 50, "lr": 0.05,
    "momentum": 0.9, "weight_decay": 0.0, "ft_epochs": 0,
    # Of 100 rounds, counted from 1: learning rate 0.01 from round 50 on, and 0.001 from round 75 on.
    "lr_schedule": "step:0.49:5,0.74",
}  # fmt: skip
_TUNED: Fields = {"FedBABU": {"ft_epochs": 5}, "FedBABU fine-tuned": {"ft_epochs": 5}}  # one run for both rows


def _columns(data: str, *skews: str) -> dict[str, Fields]:
    """Return the columns of a data set with these levels of label skew, and MNIST with β = 0.1 for the small scale."""
    return {name: _COLUMNS[name] for name in (*(f"{data} {skew}" for skew in skews), "MNIST β=0.1")}


TABLE1 = PaperTable(
    title="FedCRC, Table I: MNIST, CIFAR-10 and CIFAR-100 at several levels of label skew",
    quantity="global_acc_mean",
    fields=_FIELDS,
    columns=_COLUMNS,
    rows=(
        Row(
            "FedAvg",
            "fedavg",
            (98.49, 98.74, 98.81, 99.12, 56.69, 68.64, 71.58, 75.66, 32.89, 38.84, 40.86, 44.04),
            also="refit_acc_mean",
        ),
        Row(
            "FedProx",
            "fedprox",
            (98.05, 98.49, 98.66, 99.06, 55.99, 66.15, 68.69, 72.83, 28.66, 30.95, 32.27, 32.35),
            settings={"mu": 0.1},
            also="refit_acc_mean",
        ),
        Row(
            "FedBABU",
            "fedbabu",
            (98.22, 98.52, 98.72, 99.13, 63.52, 71.27, 72.69, 76.09, 39.46, 43.53, 45.69, 45.99),
            also="refit_acc_mean",
        ),
        Row("FedBABU fine-tuned", "fedbabu", quantity="fine_tuned_acc_mean"),
        Row(
            "FedPer",
            "fedper",
            (97.05, 98.47, 98.85, 99.14, 12.57, 63.29, 70.64, 75.03, 26.25, 35.79, 38.71, 41.5),
            quantity="stale_acc_mean",
            also="refit_acc_mean",
        ),
        Row(
            "FedRep",
            "fedrep",
            (98.47, 98.10, 98.08, 97.76, 85.57, 70.60, 65.21, 55.9, 47.76, 26.26, 20.70, 9.43),
            quantity="stale_acc_mean",
            settings={"head_epochs": 5, "body_epochs": 1},
            also="refit_acc_mean",
        ),
        Row(
            "FedCRC",
            "fedcrc",
            (98.37, 98.58, 98.79, 99.17, 64.61, 70.75, 72.77, 76.41, 40.00, 43.30, 44.73, 47.66),
            settings={"tau": 0.99},
            also="refit_acc_mean",
        ),
        Row(
            "FedCRC-Per",
            "fedcrc",
            (99.24, 99.12, 99.10, 99.06, 79.40, 77.01, 76.02, 75.88, 48.45, 44.56, 43.94, 45.86),
            quantity="stale_acc_mean",
            settings={"tau": 0.99},
            also="refit_acc_mean",
        ),
        Row("FedCRC-Per re-fitted", "fedcrc", quantity="refit_acc_mean", settings={"tau": 0.99}),
        Row("local", "local", quantity="personal_acc_mean", also="refit_acc_mean"),
    ),
    scales={
        # 18 minutes: six runs of 6 rounds with 20 CPU seconds per round (FedRep: a third), one run of 3 rounds with 40,
        # the tests, and, as an estimate, 3 minutes of fine-tuning: 5 epochs of all clients, as many as in 10 rounds.
        "small": Scale(
            ("MNIST β=0.1",), {"rounds": 6, "evaluate_every": 3}, {"local": {"rounds": 3, "local_epochs": 1}, **_TUNED}
        ),
        "paper": Scale((*_COLUMNS,), {"rounds": 100, "seeds": 3}, _TUNED),
    },
    note="Means over all clients, each tested on a fifth of its own images. A tenth of the clients trains in each "
         "round, but all of them train in each round of local, so that local has ten times as many epochs for the "
         "same number of rounds; in the small table, local has as many epochs as the other methods. A client that "
         "was never sampled has the initial head (stale); refit_acc_mean is of the same bodies under a head that each "
         "client fits to its own images after the last round. The paper has no row of fine-tuned or re-fitted models: "
         "FedBABU fine-tuned is the whole model after 5 epochs of each client, as FedBABU's authors do it, and "
         "FedCRC-Per re-fitted is its fair counterpart, since every client then has a head of its own. IID clients "
         "share the pooled images equally at random and keep a fifth for testing, like the others; the paper states "
         "no batch size, weight decay or augmentation: 50, none, and crop and flip on CIFAR are kinfed's choice.",
)  # fmt: skip


def _at_new_clients(label: str, method: str, printed: tuple[float, ...], **settings: float) -> Row:
    """Return a row of Table II."""
    return Row(label, method, printed, settings=settings, also="new_head_acc_mean")


TABLE2 = PaperTable(
    title="FedCRC, Table II: the global model at clients that took no part in the training",
    quantity="new_global_acc_mean",
    fields={**_FIELDS, "new_clients": 40},
    columns=_columns("CIFAR-10", "β=0.1", "β=0.5", "β=1"),
    rows=(
        _at_new_clients("FedAvg", "fedavg", (45.47, 61.58, 61.74)),
        _at_new_clients("FedProx", "fedprox", (41.28, 50.91, 49.21), mu=0.1),
        _at_new_clients("FedBABU", "fedbabu", (59.15, 65.01, 64.46)),
        _at_new_clients("FedPer", "fedper", (14.25, 55.85, 58.30)),
        _at_new_clients("FedRep", "fedrep", (21.80, 27.56, 31.31), head_epochs=5, body_epochs=1),
        _at_new_clients("FedCRC", "fedcrc", (60.43, 64.82, 64.62), tau=0.99),
    ),
    scales={
        # 8 minutes, estimated from Table I's: rounds of 6 clients instead of 10 take 12 CPU seconds (FedRep: a third).
        "small": Scale(("MNIST β=0.1",), {"rounds": 6, "evaluate_every": 6}),
        "paper": Scale(tuple(f"CIFAR-10 β={beta}" for beta in ("0.1", "0.5", "1")), {"rounds": 100, "seeds": 3}),
    },
    note="Of 100 clients 60 train, 6 of them in each round, and 40 drawn at random never do. Means over these 40, each "
         "tested on a fifth of its own images; the paper does not say on which images it tests them. FedPer and "
         "FedRep have no global head: theirs is the mean of all 60 personal heads, weighted by training images. "
         "new_head_acc_mean is of the same bodies under a head that each new client fits to its own images. The "
         "paper has no column of MNIST.",
)  # fmt: skip

TABLE3 = PaperTable(
    title="FedCRC, Table III: the factor τ of the moving average of the global head",
    quantity="global_acc_mean",
    fields=_FIELDS,
    columns=_columns("CIFAR-10", *_SKEW),
    rows=tuple(
        Row(f"τ={tau:g}", "fedcrc", printed, settings={"tau": tau})
        for tau, printed in (
            (0.99, (64.61, 70.75, 72.77, 76.41)),
            (0.9, (64.31, 70.61, 72.76, 76.20)),
            (0.5, (60.25, 69.79, 72.52, 75.77)),
            (0.2, (60.31, 69.27, 72.68, 75.82)),
        )
    ),
    scales={
        # 11 minutes, estimated from Table I's: four runs of 6 rounds with 22 CPU seconds per round, and the tests.
        "small": Scale(("MNIST β=0.1",), {"rounds": 6, "evaluate_every": 6}),
        "paper": Scale(tuple(f"CIFAR-10 {skew}" for skew in _SKEW), {"rounds": 100, "seeds": 3}),
    },
    note="Global model; means over all clients, each tested on a fifth of its own images. After few rounds most of the "
         "head is still the initial one if τ = 0.99, so that a short run says little about τ. The paper has no column "
         "of MNIST.",
)  # fmt: skip

_START: Fields = {
    "data": ("mnist",), "model": "cnn4", "train_images": 6000, "epochs": 1, "lr": 0.05, "momentum": 0.9,
    "batch_size": 50,
}  # fmt: skip

FIGURE1 = PaperFigure(
    title="FedCRC, Figure 1: how far the clients' predictors drift apart",
    shows="L2 distance between the predictors (heads) of two clients that train from one pre-trained model on MNIST, "
          "by the number of updates: it grows, and with Dirichlet β = 0.1 far more than IID. The text gives no "
          "numbers, and says no more of the training.",
    quantity=HEAD_DISTANCE,
    fields={
        **{name: value for name, value in TABLE1.fields.items() if name not in ("participation", "lr_schedule")},
        "data": "mnist", "model": "cnn4", "clients": 10, "local_epochs": 1, "lr_schedule": "constant",
        "evaluate_every": 1000,
    },
    panels={"IID": _SKEW["IID"], "β=0.1": _SKEW["β=0.1"]},
    over="rounds",
    values={"small": (1, 2), "paper": (1, 2, 5, 10, 20, 50)},
    rows=(
        Row("training alone", "local"),
        Row("FedPer", "fedper"),
        Row("FedRep", "fedrep", settings={"head_epochs": 1, "body_epochs": 1}),
        Row("FedCRC-Per", "fedcrc", settings={"tau": 0.99}),
    ),
    scales={
        # About 13 minutes: 12 rounds in each panel with 33 CPU seconds on a processor without AVX-512. The clients of
        # both panels train on as many images: with Dirichlet, a fifth of all 10,000 test images and of the training
        # images is held out.
        "small": Scale(("IID", "β=0.1"), {}, {"IID": {"train_images": 10_240}, "β=0.1": {"train_images": 2800}}),
        "paper": Scale(("IID", "β=0.1"), {"seeds": 3}, {"IID": {"train_images": 56_000}}),
    },
    sources={scale: {"pre-trained": _START} for scale in ("small", "paper")},
    start="pre-trained",
    note="Mean over all pairs of ten clients, one local epoch per round. The curve of clients that train alone is the "
         "paper's experiment; the others show what the methods that have personal heads do to them.",
)  # fmt: skip

FIGURE3 = PaperFigure(
    title="FedCRC, Figure 3: test accuracy of FedCRC and FedAvg by round",
    shows="accuracy by round under two distributions, with all clients in each round and one local epoch: FedCRC rises "
          "faster than FedAvg. The text names neither the data nor the distributions, and gives no numbers.",
    quantity="global_acc_mean",
    fields={
        **{name: value for name, value in TABLE1.fields.items() if name != "participation"},
        **_DATA["CIFAR-10"], "local_epochs": 1,
    },
    panels={"β=0.1": _SKEW["β=0.1"], "IID": _SKEW["IID"]},
    rows=(
        Row("FedAvg", "fedavg"),
        Row("FedCRC", "fedcrc", settings={"tau": 0.99}),
        Row("FedCRC-Per", "fedcrc", quantity="stale_acc_mean", settings={"tau": 0.99}),
    ),
    scales={
        # About 11 minutes: 4 runs of 10 rounds with 10 to 13 CPU seconds, and the tests. As many images in both panels.
        "small": Scale(
            ("β=0.1", "IID"),
            {"clients": 20, "rounds": 10, "augment": "none", "evaluate_every": 2},
            {"β=0.1": {"train_images": 2000}, "IID": {"train_images": 9600}},
        ),
        "paper": Scale(("β=0.1", "IID"), {"rounds": 100, "evaluate_every": 2, "seeds": 3}),
    },
    note="With Dirichlet, the clients' data contain the test set, of which they hold a fifth out. FedCRC and "
         "FedCRC-Per are the same runs.",
)  # fmt: skip
