"""Files that lie about their size, lead elsewhere, or hold something else: a value or one line, in bounded memory."""

from __future__ import annotations

import gzip
import io
import os
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from kinfed.data import images, load
from kinfed.data.formats.idx import read_idx
from kinfed.data.formats.npz import NpzFile, read_npz
from kinfed.data.formats.parquet import ParquetFiles
from kinfed.data.images import Decoding, Encoded, decode
from kinfed.data.splits import Split, assemble
from kinfed.errors import InputError
from tests.data.test_formats import idx, idx_folder, pictures, table
from tests.data.test_loading import encoded, grey

MEGABYTE = 1 << 20


def refused(read: Callable[[], object], message: str, memory: int = 8 * MEGABYTE) -> None:
    """It ends with one line, and never has more memory than that."""
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=message) as told:
            read()
        assert tracemalloc.get_traced_memory()[1] < memory
    finally:
        tracemalloc.stop()
    assert "\n" not in str(told.value)


# -- IDX ---------------------------------------------------------------------------------------------------------------


def header(*shape: int, kind: int = 8) -> bytes:
    return bytes([0, 0, kind, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header(*[1] * 255) + b"\7", "cannot be read: maximum supported dimension"),
        (header(), "is not an IDX file; it begins with 00 00 08 00"),
        (header(3)[:6], "cannot be read"),
        (header(2**32 - 1, 2**32 - 1, 2**32 - 1) + bytes(9), "but has 9 bytes$"),
        (header(*[2**32 - 1] * 255) + bytes(9), "but has 9 bytes$"),
        (header(20, 8, 8) + bytes(64 * MEGABYTE), "20×8×8 values of 1 bytes by its header, but has 1281 bytes or more"),
        (header(0, 2**32 - 1, 2**32 - 1, 2**32 - 1), "cannot be read: "),
    ],
    ids=["255 dimensions", "none", "cut", "2^96", "2^8160", "bomb", "nothing of much"],
)
def test_an_idx_file_is_believed_as_far_as_bytes_are_there(  # case 311
    tmp_path: Path, content: bytes, message: str, suffix: str
) -> None:
    file = tmp_path / f"train-images-idx3-ubyte{suffix}"
    file.write_bytes(gzip.compress(content, 1) if suffix else content)
    del content
    refused(lambda: read_idx(file), message)


def test_samples_without_pixels_are_no_images(tmp_path: Path) -> None:
    idx_folder(tmp_path, images=header(4, 0, 3))
    with pytest.raises(InputError, match="the shape 4×0×3 is not allowed; samples must have at least one value"):
        load(str(tmp_path))


# -- NumPy archives ----------------------------------------------------------------------------------------------------


def archive(file: Path, compression: int = zipfile.ZIP_DEFLATED, **members: bytes) -> Path:
    good = {"x_train": npy(np.zeros((2, 3))), "y_train": npy(np.arange(2))}
    with zipfile.ZipFile(file, "w", compression) as zipped:
        for key in ("x_train", "y_train", "x_test", "y_test"):
            zipped.writestr(f"{key}.npy", members.get(key, good[key.replace("test", "train")]))
    return file


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def lying(shape: str, dtype: str = "<f8", content: bytes = bytes(48)) -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + (len(text) + 1).to_bytes(2, "little") + text + b"\n" + content


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (lying("(1099511627776,)"), "cannot be read"),
        (lying("(1099511627776, 1099511627776)"), "cannot be read"),
        (lying(f"({10**30},)"), "cannot be read"),
        (lying("(-1, 3)"), "cannot be read"),
        (lying("(3, 3)"), "cannot be read"),
        (
            lying("(2, 3)", content=bytes(64 * MEGABYTE)),
            "x_train should have 48 bytes by its header, but has 49 bytes or more",
        ),
        (lying("(2, 3)", "|O"), "cannot be read without pickle"),
        (lying("(2, 3)", "|V0", b""), "cannot be read|are numbers"),
        (b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65535, "cannot be read"),
        (b"no array", "cannot be read"),
        (b"", "cannot be read"),
    ],
    ids=["2^40", "2^80", "1e30", "negative", "short", "long", "objects", "void", "nested", "other", "empty"],
)
def test_an_archive_is_believed_as_far_as_bytes_are_there(tmp_path: Path, member: bytes, message: str) -> None:
    file = archive(tmp_path / "t.npz", x_train=member)  # case 311
    del member
    refused(lambda: read_npz(file), message)


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_members_that_numpy_would_not_have_compressed_so_are_refused(tmp_path: Path, compression: int) -> None:
    bomb = lying("(2, 3)", content=bytes(64 * MEGABYTE))  # a few kilobytes that come out in one piece
    file = archive(tmp_path / "t.npz", compression, x_train=bomb)
    del bomb
    refused(lambda: read_npz(file), "has a compression that NumPy does not use")


