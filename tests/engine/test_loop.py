from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from kinfed.data import ByColumn, make_federation
from kinfed.engine import NoCallback, RunFolder, SerialExecutor, run_rounds
from kinfed.engine.checks import upload_error
from kinfed.engine.executor import Task
from kinfed.engine.loop import sampled
from kinfed.errors import InputError, RunFailed
from kinfed.learning import LocalTraining
from kinfed.methods import METHODS, Client, ClientId, ClientState, Message, Method, Server, ServerState
from kinfed.methods.ditto import Ditto
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.fedper import FedPer
from kinfed.methods.local import Local
from kinfed.methods.scaffold import SCAFFOLD
from kinfed.models import Model, Tensors
from tests.builders import build_runtime, dataset, federation, run, same, serial

# -- who takes part ---------------------------------------------------------------------------------------------------


def test_other_clients_are_sampled_every_round() -> None:  # case 93
    rounds = [sampled(10, 0.3, 0, round) for round in range(1, 21)]
    assert all(len(set(ids)) == 3 for ids in rounds)
    assert len({id for ids in rounds for id in ids}) >= 8
    assert len({tuple(ids) for ids in rounds}) > 10


def test_all_clients_are_as_likely() -> None:
    counts = Counter(id for round in range(2000) for id in sampled(10, 0.3, 1, round))
    assert max(abs(count - 600) for count in counts.values()) < 5 * (2000 * 0.3 * 0.7) ** 0.5


@pytest.mark.parametrize(
    ("clients", "fraction", "count"), [(10, 0.01, 1), (10, 0.29, 2), (10, 0.3, 3), (100, 0.29, 29), (7, 1.0, 7)]
)
def test_the_fraction_is_rounded_down_to_one_at_least(clients: int, fraction: float, count: int) -> None:  # case 71
    assert len(sampled(clients, fraction, 0, 1)) == count


def test_where_fewer_clients_are_there_than_asked_for_those_take_part(tmp_path: Path) -> None:  # case 94
    data = dataset()
    who = tuple(np.arange(len(part)) % 3 for part in (data.train, data.test))
    three = make_federation(replace(data, columns={"who": who}), ByColumn("who"), clients=5, public=24, seed=0)
    lines = run(build_runtime("fedavg", three, rounds=2), tmp_path / "out").lines
    assert [(line["clients"], line["refused"]) for line in lines] == [([0, 1, 2], {})] * 2


def test_all_methods_sample_the_same_clients(tmp_path: Path) -> None:
    lines = [run(build_runtime(name, participation=0.5), tmp_path / name).lines for name in ("fedavg", "fedshibu")]
    assert [line["clients"] for line in lines[0]] == [line["clients"] for line in lines[1]]


# -- what comes back --------------------------------------------------------------------------------------------------

LIKE = {"w": torch.zeros(2), "n": torch.tensor(0)}


def upload(samples: float = 3, loss: float = 1.0, **tensors: torch.Tensor | None) -> Message:
    merged = {"w": torch.ones(2), "n": torch.tensor(1), **tensors}
    return Message({n: t for n, t in merged.items() if t is not None}, {"samples": samples, "loss": loss})


def test_a_good_upload_has_no_fault() -> None:
    assert upload_error(upload(), LIKE, 10) is None


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (upload(w=None), "w is missing"),
        (upload(v=torch.ones(1)), "v is unexpected"),
        (upload(w=torch.ones(3)), r"w has the shape \(3,\), not \(2,\)"),
        (upload(w=torch.ones(2, dtype=torch.float64)), "w has the type torch.float64, not torch.float32"),
        (upload(w=torch.tensor([1, torch.nan])), "w is not finite"),
        (upload(w=torch.tensor([1, torch.inf])), "w is not finite"),
        (upload(loss=float("nan")), "loss is nan"),
        (upload(samples=0), "the sample count is 0; it must be a whole number from 1 to 10"),
        (upload(samples=-5), "the sample count is -5; .*"),
        (upload(samples=2.5), r"the sample count is 2\.5; .*"),
        (upload(samples=11), "the sample count is 11; .*"),
        (upload(samples=1e300), r"the sample count is 1e\+300; .*"),
        (Message(upload().tensors), "the sample count is None; .*"),
    ],
)
def test_faults_are_named(bad: Message, reason: str) -> None:
    import re

    assert re.fullmatch(reason, str(upload_error(bad, LIKE, 10)))


