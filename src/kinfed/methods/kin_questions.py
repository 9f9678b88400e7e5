"""Questions to clients, whose models suit them: what is sent, what a client answers, and which groups join by that.

A client is asked about the mean models of some clients in the last round. It takes its own part out, and tests the rest
on all its training samples: what others have just learned is new to them, and where all began is the same for all
models that it compares. So no samples need to be held back.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kinfed.learning import Phase, losses, train
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.kin import SURE
from kinfed.methods.method import Client, ClientId, ClientState, Message, NamedTensors, Site
from kinfed.models import Part, Tensors, select
from kinfed.streams import torch_stream

__all__ = [
    "EVERYBODY",
    "LOSS",
    "MOVE",
    "SQUARE",
    "Candidate",
    "answers",
    "joining",
    "question",
    "read_losses",
    "sure_gain",
    "trained",
    "under",
    "with_trained",
    "without_question",
    "without_trained",
]  # fmt: skip

START, MODEL = "kin.start.", "kin.model."  # prefixes of tensors of a message
SHARE = "kin.share."  # prefix of numbers of a message
TRAINED = "kin.trained."  # prefix of tensors of a client's state: the parameters that it trained last
LOSS, SQUARE = "kin.loss.", "kin.square."  # prefixes of numbers of an upload: sums of losses, and their squared errors
MOVE = "kin.move"  # number of an upload: the group that the client moves to
OWN, GROUP, EVERYBODY = "0", "group", "all"  # names of models: the own group, another group, all clients
EPOCHS = 5  # of training a personal part before it is tested with other weights


@dataclass(frozen=True)
class Candidate:
    """The mean model of some clients, for one of them or for another one.

    Attributes:
        tensors: Mean of each parameter that is shared.
        share: Weight of the asked client's own parameters in it, 0 to 1.
    """

    tensors: Tensors
    share: float


def question(start: Tensors, candidates: Mapping[str, Candidate]) -> Message:
    """Return what is added to a message to ask a client about models.

    Args:
        start: Parameters from which the client's group began in the round in which the models were trained.
        candidates: Models by name: the number of a level, ``group`` with the number of another group, or ``all``.
    """
    tensors = {START + name: tensor for name, tensor in start.items()}
    for which, candidate in candidates.items():
        tensors |= {f"{MODEL}{which}.{name}": tensor for name, tensor in candidate.tensors.items()}
    return Message(tensors, {SHARE + which: candidate.share for which, candidate in candidates.items()})


def without_question(message: Message) -> Message:
    """Return a message without the tensors and numbers of a question."""
    tensors = {name: tensor for name, tensor in message.tensors.items() if not name.startswith("kin.")}
    return Message(tensors, {name: number for name, number in message.numbers.items() if not name.startswith("kin.")})


def trained(site: Site, base: FedAvg, start: NamedTensors, upload: Message) -> Tensors:
    """Return the shared parameters that a client has trained, from where it began and its upload."""
    return {name: start.tensors[name] + change for name, change in base.change(site, start, upload).items()}


def with_trained(state: ClientState, tensors: Tensors) -> ClientState:
    """Return a client's state with the parameters that it trained."""
    kept = {TRAINED + name: tensor for name, tensor in tensors.items()}
    return replace(state, tensors={**state.tensors, **kept})


def without_trained(state: ClientState) -> ClientState:
    """Return a client's state without its update."""
    return replace(state, tensors={name: of for name, of in state.tensors.items() if not name.startswith(TRAINED)})


def answers(base: FedAvg, client: Client, message: Message, state: ClientState) -> dict[str, float]:
    """Return what a client tells of the models that it is asked about, by name; nothing if it is not asked.

    That is the sum of the losses of its samples with each model, the squared standard errors of the differences between
    these sums, and the group to which it moves, if the model of one surely suits it better than that of its own. The
    client's model is left as it was.

    Args:
        base: Method that trains.
        client: Client in this round.
        message: Message with a question.
        state: State of the client, with the parameters that it trained last.
    """
    asked = [name.removeprefix(SHARE) for name in message.numbers if name.startswith(SHARE)]
    own, start = under(TRAINED, state.tensors), under(START, message.tensors)
    if len(client.train) < 2 or (not own and any(message.numbers[SHARE + which] for which in asked)):
        return {}
    initial, told = client.model.tensors(), {}
    for which in asked:
        mean, share = under(f"{MODEL}{which}.", message.tensors), message.numbers[SHARE + which]
        others = start if share > 1 - 1e-9 else _of_others(mean, own, share)
        client.model.load({**initial, **select(message.tensors, base.shared), **others})
        told[which] = _losses(base, client, initial)
    client.model.load(initial)
    if not all(of.isfinite().all() for of in told.values()):
        return {}
    told_numbers = {LOSS + which: of.sum().item() for which, of in told.items()}
    for one, other in itertools.combinations(told, 2):
        if not one.startswith(GROUP):
            told_numbers[f"{SQUARE}{one}-{other}"] = (len(client.train) * (told[one] - told[other]).var()).item()
    groups = [which for which in told if which.startswith(GROUP)]
    if groups and OWN in told:
        best = min(groups, key=lambda which: told_numbers[LOSS + which])
        if sure_gain([told_numbers], OWN, best) > 0:
            told_numbers[MOVE] = float(best.removeprefix(GROUP))
    return told_numbers


