"""Rehearsal of a federation on one machine: a SuperLink and a node for each client, on loopback.

Each node has the samples of one client in a folder of its own, as the site would have them, a key of its own, and an
encrypted connection. All processes that were started end with the rehearsal.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import tomli_w
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from safetensors.torch import save_file

from kinfed.data import Dataset, Federation
from kinfed.data.cache import keep
from kinfed.engine.interrupt import Interrupt, Stopped
from kinfed.errors import InputError, RunFailed
from kinfed.experiment.assemble import federation_of
from kinfed.experiment.config import OF_READING, Config
from kinfed.experiment.config_file import read_toml
from kinfed.experiment.folders import COMPARISON, CONFIG, check_room, is_ours
from kinfed.experiment.run import MakeCallback, nobody
from kinfed.files import NotSaved, claimed, new_folder, read_json_object, write_whole
from kinfed.flower.bundle import write_app
from kinfed.flower.federation import refuse_impossible
from kinfed.flower.journal import Retelling, entries

__all__ = ["rehearse", "resume_rehearsal"]

HOST = "127.0.0.1"
NODES, IMAGES = "nodes.json", "public.safetensors"  # files of the sites' folder
TIMEOUT = 3600.0
START = 60.0  # seconds in which the SuperLink must answer
END = 15.0  # seconds in which processes must end after SIGTERM
LOOK = 0.2  # seconds between two looks into the journal
ASK = 15.0  # seconds between two questions whether the run still works
NAME = "kinfed"  # of the connection in Flower's config
ERRORS = {"InputError": InputError, "RunFailed": RunFailed, "NotSaved": NotSaved}


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
    at_server = _at_server(config)
    refuse_impossible(at_server)
    with new_folder(_sites_of(out)):
        federation = federation_of(config)
        at_server = at_server.model_copy(update={"public": len(federation.public_rows)})
        _write_sites(federation, _sites_of(out))
        _rehearse(at_server, out, make_callback, timeout)


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


def _sites_of(out: Path) -> Path:
    """Return the folder of what the sites of a rehearsal have."""
    return out.absolute().with_name(f"{out.name}-sites")


def _rehearse(config: Config, out: Path, make_callback: MakeCallback, timeout: float) -> None:
    sites = _sites_of(out)
    nodes = {str(name): dict(node) for name, node in read_json_object(sites / NODES).items()}
    images = sites / IMAGES
    with tempfile.TemporaryDirectory(prefix="kinfed-flower-", ignore_cleanup_errors=True) as private:
        work = Path(private)
        job: dict[str, str | int | float] = {
            "config": config.toml(),
            "out": str(out.absolute()),
            "sites": len(nodes),
            "timeout": float(timeout),
            "images": str(images) if images.is_file() else "",
            "journal": str(work / "journal.jsonl"),
        }
        with Interrupt() as interrupt, _Link(work, nodes) as link:
            link.run(job)
            _follow(link, work / "journal.jsonl", make_callback, interrupt)


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


def _follow(link: _Link, path: Path, make_callback: MakeCallback, interrupt: Interrupt) -> None:
    """Tell the observers what the journal has, until its run has ended; pass the first signal on to the run."""
    at, asked, told_to_stop = 0, time.monotonic(), False
    process: int | None = None
    reason: str | None = None
    retelling = Retelling(make_callback)
    while True:
        found, at = entries(path, at)
        for what, told in found:
            retelling.tell(what, told)
            if what == "process":
                process = int(told[0])
            if what == "done":
                return
            if what == "stopped":
                raise Stopped(interrupt.asked or int(told[0]) - 128)
            if what == "failed":
                kind, text = told
                raise ERRORS.get(kind, RunFailed)(text if kind in ERRORS else f"{kind}: {text}")
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


class _Link:
    """A SuperLink with nodes, as processes of this machine, which end with the block.

    Args:
        work: Temporary folder.
        nodes: Entries of the config of each node, by its name.
    """

    def __init__(self, work: Path, nodes: Mapping[str, Mapping[str, str]]) -> None:
        self._work, self._nodes, self._processes = work, nodes, list[subprocess.Popen[bytes]]()
        commands = Path(sys.executable).parent  # Flower starts its processes by name
        self._environment = {
            **os.environ,
            "PATH": f"{commands}{os.pathsep}{os.environ.get('PATH', '')}",
            "FLWR_HOME": str(work / "home"),
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
            "OMP_NUM_THREADS": "1",
        }
        self._run = ""

    def __enter__(self) -> _Link:
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _start(self) -> None:
        (self._work / "home").mkdir()
        port, *ports = _free_ports(1 + len(self._nodes))
        _write_certificates(self._work)
        self._process(
            "superlink", "flower-superlink", "--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem",
            "--ssl-keyfile", "server.key", "--enable-supernode-auth", "--host", HOST, "--port", str(port),
            "--disable-runtime-dependency-installation",
        )  # fmt: skip
        connection = {"address": f"{HOST}:{port}", "root-certificates": str(self._work / "ca.crt")}
        (self._work / "home" / "config.toml").write_text(tomli_w.dumps({"superlink": {NAME: connection}}))
        self._wait(port)
        for at, (own, (name, config)) in enumerate(zip(ports, self._nodes.items(), strict=True)):
            key = self._work / f"node-{at}"
            _write_key(key)
            self._flwr("supernode", "register", f"{key}.pub", NAME, "--name", f"site-{at}")
            told = " ".join(f"{entry}={json.dumps(value)}" for entry, value in {**config, "name": name}.items())
            self._process(
                f"node-{at}", "flower-supernode", "--root-certificates", "ca.crt", "--superlink", f"{HOST}:{port}",
                "--auth-supernode-private-key", str(key), "--host", HOST, "--port", str(own), "--node-config", told,
            )  # fmt: skip

    def run(self, job: Mapping[str, str | int | float]) -> None:
        """Start a run of kinfed's app."""
        write_app(self._work / "app", job)
        self._run = str(json.loads(self._flwr("run", str(self._work / "app"), NAME, "--format", "json"))["run-id"])

    def fault(self) -> str | None:
        """Return the reason why the run cannot go on, if a process or the run has ended; else None."""
        for process in self._processes:
            if process.poll() is not None:
                name = "SuperLink" if process is self._processes[0] else "SuperNode"
                return f"Flower's {name} has ended: {self._last_words(process)}"
        told = json.loads(self._flwr("list", "--run-id", self._run, NAME, "--format", "json"))
        status = told["runs"][0]["status"]
        if status.startswith("finished"):
            log = self._flwr("log", self._run, NAME, "--show").strip().splitlines()
            return f"Flower's run is {status}: {log[-1] if log else 'it says nothing'}"
        return None

    def _process(self, name: str, *command: str) -> None:
        with (self._work / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=self._work, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self._processes.append(process)

    def _flwr(self, *command: str) -> str:
        done = subprocess.run(
            ("flwr", *command), cwd=self._work, env=self._environment, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, check=False, start_new_session=True,
        )  # fmt: skip
        if done.returncode:
            said = (done.stdout + done.stderr).strip().splitlines()
            raise RunFailed(f"flwr {command[0]}: {said[-1] if said else f'exit code {done.returncode}'}")
        return done.stdout

    def _wait(self, port: int) -> None:
        end = time.monotonic() + START
        while time.monotonic() < end:
            if self._processes[0].poll() is not None:
                break
            with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
                return
            time.sleep(LOOK)
        raise RunFailed(f"Flower's SuperLink does not start: {self._last_words(self._processes[0])}")

    def _last_words(self, process: subprocess.Popen[bytes]) -> str:
        at = self._processes.index(process)
        log = self._work / ("superlink.log" if at == 0 else f"node-{at - 1}.log")
        lines = log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def _end(self) -> None:
        """End all processes that were started, with the ones that they started."""
        started = {pid for process in self._processes for pid in (process.pid, *_descendants(process.pid))}
        for process in reversed(self._processes):
            process.terminate()
        end = time.monotonic() + END
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(end - time.monotonic(), 0.1))
        for pid in started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._processes:
            process.wait()


