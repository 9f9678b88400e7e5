"""Checks of the rules that every federated method must keep, for authors of methods; see `check_method`.

>>> from kinfed.methods.fedavg import FedAvg
>>> check_method(FedAvg)  # doctest: +SKIP
"""

from __future__ import annotations

import itertools
import json
import math
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kinfed.data import Dataset, Federation, Normalisation, Partition, Samples, load, with_validation
from kinfed.engine import (
    ClientRuntime,
    Executor,
    NoCallback,
    RoundSettings,
    RunFolder,
    SerialExecutor,
    TaskRunner,
    run_rounds,
)
from kinfed.engine.checks import upload_error
from kinfed.engine.evaluator import Evaluator
from kinfed.engine.executor import Task
from kinfed.engine.folder import Checkpoint
from kinfed.engine.loop import sampled
from kinfed.files import NotSaved
from kinfed.learning import MEASURES, Batch, LocalTraining, Phase, Tally, train
from kinfed.methods import ClientId, ClientState, Message, Method, NamedTensors, ServerState, fedavg
from kinfed.methods.fedavg import FedAvg
from kinfed.models import HEAD, BatchNorm, Card, Model, Source, Tensors, build, read_tensors
from kinfed.settings import own_settings

__all__ = [
    "CHECKS",
    "NOBODY",
    "Check",
    "ContractError",
    "Outcome",
    "card_of",
    "check_method",
    "complete_run",
    "enlarged",
    "on_trial",
    "parabola_training",
    "parabolas",
    "same",
    "small_dataset",
    "small_federation",
    "small_runtime",
    "trial_fields",
    "uneven_round",
    "untrained_sources",
]

PARTIAL = 0.5  # fraction of the four clients that take part
NOBODY = Partition([], [])


class ContractError(AssertionError):
    """Error for a method that breaks a rule of ``docs/design.md``; the message names the rule and what happened."""


@own_settings()  # as in a run: with several threads, sums have other last bits
def check_method(method: Method | type[Method]) -> None:
    """Check that a method keeps the rules that every method must keep, on scikit-learn's digits.

    Args:
        method: Method with hyper-parameters that suit a few rounds on 8×8 images; or its class, which is checked with
            the fields of its ``trial`` and defaults for the others.

    Raises:
        ContractError: If the method breaks a rule; the message names the rule of ``docs/design.md`` and what happened.
    """
    tried = on_trial(method) if isinstance(method, type) else method
    for check in CHECKS:
        with tempfile.TemporaryDirectory() as folder:
            check(tried, Path(folder))


def on_trial(method: type[Method]) -> Method:
    """Instantiate a method for testing: default settings, overridden by the ``trial`` of the class and its bases.

    >>> on_trial(FedAvg)
    FedAvg()
    """
    return method(**trial_fields(method))


def trial_fields(method: type[Method]) -> dict[str, Any]:
    """Return the settings for a short test run (``trial``) that a method and its base classes declare.

    >>> from kinfed.methods.moon import MOON
    >>> trial_fields(MOON)
    {'mu': 5.0}
    """
    fields: dict[str, Any] = {}
    for base in reversed(method.__mro__):
        fields |= vars(base).get("trial", {})
    return fields


def _demand(holds: bool, rule: str, said: str) -> None:
    if not holds:
        raise ContractError(f"{said} (docs/design.md, What every method keeps: {rule})")


# -- a small federation -----------------------------------------------------------------------------------------------


def small_dataset(train: int = 240, test: int = 120) -> Dataset:
    """Return a data set of the first samples of scikit-learn's digits: 8×8 grey images, ten classes.

    Args:
        train: Number of training samples.
        test: Number of test samples.
    """
    whole = load("digits")
    return replace(whole, train=whole.train.take(range(train)), test=whole.test.take(range(test)))


def small_federation(clients: int = 4, public: int = 24, data: Dataset | None = None, new: int = 0) -> Federation:
    """Make a federation of N clients of different sizes, on average 1/N of the samples each.

    Args:
        clients: Number N of clients that take part in training.
        public: Number of public images at the server.
        data: Data set; None for `small_dataset`.
        new: Number of new clients, which take no part in training.
    """
    data = data or small_dataset()
    shares = np.linspace(0, 1, clients + new + 1) ** 1.2

    def cut(first: int, n: int) -> list[NDArray[np.intp]]:
        ends = np.round(shares * n).astype(int)
        return [first + np.arange(a, b) for a, b in itertools.pairwise(ends)]

    whole = Partition(cut(public, len(data.train) - public), cut(0, len(data.test)))
    return Federation(
        data, whole.of(range(clients)), np.arange(public), whole.of(range(clients, clients + new)) if new else NOBODY
    )


