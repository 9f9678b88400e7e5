"""Actors of Ray, on two nodes on loopback, do what one process does; a lost node or driver changes nothing."""

from __future__ import annotations

import functools
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import kinfed
from kinfed.engine import ClientRuntime, WorkersFailed, ray_executor
from kinfed.engine.executor import Task
from kinfed.engine.ray_executor import ON_LOOPBACK, QUIET, RayExecutor
from kinfed.errors import InputError
from kinfed.interrupt import SIGNALS
from kinfed.methods import Client, ClientState, Message
from kinfed.methods.fedper import FedPer
from tests.builders import build_runtime, dataset, federation, run, same
from tests.engine.test_executors import WORLDS, Absent, Deadly, of, unbuildable

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")

# -- two nodes --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def environment() -> Iterator[pytest.MonkeyPatch]:
    """Environment of Ray in this process and its children: quiet, on loopback, with a token, in a folder of its own."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="ray-") as folder:
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        for name, value in {**QUIET, **ON_LOOPBACK, **token, "RAY_TMPDIR": folder}.items():
            patch.setenv(name, value)
        yield patch


@pytest.fixture(scope="module")
def cluster(environment: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster of two nodes with one core each."""
    from ray.cluster_utils import Cluster

    with ray_executor.kept_handlers():
        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        nodes.add_node(num_cpus=1)
    try:
        yield nodes
    finally:
        nodes.shutdown()


@pytest.fixture
def more_room(cluster: Any) -> Iterator[None]:
    """Two more cores, since actors of this process may take those of the cluster."""
    node = cluster.add_node(num_cpus=2)
    yield
    cluster.remove_node(node)


@pytest.fixture(scope="module")
def two_actors(cluster: Any) -> Iterator[RayExecutor]:
    executor = RayExecutor(cluster.address, 2)
    yield executor
    executor.close()


def assert_alike(outside: Any, inside: Any, folders: tuple[Path, Path]) -> None:
    """Two runs have the same metrics, states and files."""
    assert outside.lines == inside.lines
    assert same(outside.state, inside.state)
    assert outside.client_states.keys() == inside.client_states.keys()
    assert all(same(outside.client_states[id], inside.client_states[id]) for id in inside.client_states)
    for kind in ("models", "pictures", "memories"):
        saved = [{path.name: path.read_bytes() for path in (of / kind).rglob("*.*")} for of in folders]
        assert saved[0] == saved[1]


# A mean, states of clients, control variates, a layer apart, similarities, mixtures, groups, no labels, errors.
KINDS = ["fedavg", "fedper", "scaffold", "fedshibu", "fedkin", "ifca", "fedbyol", "fedvote", "broken", "diverging"]


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_actors_give_the_same_bits_as_this_process(name: str, two_actors: RayExecutor, tmp_path: Path) -> None:
    outside = run(WORLDS[name](), tmp_path / "actors", two_actors, WORLDS[name])
    inside = run(WORLDS[name](), tmp_path / "inline")
    assert_alike(outside, inside, (tmp_path / "actors", tmp_path / "inline"))


@pytest.mark.slow
def test_the_two_actors_are_on_two_nodes_that_only_listen_on_loopback(two_actors: RayExecutor) -> None:
    nodes = two_actors._ray.nodes()
    assert [node["NodeManagerAddress"] for node in nodes] == ["127.0.0.1", "127.0.0.1"]
    told = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=False).stdout.splitlines()
    own = [line for line in told if "ray" in line or "gcs_server" in line]
    assert not [line for line in own if "127.0.0.1" not in line.split()[3]]
    assert all(signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler) for number in SIGNALS)


@pytest.mark.slow
def test_tensors_that_several_clients_get_are_put_into_the_store_once(two_actors: RayExecutor) -> None:
    weights = {"w": torch.ones(3)}
    first = two_actors._put(Message(weights))
    assert two_actors._put(Message({**weights})) is first
    assert two_actors._put(Message({"w": torch.ones(3)})) is not first


def mirrored() -> ClientRuntime:
    """The same clients, with other images."""
    data = dataset()
    images = replace(data.train, inputs=data.train.inputs.flip(3))
    return build_runtime("fedper", federation(data=replace(data, train=images)))


