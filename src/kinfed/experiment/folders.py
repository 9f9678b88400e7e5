"""The folders of runs and comparisons: recognising, claiming and clearing them."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

from kinfed.engine.folder import RUN_FILES
from kinfed.errors import InputError
from kinfed.experiment.config import Config
from kinfed.experiment.config_file import MARK
from kinfed.files import LOCK, claimed, delete, written
from kinfed.labels import folder_name

__all__ = [
    "ADVICE", "COMPARISON", "COMPARISON_SUMMARIES", "CONFIG", "FEDERATION", "FILES", "SUMMARY", "TUNING", "check_room",
    "is_ours", "new_run", "run_folders",
]  # fmt: skip

CONFIG, COMPARISON, FEDERATION, SUMMARY = "config.toml", "comparison.toml", "federation.json", "summary.json"
COMPARISON_SUMMARIES = "comparison.json"
ADVICE = "advice.json"
TUNING = "tuning"  # folder of the trials of a tuning, in the folder of its comparison

FILES = re.compile(  # the files that a comparison or a run writes into its folder
    rf"(?:[\w+.=,-]+-seed\d+/|{TUNING}/[\w+.=,-]+/trial-\d+/)?(?:{RUN_FILES.pattern})"
    rf"|comparison\.(?:toml|json)|(?:table|advice)\.(?:json|md)|{TUNING}/(?:config\.toml|asked\.json|trials\.json|optuna\.log)"
)


def is_ours(folder: Path) -> bool:
    """Return True if a folder holds a run or a comparison: a config file that begins with kinfed's mark."""
    return any(_has_mark(folder / name) for name in (CONFIG, COMPARISON))


def _has_mark(path: Path) -> bool:
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.read(len(MARK)) == MARK.encode()
    return False


def run_folders(config: Config, out: Path) -> Iterator[tuple[str, int, Path]]:
    """Yield method, seed and folder of every run of a comparison, in the order of execution; or of a single run."""
    several = (out / COMPARISON).is_file()
    for seed in range(config.seed, config.seed + config.seeds):
        for method in config.methods:
            yield method, seed, out / folder_name(method, seed) if several else out


@contextlib.contextmanager
def new_run(out: Path, *, overwrite: bool) -> Iterator[None]:
    """Context manager that locks a folder for a new run or comparison, and clears it if it may be overwritten.

    Only files that kinfed wrote are deleted; a warning names the others.

    Args:
        out: The folder.
        overwrite: Clear a folder that holds a run or a comparison.

    Raises:
        InputError: If the folder cannot be written, is in use, or is not empty and may not be overwritten.
    """
    with claimed(out):
        check_room(out, overwrite=overwrite)
        delete(written(out, FILES), out, FILES)
        if left := sorted(path.name for path in out.iterdir() if path.name != LOCK):
            more = f" and {len(left) - 3} more" if len(left) > 3 else ""
            warnings.warn(
                f"{out} still contains files that kinfed did not write: {', '.join(left[:3])}{more}", stacklevel=3
            )
        yield


def check_room(out: Path, *, overwrite: bool) -> None:
    """Refuse a folder that is not empty, unless it holds a run or a comparison and may be overwritten.

    Raises:
        InputError: If the folder is refused or cannot be read.
    """
    try:
        if not out.exists() or (out.is_dir() and not [name for name in out.iterdir() if name.name != LOCK]):
            return
    except OSError as error:
        raise InputError(f"out: {str(out)!r} cannot be written: {error.strerror}") from error
    ours = is_ours(out)
    if not overwrite:
        hint = "overwrite it with --overwrite, or continue it with: kinfed resume" if ours else "choose another folder"
        raise InputError(f"out: {str(out)!r} exists; {hint}")
    if not ours:
        raise InputError(
            f"out: {str(out)!r} exists and is not a run folder, so it is not overwritten; choose another folder"
        )
