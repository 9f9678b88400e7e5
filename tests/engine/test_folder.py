from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from kinfed.engine.folder import Checkpoint, RunFolder, write_whole
from kinfed.methods import Memory, Message, State
from tests.worlds import same


def checkpoint(round: int) -> Checkpoint:
    state = State({"body.w": torch.full((2, 3), float(round)), "n": torch.tensor(round)}, {"mu": 0.1})
    return Checkpoint(round, state, {3: Memory({"head.w": torch.arange(3.0)}, {"d": 2.5}), 12: Memory()})


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    RunFolder(tmp_path).save_checkpoint(checkpoint(7))
    read = RunFolder(tmp_path).last_checkpoint()
    assert read is not None
    assert read.round == 7
    assert same(read.state, checkpoint(7).state)
    assert read.memories.keys() == {3, 12}
    assert same(read.memories[3], checkpoint(7).memories[3])
    assert same(read.memories[12], Memory())


def test_tensors_that_share_memory_are_saved_whole(tmp_path: Path) -> None:
    rows = torch.arange(3.0).expand(4, 3)
    RunFolder(tmp_path).save_checkpoint(Checkpoint(1, State({"rows": rows}), {}))
    read = RunFolder(tmp_path).last_checkpoint()
    assert read is not None
    assert torch.equal(read.state.tensors["rows"], rows)


def test_the_latest_is_that_of_the_highest_round_whatever_the_files_times(tmp_path: Path) -> None:  # case 108
    folder = RunFolder(tmp_path)
    folder.save_checkpoint(checkpoint(9))
    folder.save_checkpoint(checkpoint(10))
    os.utime(tmp_path / "checkpoints" / "round-000009.safetensors")
    os.utime(tmp_path / "checkpoints" / "round-000010.safetensors", (0, 0))
    assert folder.last_checkpoint().round == 10  # type: ignore[union-attr]


def test_two_checkpoints_are_kept(tmp_path: Path) -> None:
    for round in (1, 2, 3, 4):
        RunFolder(tmp_path).save_checkpoint(checkpoint(round))
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["round-000003.safetensors", "round-000004.safetensors"]


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path: Path, damage: bytes | None) -> None:
    folder = RunFolder(tmp_path)
    folder.save_checkpoint(checkpoint(1))
    folder.save_checkpoint(checkpoint(2))
    path = tmp_path / "checkpoints" / "round-000002.safetensors"
    path.write_bytes(path.read_bytes()[:-8] if damage is None else damage)
    with pytest.warns(UserWarning, match=r"round-000002.safetensors cannot be used"):
        assert folder.last_checkpoint().round == 1  # type: ignore[union-attr]


def test_what_a_kill_left_half_written_is_never_chosen(tmp_path: Path) -> None:  # case 107
    folder = RunFolder(tmp_path)
    folder.save_checkpoint(checkpoint(1))
    whole = (tmp_path / "checkpoints" / "round-000001.safetensors").read_bytes()
    (tmp_path / "checkpoints" / "round-000002.safetensors.unfinished").write_bytes(whole[:100])
    assert folder.last_checkpoint().round == 1  # type: ignore[union-attr]


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
