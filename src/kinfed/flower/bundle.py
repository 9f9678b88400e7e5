"""The app that `flwr run` sends to all nodes: the names of two apps in the installed kinfed, and a job as data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import tomli_w

__all__ = ["write_app"]


def write_app(folder: Path, job: Mapping[str, str | int | float]) -> None:
    """Write the folder of an app, which has no code.

    Args:
        folder: New folder of the app.
        job: Entries for `kinfed.flower.server_app.main`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    components = {"serverapp": "kinfed.flower.server_app:app", "clientapp": "kinfed.flower.client_app:app"}
    app = {"publisher": "kinfed", "components": components, "config": dict(job)}
    project = {
        "name": "kinfed-run",
        "version": "1.0.0",
        "description": "A run of kinfed",
        "license": "Apache-2.0",
        "dependencies": [],
    }
    (folder / "pyproject.toml").write_text(tomli_w.dumps({"project": project, "tool": {"flwr": {"app": app}}}))
