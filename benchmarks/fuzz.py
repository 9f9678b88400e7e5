"""Arbitrary and mutated bytes for everything that kinfed reads: does each reader give a value, or one line?

A reader is given a valid folder of its kind, one or two files of which were changed: bits and numbers, pieces cut
out, doubled or put in, or the whole replaced. It must return, or raise an `InputError` of one line, within 20 seconds,
and in 1.5 GiB more memory than the process has at the start. ``python benchmarks/fuzz.py --minutes 10`` does so for all
readers in turn, and prints how many inputs each had and how many lines of its modules they reached.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException

import kinfed
from kinfed.errors import InputError

SECONDS, MEMORY = 20, 3 * 2**29
NUMBERS = (b"-1", b"0", b"1e999", b"99999999999999999999", b"null", b'"x"', b"NaN", b"[]", b"{}", b"true", b"\\ud800")
WORDS = (b"\xff" * 4, b"\x00" * 4, b"\xff" * 8, b"\x7f\xff\xff\xff", b"\x00\x00\x01\x00\x00\x00\x00\x00")


@dataclass(frozen=True)
class Reader:
    """One kind of input.

    Attributes:
        make: Writes a valid one into an empty folder.
        read: Reads a folder of that kind.
        modules: Those whose lines are counted.
        mutable: Pattern of the files in the folder that are changed.
    """

    make: Callable[[Path], object]
    read: Callable[[Path], object]
    modules: tuple[str, ...]
    mutable: str = "*"


# -- valid inputs -----------------------------------------------------------------------------------------------------


def _arrays() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    images = {name: rng.integers(0, 256, (count, 6, 6), dtype=np.uint8) for name, count in (("train", 12), ("test", 6))}
    return {
        "x_train": images["train"], "y_train": np.arange(12) % 3, "x_test": images["test"], "y_test": np.arange(6) % 3,
    }  # fmt: skip


def _png(pixels: np.ndarray) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def _idx(folder: Path, packed: bool = False) -> None:
    import gzip

    named = {"train-images-idx3": "x_train", "train-labels-idx1": "y_train", "t10k-images-idx3": "x_test",
             "t10k-labels-idx1": "y_test"}  # fmt: skip
    for name, key in named.items():
        values = _arrays()[key].astype(np.uint8)
        head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
        content = head + values.tobytes()
        (folder / f"{name}-ubyte{'.gz' if packed else ''}").write_bytes(gzip.compress(content) if packed else content)


def _parquet(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = _arrays()
    for split in ("train", "test"):
        images = [{"bytes": _png(pixels), "path": None} for pixels in arrays[f"x_{split}"]]
        table = pa.table(
            {"image": images, "label": arrays[f"y_{split}"], "writer": [f"w{k}" for k in range(len(images))]}
        )
        pq.write_table(table, folder / f"{split}.parquet")


def _images(folder: Path) -> None:
    arrays = _arrays()
    for split in ("train", "test"):
        for i, (pixels, label) in enumerate(zip(arrays[f"x_{split}"], arrays[f"y_{split}"], strict=True)):
            path = folder / split / f"class{label}" / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_png(pixels))


def _rows(folder: Path) -> None:
    from kinfed.data import Federation, Partition, load, save_rows

    parts = [np.arange(0, 700), np.arange(700, 1390)], [np.arange(0, 200), np.arange(200, 397)]
    save_rows(Federation(load("digits"), Partition(*parts), np.arange(1390, 1400)), folder / "rows.json")


def _run(folder: Path) -> None:
    """A finished comparison, whose files other readers take theirs from, too."""
    kinfed.compare(
        ["fedper", "fedshibu"], out=folder / "run", clients=4, partition="iid", rounds=2, ft_epochs=0, quiet=True,
        checkpoint_every=1,
    )  # fmt: skip


def _part(*names: str) -> Callable[[Path], None]:
    """Some files or folders of that comparison."""

    def make(folder: Path) -> None:
        for name in names:
            source = valid(READERS["report"]) / "run" / "fedper-seed0" / name
            target = folder / source.name
            shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)

    return make


def _cached(folder: Path) -> None:
    from kinfed.data import load

    (folder / "data").mkdir()
    np.savez(folder / "data" / "a.npz", **_arrays())
    os.utime(folder / "data" / "a.npz", (0, 0))
    with _cache(folder / "cache"):
        load(str(folder / "data"))


def _activations(folder: Path) -> None:
    from safetensors.numpy import save_file

    rows = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)
    np.save(folder / "a.npy", rows)
    np.savez(folder / "b.npz", one=rows, two=rows[:, :2])
    save_file({"one": rows}, folder / "c.safetensors")


# -- readers ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _cache(folder: Path) -> Iterator[None]:
    before = os.environ.get("KINFED_CACHE")
    os.environ["KINFED_CACHE"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("KINFED_CACHE")
        if before is not None:
            os.environ["KINFED_CACHE"] = before


def _load(folder: Path) -> object:
    from kinfed.data import load

    with tempfile.TemporaryDirectory() as cache, _cache(Path(cache)):
        return load(str(folder))


def _load_cached(folder: Path) -> object:
    from kinfed.data import load

    with _cache(folder / "cache"):
        return load(str(folder / "data"))


def _report(folder: Path) -> object:
    from kinfed.report.folders import read_runs
    from kinfed.report.notes import notes
    from kinfed.report.rows import setting
    from kinfed.report.table import table
    from kinfed.report.verdict import verdict

    runs = read_runs([folder / "run"])
    return table(runs).fitted(80), setting(runs), verdict(runs), notes(runs)


def _config(folder: Path) -> object:
    from kinfed.experiment.config import Config
    from kinfed.experiment.config_file import read_toml

    return Config.checked(read_toml(folder / "config.toml"))


def _open_rows(folder: Path) -> object:
    from kinfed.data import load, open_rows

    return open_rows(load("digits"), folder / "rows.json")


def _resume(folder: Path) -> object:
    from kinfed.engine import RunFolder

    identity = json.loads((folder / "identity").read_text())  # what a config says, and no file of this folder
    return RunFolder(folder, identity).last_checkpoint()


def _checkpoint(folder: Path) -> None:
    from kinfed.models import read_tensors

    _part("checkpoints", "memories", "metrics.jsonl", "seconds.jsonl")(folder)
    identity = read_tensors(folder / "checkpoints" / "round-000002.safetensors")[1]["identity"]
    (folder / "identity").write_text(json.dumps(identity))


def _pool(folder: Path) -> object:
    from kinfed.models import open_pool

    return open_pool(folder / "models")


def _load_model(folder: Path) -> object:
    return [kinfed.load(path) for path in sorted((folder / "models").glob("*.safetensors"))]


def _load_activations(folder: Path) -> object:
    from kinfed.similarity import load_activations

    return [load_activations(path) for path in sorted(folder.iterdir())]


DATA = ("kinfed.data.loading", "kinfed.data.splits", "kinfed.data.classes")
READERS: dict[str, Reader] = {
    "idx": Reader(_idx, _load, ("kinfed.data.formats.idx", *DATA)),
    "idx.gz": Reader(lambda folder: _idx(folder, packed=True), _load, ("kinfed.data.formats.idx",)),
    "npz": Reader(lambda folder: np.savez(folder / "a.npz", **_arrays()), _load, ("kinfed.data.formats.npz",)),
    "npz, packed": Reader(
        lambda folder: np.savez_compressed(folder / "a.npz", **_arrays()), _load, ("kinfed.data.formats.npz",)
    ),
    "parquet": Reader(_parquet, _load, ("kinfed.data.formats.parquet",)),
    "images": Reader(_images, _load, ("kinfed.data.formats.folders", "kinfed.data.images")),
    "cache entry": Reader(_cached, _load_cached, ("kinfed.data.cache",), "cache/**/*"),
    "partition": Reader(_rows, _open_rows, ("kinfed.data.partitions.saved",)),
    "config": Reader(_part("config.toml"), _config, ("kinfed.experiment.config",)),
    "report": Reader(_run, _report, ("kinfed.report.folders", "kinfed.report.table"), "run/**/*.json*"),
    "checkpoint": Reader(
        _checkpoint,
        _resume,
        ("kinfed.engine.folder", "kinfed.engine.client_store", "kinfed.models.tensor_files"),
        "[cm]*/**/*",
    ),
    "model and card": Reader(
        _part("models"),
        _load_model,
        ("kinfed.models.saved", "kinfed.models.card", "kinfed.experiment.predictor"),
        "**/*",
    ),
    "pool": Reader(_part("models"), _pool, ("kinfed.models.pool",), "**/*"),
    "activations": Reader(_activations, _load_activations, ("kinfed.similarity.layers",)),
}  # fmt: skip

_VALID: dict[str, Path] = {}


def valid(reader: Reader) -> Path:
    """The valid folder of a reader, made once."""
    name = next(name for name, other in READERS.items() if other is reader)
    if name not in _VALID:
        folder = Path(tempfile.mkdtemp(prefix="kinfed-fuzz-"))
        reader.make(folder)
        reader.read(folder)
        _VALID[name] = folder
    return _VALID[name]


# -- mutations --------------------------------------------------------------------------------------------------------


@st.composite
def mutated(draw: st.DrawFn, content: bytes) -> bytes:
    """Some bytes changed in a few places, or replaced as a whole."""
    if draw(st.integers(0, 15)) == 0:
        return draw(st.binary(max_size=300))
    for _ in range(draw(st.integers(1, 4))):
        at, length = draw(st.integers(0, len(content))), draw(st.sampled_from((1, 1, 2, 4, 8, 30, 500)))
        kind = draw(st.sampled_from(("flip", "cut", "double", "insert", "word", "number", "end", "deep")))
        piece = content[at : at + length]
        if kind == "flip" and piece:
            piece = bytes([piece[0] ^ 1 << draw(st.integers(0, 7))]) + piece[1:]
        elif kind == "cut":
            piece = b""
        elif kind == "double":
            piece *= draw(st.sampled_from((2, 2, 100)))
        elif kind == "insert":
            piece = draw(st.binary(max_size=16)) + piece
        elif kind == "word":
            length, piece = 8, draw(st.sampled_from(WORDS))
        elif kind == "deep":
            piece = draw(st.sampled_from((b"[", b'{"a":'))) * 3000
        elif kind == "number":  # in the place of the next one that is written in digits
            while at < len(content) and not content[at : at + 1].isdigit():
                at += 1
            length = next((n for n in range(20) if not content[at + n : at + n + 1].isdigit()), 20)
            piece = draw(st.sampled_from(NUMBERS))
        content = content[:at] + piece + (b"" if kind == "end" else content[at + length :])
    return content


# -- one input --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _within(seconds: int) -> Iterator[None]:
    def late(number: int, frame: object) -> None:
        raise TimeoutError(f"took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def check(reader: Reader, data: st.DataObject) -> None:
    """One mutated input. Whatever is raised but an `InputError` of one line is a fault."""
    whole = valid(reader)
    paths = sorted(path for path in whole.glob(reader.mutable) if path.is_file())
    paths = paths or sorted(path for path in whole.rglob("*") if path.is_file())
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "input"
        shutil.copytree(whole, folder)
        for path in data.draw(st.lists(st.sampled_from(paths), min_size=1, max_size=2, unique=True)):
            (folder / path.relative_to(whole)).write_bytes(data.draw(mutated(path.read_bytes())))
        with _within(SECONDS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                reader.read(folder)
            except InputError as error:
                told = str(error)
                if len(told.splitlines()) != 1 or not told.isprintable():
                    raise AssertionError(f"not one printable line: {told!r}") from error


def fuzz(reader: Reader, examples: int, number: int) -> int:
    """So many inputs of a seed's; returns how many there were."""
    done = 0

    @seed(number)
    @settings(
        max_examples=examples, deadline=None, database=None, phases=(Phase.generate, Phase.shrink),
        suppress_health_check=[*HealthCheck],
    )  # fmt: skip
    @given(st.data())
    def run(data: st.DataObject) -> None:
        nonlocal done
        done += 1
        check(reader, data)

    run()
    return done


