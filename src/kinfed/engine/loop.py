"""Round loop: sample, download, update, check, aggregate, evaluate, save."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from kinfed.engine.callbacks import Callback
from kinfed.engine.checks import diverged, not_finite, unsound, upload_error
from kinfed.engine.client_store import StateLedger, StoredRounds
from kinfed.engine.evaluation import Evaluation, models_of
from kinfed.engine.executor import Executor, Failure, Task
from kinfed.engine.folder import METRICS, SECONDS, Checkpoint, RunFolder
from kinfed.engine.lines import Line, checked_notes
from kinfed.engine.runtime import ClientRuntime
from kinfed.engine.settings import cohort
from kinfed.engine.stopping import ends_early
from kinfed.errors import RunFailed
from kinfed.interrupt import Interrupt, Stopped
from kinfed.learning import adjusted_rand_index, pair_auc
from kinfed.methods import ClientId, Message, ServerState
from kinfed.streams import numpy_stream

__all__ = ["run_rounds", "sampled"]

FAILED_ROUNDS = 3  # consecutive rounds without a usable upload after which a run stops


def sampled(clients: int, participation: float, seed: int, round: int) -> list[ClientId]:
    """Sample the clients of one round, `cohort` of them, uniformly without replacement; ascending numbers.

    >>> len(sampled(clients=10, participation=0.3, seed=0, round=1))
    3

    Args:
        clients: Number N of clients.
        participation: Fraction C of the clients.
        seed: Seed of the run.
        round: Number of the round.
    """
    chosen = numpy_stream(seed, "sampling", round).choice(clients, cohort(clients, participation), replace=False)
    return sorted(int(id) for id in chosen)


def run_rounds(
    runtime: ClientRuntime, executor: Executor, folder: RunFolder, callback: Callback, until: int | None = None
) -> bool:
    """Run the remaining rounds of a run, from its last checkpoint or from the start; return True if it has ended.

    A run ends after its last round, or early if the settings have a patience or an accuracy to stop at. The first
    Ctrl-C, SIGTERM or SIGHUP ends the run after its present round, with a checkpoint; the second one at once.

    Args:
        runtime: Runtime with method, federation, models and settings.
        executor: Executor of the clients' tasks, started with this runtime.
        folder: Folder of the run, for metrics, checkpoints, pictures and models.
        callback: Callback that reports progress.
        until: Round after which the run pauses, with a checkpoint from which it goes on; None to run to the end.

    Raises:
        RunFailed: If three consecutive rounds have no usable upload, the method cannot continue, or the whole run has
            no result: no usable upload, no optimiser step, or no model with finite numbers.
        NotSaved: If the folder is missing or the disk is full.
        InputError: If the folder has checkpoints but no valid one.
        Stopped: If a signal ends the run.
    """
    method, settings = runtime.method, runtime.settings
    start = folder.last_checkpoint() or Checkpoint(0, method.init(runtime.server(0)), {})
    folder.forget_after(start.round)
    ledger = StateLedger(folder.client_states, start.stored, folder.referred())
    state, failed = start.state, _failed_rounds(folder.lines(METRICS))
    participation = settings.share(method)
    reached = {id for line in folder.lines(METRICS) for id in line["clients"]}
    ended = start.round == settings.rounds or ends_early(folder.lines(METRICS), settings.patience, settings.stop_acc)
    pause = settings.rounds if until is None else min(until, settings.rounds)
    callback.started(start.round)
    with Interrupt() as interrupt:
        for round in range(start.round + 1, start.round + 1 if ended else pause + 1):
            clock, told = _Clock(), _Told(callback, interrupt, round)
            present = _Round(round, runtime, executor, folder, told)
            with clock("train"):
                ids = sampled(len(runtime.trained), participation, settings.seed, round)
                answers = present.train(ids, state, ledger.now)
            with clock("aggregate"):
                state = present.aggregate(ids, state, answers, ledger)
                traffic_and_notes = _traffic_and_notes(runtime, round, state, answers, len({*ids} - reached))
                groups = _groups(runtime, state)
            line = {
                "round": round,
                "lr": settings.training_in(round).lr,
                "clients": ids,
                "refused": answers.refused,
                **_names(runtime, answers.refused),
                **_totals(answers.uploads),
                **traffic_and_notes,
                **groups,
            }
            reached.update(ids)
            with clock("evaluate"):
                tested, ended = present.evaluate(state, ledger.now, line)
                line |= tested
            with clock("save"):
                failed = 0 if answers.uploads else failed + 1
                stopping = interrupt.asked  # read once: a later signal waits for the checkpoint of the next round
                stops = bool(stopping) or round == pause or failed >= FAILED_ROUNDS
                present.save(line, state, answers, ledger, ended=ended, stops=stops)
            del answers  # its uploads would be in memory during the next round
            folder.append(SECONDS, {"round": round, **clock.seconds})
            callback.round(line)
            if failed >= FAILED_ROUNDS:
                raise RunFailed(
                    f"no client sent a usable update in {failed} rounds in a row; {_first_reason(runtime, [line])}"
                )
            if asked := stopping or (interrupt.asked if ended or round == pause else None):  # all is saved
                raise Stopped(asked)
            if ended:
                break
    if ended:
        lines = folder.lines(METRICS)
        _check_end(runtime, lines)
        callback.ended(len(lines))
    return ended


def _check_state(runtime: ClientRuntime, round: int, state: ServerState) -> None:
    """Refuse a state of the server that is not finite.

    Raises:
        RunFailed: If a tensor or a number of the state is not finite.
    """
    known = {name: tensor for name, tensor in state.tensors.items() if not name.startswith(runtime.method.unknown)}
    if reason := not_finite(known) or unsound(ServerState({}, state.numbers)):
        raise RunFailed(f"the server's state after round {round} cannot be used: {reason}{_advice(runtime, reason)}")


def _check_end(runtime: ClientRuntime, lines: Sequence[Line]) -> None:
    """Refuse a finished run without a result.

    Raises:
        RunFailed: If no client ever learned anything, or if no model can be tested since none is finite.
    """
    if reason := _nobody_got_on(runtime, lines):
        raise RunFailed(reason)
    tested = lines[-1]["client_acc"].get("personal", [])
    untested = [reason for whose, reason in lines[-1]["untested"].items() if whose == "global" or whose.isdigit()]
    if untested and all(accuracy is None for accuracy in tested) and all(map(diverged, untested)):
        reason = untested[0]
        raise RunFailed(f"no model can be tested; the first reason: {reason}{_advice(runtime, reason)}")


def _nobody_got_on(runtime: ClientRuntime, lines: Sequence[Line]) -> str | None:
    """Return the reason why no client learned anything in the given rounds; None if a client did."""
    working = sum(len(line["clients"]) - len(line["refused"]) for line in lines)
    if not working:
        return f"no client sent a usable update in any round; {_first_reason(runtime, lines)}"
    if working == sum(line["zero_step_clients"] for line in lines):
        size = runtime.settings.training.batch_size
        return f"no client made a training step, since every batch was too small; try a batch_size above {size}"
    return None


def _first_reason(runtime: ClientRuntime, lines: Sequence[Line]) -> str:
    """Return the reason why the first client was refused, with advice."""
    reason = next((reason for line in lines for reason in line["refused"].values()), "no client was sampled")
    return f"the first reason: {reason}{_advice(runtime, reason)}"


def _advice(runtime: ClientRuntime, reason: str) -> str:
    """Return advice for a reason that names values that are not finite; empty for other reasons.

    It names the learning rate and the method's fields above their defaults, which could be smaller.
    """
    if not diverged(reason):
        return ""
    parts = dict.fromkeys((runtime.method.unwrapped, runtime.method))
    floats = [(part, f) for part in parts for f in dataclasses.fields(part) if isinstance(f.default, float)]
    raised = {f.name: own for part, f in floats if (own := getattr(part, f.name)) > f.default}
    told = [f"{name} ({value:g})" for name, value in {"lr": runtime.settings.training.lr, **raised}.items()]
    return f"; try a smaller {' or '.join(told)}"


def _failed_rounds(lines: Sequence[Line]) -> int:
    """Count the consecutive rounds at the end without a usable upload."""
    failed = itertools.takewhile(lambda line: len(line["refused"]) == len(line["clients"]), reversed(lines))
    return sum(1 for _ in failed)


@dataclass
class _Clock:
    """Clock for the parts of a round.

    Attributes:
        seconds: Duration of each finished part in seconds, by name.
    """

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - began, 6)


@dataclass
class _Told:
    """Reporter of a round's progress to the callback, and, once, that the round is the last because of a signal."""

    callback: Callback
    interrupt: Interrupt
    round: int
    last: bool = False

    def __call__(self, what: str, done: int, total: int) -> None:
        self.callback.working(what, done, total)
        if self.interrupt.asked and not self.last:
            self.last = True
            self.callback.stopping(self.round)