def untrained_sources(
    data: Dataset, seeds: Iterable[int] = (11, 12, 13), model: str = "tiny_cnn"
) -> tuple[Source, ...]:
    """Make source models (models from which `Vote` transfers) with initial weights, named by their seeds.

    Args:
        data: Data set that gives shape and classes of the models.
        seeds: Seeds of the initial weights.
        model: Architecture of the models.
    """
    built = {str(seed): build(model, data.shape, len(data.classes), seed).eval() for seed in seeds}
    return tuple(Source(name, of.requires_grad_(False), card_of(data, model)) for name, of in built.items())


def card_of(data: Dataset, model: str) -> Card:
    """Card of a model for a data set.

    Args:
        data: Data set with shape, classes and normalisation.
        model: Architecture of the model.
    """
    told = data.train.normalise
    return Card.model_validate(
        {"version": 1, "architecture": model, "bn": "track", "shape": data.shape, "classes": data.classes,
         "normalisation": {"mean": told.mean, "std": told.std}}
    )  # fmt: skip


def small_runtime(
    method: Method,
    fed: Federation | None = None,
    *,
    rounds: int = 3,
    participation: float = 1.0,
    seed: int = 0,
    training: LocalTraining | None = None,
    model: str = "tiny_cnn",
    wrap: Callable[[Model], Model] = lambda m: m,
    sources: tuple[Source, ...] | None = None,
    **plan: Any,
) -> ClientRuntime:
    """Runtime of a method with a small federation and a small model, for `complete_run`.

    Args:
        method: Method to run.
        fed: Federation; None for `small_federation`.
        rounds: Number T of rounds.
        participation: Fraction of the clients that train in a round.
        seed: Seed of the run.
        training: Settings of local training; None for learning rate 0.05 and batches of 16.
        model: Architecture of the model.
        wrap: Function that replaces the model by another one.
        sources: Source models; None for `untrained_sources` if the method requires sources.
        **plan: Other fields of `RoundSettings`.
    """
    fed = fed or small_federation()
    if method.requires.true_groups and not fed.groups:
        fed = replace(fed, groups=tuple(id % 2 for id in range(len(fed) + len(fed.new_clients))))
    if sources is None:
        sources = untrained_sources(fed.dataset, model=model) if method.requires.source_models else ()
    settings: dict[str, Any] = {
        "lr_schedule": "constant",
        "checkpoint_every": 100,
        "fine_tuning": Phase(epochs=1, lr=0.01),
    } | plan
    bn: BatchNorm = "group" if method.requires.fixed_statistics else "track"
    return ClientRuntime(
        method,
        fed,
        (wrap(build(model, fed.dataset.shape, len(fed.dataset.classes), seed, bn=bn)),),
        RoundSettings(
            rounds=rounds,
            training=training or LocalTraining(lr=0.05, batch_size=16),
            participation=participation,
            seed=seed,
            **settings,
        ),
        sources=sources,
    )


@dataclass(frozen=True)
class Outcome:
    """Outcome of a finished run.

    Attributes:
        lines: Lines of ``metrics.jsonl``.
        last: Last checkpoint.
        folder: Folder of the run.
    """

    lines: list[dict[str, Any]]
    last: Checkpoint
    folder: RunFolder

    @property
    def state(self) -> ServerState:
        """State of the server after the last round."""
        return self.last.state

    @property
    def client_states(self) -> dict[int, ClientState]:
        """State of each client that has one, after the last round."""
        return {id: self.folder.client_states.read(id, round) for id, round in self.last.stored.items()}


def complete_run(
    runtime: ClientRuntime,
    path: Path,
    executor: Executor | None = None,
    build: Callable[[], ClientRuntime] | None = None,
    until: int | None = None,
) -> Outcome:
    """Run all rounds in a folder, or resume a run in it.

    Args:
        runtime: Runtime with method, clients and model.
        path: Folder of the run; it is made if it does not exist.
        executor: Executor of the clients' tasks; None for `SerialExecutor`.
        build: Function that builds the same runtime in another process, for executors that need one.
        until: Round after which the run pauses; None to run to the end.
    """
    folder = RunFolder(path)
    path.mkdir(exist_ok=True)
    executor = executor or SerialExecutor()
    with own_settings():
        executor.start(build or (lambda: runtime), TaskRunner(runtime, folder.client_states))
        run_rounds(runtime, executor, folder, NoCallback(), until)
    last = folder.last_checkpoint()
    assert last is not None
    return Outcome(folder.lines("metrics.jsonl"), last, folder)


