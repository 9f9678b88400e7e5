from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kinfed.data import Dataset, load, sources, splits
from kinfed.data.cache import cache_folder
from kinfed.errors import InputError
from tests.data.test_sources import SHARED, grey, write


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
    monkeypatch.setattr(sources, "RACY_SECONDS", -60)


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
    monkeypatch.setattr(sources.hashlib, "file_digest", lambda *_: pytest.fail("a file was read"))
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
    with pytest.raises(InputError, match=r"cache: '.*file/cache' cannot be written: Not a directory; \$KINFED_CACHE"):
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


def test_a_kill_while_writing_leaves_no_entry(folder: Path) -> None:
    child = multiprocessing.get_context("spawn").Process(target=_load_slowly, args=(str(folder),))
    child.start()
    while child.is_alive() and not [*cache_folder().glob(".unfinished-*/*.npy")]:
        time.sleep(0.01)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert [path.name.split("-")[0] for path in entries()] == [".unfinished"]
    assert values(load(str(folder))) == [1, 2]


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
