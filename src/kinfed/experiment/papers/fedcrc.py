"""Table I of FedCRC."""

from __future__ import annotations

from collections.abc import Mapping

from kinfed.experiment.papers.table import Fields, PaperTable, Row, Scale

__all__ = ["TABLE1"]

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
