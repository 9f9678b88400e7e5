"""Executor whose clients are sites behind a Flower grid: it sends letters, and waits for the answers.

Messages are pushed and pulled here, since Flower's own exchange looks only every three seconds. An answer is known by
the message that it replies to; late answers, and second ones, are never read.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from flwr.app import Message as Packet
from flwr.serverapp import Grid
from safetensors.torch import save

from kinfed.engine import ClientRuntime, Executor, TaskRunner
from kinfed.engine.checks import bounded
from kinfed.engine.client_store import StoredRounds
from kinfed.engine.evaluator import UNTESTED, GlobalTest
from kinfed.engine.executor import Done, Failure, Task, Tested
from kinfed.errors import InputError, RunFailed
from kinfed.experiment.config import Config
from kinfed.experiment.config_file import read_toml
from kinfed.files import write_whole
from kinfed.flower.federation import Introduction, SitesFederation
from kinfed.flower.grades import grade_of, tested_of
from kinfed.flower.letters import Letter, numbers_of
from kinfed.flower.site import PUBLIC, checksum_of
from kinfed.learning import Grade
from kinfed.methods import ClientId, ClientState, Message
from kinfed.models import Tensors

__all__ = ["FlowerExecutor", "SiteStates", "introduced", "nodes_of"]

POLL = 0.2  # seconds between two looks for answers
GRACE = 30.0  # seconds beyond the deadline of a site in which its answer may travel
SITES = "sites.json"
REASONS = {  # of Flower's codes of errors
    1: "its node cannot start kinfed",
    3: "no answer in time",  # its node did not fetch the message, or its process ended shortly before
    4: "its answer was lost",
    5: "its node cannot be reached",
    6: "its node refuses the message",
    7: "its node does not trust the app",
    8: "its process ended without an answer",
}


def nodes_of(grid: Grid, count: int, wait: float, say: Callable[[str], None] = lambda _: None) -> list[int]:
    """Wait until the nodes of all sites are there, and return their ids.

    Args:
        grid: Flower's grid.
        count: Number of sites.
        wait: Seconds after which the wait ends.
        say: Function that is told how many are there, when it is not all of them and whenever that changes.

    Raises:
        RunFailed: If there are fewer or more nodes.
    """
    end, there = time.monotonic() + wait, -1
    while len(nodes := sorted(grid.get_node_ids())) < count and time.monotonic() < end:
        if len(nodes) != there:
            there = len(nodes)
            say(f"waits for the nodes of the sites: {there} of {count} connected")
        time.sleep(POLL)
    if len(nodes) != count:
        raise RunFailed(f"there are {len(nodes)} nodes, and must be {count}")
    return nodes


def introduced(grid: Grid, nodes: Sequence[int], config: Config, wait: float) -> dict[int, Introduction]:
    """Ask the nodes who they are; return their introductions by node, in the order of their names.

    Args:
        grid: Flower's grid.
        nodes: Ids of the nodes.
        config: Config of the run or comparison.
        wait: Seconds after which a node that does not answer is given up.

    Raises:
        InputError: If sites do not answer, take no part, or send no introduction; the message has all of them.
    """
    letter = {"kind": "introduce", "config": config.toml(), "files": []}
    told: dict[int, Introduction] = {}
    refused: list[str] = []
    for node, answer in _exchanged(grid, [(node, node, "query", letter, {}) for node in nodes], wait):
        try:
            if isinstance(answer, Failure):
                raise ValueError(answer.reason)
            told[node] = Introduction.of(answer.about)
        except ValueError as error:
            refused.append(f"node {node} takes no part: {error}")
    if refused:
        raise InputError(f"sites: {'; '.join(refused)}")
    return dict(sorted(told.items(), key=lambda item: item[1].name))


@dataclass(frozen=True)
class SiteStates:
    """Client states at the sites; here is only known which ones are needed.

    Attributes:
        run: Folder of the run.
        rounds: Rounds whose states each client must keep.
    """

    run: Path
    rounds: dict[ClientId, set[int]] = field(default_factory=dict)

    def read(self, id: ClientId, round: int | None) -> ClientState:
        """Return an empty state: what a client keeps stays at its site."""
        del id, round
        return ClientState()

    def write(self, id: ClientId, round: int, state: ClientState) -> bool:
        """Refuse to write a state, which only sites do.

        Raises:
            ValueError: Always.
        """
        raise ValueError("client states are written at the sites")

    def forget(self, id: ClientId, round: int) -> None:
        """Note that the state of a client after a round is not needed; its site deletes it before its next task."""
        self.rounds.setdefault(id, set()).discard(round)

    def sync(self, stored: Mapping[ClientId, int]) -> None:
        """Do nothing: a site flushes a state before it answers."""

    def tidy(self, needed: Sequence[StoredRounds]) -> None:
        """Do nothing: every site has few files."""

    def forget_all_but(self, needed: Sequence[StoredRounds]) -> None:
        """Note that only states to which a mapping refers are needed."""
        self.rounds.clear()
        for stored in needed:
            for id, round in stored.items():
                self.rounds.setdefault(id, set()).add(round)

    @property
    def name(self) -> str:
        """Name of the run at the sites, 32 hexadecimal digits; it is kept in the folder of the run."""
        path = self.run / SITES
        if not path.is_file():
            write_whole(path, json.dumps({"run": uuid.uuid4().hex}) + "\n")
        return str(json.loads(path.read_text())["run"])


class FlowerExecutor(Executor):
    """Executor of clients' tasks at the sites behind a grid.

    Args:
        grid: Flower's grid.
        nodes: Id of the node of each client, N, in the order of their numbers.
        timeout: Seconds that a site may work on a task; None for no limit.
    """

    def __init__(self, grid: Grid, nodes: Sequence[int], timeout: float | None = None) -> None:
        self._grid, self._nodes, self._timeout = grid, nodes, timeout
        self._sent: set[tuple[int, str]] = set()

    def client_states(self, run: Path) -> SiteStates:
        """Return the client states of a run in a folder, which are at the sites."""
        return SiteStates(run)

    def start(self, build: Callable[[], ClientRuntime], here: TaskRunner) -> None:
        """Prepare for a run: send the sites the files that they need.

        Raises:
            RunFailed: If a site cannot keep them.
        """
        del build
        states, runtime = here.client_states, here.runtime
        assert isinstance(states, SiteStates)
        self._here, self._states = here, states
        path, federation = states.run / "config.toml", runtime.federation
        assert isinstance(federation, SitesFederation)
        normalise = federation.dataset.train.normalise
        files = _files(runtime, read_toml(path))
        self._common = {
            "run": states.name,
            "config": path.read_text(),
            "clients": len(federation),
            "classes": federation.dataset.classes,
            "shape": federation.dataset.shape,
            "mean": normalise.mean,
            "std": normalise.std,
            "files": {what: checksum_of(of) for what, of in files.items()},
            "seconds": self._timeout,
        }
        for of in files.values():
            self._keep(of)

    def _keep(self, files: Mapping[str, bytes]) -> None:
        """Send files to all sites that did not get them from this executor."""
        checksum = checksum_of(files)
        tensors = {name: torch.frombuffer(bytearray(content), dtype=torch.uint8) for name, content in files.items()}
        letter = {"kind": "keep", "checksum": checksum}
        lacking = [(id, node) for id, node in enumerate(self._nodes) if (node, checksum) not in self._sent]
        letters = [(id, node, "query.keep", letter, tensors) for id, node in lacking]
        for id, answer in _exchanged(self._grid, letters, self._patience):
            if isinstance(answer, Failure):
                name = self._here.runtime.federation.name(id)
                raise RunFailed(f"site {name} cannot keep what the server sends: {answer.reason}")
        self._sent |= {(node, checksum) for _, node in lacking}

    def update(self, tasks: Iterable[Task]) -> Iterator[tuple[ClientId, Done | Failure]]:
        """Run local training at several sites, and yield the results."""
        for task, answer in self._answers("update", tasks):
            yield task.id, answer if isinstance(answer, Failure) else _read(_done, answer)

    def evaluate(self, tasks: Iterable[Task]) -> Iterator[tuple[ClientId, Tested | Failure]]:
        """Run tests at several sites, and yield the results; that of a global representation is done here."""
        there = []
        for task in tasks:
            if task.test == "global representation":
                yield task.id, self._here.evaluate(task)
            else:
                there.append(task)
        for task, answer in self._answers("evaluate", there):
            yield task.id, answer if isinstance(answer, Failure) else _read(_tested, answer)

    def test(self, tensors: Tensors, *, final: bool) -> GlobalTest | Failure:
        """Test the global model at all sites; the pooled test set is the test samples of all that answer."""
        tasks = (Task(id, 0, Message(tensors), final=final) for id in range(len(self._nodes)))
        found: dict[ClientId, Grade | Failure] = {
            task.id: answer if isinstance(answer, Failure) else _read(_grade, answer)
            for task, answer in self._answers("test", tasks)
        }
        grades = {id: grade for id, grade in found.items() if isinstance(grade, Grade)}
        failures = {id: failure for id, failure in sorted(found.items()) if isinstance(failure, Failure)}
        if not grades:
            return next(iter(failures.values()))
        of_clients = [grades.get(id, UNTESTED) for id in range(len(self._nodes))]
        reasons = {id: failure.reason for id, failure in failures.items()}
        return GlobalTest(Grade.pooled([*grades.values()]), of_clients, failures=reasons)

    def close(self) -> None:
        """Do nothing: the grid belongs to the caller."""

    @property
    def _patience(self) -> float | None:
        return None if self._timeout is None else self._timeout + GRACE

    def _answers(self, kind: str, tasks: Iterable[Task]) -> Iterator[tuple[Task, Letter | Failure]]:
        given = {task.id: task for task in tasks}
        letters = [(id, self._nodes[id], f"train.{kind}", self._letter(kind, task), task.message.tensors)
                   for id, task in given.items()]  # fmt: skip
        for id, answer in _exchanged(self._grid, letters, self._patience):
            yield given[id], answer

    def _letter(self, kind: str, task: Task) -> dict[str, Any]:
        needed = self._states.rounds.setdefault(task.id, set())
        letter = {
            **self._common,
            "kind": kind,
            "id": task.id,
            "round": task.round,
            "stored": task.stored,
            "test": task.test,
            "final": task.final,
            "numbers": numbers_of(task.message.numbers),
            "needed": sorted(needed),
        }
        if kind == "update":
            needed.add(task.round)
        return letter


_Addressed = tuple[ClientId, int, str, Mapping[str, Any], Tensors]  # client, node, type of message, letter


def _exchanged(
    grid: Grid, letters: Iterable[_Addressed], patience: float | None
) -> Iterator[tuple[ClientId, Letter | Failure]]:
    """Send letters, and yield the clients' answers as they come; a client without one gets a failure.

    Args:
        grid: Flower's grid.
        letters: Letters to different clients.
        patience: Seconds after which a client without an answer is given up; None to wait for ever.
    """
    waiting: dict[str, ClientId] = {}
    for id, node, kind, about, tensors in letters:
        packet = Packet(Letter(about, tensors).record(), node, kind, ttl=patience)
        (sent,) = grid.push_messages([packet]) or (None,)
        if sent:
            waiting[sent] = id
        else:
            yield id, Failure("its message could not be sent")
    end = None if patience is None else time.monotonic() + patience
    while waiting:
        for reply in grid.pull_messages([*waiting]):
            if (sent := reply.metadata.reply_to_message_id) in waiting:  # else it is a second answer
                yield waiting.pop(sent), _opened(reply)
        if end is not None and time.monotonic() > end:
            break
        if waiting:
            time.sleep(POLL)
    for id in waiting.values():
        yield id, Failure(f"no answer within {patience:g} s")


def _opened(reply: Packet) -> Letter | Failure:
    if reply.has_error():
        code, reason = reply.error.code, reply.error.reason or "no reason is known"
        return Failure(bounded(REASONS.get(code, f"error {code} of Flower: {reason}")))
    try:
        letter = Letter.of_record(reply.content)
    except ValueError as error:
        return Failure(bounded(error))
    return Failure(bounded(letter.about["failure"])) if "failure" in letter.about else letter


def _read(read: Callable[[Letter], Any], letter: Letter) -> Any:
    """Read an answer; a failure if it is none of its kind."""
    try:
        return read(letter)
    except (KeyError, TypeError, ValueError) as error:
        return Failure(f"its answer cannot be read: {type(error).__name__}")


def _done(letter: Letter) -> Done:
    return Done(Message(letter.tensors, dict(letter.about["numbers"])), bool(letter.about["keeps"]))


def _tested(letter: Letter) -> Tested:
    return tested_of(letter.about)


def _grade(letter: Letter) -> Grade:
    return grade_of(letter.about["grade"])


def _files(runtime: ClientRuntime, fields: Mapping[str, Any]) -> dict[str, dict[str, bytes]]:
    """Return the files that every site must have for a run, by what they are: contents by name."""
    method, images = runtime.method, runtime.federation.public_images
    files: dict[str, dict[str, bytes]] = {}
    if method.requires.public_images_at_clients and images is not None:
        files["public"] = {PUBLIC: save({"images": images.inputs.contiguous()})}
    if method.requires.source_models:
        pool = Path(fields["sources"])
        paths = sorted([*pool.glob("*.safetensors"), *pool.glob("*.json")])
        files["sources"] = {path.name: path.read_bytes() for path in paths}
    if fields.get("weights") is not None:
        files["weights"] = {"weights.safetensors": Path(fields["weights"]).read_bytes()}
    return files
