from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinfed.data import IID, DirichletClients, Federation, Partition, from_arrays, make_federation, open_rows, save_rows
from kinfed.errors import InputError
from tests.builders import dataset


def same_rows(a: Federation, b: Federation) -> bool:
    def rows(fed: Federation) -> list[Any]:
        splits = [p for holder in (fed.partition, fed.new_clients) for p in (holder.train, holder.test)]
        return [[mine.tolist() for mine in split] for split in splits] + [fed.public_rows.tolist()]

    return rows(a) == rows(b) and a.partition.names == b.partition.names and a.partition.pooled == b.partition.pooled


def test_clients_of_different_sizes_survive_their_file(tmp_path: Path) -> None:  # case 43
    cut = Partition([np.arange(3), np.arange(3, 8), np.arange(8, 17)], [np.arange(0), np.arange(1), np.arange(1, 9)])
    fed = Federation(dataset(), replace(cut, names=("a", "b", "c")), np.arange(20, 24))
    save_rows(fed, tmp_path / "rows.json")
    again = open_rows(dataset(), tmp_path / "rows.json")
    assert same_rows(fed, again)
    assert [len(rows) for rows in again.partition.train] == [3, 5, 9]


@pytest.mark.parametrize("partition", [IID(), DirichletClients(alpha=0.5)])
def test_a_federation_with_new_clients_and_a_probe_survives_its_file(partition: Any, tmp_path: Path) -> None:
    fed = make_federation(dataset(), partition, clients=6, public=24, seed=0, new_clients=2)
    save_rows(fed, tmp_path / "rows.json")
    assert same_rows(fed, open_rows(dataset(), tmp_path / "rows.json"))


MINIMAL = {"train_samples": 240, "test_samples": 120, "clients": [{"train": [5, 1], "test": []}]}


def test_a_file_by_another_hand_needs_little(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps(MINIMAL))
    fed = open_rows(dataset(), tmp_path / "rows.json")
    assert fed.partition.train[0].tolist() == [1, 5]
    assert fed.public_images is None
    assert fed.unused == 358


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        ("[]", "lacks train_samples, test_samples, clients"),
        ({"clients": []}, "has no clients"),
        ({"clients": [{"train": [], "test": [1]}]}, "one without training samples"),
        ({"clients": [{"train": [1]}]}, "must list clients as"),
        ({"clients": [{"train": [1.5], "test": []}]}, "must list clients as"),
        ({"clients": [{"train": ["1"], "test": []}]}, "must list clients as"),
        ({"clients": [{"train": 1, "test": []}]}, "must list clients as"),
        ({"clients": 3}, "must list clients as"),
        ({"clients": [{"train": [240], "test": []}]}, "or does not exist"),
        ({"clients": [{"train": [1, 1], "test": []}]}, "belongs to two clients"),
        ({"clients": [{"train": [1], "test": []}], "probe": [1]}, "to a client and the server"),
        ({"clients": [{"train": [1], "test": [1]}], "pooled": True}, "a pooled sample belongs to two"),
        ({"train_samples": 241}, "belongs to 241 and 120 training and test samples; digits has 240 and 120"),
    ],
)
def test_a_file_that_does_not_fit_gets_one_line(text: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text if isinstance(text, str) else json.dumps({**MINIMAL, **text}))
    with pytest.raises(InputError, match=message) as told:
        open_rows(dataset(), path)
    assert str(told.value).startswith(f"partition: '{path}'")
    assert "\n" not in str(told.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        open_rows(dataset(), tmp_path / "rows.json")


def test_what_would_not_be_read_is_not_written(tmp_path: Path) -> None:  # case 350
    nobody, some = np.arange(0), np.arange(3)
    for cut, new, message in (
        (Partition([some, nobody], [some, some[:0]], names=("a", "b")), Partition([], []), r"client 1 \(b\)$"),
        (Partition([some], [nobody]), Partition([nobody], [nobody]), "new client 0$"),
    ):
        path = tmp_path / "rows.json"
        with pytest.raises(InputError, match=message):
            save_rows(Federation(dataset(), cut, nobody, new), path)
        assert not path.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            {"clients": [{"name": "a", "train": [1], "test": []}, {"name": "b", "train": [], "test": []}]},
            r"client 1 \(b\)$",
        ),
        ({"new_clients": [{"train": [], "test": []}]}, "without training samples: new client 0$"),
        ({"pooled": "no"}, "pooled is neither true nor false"),
        ({"clients": [{"train": [10**30], "test": []}]}, "must list clients as"),
        ({"clients": [{"train": [[1]], "test": []}]}, "must list clients as"),
        ("[" * 100_000, "is no JSON"),
        ("\udcff", "is no JSON"),
    ],
    ids=["empty client", "empty new client", "pooled", "large", "nested", "deep", "no text"],
)
def test_what_is_wrong_with_a_file_is_named(text: Any, message: str, tmp_path: Path) -> None:  # case 350
    path = tmp_path / "rows.json"
    path.write_text(text if isinstance(text, str) else json.dumps({**MINIMAL, **text}), errors="surrogateescape")
    with pytest.raises(InputError, match=message):
        open_rows(dataset(), path)


def test_rows_of_another_test_set_are_refused(tmp_path: Path) -> None:
    x, y = np.arange(40.0)[:, None], np.arange(40) % 2
    first, other = (from_arrays(x[::step], y[::step], x[:8], y[:8]) for step in (1, -1))
    save_rows(make_federation(first, IID(), clients=2, seed=0), tmp_path / "rows.json")
    open_rows(first, tmp_path / "rows.json")
    with pytest.raises(
        InputError, match=r"belongs to samples with other labels than .*; give the data set and its opt"
    ):
        open_rows(other, tmp_path / "rows.json")
