from __future__ import annotations

import io
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from kinfed.data import load, loading, names, splits
from kinfed.errors import InputError

SHARED = Path(os.environ.get("KINFED_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))


def encoded(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def write(folder: Path, split: str, images: list[np.ndarray | bytes], labels: list[object], **names: str) -> None:
    folder.mkdir(exist_ok=True)
    cells = [{"bytes": i if isinstance(i, bytes) else encoded(i), "path": None} for i in images]
    columns = {names.get("image", "image"): cells, names.get("label", "label"): labels}
    pq.write_table(pa.table(columns), folder / f"{split}.parquet")


def grey(value: int, side: int = 8) -> np.ndarray:
    return np.full((side, side), value, dtype=np.uint8)


def test_digits_are_1400_and_397_uint8_images_scaled_to_one() -> None:
    data = load("digits")
    assert data.train.inputs.shape == (1400, 1, 8, 8)
    assert data.test.inputs.shape == (397, 1, 8, 8)
    assert data.train.inputs.dtype == torch.uint8
    batch = data.train.batch(slice(None))
    assert (batch.min(), batch.max()) == (0, 1)
    assert set(data.test.labels.tolist()) == set(range(10))  # type: ignore[union-attr]


def test_a_folder_of_parquet_is_decoded_and_standardised(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (8, 8), dtype=np.uint8) for _ in range(6)]
    write(tmp_path, "train", images[:4], [0, 1, 0, 1])
    write(tmp_path, "test", images[4:], [1, 0])
    data = load(str(tmp_path))
    assert np.array_equal(data.train.inputs[:, 0].numpy(), np.stack(images[:4]))
    batch = data.train.batch(slice(None))
    assert batch.mean().item() == pytest.approx(0, abs=1e-5)
    assert batch.std(correction=0).item() == pytest.approx(1, abs=1e-5)
    # the test set is normalised by the training set's numbers (case 52)
    expected = (np.stack(images[4:]).astype(np.float64) - np.mean(images[:4])) / np.std(images[:4])
    assert np.allclose(data.test.batch(slice(None))[:, 0].numpy(), expected, atol=1e-5)


def test_grey_images_among_colour_ones_get_three_equal_channels(tmp_path: Path) -> None:  # case 46
    colour = np.zeros((8, 8, 3), dtype=np.uint8)
    colour[..., 0] = 200
    for split in ("train", "test"):
        write(tmp_path, split, [grey(7), colour], [0, 1])
    inputs = load(str(tmp_path)).train.inputs
    assert inputs.shape == (2, 3, 8, 8)
    assert inputs[0].unique().tolist() == [7]
    assert inputs[1, :, 0, 0].tolist() == [200, 0, 0]


def test_labels_are_remapped_and_the_map_is_kept(tmp_path: Path) -> None:  # case 49
    write(tmp_path, "train", [grey(1), grey(2), grey(3)], [30, 10, 20])
    write(tmp_path, "test", [grey(4)], [20])
    data = load(str(tmp_path))
    assert data.train.labels.tolist() == [2, 0, 1]  # type: ignore[union-attr]
    assert data.test.labels.tolist() == [1]  # type: ignore[union-attr]
    assert data.classes == ("10", "20", "30")


def test_text_labels_are_classes_too(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write(tmp_path, split, [grey(1), grey(2)], ["dog", "cat"])
    data = load(str(tmp_path))
    assert data.classes == ("cat", "dog")
    assert data.train.labels.tolist() == [1, 0]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (([grey(1), grey(2)], [0, 1]), ([grey(1)], [5]), r"that the training set lacks: \[5\]"),
        (
            ([grey(1), encoded(grey(2))[:40]], [0, 1]),
            ([grey(1)], [0]),
            r"train.parquet, row 1: the image cannot be decoded",
        ),
        (([grey(1), grey(2, side=9)], [0, 1]), ([grey(1)], [0]), "images of different sizes"),
        (([grey(1)], [0]), ([grey(1, side=9)], [0]), "different shapes: 1×8×8 and 1×9×9"),
        (([], []), ([grey(1)], [0]), "train.parquet has no images"),
    ],
    ids=["test class", "truncated", "sizes", "shapes", "empty"],
)
def test_data_that_cannot_be_used_are_named(tmp_path: Path, train: tuple, test: tuple, message: str) -> None:  # type: ignore[type-arg]
    write(tmp_path, "train", *train)
    write(tmp_path, "test", *test)
    with pytest.raises(InputError, match=message):
        load(str(tmp_path))


def test_missing_files_and_columns_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        InputError,
        match=r"neither a name \(digits, mnist, .*\), nor a path, nor in \$KINFED_DATA \(\$KINFED_DATA is not set\)",
    ):
        load(str(tmp_path / "nowhere"))
    write(tmp_path, "train", [grey(1)], [0])
    with pytest.raises(InputError, match=r"has no test set; hold out a share .* as in test_fraction=0.2"):
        load(str(tmp_path))
    write(tmp_path, "train", [grey(1)], [0], image="picture")
    with pytest.raises(InputError, match=r"images in the column 'image' \(or 'img'\); it has picture, label"):
        load(str(tmp_path))


def test_a_name_is_looked_for_in_kinfed_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for split in ("train", "test"):
        write(tmp_path / "mine", split, [grey(1), grey(2)], [0, 1])
    monkeypatch.setenv("KINFED_DATA", str(tmp_path))
    assert load("mine").name == "mine"
    assert "mine" in names.known()


def test_a_folder_is_decoded_once_and_again_when_its_content_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for split in ("train", "test"):
        write(tmp_path, split, [grey(1), grey(2)], [0, 1])
    decoded = []
    original = splits.decode
    monkeypatch.setattr(splits, "decode", lambda images, how: decoded.append(images.names[0]) or original(images, how))
    load(str(tmp_path))
    load(str(tmp_path))
    assert decoded == [f"{tmp_path}/train.parquet, row 0", f"{tmp_path}/test.parquet, row 0"]
    write(tmp_path, "train", [grey(1), grey(9)], [0, 1])
    assert load(str(tmp_path)).train.inputs[1, 0, 0, 0] == 9
    assert len(decoded) == 4
    load(str(tmp_path), channels=3)
    load(str(tmp_path), image_size=4)
    load(str(tmp_path), on_error="skip")
    assert len(decoded) == 10


def test_what_a_killed_process_left_in_the_cache_is_not_used(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write(tmp_path, split, [grey(1), grey(2)], [0, 1])
    (loading.cache_folder() / ".unfinished-dead").mkdir(parents=True)
    assert len(load(str(tmp_path)).train) == 2


def _load_in_child(folder: str) -> int:
    return int(load(folder).train.inputs.sum())


@pytest.mark.slow
def test_two_processes_can_decode_the_same_folder(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write(tmp_path, split, [grey(i % 256) for i in range(400)], [i % 2 for i in range(400)])
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        sums = pool.map(_load_in_child, [str(tmp_path)] * 2)
    assert sums[0] == sums[1] == _load_in_child(str(tmp_path))
    assert not [*loading.cache_folder().glob(".unfinished-*")]


@pytest.mark.skipif(not (SHARED / "usps").is_dir(), reason="the shared data sets are not here")
def test_usps_as_it_lies_in_shared() -> None:
    data = load(str(SHARED / "usps"))
    assert data.train.inputs.shape == (7291, 1, 16, 16)
    assert data.test.inputs.shape == (2007, 1, 16, 16)
    assert len(data.classes) == 10