@pytest.mark.slow
@pytest.mark.parametrize("elsewhere", ["missing", "other"])
def test_data_that_are_missing_or_differ_on_a_node_are_sent(
    elsewhere: str, two_actors: RayExecutor, tmp_path: Path
) -> None:
    build = {"missing": unbuildable, "other": mirrored}[elsewhere]
    outside = run(build_runtime("fedper"), tmp_path / "actors", two_actors, build)
    assert_alike(outside, run(build_runtime("fedper"), tmp_path / "inline"), (tmp_path / "actors", tmp_path / "inline"))


@pytest.mark.slow
def test_nodes_of_another_kind_are_told_once(
    cluster: Any, two_actors: RayExecutor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    build = functools.partial(build_runtime, "fedavg", rounds=1)
    two_actors._kinds.clear()
    two_actors._kinds.add("riscv64, torch 2")
    for at in range(2):
        two_actors._replace(at)
    with pytest.warns(UserWarning, match="the machines differ .*riscv64") as told:
        run(build(), tmp_path / "out", two_actors, build)
    assert len(told) == 1


# -- actors that are lost ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_client_is_refused_after_its_work_has_ended_three_actors(two_actors: RayExecutor, tmp_path: Path) -> None:
    build = functools.partial(of, Deadly())
    two_actors._timeout = 3
    try:
        outcome = run(build(), tmp_path / "out", two_actors, build)
    finally:
        two_actors._timeout = None
    lost = "3 actors were lost with its work: ActorDiedError"
    assert [line["refused"] for line in outcome.lines] == [{"1": "no answer within 3 s"}, {"2": lost}, {"0": lost}, {}]
    assert same(outcome.state, run(of(Absent()), tmp_path / "absent").state)


@dataclass(frozen=True, kw_only=True)
class Slow(FedPer):
    """FedPer whose clients take their time."""

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        time.sleep(0.5)
        return super().update(client, message, state)


class Losing:
    """Executor whose second node is killed, with all its processes, while clients of round 2 are at work."""

    def __init__(self, executor: RayExecutor, kill: Callable[[], None]) -> None:
        self.start, self.evaluate, self.test, self.close = executor.start, executor.evaluate, executor.test, print
        self.executor, self.kill, self.rounds = executor, kill, 0

    def update(self, tasks: Iterable[Task]):  # type: ignore[no-untyped-def]
        self.rounds += 1
        for at, answer in enumerate(self.executor.update(tasks)):
            if (self.rounds, at) == (2, 0):
                self.kill()
            yield answer


@pytest.mark.slow
def test_a_node_that_is_killed_in_a_round_changes_no_bit(
    cluster: Any, two_actors: RayExecutor, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    build = functools.partial(build_runtime, Slow(), federation(clients=6), rounds=3)
    (second,) = cluster.worker_nodes
    losing = Losing(two_actors, lambda: cluster.remove_node(second, allow_graceful=False))
    outside = run(build(), tmp_path / "actors", losing, build)
    assert losing.rounds == 3
    assert capfd.readouterr().out == ""
    assert not second.any_processes_alive()
    inside = run(build(), tmp_path / "inline")
    assert_alike(outside, inside, (tmp_path / "actors", tmp_path / "inline"))
    cluster.add_node(num_cpus=1)
    assert run(build_runtime("fedavg"), tmp_path / "next", two_actors, WORLDS["fedavg"]).lines[-1]["refused"] == {}


def dying() -> Any:
    os._exit(3)


@pytest.mark.slow
def test_actors_that_die_before_they_are_ready_end_the_run(two_actors: RayExecutor, tmp_path: Path) -> None:
    with pytest.raises(WorkersFailed, match="3 actors of Ray were lost before they were ready"):
        run(build_runtime("fedavg"), tmp_path / "out", two_actors, dying)


@pytest.mark.slow
@pytest.mark.usefixtures("more_room")
def test_a_driver_that_is_killed_is_resumed_with_the_bits_of_an_undisturbed_run(cluster: Any, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"clients": 5, "rounds": 6, "checkpoint_every": 2, "ft_epochs": 0}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in fields.items()]
    on_ray = ["--executor", f"ray:{cluster.address}"]
    out = tmp_path / "killed"
    command = [sys.executable, "-m", "kinfed", "run", "fedper", *options, *on_ray, "--workers=2", f"--out={out}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not [*(out / "checkpoints").glob("*")]:
        time.sleep(0.01)
    process.kill()
    _, told = process.communicate()
    assert process.returncode == -signal.SIGKILL, told
    assert not (out / "summary.json").exists()
    command = [sys.executable, "-m", "kinfed", "resume", str(out), *on_ray]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    inside = kinfed.run("fedper", out=tmp_path / "inside", quiet=True, **fields).path
    assert (out / "metrics.jsonl").read_bytes() == (inside / "metrics.jsonl").read_bytes()
    models = [{path.name: path.read_bytes() for path in (of / "models").iterdir()} for of in (out, inside)]
    assert models[0] == models[1]


# -- one machine ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_on_a_ray_of_its_own_stops_at_a_signal_to_all_and_leaves_nothing(tmp_path: Path) -> None:
    out, before = tmp_path / "out", {*Path(tempfile.gettempdir()).iterdir()}
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    options = ["--clients=5", "--rounds=2000", "--checkpoint-every=2000", "--evaluate-every=99", "--workers=2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "kinfed", "run", "fedper", *options, "--executor=ray", f"--out={out}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**plain, "HOME": str(tmp_path / "home")},
    )
    metrics = out / "metrics.jsonl"
    while process.poll() is None and not (metrics.is_file() and metrics.stat().st_size):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGTERM)
    _, told = process.communicate(timeout=100)
    assert process.returncode == 128 + signal.SIGTERM, told
    assert told.splitlines()[-1].endswith(f"go on with: kinfed resume {out} --executor ray")
    assert "Traceback" not in told
    done = len(metrics.read_text().splitlines())
    assert [path.stem for path in (out / "checkpoints").iterdir()] == [f"round-{done:06d}"]
    assert not (tmp_path / "home").exists()
    assert not [path for path in {*Path(tempfile.gettempdir()).iterdir()} - before if "ray" in path.name]


