from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from kinfed.data import Dataset, load
from kinfed.errors import InputError
from tests.data.test_loading import SHARED, encoded, grey, write

FASHION = Path("/usr/share/datasets/fashion-mnist")
TYPES = {"uint8": 0x08, "int8": 0x09, ">i2": 0x0B, ">i4": 0x0C, ">f4": 0x0D, ">f8": 0x0E}


def idx(array: np.ndarray, kind: str = "uint8") -> bytes:
    head = bytes([0, 0, TYPES[kind], array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return head + array.astype(kind).tobytes()


def idx_folder(folder: Path, suffix: str = "", test: str = "t10k", infix: str = "-", **files: bytes) -> np.ndarray:
    """Four IDX files; returns the training images. ``files`` replaces some of them."""
    folder.mkdir(exist_ok=True)
    images = np.random.default_rng(0).integers(0, 256, (4, 3, 2), dtype=np.uint8)
    contents = {
        f"train-images{infix}idx3-ubyte": files.get("images", idx(images)),
        f"train-labels{infix}idx1-ubyte": files.get("labels", idx(np.array([7, 3, 7, 3]))),
        f"{test}-images{infix}idx3-ubyte": idx(images[:2]),
        f"{test}-labels{infix}idx1-ubyte": idx(np.array([3, 7])),
    }
    for name, content in contents.items():
        (folder / f"{name}{suffix}").write_bytes(gzip.compress(content) if suffix == ".gz" else content)
    return images


def labels(data: Dataset) -> tuple[list[int], list[int]]:
    return data.train.labels.tolist(), data.test.labels.tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(("test", "infix"), [("t10k", "-"), ("test", ".")])
def test_idx_files_plain_or_compressed(tmp_path: Path, suffix: str, test: str, infix: str) -> None:
    images = idx_folder(tmp_path, suffix, test, infix)
    data = load(str(tmp_path))
    assert np.array_equal(data.train.inputs[:, 0].numpy(), images)
    assert labels(data) == ([1, 0, 1, 0], [0, 1])
    assert data.classes == ("3", "7")
    one_file = tmp_path / f"train-images{infix}idx3-ubyte{suffix}"
    assert torch.equal(load(str(one_file)).test.inputs, data.test.inputs)


def test_an_idx_file_beside_its_compressed_copy_is_one(tmp_path: Path) -> None:
    idx_folder(tmp_path, ".gz")
    idx_folder(tmp_path, "")
    assert len(load(str(tmp_path)).train) == 4


@pytest.mark.parametrize("kind", [*TYPES])
def test_every_number_type_of_idx_is_read_in_big_endian(tmp_path: Path, kind: str) -> None:
    values = np.array([[1, -2], [100, 3], [0, 1], [5, 6]])
    values = abs(values) if kind == "uint8" else values
    idx_folder(tmp_path, images=idx(values, kind), labels=idx(np.array([3, 7, 3, 7]), ">i4"))
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx(values[:2], kind))
    assert load(str(tmp_path)).train.inputs.tolist() == values.tolist()


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (b"", "train-images-idx3-ubyte is not an IDX file; it begins with nothing"),
        (b"\x89PNG\r\n", "is not an IDX file; it begins with 89 50 4e 47"),
        (idx(np.zeros((4, 3, 2)))[:-1], "have 4×3×2 values of 1 bytes by its header, but has 23 bytes"),
        (idx(np.zeros((4, 3, 2))) + b"\0", "but has 25 bytes"),
        (idx(np.zeros((3, 3, 2))), "has 3 inputs, but 4 labels"),
    ],
    ids=["empty", "other", "short", "long", "labels"],
)
def test_idx_files_that_are_not_whole_are_named(tmp_path: Path, images: bytes, message: str) -> None:
    idx_folder(tmp_path, images=images)
    with pytest.raises(InputError, match=message):
        load(str(tmp_path))