def _descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that they have started."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for one in found:
        found += parents.get(one, [])
    return found[1:]


def _free_ports(count: int) -> list[int]:
    """Return ports of this host that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((HOST, 0))
        return [int(one.getsockname()[1]) for one in sockets]


def _write_certificates(folder: Path) -> None:
    """Write a certificate authority of a few days, and a certificate of the server by it."""
    now = dt.datetime.now(dt.UTC)
    keys = [ec.generate_private_key(ec.SECP384R1()) for _ in range(2)]
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("kinfed rehearsal", HOST)]

    def made(which: int, *extensions: tuple[x509.ExtensionType, bool]) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(names[which])
            .issuer_name(names[0])
            .public_key(keys[which].public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(days=30))
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(keys[0], hashes.SHA384())

    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    identifier = x509.SubjectKeyIdentifier.from_public_key(keys[0].public_key())
    authority = made(0, (x509.BasicConstraints(ca=True, path_length=None), True), (usage, True), (identifier, False))
    addresses = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
    server = made(1, (addresses, False), (issuer, False), (x509.BasicConstraints(ca=False, path_length=None), True))
    for name, certificate in (("ca.crt", authority), ("server.pem", server)):
        (folder / name).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    _write_private(folder / "server.key", keys[1], serialization.PrivateFormat.PKCS8)


def _write_key(path: Path) -> None:
    """Write the key of a node in the format of OpenSSH, and its public part beside it."""
    key = ec.generate_private_key(ec.SECP384R1())
    _write_private(path, key, serialization.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.with_name(f"{path.name}.pub").write_bytes(public + b"\n")


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
