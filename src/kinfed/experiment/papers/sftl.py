"""Tables 1 and 2 and Figures 2 to 4 of SFTL (FedVote); its figures have no numbers in the text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kinfed.experiment.papers.figure import PANELS, SPEED_UP, PaperFigure
from kinfed.experiment.papers.table import ROUNDS, Fields, IdentificationTable, PaperTable, Row, Scale

__all__ = ["FIGURE2", "FIGURE3", "FIGURE4", "TABLE1", "TABLE2"]

_FIELDS: Fields = {
    "model": "mcmahan_cnn", "public": 0, "local_epochs": 5, "batch_size": 50, "lr": 0.05, "lr_schedule": "constant",
    "momentum": 0.0, "ft_epochs": 0,
}  # fmt: skip

TABLE1 = IdentificationTable(
    title="SFTL (FedVote), Table 1: identifying the source model trained on a client's classes, MNIST",
    fields={**_FIELDS, "data": "mnist", "clients": 50, "rounds": 5, "evaluate_every": 5},
    printed={"cca": "20", "svcca": "19", "pwcca": "20.5", "emd": "15", "sketched_cka": "79"},
    scales={"small": {"seeds": 3}, "paper": {"seeds": 10}},
    note="Five source models are each trained on a pair of classes, on half of the training images. The clients "
    "share the other half, train together, and compare the representation of their own model with that of each "
    "source on their own images. paired: each client has a shard of both classes of one source; guessing is "
    "right in 20 %. The paper gives each client two random shards of one class each, so that most clients have "
    "classes of two sources: any of two counts either source as right (guessing: 36 %); unambiguous counts only "
    "the clients whose classes belong to one source, a fifth of them or less.",
)


def _transfer(label: str, source: str, printed: tuple[float, ...] = ()) -> Row:
    """Return a row of SFTL's Table 2 in which a given source is transferred without a vote."""
    return Row(label, "fedvote", printed, settings={"source": source})


_BASELINE, _VOTE = Row("Baseline", "fedavg", (332, 170)), Row("by vote", "fedvote")
TABLE2 = PaperTable(
    title="SFTL (FedVote), Table 2: rounds until the global model reaches the target accuracy on USPS, by "
          "transferred source",
    quantity=ROUNDS,
    fields={
        **_FIELDS, "data": "usps", "image_size": 28, "clients": 100, "participation": 0.1, "target_acc": 0.9,
        "stop_acc": 0.9, "checkpoint_every": 50, "settings": {"fedvote": {"round": 5}},
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
                _transfer("CIFAR-10 in greyscale", "cifar10"),
                _transfer("PneumoniaMNIST", "pneumoniamnist"),
                _VOTE,
            ),
            sources={"train_images": 10_000},
        ),
        "paper": Scale(("non-IID", "IID"), {"rounds": 1000, "seeds": 3}),
    },
    sources={"like": "usps", "image_size": 28},
    note="Each source is trained on its own data, in greyscale and with the target's image size and normalisation. "
         "After round 5, its layers replace those of the global model, except the last one. Rounds are counted from "
         "the first round. By vote: the clients choose the source. In brackets: speed-up over the baseline; below 1 "
         "is negative transfer.",
)  # fmt: skip


def _subsets(size: int, count: int) -> dict[str, Fields]:
    """Return subsets of consecutive classes, by name: the sets of SFTL's object classification (specification E.6)."""
    return {
        f"classes {first} to {first + size - 1}": {"classes": tuple(str(k) for k in range(first, first + size))}
        for first in range(0, size * count, size)
    }


_TENS, _PAIRS = _subsets(10, 10), _subsets(2, 5)  # of CIFAR-100 and of CIFAR-10
_BY_VOTE = (Row("FedAvg", "fedavg"), Row("by vote", "fedvote"))


def _source(name: str) -> Row:
    return Row(f"from {name}", "fedvote", settings={"source": name})


def _sources(data: str, subsets: Mapping[str, Fields], **training: Any) -> Mapping[str, Fields]:
    return {name: {"data": (data,), **subset, **training} for name, subset in subsets.items()}