def same(a: Tensors | NamedTensors, b: Tensors | NamedTensors) -> bool:
    """Return True if two messages or states, or two mappings of tensors, are equal; NaN equals NaN.

    >>> same({"w": torch.zeros(2)}, {"w": torch.zeros(2)}), same({"w": torch.zeros(2)}, {"w": torch.ones(2)})
    (True, False)
    """
    if isinstance(a, NamedTensors) and isinstance(b, NamedTensors):
        return a.numbers == b.numbers and same(a.tensors, b.tensors)
    assert not isinstance(a, NamedTensors)
    assert not isinstance(b, NamedTensors)
    if a.keys() != b.keys():
        return False
    return all(_same_bits(a[name], b[name]) for name in a)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def parabolas(
    method: Method, centres: Sequence[float], *, start: float = 0.0, training: LocalTraining, **plan: Any
) -> ClientRuntime:
    """Runtime of clients with one sample m_i each and a model of one weight w, for `parabola_training`.

    >>> runtime = parabolas(FedAvg(), [-1.0, 1.0], start=0.5, training=LocalTraining(lr=0.1))
    >>> runtime.initial[0]
    {'head.weight': tensor([[0.5000]])}

    Args:
        method: Method to run.
        centres: Centres m_i of the clients' losses (w − m_i)²/2.
        start: Initial weight.
        training: Settings of local training.
        **plan: Other arguments of `small_runtime`.
    """
    inputs = torch.tensor(centres)[:, None]
    samples = Samples(inputs, torch.zeros(len(centres), dtype=torch.int64), Normalisation((0.0,), (1.0,)))
    own = [np.array([i]) for i in range(len(centres))]
    fed = Federation(Dataset("parabolas", samples, samples, ("0", "1")), Partition(own, own), np.arange(0))
    model = Model({"same": nn.Identity()}, nn.utils.skip_init(nn.Linear, 1, 1, bias=False), [])
    nn.init.constant_(model.head.weight, start)
    return small_runtime(method, fed, training=training, model="mlp", wrap=lambda _: model, **plan)


def parabola_training(*given: Any, **hooks: Any) -> Tally:
    """Train on `parabolas` with the loss (w − m_i)²/2 instead of the method's; replaces `kinfed.methods.fedavg.train`.

    Args:
        *given: Positional arguments of `kinfed.learning.train`; those after the random stream are ignored.
        **hooks: Keyword arguments of `kinfed.learning.train`.
    """

    def parabola(model: Model, batch: Batch) -> Tensor:
        return ((model.head.weight - batch.inputs) ** 2 / 2).mean()

    model, samples, phase, training, stream, *_ = given
    return train(model, samples, phase, training, stream, parabola, **hooks)


# -- runs and rounds for the checks -----------------------------------------------------------------------------------


def _runtime(method: Method, fed: Federation | None = None, *, rounds: int = 3, **given: Any) -> ClientRuntime:
    return small_runtime(method, fed, rounds=max(rounds, method.requires.rounds), **given)


def _run(runtime: ClientRuntime, path: Path, executor: Executor | None = None, until: int | None = None) -> Outcome:
    """Complete a run in which no client and no test may fail.

    Raises:
        ContractError: If the run, a client or a test fails.
    """
    name = type(runtime.method).__name__
    try:
        outcome = complete_run(runtime, path, executor, until=until)
    except (_Stopped, ContractError, NotSaved):
        raise
    except Exception as error:
        log = path / "errors.log"
        told = f"; the first traceback: {log.read_text().strip().splitlines()[-1]}" if log.is_file() else ""
        raise ContractError(f"a run of {name} failed with {type(error).__name__}: {error}{told}") from error
    for line in outcome.lines:
        for what in ("refused", "untested"):
            _demand(not line[what], "uploads", f"{name}, round {line['round']}: {what} was {json.dumps(line[what])}")
    return outcome


@dataclass(frozen=True)
class _Round:
    """Second round of a run.

    Attributes:
        state: State of the server before the round.
        messages: Message to each client.
        uploads: Upload of each client.
        client_states: State of each client before the round.
    """

    state: ServerState
    messages: dict[ClientId, Message]
    uploads: dict[ClientId, Message]
    client_states: dict[ClientId, ClientState]

    def __iter__(self) -> Iterator[NamedTensors]:
        every = (self.messages, self.uploads, self.client_states)
        return iter([self.state, *(message for of in every for message in of.values())])


