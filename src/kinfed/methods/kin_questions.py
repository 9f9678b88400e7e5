"""Questions to clients, whose models suit them: what is sent, and what a client answers.

A client is asked about the mean models of some clients in the last round. It takes its own part out, and tests the rest
on all its training samples: what others have just learned is new to them, and where all began is the same for all
models that it compares. So no samples need to be held back.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kinfed.learning import Phase, losses, train
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.method import Client, ClientState, Message, NamedTensors, Site
from kinfed.models import Part, Tensors, select, under
from kinfed.streams import torch_stream

__all__ = [
    "APART", "ERROR", "LOSS", "ROUND", "Candidate", "answers", "question", "read_answer", "trained",
    "with_trained", "without_question", "without_trained",
]  # fmt: skip

START, OWN, REST = "kin.start.", "kin.own", "kin.rest"  # prefixes of tensors of a message
SHARE = "kin.share."  # prefix of numbers of a message
ROUND = "kin.round"  # number of a message and of a client's state: the round in which models were trained
TRAINED = "kin.trained."  # prefix of tensors of a client's state: what it trained last
LOSS, APART, ERROR = "kin.loss.", "kin.apart.", "kin.error."  # prefixes of numbers of an upload
EPOCHS = 5  # of training a personal part before it is tested with other weights


@dataclass(frozen=True)
class Candidate:
    """A client's cluster at one level of the tree of kin.

    Attributes:
        own: Mean of what the cluster's clients have trained. None: that from which all began is tested instead.
        share: Weight of the client's own part in it, ≥ 0 and below 1.
        rest: Mean of the other clients of its cluster at the level before. None: likewise.
    """

    own: Tensors | None
    share: float
    rest: Tensors | None


def question(start: Tensors, candidates: Mapping[int, Candidate], round: float) -> Message:
    """Return what is added to a message to ask a client about models.

    Args:
        start: Weights from which all began in the round in which the models were trained.
        candidates: Clusters by level.
        round: That round.
    """
    tensors = {START + name: tensor for name, tensor in start.items()}
    for level, candidate in candidates.items():
        for prefix, mean in ((OWN, candidate.own), (REST, candidate.rest)):
            tensors |= {f"{prefix}{level}.{name}": tensor for name, tensor in (mean or {}).items()}
    shares = {f"{SHARE}{level}": candidate.share for level, candidate in candidates.items()}
    return Message(tensors, {**shares, ROUND: round})


def without_question(message: Message) -> Message:
    """Return a message without the tensors and numbers of a question."""
    tensors = {name: tensor for name, tensor in message.tensors.items() if not name.startswith("kin.")}
    return Message(tensors, {name: number for name, number in message.numbers.items() if not name.startswith("kin.")})


def trained(site: Site, base: FedAvg, start: NamedTensors, upload: Message) -> Tensors:
    """Return the shared parameters and buffers that a client has trained, from where it began and its upload."""
    changes = base.change(site, start, upload)
    buffers = {n: tensor for n, tensor in upload.tensors.items() if n in start.tensors and n not in changes}
    return {**{name: start.tensors[name] + change for name, change in changes.items()}, **buffers}


def with_trained(state: ClientState, tensors: Tensors, round: int) -> ClientState:
    """Return a client's state with what it trained in a round."""
    kept = {TRAINED + name: tensor for name, tensor in tensors.items()}
    return ClientState({**state.tensors, **kept}, {**state.numbers, ROUND: round})


def without_trained(state: ClientState) -> ClientState:
    """Return a client's state without what it trained."""
    tensors = {name: tensor for name, tensor in state.tensors.items() if not name.startswith(TRAINED)}
    return ClientState(tensors, {name: number for name, number in state.numbers.items() if name != ROUND})


