"""A federation on a real SuperLink with nodes on loopback: the same bits, faults, refusals, and what a round costs.

``python benchmarks/flower.py same|faults|refusals|cost [--work DIR] [--only METHOD]... [--nodes N]...``

* ``same``: every method that sites can do, two nodes, two rounds: the server's state, metrics, and what clients keep
  beside a run in one process, bit for bit. Ports and connections of all processes are looked at meanwhile.
* ``faults``: one run of FedPer in which something happens to the second site in each round, compared with one in which
  this site was absent in the rounds that were refused; and a run whose server is killed and resumed.
* ``refusals``: nodes without a key, with an unknown key, and with another certificate authority; a site whose policy
  says no, and a node that trusts the apps of somebody else.
* ``cost``: seconds of a round with 2 and 8 nodes, beside one process and two workers. Nothing else may run meanwhile.

Each prints a table for docs/flower.md. The processes that are started end with it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import kinfed
from kinfed.engine import RunFolder
from kinfed.experiment.config import Config
from kinfed.flower import rehearsal
from kinfed.flower.federation import impossible
from kinfed.flower.journal import entries
from kinfed.flower.link import NAME, Link, descendants, free_port, write_certificates, write_key
from kinfed.methods import METHODS, Client, ClientState, Message, make_method
from kinfed.methods.fedper import FedPer
from kinfed.models import read_tensors
from kinfed.testing import same, trial_fields

FIELDS: dict[str, Any] = {
    "data": "digits", "model": "tiny_cnn", "train_images": 240, "clients": 2, "partition": "shards", "shards": 5,
    "rounds": 2, "evaluate_every": 2, "lr": 0.05, "batch_size": 16, "ft_epochs": 0, "checkpoint_every": 1,
}  # fmt: skip
JOINED = ["fedkin+fedper", "fedvote+fedprox"]
DEADLINE = 15.0  # seconds that a site may work on a task in the run with faults


# -- the same bits ----------------------------------------------------------------------------------------------------


def same_bits(work: Path, only: list[str]) -> None:
    """Compare every method at two sites with the same run in one process, and print a row for each."""
    methods = []
    for name in only or [*(name for name, kind in METHODS.items() if not impossible(kind())), *JOINED]:
        made = make_method(name)
        methods.append(make_method(name, trial_fields(type(made.unwrapped)) | trial_fields(type(made))))
    fields = dict(FIELDS)
    if any(method.requires.public_images for method in methods):
        fields["public"] = 16
    if any(method.requires.source_models for method in methods):
        fields["sources"] = str(sources(work / "pool"))
    if not all(method.supervised for method in methods):
        fields |= {"linear_probe": False, "knn_every": 0}
    there, here, seen = work / "sites", work / "here", Sockets()
    kinfed.compare(methods, out=here, quiet=True, **fields)
    began = time.monotonic()
    with seen.watching():
        kinfed.compare(methods, out=there, executor="flower", **fields)
    print("| method | server's state | metrics | client states | models of clients |\n|---|---|---|---|---|")
    for run in sorted(path.parent for path in here.rglob("metrics.jsonl")):
        told = " | ".join("same" if equal else "**differ**" for equal in agreement(there, run.relative_to(here), run))
        print(f"| `{run.name.rpartition('-seed')[0]}` | {told} |")
    print(f"\n{time.monotonic() - began:.0f} s; {seen.told()}; processes left: {len(left())}")


def sources(pool: Path) -> Path:
    """Train two small source models, unless they are there."""
    for classes in ("0,1,2,3,4", "5,6,7,8,9") if not pool.is_dir() else ():
        command = (sys.executable, "-m", "kinfed", "sources", "train", "--data", "digits", "--classes", classes)
        subprocess.run([*command, "--model", "tiny_cnn", "--epochs", "1", "--out", str(pool)], check=True)
    return pool


def agreement(out: Path, run: Path, here: Path) -> list[bool]:
    """Return whether state, metrics, client states and models of clients of two runs are the same bits.

    Args:
        out: Folder of the run or comparison at sites.
        run: Path of the run in it.
        here: Folder of the run in one process.
    """
    there = out / run
    one, other = (read_tensors(max((of / "checkpoints").glob("*.safetensors")))[0] for of in (there, here))
    lines = zip(RunFolder(here).lines("metrics.jsonl"), RunFolder(there).lines("metrics.jsonl"), strict=True)
    pooled = {"global_auroc"}  # needs the scores of all sites at one place
    metrics = all(own.get(key) == value for line, own in lines for key, value in line.items() if key not in pooled)
    at_sites = f"site-*/state/runs/{json.loads((there / 'sites.json').read_text())['run']}"
    sites = out.with_name(f"{out.name}-sites")
    kept = files((here / "memories").rglob("*.safetensors"))
    kept_there = files(sites.glob(f"{at_sites}/memories/*/*.safetensors"))
    models = files((here / "models").glob("client-*.safetensors"))
    models_there = files(sites.glob(f"{at_sites}/models/client-*.safetensors"))
    return [
        same(one, other),
        metrics,
        all(name in kept_there and same(of, kept_there[name]) for name, of in kept.items()),
        models.keys() == models_there.keys() and all(same(of, models_there[name]) for name, of in models.items()),
    ]


def files(paths: Iterable[Path]) -> dict[str, dict[str, torch.Tensor]]:
    """Read safetensors files, by their names."""
    return {path.name: read_tensors(path)[0] for path in paths}


def left() -> list[str]:
    """Return the command lines of processes of this machine that belong to a rehearsal."""
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    return [line.replace(b"\0", b" ").decode() for line in lines if b"kinfed-flower-" in line]


class Sockets:
    """Addresses at which the processes that this one has started listen, and to which they are connected."""

    def __init__(self) -> None:
        self.listening: set[str] = set()
        self.connected: set[str] = set()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Context manager during which a process looks at the sockets twice a second."""
        with tempfile.NamedTemporaryFile("r") as file:
            command = f"while true; do ss -tnapH; sleep 0.5; done > {file.name}"
            watch = subprocess.Popen(["bash", "-c", command], start_new_session=True)
            try:
                yield
            finally:
                os.killpg(watch.pid, signal.SIGTERM)
                watch.wait()
            for line in file.read().splitlines():
                state, _, _, local, peer, *process = line.split(maxsplit=5)
                if "python" in "".join(process) or "flwr" in "".join(process) or "flower" in "".join(process):
                    (self.listening if state == "LISTEN" else self.connected).add(
                        (local if state == "LISTEN" else peer).rpartition(":")[0]
                    )

    def told(self) -> str:
        """Say at which addresses they listened, and to which they were connected."""
        return f"listening at {sorted(self.listening)}, connected to {sorted(self.connected)}"