def test_a_cut_gzip_file_and_missing_idx_files_are_named(tmp_path: Path) -> None:
    idx_folder(tmp_path, ".gz")
    cut = tmp_path / "train-images-idx3-ubyte.gz"
    cut.write_bytes(cut.read_bytes()[:20])
    with pytest.raises(InputError, match=r"train-images-idx3-ubyte\.gz cannot be read"):
        load(str(tmp_path))
    cut.unlink()
    with pytest.raises(
        InputError, match=r"must have one IDX file of train images, such as train-images-idx3.*no such file"
    ):
        load(str(tmp_path))
    idx_folder(tmp_path)
    (tmp_path / "emnist-train-images-idx3-ubyte").write_bytes(b"")
    with pytest.raises(InputError, match="it has emnist-train-images-idx3-ubyte, train-images-idx3-ubyte"):
        load(str(tmp_path))


@pytest.mark.skipif(not FASHION.is_dir(), reason="Debian's dataset-fashion-mnist is not installed")
def test_fashion_mnist_as_debian_has_it() -> None:
    data = load("fashion_mnist")
    assert data.train.inputs.shape == (60000, 1, 28, 28)
    assert data.test.inputs.shape == (10000, 1, 28, 28)
    assert data.train.normalise.mean[0] / 255 == pytest.approx(0.2860, abs=5e-5)


@pytest.mark.parametrize(
    "keys",
    [("x_train", "y_train", "x_test", "y_test"), ("train_images", "train_labels", "test_images", "test_labels")],
)
def test_npz_archives(tmp_path: Path, keys: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), dtype=np.uint8)
    y = np.array([[1], [2], [1], [2]])
    np.savez_compressed(tmp_path / "mine.npz", **dict(zip(keys, (x, y, x[:2], y[:2]), strict=True)))
    monkeypatch.setenv("KINFED_DATA", str(tmp_path))
    for name in (str(tmp_path / "mine.npz"), str(tmp_path), "mine"):
        data = load(name)
        assert np.array_equal(data.train.inputs.numpy(), x.transpose(0, 3, 1, 2))
        assert labels(data) == ([0, 1, 0, 1], [0, 1])
    assert load("mine", channels=1, image_size=4).shape == (1, 4, 4)


def test_npz_features_are_kept_and_have_no_channels_to_configure(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(4, 7))
    np.savez(tmp_path / "t.npz", x_train=x, y_train=list("abab"), x_test=x[:2], y_test=list("ab"))
    data = load(str(tmp_path / "t.npz"))
    assert np.array_equal(data.train.inputs.numpy(), x.astype(np.float32))
    assert data.classes == ("a", "b")
    for how in ({"channels": 1}, {"image_size": 8}):
        with pytest.raises(InputError, match=r"is not allowed; .*x_train has features, not images"):
            load(str(tmp_path / "t.npz"), **how)  # type: ignore[arg-type]


def test_npz_archives_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    file = tmp_path / "t.npz"
    np.savez(file, images=np.zeros(3))
    with pytest.raises(InputError, match=r"t.npz must have the arrays x_train, y_train, .*; it has images"):
        load(str(file))
    objects = np.array([{}, None], dtype=object)
    np.savez(file, x_train=objects, y_train=objects, x_test=objects, y_test=objects)
    with pytest.raises(InputError, match=r"t.npz cannot be read without pickle"):
        load(str(file))
    file.write_bytes(b"PK nothing")
    with pytest.raises(InputError, match=r"t.npz cannot be read"):
        load(str(file))


def test_several_parquet_files_a_split_and_other_names_of_columns(tmp_path: Path) -> None:
    names = {"image": "img", "label": "fine_label"}
    write(tmp_path, "train-00000-of-00002", [grey(1), grey(2)], [5, 6], **names)
    write(tmp_path, "train-00001-of-00002", [grey(3)], [5], **names)
    write(tmp_path, "test-00000-of-00001", [grey(4)], [6], **names)
    data = load(str(tmp_path))
    assert data.train.inputs[:, 0, 0, 0].tolist() == [1, 2, 3]
    assert labels(data) == ([0, 1, 0], [1])


def table(file: Path, **columns: object) -> None:
    pq.write_table(pa.table(columns), file)


