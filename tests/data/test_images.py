from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from kinfed.data import load
from kinfed.data.formats import digits
from kinfed.errors import InputError


def class_folders(root: Path, images: dict[str, Image.Image | bytes], split: str = "train") -> Path:
    """``split/CLASS/NAME`` for every CLASS/NAME, as the suffix says or as the bytes are."""
    for name, image in images.items():
        file = root / split / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(image, bytes):
            file.write_bytes(image)
        else:
            image.save(file)
    return root


def only(image: Image.Image, root: Path, suffix: str = "png", **how: object) -> np.ndarray:
    """One image, c×h×w, after loading a data set of nothing else."""
    for split in ("train", "test"):
        class_folders(root, {f"a/x.{suffix}": image, f"b/x.{suffix}": image}, split)
    return load(str(root), **how).train.inputs[0].numpy()  # type: ignore[arg-type]


def grey(values: object) -> Image.Image:
    return Image.fromarray(np.array(values, dtype=np.uint8))


def rgb(*pixels: tuple[int, int, int]) -> Image.Image:
    return Image.fromarray(np.array([pixels], dtype=np.uint8))


def test_grey_images_stay_grey_or_are_repeated_as_configured(tmp_path: Path) -> None:  # case 46
    image = grey([[1, 2], [3, 250]])
    assert only(image, tmp_path / "free").tolist() == [[[1, 2], [3, 250]]]
    assert only(image, tmp_path / "one", channels=1).tolist() == [[[1, 2], [3, 250]]]
    assert only(image, tmp_path / "three", channels=3).tolist() == [[[1, 2], [3, 250]]] * 3


def test_colour_becomes_grey_by_the_luma_of_itu_r_601(tmp_path: Path) -> None:
    image = rgb((255, 0, 0), (0, 255, 0), (0, 0, 255), (200, 200, 200))
    assert only(image, tmp_path, channels=1).tolist() == [[[76, 150, 29, 200]]]  # 0.299, 0.587, 0.114


@pytest.mark.parametrize("channels", [None, 3, 1])
def test_alpha_is_dropped_and_a_transparent_red_stays_red(tmp_path: Path, channels: int | None) -> None:  # case 47
    image = Image.fromarray(np.array([[[255, 0, 0, 0], [0, 0, 255, 255]]] * 2, dtype=np.uint8))
    assert image.mode == "RGBA"
    seen = only(image, tmp_path, channels=channels)
    assert seen[:, 0].tolist() == ([[76, 29]] if channels == 1 else [[255, 0], [0, 0], [0, 255]])


def test_grey_with_alpha_is_grey(tmp_path: Path) -> None:
    image = Image.merge("LA", [grey([[9, 80]]), grey([[0, 255]])])
    assert only(image, tmp_path).tolist() == [[[9, 80]]]


def test_a_palette_is_looked_up(tmp_path: Path) -> None:  # case 47
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    assert only(image, tmp_path).tolist() == [[[10, 40]], [[20, 50]], [[30, 60]]]
    assert load(str(tmp_path), channels=1).train.inputs[0].reshape(-1).tolist() == [18, 48]


def test_black_and_white_is_0_and_255(tmp_path: Path) -> None:
    image = Image.new("1", (2, 1))
    image.putpixel((1, 0), 1)
    assert only(image, tmp_path).tolist() == [[[0, 255]]]


@pytest.mark.parametrize("suffix", ["png", "tif", "pgm"])
def test_16_bits_become_8_by_dividing_by_257(tmp_path: Path, suffix: str) -> None:
    image = Image.fromarray(np.array([[0, 128, 129, 257, 32768, 65535]], dtype=np.uint16))
    assert only(image, tmp_path, suffix).tolist() == [[[0, 0, 1, 1, 128, 255]]]


def test_a_photograph_is_turned_as_its_exif_says(tmp_path: Path) -> None:
    image = grey([[0, 0, 0, 255, 255, 255]] * 3)  # 3×6, bright on the right
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise: bright at the bottom
    for split in ("train", "test"):
        for label in "ab":
            (tmp_path / split / label).mkdir(parents=True)
            image.save(tmp_path / split / label / "x.png", exif=exif)
    seen = load(str(tmp_path)).train.inputs[0, 0]
    assert seen.shape == (6, 3)
    assert seen[:, 0].tolist() == [0, 0, 0, 255, 255, 255]


def test_cmyk_becomes_rgb(tmp_path: Path) -> None:
    image = Image.new("CMYK", (1, 1), (0, 255, 255, 0))
    assert only(image, tmp_path, "tif").reshape(-1).tolist() == [255, 0, 0]
    assert load(str(tmp_path), channels=1).train.inputs[0].reshape(-1).tolist() == [76]


def test_floating_point_images_are_refused_by_name(tmp_path: Path) -> None:  # case 46: file and mode
    image = Image.fromarray(np.array([[0.5]], dtype=np.float32))
    with pytest.raises(InputError, match=r"a/x\.tif: the image cannot be decoded: mode F"):
        only(image, tmp_path, "tif")


