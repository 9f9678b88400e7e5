"""The form of FLamby's Fed-ISIC2019: a table of centers and splits, beside images or arrays."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kinfed.data import load, make_federation
from kinfed.errors import InputError

HEAD = "image,MEL,NV,target,center,fold,fold2\n"
ROWS = [
    (f"ISIC_{i}", i % 2, i // 2 % 3, "train" if i < 12 else "test") for i in range(18)
]  # image, target, center, fold


def table(rows: list[tuple[str, int, int, str]] = ROWS) -> str:
    lines = (
        f"{name},{1 - target}.0,{target}.0,{target},{center},{fold},{fold}_{center}"
        for name, target, center, fold in rows
    )
    return HEAD + "\n".join(lines) + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    images = tmp_path / "data" / "ISIC_2019_Training_Input_preprocessed"
    images.mkdir(parents=True)
    for i, (name, *_) in enumerate(ROWS):
        Image.fromarray(np.full((8, 8), i, np.uint8)).save(images / f"{name}.png")
    (tmp_path / "data" / "train_test_split").write_text(table())
    return tmp_path / "data"


def test_centers_are_clients_and_folds_are_splits(folder: Path) -> None:
    data = load(folder)
    assert (data.shape, data.classes) == ((1, 8, 8), ("0", "1"))
    assert data.train.inputs[:, 0, 0, 0].tolist() == [*range(12)]
    assert data.test.inputs[:, 0, 0, 0].tolist() == [*range(12, 18)]
    assert data.columns["client"][0].tolist() == [str(center) for _, _, center, fold in ROWS if fold == "train"]
    federation = make_federation(data, "folders", clients=9, public=0, seed=0)
    assert federation.partition.names == ("0", "1", "2")
    assert federation.class_counts().tolist() == [[2, 2]] * 3
    assert [len(rows) for rows in federation.partition.test] == [2, 2, 2]


def test_samples_may_be_arrays(tmp_path: Path) -> None:
    (tmp_path / "train_test_split.csv").write_text(table([(f"{name}.npy", *rest) for name, *rest in ROWS]))
    for i, (name, *_) in enumerate(ROWS):
        np.save(tmp_path / f"{name}.npy", np.array([i, 0.5]))
    data = load(tmp_path)
    assert data.shape == (2,)
    assert data.train.inputs[:, 0].tolist() == [*range(12)]


def refused(folder: Path, message: str) -> None:
    with pytest.raises(InputError, match=message) as told:
        load(folder)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            table().replace("center", "site"),
            "must have the columns image, target, center, fold; lacks center, has image, MEL",
        ),
        (table().replace("ISIC_3,1", "ISIC_x,1").replace("ISIC_3,0", "ISIC_x,0"), "names 'ISIC_x', which is no image"),
        (table().replace("ISIC_2,", "../ISIC_2,"), r"names '\.\./ISIC_2', which is no image or array"),
        (table().replace(",train,train_0", ",valid,", 1), "fold 'valid' is not allowed; must be train or test"),
        (table().replace(",train,train_0", ",,", 1), "row 0: fold is missing"),
        (table() + '"', "cannot be read as a table"),
        ("", "cannot be read as a table"),
    ],
)
def test_a_wrong_table_is_told_in_one_line(text: str, message: str, folder: Path) -> None:
    (folder / "train_test_split").write_text(text)
    refused(folder, message)


def test_no_file_outside_of_the_folder_is_read(folder: Path, tmp_path: Path) -> None:
    inside = folder / "ISIC_2019_Training_Input_preprocessed"
    (inside / "ISIC_1.png").rename(tmp_path / "secret.png")
    os.symlink(tmp_path / "secret.png", inside / "ISIC_1.png")
    refused(folder, "names 'ISIC_1', which is no image")
    inside.rename(tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", inside)
    refused(folder, "names 'ISIC_0', which is no image")


def test_arrays_are_not_unpickled_and_have_one_shape(tmp_path: Path) -> None:
    (tmp_path / "train_test_split").write_text(table())
    for name, *_ in ROWS:
        np.save(tmp_path / f"{name}.npy", np.zeros(2))
    np.save(tmp_path / "ISIC_1.npy", np.zeros(3))
    refused(tmp_path, r"ISIC_0.npy and .*ISIC_1.npy have different shapes, \(2,\) and \(3,\)")
    np.save(tmp_path / "ISIC_1.npy", np.array([{}]), allow_pickle=True)
    refused(tmp_path, "ISIC_1.npy cannot be read as an array: ISIC_1.npy has object of shape")
    (tmp_path / "ISIC_1.npy").unlink()
    Image.new("L", (8, 8)).save(tmp_path / "ISIC_1.png")
    refused(tmp_path, "ISIC_1.png is an image, but .*ISIC_0.npy an array")


def test_a_name_of_two_files_is_refused(folder: Path) -> None:
    (folder / "other").mkdir()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(folder / "other" / "ISIC_3.png")
    with pytest.raises(InputError, match=r"names 'ISIC_3', which is .*ISIC_3.png as well as .*ISIC_3.png"):
        load(folder)