@dataclass
class _Answers:
    """Answers of the clients in one round.

    Attributes:
        uploads: Usable uploads by client, in client order.
        keeping: Clients with a usable upload that wrote a state.
        refused: Reasons for unusable uploads, by client.
        down_bytes: Size of the messages to all clients in bytes.
    """

    uploads: dict[ClientId, Message] = field(default_factory=dict)
    keeping: set[ClientId] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    down_bytes: int = 0


@dataclass(frozen=True)
class _Round:
    """Local training of the clients in one round."""

    number: int
    runtime: ClientRuntime
    executor: Executor
    folder: RunFolder
    told: _Told

    def train(self, ids: Sequence[ClientId], state: ServerState, stored: StoredRounds) -> _Answers:
        """Run local training at the sampled clients, and check their uploads.

        Args:
            ids: Sampled clients.
            state: State of the server.
            stored: Round of each client's state.
        """
        method = self.runtime.method
        like, most = method.upload_like(self.runtime.server(self.number)), self.runtime.samples
        answers = _Answers()

        def tasks() -> Iterator[Task]:
            for id in ids:
                message = method.download(state, id)
                answers.down_bytes += message.nbytes
                yield Task(id, self.number, message, stored.get(id))

        for done, (id, answer) in enumerate(self.executor.update(tasks()), start=1):
            if isinstance(answer, Failure):
                answers.refused[str(id)] = self._noted(answer, f"client {self.runtime.federation.name(id)}")
            elif reason := upload_error(answer.upload, like, most):
                answers.refused[str(id)] = reason
            else:
                answers.uploads[id] = answer.upload
                answers.keeping |= {id} if answer.keeps else set()
            self.told("training", done, len(ids))
        answers.uploads = dict(sorted(answers.uploads.items()))
        answers.refused = dict(sorted(answers.refused.items(), key=lambda item: int(item[0])))
        return answers

    def aggregate(
        self, ids: Sequence[ClientId], state: ServerState, answers: _Answers, ledger: StateLedger
    ) -> ServerState:
        """Return the server's next state, and note which clients' states are those of this round."""
        method = self.runtime.method
        if answers.uploads:
            state = method.aggregate(self.runtime.server(self.number), state, answers.uploads)
            _check_state(self.runtime, self.number, state)
        for id in ids:
            if id in answers.uploads:
                ledger.accept(id, self.number, id in answers.keeping)
            else:
                ledger.refuse(id, self.number)
        return state

    def evaluate(self, state: ServerState, stored: StoredRounds, line: Line) -> tuple[Line, bool]:
        """Return the accuracies of the round, if it has an evaluation, and True if it is the last one of the run.

        Args:
            state: State of the server after the round.
            stored: Round of each client's state.
            line: What is known of the round so far.
        """
        settings = self.runtime.settings
        last = self.number == settings.rounds
        vain = last and _nobody_got_on(self.runtime, [*self.folder.lines(METRICS), line])
        if vain or not settings.evaluates(self.number, self.runtime.method):
            return {"global_acc": None, "untested": {}, "client_acc": {}}, last
        tested = self._tested(state, stored, final=last)
        early = (settings.patience, settings.stop_acc)
        asked = early != (None, None) and not last  # all lines are read only if they are needed
        if asked and ends_early([*self.folder.lines(METRICS), line | tested], *early):
            return self._tested(state, stored, final=True), True
        return tested, last

    def _tested(self, state: ServerState, stored: StoredRounds, *, final: bool) -> Line:
        evaluation = Evaluation(self.number, self.runtime, self.executor, self.folder, self.told, final)
        return evaluation.line(state, stored)

    def save(
        self, line: Line, state: ServerState, answers: _Answers, ledger: StateLedger, *, ended: bool, stops: bool
    ) -> None:
        """Write the metrics of the round, and what is due after it: pictures, a checkpoint, the clients' models.

        Args:
            line: Metrics of the round.
            state: State of the server after the round.
            answers: Answers of the clients.
            ledger: Rounds of the client states.
            ended: True if the run ends after this round.
            stops: True if the run stops or pauses after this round, and goes on later.
        """
        settings = self.runtime.settings
        planned = ended or settings.saves(self.number)
        if ended:
            self._save_local(answers)
        self.folder.append(METRICS, line)
        if planned:
            self.folder.save_pictures(self.number, self.runtime.method.pictures(state))
        if planned or stops:
            ledger.sync()
            checkpoint = Checkpoint(self.number, state, ledger.now)
            rounds = self.folder.save_checkpoint(checkpoint, every=settings.checkpoint_every, planned=planned)
            ledger.saved(self.number, rounds)

    def _save_local(self, answers: _Answers) -> None:
        """Save the clients' models of the last round, for comparisons (`kinfed similarity`), if the settings say so."""
        models = models_of(self.folder, self.runtime, "local")
        for id, upload in answers.uploads.items() if self.runtime.settings.save_local else ():
            if upload.tensors.keys() == self.runtime.tensor_names(id):
                told = self.runtime.about_run(self.number) | {"client": id}
                models.save(id, "local", upload.tensors, self.runtime.about_model(id), told)
        models.flush()

    def _noted(self, failure: Failure, where: str) -> str:
        """Return the reason of a failure, and write its traceback to the log of errors."""
        self.folder.note_failure(failure, f"round {self.number}, {where}")
        return failure.reason


