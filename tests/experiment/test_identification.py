"""SFTL's Table 1: partitions, what counts as right, and the experiment as a whole on digits (specification E.4)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import kinfed
from kinfed.errors import InputError
from kinfed.experiment.papers.identification import MEASURED, paired, right
from kinfed.models import open_pool


def test_paired_clients_have_a_shard_of_each_class_of_one_pair() -> None:
    labels = np.repeat(np.arange(10), 30)
    cut = paired(labels, labels[::3], 10, np.random.default_rng(0))
    assert [np.bincount(labels[rows], minlength=10).tolist() for rows in cut.train] == [
        [15 if k // 2 == client // 2 else 0 for k in range(10)] for client in range(10)
    ]
    assert sorted(np.concatenate(cut.train).tolist()) == list(range(300))
    assert sorted(np.concatenate(cut.test).tolist()) == list(range(100))


def test_what_is_right_where_shards_are_random() -> None:
    counts = np.zeros((4, 10), dtype=np.int64)
    for client, classes in enumerate([(0, 1), (0, 2), (9, 3), (6, 6)]):
        counts[client, list(classes)] = 5
    assert right("random", [[0], [1], [4], [2]], counts) == {"any of two": 0.75, "unambiguous": 0.5}
    assert right("random", [[1], [1], [1], [2]], counts) == {"any of two": 0.5, "unambiguous": 0.0}
    assert right("random", [[1], [1]], counts[1:3]) == {"any of two": 1.0}  # nobody's classes are of one source
    assert right("paired", [[0], [1], [], [3]], counts[[0, 0, 0, 3]]) == {"paired": 0.5}


@pytest.mark.slow
def test_the_experiment_on_digits(tmp_path: Path) -> None:
    fields = {"data": "digits", "model": "tiny_cnn", "clients": 5, "rounds": 1, "local_epochs": 10, "evaluate_every": 1}
    fields |= {"lr": 0.1, "batch_size": 8}
    table = kinfed.reproduce("sftl-table1", out=tmp_path, quiet=True, seeds=2, **fields)
    cells = json.loads((tmp_path / "table.json").read_text())["cells"]
    assert cells.keys() == {"paired", "any of two", "unambiguous"}
    assert cells["paired"].keys() == {*MEASURED}
    assert all(len(seeds) == 2 for seeds in cells["paired"].values())
    assert min(cells["paired"]["cka"]) >= 0.8  # guessing finds 0.2
    text = table.read_text()
    assert f"| cka | {50 * sum(cells['paired']['cka']):.1f} ± " in text
    assert "| sketched_cka |" in text
    assert text.count("| 79 |") == 1

    sources = open_pool(tmp_path / "repeat 0" / "sources")
    assert [source.name for source in sources] == ["0 and 1", "2 and 3", "4 and 5", "6 and 7", "8 and 9"]
    assert {len(source.card.classes) for source in sources} == {10}
    first = [sources[0].model.tensors()["body.conv1.0.weight"], sources[1].model.tensors()["body.conv1.0.weight"]]
    assert not torch.allclose(*first, atol=0.05)  # they began with weights of their own

    again = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    assert kinfed.reproduce("sftl-table1", out=tmp_path, quiet=True, seeds=2, **fields).read_text() == text
    assert {path: path.stat().st_mtime_ns for path in again} == again  # nothing was trained anew
    with pytest.raises(InputError, match="was started with another config"):
        kinfed.reproduce("sftl-table1", out=tmp_path, quiet=True, seeds=2, **fields | {"rounds": 2})
    with pytest.raises(InputError, match="was trained with batch_size = 8, not 16"):
        kinfed.reproduce("sftl-table1", out=tmp_path, quiet=True, seeds=2, **fields | {"batch_size": 16})


@pytest.mark.slow
def test_sources_and_clients_have_no_image_in_common(tmp_path: Path) -> None:
    fields = {"data": "digits", "model": "tiny_cnn", "clients": 5, "rounds": 1, "local_epochs": 1, "evaluate_every": 1}
    kinfed.reproduce("sftl-table1", out=tmp_path, quiet=True, seeds=1, **fields)
    used = {}
    for partition in ("paired", "random"):
        clients = json.loads((tmp_path / "repeat 0" / f"{partition}.json").read_text())["clients"]
        used[partition] = sorted(row for client in clients for row in client["train"])
    assert used["paired"] == used["random"]
    trained = [json.loads(path.read_text())["train"] for path in (tmp_path / "repeat 0" / "sources").glob("*.json")]
    total = json.loads((tmp_path / "repeat 0" / "paired.json").read_text())["train_samples"]
    assert sum(trained) + len(used["paired"]) == total
    assert abs(sum(trained) - len(used["paired"])) <= 10  # each class is cut in two


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"clients": 7}, "must be 10 classes and a multiple of 5 clients"),
        ({"rounds": 0}, "rounds: 0 is not allowed"),
        ({"shoes": 1}, "field: 'shoes' is not known"),
    ],
)
def test_wrong_fields_are_refused(fields: dict[str, int], told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=told):
        kinfed.reproduce("sftl-table1", out=tmp_path / "out", quiet=True, **{"data": "digits", **fields})
    assert not (tmp_path / "out").exists()