def main() -> None:
    """Fuzz all readers in turn, tell what they did."""
    import coverage

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--readers", default=",".join(READERS))
    parser.add_argument("--seed", type=int, default=0)
    given_ = parser.parse_args()
    names = [name for name in READERS if name in given_.readers.split(",")]
    modules = {module for name in names for module in READERS[name].modules}
    sources = [
        str(Path(kinfed.__file__).parent.joinpath(*module.split(".")[1:]).with_suffix(".py")) for module in modules
    ]
    covered = coverage.Coverage(include=sources, data_file=None)
    covered.start()
    for name in names:
        valid(READERS[name])
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, held + MEMORY))
    inputs, faults = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    ends, number = time.monotonic() + 60 * given_.minutes, given_.seed
    while time.monotonic() < ends:
        for name in names:
            try:
                inputs[name] += fuzz(READERS[name], 100, number)
            except HypothesisException:
                raise
            except Exception as error:
                faults[name] += 1
                print(f"{name}: {type(error).__name__}: {error}\n{''.join(traceback.format_exception(error)[-6:])}")
        number += 1
    covered.stop()
    for name in names:
        reached = []
        for module in READERS[name].modules:
            _, lines, _, missing, _ = covered.analysis2(importlib.import_module(module))
            reached.append(f"{module} {1 - len(missing) / len(lines):.0%}")
        print(f"{name}: {inputs[name]} inputs, {faults[name]} faults; lines reached: {', '.join(reached)}")
    print(f"seeds {given_.seed} to {number - 1}, {sum(inputs.values())} inputs, {sum(faults.values())} faults")
    sys.exit(any(faults.values()))


def _clean_up() -> None:
    for folder in _VALID.values():
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    try:
        main()
    finally:
        _clean_up()
