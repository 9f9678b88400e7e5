"""SFTL's FedVote: clients vote which pre-trained source model to go on from (specification E).

The paper says that it augments existing algorithms: `Vote` is a wrapper around one of them.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, TypeGuard

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
from kinfed.methods.picture import Picture
from kinfed.methods.voting import Seen, ballot, bias, count, scores, seen
from kinfed.models import BODY, HEAD, Model, Source, Tensors, select
from kinfed.similarity import MEASURES

__all__ = ["Vote", "ballots", "carries_vote", "fitting"]

VOTED = "voted"  # the round of the transfer, from then on; to the clients as well
CHOICE = "choice."  # a client's first, second, … choice
_SILENCED = threading.Lock()  # while scores are computed, warnings are silenced in the whole process


# Declarations of a method that a vote leaves as they are.
DECLARED = (
    "trains", "serves", "primary", "primary_label", "supervised", "adapts", "mixes_architectures", "unknown",
    "trains_head_alone",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Vote(Method):
    """FedVote around a method: in one round clients vote for a source model, whose body replaces the server's.

    Each compares the model that it has just trained with every source, on its own training images and without their
    labels, and sends the indices of those that are most alike. Before and after, the method goes on as it does alone.

    >>> Vote(FedAvg(), round=3).requires
    Requirements(public_images=False, public_images_at_clients=False, source_models=True, rounds=3)

    Attributes:
        base: The method that the vote is added to, FedAvg if none is given. It must have a body at the server.
        round: R_sel, the round of vote and transfer; the next one if nobody's work could be used in it.
        ballot: m, how many sources a client names.
        measure: One of `kinfed.similarity.MEASURES` that needs no labels, or ``package.module:function``.
        taps: What is compared: a tap point (the representation is ``body``), or several with commas between, over which
            the mean is taken; ``A=B`` where the sources call B what the model calls A.
        images: At most so many of a client's training images are looked at, drawn at random.
        classifier: Whether the head stays as it is (``keep``), starts anew (``reinit``), or is the source's.
        source: Transfer the source of this name, without a vote.
    """

    trial: ClassVar[Mapping[str, Any]] = {"round": 2, "ballot": 2}

    base: FedAvg = field(default=FedAvg(), kw_only=False)
    round: Annotated[int, Ge(1)] = 5
    ballot: Annotated[int, Ge(1)] = 3
    measure: str = "sketched_cka"
    taps: str = "body"
    images: Annotated[int, Ge(4)] = 1000
    classifier: Literal["keep", "reinit", "source"] = "keep"
    source: str | None = None

    @property
    def idle(self) -> Mapping[str, str]:
        """Fields that would do nothing: those of the vote, if a source is named."""
        by = "a vote; source names what is transferred without one"
        reads = dict.fromkeys(("ballot", "measure", "taps", "images"), (by, self.source is None))
        return {**self.base.idle, **unread(reads)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not carries_vote(type(self.base)):
            raise InputError(f"base: {self.base!r} is not allowed; the vote suits methods with a body at the server")
        for name in DECLARED:  # of this object, since they are those of its base
            object.__setattr__(self, name, getattr(self.base, name))
        if MEASURES.find(self.measure).needs_labels:
            raise InputError(f"measure: {self.measure!r} is not allowed; it needs labels, which no vote looks at")
        if not all(own and theirs for own, theirs in self._pairs):
            raise InputError(f"taps: {self.taps!r} must have the form TAP,… or TAP=TAP OF THE SOURCES,…")

    @property
    def _pairs(self) -> list[tuple[str, str]]:
        """Tap points of the model, and which of the sources each is compared with."""
        pairs = [tap.strip().partition("=") for tap in self.taps.split(",")]
        return [(own, theirs if equals else own) for own, equals, theirs in pairs]

    @property
    def requires(self) -> Requirements:
        """What the base requires, source models, and rounds up to that of the vote."""
        base = self.base.requires
        return replace(base, source_models=True, rounds=max(base.rounds, self.round))

    @property
    def unwrapped(self) -> Method:
        """The method that the vote is added to."""
        return self.base.unwrapped

    def check(self, models: Sequence[Model], sources: Sequence[Source], shape: tuple[int, ...]) -> None:
        """Beside what the base asks for: there must be sources, with the tap points and a layer that fits the model."""
        self.base.check(models, sources, shape)
        names = [source.name for source in sources]
        if not names:
            raise InputError("sources: there is none to vote for")
        if self.source is not None and self.source not in names:
            raise InputError(f"source: {self.source!r} is not among the sources; allowed: {', '.join(names)}")
        for model in models:
            self.check_comparable(model, sources)
            for source in sources:
                self._check_fits(model, source)

    def _check_fits(self, model: Model, source: Source) -> None:
        if not fitting(source, model):
            raise InputError(f"sources: {source.name!r} fits no layer of the model; leave it out")
        if self.classifier == "source" and source.model.head.weight.shape != model.head.weight.shape:
            has = f"{source.model.head.out_features} outputs of {source.model.head.in_features} features"
            raise InputError(f"classifier: 'source' is not allowed; that of {source.name!r} has {has}")

    def check_comparable(self, model: Model, sources: Sequence[Source]) -> None:
        """The model and the sources must have what is compared, and as the measure needs it.

        Raises:
            InputError: If one lacks a tap point, or has features of another number where the measure pairs them.
        """
        for own, theirs in self._pairs:
            for name, of, tap in [("the model", model, own), *((s.name, s.model, theirs) for s in sources)]:
                if tap not in of.taps:
                    raise InputError(f"taps: {tap!r} is no tap point of {name}; it has {', '.join(of.taps)}")
        if not MEASURES[self.measure].same_width:
            return
        for (own, theirs), source in itertools.product(self._pairs, sources):
            has, needed = _width(source.model, source.card.shape, theirs), _width(model, source.card.shape, own)
            if has != needed:
                raise InputError(
                    f"measure: {self.measure} compares as many features; {own} of the model has {needed}, and {theirs} "
                    f"of {source.name!r} has {has}"
                )

    def most_features(self, model: Model, sources: Sequence[Source]) -> int:
        """The most features of what is compared, of the model or a source."""
        own = max(_width(model, sources[0].card.shape, tap) for tap, _ in self._pairs)
        return max(own, *(_width(s.model, s.card.shape, tap) for s in sources for _, tap in self._pairs))

    def selects(self, state: NamedTensors, round: int) -> bool:
        """Tell whether a source model is to be chosen in a round: from R_sel on, until it is done."""
        return round >= self.round and VOTED not in state.numbers

    # -- what it has to show ------------------------------------------------------------------------------------------

    def _cast(
        self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]
    ) -> dict[ClientId, list[int]]:
        """Ballots of a round after which the state is this one; none if no source was chosen in it."""
        chosen = state.numbers.get(VOTED) == server.round
        return ballots(uploads, len(server.sources)) if chosen else {}

    def extra_download_bytes(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> int:
        """Bytes of the source models, once to each client that votes."""
        base = self.base.extra_download_bytes(server, state, uploads)
        tensors = (tensor for source in server.sources for tensor in source.model.state_dict().values())
        sources: int = sum(tensor.nbytes for tensor in tensors)
        return base + len(self._cast(server, state, uploads)) * sources

    def notes(
        self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message], class_counts: NDArray[np.int64]
    ) -> dict[str, Any]:
        """Remarks of the base; and in the round of the vote the ballots: source indices, best first, by client."""
        base = self.base.notes(server, state, uploads, class_counts)
        if state.numbers.get(VOTED) != server.round:
            return base
        cast = self._cast(server, state, uploads)
        return {**base, "ballots": {str(id): choices for id, choices in cast.items()}}

    def pictures(self, state: ServerState) -> Mapping[str, Picture]:
        """Those of the base."""
        return self.base.pictures(state)

    def outcome(
        self, server: Server, lines: Sequence[Mapping[str, Any]], class_counts: NDArray[np.int64]
    ) -> dict[str, Any]:
        """Outcome of the base, and what came of the vote; nothing of it if nobody could vote yet."""
        base = self.base.outcome(server, lines, class_counts)
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
        """Votes and Borda points of each source, and which was transferred, for people.

        Args:
            model: The server's model.
            sources: P source models.
            cast: Ballots.
            samples: Training samples of each client.
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

    def init(self, server: Server) -> ServerState:
        """State of the base."""
        return self.base.init(server)

    def upload_like(self, server: Server) -> Tensors:
        """Tensors of the base; a ballot is numbers."""
        return self.base.upload_like(server)

    def global_model(self, server: Server, state: ServerState) -> Tensors | None:
        """Global model of the base."""
        return self.base.global_model(server, state)

    def download(self, state: ServerState, client: ClientId) -> Message:
        """Message of the base, and whether the vote is over."""
        message = self.base.download(state, client)
        return replace(message, numbers={**message.numbers, **_voted(state)})

    def aggregate(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> ServerState:
        """Aggregate as the base does; in the round of the vote, the winner's layers then replace the server's."""
        initial = server.model.tensors(HEAD)
        aggregated = self.base.aggregate(server, state, uploads)
        if not self.selects(state, server.round):
            return replace(aggregated, numbers={**aggregated.numbers, **_voted(state)})
        moved = self.base.transferred(aggregated, self._taken(server.model, self._chosen(server, uploads), initial))
        return replace(moved, numbers={**moved.numbers, VOTED: server.round})

    def _chosen(self, server: Server, uploads: Mapping[ClientId, Message]) -> Source:
        """The winner, or the one that was asked for.

        Raises:
            RunFailed: If no client cast a ballot.
        """
        by_name = {source.name: source for source in server.sources}
        if self.source is not None:
            return by_name[self.source]
        cast = ballots(uploads, len(by_name))
        if not cast:
            raise RunFailed(
                f"nobody voted in round {server.round}: no client found its model like any source by {self.measure}"
            )
        return server.sources[count(cast, len(by_name), self.ballot).ranking[0]]

    def _taken(self, model: Model, source: Source, initial: Tensors) -> Tensors:
        """What of a source goes into the server's model; the initial head, where the classifier starts anew."""
        head = {"keep": {}, "reinit": initial, "source": source.model.tensors(HEAD)}[self.classifier]
        mine, theirs = model.named_tensors(), source.model.tensors()
        free = {name: tensor for name, tensor in head.items() if name not in model.frozen}
        return {**{name: theirs[name].to(mine[name].dtype) for name in fitting(source, model)}, **free}

    # -- where the data are -------------------------------------------------------------------------------------------

    def update(self, client: Client, message: Message, memory: ClientState) -> tuple[Message, ClientState]:
        """Work as the base does; in the round of the vote, a ballot goes up with what it sends."""
        upload, memory = self.base.update(client, message, memory)
        if self.source is None and self.selects(message, client.round):
            client.model.load(select(upload.tensors, BODY))
            with _SILENCED:
                choices = ballot(scores(self.seen(client), self.measure), self.ballot)
            cast = {f"{CHOICE}{place}": float(source) for place, source in enumerate(choices, start=1)}
            upload = replace(upload, numbers={**upload.numbers, **cast})
        return upload, memory

    def evaluated(self, client: Client, message: Message, memory: ClientState) -> dict[str, Tensors]:
        """The client's own models of the base."""
        return self.base.evaluated(client, message, memory)

    def seen(self, client: Client) -> Seen:
        """What the client's present model and the sources make of its images."""
        samples = client.train if self.supervised else unnormalised(client.train)
        if len(samples) > self.images:
            rows = torch.randperm(len(samples), generator=client.stream("vote"))[: self.images]
            samples = samples.take(np.sort(rows.numpy()))
        return seen(client.model, client.sources, samples, self._pairs)


def carries_vote(base: type[Method]) -> TypeGuard[type[FedAvg]]:
    """Tell whether methods of a class have a body at the server, which a source can replace."""
    return issubclass(base, FedAvg) and set(BODY) <= {*base.shared}


@torch.no_grad()
def _width(model: Model, shape: tuple[int, ...], tap: str) -> int:
    """How many numbers a tap point has for one input."""
    blank = torch.zeros(2, *shape, device=model.head.weight.device)  # BatchNorm may need two
    return model.eval().activations(blank, [tap])[tap][0].numel()


def fitting(source: Source, model: Model) -> list[str]:
    """Names of the body's tensors that a source can replace.

    They are those of layers whose tensors are alike in name and shape; what is frozen in the model is not replaced.
    """
    mine, theirs = (_layers(select(of.named_tensors(), BODY)) for of in (model, source.model))
    free = [layer for layer in mine if layer not in model.frozen_layers and theirs.get(layer) == mine[layer]]
    return [name for layer in free for name in mine[layer]]


def _layers(tensors: Tensors) -> dict[str, dict[str, tuple[int, ...]]]:
    """Layer → the shapes of its tensors by name."""
    layers: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, tensor in tensors.items():
        layers.setdefault(name.rpartition(".")[0], {})[name] = tuple(tensor.shape)
    return layers


def ballots(uploads: Mapping[ClientId, Message], sources: int) -> dict[ClientId, list[int]]:
    """The ballots among what clients sent, best choice first; one that names no source, or one twice, is left out."""
    cast = {}
    names = [f"{CHOICE}{place}" for place in range(1, sources + 1)]
    for id, upload in uploads.items():
        choices = [upload.numbers[name] for name in names if name in upload.numbers]
        if choices and len({*choices}) == len(choices) and {*choices} <= {*range(sources)}:
            cast[id] = [int(n) for n in choices]
    return cast


def _voted(state: ServerState) -> dict[str, float]:
    return {VOTED: state.numbers[VOTED]} if VOTED in state.numbers else {}
