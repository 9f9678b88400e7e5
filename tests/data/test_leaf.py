"""LEAF's JSON: users with their samples, in files below train and test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kinfed.data import load, make_federation
from kinfed.errors import InputError

Told = dict[str, Any]


def users(**samples: int) -> Told:
    """Users with so many samples; the first feature is the number of the sample."""
    data = {
        user: {"x": [[float(i), 0.5] for i in range(n)], "y": [i % 2 for i in range(n)]} for user, n in samples.items()
    }
    return {"users": [*samples], "num_samples": [*samples.values()], "user_data": data}


def write(folder: Path, **files: Any) -> Path:
    """Files ``train_0`` for ``train/0.json`` and so on."""
    for name, told in files.items():
        split, file = name.split("_")
        (folder / split).mkdir(parents=True, exist_ok=True)
        (folder / split / f"{file}.json").write_text(told if isinstance(told, str) else json.dumps(told))
    return folder


def test_users_are_clients_and_files_of_a_split_are_joined(tmp_path: Path) -> None:
    data = load(write(tmp_path / "d", train_0=users(ann=4, bob=6), train_1=users(eve=5), test_0=users(ann=2, eve=2)))
    assert (data.shape, data.classes, data.left_out) == ((2,), ("0", "1"), ())
    assert data.columns["client"][0].tolist() == ["ann"] * 4 + ["bob"] * 6 + ["eve"] * 5
    federation = make_federation(data, "folders", clients=9, public=0, seed=0)
    assert federation.partition.names == ("ann", "bob", "eve")
    assert federation.class_counts().tolist() == [[2, 2], [3, 3], [3, 2]]
    assert [len(rows) for rows in federation.partition.test] == [2, 0, 2]
    assert federation.train(2).inputs[:, 0].tolist() == [0, 1, 2, 3, 4]


def test_users_without_samples_and_empty_files_are_no_clients(tmp_path: Path) -> None:
    data = load(write(tmp_path / "d", train_0=users(ann=4, bob=0), train_1=users(), test_0=users(ann=2)))
    assert set(data.columns["client"][0]) == {"ann"}


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ("{", r"0.json: is not valid JSON"),
        ("[]", r"0.json: is damaged: it has no JSON object$"),
        (
            {"users": ["a", "a"], "user_data": {"a": {"x": [[1.0]], "y": [0]}}},
            r"0.json has the user 'a' twice$",
        ),
        ({}, r"0.json must have users, and user_data with the x and y of each user; wrong or missing: 'users'$"),
        (users(ann=2) | {"user_data": {}}, r"wrong or missing: 'ann'$"),
        (users(ann=2) | {"users": 3}, r"wrong or missing: 'int' object is not iterable$"),
        ({"users": ["a"], "user_data": {"a": {"x": [[1.0]], "y": []}}}, r"user 'a' must have as many x as y$"),
        ({"users": ["a"], "user_data": {"a": {"x": ["to be"], "y": [1]}}}, r"x must be numbers; text and the names"),
        ({"users": ["a"], "user_data": {"a": {"x": [[1.0], [1, 2]], "y": [0, 1]}}}, r"must all have the same shape"),
    ],
)
def test_what_is_no_leaf_data_is_told_in_one_line(train: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message) as told:
        load(write(tmp_path / "d", train_0=train, test_0=users(ann=2)))
    assert "\n" not in str(told.value)


def test_json_files_beside_class_folders_are_no_leaf_data(tmp_path: Path) -> None:
    folder = write(tmp_path / "d", train_about=users(ann=2), test_about=users(ann=2))
    (folder / "train" / "cat").mkdir()
    with pytest.raises(InputError, match="has no images"):
        load(folder)


def test_no_link_is_followed(tmp_path: Path) -> None:
    folder = write(tmp_path / "d", train_0=users(ann=2), test_0=users(ann=2))
    (folder / "test" / "0.json").rename(tmp_path / "secret.json")
    (folder / "test" / "0.json").symlink_to(tmp_path / "secret.json")
    with pytest.raises(InputError, match=r"0\.json is a link, which is not followed$"):
        load(folder)
