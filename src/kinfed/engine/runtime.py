"""Where the data are: everything that a client's work needs, in whichever process it is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kinfed.data import Federation, Samples, balanced
from kinfed.engine.checks import not_finite
from kinfed.errors import InputError
from kinfed.learning import SGD, NotFinite, Phase, features, finite, correct, knn, linear_probe, train, unnormalised
from kinfed.learning.schedule import lr_factor
from kinfed.methods import Client, ClientId, Memory, Message, Method, Server
from kinfed.models import BODY, HEAD, Model, Source, Tensors, select
from kinfed.streams import numpy_stream, torch_stream

__all__ = ["LOCAL", "PROBED", "RoundSettings", "TestResult", "ClientRuntime"]

PROBED, LOCAL = "linear_global", "linear_local"
NOTHING_TESTED = torch.zeros(0, dtype=torch.bool)
NEW_HEAD_EPOCHS = 10  # a head alone after the last round, in the code of Collins et al. 2021 (METHODS.md C.2)


@dataclass(frozen=True, kw_only=True)
class RoundSettings:
    """What the rounds of one run are.

    Attributes:
        rounds: T.
        sgd: Local training; its ``lr`` is that of the first round.
        lr_schedule: See `kinfed.learning.schedule.lr_factor`.
        participation: Fraction C of the clients in a round.
        seed: Of the run.
        checkpoint_every: Rounds between two checkpoints.
        evaluate_every: Rounds between two evaluations; there is always one after the last round.
        save_local: Whether the whole models that clients send in the last round are saved.
        fine_tuning: What clients do to a copy of their headline model in the last evaluation; None leaves it out.
        linear_probe: Whether linear probes are fitted to the representations after the last round; None: where a method
            reads no labels, which has no accuracy without one.
        knn_every: Rounds between two votes of nearest neighbours, of methods that read no labels: these have no other
            evaluation before the last round. 0 leaves them out.
        probed: Training images that both are taken from; None is all.
    """

    rounds: int
    sgd: SGD
    lr_schedule: str
    participation: float
    seed: int
    checkpoint_every: int
    evaluate_every: int = 1
    save_local: bool = False
    fine_tuning: Phase | None = None
    linear_probe: bool | None = None
    knn_every: int = 10
    probed: int | None = None

    def sgd_in(self, round: int) -> SGD:
        """Local training in one round."""
        return replace(self.sgd, lr=self.sgd.lr * lr_factor(self.lr_schedule, round, self.rounds))

    def evaluates(self, round: int, method: Method) -> bool:
        """Whether there is an evaluation after a round."""
        every = self.evaluate_every if method.supervised else self.knn_every
        return round == self.rounds or (every > 0 and round % every == 0)

    def fits_probes(self, round: int, method: Method) -> bool:
        """Whether linear probes are part of it."""
        wanted = not method.supervised if self.linear_probe is None else self.linear_probe
        return wanted and round == self.rounds

    def asks_neighbours(self, round: int, method: Method) -> bool:
        """Whether nearest neighbours are."""
        return not method.supervised and self.knn_every > 0 and self.evaluates(round, method)


@dataclass(frozen=True)
class TestResult:
    """One of a client's models, tested.

    Attributes:
        correct: Which of the client's test samples it gets right, bool.
        tensors: The model, if it is to be saved; else empty.
        fault: Why it cannot be tested; it has neither of the two then.
    """

    correct: Tensor
    tensors: Tensors
    fault: str = ""


@dataclass(frozen=True)
class ClientRuntime:
    """A method, the clients' data and a model to work with.

    Attributes:
        method: What is done.
        federation: Who holds what.
        models: One of each architecture, with the common initial weights, on the device where work is done.
        settings: The rounds.
        architectures: For each client, which of the models is its own; everybody has the first if not given.
        sources: Pre-trained models that the method asks for, on the same device.

    Raises:
        InputError: If the method cannot work with the models or the data, or a linear probe would lack a class.
    """

    method: Method
    federation: Federation
    models: tuple[Model, ...]
    settings: RoundSettings
    architectures: tuple[int, ...] = ()
    sources: tuple[Source, ...] = ()

    def __post_init__(self) -> None:
        classes = len(self.federation.dataset.classes)
        if self.settings.probed is not None and self.settings.probed < classes:
            raise InputError(f"linear_probe_images: {self.settings.probed} is too few; there are {classes} classes")
        for model in self.models:
            if fault := not_finite(model.state_dict()):
                raise InputError(f"weights, model: the weights that training starts from cannot be used: {fault}")
        self.method.check(self.models, self.sources, self.federation.dataset.shape)
        for model in [*self.models, *(source.model for source in self.sources)]:
            model.prefer_channels_last()

    @cached_property
    def _initial(self) -> list[Tensors]:
        return [model.tensors() for model in self.models]

    @cached_property
    def trained(self) -> Federation:
        """Who trains: the clients, or one that holds what they all hold."""
        return self.federation.pooled() if self.method.trains == "pooled" else self.federation

    @cached_property
    def samples(self) -> int:
        """Training samples of all clients together."""
        return sum(len(rows) for rows in self.trained.partition.train)

    @property
    def sources_bytes(self) -> int:
        """Of all source models together."""
        return sum(tensor.nbytes for source in self.sources for tensor in source.model.state_dict().values())

    @property
    def device(self) -> torch.device:
        """Where the model and a working client's samples are."""
        return self.models[0].head.weight.device

    def about_model(self, id: ClientId = 0) -> dict[str, Any]:
        """What it takes to build a client's model again (`kinfed.models.open_saved`)."""
        data = self.federation.dataset
        return {**self.models[self._architecture(id)].recipe, "shape": data.shape, "classes": data.classes}

    def about_run(self) -> dict[str, Any]:
        """What it takes to use a model, beside that, and where it is from."""
        normalise = self._seen(self.federation.dataset.train).normalise
        how = {"mean": normalise.mean, "std": normalise.std}
        learned = "with labels" if self.method.supervised else "without labels; a head is that of a linear probe"
        return {"normalisation": how, "learned": learned, "seed": self.settings.seed, "rounds": self.settings.rounds}

    def tensor_names(self, id: ClientId) -> set[str]:
        """Of all parameters and buffers of a client's model."""
        return {*self.models[self._architecture(id)].named_tensors()}

    def architecture(self, id: ClientId) -> str:
        """The name of a client's."""
        return self.models[self._architecture(id)].recipe.get("architecture", "")

    def _architecture(self, id: ClientId) -> int:
        return self.architectures[id] if id < len(self.architectures) else 0

    def _fresh_model(self, id: ClientId = 0) -> Model:
        which = self._architecture(id)
        self.models[which].load(self._initial[which])
        return self.models[which]

    def server(self, round: int) -> Server:
        """The server's side of one round."""
        return Server(
            model=self._fresh_model(),
            seed=self.settings.seed,
            round=round,
            rounds=self.settings.rounds,
            sources=self.sources,
            clients=len(self.trained),
            probe=self._probe(),
        )

    def _probe(self) -> Samples | None:
        probe = self.federation.probe
        return None if probe is None else probe.to(self.device)

    def client(self, id: ClientId, round: int) -> Client:
        """One client's side of one round."""
        return self._client(id, round, self.trained)

    def _client(self, id: ClientId, round: int, holder: Federation) -> Client:
        return Client(
            model=self._fresh_model(id),
            seed=self.settings.seed,
            round=round,
            rounds=self.settings.rounds,
            sources=self.sources,
            id=id,
            train=holder.train(id).to(self.device),
            sgd=self.settings.sgd_in(round),
            probe=self._probe() if self.method.sends_probe else None,
        )

    def update(self, id: ClientId, round: int, message: Message, memory: Memory) -> tuple[Message, Memory]:
        """A client's local work."""
        return self.method.update(self.client(id, round), message, memory)

    def evaluate(self, id: ClientId, round: int, message: Message, memory: Memory) -> dict[str, TestResult]:
        """A client's own models on its own test samples, by name; empty if it has none of its own."""
        if self.method.trains == "pooled":
            return {}
        client = self.client(id, round)
        verdicts: dict[str, TestResult] = {}
        for name, tensors in self.method.evaluated(client, message, memory).items():
            if fault := not_finite(tensors):
                verdicts[name] = TestResult(NOTHING_TESTED, {}, fault)
                continue
            client.model.load(tensors)
            if name == self.method.headline:
                found = self._represented(client.model, round, [id])
                verdicts |= {what.removesuffix(f" {id}"): verdict for what, verdict in found.items()}
            if self.method.supervised:
                verdicts[name] = self._verdict(client, tensors if client.last_round else {})
            elif PROBED in verdicts:  # its representation under a head that was fitted to it
                probed = verdicts[PROBED]
                right = probed.correct[torch.from_numpy(self.federation.tested[1][id])]
                verdicts |= {name: TestResult(right, probed.tensors), PROBED: TestResult(probed.correct, {})}
            elif client.last_round:
                verdicts[name] = TestResult(NOTHING_TESTED, select(tensors, BODY))
        return verdicts

    def evaluate_representation(self, round: int, tensors: Tensors) -> dict[str, TestResult]:
        """What the representation of a global model is worth; by name, see `_represented`."""
        model = self.models[0]
        model.load(tensors)
        return self._represented(model, round, range(len(self.federation)))

    def _represented(self, model: Model, round: int, ids: Sequence[ClientId]) -> dict[str, TestResult]:
        """What classifiers make of a model's frozen body (METHODS.md D.7, G.3), on features that are read once.

        ``linear_global``: linear, fitted to all labelled training images, on the whole test set; this verdict has the
        model with the classifier as its head. ``linear_local I``: the same, both with the images of client I's classes
        alone, whoever holds them. There is none of fewer than two classes. ``knn``: nearest neighbours, on the whole
        test set. Empty if that is.
        """
        settings, method = self.settings, self.method
        linear, neighbours = settings.fits_probes(round, method), settings.asks_neighbours(round, method)
        if not (linear or neighbours) or not len(self.federation.tested[0]):
            return {}
        known, asked = self._probed.to(self.device), self._seen(self.federation.tested[0]).to(self.device)
        assert known.labels is not None and asked.labels is not None  # noqa: PT018
        x, x_test = (finite(features(model, samples), "representations") for samples in (known, asked))
        y, y_test = known.labels, asked.labels
        classes = len(self.federation.dataset.classes)
        verdicts: dict[str, TestResult] = {}
        if neighbours:
            verdicts["knn"] = TestResult(knn(x, y, x_test, y_test, classes=classes).cpu(), {})
        if not linear:
            return verdicts
        bias, counts = model.head.bias is not None, self.federation.class_counts()

        def fitted(own: tuple[int, ...]) -> tuple[nn.Linear, Tensor]:
            """A classifier of some of the classes, and which of their test images it gets right."""
            order = torch.tensor(own, device=self.device)
            rows, rows_test = (torch.isin(labels, order).nonzero().squeeze(1) for labels in (y, y_test))
            places, places_test = (torch.searchsorted(order, labels) for labels in (y[rows], y_test[rows_test]))
            stream = torch_stream(settings.seed, "linear probe")
            head = linear_probe(x[rows], places, classes=len(own), stream=stream, bias=bias)
            with torch.no_grad():
                logits = finite(head(x_test[rows_test]), "linear probe's outputs")
                return head, (logits.argmax(dim=1) == places_test).cpu()

        everything = tuple(range(classes))
        head, right = fitted(everything)
        under = {f"head.{name}": tensor.cpu() for name, tensor in head.state_dict().items()}
        verdicts[PROBED] = TestResult(right, model.tensors(BODY) | under)
        right_of = {everything: right}  # clients of the same classes share a classifier
        for id in ids:
            own = tuple(counts[id].nonzero()[0].tolist())
            if len(own) > 1:
                if own not in right_of:
                    _, right_of[own] = fitted(own)
                verdicts[f"{LOCAL} {id}"] = TestResult(right_of[own], {})
        return verdicts

    @cached_property
    def _probed(self) -> Samples:
        """What classifiers of representations are fitted to, the same for every client.

        All labelled training images (METHODS.md G.3), or some, the classes alike: those of the clients and the server.
        New clients are no part of it, so that they change nothing for the others.
        """
        federation = self.federation
        rows = np.sort(np.concatenate([*federation.partition.train, federation.probe_rows]))
        known = federation.splits[0]
        if self.settings.probed is not None and self.settings.probed < len(rows):
            assert known.labels is not None
            stream = numpy_stream(self.settings.seed, "probed")
            rows = rows[balanced(known.labels.numpy()[rows], self.settings.probed, stream)]
        return self._seen(known.take(rows))

    def _seen(self, samples: Samples) -> Samples:
        """Samples as the method's models see them: those that learned from two views, unnormalised."""
        return samples if self.method.supervised else unnormalised(samples)

    def fine_tune(self, id: ClientId, round: int, tensors: Tensors) -> dict[str, TestResult]:
        """A copy of a client's headline model, fine-tuned on its training samples and tested on its test samples."""
        client = self.client(id, round)
        self._fine_tuned(client, tensors)
        return {"fine_tuned": self._verdict(client, client.model.tensors() if self.method.personal else {})}

    def evaluate_new_client(self, id: ClientId, round: int, tensors: Tensors) -> dict[str, TestResult]:
        """What the global model is to a client that took no part (METHODS.md H.4, CRC-T2).

        As it is; its body under the run's initial head, which is then fitted to the client's training samples; and
        fine-tuned like everybody's model. Each is tested on the client's test samples.
        """
        client = self._client(id, round, self.federation)
        client.model.load(tensors)
        verdicts = {"new_global": self._verdict(client)}
        if not self.method.adapts:
            return verdicts
        client.model.load(select(self._initial[0], HEAD))
        head = Phase(train=HEAD, epochs=NEW_HEAD_EPOCHS, lr=self.settings.sgd.lr)
        train(client.model, client.train, head, client.sgd, client.stream("new head"))
        verdicts["new_head"] = self._verdict(client)
        if self.settings.fine_tuning is not None:
            self._fine_tuned(client, tensors)
            verdicts["new_fine_tuned"] = self._verdict(client)
        return verdicts

    def _fine_tuned(self, client: Client, tensors: Tensors) -> None:
        """Leave the client's model as what fine-tuning makes of these tensors."""
        assert self.settings.fine_tuning is not None
        client.model.load(tensors)
        train(client.model, client.train, self.settings.fine_tuning, client.sgd, client.stream("fine-tuning"))

    def _verdict(self, client: Client, saved: Tensors | None = None) -> TestResult:
        """The client's present model on its test samples, and what of it is to be saved."""
        if fault := not_finite(client.model.state_dict()):
            return TestResult(NOTHING_TESTED, {}, fault)
        try:
            right = correct(client.model, self._seen(self.federation.test(client.id)).to(self.device)).cpu()
        except NotFinite as error:
            return TestResult(NOTHING_TESTED, {}, str(error))
        return TestResult(right, saved or {})

    def test(self, tensors: Tensors, start: int, stop: int) -> Tensor:
        """Which of some rows of the pooled test set the one global model gets right, bool."""
        model, tested = self.models[0], self.federation.tested[0]
        model.load(tensors)
        assert tested.labels is not None
        part = replace(tested, inputs=tested.inputs[start:stop], labels=tested.labels[start:stop])
        return correct(model, part.to(self.device)).cpu()
