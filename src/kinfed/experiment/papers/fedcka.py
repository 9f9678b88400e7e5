"""Table 2 and Figures 2, 4 and 5 of FedCKA (Son et al. 2021)."""

from __future__ import annotations

from kinfed.experiment.papers.figure import CLASS_COUNTS, LAYERS, PaperFigure
from kinfed.experiment.papers.table import Fields, PaperTable, Row, Scale

__all__ = ["FIGURE2", "FIGURE4", "FIGURE5", "TABLE2"]


def _column(alpha: float, *, fedprox: float, moon: float, fedcka: float) -> Fields:
    """Return a column of FedCKA's Table 2 with the paper's best μ of each method.

    SCAFFOLD is NIID-Bench's variant (``denom="steps"``), which the paper most likely used.
    """
    mu = {"fedprox": fedprox, "moon": moon, "fedcka": fedcka}
    return {"alpha": alpha, "settings": {"scaffold": {"denom": "steps"}, **{name: {"mu": m} for name, m in mu.items()}}}


TABLE2 = PaperTable(
    title="FedCKA (Son et al. 2021), Table 2: CIFAR-10 at several levels of label skew",
    quantity="global_acc",
    fields={
        "data": "cifar10", "model": "small_cnn", "clients": 10, "partition": "dirichlet", "public": 0,
        "local_epochs": 10, "batch_size": 128, "lr": 0.01, "lr_schedule": "constant", "momentum": 0.9,
        "weight_decay": 1e-5, "checkpoint_every": 1,
    },
    columns={
        "α=5": _column(5.0, fedprox=0.001, moon=0.1, fedcka=5),
        "α=0.5": _column(0.5, fedprox=0.1, moon=10, fedcka=3),
        "α=0.1": _column(0.1, fedprox=0.001, moon=10, fedcka=3),
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

FIGURE2 = PaperFigure(
    title="FedCKA (Son et al. 2021), Figure 2: how alike the layers of the clients' models are",
    shows="CKA of each layer of ten local models with the global one, after 20 rounds on IID shares of CIFAR-10, on "
          "test images. Early layers are alike, late ones are not. The text gives no numbers.",
    quantity=LAYERS,
    fields={**TABLE2.fields, "ft_epochs": 0, "save_local": True},
    panels={"IID": {"partition": "iid"}, "α=0.1": {"alpha": 0.1}},
    rows=(Row("FedAvg", "fedavg"),),
    scales={
        # 6 minutes: two runs of 20 rounds with 7 CPU seconds per round.
        "small": Scale(
            ("IID", "α=0.1"), {"train_images": 10_000, "local_epochs": 5, "rounds": 20, "evaluate_every": 20}
        ),
        "paper": Scale(("IID",), {"rounds": 20, "evaluate_every": 20}),
    },
    note="The local models of the last round and the global one that they became, on 512 test images. Debiased CKA is "
         "0 on average for unrelated layers of any width, CKA is not. α=0.1 is not in the paper.",
)  # fmt: skip

FIGURE4 = PaperFigure(
    title="FedCKA (Son et al. 2021), Figure 4: classes of ten clients at several levels of label skew",
    shows="how many samples of each class of CIFAR-10 each client has, by Dirichlet α: the smaller, the more they "
    "differ. The text gives no numbers.",
    quantity=CLASS_COUNTS,
    fields=TABLE2.fields,
    panels={heading: {"alpha": of["alpha"]} for heading, of in TABLE2.columns.items()},
    rows=(Row("FedAvg", "fedavg"),),
    scales=dict.fromkeys(("small", "paper"), Scale((*TABLE2.columns,), {"rounds": 1})),
    note="Nothing is trained.",
)

FIGURE5 = PaperFigure(
    title="FedCKA (Son et al. 2021), Figure 5: the number of layers that are regularised",
    shows="accuracy with α = 5 by the number M of regularised layers, from 1 to 7: best with the first two. A dotted "
          "line is training at one place, 70 %. Of FedCKA, the text gives 67.86 for M = 2.",
    quantity="global_acc",
    fields={**TABLE2.fields, **TABLE2.columns["α=5"], "ft_epochs": 0},
    panels={"α=5": {}},
    over="fedcka.layers",
    values={"small": (1, 2, 4, 7), "paper": (1, 2, 3, 4, 5, 6, 7)},
    rows=(Row("FedCKA", "fedcka"), Row("FedAvg", "fedavg"), Row("all data at one place", "central")),
    scales={
        # 12 minutes: 4 runs of FedCKA with 15 CPU seconds per round (more with more layers), FedAvg and central with 7.
        "small": Scale(
            ("α=5",), {"train_images": 10_000, "local_epochs": 5, "rounds": 8, "evaluate_every": 8}
        ),
        "paper": Scale(("α=5",), {"rounds": 100, "evaluate_every": 100, "seeds": 3}),
    },
    note="FedAvg and training at one place have no M, and the same value everywhere.",
)  # fmt: skip
