from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from kinfed.engine.client_store import ClientStore, StateLedger
from kinfed.engine.folder import RUN_FILES, Checkpoint, RunFolder
from kinfed.errors import InputError
from kinfed.files import clear_unfinished, write_whole
from kinfed.methods import ClientState, Message, ServerState
from kinfed.models import build, checksum, read_tensors, save_tensors
from tests.builders import same

MEMORY = ClientState({"head.w": torch.arange(3.0)}, {"d": 2.5})


def checkpoint(round: int) -> Checkpoint:
    state = ServerState({"body.w": torch.full((2, 3), float(round)), "n": torch.tensor(round)}, {"mu": 0.1})
    return Checkpoint(round, state, {3: 1})


def save(folder: RunFolder, *rounds: int) -> None:
    """Rounds with a line of metrics and a checkpoint each; client 3 took part in the first one."""
    folder.client_states.write(3, 1, MEMORY)
    for round in range(1, max(rounds) + 1):
        if round not in {line["round"] for line in folder.lines("metrics.jsonl")}:
            folder.append("metrics.jsonl", {"round": round})
        if round in rounds:
            folder.save_checkpoint(checkpoint(round))


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    save(RunFolder(tmp_path, {"lr": 0.1, "betas": (1, 2)}), 7)
    folder = RunFolder(tmp_path, {"lr": 0.1, "betas": (1, 2)})
    read = folder.last_checkpoint()
    assert read is not None
    assert (read.round, read.stored) == (7, {3: 1})
    assert same(read.state, checkpoint(7).state)
    assert same(folder.client_states.read(3, 1), MEMORY)
    assert same(folder.client_states.read(12, None), ClientState())


def test_tensors_that_share_memory_are_saved_whole(tmp_path: Path) -> None:
    rows = torch.arange(3.0).expand(4, 3)
    RunFolder(tmp_path).append("metrics.jsonl", {"round": 1})
    RunFolder(tmp_path).save_checkpoint(Checkpoint(1, ServerState({"rows": rows, "a": rows[0], "b": rows[0]}), {}))
    read = RunFolder(tmp_path).last_checkpoint()
    assert read is not None
    assert torch.equal(read.state.tensors["rows"], rows)
    assert torch.equal(read.state.tensors["a"], read.state.tensors["b"])


def test_the_latest_is_that_of_the_highest_round_whatever_the_files_times(tmp_path: Path) -> None:  # case 108
    folder = RunFolder(tmp_path)
    save(folder, 9, 10)
    os.utime(tmp_path / "checkpoints" / "round-000009.safetensors")
    os.utime(tmp_path / "checkpoints" / "round-000010.safetensors", (0, 0))
    assert folder.last_checkpoint().round == 10  # type: ignore[union-attr]


def test_two_checkpoints_are_kept(tmp_path: Path) -> None:
    save(RunFolder(tmp_path), 1, 2, 3, 4)
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["round-000003.safetensors", "round-000004.safetensors"]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


def flip_a_bit(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1]))


def replace_by_another(path: Path) -> None:
    save_tensors(path, {"w": torch.zeros(2)}, {"anything": 1})