@dataclass(frozen=True, kw_only=True)
class Faulty(FedPer):
    """FedPer, but the clients in ``who`` go wrong in the rounds in ``when``."""

    who: tuple[int, ...]
    when: tuple[int, ...]
    how: str = "raises"

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        upload, kept = super().update(client, message, state)
        if client.id not in self.who or client.round not in self.when:
            return upload, kept
        if self.how == "raises":
            raise OSError("the disk of this client is full")
        return Message({n: t * torch.nan for n, t in upload.tensors.items()}, upload.numbers), kept


@pytest.mark.parametrize(
    ("how", "reason"),
    [("raises", "OSError: the disk of this client is full"), ("nan", "body.conv1.0.weight is not finite")],
)
def test_a_round_goes_on_without_a_client_that_fails(how: str, reason: str, tmp_path: Path) -> None:  # case 95
    outcome = run(build_runtime(Faulty(who=(2,), when=(2,), how=how), rounds=5), tmp_path / "out")
    assert [line["refused"] for line in outcome.lines] == [{}, {"2": reason}, {}, {}, {}]
    one_round = run(build_runtime(FedPer(), rounds=1), tmp_path / "one")
    two = run(build_runtime(Faulty(who=(2,), when=(2,), how=how), rounds=2), tmp_path / "two")
    assert same(two.client_states[2], one_round.client_states[2])  # what it kept is as if it had not taken part
    assert not same(two.client_states[1], one_round.client_states[1])
    assert outcome.lines[1]["up_bytes"] == outcome.lines[0]["up_bytes"] * 3 // 4


def test_the_others_are_averaged_as_if_it_had_not_been_there(tmp_path: Path) -> None:
    fed = federation()
    faulty = run(build_runtime(Faulty(who=(3,), when=(1,)), fed, rounds=1), tmp_path / "faulty")
    runtime = build_runtime(FedPer(), fed, rounds=1)
    state = runtime.method.init(runtime.server(0))
    uploads = {id: runtime.update(id, 1, runtime.method.download(state, id), ClientState())[0] for id in range(3)}
    assert same(faulty.state, runtime.method.aggregate(runtime.server(1), state, uploads))


@dataclass(frozen=True, kw_only=True)
class Sending(FedAvg):
    """Client i sends the i-th vector and its sample count; where there is none, it dies."""

    sends: tuple[tuple[list[float], float] | None, ...]

    def init(self, server: Server) -> ServerState:
        return ServerState(self.upload_like(server))

    def upload_like(self, server: Server) -> Tensors:
        return {"w": torch.zeros(len(self.sends[0][0]))}  # type: ignore[index]

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        sent = self.sends[client.id]
        if sent is None:
            raise ConnectionError("it is gone")
        return Message({"w": torch.tensor(sent[0])}, {"samples": sent[1]}), ClientState()

    def global_model(self, server: Server, state: ServerState) -> None:
        return None


def test_clients_that_all_count_no_samples_are_refused_and_leave_the_state_as_it_was(tmp_path: Path) -> None:  # case 63
    sends = (([1.0, 2.0], 0), ([3.0, 4.0], 0))
    reason = "the sample count is 0; it must be a whole number from 1 to 216"
    with pytest.raises(RunFailed, match=f"^no client sent a usable update in any round; the first reason: {reason}$"):
        run(build_runtime(Sending(sends=sends), federation(clients=2), rounds=1), tmp_path / "out")
    folder = RunFolder(tmp_path / "out")
    assert folder.lines("metrics.jsonl")[0]["refused"] == {"0": reason, "1": reason}
    assert folder.last_checkpoint().state.tensors["w"].tolist() == [0, 0]  # type: ignore[union-attr]


def test_a_client_that_dies_does_not_count_in_the_divisor(tmp_path: Path) -> None:  # case 73
    sends = (([1.0], 10), ([4.0], 20), None)
    outcome = run(build_runtime(Sending(sends=sends), federation(clients=3), rounds=1), tmp_path / "out")
    assert outcome.lines[0]["refused"] == {"2": "ConnectionError: it is gone"}
    assert outcome.state.tensors["w"].item() == 3.0