def _second_round(runtime: ClientRuntime) -> _Round:
    method, ids = runtime.method, range(len(runtime.trained))
    try:
        state, client_states = method.init(runtime.server(0)), {id: ClientState() for id in ids}
        messages = {id: method.download(state, id) for id in ids}
        answers = {id: runtime.update(id, 1, messages[id], client_states[id]) for id in ids}
        state = method.aggregate(runtime.server(1), state, {id: upload for id, (upload, _) in answers.items()})
        client_states = {id: kept for id, (_, kept) in answers.items()}
        messages = {id: method.download(state, id) for id in ids}
        uploads = {id: runtime.update(id, 2, messages[id], client_states[id])[0] for id in ids}
    except ContractError:
        raise
    except Exception as error:
        raise ContractError(
            f"a round of {type(method).__name__} failed with {type(error).__name__}: {error}"
        ) from error
    return _Round(state, messages, uploads, client_states)


def _snapshot(message: NamedTensors) -> NamedTensors:
    return NamedTensors({name: tensor.clone() for name, tensor in message.tensors.items()}, dict(message.numbers))


# -- the checks -------------------------------------------------------------------------------------------------------

Check = Callable[[Method, Path], str | None]
"""Check of a method: a function of the method and an empty folder, to which the check may write test runs.

It raises `ContractError` if the method breaks the rule; it returns None, or the reason why the rule does not apply.
"""


def check_same_bits_again(method: Method, folder: Path) -> None:
    """Check that two runs with the same config give the same bits."""
    first, again = (_run(_runtime(method, participation=PARTIAL), folder / which) for which in "ab")
    kept, kept_again = first.client_states, again.client_states
    bits = same(first.state, again.state) and kept.keys() == kept_again.keys()
    bits = bits and all(same(state, kept_again[id]) for id, state in kept.items())
    _demand(
        bits and first.lines == again.lines,
        "the same bits",
        f"two runs of {type(method).__name__} with the same config differ: it must draw random numbers from "
        "client.stream(…) only",
    )


def check_seed_matters(method: Method, folder: Path) -> None:
    """Check that runs with different seeds have different losses."""
    losses = [_run(_runtime(method, seed=seed), folder / str(seed)).lines[-1]["train_loss"] for seed in (0, 1)]
    said = f"{type(method).__name__} has the same loss, {losses[0]}, for two seeds"
    _demand(losses[0] != losses[1], "the same bits", said)


def check_no_global_generator(method: Method, folder: Path) -> None:
    """Check that a method leaves the global generators of Python, NumPy and PyTorch untouched.

    Two rounds are run in memory; nothing is written to ``folder``.
    """
    del folder
    runtime = _runtime(method)
    before = _generators()
    _second_round(runtime)
    for whose, state in _generators().items():
        _demand(
            state == before[whose],
            "the same bits",
            f"{type(method).__name__} draws from {whose} global generator; it must use client.stream(…)",
        )


def _generators() -> dict[str, Any]:
    of_numpy: Any = np.random.get_state()  # noqa: NPY002
    return {
        "torch's": torch.random.get_rng_state().tolist(),
        "NumPy's": of_numpy[1].tolist(),
        "Python's": random.getstate(),
    }


class _Backwards(SerialExecutor):
    """Executor that runs the clients in the opposite order, as worker processes may finish them."""

    def update(self, tasks: Iterable[Task]) -> Iterator[Any]:
        return super().update(reversed(list(tasks)))

    def evaluate(self, tasks: Iterable[Task]) -> Iterator[Any]:
        return super().evaluate(reversed(list(tasks)))


def check_order_does_not_matter(method: Method, folder: Path) -> None:
    """Check that the results do not depend on the order in which clients finish."""
    runtime = _runtime(method)
    forwards = _run(runtime, folder / "a")
    backwards = _run(runtime, folder / "b", _Backwards())
    _demand(
        same(forwards.state, backwards.state) and forwards.lines == backwards.lines,
        "no order",
        f"the results of {type(method).__name__} depend on the order in which clients finish: its state must be in "
        "ServerState and ClientState",
    )


class _Stopped(Exception):
    pass


def check_resumes(method: Method, folder: Path) -> None:
    """Check that a resumed run gives the same bits as one that was not interrupted."""
    given: dict[str, Any] = {"rounds": 6, "participation": PARTIAL, "seed": 1, "lr_schedule": "step:0.5"}
    straight = _run(_runtime(method, **given), folder / "a")

    class Stops(SerialExecutor):
        def update(self, tasks: Iterable[Task]) -> Iterator[Any]:
            yield from super().update(tasks)
            if len((folder / "b" / "metrics.jsonl").read_text().splitlines()) == 4:
                raise _Stopped

    runtime = _runtime(method, **given, checkpoint_every=3)
    try:
        _run(runtime, folder / "b", Stops())
    except _Stopped:  # in round 5; round 4 is done, but only round 3 is saved
        pass
    else:
        raise AssertionError("the run was not stopped")
    resumed = _run(runtime, folder / "b")
    kept, kept_straight = resumed.client_states, straight.client_states
    bits = same(resumed.state, straight.state) and all(same(kept[id], state) for id, state in kept_straight.items())
    _demand(
        bits and resumed.lines == straight.lines,
        "no state of its own",
        f"{type(method).__name__} has other results after a resume: its state must be in ServerState and ClientState",
    )