def test_encrypted_and_unknown_members_are_told(tmp_path: Path) -> None:  # case 311
    content = archive(tmp_path / "t.npz").read_bytes()
    for offsets, value, message in (((6, 8), 1, "encrypted"), ((8, 10), 99, "compress")):
        changed = bytearray(content)
        for mark, offset in ((b"PK\3\4", offsets[0]), (b"PK\1\2", offsets[1])):
            changed[changed.index(mark) + offset] = value
        (tmp_path / "t.npz").write_bytes(changed)
        refused(lambda: read_npz(tmp_path / "t.npz"), f"cannot be read.*{message}")


def test_single_values_are_neither_inputs_nor_labels(tmp_path: Path) -> None:
    for key, message in (("x_train", "x_train is a single value"), ("y_train", r"labels have the shape \(\)")):
        archive(tmp_path / "t.npz", **{key: npy(np.array(3.0))})
        with pytest.raises(InputError, match=message):
            load(str(tmp_path / "t.npz"))


# -- tables ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """An image that lies beside the data folder."""
    Image.fromarray(grey(9)).save(tmp_path / "outside.png")
    (tmp_path / "data").mkdir()
    return tmp_path / "outside.png"


def tables(folder: Path, *cells: object, **columns: list[object]) -> str:
    for split in ("train", "test"):
        table(folder / f"{split}.parquet", image=[*cells], label=list(range(len(cells))), **columns)
    return str(folder)


@pytest.mark.parametrize(
    "named", ["../outside.png", "{folder}/../outside.png", "{outside}", "inner/../../outside.png", "link.png"]
)
def test_a_table_names_no_image_outside_of_its_folder(outside: Path, named: str) -> None:  # case 311
    folder = outside.parent / "data"
    (folder / "link.png").symlink_to(outside)
    data = tables(folder, {"bytes": None, "path": named.format(folder=folder, outside=outside)})
    for how in ("stop", "skip"):
        with pytest.raises(
            InputError, match=r"train.parquet, row 0 names the image '.*', which is outside of '.*data'"
        ):
            load(data, on_error=how)  # type: ignore[arg-type]


def test_text_in_the_place_of_bytes_is_no_path(outside: Path) -> None:
    data = tables(outside.parent / "data", {"bytes": str(outside), "path": "x.png"})
    with pytest.raises(InputError, match="row 0: the image cannot be decoded: it is empty"):
        load(data)


def test_images_that_a_table_names_are_part_of_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinfed.data.loading.RACY_SECONDS", -60)
    inside = tmp_path / "images" / "x.png"
    for value in (7, 8):
        pictures(tmp_path, "images/x.png")
        Image.fromarray(grey(value)).save(inside)
        data = tables(tmp_path, {"bytes": None, "path": "images/x.png"}, {"bytes": None, "path": str(inside)})
        assert load(data).train.inputs.unique().tolist() == [value]


def test_rows_that_no_bytes_stand_for_are_not_believed(tmp_path: Path) -> None:
    nothing = pa.nulls(2_000_000, pa.binary())
    for split in ("train", "test"):
        pq.write_table(
            pa.table({"image": nothing, "label": np.zeros(len(nothing), int)}), tmp_path / f"{split}.parquet"
        )
    refused(lambda: load(str(tmp_path)), r"train.parquet cannot have 2,000,000 rows in [\d,]+ bytes")


def test_long_text_is_neither_a_class_nor_a_group(tmp_path: Path) -> None:
    image = {"bytes": encoded(grey(1)), "path": None}
    data = tables(tmp_path, image, image, caption=["a", "b" * 10_000], ward=["c", "d"])
    assert [*load(data).columns] == ["ward"]
    for split in ("train", "test"):
        table(tmp_path / f"{split}.parquet", image=[image, image], label=["a", "b" * 10_000])
    with pytest.raises(InputError, match="has a label of 10,000 characters; must be at most 256"):
        load(data)


