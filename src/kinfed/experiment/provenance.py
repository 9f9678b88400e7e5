"""The circumstances in which results were made: versions, commit, processor, date and command."""

from __future__ import annotations

import contextlib
import functools
import platform
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

__all__ = ["provenance"]

PACKAGE = Path(__file__).parents[1]


def provenance(device: str) -> dict[str, str]:
    """Return the circumstances of results that are written now, in words by name.

    Args:
        device: Device of the run.

    Returns:
        ``kinfed`` (version), ``commit`` of a checkout of kinfed, with ``+`` if files were changed since, ``torch``,
        ``python``, ``processor``, ``device``, ``date`` (UTC, ISO 8601) and ``command``; what is not known is left out.
    """
    import torch

    told = {
        "kinfed": _version(),
        "commit": _commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": f"{_processor()}, {torch.backends.cpu.get_cpu_capability()}",
        "device": device if not device.startswith("cuda") else torch.cuda.get_device_name(device),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": _command(),
    }
    return {name: value for name, value in told.items() if value}


def _version() -> str:
    """Return the version of kinfed; empty if it is imported without having been installed."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version("kinfed")
    return ""


@functools.cache
def _commit() -> str:
    """Return the commit of the checkout from which kinfed is imported; empty if it is installed as a package."""
    if not (PACKAGE.parents[1] / ".git").exists():
        return ""
    git = ["git", "-C", str(PACKAGE.parents[1])]
    asked = ["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "--untracked-files=no", "src"]
    try:
        commit, changed = (subprocess.check_output([*git, *of], text=True, timeout=10) for of in asked)
    except (OSError, subprocess.SubprocessError):
        return ""
    return commit.strip() + ("+" if changed else "")


@functools.cache
def _processor() -> str:
    """Return the name of the processor, or else its kind."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def _command() -> str:
    """Return the command line if kinfed's own command is running; empty in a program that imports kinfed."""
    program, *arguments = sys.argv or [""]
    ours = Path(program).name == "kinfed" or Path(program) == PACKAGE / "__main__.py"
    return shlex.join(["kinfed", *arguments]) if ours else ""