def check_others_are_left_alone(method: Method, folder: Path) -> str | None:
    """Check that the state of a client does not change in rounds in which it takes no part."""
    if method.trains != "sampled":
        return "all clients train in every round"
    runtime = small_runtime(method, participation=0.25)
    states = {round: _run(runtime, folder / "run", until=round).client_states for round in (1, 2, 3)}
    for round in (2, 3):
        (took_part,) = sampled(len(small_federation().partition.train), 0.25, 0, round)
        before, after = states[round - 1], states[round]
        for id in before:
            _demand(
                id == took_part or same(before[id], after[id]),
                "who takes no part",
                f"{type(method).__name__} changes the state of client {id} in round {round}, in which the client "
                "does not take part",
            )
        assert after.keys() <= before.keys() | {took_part}
    return None


def check_changes_no_argument(method: Method, folder: Path) -> None:
    """Check that no function changes the messages and states that it receives."""
    del folder
    runtime = _runtime(method)
    given = _second_round(runtime)
    before, last = [_snapshot(message) for message in given], runtime.settings.rounds

    def unchanged(function: str) -> None:
        for one, other in zip(before, given, strict=True):
            said = f"{type(method).__name__}.{function} changes a message or state that it receives"
            _demand(same(one, other), "arguments stay as they are", said)

    for id in given.messages:
        runtime.update(id, 2, given.messages[id], given.client_states[id])
        unchanged("update")
        Evaluator(runtime).evaluate(
            id, last, given.messages[id], given.client_states[id]
        )  # in the last round costly models are made, too
        unchanged("evaluated")
    runtime.method.aggregate(runtime.server(2), given.state, given.uploads)
    unchanged("aggregate")
    runtime.method.global_model(runtime.server(2), given.state)
    unchanged("global_model")
    runtime.method.pictures(given.state)
    unchanged("pictures")


def check_messages_are_plain(method: Method, folder: Path) -> None:
    """Check that messages and states hold plain tensors on the CPU and plain numbers."""
    del folder
    name, rule = type(method).__name__, "messages"
    for message in _second_round(_runtime(method)):
        _demand(isinstance(message, NamedTensors), rule, f"{name} has a {type(message).__name__} instead of a message")
        for key, tensor in message.tensors.items():
            _demand(type(key) is str, rule, f"{name} has a tensor with a name of type {type(key).__name__}, not str")
            _demand(type(tensor) is Tensor, rule, f"{name}: {key} is a {type(tensor).__name__}, not a plain tensor")
            _demand(tensor.device.type == "cpu", rule, f"{name}: {key} is on {tensor.device}, not on the CPU")
            _demand(not tensor.requires_grad, rule, f"{name}: {key} requires a gradient; detach it")
        for key, number in message.numbers.items():
            _demand(type(key) is str, rule, f"{name} has a number with a name of type {type(key).__name__}, not str")
            plain = type(number) in (int, float)
            _demand(plain, rule, f"{name}: {key} is a {type(number).__name__}, not a plain number")


def check_uploads_are_as_said(method: Method, folder: Path) -> None:
    """Check that uploads agree with ``upload_like`` and have the numbers of samples and steps."""
    del folder
    runtime, name = _runtime(method), type(method).__name__
    for id, upload in _second_round(runtime).uploads.items():
        reason = upload_error(upload, runtime.method.upload_like(runtime.server(2)), runtime.samples)
        _demand(reason is None, "uploads", f"the upload of {name} does not match its upload_like: {reason}")
        samples, steps = upload.numbers.get("samples"), upload.numbers.get("steps", 0)
        own = len(runtime.trained.partition.train[id])
        _demand(samples == own, "uploads", f"{name} reports {samples} samples for a client that has {own}")
        _demand(steps >= 1, "uploads", f"{name} reports {steps} steps")


