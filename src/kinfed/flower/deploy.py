"""Writing of the app with which a server starts a run at sites: `flwr run FOLDER CONNECTION`."""

from __future__ import annotations

from pathlib import Path

from kinfed.errors import InputError
from kinfed.experiment.config import Config
from kinfed.files import new_folder, write_whole
from kinfed.flower.bundle import write_app
from kinfed.flower.federation import refuse_impossible
from kinfed.flower.journal import journal_of

__all__ = ["SITES", "deploy"]

SITES = "<sites>"  # name of the data of a deployed run

README = """\
# A run of kinfed at {sites} sites

`pyproject.toml` has the config of the run, and the names of two apps in the installed kinfed; there is no code here.
With a SuperLink and its nodes running, and the connection CONNECTION in Flower's config (both as in docs/deploy.md of
kinfed):

```
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
flwr run {folder} CONNECTION --stream
kinfed report {out}
```

`kinfed watch {out}` in another terminal shows its progress. The results are in `{out}` at the server. The same command
continues a run that was stopped.
"""


def deploy(folder: Path, config: Config, *, sites: int, out: Path, timeout: float, images: str | None = None) -> None:
    """Write the app of a run at sites into a new folder.

    Args:
        folder: New folder of the app.
        config: Config of the run or comparison, whose data are `SITES`.
        sites: Number of sites.
        out: Folder of the run at the server.
        timeout: Seconds after which a site that works on a task is given up.
        images: Data whose training images are the public images of the server; None for none.

    Raises:
        InputError: If sites cannot do it, or the folder is not empty.
    """
    refuse_impossible(config)
    needing = [label for label in config.methods if config.method(label).requires.public_images]
    if needing and images is None:
        raise InputError(f"images: {needing[0]} needs public images at the server; name data that have them")
    with new_folder(folder):
        write_app(
            folder,
            {
                "config": config.toml(),
                "out": str(out.absolute()),
                "sites": sites,
                "timeout": timeout,
                "images": images or "",
                "journal": str(journal_of(out)),
            },
        )
        text = README.format(sites=sites, folder=folder.absolute(), out=out.absolute())
        write_whole(folder / "README.md", text)