def test_other_columns_of_numbers_and_text_come_along(tmp_path: Path) -> None:
    for split, writers in (("train", [31, 7]), ("test", [31, 8])):
        table(
            tmp_path / f"{split}.parquet",
            image=[encoded(grey(1)), encoded(grey(2))],  # plain bytes are images too
            label=[0, 1],
            writer_id=writers,
            ward=pa.array(["east", "west"]).dictionary_encode(),
            gaps=pa.array([1, None]),
            age=[0.5, 1.5],
            path=[["a"], ["b"]],
        )
    for _ in range(2):  # as it was read, and as the cache has it
        columns = load(str(tmp_path)).columns
        assert [*columns] == ["writer_id", "ward"]
        assert [values.tolist() for values in columns["writer_id"]] == [[31, 7], [31, 8]]
        assert [values.tolist() for values in columns["ward"]] == [["east", "west"]] * 2


def test_skipped_images_take_their_labels_and_columns_with_them(tmp_path: Path) -> None:
    for split in ("train", "test"):
        images = [encoded(grey(1)), b"broken", None, encoded(grey(4))]
        table(tmp_path / f"{split}.parquet", image=images, label=["a", "c", "c", "b"], row=[10, 11, 12, 13])
    data = load(str(tmp_path), on_error="skip")
    assert data.train.inputs[:, 0, 0, 0].tolist() == [1, 4]
    assert labels(data) == ([0, 1], [0, 1])
    assert data.classes == ("a", "b")  # nothing is left of class c
    assert data.columns["row"][0].tolist() == [10, 13]
    assert data.skipped == 4
    assert data.skipped_names[0] == f"{tmp_path}/train.parquet, row 1"


