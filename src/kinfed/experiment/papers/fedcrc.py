"""Table I and Figures 1 and 3 of FedCRC; its figures have no numbers in the text."""

from __future__ import annotations

from collections.abc import Mapping

from kinfed.experiment.papers.figure import HEAD_DISTANCE, PaperFigure
from kinfed.experiment.papers.table import Fields, PaperTable, Row, Scale

__all__ = ["FIGURE1", "FIGURE3", "TABLE1"]

_DATA: Mapping[str, Fields] = {
    "MNIST": {"data": "mnist", "model": "cnn4"},
    "CIFAR-10": {"data": "cifar10", "model": "cnn4", "augment": "crop_flip"},
    "CIFAR-100": {"data": "cifar100", "model": "resnet18", "augment": "crop_flip"},
}
_SKEW: Mapping[str, Fields] = {
    **{f"β={beta:g}": {"partition": "dirichlet_clients", "alpha": beta} for beta in (0.1, 0.5, 1.0)},
    "IID": {"partition": "iid"},
}
_COLUMNS = {f"{called} {skew}": {**_DATA[called], **_SKEW[skew]} for called in _DATA for skew in _SKEW}


TABLE1 = PaperTable(
    title="FedCRC, Table I: MNIST, CIFAR-10 and CIFAR-100 at several levels of label skew",
    quantity="global_acc_mean",
    fields={
        "clients": 100, "participation": 0.1, "public": 0, "local_epochs": 5, "batch_size": 50, "lr": 0.05,
        "momentum": 0.9, "weight_decay": 0.0, "ft_epochs": 0,
        # Of 100 rounds, counted from 1: learning rate 0.01 from round 50 on, and 0.001 from round 75 on.
        "lr_schedule": "step:0.49:5,0.74",
    },
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
        Row("local", "local", quantity="personal_acc_mean", also="refit_acc_mean"),
    ),
    scales={
        # 15 minutes: six runs of 6 rounds with 20 CPU seconds per round (FedRep: a third), one run of 3 rounds with 40,
        # and the tests.
        "small": Scale(
            ("MNIST β=0.1",), {"rounds": 6, "evaluate_every": 3}, {"local": {"rounds": 3, "local_epochs": 1}}
        ),
        "paper": Scale((*_COLUMNS,), {"rounds": 100, "seeds": 3}),
    },
    note="Means over all clients, each tested on a fifth of its own images. A tenth of the clients trains in each "
         "round, but all of them train in each round of local, so that local has ten times as many epochs for the "
         "same number of rounds; in the small table, local has as many epochs as the other methods. A client that "
         "was never sampled has the initial head (stale); refit_acc_mean is of the same bodies under a head that each "
         "client fits to its own images after the last round.",
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
    values={"small": (1, 2, 4), "paper": (1, 2, 5, 10, 20, 50)},
    rows=(
        Row("training alone", "local"),
        Row("FedPer", "fedper"),
        Row("FedRep", "fedrep", settings={"head_epochs": 1, "body_epochs": 1}),
        Row("FedCRC-Per", "fedcrc", settings={"tau": 0.99}),
    ),
    scales={
        # About 10 minutes: 28 rounds in each panel with 7 CPU seconds, and the tests. The clients of both panels train
        # on as many images: with Dirichlet, a fifth of all 10,000 test images and of the training images is held out.
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
