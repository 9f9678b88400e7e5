"""Clients have the names that the data give them, wherever a report or a command speaks of them."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import kinfed
from kinfed.data import Federation, Partition, from_arrays
from kinfed.display import Display
from kinfed.errors import InputError
from kinfed.methods import Client, ClientState, Message, Picture
from kinfed.methods.fedavg import FedAvg
from kinfed.models import read_tensors
from kinfed.report.figures import clients, partition
from kinfed.report.folders import Run
from kinfed.report.kinship import kinship
from kinfed.report.matrices import matrix_figure
from kinfed.report.notes import notes
from tests.report.test_table import made

NAMES = ("3", "<b>\n", "north", "x" * 200)
SHORT = ["3", "&lt;b&gt;", "north", "x" * 15 + "…"]


def of_four(**more: Any) -> Run:
    line = {"round": 3, "client_acc": {"personal": [0.5] * 4}}
    run = made("fedavg", 0.5, lines=[line], **more)
    run.federation.update(names=[*NAMES], train=[[3, 1], [1, 2], [2, 2], [1, 3]], test=[1] * 4)
    return run


def test_axes_and_hovering_text_have_short_names() -> None:
    run = of_four()
    assert sorted(partition(run).data[0].y) == sorted(SHORT)
    assert clients([run]).data[0].text[1:3] == ("client &lt;b&gt;, seed 0", "client north, seed 0")
    run.pictured[3] = {"alike": Picture(torch.eye(4), "Alike", "clients", "clients", similarity=True)}
    (shown,) = matrix_figure(run, "alike").data
    assert [*shown.x] == [*shown.y] == [*partition(run).data[0].y]  # the same order everywhere
    assert sorted(kinship(run, "alike")[1].figure.data[0].x) == sorted(SHORT)
    run.federation["groups"] = [0, 0, 1, 1]
    assert [*partition(run).data[1].y] == SHORT


def test_without_names_clients_have_numbers() -> None:
    run = of_four()
    del run.federation["names"]
    assert sorted(partition(run).data[0].y) == [*"0123"]
    assert run.client_name(4) == "4"


def test_notes_name_the_clients_that_were_refused() -> None:
    reason = {"reason": "it is gone", "times": 2}
    told = {
        "refused": 2, "refusals": [reason | {"first": {"round": 1, "client": "2"}}],
        "untested": 2, "untested_reasons": [reason | {"first": {"round": 3, "client": "1, fine_tuned"}}],
    }  # fmt: skip
    refused, untested = notes([of_four(summary=told)])
    assert "it is gone (first: round 1, client north)" in refused
    assert "it is gone (first: round 3, client <b>, fine_tuned)" in untested


def test_progress_names_the_clients_that_were_refused() -> None:
    console = Console(file=io.StringIO(), width=300)
    line = {
        "round": 1,
        "refused": {"0": "bad", "3": "worse", "4": "worst"},
        "refused_names": {"0": "[b]", "3": "x" * 99},
    }
    Display(console).run("fedavg", 0, 9).round(line)
    told = console.file.getvalue()  # type: ignore[attr-defined]
    assert "round 1, upload of client [b] refused: bad\n" in told
    assert f"round 1, upload of client {'x' * 23}… refused: worse\n" in told
    assert "round 1, upload of client 4 refused: worst\n" in told


@dataclass(frozen=True, kw_only=True)
class Failing(FedAvg):
    """FedAvg with a client whose work fails."""

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        if client.id == 2:
            raise OSError("the disk is full")
        return super().update(client, message, state)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of clients 3, <b>, north and others, of which north fails, with the names of two new ones."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(48, 3)), np.arange(48) % 2
    rows = np.split(np.arange(48), 6)
    cut = Partition(rows[:4], rows[:4], names=NAMES)
    new = Partition(rows[4:], rows[4:], names=("south", "3 new"))
    federation = Federation(from_arrays(x, y, x, y), cut, np.arange(0), new)
    out = tmp_path_factory.mktemp("named") / "run"
    fields: dict[str, Any] = {"model": "mlp", "rounds": 1, "save_local": True, "quiet": True}
    return kinfed.run(Failing(), data=federation, out=out, **fields).path


def test_files_and_frame_have_the_names(run: Path) -> None:
    (line,) = (json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines())
    assert line["refused"] == {"2": "OSError: the disk is full"}
    assert line["refused_names"] == {"2": "north"}
    assert (run / "errors.log").read_text().startswith("round 1, client north: OSError: the disk is full")
    told = json.loads((run / "federation.json").read_text())
    assert (told["names"], told["new_names"]) == ([*NAMES], ["south", "3 new"])
    frame = kinfed.open_result(run).frame()
    assert frame["name"].tolist() == [*NAMES, "south", "3 new"]


def test_a_model_is_loaded_by_the_name_of_its_client(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "own"
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)), np.arange(40) % 2
    rows = np.split(np.arange(40), 4)
    data = Federation(from_arrays(x, y, x, y), Partition(rows, rows, names=NAMES), np.arange(0))
    kinfed.run("local", data=data, model="mlp", rounds=1, out=out, quiet=True)

    def head(client: int | str) -> torch.Tensor:
        return kinfed.load(out, client=client).model.tensors()["head.weight"]

    own = [read_tensors(out / "models" / f"client-0000{i}-personal.safetensors")[0]["head.weight"] for i in range(4)]
    assert [head(i).equal(own[i]) for i in range(4)] == [True] * 4
    assert [head(name).equal(own[i]) for i, name in enumerate(NAMES)] == [True] * 4
    assert not own[0].equal(own[3])  # "3" is the name of the first client, and 3 the number of the last one
    with pytest.raises(InputError, match=r"^client: '2' is not known; allowed: 3, <b> , north, x+"):
        kinfed.load(out, client="2")
    with pytest.raises(InputError, match="did you mean north"):
        kinfed.load(out, client="nord")
    unnamed = replace(data, partition=replace(data.partition, names=()))
    kinfed.run("local", data=unnamed, model="mlp", rounds=1, out=tmp_path / "unnamed", quiet=True)
    with pytest.raises(InputError, match=r"^client: '3' is not allowed; the clients of .* have numbers, not names$"):
        kinfed.load(tmp_path / "unnamed", client="3")