def test_a_table_may_name_its_image_files(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    Image.fromarray(grey(9)).save(tmp_path / "images" / "x.png")
    for split in ("train", "test"):
        table(tmp_path / f"{split}.parquet", image=[{"bytes": None, "path": "images/x.png"}] * 2, label=[0, 1])
    assert load(str(tmp_path)).train.inputs.unique().tolist() == [9]


def test_labels_that_are_missing_are_told(tmp_path: Path) -> None:
    for split in ("train", "test"):
        table(tmp_path / f"{split}.parquet", image=[encoded(grey(1))] * 2, label=pa.array([0, None]))
    with pytest.raises(InputError, match=r"train.parquet has 1 samples without a label"):
        load(str(tmp_path))


def test_several_labels_a_sample_are_refused(tmp_path: Path) -> None:
    for split in ("train", "test"):
        table(tmp_path / f"{split}.parquet", image=[encoded(grey(1))] * 2, labels=[[0], [0, 1]])
    with pytest.raises(InputError, match=r"train.parquet has several labels per sample in 'labels'"):
        load(str(tmp_path))


def pictures(root: Path, *names: str) -> None:
    for value, name in enumerate(names, 1):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(grey(value)).save(root / name)


def test_class_folders_are_read_at_any_depth_in_the_order_of_their_names(tmp_path: Path) -> None:
    pictures(tmp_path, "train/dog/2.PNG", "train/dog/1.bmp", "train/cat/images/x.webp", "test/dog/3.png")
    (tmp_path / "train/cat/boxes.txt").write_text("no image")
    (tmp_path / "train/cat/._x.webp").write_text("of another system")
    data = load(str(tmp_path))
    assert data.train.inputs[:, 0, 0, 0].tolist() == [3, 2, 1]
    assert labels(data) == ([0, 1, 1], [1])
    assert data.classes == ("cat", "dog")


def test_a_test_set_without_class_folders_is_told(tmp_path: Path) -> None:  # case 51
    pictures(tmp_path, "train/a/1.png", "train/b/1.png", "train/c/1.png", "val/images/1.png")
    with pytest.raises(
        InputError, match=r"the training set lacks: \['images'\]; the training set has \['a', 'b', 'c'\]"
    ):
        load(str(tmp_path))
    pictures(tmp_path, "test/1.png")  # where there is a folder test, val is not looked at
    with pytest.raises(InputError, match=r"test/1\.png is not in a class folder; images must be test/CLASS/NAME"):
        load(str(tmp_path))


def test_a_folder_that_is_no_data_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no data; a data folder must have train\.parquet"):
        load(str(tmp_path))
    pictures(tmp_path, "train/a/1.png")
    with pytest.raises(InputError, match="has a folder train, but no folder test"):
        load(str(tmp_path))
    (tmp_path / "notes.txt").write_text("no data")
    with pytest.raises(InputError, match=r"notes.txt' has no data"):
        load(str(tmp_path / "notes.txt"))


def test_a_folder_a_client_is_one_data_set_with_the_clients_in_a_column(tmp_path: Path) -> None:
    pictures(tmp_path / "site b", "train/cat/1.png", "train/dog/2.png", "test/cat/3.png")
    pictures(tmp_path / "site c", "train/owl/1.png", "test/dog/2.png")  # it has no dog to train on; others have
    (tmp_path / ".cache").mkdir()
    write(tmp_path / "site a", "train", [grey(7), grey(8)], ["owl", "cat"], label="label")
    write(tmp_path / "site a", "test", [], [])  # a client may have nothing to be tested on
    data = load(str(tmp_path))
    assert data.train.inputs[:, 0, 0, 0].tolist() == [7, 8, 1, 2, 1]
    assert data.classes == ("cat", "dog", "owl")
    assert labels(data) == ([2, 0, 0, 1, 2], [0, 1])
    train, test = data.columns["client"]
    assert train.tolist() == ["site a"] * 2 + ["site b"] * 2 + ["site c"]
    assert test.tolist() == ["site b", "site c"]


def test_clients_may_hold_arrays_and_their_images_get_one_form(tmp_path: Path) -> None:
    colour = np.full((2, 8, 8, 3), 5, dtype=np.uint8)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    np.savez(tmp_path / "a/data.npz", x_train=colour, y_train=[0, 1], x_test=colour, y_test=[0, 1])
    idx_folder(tmp_path / "b", images=idx(np.zeros((4, 8, 8))))
    (tmp_path / "b/t10k-images-idx3-ubyte").write_bytes(idx(np.zeros((2, 8, 8))))
    data = load(str(tmp_path))
    assert data.train.inputs.shape == (6, 3, 8, 8)
    assert data.classes == ("0", "1", "3", "7")
    assert data.columns["client"][0].tolist() == ["a"] * 2 + ["b"] * 4


def test_clients_that_do_not_fit_together_are_named(tmp_path: Path) -> None:
    pictures(tmp_path / "a", "train/x/1.png", "test/x/1.png")
    (tmp_path / "b").mkdir()
    with pytest.raises(
        InputError, match="has one folder per client, such as 'a', but 'b' has no training and test split"
    ):
        load(str(tmp_path))
    x = np.zeros((1, 9, 9), dtype=np.uint8)
    np.savez(tmp_path / "b/data.npz", x_train=x, y_train=["x"], x_test=x, y_test=["x"])
    with pytest.raises(InputError, match=r"a/train and .*b/data.npz, x_train have different shapes: 1×8×8 and 1×9×9"):
        load(str(tmp_path))
    np.savez(tmp_path / "b/data.npz", x_train=x, y_train=[0], x_test=x, y_test=[0])
    with pytest.raises(InputError, match="the labels must be numbers in both or text in both"):
        load(str(tmp_path), image_size=8)


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "cifar100_small").is_dir(), reason="the shared data sets are not here")
def test_cifar100_has_its_coarse_labels_in_a_column() -> None:
    data = load(str(SHARED / "cifar100_small"))
    assert len(data.classes) == 100
    fine, coarse = data.train.labels.numpy(), data.columns["coarse_label"][0]  # type: ignore[union-attr]
    assert len(np.unique(coarse)) == 20
    assert len({(f, c) for f, c in zip(fine.tolist(), coarse.tolist(), strict=True)}) == 100  # a fine one has one


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "tiny_imagenet_small").is_dir(), reason="the shared data sets are not here")
def test_grey_files_of_tiny_imagenet_have_three_channels() -> None:
    assert load(str(SHARED / "tiny_imagenet_small")).shape == (3, 64, 64)


