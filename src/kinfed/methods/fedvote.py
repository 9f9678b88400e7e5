"""SFTL's FedVote: clients vote which pre-trained source model to go on from (METHODS.md E).

The paper says that it augments existing algorithms: `Vote` is what it adds to one, `FedVote` that to FedAvg.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, TypeGuard

import numpy as np
import torch
from annotated_types import Ge

from kinfed.errors import InputError, RunFailed
from kinfed.learning import unnormalised
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.method import Client, ClientId, Memory, Message, Method, Server, State
from kinfed.methods.voting import Seen, ballot, bias, count, scores, seen
from kinfed.models import BODY, HEAD, Model, Source, Tensors, select
from kinfed.similarity import MEASURES

__all__ = ["FedVote", "Vote", "ballots", "carries_vote", "fitting", "with_vote"]

VOTED = "voted"  # the round of the transfer, from then on; to the clients as well
CHOICE = "choice."  # a client's first, second, … choice


@dataclass(frozen=True, kw_only=True)
class Vote(FedAvg):
    """In one round clients vote for a source model, whose body replaces the server's; then it goes on as before.

    Each compares the model that it has just trained with every source, on its own training images and without their
    labels, and sends the indices of those that are most alike.

    Attributes:
        round: R_sel, the round of vote and transfer; the next one if nobody's work could be used in it.
        ballot: m, how many sources a client names.
        measure: One of `kinfed.similarity.MEASURES` that needs no labels, or ``package.module:function``.
        taps: What is compared: a tap point (the representation is ``body``), or several with commas between, over which
            the mean is taken; ``A=B`` where the sources call B what the model calls A.
        images: At most so many of a client's training images are looked at, drawn at random.
        classifier: Whether the head stays as it is (``keep``), starts anew (``reinit``), or is the source's.
        source: Transfer the source of this name, without a vote.
    """

    needs_sources: ClassVar[bool] = True
    trial: ClassVar[Mapping[str, Any]] = {"round": 2, "ballot": 2}

    round: Annotated[int, Ge(1)] = 5
    ballot: Annotated[int, Ge(1)] = 3
    measure: str = "sketched_cka"
    taps: str = "body"
    images: Annotated[int, Ge(4)] = 1000
    classifier: Literal["keep", "reinit", "source"] = "keep"
    source: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
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
    def least_rounds(self) -> int:
        """That of the vote."""
        return self.round

    def check(self, models: Sequence[Model], sources: Sequence[Source], shape: tuple[int, ...]) -> None:
        """Beside what the base asks for: there must be sources, with the tap points and a layer that fits the model."""
        super().check(models, sources, shape)
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

    def selects(self, state: State, round: int) -> bool:
        """From R_sel on, until it is done."""
        return round >= self.round and VOTED not in state.numbers

    def outcome(
        self,
        model: Model,
        sources: Sequence[Source],
        cast: Mapping[ClientId, Sequence[int]],
        samples: Sequence[int],
    ) -> dict[str, Any]:
        """What came of the ballots, for people: votes and Borda points of each source, and which was transferred.

        Args:
            model: The server's.
            sources: P of them.
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

    def download(self, state: State, client: ClientId) -> Message:
        """What the base method sends, and whether the vote is over."""
        message = super().download(state, client)
        return replace(message, numbers={**message.numbers, **_voted(state)})

    def aggregate(self, server: Server, state: State, uploads: Mapping[ClientId, Message]) -> State:
        """What the base method does; in the round of the vote, the winner's layers then replace the server's."""
        initial = server.model.tensors(HEAD)
        aggregated = super().aggregate(server, state, uploads)
        if not self.selects(state, server.round):
            return replace(aggregated, numbers={**aggregated.numbers, **_voted(state)})
        moved = self.transferred(aggregated, self._taken(server.model, self._chosen(server, uploads), initial))
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

    def update(self, client: Client, message: Message, memory: Memory) -> tuple[Message, Memory]:
        """What the base method does; in the round of the vote, a ballot goes up with it."""
        upload, memory = super().update(client, message, memory)
        if self.source is None and self.selects(message, client.round):
            client.model.load(select(upload.tensors, BODY))
            choices = ballot(scores(self.seen(client), self.measure), self.ballot)
            cast = {f"{CHOICE}{place}": float(source) for place, source in enumerate(choices, start=1)}
            upload = replace(upload, numbers={**upload.numbers, **cast})
        return upload, memory

    def seen(self, client: Client) -> Seen:
        """What the client's present model and the sources make of its images."""
        samples = client.train if self.supervised else unnormalised(client.train)
        if len(samples) > self.images:
            rows = torch.randperm(len(samples), generator=client.stream("vote"))[: self.images]
            samples = samples.take(np.sort(rows.numpy()))
        return seen(client.model, client.sources, samples, self._pairs)


@dataclass(frozen=True, kw_only=True)
class FedVote(Vote):
    """FedAvg, but in one round clients vote, by representation similarity, which source model to go on from."""


@functools.cache
def with_vote(base: type[FedAvg]) -> type[FedAvg]:
    """A base method that carries the vote, with its fields beside those of `Vote`."""
    both = type(f"{base.__name__}Vote", (Vote, base), {"__doc__": base.__doc__, "__module__": __name__})
    return dataclass(frozen=True, kw_only=True)(both)


def carries_vote(base: type[Method]) -> TypeGuard[type[FedAvg]]:
    """Whether a method has a body at the server, which a source can replace."""
    return issubclass(base, FedAvg) and not issubclass(base, Vote) and set(BODY) <= {*base.shared}


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


def _voted(state: State) -> dict[str, float]:
    return {VOTED: state.numbers[VOTED]} if VOTED in state.numbers else {}
