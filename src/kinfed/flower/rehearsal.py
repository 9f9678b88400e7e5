"""Rehearsal of a federation on one machine: a SuperLink and a node for each client, on loopback.

Each node has the samples of one client in a folder of its own, as the site would have them, a key of its own, and an
encrypted connection. All processes that were started end with the rehearsal.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
import time
from pathlib import Path

from safetensors.torch import save_file

from kinfed.data import Dataset, Federation
from kinfed.data.cache import keep
from kinfed.errors import InputError, RunFailed
from kinfed.experiment.assemble import federation_of
from kinfed.experiment.config import OF_READING, Config
from kinfed.experiment.config_file import read_toml
from kinfed.experiment.folders import COMPARISON, CONFIG, check_room, is_ours
from kinfed.experiment.run import MakeCallback, nobody
from kinfed.files import claimed, new_folder, read_json_object, write_whole
from kinfed.flower.federation import refuse_impossible
from kinfed.flower.journal import Retelling, entries
from kinfed.flower.link import Link
from kinfed.interrupt import Interrupt, Stopped

__all__ = ["job", "nodes_of", "prepared", "rehearse", "resume_rehearsal"]

NODES, IMAGES = "nodes.json", "public.safetensors"  # files of the sites' folder
TIMEOUT = 3600.0
LOOK = 0.2  # seconds between two looks into the journal
ASK = 15.0  # seconds between two questions whether the run still works


def rehearse(config: Config, out: Path, make_callback: MakeCallback = nobody, *, timeout: float = TIMEOUT) -> None:
    """Do a run or a comparison with a Flower node for each client on this machine.

    What the sites have, their data and what they keep, is in ``OUT-sites`` beside the folder.

    Args:
        config: Config of the run or comparison.
        out: Folder of the run or comparison.
        make_callback: Function that makes the observer of each run.
        timeout: Seconds after which a site that works on a task is given up.

    Raises:
        InputError: If the config asks for what sites cannot do, or a folder cannot be used.
        RunFailed: If a run cannot go on, or Flower's processes do not start.
        Stopped: If a signal ends the run.
    """
    check_room(out, overwrite=False)
    if config.workers:
        raise InputError(f"workers: {config.workers} would do nothing with executor=flower; every client has a node")
    refuse_impossible(_at_server(config))
    with new_folder(_sites_of(out)):
        _rehearse(prepared(config, _sites_of(out)), out, make_callback, timeout)


def resume_rehearsal(out: Path, make_callback: MakeCallback = nobody, *, timeout: float = TIMEOUT) -> None:
    """Continue a run or a comparison of `rehearse` where it stopped, with what its sites have.

    Args:
        out: Folder of the run or comparison.
        make_callback: Function that makes the observer of each run.
        timeout: Seconds after which a site that works on a task is given up.

    Raises:
        InputError: If the folder holds no such run.
        RunFailed: If a run cannot go on, or Flower's processes do not start.
        Stopped: If a signal ends the run.
    """
    sites = _sites_of(out)
    if not is_ours(out) or not (sites / NODES).is_file():
        raise InputError(f"run: {str(out)!r} is no run with executor=flower, whose sites are in {str(sites)!r}")
    file = out / (COMPARISON if (out / COMPARISON).is_file() else CONFIG)
    name = str(read_toml(file)["data"])
    with claimed(sites):
        _rehearse(Config.read(file, {name: None}), out, make_callback, timeout)


def prepared(config: Config, sites: Path) -> Config:
    """Write what each site has into a folder of its own, and return the config as the server has it.

    Args:
        config: Config of the run or comparison, with all data at one place.
        sites: Folder of the sites.
    """
    federation = federation_of(config)
    _write_sites(federation, sites)
    return _at_server(config).model_copy(update={"public": len(federation.public_rows)})


def job(config: Config, out: Path, sites: Path, journal: Path, timeout: float) -> dict[str, str | int | float]:
    """Return the job for `kinfed.flower.server_app.main`.

    Args:
        config: Config as the server has it.
        out: Folder of the run or comparison.
        sites: Folder of the sites.
        journal: New file for the journal of the server.
        timeout: Seconds after which a site that works on a task is given up.
    """
    images = sites / IMAGES
    return {
        "config": config.toml(),
        "out": str(out.absolute()),
        "sites": len(read_json_object(sites / NODES)),
        "timeout": float(timeout),
        "images": str(images) if images.is_file() else "",
        "journal": str(journal),
        "secret": "",  # a rehearsal has the bits of a run in one process
    }


def nodes_of(sites: Path) -> dict[str, dict[str, str]]:
    """Return the entries of the config of each site's node, by its name."""
    return {str(name): dict(node) for name, node in read_json_object(sites / NODES).items()}