# -- files that vanish -------------------------------------------------------------------------------------------------


def test_what_lies_beside_the_images_is_counted_and_named(tmp_path: Path) -> None:  # case 338
    pictures(tmp_path, "train/a/1.png", "train/b/1.png", "test/a/1.png", "test/b/1.png")
    for name in ("train/a/noending", "train/a/x.heic", "train/labels.csv", "test/b/deep/Thumbs.db"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("no image")
    (tmp_path / "train/empty/deeper").mkdir(parents=True)
    expected = (
        "train/a/noending", "train/a/x.heic", "train/empty (no images)", "train/labels.csv", "test/b/deep/Thumbs.db",
    )  # fmt: skip
    for _ in range(2):  # as it was read, and as the cache has it
        data = load(str(tmp_path))
        assert data.left_out == expected
        assert data.classes == ("a", "b")
    (tmp_path / "train/a/noending").unlink()
    assert load(str(tmp_path)).left_out == expected[1:]


@pytest.mark.parametrize("ending", ["jfif", "jpe", "tga", "JFIF", "pnm", "pbm"])
def test_images_with_a_less_common_ending_are_read(tmp_path: Path, ending: str) -> None:  # case 338
    form = {"tga": "TGA", "pnm": "PPM", "pbm": "PPM"}.get(ending, "JPEG")
    pictures(tmp_path, "train/a/1.png", "train/b/1.png", "test/a/1.png")
    Image.fromarray(grey(200)).save(tmp_path / f"train/b/2.{ending}", form)
    data = load(str(tmp_path))
    assert data.train.inputs[:, 0, 0, 0].tolist() == [1, 2, 200]
    assert data.left_out == ()


def test_hidden_folders_are_no_classes(tmp_path: Path) -> None:  # case 338
    pictures(tmp_path, "train/a/1.png", "train/.ipynb_checkpoints/1.png", "train/b/.cache/1.png", "train/b/1.png")
    pictures(tmp_path, "test/a/1.png", "test/.hidden/1.png")
    data = load(str(tmp_path))
    assert (data.classes, len(data.train), data.left_out) == (("a", "b"), 2, ())


def test_one_class_alone_is_refused_with_what_was_found(tmp_path: Path) -> None:  # case 338
    pictures(tmp_path, "train/images/1.png", "test/images/1.png")
    (tmp_path / "train" / "dog.heic").write_text("no image")
    with pytest.raises(
        InputError,
        match=r"train' has one class, 'images'; must be images train/CLASS/NAME.*; left out: train/dog\.heic$",
    ):
        load(str(tmp_path))


@pytest.mark.parametrize("parts", [["images"], ["one", "two"]])
def test_class_folders_that_hold_folders_are_refused_with_what_was_found(tmp_path: Path, parts: list[str]) -> None:
    for part in parts:  # case 338
        pictures(
            tmp_path, *(f"{split}/{part}/{label}/1.png" for split in ("train", "test") for label in ("cat", "dog"))
        )
    with pytest.raises(InputError, match=rf"train/{parts[0]}' has several folders of images, cat, dog; images must be"):
        load(str(tmp_path))


def test_a_class_may_hold_one_folder_and_a_client_one_class(tmp_path: Path) -> None:  # as Tiny-ImageNet has it
    pictures(tmp_path / "one", "train/cat/images/1.png", "train/dog/images/1.png", "test/cat/images/1.png")
    pictures(tmp_path / "two", "train/cat/1.png", "test/cat/1.png")
    (tmp_path / "two" / "train" / "cat" / "boxes.txt").write_text("no image")
    assert load(str(tmp_path / "one")).classes == ("cat", "dog")
    data = load(str(tmp_path))
    assert data.columns["client"][0].tolist() == ["one", "one", "two"]
    assert data.left_out == ("two/train/cat/boxes.txt",)
