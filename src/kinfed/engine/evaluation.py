"""Evaluation after a round: tests of the global model, of the clients' models, and of models for new clients.

Specification G.1 and G.2 define the quantities, H.4 (CRC-T2) the tests at clients that took no part in training.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from kinfed.engine.checks import not_finite
from kinfed.engine.client_store import StoredRounds
from kinfed.engine.evaluator import PROBED, UNTESTED, TestResult
from kinfed.engine.executor import Executor, Failure, Task, Tested
from kinfed.engine.folder import ClientModels, RunFolder
from kinfed.engine.lines import Line
from kinfed.engine.runtime import ClientRuntime
from kinfed.engine.stopping import VALIDATION
from kinfed.learning import Grade, over_clients
from kinfed.methods import ClientId, Message, ServerState
from kinfed.methods.aggregation import mean_of
from kinfed.models import BODY, Tensors, select

__all__ = ["Evaluation", "models_of", "save_own"]

OWN = ("personal", f"{VALIDATION}personal")  # names of what is measured at the clients, on test and validation samples
Served = Mapping[ClientId, Callable[[], Tensors]]  # functions, so that only one model is in memory at a time


@dataclass(frozen=True)
class _Accuracies:
    """Accuracies of m clients by the name of the tested model.

    Attributes:
        sizes: Number of test samples of each client, m.
        validation_sizes: Number of validation samples of each client, m; empty without validation.
        of: Accuracies by name, m each, in [0, 1]; None for a client without one. Those on validation samples have the
            name of the model after ``validation_``.
        measure: ``acc``, or the name of another measure that these are.
    """

    sizes: Sequence[int]
    validation_sizes: Sequence[int] = ()
    of: dict[str, list[float | None]] = field(default_factory=dict)
    measure: str = "acc"

    def note(self, result: TestResult, at: int) -> None:
        """Record the accuracies of a result for the client at an index."""
        self.leave_out(result.name)[at] = result.test.accuracy
        if self.validation_sizes:
            self.leave_out(f"{VALIDATION}{result.name}")[at] = result.validation.accuracy

    def leave_out(self, name: str) -> list[float | None]:
        """Return the accuracies of a name, None for each client without one."""
        return self.of.setdefault(name, [None] * len(self.sizes))

    def spreads(self) -> Line:
        """Return means and standard deviations of the accuracies over the clients, sorted by name."""
        return {
            f"{name}_{quantity}": value
            for name, of_clients in sorted(self.of.items())
            for quantity, value in over_clients(of_clients, self._sizes_of(name), self.measure).items()
        }

    def _sizes_of(self, name: str) -> Sequence[int]:
        return self.validation_sizes if name.startswith(VALIDATION) else self.sizes


@dataclass(frozen=True)
class Evaluation:
    """Evaluation after one round.

    Attributes:
        round: Number of the round.
        runtime: Method, federation, models and settings.
        executor: Executor of the clients' tasks.
        folder: Folder of the run, for the models after the last round.
        told: Function that reports progress: the name of the step, the clients that have finished, and all clients.
        final: True after the last round of the run.
        untested: Reasons for missing accuracies, by the client or model that lacks one.
        grades: Grades of the clients' primary models, by client, on their test samples (``personal``) and on their
            validation samples.
        probed: Measures of each client's linear probe on the pooled test set, by name of the measure.
    """

    round: int
    runtime: ClientRuntime
    executor: Executor
    folder: RunFolder
    told: Callable[[str, int, int], None]
    final: bool = False
    untested: dict[str, str] = field(default_factory=dict)
    grades: dict[str, dict[ClientId, Grade]] = field(default_factory=dict)
    probed: dict[str, list[float | None]] = field(default_factory=dict)

    def line(self, state: ServerState, stored: StoredRounds) -> Line:
        """Test the models, and return the accuracies for the round's line of ``metrics.jsonl``.

        A client without a model of its own uses the global model. After the last round the models are saved, each
        client's primary model is tested in further ways, and the new clients are tested. Without labels, a
        model has no accuracy before the last round; then it is a body with the linear probe fitted to it as its head.

        Args:
            state: State of the server after the round.
            stored: Round of each client's state.
        """
        method, federation = self.runtime.method, self.runtime.federation
        sizes, validation_sizes = (
            [len(rows) for rows in cut] for cut in (federation.tested.test, federation.tested.validation)
        )
        own = _Accuracies(sizes, validation_sizes)
        if federation.dataset.labelled and not any(own.sizes):
            self.untested["all"] = "no client has test samples"
        new = _Accuracies([len(rows) for rows in federation.new_clients.test])
        model = method.global_model(self.runtime.server(self.round), state)
        of_global: Line = {"global_acc": None}
        served: Served = {}
        if model is not None:
            model, of_global, served = self._global(model, own)
        if method.serves != "global":
            tasks = (
                Task(id, self.round, method.download(state, id), stored.get(id), final=self.final)
                for id in range(len(federation))
            )
            served = self._own(tasks, own) or served
        if self.final and method.primary == "global" and (method.supervised or self.runtime.adapts):
            self._further(served, own)
        groups: Line = {}
        if self.final and len(federation.new_clients):
            found = self._groups_of_new(state, len(new.sizes))
            groups = {"new_groups": found} if found else {}
            self._new(self._given(model, served, state, found), new)
        if method.primary in own.of:
            own.of["personal"] = own.of[method.primary]
            if "fine_tuned" in own.of:
                own.of["initial"] = own.of[method.primary]
            if VALIDATION + method.primary in own.of:
                own.of[VALIDATION + "personal"] = own.of[VALIDATION + method.primary]
        line = {**of_global, **own.spreads(), **new.spreads()}
        for name in (method.primary, "initial", VALIDATION + method.primary):
            own.of.pop(name, None)  # for each client it is already there as personal
        told = dict(sorted((own.of | new.of).items()))
        more = {"untested": dict(sorted(self.untested.items())), "client_acc": told}
        return {**line, **groups, **more, **self._measured(own)}

    def _global(self, model: Tensors, own: _Accuracies) -> tuple[Tensors | None, Line, Served]:
        """Test the global model; return it, its measures on the pooled test set, and the clients that use it.

        The clients' accuracies with it come from the same predictions. Without labels, there is nothing to test before
        linear probes are due.
        """
        federation, method = self.runtime.federation, self.runtime.method
        if fault := not_finite(model):
            self.untested["global"] = fault
            return None, {"global_acc": None}, {}
        pooled: Grade | None = None
        probed = self._represented(model, own)
        if method.supervised:
            pooled = self._on_all(model, own)
        elif probed is not None:
            model, pooled = probed.tensors, probed.test
        told: Line = {"global_acc": None}
        if pooled is not None:
            told = {"global_acc": pooled.accuracy}
            told |= {f"global_{measure}": of for measure, of in pooled.measures.items()}
        there = method.supervised or probed is not None
        saved = model if there else select(model, BODY)
        where = "the pooled test set" if federation.labelled is None else f"the test set of {federation.labelled.name}"
        if self.final and self.runtime.settings.save_models != "none":
            told_on = {
                "client": None,
                "accuracy": told["global_acc"],
                "measured_on": f"{where}, {federation.tested.size} samples",
            }
            card = self.runtime.about_run(self.round) | told_on
            self.folder.save_model("global", saved, self.runtime.about_model(), card)
        if not there:
            return None, told, {}
        serves = method.primary == "global"
        return model, told, dict.fromkeys(range(len(federation)), lambda: model) if serves else {}

    def _on_all(self, model: Tensors, own: _Accuracies) -> Grade | None:
        """Record the accuracies of the global model at the clients; return its grade on the pooled test set."""
        found = self.executor.test(model, final=self.final)
        if isinstance(found, Failure):
            self.untested["global"] = self._noted(found, "test of the global model")
            return None
        for id, (test, validation) in enumerate(zip_longest(found.test, found.validation, fillvalue=UNTESTED)):
            self._note(TestResult("global", test, validation), id, own)
        self.untested.update({f"{id}, global": reason for id, reason in found.failures.items()})
        return found.pooled

    def _represented(self, model: Tensors, own: _Accuracies) -> TestResult | None:
        """Record the tests of a global model's representation; return that of the linear probe, if one is due."""
        settings, method = self.runtime.settings, self.runtime.method
        due = (self.final and settings.fits_probes(method)) or settings.asks_neighbours(self.round, method)
        if not due or method.primary != "global":
            return None
        task = Task(0, self.round, Message(model), test="global representation", final=self.final)
        ((_, answer),) = self.executor.evaluate([task])
        if isinstance(answer, Failure):
            self.untested["global"] = self._noted(answer, "test of the global representation")
            return None
        for result in answer.results:
            clients = range(len(own.sizes)) if result.client is None else [result.client]  # None: all clients
            for at in clients:
                self._note(result, at, own)
            self._note_probe(result, clients)
        return next((result for result in answer.results if result.name == PROBED), None)

    def _own(self, tasks: Iterator[Task], own: _Accuracies) -> Served:
        """Test the clients' own models; return the primary ones, which are saved after the last round."""
        primary, served = self.runtime.method.primary, {}
        models = models_of(self.folder, self.runtime)
        for id, results in self._results(tasks, own, len(own.sizes), "evaluation", models if self.final else None):
            for result in results:
                self._note(result, id, own)
                self._note_probe(result, [id])
                called = save_own(models, self.runtime, self.round, id, result)
                if result.name == primary and called:
                    served[id] = lambda called=called: self.folder.model(called)
        return dict(sorted(served.items()))

    def _note(self, result: TestResult, id: ClientId, own: _Accuracies) -> None:
        """Record a result at a client, and the grades of its primary model."""
        if result.name == self.runtime.method.primary and result.test.measures:
            for name, grade in zip(OWN, (result.test, result.validation), strict=True):
                if name == "personal" or own.validation_sizes:
                    self.grades.setdefault(name, {})[id] = grade
        own.note(result, id)

    def _note_probe(self, result: TestResult, clients: Iterable[ClientId]) -> None:
        """Record the measures of a linear probe that was fitted to the body of these clients; ignore other results."""
        if result.name != PROBED:
            return
        for measure, value in result.test.measures.items():
            of_clients = self.probed.setdefault(measure, [None] * len(self.runtime.federation))
            for id in clients:
                of_clients[id] = value

    def _measured(self, own: _Accuracies) -> Line:
        """Return the measures beside the accuracy, and after the last round save the confusion matrices.

        They are those of the clients' primary models on their own samples, and of linear probes on the pooled test set:
        means over the clients, and the values of each one. Empty without models that were tested.
        """
        clients, found = len(own.sizes), {measure: {PROBED: values} for measure, values in self.probed.items()}
        for name, of_clients in self.grades.items():
            grades = [of_clients.get(id, UNTESTED) for id in range(clients)]
            for measure in next(iter(of_clients.values())).measures:
                found.setdefault(measure, {})[name] = [grade.measures.get(measure) for grade in grades]
            if self.final and name == "personal":
                self.folder.save_confusion([grade.cells for grade in grades])
        line: Line = {}
        for measure, of in found.items():
            line |= _Accuracies(own.sizes, own.validation_sizes, of, measure).spreads()
        told = {f"{name}_{measure}": values for measure, of in found.items() for name, values in of.items()}
        return line | ({"client_measures": dict(sorted(told.items()))} if told else {})

    def _further(self, served: Served, own: _Accuracies) -> None:
        """Test the global model as each client's primary one in further ways."""
        asked = {id: of for id, of in served.items() if id in self.runtime.tested_further}
        tasks = (Task(id, self.round, Message(of()), test="primary model") for id, of in asked.items())
        models = models_of(self.folder, self.runtime)
        for id, results in self._results(tasks, own, len(asked), "primary model", models):
            for result in results:
                own.note(result, id)
                save_own(models, self.runtime, self.round, id, result)

    def _groups_of_new(self, state: ServerState, count: int) -> list[int | None]:
        """Let every new client train once, and return the group that the method finds for it.

        Empty if the method does not ask; None for a client whose training failed.
        """
        method, first = self.runtime.method, len(self.runtime.federation)
        greeting = method.greeting(state)
        if greeting is None:
            return []
        tasks = (Task(first + i, self.round, greeting, test="first training") for i in range(count))
        found: list[int | None] = [None] * count
        for id, results in self._results(tasks, _Accuracies([]), count, "first training"):
            for result in results:
                upload = Message(result.tensors)
                found[id - first] = method.group_of_new(self.runtime.server(self.round), state, upload)
        return found

    def _given(
        self, model: Tensors | None, served: Served, state: ServerState, found: Sequence[int | None]
    ) -> list[Tensors | None]:
        """Return the model that each new client is given: the global one, or the mean of all clients or of its group.

        Args:
            model: Global model, if the method has one.
            served: Primary models of the clients.
            state: State of the server.
            found: Group of each new client; empty if the method does not ask.
        """
        count = len(self.runtime.federation.new_clients)
        groups = self.runtime.method.groups(state)
        if not found or groups is None:
            return [model if model is not None else self._mean(served)] * count
        means = {
            group: self._mean({id: of for id, of in served.items() if groups[id] == group})
            for group in {*found} - {None}
        }
        return [means.get(group) for group in found]

    def _new(self, given: Sequence[Tensors | None], new: _Accuracies) -> None:
        """Test the given models at the new clients; a client without one has no accuracy."""
        first, count = len(self.runtime.federation), len(new.sizes)
        new.of["new_global"] = [None] * count
        tasks = (
            Task(first + i, self.round, Message(model), test="new client")
            for i, model in enumerate(given)
            if model is not None
        )
        for id, results in self._results(tasks, new, count, "new client"):
            for result in results:
                new.note(result, id - first)

    def _mean(self, served: Served) -> Tensors | None:
        """Compute the mean of the clients' primary models, weighted by training samples.

        New clients are tested with it if the method has no global model. If the clients share a body, it is the body
        with the mean of their heads (CRC-9). None if there are several architectures, or without labels, since linear
        probes of different representations cannot be averaged.
        """
        if not served or len(self.runtime.models) > 1 or not self.runtime.method.supervised:
            return None
        counts = [len(self.runtime.federation.partition.train[id]) for id in served]
        return mean_of([count / sum(counts) for count in counts], (of() for of in served.values()))

    def _results(
        self,
        tasks: Iterable[Task],
        accuracies: _Accuracies,
        total: int,
        what: str,
        models: ClientModels | None = None,
    ) -> Iterator[tuple[ClientId, Sequence[TestResult]]]:
        """Yield the valid results of each client, in order of completion; record the reasons for missing ones.

        The clients of a shard of models are tested before those of the next, so that few models are in memory.

        Args:
            tasks: Tasks of the tests.
            accuracies: Accuracies, which get an entry for the name of each result without an accuracy.
            total: Number of tasks.
            what: Name of the step for progress reports.
            models: Writer of the models in the results; None if there are none.
        """
        for done, (id, answer) in enumerate(self._answers(tasks, models), start=1):
            if isinstance(answer, Failure):
                whose = str(id) if what == "evaluation" else f"{id}, {what}"
                name = self.runtime.federation.name(id)
                self.untested[whose] = self._noted(answer, f"test of client {name}{whose.removeprefix(str(id))}")
            else:
                for test, failure in answer.failures.items():
                    where = f"test of client {self.runtime.federation.name(id)}, {test}"
                    self.untested[f"{id}, {test}"] = self._noted(failure, where)
                for result in answer.results:
                    if result.fault:
                        accuracies.leave_out(result.name)
                        whose = str(id) if result.name == self.runtime.method.primary else f"{id}, {result.name}"
                        self.untested[whose] = result.fault
                yield id, [result for result in answer.results if not result.fault]
            self.told(what, done, total)

    def _answers(
        self, tasks: Iterable[Task], models: ClientModels | None
    ) -> Iterator[tuple[ClientId, Tested | Failure]]:
        if models is None or models.together == 1:
            yield from self.executor.evaluate(tasks)
            return
        for _, of_shard in itertools.groupby(tasks, lambda task: task.id // models.together):
            yield from self.executor.evaluate(of_shard)
        models.flush()

    def _noted(self, failure: Failure, where: str) -> str:
        """Return the reason of a failure, and write its traceback to the log of errors."""
        self.folder.note_failure(failure, f"round {self.round}, {where}")
        return failure.reason


def models_of(folder: RunFolder, runtime: ClientRuntime, kind: str = "own") -> ClientModels:
    """Return the writer of a kind of the clients' models of a run."""
    largest = max(sum(tensor.nbytes for tensor in initial.values()) for initial in runtime.initial)
    return ClientModels(folder, len(runtime.federation), largest, kind)


def save_own(models: ClientModels, runtime: ClientRuntime, round: int, id: ClientId, result: TestResult) -> str:
    """Save the model of a client in a result, if it has one, and return its name in the folder; else empty.

    It is done by whoever may hold the model: the process that runs the rounds, or the site of the client.

    Args:
        models: Writer of the models.
        runtime: Runtime of the run.
        round: Number of the round.
        id: Number of the client.
        result: Result of a test.
    """
    if not result.tensors or runtime.settings.save_models != "all":
        return ""
    kind = "personal" if result.name == runtime.method.primary else result.name
    measured_on = f"the client's own test samples, {result.test.samples}"
    told = {"client": id, "accuracy": result.test.accuracy, "measured_on": measured_on}
    return models.save(id, kind, result.tensors, runtime.about_model(id), runtime.about_run(round) | told)