# -- faults -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Faulty(FedPer):
    """FedPer whose client 1 does something wrong in some rounds."""

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        """Train like all, but for the faults of client 1."""
        upload, state = super().update(client, message, state)
        fault = FAULTS.get(client.round, "") if client.id == 1 else ""
        if fault == "an error":
            raise OSError("patient-0815.png is broken")
        if fault == "it works longer than the time limit":
            time.sleep(1000)
        if fault == "its process ends":
            os._exit(1)
        name = next(iter(upload.tensors))
        wrong = {"NaN": upload.tensors[name] * torch.nan, "a wrong shape": torch.zeros(3)}
        return Message({**upload.tensors, name: wrong.get(fault, upload.tensors[name])}, upload.numbers), state


FAULTS = {
    2: "an error", 3: "NaN", 4: "a wrong shape", 5: "it works longer than the time limit", 7: "its process ends",
    9: "its machine sleeps, and its answer comes late", 10: "nothing: it wakes up", 12: "its node is ended by SIGKILL",
    13: "nothing: its node is started again", 18: "it loses its state", 19: "nothing: its state is still lost",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Absent(FedPer):
    """FedPer whose client 1 sends nothing in some rounds."""

    absent: tuple[int, ...] = ()

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        """Train like all, unless it is client 1 in one of these rounds."""
        if client.id == 1 and client.round in self.absent:
            raise OSError("absent")
        return super().update(client, message, state)


def faults(work: Path) -> None:
    """Let all faults happen in one run, one in each round, and print what the server tells of them."""
    fields = {**FIELDS, "rounds": max(FAULTS), "evaluate_every": max(FAULTS)}
    config = Config.checked({**fields, "methods": ("flower:Faulty",)}, {})
    sites, out = work / "faults-sites", work / "faults"
    at_server = rehearsal.prepared(config, sites)
    nodes = rehearsal.nodes_of(sites)
    for node in nodes.values():
        Path(node["state"]).mkdir(parents=True)
        (Path(node["state"]) / "policy.toml").write_text('code = ["flower:Faulty"]\n')
    with tempfile.TemporaryDirectory(prefix="kinfed-flower-") as folder, Link(Path(folder), nodes) as link:
        journal = Path(folder) / "journal.jsonl"
        link.run(rehearsal.job(at_server, out, sites, journal, DEADLINE))
        second = [*nodes][1]
        for line in rounds(journal):
            told = ", ".join(line["refused"].values()) or "–"
            print(f"| {line['round']} | {FAULTS.get(line['round'], 'nothing')} | {told} |", flush=True)
            fault = FAULTS.get(line["round"] + 1, "")
            process = link.nodes[second]
            if "late" in fault:
                stopped = asleep(process.pid)
            if "wakes up" in fault:
                for pid in stopped:
                    os.kill(pid, signal.SIGCONT)
            if "SIGKILL" in fault:
                for pid in (*descendants(process.pid), process.pid):
                    os.kill(pid, signal.SIGKILL)
                process.wait()
            if "started again" in fault:
                link.start_node(second)
            if "loses" in fault:
                for path in sites.glob("site-1/state/runs/*/memories/*/*"):
                    path.unlink()
    absent = tuple(line["round"] for line in RunFolder(out).lines("metrics.jsonl") if "1" in line["refused"])
    here = work / "faults-absent"
    kinfed.run(Absent(absent=absent), out=here, quiet=True, **fields)
    one, other = (read_tensors(max((of / "checkpoints").glob("*.safetensors")))[0] for of in (out, here))
    print(f"the server's state is that of a run in one process without client 1 in rounds {absent}: {same(one, other)}")


def asleep(node: int) -> list[int]:
    """Stop a node and its processes as soon as one of them works on a task; return their numbers."""
    while True:
        processes = [node, *descendants(node)]
        commands = [Path(f"/proc/{pid}/cmdline") for pid in processes]
        if any(b"flwr-clientapp" in path.read_bytes() for path in commands if path.exists()):
            break
        time.sleep(0.2)
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    return processes


def rounds(journal: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of the rounds of a journal until the run has ended."""
    at = 0
    while True:
        found, at = entries(journal, at)
        for what, told in found:
            if what == "round":
                yield told[0]
            if what in ("done", "failed", "stopped"):
                print(f"the run: {what} {told}")
                return
        time.sleep(0.2)


def resumed(work: Path) -> None:
    """Kill the server of a run after its first round, resume the run, and compare it with one in one process."""
    fields = {**FIELDS, "rounds": 3, "evaluate_every": 1}
    there, here = work / "killed", work / "not-killed"
    given = [f"--{name.replace('_', '-')}={value}" for name, value in fields.items()]
    command = (sys.executable, "-m", "kinfed", "run", "fedper", *given, "--out", str(there), "--executor", "flower")
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    metrics = there / "metrics.jsonl"
    try:
        while not metrics.is_file() or not metrics.read_text():
            time.sleep(0.2)
        for pid in descendants(run.pid):
            with contextlib.suppress(OSError):
                if b"serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
        assert run.stderr is not None
        said = run.stderr.read().strip().splitlines()[-1]
    finally:
        run.terminate()  # does nothing to one that has ended
    print(
        f"after SIGKILL of the server: exit code {run.wait()}, {said}; {len(metrics.read_text().splitlines())} rounds"
    )
    kinfed.resume(there, quiet=True, executor="flower")
    kinfed.run("fedper", out=here, quiet=True, **fields)
    print(f"resumed: state, metrics, client states, models the same: {agreement(there, Path(), here)}")


# -- refusals ---------------------------------------------------------------------------------------------------------


def refusals(work: Path) -> None:
    """Let nodes join that must not, and print what both sides say."""
    config = Config.checked({**FIELDS, "methods": ("fedper",)}, {})
    sites = work / "refusals-sites"
    at_server = rehearsal.prepared(config, sites)
    nodes = rehearsal.nodes_of(sites)
    with tempfile.TemporaryDirectory(prefix="kinfed-flower-") as name, Link(folder := Path(name), nodes) as link:
        write_key(folder / "unknown")
        (folder / "other").mkdir()
        write_certificates(folder / "other")
        known = ("--root-certificates", "ca.crt")
        for what, options in {
            "a node without a key": known,
            "a node with an unknown key": (*known, "--auth-supernode-private-key", "unknown"),
            "a node with another CA": ("--root-certificates", "other/ca.crt", "--auth-supernode-private-key", "node-0"),
        }.items():
            log = what.replace(" ", "-")
            before = len((folder / "superlink.log").read_text())
            node = link.process(
                log, "flower-supernode", *options, "--superlink", link.address, "--port", str(free_port()),
                "--max-retries", "1", "--node-config", 'name="stranger" data="-" state="-"',
            )  # fmt: skip
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.wait(60)
            link.flwr("supernode", "list", NAME)
            print(f"| {what} | exit code {node.poll()}: {told_of(folder / f'{log}.log')} | "
                  f"{told_of(folder / 'superlink.log', before)} |", flush=True)  # fmt: skip
            for pid in (*descendants(node.pid), node.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            node.wait()
        second = [*nodes][1]
        state = Path(nodes[second]["state"])
        state.mkdir(parents=True)
        (state / "policy.toml").write_text('methods = ["fedavg"]\n')
        print("\na policy that says no:")
        tried(link, rehearsal.job(at_server, work / "refused", sites, folder / "journal-1.jsonl", DEADLINE))
        (state / "policy.toml").unlink()
        link.nodes[second].terminate()
        link.nodes[second].wait()
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "somebody"], check=True)
        trusted = {"fpk_somebody": (folder / "somebody.pub").read_text().strip()}
        (folder / "trusted.yaml").write_text(json.dumps(trusted))
        link.start_node(second, "--trusted-entities", "trusted.yaml")
        time.sleep(20)
        print("a node that trusts the apps of somebody else:")
        tried(link, rehearsal.job(at_server, work / "refused", sites, folder / "journal-2.jsonl", DEADLINE))
        print("its node:", told_of(folder / "node-1.log"))


def tried(link: Link, job: dict[str, str | int | float]) -> None:
    """Start a run, and print how it ends."""
    link.run(job)
    for _ in rounds(Path(str(job["journal"]))):
        pass


def told_of(log: Path, start: int = 0) -> str:
    """Return the last warning or error in a log, without colours."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text()[start:])
    lines = [line for line in text.splitlines() if re.search("ERROR|WARN|rror:|denied|invalid", line)]
    return (lines or text.splitlines() or ["nothing"])[-1].strip()


# -- cost -------------------------------------------------------------------------------------------------------------


def cost(work: Path, counts: list[int]) -> None:
    """Measure the seconds of a round of FedAvg on the digits, with tests and without, in three ways."""
    print("| clients | tests | one process | two workers | sites | bytes of a round |\n|---|---|---|---|---|---|")
    for clients in counts:
        for tests in (False, True):
            fields = {**FIELDS, "train_images": None, "partition": "iid", "clients": clients, "rounds": 4}
            fields = {name: value for name, value in fields.items() if name != "shards"}
            fields |= {"evaluate_every": 1 if tests else 4}
            ways: dict[str, dict[str, Any]] = {"one": {}, "workers": {"workers": 2}, "sites": {"executor": "flower"}}
            cells = []
            for way, more in ways.items():
                out = work / f"cost-{clients}-{tests}-{way}"
                kinfed.run("fedavg", out=out, quiet=True, **fields, **more)
                cells.append(statistics.median(seconds(out)))
            line = RunFolder(out).lines("metrics.jsonl")[0]
            told = " | ".join(f"{value:.2f} s" if value < 2 else f"{value:.0f} s" for value in cells)
            sent = line["down_bytes"] + line["up_bytes"]
            print(f"| {clients} | {'every round' if tests else 'none'} | {told} | {sent:,} |", flush=True)


def seconds(out: Path) -> list[float]:
    """Return the seconds of the rounds of a run, without the first and the last one."""
    lines = RunFolder(out).lines("seconds.jsonl")[1:-1]
    return [sum(value for name, value in line.items() if name != "round") for line in lines]


def main() -> None:
    """Do what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["same", "faults", "refusals", "cost"])
    parser.add_argument("--work", type=Path, default=Path("runs/flower"), help="folder of the runs")
    parser.add_argument("--only", action="append", default=[], help="method of same; repeatable [all]")
    parser.add_argument("--nodes", type=int, action="append", help="number of nodes of cost; repeatable [2, 8]")
    asked = parser.parse_args()
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])  # of the sites
    asked.work.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that Flower's processes end as well
    if asked.what == "same":
        same_bits(asked.work, asked.only)
    elif asked.what == "faults":
        print("| round | what happens at the second site | what the server tells |\n|---|---|---|")
        faults(asked.work)
        resumed(asked.work)
    elif asked.what == "refusals":
        print("| what joins | its last words | the server's |\n|---|---|---|")
        refusals(asked.work)
    else:
        cost(asked.work, asked.nodes or [2, 8])


if __name__ == "__main__":
    main()
