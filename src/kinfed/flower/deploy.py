"""Writing of the app with which a server starts a run at sites: `flwr run FOLDER CONNECTION`."""

from __future__ import annotations

from pathlib import Path

from kinfed.errors import InputError
from kinfed.experiment.config import Config
from kinfed.experiment.provenance import provenance
from kinfed.files import new_folder, write_whole
from kinfed.flower.bundle import write_app
from kinfed.flower.federation import refuse_impossible
from kinfed.flower.journal import journal_of

__all__ = ["SITES", "deploy", "secret_of"]

SITES = "<sites>"  # name of the data of a deployed run

README = Path(__file__).with_name("run_readme.md")


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
                "secret": str(secret_of(out)),
            },
        )
        version = provenance("cpu").get("kinfed", "")
        text = README.read_text().format(sites=sites, folder=folder.absolute(), out=out.absolute(), version=version)
        write_whole(folder / "README.md", text)


def secret_of(out: Path) -> Path:
    """Return the path of the file with the number from which the server of a run draws what no site may foresee."""
    return out.absolute().with_name(f"{out.name}.secret")