def check_loss_is_told(method: Method, folder: Path) -> None:
    """Check that uploads contain the loss and its parts, and the round's metrics their means weighted by samples."""
    runtime, name, rule = _runtime(method), type(method).__name__, "the loss in its parts"
    uploads = _second_round(runtime).uploads
    for numbers in (upload.numbers for upload in uploads.values()):
        _demand("loss" in numbers, rule, f"{name} does not report its loss")
        _demand(
            ("cross_entropy" in numbers) == method.supervised,
            rule,
            f"{name} {'does not report' if method.supervised else 'reports'} a cross-entropy, but supervised is "
            f"{method.supervised}",
        )
        if method.supervised:
            parts = numbers["cross_entropy"] + numbers.get("term", 0)
            whole = math.isclose(numbers["loss"], parts, rel_tol=1e-6)
            _demand(
                whole,
                rule,
                f"{name}: the loss {numbers['loss']} is not the sum of its cross-entropy and its term, {parts}",
            )
    line = _run(runtime, folder / "out").lines[1]
    samples = [upload.numbers["samples"] for upload in uploads.values()]
    for told, number in (("train_loss", "loss"), ("train_cross_entropy", "cross_entropy"), ("train_term", "term")):
        values = [upload.numbers.get(number) for upload in uploads.values()]
        present = [value for value in values if value is not None]
        if len(present) < len(values):
            _demand(line.get(told) is None, rule, f"{name} reports its {number} for some clients only")
        else:
            mean = float(np.average(present, weights=samples))
            _demand(math.isclose(line[told], mean, rel_tol=1e-9), rule, f"{name}: {told} is {line[told]}, not {mean}")


def check_one_client(method: Method, folder: Path) -> None:
    """Check that a run with one client works."""
    runtime = _runtime(method, small_federation(clients=1))
    assert len(_run(runtime, folder / "out").lines) == runtime.settings.rounds


def enlarged(fed: Federation) -> Federation:
    """Federation with the same images at twice the width and height, for models with BatchNorm."""

    def grow(samples: Samples) -> Samples:
        return replace(samples, inputs=samples.inputs.repeat_interleave(2, 2).repeat_interleave(2, 3))

    return replace(fed, dataset=replace(fed.dataset, train=grow(fed.dataset.train), test=grow(fed.dataset.test)))


def uneven_round(method: Method, folder: Path, model: str) -> dict[str, Any]:
    """Run a method with clients of 1, 2, 33 and 180 samples, the first without test samples.

    Args:
        method: Method to run.
        folder: Folder for the run.
        model: Architecture of the model.

    Returns:
        Line of the last round in ``metrics.jsonl``.

    Raises:
        ContractError: If a client cannot take part or is not tested.
    """
    ends = [24, 25, 27, 60, 240]
    cut = Partition(
        [np.arange(a, b) for a, b in itertools.pairwise(ends)],
        [np.arange(0), np.arange(0, 1), np.arange(1, 20), np.arange(20, 120)],
    )
    fed = Federation(small_dataset(), cut, np.arange(24))
    last = _run(_runtime(method, enlarged(fed) if model == "cnn4" else fed, model=model), folder / model).lines[-1]
    accuracies = last["client_acc"]["personal"]
    tested = accuracies[0] is None and all(0 <= accuracy <= 1 for accuracy in accuracies[1:])
    _demand(
        tested, "any federation", f"{type(method).__name__}: clients of few samples have the accuracies {accuracies}"
    )
    return last


def check_uneven_clients(method: Method, folder: Path) -> None:
    """Check that clients with one, two or many samples, or without test samples, work; with BatchNorm and without."""
    for model in ("tiny_cnn", "cnn4"):
        uneven_round(method, folder, model)


class _Forbidden(Samples):
    """Test samples that raise an error when they are read."""

    def take(self, rows: object) -> Samples:
        raise ContractError("a method reads test samples (docs/design.md, What every method keeps: test data)")

    def batch(self, rows: object) -> Tensor:
        raise ContractError("a method reads test samples (docs/design.md, What every method keeps: test data)")


def check_reads_no_test_data(method: Method, folder: Path) -> None:
    """Check that training, aggregation and the making of the tested models read no test samples."""
    del folder
    fed = small_federation()
    test = fed.dataset.test
    hidden = replace(fed.dataset, test=_Forbidden(test.inputs, test.labels, test.normalise))
    runtime = _runtime(method, replace(fed, dataset=hidden))
    given = _second_round(runtime)
    runtime = _runtime(method, replace(fed, dataset=hidden))
    runtime.method.aggregate(runtime.server(2), given.state, given.uploads)
    for id in given.messages:
        client = runtime.client(id, runtime.settings.rounds, final=True)
        runtime.method.evaluated(client, given.messages[id], given.client_states[id])