def _of_others(mean: Tensors, own: Tensors, share: float) -> Tensors:
    """Take a client's own parameters out of a mean in which they have a share below 1."""
    if share == 0:
        return mean
    return {name: ((of.double() - share * own[name]) / (1 - share)).to(of.dtype) for name, of in mean.items()}


def _losses(base: FedAvg, client: Client, initial: Tensors) -> Tensor:
    """Return the loss of the client's model on each of its n samples, n.

    What a model believes of the frequencies of classes is left out, since a few steps of training put it right. A
    personal part is trained anew on one half of the samples, and tested on the other one: the one that the client has
    suits those weights best with which it was trained.
    """
    private: Part = tuple(part for part in base.private if part not in base.shared)
    samples = client.train
    if not private:
        return losses(client.model, samples, _frequencies(client))
    order = torch.randperm(len(samples), generator=torch_stream(client.seed, "kin halves", client.id))
    halves = order.chunk(2)
    told = torch.zeros(len(samples), dtype=torch.float64)
    for tested, trained in (halves, halves[::-1]):
        client.model.load(select(initial, private))
        stream = client.stream("kin")
        train(client.model, samples.take(trained.numpy()), Phase(train=private, epochs=EPOCHS), client.training, stream)
        told[tested] = losses(client.model, samples.take(tested.numpy())).cpu()
    return told


def _frequencies(client: Client) -> Tensor:
    """Return the frequency of each class in a client's samples, with one more of each class, K."""
    assert client.train.labels is not None
    counts = torch.bincount(client.train.labels, minlength=client.model.head.out_features).double() + 1
    return counts / counts.sum()


def read_losses(numbers: Mapping[str, float], levels: int) -> tuple[Tensor, Tensor] | None:
    """Return the losses at each level, L, and the squared errors of their differences, L×L; None if they are no answer.

    A level without a model of its own has that of the level before. An answer without the first level, without one of
    the errors, or with a number below 0 is none.

    Args:
        numbers: Numbers of an upload.
        levels: Number L of levels.
    """
    told = [level for level in range(levels) if f"{LOSS}{level}" in numbers]
    sums = {level: numbers[f"{LOSS}{level}"] for level in told}
    pairs = {(one, one): 0.0 for one in told}
    pairs |= {pair: numbers.get(SQUARE + "{}-{}".format(*pair), -1.0) for pair in itertools.combinations(told, 2)}
    if told[:1] != [0] or min(*sums.values(), *pairs.values()) < 0:
        return None
    of = [max(level for level in told if level <= row) for row in range(levels)]
    squares = [[pairs[min(a, b), max(a, b)] for a in of] for b in of]
    return (
        torch.tensor([sums[level] for level in of], dtype=torch.float64),
        torch.tensor(squares, dtype=torch.float64),
    )


def sure_gain(told: Sequence[Mapping[str, float]], one: str, other: str) -> float:
    """Return by how much clients lose less with another model; 0 if that is not sure, or half of them do not tell.

    >>> sure_gain([{"kin.loss.0": 5.0, "kin.loss.all": 4.0, "kin.square.0-all": 0.2}], "0", "all")
    1.0

    Args:
        told: What each client tells.
        one: Name of the model that they have.
        other: Name of the other model.
    """
    names = LOSS + one, LOSS + other, f"{SQUARE}{one}-{other}"
    known = [[of[name] for name in names] for of in told if all(name in of for name in names)]
    gain = math.fsum(loss - with_other for loss, with_other, _ in known)
    error = math.sqrt(max(math.fsum(square for *_, square in known), 0.0))
    return gain if gain > SURE * error and 2 * len(known) > len(told) else 0.0


def joining(groups: Tensor, uploads: Mapping[ClientId, Message]) -> dict[int, int]:
    """Return the groups that join another one, and which.

    Groups whose clients do better with the mean of all become one, with a new number. Others join the group whose model
    suits their clients better than their own; of two that would join each other, the larger one stays.

    Args:
        groups: Group of each client, N.
        uploads: Usable uploads by client, with answers.
    """
    sizes = {group: int((groups == group).sum()) for group in groups.unique().tolist() if group}
    told = {group: [of.numbers for id, of in uploads.items() if groups[id] == group] for group in sizes}
    common = max(sizes, default=0) + 1
    joins = dict.fromkeys((group for group in sizes if sure_gain(told[group], OWN, EVERYBODY) > 0), common)
    if len(joins) < 2:
        joins = {}
    for group in sorted(sizes, key=lambda group: sizes[group]):
        if group in joins or group in joins.values():
            continue
        less = {
            other: sure_gain(told[group], OWN, f"{GROUP}{other}") for other in sizes.keys() - {group} - joins.keys()
        }
        best = max(less, key=lambda other: (less[other], -other), default=None)
        if best is not None and less[best] > 0:
            joins[group] = best
    return joins


def under(prefix: str, tensors: Tensors) -> Tensors:
    """Return the tensors under a prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