@pytest.mark.parametrize("name", ["fedavg", "fedper", "fedbabu", "fedshibu", "local"])
def test_a_client_with_nothing_to_train_on_is_refused_and_changes_nothing(name: str, tmp_path: Path) -> None:  # case 62
    fed = federation()
    idle = replace(fed.partition, train=[np.arange(0), *fed.partition.train[1:]])
    outcome = run(build_runtime(name, replace(fed, partition=idle), rounds=2), tmp_path / "out")
    assert [[*line["refused"]] for line in outcome.lines] == [["0"]] * 2
    assert all(line["train_loss"] > 0 and line["zero_step_clients"] == 0 for line in outcome.lines)
    known = [m for message in (outcome.state, *outcome.client_states.values()) for m in message.tensors.items()]
    unknown = ("crsm", "weights")  # of whom was not compared with anybody
    assert all(tensor.isfinite().all() for name, tensor in known if name not in unknown)


def test_a_round_that_brings_nothing_leaves_the_state_as_it_was(tmp_path: Path) -> None:
    everybody = (0, 1, 2, 3)
    outcome = run(build_runtime(Faulty(who=everybody, when=(2,)), rounds=2), tmp_path / "out")
    one_round = run(build_runtime(FedPer(), rounds=1), tmp_path / "one")
    assert len(outcome.lines[1]["refused"]) == 4
    assert outcome.lines[1]["train_loss"] is None
    assert same(outcome.state, one_round.state)


def test_a_run_stops_after_three_rounds_that_brought_nothing_with_all_it_had(tmp_path: Path) -> None:
    runtime = build_runtime(Faulty(who=(0, 1, 2, 3), when=(3, 4, 5)), rounds=9, checkpoint_every=1)
    with pytest.raises(RunFailed, match="3 rounds in a row; the first reason: OSError: the disk"):
        run(runtime, tmp_path / "out")
    folder = RunFolder(tmp_path / "out")
    assert len(folder.lines("metrics.jsonl")) == 5
    assert folder.last_checkpoint().round == 5  # type: ignore[union-attr]


@pytest.mark.slow
def test_only_three_rounds_in_a_row_that_brought_nothing_end_a_run(tmp_path: Path) -> None:  # case 344
    """Fail, good, fail, fail, good, fail, fail, fail; stopped and resumed after every round."""
    everybody, bad = (0, 1, 2, 3), (1, 3, 4, 6, 7, 8)
    done = []
    for rounds in range(1, 11):
        try:
            run(build_runtime(Faulty(who=everybody, when=bad), rounds=rounds, checkpoint_every=1), tmp_path / "stopped")
        except RunFailed as error:
            done.append((rounds, "in a row" in str(error)))
        if done and done[-1][1]:
            break
    assert done == [(1, False), (8, True)]  # after the first alone nobody had got anywhere
    with pytest.raises(RunFailed, match="3 rounds in a row"):
        run(build_runtime(Faulty(who=everybody, when=bad), rounds=10), tmp_path / "straight")
    of_both = [RunFolder(tmp_path / name).lines("metrics.jsonl") for name in ("stopped", "straight")]
    assert [len(lines) for lines in of_both] == [8, 8]
    assert [line["refused"] for line in of_both[0]] == [line["refused"] for line in of_both[1]]


def test_rounds_in_which_nobody_succeeded_end_in_a_failure_and_no_model_is_saved(tmp_path: Path) -> None:  # case 308
    runtime = build_runtime(Faulty(who=(0, 1, 2, 3), when=(1, 2)), rounds=2)
    for _ in range(2):  # and so they do when they are resumed
        with pytest.raises(
            RunFailed, match="usable update in any round; the first reason: OSError: the disk of this cl"
        ):
            run(runtime, tmp_path / "out")
    assert not (tmp_path / "out" / "models").exists()
    assert RunFolder(tmp_path / "out").lines("metrics.jsonl")[-1]["client_acc"] == {}


