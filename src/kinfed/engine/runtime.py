"""Runtime of a run's clients in one process: method, data and models."""

from __future__ import annotations

import copy
import threading
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kinfed.data import Federation, Samples
from kinfed.engine.checks import not_finite
from kinfed.engine.settings import RoundSettings, cohort
from kinfed.errors import InputError
from kinfed.learning import unnormalised
from kinfed.methods import Client, ClientId, ClientState, Message, Method, Server
from kinfed.models import Model, Source, Tensors, may_draw
from kinfed.streams import numpy_stream

__all__ = ["ClientRuntime"]

NO_GROUPS = "shift: this method is told the groups of a planted shift, and there are none; try shift=rotate:4"


@dataclass(frozen=True)
class ClientRuntime:
    """Method, data and models with which clients train and are tested.

    Each thread has its own models: the building thread the given ones, the others copies. The changes of a task are
    undone when the thread takes a model for the next one.

    Attributes:
        method: Federated method.
        federation: Clients and their data.
        models: One model of each architecture, with the common initial weights, on the device of the work.
        settings: Settings of the rounds.
        architectures: Index of each client's model in ``models``; 0 for clients without one.
        sources: Pre-trained source models that the method requires, on the same device; they are never changed.

    Raises:
        InputError: If the method cannot work with the models or the data, if initial weights are not finite, or if
            there are fewer samples for linear probes than classes.
    """

    method: Method
    federation: Federation
    models: tuple[Model, ...]
    settings: RoundSettings
    architectures: tuple[int, ...] = ()
    sources: tuple[Source, ...] = ()

    def __post_init__(self) -> None:
        classes = len(self.federation.classes)
        if self.settings.probed is not None and self.settings.probed < classes:
            raise InputError(
                f"linear_probe_images: {self.settings.probed} is not allowed; must be at least "
                f"{classes}, the number of classes"
            )
        if self.method.requires.true_groups and not self.federation.groups:
            raise InputError(NO_GROUPS)
        saved = self.settings.save_models
        if saved != "all" and len(self.federation.new_clients) and self.method.serves == "private":
            raise InputError(
                f"save_models: {saved!r} is not allowed; new clients are given the mean of the clients' saved models"
            )
        for model in self.models:
            if fault := not_finite(model.state_dict()):
                raise InputError(f"weights, model: the initial weights cannot be used: {fault}")
        self.method.check(self.models, self.sources, self.federation.dataset.shape)
        for model in [*self.models, *(source.model for source in self.sources)]:
            model.prefer_channels_last()
        _ = self.initial, self._of_threads  # computed now, before any thread changes the models

    @cached_property
    def initial(self) -> list[Tensors]:
        """Common initial weights of each architecture."""
        return [model.tensors() for model in self.models]

    @cached_property
    def _of_threads(self) -> dict[int, tuple[Model, ...]]:
        """Models of each thread, by its identifier."""
        return {threading.get_ident(): self.models}

    @cached_property
    def trained(self) -> Federation:
        """Federation that trains; for pooled methods, one client with everybody's data."""
        return self.federation.pooled() if self.method.trains == "pooled" else self.federation

    @cached_property
    def tested_further(self) -> frozenset[ClientId]:
        """Clients whose primary models are tested in further ways after the last round (specification G.2)."""
        clients, wanted = len(self.federation), self.settings.further_clients
        if wanted is None or wanted >= clients:
            return frozenset(range(clients))
        drawn = numpy_stream(self.settings.seed, "tested further").choice(clients, wanted, replace=False)
        return frozenset(drawn.tolist())

    @cached_property
    def samples(self) -> int:
        """Number of training samples of all clients together."""
        return sum(len(rows) for rows in self.trained.partition.train)

    @cached_property
    def class_counts(self) -> NDArray[np.int64]:
        """Training samples of each client and class, N×K."""
        return self.federation.class_counts()

    @cached_property
    def draws(self) -> bool:
        """True if a client's work may draw from global random generators.

        kinfed's own methods and the known layers (`kinfed.models.may_draw`) do not; all others may.
        """
        own = (type(method).__module__.startswith("kinfed.methods.") for method in (self.method, self.method.unwrapped))
        return not all(own) or any(map(may_draw, [*self.models, *(source.model for source in self.sources)]))

    @property
    def adapts(self) -> bool:
        """True if each client adapts its primary model after the last round: it re-fits the head, and fine-tunes."""
        return self.method.adapts and self.method.trains != "pooled"

    @property
    def true_groups(self) -> tuple[int, ...]:
        """Group of each client that trains, under a planted shift; empty without one."""
        return self.trained.groups[: len(self.trained)]

    @property
    def device(self) -> torch.device:
        """Device of the models and of a working client's samples."""
        return self.models[0].head.weight.device

    def about_model(self, id: ClientId = 0) -> dict[str, Any]:
        """Description from which a client's model is built again (`kinfed.models.open_saved`)."""
        recipe, federation = self.models[self._architecture(id)].recipe, self.federation
        return {**recipe, "shape": federation.dataset.shape, "classes": federation.classes}

    def about_run(self, rounds: int) -> dict[str, Any]:
        """Describe a run of so many rounds for a model's card: preparation of inputs, learning, seed, rounds."""
        normalise = self.seen(self.federation.dataset.train).normalise
        how = {"mean": normalise.mean, "std": normalise.std}
        learned = "with labels" if self.method.supervised else "without labels; a head is that of a linear probe"
        encoding = self.federation.dataset.encoding
        return {
            "normalisation": how,
            **({} if encoding is None else {"encoding": asdict(encoding)}),
            "learned": learned,
            "seed": self.settings.seed,
            "rounds": rounds,
        }

    def tensor_names(self, id: ClientId) -> set[str]:
        """Names of all parameters and buffers of a client's model."""
        return {*self.models[self._architecture(id)].named_tensors()}

    def architecture(self, id: ClientId) -> str:
        """Name of a client's architecture."""
        return self.models[self._architecture(id)].recipe.get("architecture", "")

    def _architecture(self, id: ClientId) -> int:
        return self.architectures[id] if id < len(self.architectures) else 0

    def fresh_model(self, id: ClientId = 0) -> Model:
        """This thread's model of a client's architecture, with the initial weights; each call resets the same model."""
        which, thread = self._architecture(id), threading.get_ident()
        if thread not in self._of_threads:
            self._of_threads[thread] = copy.deepcopy(self.models)
        model = self._of_threads[thread][which]
        model.load(self.initial[which])
        return model

    def server(self, round: int) -> Server:
        """Make the server of one round."""
        return Server(
            model=self.fresh_model(),
            seed=self.settings.seed,
            round=round,
            rounds=self.settings.rounds,
            sources=self.sources,
            clients=len(self.trained),
            cohort=cohort(len(self.trained), self.settings.share(self.method)),
            public_images=self._public_images(),
            true_groups=self.true_groups if self.method.requires.true_groups else (),
            client_models=self._client_models() if self.method.requires.client_models else (),
        )

    def _client_models(self) -> tuple[Model, ...]:
        which = [self._architecture(id) for id in range(len(self.trained))]
        models = {architecture: self.fresh_model(which.index(architecture)) for architecture in {*which}}
        return tuple(models[architecture] for architecture in which)

    def _public_images(self) -> Samples | None:
        images = self.federation.public_images
        return None if images is None else images.to(self.device)

    def client(self, id: ClientId, round: int, *, final: bool = False) -> Client:
        """Make a client of one round.

        Args:
            id: Number of the client.
            round: Number of the round.
            final: True for the evaluation after the last round, also of a run that ends before its planned last round.
        """
        client = self._client(id, round, self.trained)
        return replace(client, tested_further=final and id in self.tested_further)

    def new_client(self, id: ClientId, round: int) -> Client:
        """Make a client of one round that takes no part in training."""
        return self._client(id, round, self.federation)

    def _client(self, id: ClientId, round: int, holder: Federation) -> Client:
        return Client(
            model=self.fresh_model(id),
            seed=self.settings.seed,
            round=round,
            rounds=self.settings.rounds,
            sources=self.sources,
            id=id,
            train=holder.train(id).to(self.device),
            training=self.settings.training_in(round),
            public_images=self._public_images() if self.method.requires.public_images_at_clients else None,
        )

    def update(self, id: ClientId, round: int, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        """Run local training at a client; return its upload and its new state."""
        return self.method.update(self.client(id, round), message, state)

    def seen(self, samples: Samples) -> Samples:
        """Return samples as the method's models read them: self-supervised ones scaled to [0, 1], not normalised."""
        return samples if self.method.supervised else unnormalised(samples)