_OBJECTS: Mapping[str, Any] = {
    "quantity": SPEED_UP,
    "fields": {**_FIELDS, "partition": "iid", "participation": 0.1, "settings": {"fedvote": {"round": 5}}},
    "panels": {name: {"data": data, **subset} for data, of in (("cifar10", _PAIRS), ("cifar100", _TENS))
               for name, subset in of.items()},
    "sources": {
        "small": _sources("cifar10", _PAIRS, model="mcmahan_cnn", image_size=16, train_images=2000, epochs=5),
        "paper": _sources("cifar100", _TENS, model="vgg16", epochs=50),
    },
}  # fmt: skip
_SMALL_OBJECTS: Fields = {"image_size": 16, "train_images": 1000, "clients": 20, "rounds": 30}
_PAPER_OBJECTS: Fields = {"model": "vgg16", "clients": 100, "rounds": 300, "seeds": 3}
_MEANING = (
    "Speed-up: the rounds that FedAvg takes to 95 % of its best accuracy on the target's test images, divided by those "
    "with the transfer; below 1 is negative transfer. The paper does not define its measure. A run that does not get "
    "there counts with all its rounds. "
)
_TRANSFERS: Mapping[str, Any] = {
    **_OBJECTS,
    "over": PANELS,
    "rows": (*_BY_VOTE, *map(_source, _TENS)),
    "scales": {
        # About 14 minutes: 5 sources, and 7 runs of 30 rounds with 0.7 CPU seconds per round for each target.
        "small": Scale((*_PAIRS,), _SMALL_OBJECTS, instead=(*_BY_VOTE, *map(_source, _PAIRS))),
        "paper": Scale((*_TENS,), _PAPER_OBJECTS),
    },
}

FIGURE2 = PaperFigure(
    title="SFTL (FedVote), Figure 2: transfer between subsets of the classes",
    shows="the transfer performance from each of ten subsets of CIFAR-100's classes to each other one. The three "
          "sources that the vote selects are among the good ones for most targets. The text gives no numbers.",
    **_TRANSFERS,
    matrix=True,
    note=f"{_MEANING}A column is a target, a row what is transferred to it after round 5. The diagonal, which the "
         "paper leaves empty, is a source of the target's own classes; no vote is about that source. At the small "
         "scale, the subsets are pairs of CIFAR-10's classes.",
)  # fmt: skip

FIGURE3 = PaperFigure(
    title="SFTL (FedVote), Figure 3: the voted source and a random one",
    shows="for each target, the transfer performance of the source that the vote selects and the mean of five random "
          "sources: the vote is better. The text gives no numbers.",
    **_TRANSFERS,
    joined={f"from {name}": "a random source" for name in (*_TENS, *_PAIRS)},
    note=f"{_MEANING}A random source: the mean over all sources but that of the target's own classes, which is what "
         "random draws come to. The runs are those of Figure 2.",
)  # fmt: skip

FIGURE4 = PaperFigure(
    title="SFTL (FedVote), Figure 4: the round of the vote",
    shows="transfer performance by the round R_sel of the vote, in the object classification: low and very high values "
          "are worse. The text gives no numbers and no values of R_sel.",
    **_OBJECTS,
    over="fedvote.round",
    values={"small": (1, 3, 5, 10, 20), "paper": (1, 3, 5, 10, 20)},
    rows=_BY_VOTE,
    scales={
        # About 5 minutes: 5 sources, and 6 runs of 30 rounds with 0.7 CPU seconds per round for each of two targets.
        "small": Scale(("classes 0 to 1", "classes 2 to 3"), _SMALL_OBJECTS),
        "paper": Scale(("classes 0 to 9", "classes 50 to 59"), _PAPER_OBJECTS),
    },
    note=f"{_MEANING}The rounds before the vote count, so that a late vote has less to gain. At the small scale, the "
         "subsets are pairs of CIFAR-10's classes.",
)  # fmt: skip
