"""Formats of one's own: LEAF's JSON, one file outside of the package."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinfed.data import FORMATS, as_dataset, load, make_federation
from kinfed.data.loading import find
from kinfed.errors import InputError
from tests.builders import installed_package
from tests.data.test_loading import grey, write
from tests.test_cli import kinfed as command  # noqa: F401 - the fixture

LEAF = '''
"""LEAF's JSON: who has which samples, in files below train and test."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from kinfed.data import Split


@dataclass(frozen=True)
class Leaf:
    """Files ``train/*.json`` and ``test/*.json`` with ``users`` and their ``user_data``."""

    train: tuple
    test: tuple

    @classmethod
    def find(cls, path):
        train, test = (tuple(sorted((path / split).glob("*.json"))) for split in ("train", "test"))
        return cls(train, test) if train and test else None

    def paths(self):
        return [*self.train, *self.test]

    def read(self):
        return [split(file) for file in self.train], [split(file) for file in self.test]


def split(file):
    told = json.loads(file.read_text())
    data = [told["user_data"][user] for user in told["users"]]
    return Split(
        str(file),
        np.concatenate([np.array(own["x"], dtype=np.float32) for own in data]),
        np.concatenate([np.array(own["y"]) for own in data]),
        {"user": np.repeat(told["users"], told["num_samples"])},
    )
'''


def leaf(folder: Path, value: float = 0.5) -> Path:
    """Three users with 4, 5 and 6 training samples and two test samples each, in two files a split."""
    for split, sizes in (("train", (4, 5, 6)), ("test", (2, 2, 2))):
        (folder / split).mkdir(parents=True, exist_ok=True)
        for name, users in (("a", (0, 1)), ("b", (2,))):
            told = {
                "users": [f"u{u}" for u in users],
                "num_samples": [sizes[u] for u in users],
                "user_data": {
                    f"u{u}": {"x": [[u / 4, value]] * sizes[u], "y": [i % 2 for i in range(sizes[u])]} for u in users
                },
            }
            (folder / split / f"{name}.json").write_text(json.dumps(told))
    return folder


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A working directory with the file ``own_leaf.py``, which is forgotten afterwards."""
    (tmp_path / "own_leaf.py").write_text(LEAF)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("own_leaf", None)


@pytest.fixture
def installed(module: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The same as a package with an entry point."""
    with installed_package(tmp_path, "own-leaf", "0.3", "[kinfed.formats]\nours = own_leaf:Leaf\n", monkeypatch):
        yield


@pytest.mark.usefixtures("module")
def test_a_format_is_named_by_its_import_path(tmp_path: Path) -> None:
    name = f"own_leaf:Leaf:{leaf(tmp_path / 'data')}"
    data = load(name)
    assert (data.name, data.shape, data.classes) == (name, (2,), ("0", "1"))
    assert data.columns["user"][0].tolist() == ["u0"] * 4 + ["u1"] * 5 + ["u2"] * 6
    fed = make_federation(data, "by:user", clients=9, public=0, seed=0)
    assert fed.partition.names == ("u0", "u1", "u2")
    assert [len(rows) for rows in fed.partition.train] == [4, 5, 6]
    assert [len(rows) for rows in fed.partition.test] == [2, 2, 2]
    assert set(fed.train(2).inputs[:, 0].tolist()) == {0.5}


@pytest.mark.usefixtures("module")
def test_the_commands_take_it(command: Any, tmp_path: Path) -> None:  # noqa: F811
    leaf(tmp_path / "data")
    fields = ("--data", "own_leaf:Leaf:data", "--partition", "by:user", "--clients", "3", "--public", "0")
    code, out, err = command("partition", *fields, "--out", "o")
    assert (code, err) == (0, "")
    assert "own_leaf:Leaf:data, partition by:user, seed 0: 15 training and 6 test samples" in " ".join(out.split())


@pytest.mark.usefixtures("installed")
def test_an_installed_format_is_asked_before_kinfeds_own(tmp_path: Path) -> None:
    assert [*FORMATS][-1] == "ours"
    folder = leaf(tmp_path / "data")
    assert load(str(folder)).columns.keys() == {"user"}  # though class folders have a folder train as well
    assert load(f"ours:{folder}").train.inputs.equal(load(str(folder)).train.inputs)
    for split in ("train", "test"):
        write(tmp_path / "pictures", split, [grey(1), grey(2)], [0, 1])
    assert load(str(tmp_path / "pictures")).shape == (1, 8, 8)
    for client in "ab":
        leaf(tmp_path / "hospitals" / client)
    assert load(str(tmp_path / "hospitals")).columns.keys() == {"user", "client"}


@pytest.mark.usefixtures("module")
def test_a_format_that_changes_reads_its_files_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinfed.data.loading.RACY_SECONDS", -60)
    name = f"own_leaf:Leaf:{leaf(tmp_path / 'data')}"
    assert load(name).train.inputs[0, 1] == 0.5
    sys.modules.pop("own_leaf")
    (tmp_path / "own_leaf.py").write_text(LEAF.replace('np.array(own["x"], dtype', '0.5 * np.array(own["x"], dtype'))
    assert load(name).train.inputs[0, 1] == 0.25


@pytest.mark.usefixtures("module")
def test_what_a_format_has_found_can_be_given_as_it_is(tmp_path: Path) -> None:
    sys.path.insert(0, str(tmp_path))
    try:
        from own_leaf import Leaf  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(tmp_path))
    data, kept = as_dataset(Leaf.find(leaf(tmp_path / "data")), seed=0)
    assert kept is not None
    again = load(kept)
    assert again.name == data.name == kept
    assert np.array_equal(again.columns["user"][1], ["u0", "u0", "u1", "u1", "u2", "u2"])


def test_a_format_of_kinfeds_own_can_be_named(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write(tmp_path / "mine", split, [grey(1), grey(2)], [0, 1])
    assert load(f"parquet:{tmp_path / 'mine'}").shape == (1, 8, 8)
    with pytest.raises(InputError, match=r"^data: '.*mine' has no data in the format npz$"):
        load(f"npz:{tmp_path / 'mine'}")


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("own_leaf:Leaf:nowhere", r"^data: 'nowhere' is neither a path nor in \$KINFED_DATA$"),
        ("own_leaf:Nothing:.", r"^format: 'own_leaf:Nothing' cannot be imported: module 'own_leaf' has no attribute"),
        ("own_leaf:split:.", r"^format: 'own_leaf:split' has no method find\(path\)$"),
        ("own_leaf:Leaf:.", r"^data: '\.' has no data in the format own_leaf:Leaf$"),
        ("own_leaf:Leaf", r"^data: 'own_leaf:Leaf' is neither a name"),
        ("ours:.", r"^data: 'ours:\.' is neither a name"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(data: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        find(data)