def test_rounds_in_which_nobody_made_a_step_end_in_a_failure(tmp_path: Path) -> None:  # case 346
    normed = Model({"flatten": nn.Flatten(), "norm": nn.BatchNorm1d(64)}, nn.Linear(64, 10), [])
    one = LocalTraining(lr=0.05, batch_size=1)
    with pytest.raises(
        RunFailed, match=r"^no client made a training step, since every batch was too small; .* above 1$"
    ):
        run(build_runtime("fedavg", rounds=2, training=one, wrap=lambda _: normed), tmp_path / "out")
    assert not (tmp_path / "out" / "models").exists()


# -- what is not finite -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Keeping(FedPer):
    """FedPer whose clients count what was accepted; for ``bad`` clients and rounds memory or upload are not finite."""

    bad: frozenset[tuple[int, int]]
    what: str = "memory"

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        upload, kept = super().update(client, message, state)
        rounds = {**state.numbers, str(client.round): 1}
        bad = (client.id, client.round) in self.bad
        spoilt = {name: tensor * torch.nan for name, tensor in kept.tensors.items()}
        if bad and self.what == "upload":
            upload = Message(
                {**upload.tensors, "body.conv1.0.bias": upload.tensors["body.conv1.0.bias"] / 0}, upload.numbers
            )
        return upload, ClientState(spoilt if bad and self.what == "memory" else kept.tensors, rounds)


@pytest.mark.parametrize("what", ["memory", "upload"])
def test_a_client_that_is_refused_goes_on_from_the_memory_that_was_accepted(what: str, tmp_path: Path) -> None:
    chosen = np.random.default_rng(0).random((4, 7)) < 0.4  # client and round
    bad = frozenset((int(id), int(round) + 1) for id, round in np.argwhere(chosen))
    outcome = run(build_runtime(Keeping(bad=bad, what=what), rounds=7, checkpoint_every=2), tmp_path / "out")
    reason = "its new state: head.weight is not finite" if what == "memory" else "body.conv1.0.bias is not finite"
    for line in outcome.lines:
        assert line["refused"] == {str(id): reason for id in range(4) if (id, line["round"]) in bad}
    for id in range(4):
        accepted = {str(round): 1 for round in range(1, 8) if (id, round) not in bad}
        assert outcome.client_states[id].numbers == accepted
        assert all(tensor.isfinite().all() for tensor in outcome.client_states[id].tensors.values())


def test_with_its_memory_a_clients_upload_is_refused(tmp_path: Path) -> None:  # case 306
    everybody_else = run(build_runtime(Faulty(who=(2,), when=(1,)), rounds=1), tmp_path / "a")
    refused = run(build_runtime(Keeping(bad=frozenset({(2, 1)})), rounds=1), tmp_path / "b")
    assert same(everybody_else.state, refused.state)


@pytest.mark.parametrize(
    ("method", "lr", "told"),
    [
        (
            Ditto(lam=1e30),
            0.05,
            r"its new state: body\.conv1\.0\.weight is not finite; try .* lr \(0\.05\) or lam \(1e\+30\)",
        ),
        (Local(), 1e20, r"in any round; the first reason: loss is nan; try a smaller lr \(1e\+20\)"),
        (FedAvg(), 1e20, r"in any round; the first reason: loss is nan; try a smaller lr \(1e\+20\)"),
        (
            SCAFFOLD(server_lr=1e39),
            0.05,
            r"server's state after round 1 cannot be used: body\..* is not finite; try .* or server_lr \(1e\+39\)",
        ),
    ],
)
def test_a_run_of_which_nothing_is_finite_fails_and_says_what_to_try(
    method: Method, lr: float, told: str, tmp_path: Path
) -> None:  # case 306
    with pytest.raises(RunFailed, match=f"{told}$"):
        run(
            build_runtime(method, training=LocalTraining(lr=lr, batch_size=16, momentum=0.0), rounds=2),
            tmp_path / "out",
        )
    assert not (tmp_path / "out" / "models").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_what_the_server_knows_is_finite_but_for_what_a_method_calls_unknown(name: str, tmp_path: Path) -> None:
    outcome = run(build_runtime(name, participation=0.5, rounds=2), tmp_path / "out")
    unknown = METHODS[name].unknown
    assert all(t.isfinite().all() for n, t in outcome.state.tensors.items() if not n.startswith(unknown))
    assert all(any(n.startswith(prefix) for n in outcome.state.tensors) for prefix in unknown)