def check_test_data_change_no_model(method: Method, folder: Path) -> None:
    """Check that other test labels change the accuracies and other measures on test samples, and nothing else."""
    fed, name = with_validation(small_federation(), 0.2, seed=0), type(method).__name__
    assert fed.dataset.test.labels is not None
    flipped = replace(fed.dataset.test, labels=fed.dataset.test.labels.flip(0))
    other_fed = replace(fed, dataset=replace(fed.dataset, test=flipped))
    first, second = _run(_runtime(method, fed), folder / "a"), _run(_runtime(method, other_fed), folder / "b")
    accuracies = [outcome.lines[-1]["personal_acc_mean"] for outcome in (first, second)]
    _demand(accuracies[0] != accuracies[1], "test data", f"{name} has the same accuracy whatever the test labels are")
    _demand(
        same(first.state, second.state), "test data", f"{name} has another state at the end if the test labels change"
    )
    of_tests = ("acc", "client_measures", *MEASURES)  # parts of the names of what may depend on test data
    for line, other in zip(first.lines, second.lines, strict=True):
        for key in line.keys() | other.keys():
            may = any(part in key for part in of_tests) and not key.startswith("validation_")
            said = f"{name}: {key} changes with the test labels, but its name contains none of {', '.join(of_tests)}"
            _demand(may or line.get(key) == other.get(key), "test data", said)


def check_holds_hyper_parameters_only(method: Method, folder: Path) -> None:
    """Check that a method is frozen and holds only hyper-parameters."""
    del folder
    name, rule = type(method).__name__, "no state of its own"
    try:
        method.anything = 1  # type: ignore[attr-defined]
    except AttributeError:
        pass
    else:
        del method.anything  # type: ignore[attr-defined]
        _demand(False, rule, f"{name} is not frozen; make it a dataclass(frozen=True, kw_only=True)")
    before = dict(vars(method))
    _second_round(_runtime(method))
    changed = sorted(key for key, value in vars(method).items() if key not in before or before[key] != value)
    _demand(not changed, rule, f"{name} has changed its own fields: {', '.join(changed)}")


def check_learns(method: Method, folder: Path) -> None:
    """Check that the loss falls and that the accuracy of a supervised method exceeds chance."""
    training, name = LocalTraining(lr=0.1, momentum=0.5, batch_size=8, epochs=6), type(method).__name__
    if method.supervised:
        lines = _run(_runtime(method, rounds=12, training=training), folder / "out").lines
        before, after = lines[0]["train_loss"], lines[-1]["train_loss"]
        _demand(
            after < 0.8 * before, "learning", f"{name}: the loss was {before:.3f} and is {after:.3f} after 12 rounds"
        )
        accuracy = lines[-1]["personal_acc_weighted"]
        said = f"{name}: the accuracy on ten digits is {accuracy:.3f} after 12 rounds, hardly more than guessing"
        _demand(accuracy > 2 * 0.1, "learning", said)
    else:  # the loss falls fast in local training, but averaging raises it, since the target networks lag behind
        lines = _run(_runtime(method, rounds=8, training=training), folder / "out").lines
        untrained = _run(_runtime(method, rounds=1, training=replace(training, lr=1e-9)), folder / "untrained").lines[0]
        before, after = untrained["train_loss"], lines[-1]["train_loss"]
        said = f"{name}: the loss was {before:.3f} and is {after:.3f} after 8 rounds"
        _demand(after < min(0.5 * before, before - 0.5), "learning", said)


WANTED = np.linspace(-3.0, 7.0, 16).tolist()  # optimal weights of sixteen clients; the initial weight is 0