def answers(base: FedAvg, client: Client, message: Message, state: ClientState) -> dict[str, float]:
    """Return what a client tells of the models that it is asked about, by name.

    It tells nothing if it is not asked, or has trained again since, so that it does not know its part in them any more.

    That is, for each level, the sum of the losses of its samples with the mean of the others in its cluster; by how
    much it prefers this to the mean of the rest of its cluster at the level before, on average over its samples; and
    the squared standard error of that. The client's model is left as it was.

    Args:
        base: Method that trains.
        client: Client in this round.
        message: Message with a question.
        state: State of the client, with what it trained last.
    """
    shares = {name.removeprefix(SHARE): share for name, share in message.numbers.items() if name.startswith(SHARE)}
    own, start = under(TRAINED, state.tensors), under(START, message.tensors)
    knows_its_part = state.numbers.get(ROUND) == message.numbers.get(ROUND)
    if not shares or len(client.train) < 2 or (any(shares.values()) and not knows_its_part):
        return {}
    initial = client.model.tensors()
    common = {**initial, **select(message.tensors, base.shared)}
    told: dict[str, float] = {}

    @functools.cache
    def of_start() -> Tensor:
        return _losses(base, client, {**common, **start}, initial)

    for level, share in shares.items():
        means = under(f"{OWN}{level}.", message.tensors), under(f"{REST}{level}.", message.tensors)
        of_own, of_rest = (
            _losses(base, client, {**common, **tensors}, initial) if tensors else of_start()
            for tensors in (_of_others(means[0], own, share), means[1])
        )
        prefers = of_rest - of_own
        told |= {f"{LOSS}{level}": of_own.sum().item(), f"{APART}{level}": prefers.mean().item()}
        told |= {f"{ERROR}{level}": (prefers.var() / len(prefers)).item()}
    client.model.load(initial)
    return told if torch.tensor([*told.values()]).isfinite().all() else {}


def _of_others(mean: Tensors, own: Tensors, share: float) -> Tensors:
    """Take a client's own part out of a mean in which it has a share below 1; integers stay."""
    if share == 0:
        return mean
    floats = {name: of for name, of in mean.items() if of.is_floating_point()}
    return mean | {name: ((of.double() - share * own[name]) / (1 - share)).to(of.dtype) for name, of in floats.items()}


def _losses(base: FedAvg, client: Client, tensors: Tensors, initial: Tensors) -> Tensor:
    """Return the loss of a model on each of a client's n samples, n.

    What a model believes of the frequencies of classes is left out, since a few steps of training put it right. A
    personal part is trained anew on one half of the samples, and tested on the other one: the one that the client has
    suits those weights best with which it was trained.
    """
    private: Part = tuple(part for part in base.private if part not in base.shared)
    samples = client.train
    client.model.load(tensors)
    if not private:
        return losses(client.model, samples, _frequencies(client))
    order = torch.randperm(len(samples), generator=torch_stream(client.seed, "kin halves", client.id))
    halves = order.chunk(2)
    told = torch.zeros(len(samples), dtype=torch.float64)
    for tested, fitted in (halves, halves[::-1]):
        client.model.load(select(initial, private))
        stream = client.stream("kin")
        train(client.model, samples.take(fitted.numpy()), Phase(train=private, epochs=EPOCHS), client.training, stream)
        told[tested] = losses(client.model, samples.take(tested.numpy())).cpu()
    return told


def _frequencies(client: Client) -> Tensor:
    """Return the frequency of each class in a client's samples, with one more of each class, K."""
    assert client.train.labels is not None
    counts = torch.bincount(client.train.labels, minlength=client.model.head.out_features).double() + 1
    return counts / counts.sum()


def read_answer(numbers: Mapping[str, float], levels: int) -> Tensor | None:
    """Return the losses, preferences and their squared errors at each level, 3×L; None if they are no answer.

    A level without a model of its own has the loss of the level before, and no preference. An answer without the first
    level, with a missing number, or with a loss or an error below 0 is none.

    Args:
        numbers: Numbers of an upload.
        levels: Number L of levels.
    """
    rows: list[list[float]] = []
    for level in range(levels):
        told = [numbers.get(f"{prefix}{level}") for prefix in (LOSS, APART, ERROR)]
        known = [number for number in told if number is not None]
        if not known and rows:
            rows.append([rows[-1][0], 0.0, 0.0])
        elif len(known) == len(told) and min(known[0], known[2]) >= 0:
            rows.append(known)
        else:
            return None
    return torch.tensor(rows, dtype=torch.float64).T