def _names(runtime: ClientRuntime, refused: Mapping[str, str]) -> Line:
    """Return the names of the refused clients, by number; nothing if none was refused, or the data have no names."""
    federation = runtime.federation
    named = bool(federation.partition.names and refused)
    return {"refused_names": {id: federation.name(int(id)) for id in refused}} if named else {}


def _totals(uploads: Mapping[ClientId, Message]) -> Line:
    """Compute the mean losses of a round, weighted by samples, and count skipped samples and clients without a step."""
    numbers = [upload.numbers for upload in uploads.values()]
    term = _mean("term", numbers)
    return {  # Python numbers, since a method may give NumPy or torch numbers
        "train_loss": _mean("loss", numbers),
        "train_cross_entropy": _mean("cross_entropy", numbers),
        **({} if term is None else {"train_term": term}),
        "skipped_samples": int(sum(n.get("skipped", 0) for n in numbers)),
        "zero_step_clients": int(sum(n.get("steps", 1) == 0 for n in numbers)),
    }


def _mean(name: str, numbers: Sequence[Mapping[str, float]]) -> float | None:
    """Compute the mean of a number in the uploads, weighted by samples; None if no upload has it."""
    told = [n for n in numbers if name in n]
    return float(sum(n[name] * n["samples"] for n in told) / sum(n["samples"] for n in told)) if told else None