# -- what is refused --------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"executor": "rya"}, "executor: 'rya' is not known; allowed: flower, ray; did you mean ray?"),
    "address": (
        {"executor": "ray:here", "workers": 2},
        "executor: 'ray:here' is not allowed; must be ray, ray:auto or",
    ),
    "no actors": ({"executor": "ray"}, "workers: 0 is not allowed with executor=ray; must be 1 or more"),
    "cores": ({"cpus_per_client": 2}, "cpus_per_client: 2 would do nothing without executor=ray"),
    "GPUs": ({"gpus_per_client": 0.25}, "gpus_per_client: 0.25 would do nothing without executor=ray"),
    "no GPU": (
        {"executor": "ray", "workers": 2, "gpus_per_client": 0.5},
        "gpus_per_client: 0.5 would do nothing with device=cpu",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_an_executor_is_refused_before_anything_is_written(case: str, tmp_path: Path) -> None:
    fields, told = REFUSED[case]
    with pytest.raises(InputError, match=f"^{told}".replace("?", r"\?")):
        kinfed.run("fedavg", out=tmp_path / "out", quiet=True, **fields)
    assert not (tmp_path / "out").exists()


def test_ray_that_is_not_installed_is_told_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinfed.experiment.executors.find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"^executor: ray is not installed: pip install 'kinfed\[ray\]'$"):
        kinfed.run("fedavg", executor="ray", workers=2, quiet=True)


def test_the_room_of_a_cluster_is_that_of_its_living_nodes() -> None:
    nodes = [
        {"Alive": True, "Resources": {"CPU": 4.0, "GPU": 1.0}},
        {"Alive": True, "Resources": {"CPU": 3.0}},
        {"Alive": False, "Resources": {"CPU": 64.0}},
    ]
    assert ray_executor._room(nodes, 1.0, 0.0) == 7
    assert ray_executor._room(nodes, 2.0, 0.0) == 3
    assert ray_executor._room(nodes, 1.0, 0.25) == 4
    with pytest.raises(InputError, match=r"^cpus_per_client: 8 is not allowed; the largest node of Ray has 4$"):
        ray_executor._room(nodes, 8.0, 0.0)
    with pytest.raises(InputError, match=r"^gpus_per_client: 2 is not allowed; the largest node of Ray has 1$"):
        ray_executor._room(nodes, 1.0, 2.0)