def check_one_weight(method: Method, folder: Path) -> str | None:
    """Check that one weight converges to the mean of the optima of sixteen clients, one of which trains in a round.

    A server that divides a sum over the participants by their number, where the number of all clients is due, makes
    too large steps.
    """
    del folder
    if not (method.supervised and isinstance(method, FedAvg) and set(HEAD) <= {*method.shared}):
        return "no head is trained and averaged"
    if (
        method.requires.public_images
        or method.requires.source_models
        or not all(set(HEAD) <= {*phase.train} for phase in method.phases())
    ):
        return "the method needs more than one weight"
    with mock.patch.object(fedavg, "train", parabola_training):
        path = _path_of_one_weight(method, rounds=240)
    if path is None:
        return "there is no global model"
    mean, wanted = path[len(path) // 2 :].mean(), float(np.mean(WANTED))
    said = (
        f"{type(method).__name__} trains one weight to {mean:.2f}, but the mean of its clients' optima is {wanted:.2f}"
    )
    _demand(abs(mean - wanted) <= 1, "few of many clients", said)
    _demand(
        min(WANTED) <= path.min() and path.max() <= max(WANTED),
        "few of many clients",
        f"{type(method).__name__} trains one weight to values from {path.min():.2f} to {path.max():.2f}, but the "
        f"clients' optima are from {min(WANTED):g} to {max(WANTED):g}",
    )
    return None


def _path_of_one_weight(method: Method, rounds: int) -> NDArray[np.float64] | None:
    """Return the global weight after each round, T numbers; None if the method has no global model."""
    share = 1 / len(WANTED)
    training = LocalTraining(lr=0.5, epochs=3, momentum=0.0)
    runtime = parabolas(method, WANTED, training=training, rounds=rounds, participation=share)
    state, path = method.init(runtime.server(0)), []
    client_states: dict[ClientId, ClientState] = {}
    for round in range(1, rounds + 1):
        uploads = {}
        for id in sampled(len(runtime.trained), 1 if method.trains == "pooled" else share, 0, round):
            message = method.download(state, id)
            uploads[id], client_states[id] = runtime.update(id, round, message, client_states.get(id, ClientState()))
        state = method.aggregate(runtime.server(round), state, uploads)
        served = method.global_model(runtime.server(round), state)
        if served is None:
            return None
        path.append(served["head.weight"].item())
    return np.array(path)


def check_models_are_saved(method: Method, folder: Path) -> None:
    """Check that the saved models are complete and have the recorded accuracies."""
    runtime, name = _runtime(method), type(method).__name__
    outcome = _run(runtime, folder / "out")
    saved = {path.stem: _tensors(path) for path in (folder / "out" / "models").glob("*.safetensors")}
    names, line = set(runtime.models[0].state_dict()), outcome.lines[-1]
    _demand(bool(saved), "models", f"{name} saves no model after the last round")
    for called, tensors in saved.items():
        other = sorted(tensors.keys() ^ names)
        _demand(not other, "models", f"{name}: {called} lacks a tensor or has an unknown one: {', '.join(other)}")
    there = ("global" in saved) == (line["global_acc"] is not None)
    _demand(there, "models", f"{name} must have both a global model and its accuracy, or neither")
    for kind, accuracies in line["client_acc"].items():
        if f"client-00000-{kind}" not in saved:
            continue
        for id, accuracy in enumerate(accuracies):
            model = runtime.client(id, runtime.settings.rounds).model
            model.load(saved[f"client-{id:05d}-{kind}"])
            test = runtime.federation.test(id)
            with torch.no_grad():
                right = model.eval()(test.batch(slice(None))).argmax(1) == test.labels
            found = right.double().mean().item()
            said = f"{name}: client {id}'s {kind} model has the accuracy {found:.3f}, but {accuracy} was reported"
            _demand(math.isclose(found, accuracy, rel_tol=1e-6), "models", said)


def check_serves(method: Method, folder: Path) -> None:
    """Check that ``serves`` agrees with the models that ``global_model`` and ``evaluated`` return."""
    del folder
    runtime, name = _runtime(method), type(method).__name__
    given = _second_round(runtime)
    shared = method.global_model(runtime.server(2), given.state) is not None
    said = f"{name} declares serves={method.serves!r}, but global_model returns {'a model' if shared else 'no model'}"
    _demand(shared == (method.serves != "private"), "who is served", said)
    last = runtime.settings.rounds
    own = [
        method.evaluated(runtime.client(id, last), given.messages[id], given.client_states[id]) for id in given.messages
    ]
    said = (
        f"{name} declares serves={method.serves!r}, but evaluated returns models for {sum(map(bool, own))} of "
        f"{len(own)} clients"
    )
    if method.serves == "private":
        _demand(all(method.primary in tensors for tensors in own), "who is served", said)
    elif method.serves == "both":  # where clients have no models of their own, they fine-tune the global one
        _demand(all(own) or (method.adapts and not any(own)), "who is served", said)
    else:
        _demand(not any(own), "who is served", said)


def _tensors(path: Path) -> Mapping[str, Tensor]:
    return read_tensors(path)[0]


CHECKS: tuple[Check, ...] = (
    check_messages_are_plain,
    check_uploads_are_as_said,
    check_changes_no_argument,
    check_holds_hyper_parameters_only,
    check_no_global_generator,
    check_reads_no_test_data,
    check_loss_is_told,
    check_same_bits_again,
    check_seed_matters,
    check_order_does_not_matter,
    check_resumes,
    check_others_are_left_alone,
    check_one_client,
    check_uneven_clients,
    check_test_data_change_no_model,
    check_one_weight,
    check_models_are_saved,
    check_serves,
    check_learns,
)
