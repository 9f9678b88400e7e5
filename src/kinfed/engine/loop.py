"""The one round loop: sample, download, update, check, aggregate, evaluate, save."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from kinfed.engine.checks import fault
from kinfed.engine.folder import Checkpoint, RunFolder
from kinfed.engine.places import Failure, Place, Task
from kinfed.engine.watch import Watch
from kinfed.engine.workshop import Workshop
from kinfed.learning import hits, over_clients
from kinfed.methods import ClientId, Memory, Message, State
from kinfed.streams import numpy_stream

__all__ = ["RoundsFailed", "federate", "sampled"]

FAILED_ROUNDS = 3  # in a row, after which a run stops

Line = dict[str, Any]


class RoundsFailed(RuntimeError):
    """Several rounds in a row brought nothing that could be used; what was saved before is still there."""


def sampled(clients: int, participation: float, seed: int, round: int) -> list[ClientId]:
    """The clients of one round: max(⌊C·N⌋, 1), uniformly without replacement, in ascending order."""
    count = max(math.floor(participation * clients + 1e-9), 1)
    chosen = numpy_stream(seed, "sampling", round).choice(clients, count, replace=False)
    return sorted(int(id) for id in chosen)


def federate(workshop: Workshop, place: Place, folder: RunFolder, watch: Watch) -> None:
    """Run the rounds that are still to do, from the folder's last checkpoint or from the start.

    Args:
        workshop: Method, federation, model and plan.
        place: Where clients run.
        folder: Gets a line a round, checkpoints, pictures, and the models after the last round.
        watch: Is told how it goes.

    Raises:
        RoundsFailed: If three rounds in a row had no usable upload.
    """
    method, plan = workshop.method, workshop.plan
    start = folder.last_checkpoint() or Checkpoint(0, method.init(workshop.server(0)), {})
    folder.forget_after(start.round)
    state, memories = start.state, dict(start.memories)
    watch.started(start.round)
    failed = 0
    for round in range(start.round + 1, plan.rounds + 1):
        clock = _Clock()
        with clock("train"):
            ids = sampled(
                len(workshop.trained), plan.participation if method.trains == "sampled" else 1.0, plan.seed, round
            )
            tasks = [Task(id, round, method.download(state, id), memories.get(id, Memory())) for id in ids]
            uploads, kept, refused = _collect(workshop, place, tasks, watch)
        with clock("aggregate"):
            if uploads:
                state = method.aggregate(workshop.server(round), state, uploads)
                memories.update(kept)
        with clock("evaluate"):
            accuracies = _evaluate(workshop, place, folder, state, memories, round, watch)
        line = {
            "round": round,
            "lr": plan.sgd_in(round).lr,
            "clients": ids,
            "refused": refused,
            **_totals(uploads),
            **_traffic(workshop, tasks, uploads),
            **accuracies,
        }
        with clock("save"):
            folder.append("metrics.jsonl", line)
            if round % plan.checkpoint_every == 0 or round == plan.rounds:
                folder.save_pictures(round, method.pictures(state))
                folder.save_checkpoint(Checkpoint(round, state, memories))
        folder.append("seconds.jsonl", {"round": round, **clock.seconds})
        watch.round(line)
        failed = 0 if uploads else failed + 1
        if failed == FAILED_ROUNDS:
            reason = next(iter(refused.values()), "nobody was sampled")
            raise RoundsFailed(
                f"no client's work could be used in {failed} rounds in a row; the first reason: {reason}"
            )


@dataclass
class _Clock:
    """Seconds by what they were spent on."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - began, 6)


def _collect(
    workshop: Workshop, place: Place, tasks: list[Task], watch: Watch
) -> tuple[dict[ClientId, Message], dict[ClientId, Memory], dict[str, str]]:
    """Good uploads and the memories that belong to them, and the reasons why others were refused."""
    uploads: dict[ClientId, Message] = {}
    kept: dict[ClientId, Memory] = {}
    refused: dict[str, str] = {}
    like = workshop.method.upload_like(workshop.server(tasks[0].round))
    for task, answer in zip(tasks, place.update(tasks), strict=True):
        reason = answer.reason if isinstance(answer, Failure) else fault(answer[0], like)
        if reason is not None or isinstance(answer, Failure):
            refused[str(task.id)] = str(reason)
        else:
            uploads[task.id], kept[task.id] = answer
        watch.working("training", len(uploads) + len(refused), len(tasks))
    return uploads, kept, refused


def _totals(uploads: Mapping[ClientId, Message]) -> Line:
    """What the clients say of their training: loss weighted by samples, steps and samples left out."""
    numbers = [upload.numbers for upload in uploads.values()]
    told = [n for n in numbers if "loss" in n]
    return {
        "train_loss": sum(n["loss"] * n["samples"] for n in told) / sum(n["samples"] for n in told) if told else None,
        "skipped_samples": int(sum(n.get("skipped", 0) for n in numbers)),
        "zero_step_clients": sum(n.get("steps", 1) == 0 for n in numbers),
    }


def _traffic(workshop: Workshop, tasks: Sequence[Task], uploads: Mapping[ClientId, Message]) -> Line:
    """Bytes of the messages of a round; where all data are at one place, none travel."""
    if workshop.method.trains == "pooled":
        return {"down_bytes": 0, "up_bytes": 0}
    return {
        "down_bytes": sum(task.message.nbytes for task in tasks),
        "up_bytes": sum(upload.nbytes for upload in uploads.values()),
    }


def _evaluate(
    workshop: Workshop,
    place: Place,
    folder: RunFolder,
    state: State,
    memories: Mapping[ClientId, Memory],
    round: int,
    watch: Watch,
) -> Line:
    """The global model on the test set, and each client's own models on its own test samples (METHODS.md G.1).

    Where a client has no model of its own, the global one is what serves it. After the last round the models are saved.
    """
    method, federation = workshop.method, workshop.federation
    last = round == workshop.plan.rounds
    tested, rows = federation.tested
    accuracies: dict[str, list[float | None]] = {}
    global_acc = None
    server = workshop.server(round)
    tensors = method.global_model(server, state)
    if tensors is not None:
        server.model.load(tensors)
        right = hits(server.model, tested.to(workshop.device)).cpu()
        global_acc = _share(right)
        accuracies["personal"] = [_share(right[own]) for own in rows]
        if last:
            folder.save_model("global", tensors, workshop.about_model())
    if method.personal:
        everybody = range(len(federation))
        tasks = [Task(id, round, method.download(state, id), memories.get(id, Memory())) for id in everybody]
        for id, verdicts in zip(everybody, place.evaluate(tasks), strict=True):
            for name, verdict in verdicts.items():
                own: list[float | None] = accuracies.setdefault(name, [None] * len(federation))
                own[id] = _share(verdict.hits)
                if last:
                    folder.save_model(f"client-{id:05d}-{name}", verdict.tensors, workshop.about_model(id))
            watch.working("evaluation", id + 1, len(federation))
    line: Line = {"global_acc": global_acc}
    for name, of_clients in accuracies.items():
        spread = over_clients(of_clients, [len(own) for own in rows])
        line |= {f"{name}_{quantity}": value for quantity, value in spread.items()}
    return {**line, "client_acc": accuracies}


def _share(right: Tensor) -> float | None:
    """Fraction that is right, or None of nothing."""
    return right.double().mean().item() if len(right) else None
