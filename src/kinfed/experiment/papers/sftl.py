"""Tables 1 and 2 of SFTL (FedVote)."""

from __future__ import annotations

from kinfed.experiment.papers.table import ROUNDS, Fields, IdentificationTable, PaperTable, Row, Scale

__all__ = ["TABLE1", "TABLE2"]

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
        "stop_acc": 0.9,
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
