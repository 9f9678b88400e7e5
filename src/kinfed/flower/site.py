"""A site: it answers the server's letters with its own data, and keeps in its own folder what is private.

Letters for a site have a ``kind``: ``introduce``, ``keep`` (files that the server sends once), ``update``, ``evaluate``
or ``test``. No data, no labels, no private tensor and no text of an error leave the site.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from kinfed.data import Dataset, Federation, Normalisation, Partition, Samples, load
from kinfed.data.samples import ChannelSums, labels_of
from kinfed.engine import ClientRuntime, RunFolder, TaskRunner
from kinfed.engine.client_store import ClientStore
from kinfed.engine.evaluation import save_own
from kinfed.engine.executor import Done, Failure, Task
from kinfed.engine.folder import ClientModels
from kinfed.errors import InputError
from kinfed.experiment.assemble import runtime_of
from kinfed.experiment.config import OF_READING, Config, as_tuple, model_shares
from kinfed.experiment.config_file import read_toml
from kinfed.experiment.provenance import provenance
from kinfed.files import write_whole
from kinfed.flower.grades import grade_told, tested_told
from kinfed.flower.letters import Letter, numbers_of
from kinfed.flower.policy import Policy
from kinfed.methods import Message
from kinfed.registry import nothing_from_files
from kinfed.settings import own_settings

__all__ = ["PUBLIC", "Site", "checksum_of", "processor"]

PUBLIC = "public.safetensors"  # file with the public images of the server
CHECKSUM = re.compile(r"[0-9a-f]{64}")
RUN = re.compile(r"[0-9a-f]{32}")
FILE = re.compile(r"\w[\w .+-]*\.(safetensors|json)")
INTRODUCED = "introduced"  # folder of the config with which a site was introduced
SLACK = 5.0  # seconds after its deadline after which a process that still works ends itself


class Overdue(TimeoutError):
    """Error for a task that takes longer than the server waits."""


class _Refusal(Exception):
    """Reason, in one line, that may be told to the server; the text of other errors may not."""


@dataclass(frozen=True)
class Site:
    """A site of a federation.

    Attributes:
        name: Name of the site.
        data: Name or path of its data.
        state: Folder in which it keeps what is private, and files that the server has sent.
        policy: What it is willing to do.
    """

    name: str
    data: str
    state: Path
    policy: Policy = field(default_factory=Policy)

    @classmethod
    def of_node(cls, config: Mapping[str, Any]) -> Site:
        """Make the site of a node from its ``--node-config``: ``name``, ``data``, ``state`` and perhaps ``policy``.

        Raises:
            InputError: If an entry is missing or the policy cannot be read.
        """
        for entry in ("name", "data", "state"):
            if not config.get(entry):
                raise InputError(f"node-config: {entry} is missing; a site needs name, data and state")
        state = Path(str(config["state"]))
        beside = state / "policy.toml"
        told = Path(str(config["policy"])) if "policy" in config else beside if beside.is_file() else None
        return cls(str(config["name"]), str(config["data"]), state, Policy() if told is None else Policy.read(told))

    def answer(self, letter: Letter) -> Letter:
        """Answer a letter of the server; an error becomes a reason in one line, without its text."""
        answer = self._answered(letter)
        if letter.about.get("kind") == "introduce" and "failure" in answer.about:  # the server knows no name yet
            return _refused(f"{self.name}: {answer.about['failure']}")
        return answer

    def _answered(self, letter: Letter) -> Letter:
        kinds: dict[str, Callable[[Letter], Letter]] = {
            "introduce": self._introduce,
            "keep": self._keep,
            "update": self._update,
            "evaluate": self._evaluate,
            "test": self._test,
        }
        try:
            self.state.mkdir(parents=True, exist_ok=True)
            if reason := self.policy.asked_too_often(self.state / "asked.json"):
                return _refused(reason)
            unasked = nothing_from_files(self.policy.code, "the server's config")
            with own_settings(), _deadline(letter.about.get("seconds")), unasked:
                return kinds[str(letter.about.get("kind"))](letter)
        except _Refusal as refusal:
            return _refused(str(refusal))
        except Exception as error:
            return self._failed(Failure.of(error))

    # -- kinds of letters ---------------------------------------------------------------------------------------------

    def _introduce(self, letter: Letter) -> Letter:
        """Tell what the server must know before anything trains."""
        fields = self._fields(letter, INTRODUCED)
        dataset = self._load(fields)
        self._refuse_unwanted(fields, len(dataset.train))
        return Letter(self.introduction(dataset) | {"files": [f for f in letter.about["files"] if self._has(f)]})

    def introduction(self, dataset: Dataset) -> dict[str, Any]:
        """Return all that the site tells about itself and its data."""
        counts = [np.bincount(labels_of(split), minlength=len(dataset.classes)).tolist()
                  for split in (dataset.train, dataset.test)] if dataset.labelled else []  # fmt: skip
        inputs, normalise = dataset.train.inputs, dataset.train.normalise
        return {
            "name": self.name,
            "kinfed": provenance("cpu").get("kinfed", ""),
            "torch": torch.__version__,
            "processor": processor(),
            "shape": dataset.shape,
            "type": str(inputs.dtype).removeprefix("torch."),
            "classes": dataset.classes,
            "train": len(dataset.train),
            "test": len(dataset.test),
            "counts": counts if counts and self.policy.class_counts else None,
            "mean": normalise.mean,
            "std": normalise.std,
            "sums": asdict(ChannelSums.of(inputs)) if inputs.dtype == torch.uint8 else None,
        }

    def _keep(self, letter: Letter) -> Letter:
        """Keep files that the server sends once, under their checksum."""
        checksum, files = str(letter.about["checksum"]), {n: t.numpy().tobytes() for n, t in letter.tensors.items()}
        if not CHECKSUM.fullmatch(checksum) or not all(map(FILE.fullmatch, files)):
            raise _Refusal("files: their names are not allowed")
        if checksum_of(files) != checksum:
            raise _Refusal("files: they do not match their checksum")
        folder = self.state / "files" / checksum
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_whole(folder / name, content)
        (folder / "whole").touch()
        return Letter({})

    def _update(self, letter: Letter) -> Letter:
        runtime, store, _ = self._prepared(letter)
        task = _task(letter)
        _refuse_missing(store, task)
        done = TaskRunner(runtime, store).update(task)
        if isinstance(done, Failure):
            return self._failed(done)
        assert isinstance(done, Done)
        if done.keeps:
            store.sync({task.id: task.round})
        return Letter({"numbers": numbers_of(done.upload.numbers), "keeps": done.keeps}, done.upload.tensors)

    def _evaluate(self, letter: Letter) -> Letter:
        runtime, store, folder = self._prepared(letter)
        task = _task(letter)
        _refuse_missing(store, task)
        tested = TaskRunner(runtime, store).evaluate(task)
        if isinstance(tested, Failure):
            return self._failed(tested)
        models = ClientModels(folder, 1, 0)
        for result in tested.results:
            save_own(models, runtime, task.round, task.id, result)
        for name, failure in tested.failures.items():
            folder.note_failure(failure, f"round {task.round}, {name}")
        told = {name: Failure(_told(failure)) for name, failure in tested.failures.items()}
        return Letter(tested_told(replace(tested, failures=told), by_class=self.policy.class_counts))

    def _test(self, letter: Letter) -> Letter:
        runtime, store, _ = self._prepared(letter)
        task = _task(letter)
        found = TaskRunner(runtime, store).test(task.message.tensors, final=task.final)
        if isinstance(found, Failure):
            return self._failed(found)
        # The pooled test set of this site's federation is its own, and has all measures.
        return Letter({"grade": grade_told(found.pooled, by_class=self.policy.class_counts)})

    # -- what they need -----------------------------------------------------------------------------------------------

    def _prepared(self, letter: Letter) -> tuple[ClientRuntime, ClientStore, RunFolder]:
        """Return the runtime of a run at this site, its client states, and its folder.

        States that the server needs no longer are deleted.
        """
        about = letter.about
        fields = self._fields(letter, str(about["run"]))
        folder = self._folder(str(about["run"]))
        files = {what: self._file(checksum) for what, checksum in dict(about["files"]).items()}
        federation = self._federation(fields, about, files.get("public"))
        self._refuse_unwanted(fields, len(federation.partition.train[about["id"]]))
        given: dict[str, str | None] = {"sources": None, "weights": None}  # never files of this machine
        if "sources" in files:
            given["sources"] = str(files["sources"])
        if "weights" in files:
            given["weights"] = str(next(files["weights"].glob("*.safetensors")))
        here = {
            "workers": 0,
            "client_timeout": None,
            "cpus_per_client": None,
            "gpus_per_client": None,
            "parallel": 1,
            "log": None,
            "device": "cpu",
            "labelled": None,
        }
        if not federation.dataset.labelled:  # what is tested with labels is tested at the server
            here |= {"linear_probe": None, "linear_probe_images": None, "target_acc": None, "stop_acc": None}
            here |= {"measure": "accuracy", "knn_every": 0}
        config = Config.read(folder.path / "config.toml", {fields["data"]: federation}, **here, **given)
        runtime = runtime_of(config)
        store = ClientStore(folder.path / "memories")
        store.forget_all_but([{about["id"]: int(round)} for round in about["needed"]])
        return runtime, store, folder

    def _refuse_unwanted(self, fields: Mapping[str, Any], samples: int) -> None:
        """Refuse a run in which the site does not take part."""
        named = [fields.get("model"), *(name for name, _ in model_shares(fields.get("models") or ""))]
        models = [name for name in named if name is not None]
        if reason := self.policy.refusal(as_tuple(fields["methods"]), samples, models):
            raise _Refusal(reason)

    def _folder(self, run: str) -> RunFolder:
        if run != INTRODUCED and not RUN.fullmatch(run):
            raise _Refusal("run: its name is not allowed")
        path = self.state / "runs" / run
        path.mkdir(parents=True, exist_ok=True)
        return RunFolder(path)

    def _fields(self, letter: Letter, run: str) -> dict[str, Any]:
        """Return the fields of the config in a letter, which is written to the folder of the run."""
        path = self._folder(run).path / "config.toml"
        text = str(letter.about["config"])
        if not path.is_file() or path.read_text() != text:
            write_whole(path, text)
        return read_toml(path)

    def _load(self, fields: Mapping[str, Any]) -> Dataset:
        return load(self.data, **{name: fields[name] for name in OF_READING if name in fields})

    def _federation(self, fields: Mapping[str, Any], about: Mapping[str, Any], public: Path | None) -> Federation:
        """Return the federation with this site's samples as those of its client, and nobody else's."""
        dataset, classes = self._load(fields), tuple(about["classes"])
        if list(dataset.shape) != list(about["shape"]):
            raise _Refusal("data: their shape has changed since the site was introduced")
        normalise = Normalisation(tuple(about["mean"]), tuple(about["std"]))
        places = torch.tensor([classes.index(name) for name in dataset.classes], dtype=torch.int64)

        def agreed(samples: Samples) -> Samples:
            labels = None if samples.labels is None else places[samples.labels]
            return replace(samples, labels=labels, normalise=normalise)

        train, test = agreed(dataset.train), agreed(dataset.test)
        own, rows = len(train), np.arange(0)
        if public is not None:
            images = load_file(public / PUBLIC)["images"]
            rows = np.arange(own, own + len(images))
            labels = None if train.labels is None else torch.cat([train.labels, torch.zeros(len(images)).long()])
            train = replace(train, inputs=torch.cat([train.inputs, images]), labels=labels)
        nobody = [np.arange(0)] * int(about["clients"])
        of_train, of_test = list(nobody), list(nobody)
        of_train[about["id"]], of_test[about["id"]] = np.arange(own), np.arange(len(test))
        whole = replace(dataset, train=train, test=test, classes=classes)
        return Federation(whole, Partition(of_train, of_test), rows)

    def _has(self, checksum: str) -> bool:
        return bool(CHECKSUM.fullmatch(checksum)) and (self.state / "files" / checksum / "whole").is_file()

    def _file(self, checksum: str) -> Path:
        if not self._has(checksum):
            raise _Refusal("files: what the server sent once is missing here; resume the run to get it again")
        return self.state / "files" / checksum

    def _failed(self, failure: Failure) -> Letter:
        """Note a failure here, and return a letter with as much of it as may be told: no text of an error."""
        with contextlib.suppress(Exception):
            RunFolder(self.state).note_failure(failure, self.name)
        return _refused(_told(failure))


def processor() -> str:
    """Return the kind of the processor, with the instructions that torch uses."""
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def checksum_of(files: Mapping[str, bytes]) -> str:
    """Compute a checksum of some files and their names."""
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{name}\n{len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _task(letter: Letter) -> Task:
    about = letter.about
    message = Message(letter.tensors, dict(about["numbers"]))
    return Task(about["id"], about["round"], message, about["stored"], about["test"], about["final"])


def _refuse_missing(store: ClientStore, task: Task) -> None:
    """Refuse a task whose state is not there."""
    try:
        store.read(task.id, task.stored)
    except ValueError:
        raise _Refusal(f"its state after round {task.stored} is missing or damaged") from None


def _told(failure: Failure) -> str:
    """Return what may be told of a failure: the kind of an error, not its text; or what is not finite."""
    kind, _, text = failure.reason.partition(": ")
    if kind == Overdue.__name__ or not failure.details:
        return text if failure.details else failure.reason
    return f"{kind}; the file errors.log at the site says more"


def _refused(reason: str) -> Letter:
    return Letter({"failure": reason})


@contextlib.contextmanager
def _deadline(seconds: float | None) -> Iterator[None]:
    """Context manager that raises Overdue after some seconds, and ends the process if that does not help."""
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise Overdue(f"no answer within {seconds:g} s")

    last = threading.Timer(seconds + SLACK, os._exit, (1,))
    last.daemon = True
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    last.start()
    try:
        yield
    finally:
        last.cancel()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
