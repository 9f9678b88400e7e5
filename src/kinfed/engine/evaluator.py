"""Tests of models at the clients: of their own models, of the global model, and of models for new clients."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from kinfed.data import Samples, balanced
from kinfed.data.samples import labels_of
from kinfed.engine.checks import not_finite
from kinfed.engine.runtime import ClientRuntime
from kinfed.learning import (
    Answers,
    Grade,
    NotFinite,
    Phase,
    features,
    finite,
    grades,
    knn,
    linear_probe,
    one_view,
    own_view_nearer,
    scores,
    train,
)
from kinfed.methods import Client, ClientId, ClientState, Message
from kinfed.models import BODY, HEAD, Model, Tensors, select
from kinfed.streams import numpy_stream, torch_stream

__all__ = ["KNN", "LOCAL", "PROBED", "UNTESTED", "VIEWS", "Evaluator", "GlobalTest", "TestResult"]

PROBED, LOCAL, KNN, VIEWS = "linear_global", "linear_local", "knn", "views"
UNTESTED = Grade()
VIEWED = 1000  # largest number of images whose views are compared
REFIT_EPOCHS = 10  # epochs of a head alone after the last round in the code of Collins et al. (specification C.2)


@dataclass(frozen=True)
class TestResult:
    """Result of the test of one model.

    Attributes:
        name: Name of the tested model, as in the metrics.
        test: Grade of its answers to the test samples; without labels, that of the share of images for which the other
            view of an image is the nearest.
        validation: Grade of its answers to the validation samples.
        tensors: Tensors of the model, if it is to be saved; otherwise empty.
        fault: Reason why the model cannot be tested, with ``tensors`` empty; otherwise empty.
        client: Client to which a result of a global model refers; None if it refers to all clients, or to the client
            of the task.
    """

    __test__ = False  # pytest collects classes named Test…

    name: str
    test: Grade = UNTESTED
    validation: Grade = UNTESTED
    tensors: Tensors = field(default_factory=dict)
    fault: str = ""
    client: ClientId | None = None


@dataclass(frozen=True)
class GlobalTest:
    """Result of the test of the global model.

    Attributes:
        pooled: Grade of its answers to the pooled test set.
        test: Grades of its answers to the test samples of each client, N.
        validation: Grades of its answers to the validation samples of each client, N; empty without validation.
        failures: Reasons why a client could not test it, by client.
    """

    pooled: Grade
    test: Sequence[Grade]
    validation: Sequence[Grade] = ()
    failures: Mapping[ClientId, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluator:
    """Tests of models at the clients of a runtime.

    Attributes:
        runtime: Runtime with method, data and models.
    """

    runtime: ClientRuntime

    def evaluate(
        self, id: ClientId, round: int, message: Message, state: ClientState, *, final: bool = False
    ) -> list[TestResult]:
        """Test a client's own models on its own test samples; without own models the result is empty.

        Args:
            id: Number of the client.
            round: Number of the round.
            message: Message of the server to the client after the round.
            state: State of the client.
            final: True after the last round, when the results contain the models and linear probes are due.
        """
        method = self.runtime.method
        if method.trains == "pooled":
            return []
        client = self.runtime.client(id, round, final=final)
        results: dict[str, TestResult] = {}
        for name, tensors in method.evaluated(client, message, state).items():
            if fault := not_finite(tensors):
                results[name] = TestResult(name, fault=fault)
                continue
            client.model.load(tensors)
            logits: Tensor | None = None
            if name == method.primary:
                found, logits = self._represented(client.model, round, [id], final=final)
                results |= {result.name: result for result in found}
            if method.supervised:
                results[name] = self._tested(
                    name, client, tensors if final else {}, measured=name == method.primary, final=final
                )
            elif logits is not None:  # without labels, the linear probe is the head
                tested, probed = self.runtime.federation.tested, results[PROBED]
                cuts = zip(tested.own(self._labels, id), tested.own(logits, id), strict=True)
                test, validation = (self._graded(*cut, final=final) for cut in cuts)
                results[name] = TestResult(name, test, validation, probed.tensors)
                results[PROBED] = replace(probed, tensors={})
            elif final:
                results[name] = TestResult(name, tensors=select(tensors, BODY))
        return [*results.values()]

    def evaluate_representation(self, round: int, tensors: Tensors, *, final: bool) -> list[TestResult]:
        """Test the representation of a global model, given by its tensors.

        For the results see `_represented`. For a method without labels, those of a linear probe are followed by the
        results ``global`` of the body under this probe, one for each client.
        """
        model = self.runtime.fresh_model()
        model.load(tensors)
        results, logits = self._represented(model, round, range(len(self.runtime.federation)), final=final)
        if logits is not None and not self.runtime.method.supervised:
            found = self.graded(logits, final=final)
            of_clients = itertools.zip_longest(found.test, found.validation, fillvalue=UNTESTED)
            results += [TestResult("global", test, of, client=id) for id, (test, of) in enumerate(of_clients)]
        return results

    def _represented(
        self, model: Model, round: int, ids: Sequence[ClientId], *, final: bool
    ) -> tuple[list[TestResult], Tensor | None]:
        """Test classifiers on a model's frozen body (specification D.7, G.3); its features are computed once.

        Args:
            model: Model whose body is tested.
            round: Round of the run, which decides on the classifiers that are due.
            ids: Clients that get a result ``linear_local``.
            final: True after the last round, when linear probes are due.

        Returns:
            ``linear_global``: linear classifier, fitted to all labelled training images and tested on the pooled test
            set; this result has the model with the classifier as its head. ``linear_local``, one result for each client
            with at least two classes: the same with only the images of the client's classes, from all clients.
            ``knn``: nearest neighbours, tested on the pooled test set. Empty if that set is empty or nothing is due.
            Without any labels, only ``views``: see `own_view_nearer`. Then the logits of ``linear_global`` for all
            samples of `Federation.tested`; None without it.
        """
        federation, method, settings = self.runtime.federation, self.runtime.method, self.runtime.settings
        tested = federation.tested
        linear, neighbours = final and settings.fits_probes(method), settings.asks_neighbours(round, method)
        if not federation.classes:
            return [TestResult(VIEWS, Grade.of(self._compared_views(model)))] if neighbours else [], None
        if not (linear or neighbours) or not len(tested.samples):
            return [], None
        device = self.runtime.device
        known, asked = self._probed.to(device), self.runtime.seen(tested.samples).to(device)
        assert known.labels is not None and asked.labels is not None  # noqa: PT018
        x, x_test = (finite(features(model, samples), "representations") for samples in (known, asked))
        y, y_test = known.labels, asked.labels
        classes = len(federation.classes)
        results: list[TestResult] = []
        if neighbours:
            right = knn(x, y, x_test, y_test, classes=classes).cpu()
            test, validation = map(Grade.of, tested.parts(right))
            results.append(TestResult(KNN, test, validation))
        if not linear:
            return results, None
        bias, counts = model.head.bias is not None, federation.class_counts()

        def fitted(own: tuple[int, ...]) -> tuple[nn.Linear, Tensor, list[tuple[Tensor, Tensor]]]:
            """Fit a classifier for some of the classes; return it, its logits, and labels and logits of both parts."""
            order = torch.tensor(own, device=device)
            rows, rows_test = (torch.isin(labels, order).nonzero().squeeze(1) for labels in (y, y_test))
            places, places_test = (torch.searchsorted(order, labels) for labels in (y[rows], y_test[rows_test]))
            stream = torch_stream(settings.seed, "linear probe")
            head = linear_probe(x[rows], places, classes=len(own), stream=stream, bias=bias)
            with torch.no_grad():
                logits = finite(head(x_test[rows_test]), "linear probe's outputs").cpu()
            size = int((rows_test < tested.size).sum())
            known, of = places_test.cpu(), logits
            return head, logits, [(known[:size], of[:size]), (known[size:], of[size:])]

        everything = tuple(range(classes))
        head, logits, found = fitted(everything)
        under = {f"head.{name}": tensor.cpu() for name, tensor in head.state_dict().items()}
        test, validation = (self._graded(*part, final=final) for part in found)
        results.append(TestResult(PROBED, test, validation, model.tensors(BODY) | under))
        found_of = {everything: found}  # clients with the same classes share a classifier
        for id in ids:
            own = tuple(counts[id].nonzero()[0].tolist())
            if len(own) > 1:
                if own not in found_of:
                    _, _, found_of[own] = fitted(own)
                test, validation = itertools.starmap(_grade, found_of[own])
                results.append(TestResult(LOCAL, test, validation, client=id))
        return results, logits

    def _compared_views(self, model: Model) -> Tensor:
        """Return how often the other view of an image is nearer than views of other images, for each image."""
        first, second = (
            finite(features(model, views.to(self.runtime.device)), "representations") for views in self._two_views
        )
        return own_view_nearer(first, second).cpu()

    @cached_property
    def _two_views(self) -> list[Samples]:
        """Two random views of training images of all clients, the same for every model and in every round."""
        federation, seed = self.runtime.federation, self.runtime.settings.seed
        rows = np.concatenate(federation.partition.train)
        drawn = numpy_stream(seed, "viewed").permutation(rows)[:VIEWED]
        images = federation.dataset.train.take(np.sort(drawn))
        return [one_view(images, torch_stream(seed, "compared views", which)) for which in range(2)]

    @cached_property
    def _probed(self) -> Samples:
        """Labelled samples to which classifiers of representations are fitted, the same for every client.

        They are all training images of clients and server, or those of `Federation.labelled` without its validation
        samples; or a class-balanced subset (specification G.3). Those of new clients are left out, so that new clients
        do not change the other results.
        """
        federation, settings = self.runtime.federation, self.runtime.settings
        rows = np.sort(np.concatenate([*federation.partition.train, federation.public_rows]))
        known = federation.splits[0]
        if federation.labelled is not None:
            known = federation.labelled.train
            rows = np.setdiff1d(np.arange(len(known)), federation.labelled_validation)
        if settings.probed is not None and settings.probed < len(rows):
            assert known.labels is not None
            stream = numpy_stream(settings.seed, "probed")
            rows = rows[balanced(known.labels.numpy()[rows], settings.probed, stream)]
        return self.runtime.seen(known.take(rows))

    def test_own_classes(self, id: ClientId, round: int, tensors: Tensors) -> list[TestResult]:
        """Test a client's primary model on its test samples, with its answers limited to the client's own classes."""
        client = self.runtime.new_client(id, round)  # its own data, even if training is pooled
        client.model.load(tensors)
        return [self._tested("own_classes", client, among=self._own_classes(client))]

    def _own_classes(self, client: Client) -> Tensor:
        """Return the mask of a client's own classes, bool, K: those of its training and validation samples."""
        federation, id = self.runtime.federation, client.id
        rows = [federation.partition.train[id], *([federation.validation[id]] if federation.validation else [])]
        own = labels_of(federation.splits[0])[np.concatenate(rows)]
        return torch.from_numpy(np.isin(np.arange(client.model.head.out_features), own)).to(self.runtime.device)

    def refit(self, id: ClientId, round: int, tensors: Tensors) -> list[TestResult]:
        """Test the body of a client's primary model under a re-fitted head on the client's test samples."""
        client = self.runtime.client(id, round)
        self._refit(client, tensors, "refit")
        return [self._tested("refit", client)]

    def fine_tune(self, id: ClientId, round: int, tensors: Tensors) -> list[TestResult]:
        """Test a copy of a client's primary model, fine-tuned on its training samples, on its test samples."""
        client = self.runtime.client(id, round)
        self._fine_tune(client, tensors)
        saved = {} if self.runtime.method.serves == "global" else client.model.tensors()
        return [self._tested("fine_tuned", client, saved)]

    def train_new_client(self, id: ClientId, round: int, message: Message) -> list[TestResult]:
        """Train once at a client that took no part, from the method's greeting; the result has its upload."""
        client = self.runtime.new_client(id, round)
        upload, _ = self.runtime.method.update(client, message, ClientState())
        return [TestResult("first training", tensors=upload.tensors)]

    def evaluate_new_client(self, id: ClientId, round: int, tensors: Tensors) -> list[TestResult]:
        """Test the global model on the test samples of a client that took no part (specification H.4, CRC-T2).

        Returns:
            ``new_global``: the global model itself. ``new_head``: its body with the initial head, which is trained on
            the client's training samples. ``new_fine_tuned``: the model fine-tuned as at the other clients. Only the
            first if clients cannot adapt models.
        """
        client = self.runtime.new_client(id, round)
        client.model.load(tensors)
        results = [self._tested("new_global", client)]
        if not self.runtime.method.adapts:
            return results
        self._refit(client, tensors, "new head")
        results.append(self._tested("new_head", client))
        if self.runtime.settings.fine_tuning is not None:
            self._fine_tune(client, tensors)
            results.append(self._tested("new_fine_tuned", client))
        return results

    def _refit(self, client: Client, tensors: Tensors, purpose: str) -> None:
        """Load a body and the run's initial head into the client's model, and train the head in place.

        It is the same for every method: the optimiser is that of the experiment and the learning rate that of the
        first round, also beside methods with their own ones, and the representations are computed once, so that
        nothing is augmented (specification C.1).

        Args:
            client: Client whose training samples the head is fitted to.
            tensors: Tensors of a model with the body.
            purpose: Purpose of the random stream that orders the samples.
        """
        self.runtime.fresh_model(client.id)  # the client's model, with the initial head
        client.model.load(select(tensors, BODY))
        training = self.runtime.settings.refitting or self.runtime.settings.training
        head = Phase(train=HEAD, epochs=REFIT_EPOCHS, lr=training.lr)
        train(client.model, client.train, head, replace(training, augment="none"), client.stream(purpose))

    def _fine_tune(self, client: Client, tensors: Tensors) -> None:
        """Load tensors into the client's model and fine-tune it in place.

        The optimiser is that of the experiment, as the learning rate is one for all methods.
        """
        settings = self.runtime.settings
        tuning, common = settings.fine_tuning, settings.refitting or settings.training
        assert tuning is not None
        client.model.load(tensors)
        training = replace(client.training, optimizer=common.optimizer)
        train(client.model, client.train, tuning, training, client.stream("fine-tuning"))

    def _tested(
        self,
        name: str,
        client: Client,
        saved: Tensors | None = None,
        among: Tensor | None = None,
        *,
        measured: bool = False,
        final: bool = False,
    ) -> TestResult:
        """Test the client's present model on its test samples, with answers among some classes or all of them.

        The result contains the tensors to be saved, and all measures if ``measured``.
        """
        if fault := not_finite(client.model.state_dict()):
            return TestResult(name, fault=fault)
        federation = self.runtime.federation
        parts = [federation.test(client.id)]
        if federation.validation:
            parts.append(federation.validate(client.id))
        try:
            logits = [self._scores(client.model, samples, among) for samples in parts]
        except NotFinite as error:
            return TestResult(name, fault=str(error))
        labels = [torch.from_numpy(labels_of(samples)) for samples in parts]
        grade = functools.partial(self._graded, final=final) if measured else _grade
        test, validation = [*map(grade, labels, logits), UNTESTED][:2]
        return TestResult(name, test, validation, saved or {})

    def _graded(self, labels: Tensor, logits: Tensor, *, final: bool) -> Grade:
        """Grade the answers to the samples of one client, or of the pooled test set, with all measures."""
        auroc = self.runtime.settings.asks_auroc(final=final)
        return grades(Answers.of_one(0, labels, logits), 1, auroc=auroc, cells=final)[0]

    def graded(self, logits: Tensor, *, final: bool) -> GlobalTest:
        """Grade the answers of a global model, from its logits for the n samples of `Federation.tested`, n×K.

        Only a model that is the clients' primary one has all measures at the clients.

        Args:
            logits: Logits.
            final: True after the last round.
        """
        method, tested, labels = self.runtime.method, self.runtime.federation.tested, self._labels
        auroc = self.runtime.settings.asks_auroc(final=final)

        def of_clients(owners: Tensor, rows: Tensor) -> Sequence[Grade]:
            given, clients = Answers(owners, labels[rows], logits[rows]), len(tested.test)
            return grades(given, clients, measured=method.primary == "global", auroc=auroc, cells=final)

        pooled = self._graded(labels[: tested.size], logits[: tested.size], final=final)
        parts = [of_clients(*owned) for owned in tested.owned]
        return GlobalTest(pooled, parts[0], parts[1] if tested.validation else ())

    @property
    def _labels(self) -> Tensor:
        """Labels of the pooled test set, followed by those of the clients' validation samples."""
        return torch.from_numpy(labels_of(self.runtime.federation.tested.samples))

    def _scores(self, model: Model, samples: Samples, among: Tensor | None = None) -> Tensor:
        return scores(model, self.runtime.seen(samples).to(self.runtime.device), among).cpu()

    def logits(self, tensors: Tensors, start: int, stop: int) -> Tensor:
        """Compute the logits of the global model for rows of `Federation.tested`, a row of K for each.

        Args:
            tensors: Tensors of the global model.
            start: First row.
            stop: Row after the last one.
        """
        model, tested = self.runtime.fresh_model(), self.runtime.federation.tested.samples
        model.load(tensors)
        assert tested.labels is not None
        part = replace(tested, inputs=tested.inputs[start:stop], labels=tested.labels[start:stop])
        return self._scores(model, part)


def _grade(labels: Tensor, logits: Tensor) -> Grade:
    """Grade answers without any measure but the accuracy."""
    return Grade.of(logits.argmax(dim=1) == labels)