def test_weights_that_are_not_finite_are_refused_before_a_run() -> None:
    def spoilt(model: Model) -> Model:
        nn.init.constant_(model.head.bias, torch.inf)
        return model

    with pytest.raises(InputError, match=r"^weights, model: .* cannot be used: head\.bias is not finite$"):
        build_runtime("fedavg", wrap=spoilt)


@dataclass(frozen=True, kw_only=True)
class Recording(FedAvg):
    """FedAvg that writes down in which order it was given the uploads."""

    seen: list[list[ClientId]]

    def aggregate(self, server, state, uploads: Mapping[ClientId, Message]):  # type: ignore[no-untyped-def]
        self.seen.append([*uploads])
        return super().aggregate(server, state, uploads)


def test_uploads_are_combined_in_client_order(tmp_path: Path) -> None:
    method = Recording(seen=[])
    run(build_runtime(method, federation(clients=6), participation=0.5), tmp_path / "out")
    assert all(ids == sorted(ids) for ids in method.seen)
    assert len(method.seen) == 3


class Impatient(NoCallback):
    """Presses Ctrl-C when the first client of round 2 is through."""

    def __init__(self) -> None:
        self.pressed: list[int] = []
        self.told: list[int] = []
        self.done = 0

    def working(self, what: str, done: int, total: int) -> None:
        if self.done == 1 and not self.pressed:
            self.pressed.append(done)
            os.kill(os.getpid(), signal.SIGINT)

    def round(self, line: dict[str, Any]) -> None:
        self.done += 1

    def stopping(self, round: int) -> None:
        self.told.append(round)