def test_a_table_with_text_that_is_none_is_told(tmp_path: Path) -> None:
    broken = pa.array([b"\xff"], pa.binary()).view(pa.string())
    image = pa.array([encoded(grey(1))])
    for split in ("train", "test"):
        pq.write_table(pa.table({"image": image, "label": broken}), tmp_path / f"{split}.parquet")
    with pytest.raises(InputError, match=r"train.parquet cannot be read as a table: .*utf-8"):
        load(str(tmp_path))


# -- images ------------------------------------------------------------------------------------------------------------


def test_an_image_of_too_many_pixels_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures(tmp_path, "train/a/1.png", "train/b/1.png", "test/a/1.png")
    for most in (40, 20):  # PIL warns of more than so many, and refuses more than twice as many
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", most)
        refused(lambda: load(str(tmp_path)), r"a/1\.png: the image cannot be decoded: Image size \(64 pixels\) exceeds")


def test_images_of_another_size_end_the_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []
    original = images._one
    monkeypatch.setattr(images, "_one", lambda *given: decoded.append(given[0]) or original(*given))
    files = [encoded(grey(1, side)) for side in (8, 8, 2000, *range(3, 200))]
    with pytest.raises(InputError, match="of different sizes, 2000×2000 and 8×8"):
        decode(Encoded([str(i) for i in range(len(files))], files), Decoding())
    assert decoded == ["0", "1", "2"]


def test_no_program_is_started_to_decode_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    page = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_: pytest.fail("Ghostscript was started"))
    with pytest.raises(InputError, match="its format is not known to PIL"):
        decode(Encoded(["x.png"], [page]), Decoding())


def test_what_takes_more_memory_than_there_is_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hungry(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 14 TiB")

    pictures(tmp_path, "train/a/1.png", "train/b/1.png", "test/a/1.png")
    monkeypatch.setattr(images.np, "empty", hungry)
    with pytest.raises(InputError, match="needs more memory than is available: Unable to allocate 14 TiB"):
        load(str(tmp_path))


# -- folders -----------------------------------------------------------------------------------------------------------

GOOD = ("train/a/1.png", "train/a/2.png", "train/b/1.png", "test/a/1.png", "test/b/1.png")


def pixels(folder: Path) -> list[int]:
    return load(str(folder)).train.inputs[:, 0, 0, 0].tolist()


@pytest.mark.parametrize("target", [".", "..", "../..", "../../..", "../../test", "{outside}"])
def test_links_are_not_followed_upwards_or_out(outside: Path, target: str) -> None:  # case 311
    folder = outside.parent / "data"
    pictures(folder, *GOOD)
    pictures(outside.parent, "c/1.png")
    target = target.format(outside=outside.parent / "c")
    (folder / "train/a/link").symlink_to(target)
    before = load(str(folder))
    if target == "../../test":  # sideways, and what lies there once
        assert len(before.train) == 5
    else:
        assert len(before.train) == 3
        assert before.left_out == ("train/a/link (a link out, upwards, or to what is there already)",)


def test_links_lead_to_no_image_twice(outside: Path) -> None:  # case 311
    folder = outside.parent / "data"
    pictures(folder, *GOOD, "pool/7.png", "pool/8.png")
    Image.fromarray(grey(77)).save(folder / "pool" / "7.png")
    for name, target in (
        ("train/a/0.png", "../b/1.png"),  # there already
        ("train/a/3.png", "../../pool/7.png"),  # a farm of links
        ("train/b/3.png", "../../pool/7.png"),  # the second of its kind
        ("train/b/4.png", str(outside)),
        ("train/0", "b"),
        ("train/a/x", "../b"),
        ("train/b/y", "../a"),
    ):
        (folder / name).symlink_to(target)
    assert pixels(folder) == [1, 2, 77, 3]
    left = load(str(folder)).left_out
    assert [name.split(" ")[0] for name in left] == [
        "train/0", "train/a/0.png", "train/a/x", "train/b/3.png", "train/b/4.png", "train/b/y",
    ]  # fmt: skip


def test_a_split_or_a_client_that_is_a_link_out_is_told(tmp_path: Path) -> None:  # case 311
    pictures(tmp_path / "elsewhere", *GOOD)
    pictures(tmp_path / "data", *GOOD[-2:])
    (tmp_path / "data" / "train").symlink_to(tmp_path / "elsewhere" / "train")
    with pytest.raises(InputError, match=r"train' has no images; .*left out: train"):
        load(str(tmp_path / "data"))
    pictures(tmp_path / "clients" / "one", *GOOD)
    (tmp_path / "clients" / "two").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="has one folder per client, but 'two' is a link"):
        load(str(tmp_path / "clients"))


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    pictures(tmp_path, *GOOD)
    os.mkfifo(tmp_path / "train/a/pipe.png")
    os.mkfifo(tmp_path / "train-images-idx3-ubyte")
    os.mkfifo(tmp_path / "train.parquet")
    os.mkfifo(tmp_path / "a.npz")
    assert load(str(tmp_path)).left_out == ("train/a/pipe.png",)


