"""A SuperLink with its nodes on this machine, on loopback, with keys and encryption."""

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
import time
from collections.abc import Mapping
from pathlib import Path

import tomli_w
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kinfed.errors import RunFailed
from kinfed.flower.bundle import write_app

__all__ = ["NAME", "Link", "descendants", "free_port", "write_certificates", "write_key"]

HOST = "127.0.0.1"
START = 60.0  # seconds in which the SuperLink must answer
END = 15.0  # seconds in which processes must end after SIGTERM
LOOK = 0.2  # seconds between two looks for the SuperLink
NAME = "kinfed"  # of the connection in Flower's config


class Link:
    """A SuperLink with nodes, as processes of this machine, which end with the block.

    Args:
        work: Temporary folder.
        nodes: Entries of the config of each node, by its name.

    Attributes:
        address: Host and port of the SuperLink.
        superlink: Process of the SuperLink.
        nodes: Process of each node, by its name.
    """

    def __init__(self, work: Path, nodes: Mapping[str, Mapping[str, str]]) -> None:
        self._work, self._configs = work, nodes
        self._run = ""
        self.address = ""
        self.superlink: subprocess.Popen[bytes] | None = None
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        commands = Path(sys.executable).parent  # Flower starts its processes by name
        self._environment = {
            **os.environ,
            "PATH": f"{commands}{os.pathsep}{os.environ.get('PATH', '')}",
            "FLWR_HOME": str(work / "home"),
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
            "OMP_NUM_THREADS": "1",
        }

    def __enter__(self) -> Link:
        try:
            self._start()
            for at, name in enumerate(self._configs):
                key = self._work / f"node-{at}"
                write_key(key)
                self.flwr("supernode", "register", f"{key}.pub", NAME, "--name", f"site-{at}")
                self.start_node(name)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _start(self) -> None:
        (self._work / "home").mkdir()
        port = free_port()
        self.address = f"{HOST}:{port}"
        write_certificates(self._work)
        self.superlink = self.process(
            "superlink", "flower-superlink", "--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem",
            "--ssl-keyfile", "server.key", "--enable-supernode-auth", "--host", HOST, "--port", str(port),
            "--disable-runtime-dependency-installation",
        )  # fmt: skip
        connection = {"address": self.address, "root-certificates": str(self._work / "ca.crt")}
        (self._work / "home" / "config.toml").write_text(tomli_w.dumps({"superlink": {NAME: connection}}))
        end = time.monotonic() + START
        while self.superlink.poll() is None and time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
                return
            time.sleep(LOOK)
        raise RunFailed(f"Flower's SuperLink does not start: {self._last_words('superlink')}")

    def start_node(self, name: str, *options: str) -> None:
        """Start a node, for the first time or again, perhaps with more options of ``flower-supernode``."""
        at = [*self._configs].index(name)
        told = " ".join(
            f"{entry}={json.dumps(value)}" for entry, value in {**self._configs[name], "name": name}.items()
        )
        self.nodes[name] = self.process(
            f"node-{at}", "flower-supernode", "--root-certificates", "ca.crt", "--superlink", self.address,
            "--auth-supernode-private-key", f"node-{at}", "--host", HOST, "--port", str(free_port()),
            "--node-config", told, *options,
        )  # fmt: skip

    def run(self, job: Mapping[str, str | int | float]) -> None:
        """Start a run of kinfed's app."""
        write_app(self._work / "app", job)
        self._run = str(json.loads(self.flwr("run", str(self._work / "app"), NAME, "--format", "json"))["run-id"])

    def fault(self) -> str | None:
        """Return the reason why the run cannot go on, if a process or the run has ended; else None."""
        assert self.superlink is not None
        if self.superlink.poll() is not None:
            return f"Flower's SuperLink has ended: {self._last_words('superlink')}"
        for at, process in enumerate(self.nodes.values()):
            if process.poll() is not None:
                return f"Flower's SuperNode has ended: {self._last_words(f'node-{at}')}"
        told = json.loads(self.flwr("list", "--run-id", self._run, NAME, "--format", "json"))
        status = told["runs"][0]["status"]
        if status.startswith("finished"):
            errors = [line for line in self.flwr("log", self._run, NAME, "--show").splitlines() if "Error" in line]
            return (
                f"Flower's run is {status}: {errors[-1].strip() if errors else 'the process of the server has ended'}"
            )
        return None

    def process(self, log: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a process in the folder, with a log of that name."""
        with (self._work / f"{log}.log").open("ab") as file:
            return subprocess.Popen(
                command, cwd=self._work, env=self._environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                start_new_session=True,
            )  # fmt: skip

    def flwr(self, *command: str) -> str:
        """Run a command of ``flwr``, and return what it prints.

        Raises:
            RunFailed: If it fails; the message is the last line that it printed.
        """
        done = subprocess.run(
            ("flwr", *command), cwd=self._work, env=self._environment, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, check=False, start_new_session=True,
        )  # fmt: skip
        if done.returncode:
            said = (done.stdout + done.stderr).strip().splitlines()
            raise RunFailed(f"flwr {command[0]}: {said[-1] if said else f'exit code {done.returncode}'}")
        return done.stdout

    def _last_words(self, log: str) -> str:
        """Return the last line of a log."""
        lines = (self._work / f"{log}.log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def _end(self) -> None:
        """End all processes that were started, with the ones that they started."""
        processes = [*self.nodes.values(), *([self.superlink] if self.superlink else [])]
        started = {pid for process in processes for pid in (process.pid, *descendants(process.pid))}
        try:
            for process in processes:
                process.terminate()
            end = time.monotonic() + END
            for process in processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(end - time.monotonic(), 0.1))
        finally:  # also if another Ctrl-C ends the wait
            for pid in started:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in processes:
                process.wait()


def descendants(pid: int) -> list[int]:
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


def free_port() -> int:
    """Return a port of this host that nobody listens on."""
    with socket.socket() as one:
        one.bind((HOST, 0))
        return int(one.getsockname()[1])


def write_certificates(folder: Path) -> None:
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


def write_key(path: Path) -> None:
    """Write the key of a node in the format of OpenSSH, and its public part beside it."""
    key = ec.generate_private_key(ec.SECP384R1())
    _write_private(path, key, serialization.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.with_name(f"{path.name}.pub").write_bytes(public + b"\n")


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
