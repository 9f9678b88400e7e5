"""What a method shows and says of its rounds is told by the engine and the report, which know no method."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import kinfed
from kinfed.errors import RunFailed
from kinfed.methods import ClientId, Message, Picture, Server, ServerState
from kinfed.methods.fedavg import FedAvg
from kinfed.models import save_tensors
from kinfed.report.folders import Run, read_runs
from kinfed.report.matrices import matrix_figure, shows_kinship
from kinfed.report.page import write_report
from kinfed.report.round_notes import note_curves, note_table
from tests.builders import build_runtime, run

CONFIG: dict[str, Any] = {"clients": 4, "partition": "iid", "rounds": 2, "ft_epochs": 0, "quiet": True}


@dataclass(frozen=True, kw_only=True)
class Toy(FedAvg):
    """FedAvg with a picture, notes of its rounds, an outcome and something more to download."""

    def extra_download_bytes(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> int:
        return 1000 * len(uploads)

    def notes(
        self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message], class_counts: NDArray[np.int64]
    ) -> dict[str, Any]:
        weights = state.tensors["head.weight"]
        return {
            "mean_weight": weights.mean().item(),
            "mood": f"<b>calm</b> in round {server.round}",
            "per_client": {str(id): upload.numbers["samples"] for id, upload in uploads.items()},
            **({"classes_seen": int((class_counts.sum(axis=0) > 0).sum())} if server.round == 1 else {}),
        }

    def pictures(self, state: ServerState) -> Mapping[str, Picture]:
        head = state.tensors["head.weight"].double()
        bias = Picture(state.tensors["head.bias"][None].double(), "Bias of the head", ["bias"], "classes", -1.0, 1.0)
        return {"rows": Picture(head @ head.T, "Rows of the head", "classes", "classes"), "bias": bias}

    def outcome(
        self, server: Server, lines: Sequence[Mapping[str, Any]], class_counts: NDArray[np.int64]
    ) -> dict[str, Any]:
        return {"moods": [line["mood"] for line in lines], "sources_seen": len(server.sources)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kinfed.run(Toy(), out=tmp_path_factory.mktemp("toy") / "out", **CONFIG).path


def test_the_page_has_the_pictures_and_the_notes_of_a_method_that_it_does_not_know(
    folder: Path, tmp_path: Path
) -> None:
    page = write_report([folder], tmp_path / "r.html").read_text()
    (row,) = {json.loads((folder / "summary.json").read_text())["method"]}
    for heading in ("Rows of the head", "Bias of the head", "Round by round", "Notes"):
        assert f"<h2>{heading}: {row.replace('<', '&lt;').replace('>', '&gt;')}</h2>" in page
    for told in ("mean weight", "&lt;b&gt;calm&lt;/b&gt; in round 2", "classes seen"):
        assert told in page
    with Image.open(tmp_path / "r.png") as picture:
        assert picture.size[1] > picture.size[0]  # a row of panels more than without pictures


def test_notes_and_outcomes_stand_in_the_files_of_the_run(folder: Path) -> None:
    (read,) = read_runs([folder])
    assert [line["per_client"].keys() for line in read.lines] == [{"0", "1", "2", "3"}] * 2
    assert read.summary["moods"] == [line["mood"] for line in read.lines]
    assert (read.summary["vote"], read.summary["collapsed"]) == (None, [])
    plain = kinfed.run(FedAvg(), out=folder.parent / "plain", **CONFIG).summaries[0]
    assert read.summary["communication"]["down_bytes"] - plain["communication"]["down_bytes"] == 2 * 4 * 1000


def test_a_picture_is_drawn_with_its_own_words(folder: Path) -> None:
    (read,) = read_runs([folder])
    (rows,), (bias,) = matrix_figure(read, "rows").data, matrix_figure(read, "bias").data
    assert list(rows.x) == list(rows.y) == [str(digit) for digit in range(10)]
    assert (list(bias.y), bias.zmin, bias.zmax) == (["bias"], -1, 1)
    assert rows.zmin == pytest.approx(read.pictures["rows"].matrix.min().item())
    assert not any(shows_kinship(read, picture) for picture in read.pictures.values())


def test_numbers_are_curves_and_what_is_said_once_is_in_the_table(folder: Path) -> None:
    runs = read_runs([folder])
    (panel,) = note_curves(runs)
    assert panel.heading == "mean weight"
    assert [trace.y[1] for trace in panel.figure.data] == [runs[0].lines[1]["mean_weight"]]
    rows = [[cell.text for cell in row] for row in note_table(runs).rows]
    assert rows == [["classes seen", "10", "1"], ["mood", "<b>calm</b> in round 2", "2"]]


@dataclass(frozen=True, kw_only=True)
class Saying(FedAvg):
    """FedAvg with one note."""

    key: str = "mine"
    value: float = 1.0

    def notes(
        self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message], class_counts: NDArray[np.int64]
    ) -> dict[str, Any]:
        return {self.key: self.value}


@pytest.mark.parametrize("key", ["round", "train_loss", "global_acc", "client_acc", "mine_acc_mean"])
def test_a_note_under_a_name_of_kinfeds_own_is_refused(key: str, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=f"the method's notes: '{key}' is a key of kinfed itself"):
        run(build_runtime(Saying(key=key)), tmp_path / "out")


def test_a_note_that_is_no_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="the method's notes: 'mine' cannot be written as JSON"):
        run(build_runtime(Saying(value=math.nan)), tmp_path / "out")


def without_words(folder: Path, matrices: dict[str, torch.Tensor]) -> Run:
    for path in (folder / "pictures").glob("*"):
        save_tensors(path, matrices, {"round": 2})
    (read,) = read_runs([folder])
    return read


@pytest.mark.slow
def test_pictures_of_older_runs_have_no_words_and_are_shown_nevertheless(tmp_path: Path) -> None:
    folder = kinfed.run("fedshibu", out=tmp_path / "out", **CONFIG).path
    (now,) = read_runs([folder])
    assert [picture.similarity for picture in now.pictures.values()] == [True, False]
    matrices = {name: picture.matrix for name, picture in now.pictures.items()}
    older = without_words(folder, {**matrices, "wide": torch.ones(2, 3)})
    assert older.pictures["crsm"].words == now.pictures["crsm"].words
    assert not older.pictures["weights"].similarity
    assert matrix_figure(older, "wide").data[0].z.shape == (2, 3)
    assert "Similarity of the clients: fedshibu" in write_report([folder], tmp_path / "r.html").read_text()