def test_ctrl_c_ends_the_run_after_the_present_round_and_resuming_equals_never_having_stopped(tmp_path: Path) -> None:
    runtime, callback = build_runtime("fedper", rounds=4), Impatient()
    (tmp_path / "out").mkdir()
    folder = RunFolder(tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        run_rounds(runtime, serial(runtime, folder), folder, callback)
    assert (callback.pressed, callback.told, callback.done) == ([1], [2], 2)
    assert folder.last_checkpoint().round == 2  # type: ignore[union-attr]
    resumed, straight = run(runtime, tmp_path / "out"), run(build_runtime("fedper", rounds=4), tmp_path / "straight")
    assert resumed.lines == straight.lines
    assert same(resumed.state, straight.state)


class Late(NoCallback):
    """Presses Ctrl-C when a round has been told, which is after it could have been saved."""

    def __init__(self, when: int) -> None:
        self.when = when

    def round(self, line: dict[str, Any]) -> None:
        if line["round"] == self.when:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(
    ("pressed", "every"),
    [
        (2, 2),
        (4, 10),
        *(
            pytest.param(pressed, every, marks=pytest.mark.slow)
            for pressed in (1, 2, 4)
            for every in (1, 2, 10)
            if (pressed, every) not in ((2, 2), (4, 10))
        ),
    ],
)
def test_a_run_that_was_stopped_ends_with_the_files_of_one_that_was_not(
    pressed: int, every: int, tmp_path: Path
) -> None:
    """Found by the kill benchmark: the checkpoint of a stop stayed, and a planned one was deleted in its place."""
    runtime, folder = build_runtime("fedper", rounds=6, checkpoint_every=every), RunFolder(tmp_path / "out")
    folder.path.mkdir()
    with pytest.raises(KeyboardInterrupt):
        run_rounds(runtime, serial(runtime, folder), folder, Late(pressed))
    run(runtime, tmp_path / "out")
    run(build_runtime("fedper", rounds=6, checkpoint_every=every), tmp_path / "straight")
    ends = [
        {str(path.relative_to(end)): path.read_bytes() for path in end.rglob("*") if path.is_file()}
        for end in (tmp_path / "out", tmp_path / "straight")
    ]
    for end in ends:
        end.pop("seconds.jsonl")
    assert ends[0] == ends[1]


@pytest.mark.parametrize(("pressed", "ended"), [(1, 2), (4, 4)])
def test_ctrl_c_after_a_rounds_checkpoint_was_due_ends_the_next_with_one(
    pressed: int, ended: int, tmp_path: Path
) -> None:
    runtime, folder = build_runtime("fedper", rounds=4), RunFolder(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run_rounds(runtime, serial(runtime, folder), folder, Late(pressed))
    last = folder.last_checkpoint()
    assert last is not None
    assert last.round == len(folder.lines("metrics.jsonl")) == ended


# -- what is written down ---------------------------------------------------------------------------------------------


def test_bytes_are_those_of_the_tensors_that_travel(tmp_path: Path) -> None:
    runtime = build_runtime("fedavg", participation=0.5)
    whole = sum(t.nbytes for t in runtime.models[0].tensors().values())
    lines = run(runtime, tmp_path / "out").lines
    assert {(line["down_bytes"], line["up_bytes"]) for line in lines} == {(2 * whole, 2 * whole)}


def test_the_training_loss_weighs_clients_by_their_samples(tmp_path: Path) -> None:
    runtime = build_runtime("fedavg", rounds=1)
    state = runtime.method.init(runtime.server(0))
    told = [runtime.update(id, 1, runtime.method.download(state, id), ClientState())[0].numbers for id in range(4)]
    weighted = np.average([n["loss"] for n in told], weights=[n["samples"] for n in told])
    assert run(runtime, tmp_path / "out").lines[0]["train_loss"] == pytest.approx(float(weighted))


def test_the_learning_rate_of_a_round_follows_the_schedule(tmp_path: Path) -> None:  # case 105
    lines = run(build_runtime("fedavg", rounds=4, lr_schedule="step:0.5"), tmp_path / "out").lines
    assert [line["lr"] for line in lines] == pytest.approx([0.05, 0.05, 0.005, 0.005])


def test_a_run_that_goes_on_after_round_4_has_the_learning_rate_of_round_5(tmp_path: Path) -> None:  # case 105
    class Stops(SerialExecutor):
        def update(self, tasks: Iterable[Task]):  # type: ignore[no-untyped-def]
            for task in tasks:
                if task.round == 5:
                    raise InterruptedError
                yield from super().update([task])

    training = LocalTraining(lr=0.1, batch_size=16)
    runtime = build_runtime("fedavg", rounds=8, training=training, lr_schedule="step:0.25,0.5", checkpoint_every=4)
    with pytest.raises(InterruptedError):
        run(runtime, tmp_path / "out", Stops())
    lines = run(runtime, tmp_path / "out").lines
    assert [line["round"] for line in lines] == [*range(1, 9)]
    assert [line["lr"] for line in lines] == pytest.approx([0.1, 0.1, 0.01, 0.01, *[0.001] * 4])


@dataclass(frozen=True, kw_only=True)
class OfNumPy(FedPer):
    """FedPer that takes NumPy's and torch's numbers for numbers."""

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        upload, kept = super().update(client, message, state)
        told = {"loss": np.float32(1.5), "steps": torch.tensor(2), "skipped": np.int64(3)}
        return Message(upload.tensors, {**upload.numbers, **told}), ClientState(kept.tensors, {"best": np.float32(0.5)})

    def aggregate(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> ServerState:
        numbers = {"best": np.float64(0.9), "gap": np.float32(0.25), "count": np.int64(4), "mu": torch.tensor(0.5)}
        return ServerState(super().aggregate(server, state, uploads).tensors, numbers)


def test_numbers_of_numpy_and_torch_are_saved_as_the_numbers_that_they_are(tmp_path: Path) -> None:  # case 103
    outcome = run(build_runtime(OfNumPy()), tmp_path / "out")
    assert [(line["refused"], line["train_loss"], line["skipped_samples"]) for line in outcome.lines] == [
        ({}, 1.5, 12)
    ] * 3
    assert outcome.state.numbers == {"best": 0.9, "gap": 0.25, "count": 4, "mu": 0.5}
    assert [state.numbers for state in outcome.client_states.values()] == [{"best": 0.5}] * 4


def test_clients_without_test_samples_are_null_in_the_metrics(tmp_path: Path) -> None:
    from dataclasses import replace

    fed = federation()
    cut = replace(fed.partition, test=[np.arange(0), *fed.partition.test[1:]])
    for name in ("fedavg", "fedper"):
        line = run(build_runtime(name, replace(fed, partition=cut), rounds=1), tmp_path / name).lines[0]
        assert line["client_acc"]["personal"][0] is None
        assert None not in line["client_acc"]["personal"][1:]
