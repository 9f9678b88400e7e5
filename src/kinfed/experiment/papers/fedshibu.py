"""Table 1 of FedSHIBU."""

from __future__ import annotations

from typing import Any

from kinfed.experiment.papers.table import PaperTable, Row, Scale

__all__ = ["TABLE1"]

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
