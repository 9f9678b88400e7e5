"""SFTL's FedVote: clients vote for a pre-trained source model, whose body replaces the server's (specification E).

The paper augments existing algorithms with it: `Vote` is a wrapper around one of them.

A source (model) is a model that was trained before on other data; the user gives a folder of them, the pool. A tap
point is a named place in a model at which activations can be read. A ballot is the list of the sources that a client
finds most similar to its own model, best first.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray

from kinfed.errors import InputError, RunFailed
from kinfed.learning import unnormalised
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.method import (
    Client,
    ClientId,
    ClientState,
    Message,
    Method,
    NamedTensors,
    Requirements,
    Server,
    ServerState,
    unread,
)
from kinfed.methods.travels import Sent
from kinfed.methods.voting import Seen, ballot, bias, count, scores, seen
from kinfed.methods.wrapper import Wrapper
from kinfed.models import BODY, HEAD, Model, Source, Tensors, select
from kinfed.similarity import MEASURES

__all__ = ["Vote", "ballots", "fitting"]

VOTED = "voted"  # name of the round of the transfer, in the state and the messages after it
CHOICE = "choice."  # prefix of the names of a client's first, second, … choice
_SILENCED = threading.Lock()  # warnings can only be silenced for the whole process, so one thread at a time does it


@dataclass(frozen=True, kw_only=True)
class Vote(Wrapper):
    """FedVote around a method: in one round clients vote for a source model, whose body replaces the server's.

    Each client compares its trained model with every source, on its own training images without labels, and sends the
    indices of the most similar sources. In all other rounds the base method works as it does alone.

    >>> Vote(FedAvg(), round=3).requires.source_models
    True

    Attributes:
        base: Method that the vote is added to; it must have a body at the server.
        round: Round R_sel of vote and transfer; without a usable upload in it, the next round with one.
        ballot: Number m of sources that a client names.
        measure: Name of a measure of `kinfed.similarity.MEASURES` that needs no labels, or ``package.module:function``.
        taps: Tap points that are compared, separated by commas; ``body`` is the representation. Scores are means over
            them. ``A=B`` compares tap point A of the model with tap point B of the sources.
        images: Largest number of a client's training images for the vote, ≥ 4; they are drawn at random.
        classifier: Head after the transfer: ``keep`` for the server's, ``reinit`` for the initial one, ``source`` for
            the source's.
        source: Name of the source to transfer without a vote; None for a vote.
    """

    trial: ClassVar[Mapping[str, Any]] = {"round": 2, "ballot": 2}

    round: Annotated[int, Ge(1)] = 5
    ballot: Annotated[int, Ge(1)] = 3
    measure: str = "sketched_cka"
    taps: str = "body"
    images: Annotated[int, Ge(4)] = 1000
    classifier: Literal["keep", "reinit", "source"] = "keep"
    source: str | None = None

    @property
    def idle(self) -> Mapping[str, str]:
        """Fields without effect: those of the vote, if ``source`` is given."""
        by = "a vote; source names what is transferred without one"
        reads = dict.fromkeys(("ballot", "measure", "taps", "images"), (by, self.source is None))
        return {**super().idle, **unread(reads)}

    @property
    def carries_up(self) -> Sequence[Sent]:
        """What the base's clients send, and the ballot."""
        return [
            *super().carries_up,
            Sent((CHOICE,), "sources that its model is most like", "m", "nothing: the vote reads none", "in one round"),
        ]

    @property
    def carries_down(self) -> Sequence[Sent]:
        """What the base's clients receive, and the source models."""
        return [
            *super().carries_down,
            Sent((VOTED,), "round of the vote", "1", "nothing", "after the vote"),
            Sent((), "the source models", "models", "nothing", "once"),
        ]

    def __post_init__(self) -> None:
        super().__post_init__()
        if MEASURES.find(self.measure).needs_labels:
            raise InputError(f"measure: {self.measure!r} is not allowed; it needs labels, which the vote does not use")
        if not all(own and theirs for own, theirs in self._pairs):
            raise InputError(f"taps: {self.taps!r} must have the form TAP,… or TAP=TAP OF THE SOURCES,…")

    @classmethod
    def wraps(cls, kind: type[Method]) -> bool:
        """Return True if the methods of a class have a body at the server, which a source can replace."""
        return issubclass(kind, FedAvg) and set(BODY) <= {*kind.shared}

    @classmethod
    def needs(cls) -> str:
        """Return the reason for which other methods cannot be the base, in words."""
        return "the vote needs a method with a body at the server"

    @property
    def _pairs(self) -> list[tuple[str, str]]:
        """Pairs of tap points that are compared: one of the model, one of the sources."""
        pairs = [tap.strip().partition("=") for tap in self.taps.split(",")]
        return [(own, theirs if equals else own) for own, equals, theirs in pairs]

    @property
    def requires(self) -> Requirements:
        """Requirements of the base, source models, and enough rounds for the vote."""
        base = super().requires
        return replace(base, source_models=True, rounds=max(base.rounds, self.round))

    def check(self, models: Sequence[Model], sources: Sequence[Source], shape: tuple[int, ...]) -> None:
        """Raise InputError unless there is a source model, and the clients' models can be compared with all of them.

        Each source needs the tap points of ``taps``, and at least one body layer with the names and shapes of the
        model's. What the base method refuses is refused, too. The arguments are those of `Method.check`.

        Raises:
            InputError: If a requirement does not hold; the message names the field or the source.
        """
        super().check(models, sources, shape)
        names = [source.name for source in sources]
        if not names:
            raise InputError("sources: there must be at least one source model")
        if self.source is not None and self.source not in names:
            raise InputError(f"source: {self.source!r} is not among the sources; allowed: {', '.join(names)}")
        for model in models:
            self.check_comparable(model, sources)
            for source in sources:
                self._check_fits(model, source)

    def _check_fits(self, model: Model, source: Source) -> None:
        if not fitting(source, model):
            raise InputError(f"sources: {source.name!r} has no layer that fits the model; leave it out")
        if self.classifier == "source" and source.model.head.weight.shape != model.head.weight.shape:
            has = f"{source.model.head.out_features} outputs and {source.model.head.in_features} features"
            raise InputError(
                f"classifier: 'source' is not allowed; the classifier of {source.name!r} does not fit, with {has}"
            )

    def check_comparable(self, model: Model, sources: Sequence[Source]) -> None:
        """Raise InputError if the similarity measure cannot compare a model and the sources at the tap points.

        Raises:
            InputError: If one of them lacks a tap point, or if the measure needs equal numbers of features and they
                differ.
        """
        for own, theirs in self._pairs:
            for name, of, tap in [("the model", model, own), *((s.name, s.model, theirs) for s in sources)]:
                if tap not in of.taps:
                    raise InputError(f"taps: {tap!r} is not a tap point of {name}; it has {', '.join(of.taps)}")
        if not MEASURES[self.measure].same_width:
            return
        for (own, theirs), source in itertools.product(self._pairs, sources):
            has, needed = _width(source.model, source.card.shape, theirs), _width(model, source.card.shape, own)
            if has != needed:
                raise InputError(
                    f"measure: {self.measure} needs equal numbers of features; {own} of the model has {needed}, but "
                    f"{theirs} of {source.name!r} has {has}"
                )

    def most_features(self, model: Model, sources: Sequence[Source]) -> int:
        """Return the largest number of features of the model or a source at a tap point that is compared."""
        own = max(_width(model, sources[0].card.shape, tap) for tap, _ in self._pairs)
        return max(own, *(_width(s.model, s.card.shape, tap) for s in sources for _, tap in self._pairs))

    def selects(self, state: NamedTensors, round: int) -> bool:
        """Return True if a source model is to be chosen in a round: from R_sel on, until one was transferred."""
        return round >= self.round and VOTED not in state.numbers

    # -- for metrics and reports --------------------------------------------------------------------------------------

    def _cast(
        self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]
    ) -> dict[ClientId, list[int]]:
        """Return the ballots of the server's round, by client; empty if no source was chosen in it."""
        chosen = state.numbers.get(VOTED) == server.round
        return ballots(uploads, len(server.sources)) if chosen else {}

    def extra_download_bytes(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> int:
        """Return the extra bytes of the base method and, once per voting client, those of all source models."""
        base = super().extra_download_bytes(server, state, uploads)
        tensors = (tensor for source in server.sources for tensor in source.model.state_dict().values())
        sources: int = sum(tensor.nbytes for tensor in tensors)
        return base + len(self._cast(server, state, uploads)) * sources

    def notes(
        self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message], class_counts: NDArray[np.int64]
    ) -> dict[str, Any]:
        """Return the base's notes; in the round of the vote also ``ballots``: by client, indices of sources."""
        base = super().notes(server, state, uploads, class_counts)
        if state.numbers.get(VOTED) != server.round:
            return base
        cast = self._cast(server, state, uploads)
        return {**base, "ballots": {str(id): choices for id, choices in cast.items()}}

    def outcome(
        self, server: Server, lines: Sequence[Mapping[str, Any]], class_counts: NDArray[np.int64]
    ) -> dict[str, Any]:
        """Return the base's entries for ``summary.json``, and as ``vote`` the result of the vote if there was one."""
        base = super().outcome(server, lines, class_counts)
        for line in lines:
            if "ballots" in line:
                samples = class_counts.sum(axis=1).tolist()
                told = self.counted(server.model, server.sources, line["ballots"], samples)
                return {**base, "vote": {"round": line["round"], **told}}
        return base

    def counted(
        self,
        model: Model,
        sources: Sequence[Source],
        cast: Mapping[ClientId, Sequence[int]],
        samples: Sequence[int],
    ) -> dict[str, Any]:
        """Return the result of a vote as JSON values: votes and Borda points of each source, and the winner.

        Args:
            model: Model of the server.
            sources: P source models.
            cast: Ballots by client, indices of sources, best first.
            samples: Training samples of each client, N.
        """
        names, counted = [source.name for source in sources], count(cast, len(sources), self.ballot)
        chosen = counted.ranking[0] if self.source is None else names.index(self.source)
        layers = {name.rpartition(".")[0] for name in fitting(sources[chosen], model)}
        said = bias(self.measure, [min(n, self.images) for n in samples], self.most_features(model, sources))
        return {
            "sources": names,
            "votes": counted.votes,
            "points": counted.points,
            "ballots": len(cast),
            "transferred": names[chosen],
            "voted": self.source is None,
            "layers": [len(layers), len(_layers(select(model.named_tensors(), BODY)))],
            **({"bias": said} if self.source is None and said else {}),
        }

    # -- at the server ------------------------------------------------------------------------------------------------

    def download(self, state: ServerState, client: ClientId) -> Message:
        """Message of the base, with the round of the transfer after it."""
        message = super().download(state, client)
        return replace(message, numbers={**message.numbers, **_voted(state)})

    def aggregate(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> ServerState:
        """Aggregate as the base does; in the round of the vote, then replace the server's layers by the winner's."""
        initial = server.model.tensors(HEAD)
        aggregated = super().aggregate(server, state, uploads)
        if not self.selects(state, server.round):
            return replace(aggregated, numbers={**aggregated.numbers, **_voted(state)})
        moved = self.base.transferred(aggregated, self._taken(server.model, self._chosen(server, uploads), initial))
        return replace(moved, numbers={**moved.numbers, VOTED: server.round})

    def _chosen(self, server: Server, uploads: Mapping[ClientId, Message]) -> Source:
        """Return the winner of the vote, or the source that ``source`` names.

        Raises:
            RunFailed: If no client cast a ballot.
        """
        by_name = {source.name: source for source in server.sources}
        if self.source is not None:
            return by_name[self.source]
        cast = ballots(uploads, len(by_name))
        if not cast:
            raise RunFailed(
                f"no client voted in round {server.round}, since {self.measure} is not defined between any client's "
                "model and any source"
            )
        return server.sources[count(cast, len(by_name), self.ballot).ranking[0]]

    def _taken(self, model: Model, source: Source, initial: Tensors) -> Tensors:
        """Return the tensors that replace the server's: the source's fitting body layers, and the new head if any."""
        head = {"keep": {}, "reinit": initial, "source": source.model.tensors(HEAD)}[self.classifier]
        mine, theirs = model.named_tensors(), source.model.tensors()
        free = {name: tensor for name, tensor in head.items() if name not in model.frozen}
        return {**{name: theirs[name].to(mine[name].dtype) for name in fitting(source, model)}, **free}

    # -- at the client -------------------------------------------------------------------------------------------------

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        """Train as the base does; in the round of the vote, add a ballot to the upload."""
        upload, state = super().update(client, message, state)
        if self.source is None and self.selects(message, client.round):
            client.model.load(select(upload.tensors, BODY))
            with _SILENCED:
                choices = ballot(scores(self.seen(client), self.measure), self.ballot)
            cast = {f"{CHOICE}{place}": float(source) for place, source in enumerate(choices, start=1)}
            upload = replace(upload, numbers={**upload.numbers, **cast})
        return upload, state

    def seen(self, client: Client) -> Seen:
        """Compute activations of the client's model and of the sources on the client's images."""
        samples = client.train if self.supervised else unnormalised(client.train)
        if len(samples) > self.images:
            rows = torch.randperm(len(samples), generator=client.stream("vote"))[: self.images]
            samples = samples.take(np.sort(rows.numpy()))
        return seen(client.model, client.sources, samples, self._pairs)


@torch.no_grad()
def _width(model: Model, shape: tuple[int, ...], tap: str) -> int:
    """Return the number of features of a model at a tap point, for inputs of a shape such as (c, h, w)."""
    blank = torch.zeros(2, *shape, device=model.head.weight.device)  # two inputs, since BatchNorm may need them
    return model.eval().activations(blank, [tap])[tap][0].numel()


def fitting(source: Source, model: Model) -> list[str]:
    """Return the names of the tensors of a model's body that a source can replace.

    These are the tensors of all layers that agree in names and shapes and are not permanently frozen in the model.
    """
    mine, theirs = (_layers(select(of.named_tensors(), BODY)) for of in (model, source.model))
    free = [layer for layer in mine if layer not in model.frozen_layers and theirs.get(layer) == mine[layer]]
    return [name for layer in free for name in mine[layer]]


def _layers(tensors: Tensors) -> dict[str, dict[str, tuple[int, ...]]]:
    """Group the shapes of tensors by layer: layer name → tensor name → shape."""
    layers: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, tensor in tensors.items():
        layers.setdefault(name.rpartition(".")[0], {})[name] = tuple(tensor.shape)
    return layers


def ballots(uploads: Mapping[ClientId, Message], sources: int) -> dict[ClientId, list[int]]:
    """Read the ballots in the uploads: indices of sources, best first, by client.

    Invalid ballots are left out: empty ones, and those with an unknown source or the same source twice.

    >>> ballots({0: Message(numbers={"choice.1": 2, "choice.2": 0}), 1: Message(numbers={"choice.1": 7})}, sources=3)
    {0: [2, 0]}

    Args:
        uploads: Uploads by client.
        sources: Number P of sources.
    """
    cast = {}
    names = [f"{CHOICE}{place}" for place in range(1, sources + 1)]
    for id, upload in uploads.items():
        choices = [upload.numbers[name] for name in names if name in upload.numbers]
        if choices and len({*choices}) == len(choices) and {*choices} <= {*range(sources)}:
            cast[id] = [int(n) for n in choices]
    return cast


def _voted(state: ServerState) -> dict[str, float]:
    return {VOTED: state.numbers[VOTED]} if VOTED in state.numbers else {}
