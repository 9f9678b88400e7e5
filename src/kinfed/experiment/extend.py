"""More rounds for a run or a comparison than it was begun with; it ends as if it had been begun with them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kinfed.engine import RunFolder, SerialExecutor, TaskRunner
from kinfed.engine.evaluation import Evaluation, Line
from kinfed.engine.folder import METRICS, Checkpoint
from kinfed.errors import InputError
from kinfed.experiment.config import Config
from kinfed.experiment.config_file import read_toml
from kinfed.experiment.folders import COMPARISON, CONFIG, SUMMARY, is_ours, run_folders
from kinfed.experiment.run import folder_of, runtime_of
from kinfed.files import claimed, delete, read_json, write_whole, written
from kinfed.learning.schedule import parse_schedule
from kinfed.settings import own_settings

__all__ = ["extend"]

CHECKPOINTS = re.compile(r"checkpoints/round-\d+\.safetensors")
PICTURES = re.compile(r"pictures/round-\d+\.safetensors")
ENDED = re.compile(r"summary\.json|models/(?:global|client-\d+-\w+)\.(?:safetensors|json)")  # what ends a run


@own_settings()
def extend(out: Path, rounds: int, *, device: str | None = None, objects: Mapping[str, Any] | None = None) -> None:
    """Let a run, or each run of a comparison, have more rounds; `kinfed.experiment.run.resume` then does them.

    The run ends with the bits of one that had so many rounds from the start, since nothing that it computed depends on
    their number: where something does, it is refused. Done again, also after a kill, it changes nothing more.

    Args:
        out: The folder.
        rounds: How many each run shall have in all.
        device: Where it goes on, if not where it began.
        objects: What names in angle brackets stand for.

    Raises:
        InputError: If the folder is none of a run, the rounds are fewer than it was begun with, or its learning rate
            follows from their number.
    """
    if not is_ours(out):
        raise InputError(f"run: {str(out)!r} is no run folder")
    with claimed(out, "run"):
        file = out / (COMPARISON if (out / COMPARISON).is_file() else CONFIG)
        begun = Config.checked(read_toml(file) | ({} if device is None else {"device": device}), objects)
        config = Config.checked(begun.model_dump() | {"rounds": rounds}, objects)
        if parse_schedule(config.lr_schedule) != ():
            raise InputError(
                f"rounds: {rounds} is not allowed: the lr_schedule {config.lr_schedule} of {begun.rounds} rounds is "
                f"not that of {rounds}; a constant one can go on"
            )
        if rounds < begun.rounds:
            raise InputError(f"rounds: {rounds} is fewer than the {begun.rounds} that {str(out)!r} was begun with")
        for method, seed, folder in run_folders(config, out):
            if (folder / CONFIG).is_file():
                _extend_run(config.of(method, seed), folder)
        write_whole(file, config.toml())


def _extend_run(config: Config, out: Path) -> None:
    """The same of one run, in an order that a kill at any moment leaves fit to be done again."""
    if (out / SUMMARY).is_file() and read_json(out / SUMMARY).get("rounds") == config.rounds:
        return
    run = folder_of(config, out)
    begun = run.begun_with()
    if begun is not None and begun["rounds"] < config.rounds:
        last = RunFolder(out, begun).last_checkpoint()
        assert last is not None
        if last.round == begun["rounds"]:
            _evaluate_again(config, run, last)
        run.save_checkpoint(last)
        kept = out / "checkpoints" / f"round-{last.round:06d}.safetensors"
        delete([path for path in written(out, CHECKPOINTS) if path != kept], out, CHECKPOINTS)
    write_whole(out / CONFIG, config.toml())
    delete(written(out, ENDED), out, ENDED)


def _evaluate_again(config: Config, run: RunFolder, last: Checkpoint) -> None:
    """Say of what was the last round what is said of one that others follow."""
    runtime = runtime_of(config)
    *before, line = run.lines(METRICS)
    trained = {name: line[name] for name in [*line][: [*line].index("global_acc")]}
    tested: Line = {"global_acc": None, "untested": {}, "client_acc": {}}
    if runtime.settings.evaluates(last.round, runtime.method):
        executor = SerialExecutor()
        executor.start(lambda: runtime, TaskRunner(runtime, run.memories))
        tested = Evaluation(last.round, runtime, executor, run, lambda *_: None).line(last.state, last.kept)
    run.rewrite(METRICS, [*before, trained | tested])
    if last.round % runtime.settings.checkpoint_every:  # there are pictures of it only since it was the last
        delete([run.path / "pictures" / f"round-{last.round:06d}.safetensors"], run.path, PICTURES)