@pytest.mark.parametrize(
    "damage", [lambda p: p.write_bytes(b""), lambda p: p.write_bytes(b"garbage"), cut, flip_a_bit, replace_by_another]
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    folder = RunFolder(tmp_path)
    save(folder, 1, 2)
    path = tmp_path / "checkpoints" / "round-000002.safetensors"
    damage(path)
    with pytest.warns(UserWarning, match=r"round-000002.safetensors cannot be used"):
        assert folder.last_checkpoint().round == 1  # type: ignore[union-attr]


def test_each_single_bit_that_is_flipped_in_a_file_is_refused(tmp_path: Path) -> None:  # case 304
    path = tmp_path / "files" / "round-000004.safetensors"
    tensors = {"body.w": torch.arange(3.0), "n": torch.tensor(4)}
    save_tensors(path, tensors, {"round": 4, "numbers": {"mu": 0.1}, "kept": {"3": 1}})
    whole = path.read_bytes()
    for at in range(8 * len(whole)):
        path.write_bytes(whole[: at // 8] + bytes([whole[at // 8] ^ 1 << at % 8]) + whole[at // 8 + 1 :])
        with pytest.raises(ValueError, match=r"^it "):
            read_tensors(path)
    path.write_bytes(whole)
    assert read_tensors(path)[1] == {"round": 4, "numbers": {"mu": 0.1}, "kept": {"3": 1}}


def test_a_file_of_before_the_checksum_covered_all_is_still_read(tmp_path: Path) -> None:
    tensors = {"w": torch.arange(3.0)}
    path, about = tmp_path / "old.safetensors", {"round": 4, "crc32": checksum(tensors)}
    save_file(tensors, path, {"about": json.dumps(about)})
    assert read_tensors(path)[1] == {"round": 4}
    save_file(tensors, path, {"about": json.dumps({**about, "crc32": 1})})
    with pytest.raises(ValueError, match="damaged"):
        read_tensors(path)


def test_a_checkpoint_under_the_name_of_another_round_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    save(folder, 1, 2)
    path = tmp_path / "checkpoints" / "round-000002.safetensors"
    path.write_bytes((tmp_path / "checkpoints" / "round-000001.safetensors").read_bytes())
    refused(folder, "round-000002.safetensors cannot be used: it is of round 1")


def refused(folder: RunFolder, reason: str) -> None:
    """The last of two checkpoints is refused, and the one before is used."""
    with pytest.warns(UserWarning, match=reason):
        last = folder.last_checkpoint()
    assert last is not None
    assert last.round == 1


@pytest.mark.parametrize(
    ("identity", "reason"),
    [
        ({"lr": 0.2, "data": "digits"}, "belongs to another config, with lr = 0.1 instead of 0.2"),
        ({"lr": 0.1}, "with data = 'digits' instead of None"),
    ],
)
def test_a_checkpoint_of_another_config_is_refused_by_name(
    tmp_path: Path, identity: dict[str, Any], reason: str
) -> None:
    save(RunFolder(tmp_path, identity), 1)
    save(RunFolder(tmp_path, {"lr": 0.1, "data": "digits"}), 2)
    refused(RunFolder(tmp_path, identity), reason)


def test_a_checkpoint_of_another_version_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(RunFolder(tmp_path), 1)
    monkeypatch.setattr("kinfed.engine.folder.CHECKPOINT_VERSION", 99)
    save(RunFolder(tmp_path), 2)
    monkeypatch.undo()
    refused(RunFolder(tmp_path), "has version 99, not 2")


def test_a_checkpoint_whose_rounds_are_not_in_the_metrics_is_refused(tmp_path: Path) -> None:
    save(RunFolder(tmp_path), 1, 2)
    (tmp_path / "metrics.jsonl").write_text('{"round": 1}\n')
    refused(RunFolder(tmp_path), r"metrics\.jsonl does not have all of its rounds")


@pytest.mark.parametrize("damage", [Path.unlink, cut, flip_a_bit])
def test_a_checkpoint_with_a_damaged_memory_is_refused(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    folder = RunFolder(tmp_path)
    save(folder, 1, 2)
    folder.client_states.write(3, 2, MEMORY)
    folder.save_checkpoint(Checkpoint(2, checkpoint(2).state, {3: 2}))
    damage(tmp_path / "memories" / "000" / "client-00003-round-000002.safetensors")
    refused(folder, "the state of client 3 after round 2 cannot be used")


def test_checkpoints_none_of_which_can_be_used_end_the_run_with_the_reasons(tmp_path: Path) -> None:
    save(RunFolder(tmp_path, {"lr": 0.1}), 1, 2)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    reasons = r"round-000002.*lr = 0\.1.*round-000001.*delete the folder checkpoints to start the run anew"
    with pytest.warns(UserWarning, match="another config"), pytest.raises(InputError, match=reasons):
        RunFolder(tmp_path, {"lr": 0.2}).last_checkpoint()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_memory_stays_as_long_as_a_checkpoint_needs_it_and_no_longer(tmp_path: Path) -> None:
    client_states = ClientStore(tmp_path / "memories")
    there = lambda: sorted(int(path.stem[-6:]) for path in client_states.folder.rglob("*.safetensors"))  # noqa: E731
    ledger = StateLedger(client_states, {}, {})
    for round in (1, 2, 3):
        client_states.write(5, round, MEMORY)
        ledger.accept(5, round, keeps=True)
    assert there() == [3]
    ledger.saved(3, [3])
    for round in (4, 5):
        client_states.write(5, round, MEMORY)
        ledger.accept(5, round, keeps=True)
    assert there() == [3, 5]
    ledger.saved(5, [5, 3])
    client_states.write(5, 6, MEMORY)
    ledger.refuse(5, 6)
    assert there() == [3, 5]
    client_states.write(5, 7, MEMORY)
    ledger.accept(5, 7, keeps=True)
    ledger.saved(7, [7, 5])
    assert there() == [5, 7]
    ledger.accept(5, 8, keeps=False)
    assert ledger.now == {}
    assert there() == [5, 7]


def test_a_client_may_give_up_its_memory_before_a_checkpoint(tmp_path: Path) -> None:
    client_states = ClientStore(tmp_path / "memories")
    ledger = StateLedger(client_states, {}, {})
    client_states.write(5, 1, MEMORY)
    ledger.accept(5, 1, keeps=True)
    ledger.accept(5, 2, keeps=False)
    ledger.sync()  # there is nothing left to flush
    assert ledger.now == {}


def test_memories_that_no_checkpoint_needs_are_deleted_when_a_run_goes_on(tmp_path: Path) -> None:
    client_states = ClientStore(tmp_path / "memories")
    for round in (1, 2, 3, 4):
        client_states.write(1234, round, MEMORY)
    StateLedger(client_states, {1234: 3}, {9: {1234: 3}, 2: {1234: 1}})
    assert sorted(path.name for path in client_states.folder.rglob("*.safetensors")) == [
        "client-01234-round-000001.safetensors", "client-01234-round-000003.safetensors",
    ]  # fmt: skip


def test_what_a_kill_left_half_written_is_never_chosen(tmp_path: Path) -> None:  # case 107
    folder = RunFolder(tmp_path)
    save(folder, 1)
    whole = (tmp_path / "checkpoints" / "round-000001.safetensors").read_bytes()
    (tmp_path / "checkpoints" / "round-000002.safetensors.unfinished").write_bytes(whole[:100])
    assert folder.last_checkpoint().round == 1  # type: ignore[union-attr]


@pytest.mark.slow
def test_a_run_killed_while_it_saves_always_has_a_whole_checkpoint(tmp_path: Path) -> None:  # case 107
    folder, moments = RunFolder(tmp_path), random.Random(0)

    def state(round: int) -> Checkpoint:
        return Checkpoint(round, ServerState({"w": torch.full((250_000,), float(round))}), {})

    save(folder, 1)
    last, half_written = 1, 0
    for _ in range(20):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads; the child uses none of them
            child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                for round in range(last + 1, last + 1000):
                    folder.append("metrics.jsonl", {"round": round})
                    folder.save_checkpoint(state(round))
            os._exit(1)
        time.sleep(moments.uniform(0.005, 0.03))
        os.kill(child, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        half_written += len([*(tmp_path / "checkpoints").iterdir()]) - len(folder._checkpoints())
        found = folder.last_checkpoint()  # a warning that one is damaged would fail the test
        assert found is not None
        assert found.round >= last
        assert found.round == 1 or same(found.state, state(found.round).state)
        last = found.round
        folder.forget_after(last)
        clear_unfinished(tmp_path, RUN_FILES)
    assert half_written


def test_a_checkpoint_holds_the_weights_of_its_round_whatever_training_did_since(tmp_path: Path) -> None:  # case 104
    folder, model, states = RunFolder(tmp_path), build("mlp", (1, 2, 2), 2, 0), []
    for round, accuracy in ((1, 0.5), (2, 0.9), (3, 0.6)):
        torch.nn.init.constant_(model.head.weight, round)
        states.append(ServerState(model.tensors()))
        folder.append("metrics.jsonl", {"round": round, "global_acc": accuracy})
        folder.save_checkpoint(Checkpoint(round, states[-1], {}))
    torch.nn.init.constant_(model.head.weight, 4.0)
    assert [float(state.tensors["head.weight"].mean()) for state in states] == [1, 2, 3]
    best = max(folder.lines("metrics.jsonl"), key=lambda line: line["global_acc"])["round"]
    read, _ = read_tensors(tmp_path / "checkpoints" / f"round-{best:06d}.safetensors")
    assert (read["head.weight"] == 2).all()


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert RunFolder(tmp_path).last_checkpoint() is None


def test_a_line_cut_short_is_left_out_and_later_rounds_are_forgotten(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for round in (1, 2, 3):
        folder.append("metrics.jsonl", {"round": round, "acc": 0.1 * round})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 4, "ac')
    assert [line["round"] for line in folder.lines("metrics.jsonl")] == [1, 2, 3]
    folder.forget_after(2)
    assert folder.lines("metrics.jsonl") == [{"round": 1, "acc": 0.1}, {"round": 2, "acc": 0.2}]
    assert [json.loads(line)["round"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [1, 2]


def test_a_text_is_replaced_whole(tmp_path: Path) -> None:
    write_whole(tmp_path / "a.txt", "one")
    write_whole(tmp_path / "a.txt", "two")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "two"


def test_messages_count_the_bytes_of_their_tensors() -> None:
    message = Message({"a": torch.zeros(3), "b": torch.zeros(2, dtype=torch.int64)}, {"samples": 1})
    assert message.nbytes == 3 * 4 + 2 * 8
