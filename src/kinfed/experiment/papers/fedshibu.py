"""Table 1 and Figures 1, 3, 4 and 5 of FedSHIBU; its figures have no numbers but those of Table 1."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kinfed.experiment.papers.figure import CRSM, PaperFigure
from kinfed.experiment.papers.table import Fields, PaperTable, Row, Scale

__all__ = ["FIGURE1", "FIGURE3", "FIGURE4", "FIGURE5", "TABLE1"]

_SHARDS = (2, 3, 4, 5, 8, 10, 20, 50, 100)
_COLUMNS = {
    f"{called} s={s}": {"data": data, "shards": s}
    for called, data in (("CIFAR-10", "cifar10"), ("CIFAR-100", "cifar100"))
    for s in _SHARDS
}


def _row(label: str, printed: tuple[float, ...] = (), **settings: Any) -> Row:
    """Return a row of FedSHIBU with all fields of its mixtures, so that the table does not depend on defaults."""
    of = {
        "rep_source": "probe", "compared": "representation", "debiased": False, "kernel": "linear", "layers": "last",
        "norm": "minmax",
    }  # fmt: skip
    return Row(label, "fedshibu", printed, settings=of | settings, also="fine_tuned_acc_weighted")


TABLE1 = PaperTable(
    title="FedSHIBU, Table 1: CIFAR-10 and CIFAR-100 by the number of shards per client",
    quantity="personal_acc_weighted",
    fields={
        "partition": "shards", "public": 256, "local_epochs": 1, "batch_size": 50, "momentum": 0.9, "weight_decay": 0.0,
        "lr_schedule": "step:0.5,0.75", "augment": "crop_flip",
    },
    columns=_COLUMNS,
    rows=(
        _row(
            "FedSHIBU linear",
            (
                94.04, 81.12, 85.07, 89.26, 89.32, 90.34, 90.64, 90.88, 90.93,
                91.12, 54.12, 57.96, 59.48, 63.63, 69.72, 72.33, 73.88, 72.97,
            ),
        ),
        _row(
            "FedSHIBU RBF",
            (
                90.69, 78.62, 85.9, 88.18, 89.92, 90.28, 90.93, 90.94, 91.23,
                41.65, 41.95, 49.47, 53.62, 62.71, 66.07, 69.97, 70.93, 71.31,
            ),
            kernel="rbf",
        ),
        _row("FedSHIBU linear, sum (literal)", norm="sum"),
        _row("printed linear", rep_source="local_random", norm="sum"),
        _row("printed RBF", rep_source="local_random", norm="sum", kernel="rbf"),
        _row("printed linear, erased", rep_source="local_random", norm="sum", control="erased"),
        _row("FedSHIBU linear, each layer", layers="each", norm="distance", reach=0.2),
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
            (*_COLUMNS,),
            {"model": "resnet18", "clients": 100, "rounds": 320, "lr": 0.1, "seeds": 3},
        ),
    },
    note="Accuracy of each client's model on its own test images, before fine-tuning; the paper does not say so, but "
         "the size of its numbers suggests it. FedSHIBU compares the bodies on images that the server holds, and "
         "rescales every row of similarities to [0, 1] before it divides the row by its sum (minmax). The paper "
         "gives only the division: that is the row sum (literal), with the same images. The rows printed are Algorithm "
         "2 as it stands: each client's own samples, and the division alone; erased keeps each client's own weight and "
         "spreads the rest equally, without any similarity. The paper's numbers are "
         "beside the other two rows. The row each layer is kinfed's default: every stage of the body is mixed by the "
         "similarity of its own outputs.",
)  # fmt: skip

_TRAINING: Fields = {name: value for name, value in TABLE1.fields.items() if name not in ("partition", "public")}
_SMALL: Fields = {"model": "cnn4", "lr": 0.1, "ft_epochs": 0}
_PAPER: Fields = {"model": "resnet18", "lr": 0.1, "ft_epochs": 0, "seeds": 3}

FIGURE1 = PaperFigure(
    title="FedSHIBU, Figure 1: aggregation within groups of like clients, and of all clients",
    shows="mean accuracy of ten clients of CIFAR-10 by round: five share the labels 0 to 4 and five the labels 5 to 9. "
          "It is higher if the extractors of each five are aggregated apart. The text gives no numbers.",
    quantity="personal_acc_mean",
    fields={**_TRAINING, "public": 0, "data": "cifar10"},
    panels={
        "all": {"partition": "groups", "clients": 10},
        "labels 0 to 4": {"partition": "iid", "clients": 5, "classes": ("0", "1", "2", "3", "4")},
        "labels 5 to 9": {"partition": "iid", "clients": 5, "classes": ("5", "6", "7", "8", "9")},
    },
    joined={"all": "all together", "labels 0 to 4": "within groups", "labels 5 to 9": "within groups"},
    rows=(Row("FedBABU", "fedbabu"), Row("FedAvg", "fedavg")),
    scales={
        # About 6 minutes: 20 rounds of 6 runs, with 1.5 to 3 CPU seconds per round, and the tests.
        "small": Scale(
            ("all", "labels 0 to 4", "labels 5 to 9"),
            {**_SMALL, "rounds": 20, "evaluate_every": 5},
            {
                "all": {"train_images": 2500},
                "labels 0 to 4": {"train_images": 1250},
                "labels 5 to 9": {"train_images": 1250},
            },
        ),
        "paper": Scale(("all", "labels 0 to 4", "labels 5 to 9"), {**_PAPER, "rounds": 500, "evaluate_every": 10}),
    },
    note="Within groups: each five are a federation of their own, and the curve is the mean of both. The heads of "
         "FedBABU are frozen; FedAvg aggregates whole models, as the paper's abstract has it.",
)  # fmt: skip

FIGURE3 = PaperFigure(
    title="FedSHIBU, Figure 3: the similarity matrix (CRSM) at several stages of the training",
    shows="the matrix of ten clients with s = 5 at rounds 0, 150, 250 and 300. At first it changes from round to "
          "round; from round 150 on, clients find their relatives, and the groups become clearer. The text gives no "
          "numbers.",
    quantity=CRSM,
    fields={**TABLE1.fields, "data": "cifar10", "clients": 10, "shards": 5},
    panels={"s=5": {}},
    rows=(_row("FedSHIBU linear"),),
    scales={
        # 5 minutes: one run of 40 rounds with 5 CPU seconds per round.
        "small": Scale(
            ("s=5",),
            {**_SMALL, "train_images": 2756, "rounds": 40, "checkpoint_every": 10, "evaluate_every": 40},
        ),
        "paper": Scale(("s=5",), {**_PAPER, "seeds": 1, "rounds": 320, "checkpoint_every": 50}),
    },
    note="Beside the matrices: the classes that clients share (cosine of their class counts), which no method sees. "
         "Clients with common classes are side by side in the picture, and numbered as in the run in the tables.",
)  # fmt: skip

FIGURE4 = PaperFigure(
    title="FedSHIBU, Figure 4: FedSHIBU and FedBABU by the number of shards per client",
    shows="test accuracy by s. FedSHIBU is ahead where clients have few classes, and the difference decreases as they "
          "have more. The figure's numbers are those of Table 1.",
    quantity="personal_acc_weighted",
    fields=TABLE1.fields,
    panels={"CIFAR-10": {"data": "cifar10"}, "CIFAR-100": {"data": "cifar100"}},
    over="shards",
    values={"small": (2, 5, 10), "paper": _SHARDS},
    rows=tuple(replace(row, also=None) for row in TABLE1.rows if row.label in ("FedSHIBU linear", "FedBABU")),
    scales={
        # 12 minutes: 6 runs of 12 rounds, with 5 to 9 CPU seconds per round, and the tests.
        "small": Scale(
            ("CIFAR-10",),
            {**_SMALL, "train_images": 5256, "clients": 20, "rounds": 12, "evaluate_every": 12},
        ),
        "paper": Scale(("CIFAR-10", "CIFAR-100"), {**_PAPER, "clients": 100, "rounds": 320, "evaluate_every": 320}),
    },
)  # fmt: skip

FIGURE5 = PaperFigure(
    title="FedSHIBU, Figure 5: FedAvg with and without similarity-based aggregation",
    shows="test accuracy by round with s = 5: FedAvg with CRSM rises faster and ends higher than FedAvg. The text "
          "gives no numbers, and does not name the data.",
    quantity="personal_acc_weighted",
    fields={**TABLE1.fields, "data": "cifar10", "shards": 5},
    panels={"s=5": {}},
    rows=(
        Row("FedAvg", "fedavg"),
        replace(_row("FedAvg + CRSM"), method="fedavg_crsm", also=None),
        replace(
            _row("FedAvg + CRSM, printed", rep_source="local_random", norm="sum"), method="fedavg_crsm", also=None
        ),
    ),
    scales={
        # 10 minutes: 3 runs of 20 rounds, with 5 to 9 CPU seconds per round, and the tests.
        "small": Scale(
            ("s=5",), {**_SMALL, "train_images": 5256, "clients": 20, "rounds": 20, "evaluate_every": 4}
        ),
        "paper": Scale(("s=5",), {**_PAPER, "clients": 100, "rounds": 320, "evaluate_every": 10}),
    },
    note="FedAvg + CRSM compares the bodies on images that the server holds, as FedSHIBU does in Table 1; printed is "
         "Algorithm 4 with the clients' own samples and weights by the row sum.",
)  # fmt: skip
