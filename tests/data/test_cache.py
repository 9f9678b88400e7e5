from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

from kinfed.data import Dataset, cache, load, loading, splits
from kinfed.data.cache import cache_folder
from kinfed.data.formats.arrays import keep_arrays
from kinfed.errors import InputError
from tests.data.test_loading import SHARED, grey, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder with two images a split."""
    folder = tmp_path / "data"
    for split in ("train", "test"):
        write(folder, split, [grey(1), grey(2)], [0, 1])
    return folder


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files count as old at once."""
    monkeypatch.setattr(loading, "RACY_SECONDS", -60)


@pytest.fixture
def decodings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is decoded while the test runs."""
    decoded: list[str] = []
    original = splits.decode
    monkeypatch.setattr(splits, "decode", lambda images, how: decoded.append(images.names[0]) or original(images, how))
    return decoded


def entries() -> list[Path]:
    return sorted(path for path in cache_folder().iterdir() if path.name != "seen")


def values(data: Dataset) -> list[int]:
    return data.train.inputs[:, 0, 0, 0].tolist()


def test_the_same_content_elsewhere_is_not_decoded_again(folder: Path, decodings: list[str]) -> None:
    load(str(folder))
    folder.rename(folder.parent / "moved")
    moved = load(str(folder.parent / "moved"))
    assert moved.name == str(folder.parent / "moved")
    assert len(decodings) == 2
    assert len(entries()) == 1


@pytest.mark.usefixtures("settled")
def test_files_that_have_not_changed_are_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(str(folder))
    monkeypatch.setattr(loading.hashlib, "file_digest", lambda *_: pytest.fail("a file was read"))
    assert values(load(str(folder))) == [1, 2]


@pytest.mark.usefixtures("settled")
def test_a_file_with_the_old_size_and_time_but_another_content_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "mine.npz"

    def saved(*pixels: int) -> os.stat_result:
        x = np.array(pixels, dtype=np.uint8).reshape(-1, 1, 1)
        np.savez(file, x_train=x, y_train=[0, 1], x_test=x, y_test=[0, 1])
        return file.stat()

    before = saved(1, 2)
    load(str(file))
    time.sleep(0.02)  # more than the grain of times
    after = saved(1, 9)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (after.st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert values(load(str(file))) == [1, 9]


def test_a_file_that_is_new_is_read_again_as_its_time_says_too_little(folder: Path) -> None:
    load(str(folder))
    assert not (cache_folder() / "seen").exists()
    write(folder, "train", [grey(1), grey(9)], [0, 1])
    assert values(load(str(folder))) == [1, 9]


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("damage", ["truncated", "missing", "no json"])
def test_a_damaged_entry_is_made_anew(folder: Path, decodings: list[str], damage: str) -> None:
    load(str(folder))
    (entry,) = entries()
    if damage == "truncated":
        (entry / "train_inputs.npy").write_bytes((entry / "train_inputs.npy").read_bytes()[:150])
    elif damage == "missing":
        (entry / "test_labels.npy").unlink()
    else:
        (entry / "about.json").write_text("")
    with pytest.warns(UserWarning, match="is damaged and is created again"):
        assert values(load(str(folder))) == [1, 2]
    assert len(decodings) == 4
    assert values(load(str(folder))) == [1, 2]
    assert len(decodings) == 4


def test_the_entry_is_mapped_and_writing_to_it_does_not_reach_the_file(folder: Path) -> None:
    load(str(folder))
    data = load(str(folder))
    data.train.inputs[0] = 77
    assert values(load(str(folder))) == [1, 2]
    (entry,) = entries()
    assert str(entry / "train_inputs.npy") in Path("/proc/self/maps").read_text()


def test_an_entry_holds_arrays_and_json_and_no_pickle(folder: Path) -> None:
    load(str(folder))
    (entry,) = entries()
    assert {path.suffix for path in entry.iterdir()} == {".npy", ".json"}
    for path in entry.glob("*.npy"):
        np.load(path, allow_pickle=False)
    assert json.loads((entry / "about.json").read_text())["classes"] == ["0", "1"]


def test_a_cache_that_cannot_be_written_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder.parent / "file").write_text("in the way")
    monkeypatch.setenv("KINFED_CACHE", str(folder.parent / "file" / "cache"))
    with pytest.raises(
        InputError, match=r"cache: '.*file/cache' cannot be written: Not a directory; set \$KINFED_CACHE"
    ):
        load(str(folder))


def test_a_data_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / split / "a").mkdir(parents=True)
        (tmp_path / split / "a" / "x.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(InputError, match=r"data: .*train/a/x\.png cannot be read: No such file"):
        load(str(tmp_path))


def _load_slowly(folder: str) -> None:
    original = np.save

    def save(*arguments: object, **more: object) -> None:
        original(*arguments, **more)  # type: ignore[arg-type]
        time.sleep(60)

    np.save = save  # type: ignore[assignment]
    load(folder)


@pytest.mark.slow
def test_a_kill_while_writing_leaves_no_entry(folder: Path) -> None:
    child = multiprocessing.get_context("spawn").Process(target=_load_slowly, args=(str(folder),))
    child.start()
    while child.is_alive() and not [*cache_folder().glob(".unfinished-*/*.npy")]:
        time.sleep(0.01)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert {path.name.split("-")[0] for path in entries()} == {".unfinished"}
    assert values(load(str(folder))) == [1, 2]
    assert len(entries()) == 1  # what it left is gone


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "mnist").is_dir(), reason="the shared data sets are not here")
def test_mnist_is_there_at_once_the_second_time(decodings: list[str]) -> None:
    load(str(SHARED / "mnist"))
    start = time.perf_counter()
    data = load(str(SHARED / "mnist"))
    assert time.perf_counter() - start < 0.3
    assert len(decodings) == 2
    assert data.train.inputs.shape == (60000, 1, 28, 28)
    assert len(np.unique(data.columns["writer_id"][0])) == 539
    assert len(np.unique(data.columns["writer_id"][1])) == 297


# -- what is read from the cache is not trusted -----------------------------------------------------------------------


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize(
    "text", ["", ".", "..", "foreign", "../outside", "{outside}", "{key}\n", "\x00", "\udcff", "x" * 9999]
)
def test_a_note_that_names_no_entry_is_no_reason_to_delete_anything(  # case 301
    folder: Path, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINFED_CACHE", str(tmp_path / "cache"))
    load(str(folder))
    (entry,) = entries()
    outside = cache_folder().parent / "outside"
    for own in (outside, cache_folder() / "foreign"):
        own.mkdir()
        for name in ("about.json", "train_inputs.npy", "thesis.tex"):
            (own / name).write_text("mine")
    (note,) = (cache_folder() / "seen").iterdir()
    note.write_bytes(os.fsencode(text.format(outside=outside, key=entry.name)))
    assert values(load(str(folder))) == [1, 2]
    assert [path.name for own in (outside, cache_folder() / "foreign") for path in sorted(own.iterdir())] == [
        "about.json", "thesis.tex", "train_inputs.npy",
    ] * 2  # fmt: skip
    assert note.read_text() == entry.name
    assert entry.is_dir()


@pytest.mark.usefixtures("settled")
def test_what_kinfed_did_not_write_stays_in_a_damaged_entry(folder: Path) -> None:  # case 301
    load(str(folder))
    (entry,) = entries()
    (entry / "thesis.tex").write_text("mine")
    (entry / "about.json").write_text("[]")
    with pytest.warns(UserWarning, match="damaged"):
        assert values(load(str(folder))) == [1, 2]
    assert [path.name for path in entry.iterdir()] == ["thesis.tex"]


@pytest.mark.usefixtures("settled")
def test_a_damaged_entry_that_is_a_link_is_not_emptied(folder: Path, tmp_path: Path) -> None:  # case 301
    load(str(folder))
    (entry,) = entries()
    entry.rename(tmp_path / "elsewhere")
    entry.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "about.json").write_text("[]")
    before = sorted(path.name for path in (tmp_path / "elsewhere").iterdir())
    with pytest.warns(UserWarning, match="damaged"):
        assert values(load(str(folder))) == [1, 2]
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == before


@pytest.mark.usefixtures("settled")
def test_each_flipped_bit_of_an_entry_is_found(folder: Path) -> None:  # case 305
    load(str(folder))
    (entry,) = entries()
    whole = {path: path.read_bytes() for path in sorted(entry.iterdir())}
    for path, content in whole.items():
        for at in (0, 10, len(content) // 2, len(content) - 1):
            for file, right in whole.items():
                entry.mkdir(exist_ok=True)
                file.write_bytes(right)
            damaged = bytearray(content)
            damaged[at] ^= 1 << at % 8
            path.write_bytes(damaged)
            with pytest.warns(UserWarning, match="is damaged and is created again"):
                data = load(str(folder))
            assert (values(data), data.train.labels.tolist(), data.classes) == ([1, 2], [0, 1], ("0", "1"))  # type: ignore[union-attr]


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("about", ["[]", "3", "{}", '{"checksum": 0}', "[" * 100_000, "\x00"])
def test_about_json_may_hold_anything(folder: Path, about: str) -> None:  # cases 305, 311
    load(str(folder))
    (entry,) = entries()
    (entry / "about.json").write_text(about)
    with pytest.warns(UserWarning, match="is damaged and is created again"):
        assert values(load(str(folder))) == [1, 2]
    assert values(load(str(folder))) == [1, 2]


@pytest.mark.usefixtures("settled")
def test_a_whole_entry_is_read_once_a_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(str(folder))
    monkeypatch.setattr(cache.zlib, "crc32", lambda _: pytest.fail("a file was read again"))
    assert values(load(str(folder))) == [1, 2]


def test_a_note_that_cannot_be_written_is_no_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(str(folder))
    monkeypatch.setattr(loading, "RACY_SECONDS", -60)
    (cache_folder() / "seen").write_text("in the way")
    assert values(load(str(folder))) == [1, 2]


def test_only_what_nobody_is_writing_any_more_is_cleaned_up(folder: Path) -> None:
    dead, alive, foreign = (
        cache_folder() / name for name in (f".unfinished-{'a' * 32}", f".unfinished-{'b' * 32}", ".unfinished-x")
    )
    for left in (dead, alive, foreign):
        left.mkdir(parents=True)
        (left / "train_inputs.npy").write_text("half")
    (dead / "thesis.tex").write_text("mine")
    with FileLock(f"{alive}.lock"):
        load(str(folder))
        assert [path.name for path in dead.iterdir()] == ["thesis.tex"]
        assert [path.name for path in alive.iterdir()] == ["train_inputs.npy"]
    load(str(folder), channels=3)
    assert not alive.exists()
    assert [path.name for path in foreign.iterdir()] == ["train_inputs.npy"]


# -- arrays from Python ------------------------------------------------------------------------------------------------


def kept() -> Path:
    x = np.arange(8, dtype=np.uint8).reshape(2, 2, 2)
    return keep_arrays(x, ["a", "b"], x, ["a", "b"])


@pytest.mark.parametrize("at", [0, 40, 150, 300, -200, -1])
def test_arrays_that_the_disk_has_damaged_are_written_anew(at: int) -> None:  # case 305
    whole = kept().read_bytes()
    damaged = bytearray(whole)
    damaged[at] ^= 16
    kept().write_bytes(damaged)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        path = kept()
    with np.load(path, allow_pickle=False) as arrays:
        assert arrays["x_train"].tolist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
        assert arrays["y_test"].tolist() == ["a", "b"]
    if path.read_bytes() != damaged:  # some bits of an archive mean nothing
        assert [str(warning.message) for warning in told] == [f"cache: {str(path)!r} is damaged and is written again"]


def test_damaged_arrays_are_not_used_by_a_run_that_goes_on() -> None:  # case 305
    path = kept()
    content = path.read_bytes()
    at = content.index(bytes(range(8)))
    path.write_bytes(content[:at] + b"\x09" + content[at + 1 :])
    with pytest.raises(InputError, match=r"arrays/[0-9a-f]{32}\.npz cannot be read.*CRC"):
        load(str(path))


def test_arrays_that_no_run_could_use_are_refused_before_they_are_kept() -> None:
    x = np.zeros((2, 3))
    assert keep_arrays(x, np.array(["a", "b"], dtype=object), x, ["a", "b"]).is_file()
    for odd in (np.array([[None], [{}]], dtype=object), np.array([["a"], [None]], dtype=object)):
        with pytest.raises(InputError, match="x_train: object of shape"):
            keep_arrays(odd, [0, 1], x, [0, 1])
    with pytest.raises(InputError, match=r"y_test: the label 0.5 is not allowed"):
        keep_arrays(x, [0, 1], x, [0, 0.5])
    assert not [*(cache_folder() / "arrays").glob(".unfinished-*")]


def test_a_cache_that_cannot_keep_arrays_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("KINFED_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"cache: .*cannot be written: Not a directory; set \$KINFED_CACHE"):
        kept()