def _sites_of(out: Path) -> Path:
    """Return the folder of what the sites of a rehearsal have."""
    return out.absolute().with_name(f"{out.name}-sites")


def _rehearse(config: Config, out: Path, make_callback: MakeCallback, timeout: float) -> None:
    sites = _sites_of(out)
    with tempfile.TemporaryDirectory(prefix="kinfed-flower-", ignore_cleanup_errors=True) as private:
        work = Path(private)
        journal = work / "journal.jsonl"
        with Interrupt() as interrupt, Link(work, nodes_of(sites)) as link:
            link.run(job(config, out, sites, journal, timeout))
            _follow(link, journal, make_callback, interrupt)


def _at_server(config: Config) -> Config:
    """Return the config as the server has it: the sites' data are read, and their samples chosen."""
    usual = dict.fromkeys((*OF_READING, "classes", "train_images")) | {"on_error": "stop"}
    name = f"<{config.data} at sites>"
    fields = config.model_dump() | usual | {"data": name, "client_timeout": None}
    return Config.checked(fields, {**config.objects, name: None})


def _write_sites(federation: Federation, sites: Path) -> None:
    """Write each client's samples to a folder of its own, the config of its node, and the server's public images."""
    nodes, width = {}, len(str(len(federation) - 1))
    for id in range(len(federation)):
        name = federation.name(id) if federation.partition.names else f"{id:0{width}d}"
        folder = sites / f"site-{id:0{width}d}"
        whole = federation.dataset
        own = Dataset(
            name, federation.train(id), federation.test(id), whole.classes, encoding=whole.encoding,
            remarks=whole.remarks,
        )  # fmt: skip
        nodes[name] = {"name": name, "data": str(keep(own, folder / "data")), "state": str(folder / "state")}
    write_whole(sites / NODES, json.dumps(nodes, indent=1) + "\n")
    if federation.public_images is not None:
        save_file({"images": federation.public_images.inputs.contiguous()}, sites / IMAGES)


def _follow(link: Link, path: Path, make_callback: MakeCallback, interrupt: Interrupt) -> None:
    """Tell the observers what the journal has, until its run has ended; pass the first signal on to the run."""
    at, asked, told_to_stop = 0, time.monotonic(), False
    process: int | None = None
    reason: str | None = None
    retelling = Retelling(make_callback)
    while True:
        found, at = entries(path, at)
        for what, told in found:
            if what == "process":
                process = int(told[0])
            try:
                if retelling.tell(what, told):
                    return
            except Stopped as stopped:
                raise Stopped(interrupt.asked or stopped.exit_code - 128) from None
        if interrupt.asked and not told_to_stop:
            if process is None:
                raise Stopped(interrupt.asked)
            told_to_stop = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGINT)  # it ends after its round, and its journal tells
        if reason and not found:
            raise RunFailed(reason)
        if time.monotonic() > asked + ASK:
            reason, asked = link.fault(), time.monotonic()  # the journal may have told the end meanwhile
        time.sleep(LOOK)