def test_images_are_resized_with_antialiasing(tmp_path: Path) -> None:
    stripes = grey([[0, 0, 0, 0, 255, 255, 255, 255] * 4] * 32)
    assert only(stripes, tmp_path / "same").shape == (1, 32, 32)
    small = only(stripes, tmp_path / "small", image_size=4)  # each pixel covers one whole stripe: without, 0 or 255
    assert small.shape == (1, 4, 4)
    assert ((small > 100) & (small < 155)).all()


def test_different_sizes_are_refused_unless_one_is_configured(tmp_path: Path) -> None:
    for split in ("train", "test"):
        class_folders(tmp_path, {"a/x.png": grey([[1, 2]]), "b/y.png": grey([[1], [2], [3]])}, split)
    with pytest.raises(
        InputError, match=r"b/y\.png and .*a/x\.png are images of different sizes, 3×1 and 1×2 .*image_"
    ):
        load(str(tmp_path))
    assert load(str(tmp_path), image_size=5).shape == (1, 5, 5)


@pytest.mark.parametrize("colour_in", ["train", "test"])
def test_one_image_with_colour_gives_both_splits_three_channels(tmp_path: Path, colour_in: str) -> None:
    for split in ("train", "test"):
        last = rgb((5, 6, 7)) if split == colour_in else grey([[8]])
        class_folders(tmp_path, {"a/x.png": grey([[1]]), "b/y.png": last}, split)
    data = load(str(tmp_path))
    coloured, other = (data.train, data.test) if colour_in == "train" else (data.test, data.train)
    assert coloured.inputs.flatten(1).tolist() == [[1, 1, 1], [5, 6, 7]]
    assert other.inputs.flatten(1).tolist() == [[1, 1, 1], [8, 8, 8]]
    assert len(data.train.normalise.mean) == 3


def noisy_jpegs(root: Path, cut: str | None = None) -> Path:
    """Ten of each of two classes in both splits; of one training file only the first 60 % are there."""
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for name in (f"{label}/{i}.jpg" for label in "ab" for i in range(10)):
            class_folders(root, {name: Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8))}, split)
    if cut is not None:
        whole = (root / cut).read_bytes()
        (root / cut).write_bytes(whole[: len(whole) * 6 // 10])
    return root


def test_a_truncated_jpeg_among_good_ones_is_named(tmp_path: Path) -> None:  # case 48
    noisy_jpegs(tmp_path, cut="train/b/3.jpg")
    with pytest.raises(InputError, match=r"train/b/3\.jpg: the image cannot be decoded: .*truncated.*on_error=skip"):
        load(str(tmp_path))


def test_a_truncated_jpeg_can_be_skipped_and_is_counted_and_named(tmp_path: Path) -> None:  # case 48
    whole = load(str(noisy_jpegs(tmp_path / "whole")))
    data = load(str(noisy_jpegs(tmp_path / "cut", cut="train/b/3.jpg")), on_error="skip")
    assert data.skipped == 1
    assert data.skipped_names == (str(tmp_path / "cut/train/b/3.jpg"),)
    kept = [row for row in range(20) if row != 13]
    assert (data.train.inputs == whole.train.inputs[kept]).all()
    assert data.train.labels.tolist() == [0] * 10 + [1] * 9  # type: ignore[union-attr]
    assert (whole.skipped, whole.skipped_names) == (0, ())
    assert load(str(tmp_path / "cut"), on_error="skip").skipped == 1  # the cache knows it too
    (tmp_path / "cut").rename(tmp_path / "moved")
    moved = load(str(tmp_path / "moved"), on_error="skip")
    assert moved.skipped_names == (str(tmp_path / "moved/train/b/3.jpg"),)


def test_nothing_that_can_be_decoded_is_an_error_even_when_skipping(tmp_path: Path) -> None:
    class_folders(tmp_path, {"a/x.png": b"no image", "b/x.png": b"no image"})
    class_folders(tmp_path, {"a/x.png": grey([[1]])}, "test")
    with pytest.raises(InputError, match=r"a/x\.png: the image cannot be decoded: its format is not known to PIL"):
        load(str(tmp_path))
    with pytest.raises(InputError, match="train has no images that can be decoded"):
        load(str(tmp_path), on_error="skip")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"channels": 2}, "channels: 2 is not allowed; must be 1, 3"),
        ({"image_size": 0}, "image_size: 0 is not allowed; must be 1 or more"),
        ({"on_error": "ignore"}, "on_error: 'ignore' is not allowed; must be stop or skip"),
    ],
)
def test_ways_to_decode_are_checked(how: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load("digits", **how)  # type: ignore[arg-type]


def test_the_digits_are_those_of_scikit_learn() -> None:
    bunch, (pixels, labels) = load_digits(), digits._table()
    assert np.array_equal(pixels, bunch.images)
    assert np.array_equal(labels, bunch.target)


def test_digits_follow_the_configured_form_and_stay_in_0_to_1() -> None:
    data = load("digits", channels=3, image_size=16)
    assert data.shape == (3, 16, 16)
    batch = data.train.batch(slice(None))
    assert (batch.min(), batch.max()) == (0, 1)