def _traffic_and_notes(
    runtime: ClientRuntime, round: int, state: ServerState, answers: _Answers, newcomers: int
) -> Line:
    """Return the bytes sent in a round, and the method's notes on it, as entries of the round's metrics.

    Public images that a method sends to the clients count once for each client, as stored, in the first round for which
    it is sampled. For pooled methods nothing is sent.

    Args:
        runtime: Runtime of the run.
        round: Number of the round.
        state: State of the server after the round.
        answers: Answers of the clients.
        newcomers: Number of clients that are sampled for the first time.
    """
    method, server, public = runtime.method, runtime.server(round), runtime.federation.public_images
    images = public.inputs.nbytes if public is not None and method.requires.public_images_at_clients else 0
    extra = method.extra_download_bytes(server, state, answers.uploads)
    down = answers.down_bytes + newcomers * images + extra
    up = sum(upload.nbytes for upload in answers.uploads.values())
    travels = method.trains != "pooled"
    notes = method.notes(server, state, answers.uploads, runtime.class_counts)
    return {"down_bytes": down if travels else 0, "up_bytes": up if travels else 0, **checked_notes(notes)}


def _groups(runtime: ClientRuntime, state: ServerState) -> Line:
    """Return the groups that the method has formed, and under a planted shift how well they agree with the true ones.

    The agreement is the adjusted Rand index of the groups, and the AUC of the method's similarity of clients, if it has
    one (`kinfed.learning.pair_auc`).
    """
    found, truth = runtime.method.groups(state), runtime.true_groups
    told: Line = {} if found is None else {"groups": found.tolist()}
    if not truth:
        return told
    if found is not None:
        told["adjusted_rand_index"] = adjusted_rand_index(truth, found.tolist())
    pictures = [picture for picture in runtime.method.pictures(state).values() if picture.similarity]
    if pictures:
        told["pair_auc"] = pair_auc(pictures[0].matrix.double().numpy(), truth)
    return told