@pytest.mark.parametrize("data", ["x" * 300, "a/" * 3000, "\0", "train.parquet/x"])
def test_a_path_that_cannot_be_one_is_told(data: str) -> None:
    with pytest.raises(InputError, match=r"^data: "):
        load(data)


# -- any bytes ---------------------------------------------------------------------------------------------------------


def whole_files() -> dict[str, list[bytes]]:
    """Small files of every kind."""
    pixels = np.random.default_rng(0).integers(0, 256, (6, 5, 5), dtype=np.uint8)
    colour = np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    arrays = {"x_train": pixels, "y_train": list("ababab"), "x_test": pixels, "y_test": list("ababab")}
    plain, compressed = io.BytesIO(), io.BytesIO()
    np.savez(plain, **arrays)  # type: ignore[arg-type]
    np.savez_compressed(compressed, **arrays)  # type: ignore[arg-type]
    rows = pa.table({"image": [{"bytes": encoded(p), "path": "x.png"} for p in pixels], "label": [0, 1] * 3})
    tables = []
    for how in ({}, {"compression": "none"}, {"data_page_version": "2.0", "use_dictionary": False}):
        buffer = io.BytesIO()
        pq.write_table(rows, buffer, **how)
        tables.append(buffer.getvalue())
    pictures = []
    for form in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "TGA", "JPEG2000"):
        buffer = io.BytesIO()
        Image.fromarray(colour).save(buffer, form)
        pictures.append(buffer.getvalue())
    flat = [idx(pixels), idx(pixels, ">f4")]
    return {
        "idx": flat, "gz": [gzip.compress(content) for content in flat],
        "npz": [plain.getvalue(), compressed.getvalue()], "parquet": tables, "image": pictures,
    }  # fmt: skip


def mutated(content: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.integers(1, 6)):
        at = int(rng.integers(len(changed))) if changed else 0
        match rng.integers(6):
            case 0:
                changed[at : at + 1] = bytes([rng.integers(256)])
            case 1:
                del changed[at:]
            case 2:
                changed[at : at + rng.integers(1, 9)] = rng.bytes(rng.integers(9))
            case 3:
                changed[at : at + 4] = (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", bytes(4), b"\x80\0\0\0")[
                    rng.integers(4)
                ]
            case 4:
                changed[at:at] = changed[max(at - 8, 0) : at]
            case _:
                changed[at : at + 1] = bytes([changed[at] ^ 1 << rng.integers(8)]) if changed else b""
    return bytes(changed)


def read(kind: str, content: bytes, folder: Path) -> None:
    """Whatever reads such a file, as far as a data set."""
    file = folder / {"gz": "a.gz", "npz": "a.npz", "parquet": "train.parquet"}.get(kind, "a")
    file.write_bytes(content)
    if kind == "image":
        decode(Encoded([str(file)], [file]), Decoding())
    elif kind == "npz":
        assemble("a", *NpzFile(file).read(), Decoding())
    elif kind == "parquet":
        files = ParquetFiles(folder, (file,), (file,))
        files.paths()
        assemble("a", *files.read(), Decoding(on_error="skip"))
    else:
        array = read_idx(file)
        split = [Split("a", array, np.arange(len(array)) % 2)]
        assemble("a", split, split, Decoding())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["idx", "gz", "npz", "parquet", "image"])
def test_any_bytes_give_a_value_or_one_line(kind: str, tmp_path: Path) -> None:  # case 311
    rng = np.random.default_rng(0)
    wholes = whole_files()[kind]
    (tmp_path / "x.png").touch()  # a table may name it
    ends = set()
    for _ in range(1500):
        content = mutated(wholes[rng.integers(len(wholes))], rng)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                read(kind, content, tmp_path)
            ends.add("value")
        except InputError:
            ends.add("line")
    assert ends == {"value", "line"}
