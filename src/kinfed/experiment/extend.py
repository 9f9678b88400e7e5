"""Additional rounds for a run or a comparison; the result is the same as with so many rounds from the start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kinfed.engine import RunFolder, SerialExecutor, TaskRunner
from kinfed.engine.evaluation import Evaluation
from kinfed.engine.folder import METRICS, Checkpoint
from kinfed.engine.lines import Line, is_of_evaluation
from kinfed.engine.stopping import ends_early
from kinfed.errors import InputError
from kinfed.experiment.assemble import runtime_of
from kinfed.experiment.config import Config
from kinfed.experiment.folders import COMPARISON, CONFIG, SUMMARY, is_ours, run_folders
from kinfed.experiment.run import folder_of
from kinfed.files import claimed, delete, read_json_object, write_whole, written
from kinfed.learning.schedule import parse_schedule
from kinfed.models import MODEL_FILES
from kinfed.settings import own_settings

__all__ = ["extend"]

CHECKPOINTS = re.compile(r"checkpoints/round-\d+\.safetensors")
PICTURES = re.compile(r"pictures/round-\d+\.safetensors")
# The files that are written after the last round.
ENDED = re.compile(rf"(?:summary|confusion)\.json|{MODEL_FILES}")


@own_settings()
def extend(out: Path, rounds: int, *, device: str | None = None, objects: Mapping[str, Any] | None = None) -> None:
    """Increase the number of rounds of a run, or of each run of a comparison; `resume` then trains them.

    The result is the same, bit by bit, as with so many rounds from the start, since nothing that was computed depends
    on their number; a run where something does is refused. A second call, also after a kill, is safe.

    Args:
        out: Folder of the run or the comparison.
        rounds: New total number of rounds.
        device: Device to continue on; the run's own if not given.
        objects: Python objects by their names in angle brackets.

    Raises:
        InputError: If the folder holds no run, the run has more rounds already, or its learning rate depends on the
            number of rounds.
    """
    if not is_ours(out):
        raise InputError(f"run: {str(out)!r} is not a run folder")
    with claimed(out, "run"):
        file = out / (COMPARISON if (out / COMPARISON).is_file() else CONFIG)
        begun = Config.read(file, objects, **({} if device is None else {"device": device}))
        config = Config.checked(begun.model_dump() | {"rounds": rounds}, objects)
        if parse_schedule(config.lr_schedule) != ():
            raise InputError(
                f"rounds: {rounds} is not allowed; the lr_schedule {config.lr_schedule} depends on the number of "
                f"rounds, {begun.rounds}; only runs with a constant one can be extended"
            )
        if rounds < begun.rounds:
            raise InputError(
                f"rounds: {rounds} is not allowed; must be at least {begun.rounds}, the rounds of the "
                f"run in {str(out)!r}"
            )
        for method, seed, folder in run_folders(config, out):
            if (folder / CONFIG).is_file():
                _extend_run(config.of(method, seed), folder)
        write_whole(file, config.toml())


def _extend_run(config: Config, out: Path) -> None:
    """Increase the number of rounds of one run, in an order that can be repeated after a kill at any moment."""
    if (out / SUMMARY).is_file() and read_json_object(out / SUMMARY).get("rounds") == config.rounds:
        return
    run = folder_of(config, out)
    begun = run.begun_with()
    if begun is not None and begun["rounds"] < config.rounds:
        last = RunFolder(out, begun).last_checkpoint()
        assert last is not None
        if ends_early(run.lines(METRICS), config.patience, config.stop_acc):  # it has ended, and stays as it is
            run.save_checkpoint(last)
            write_whole(out / CONFIG, config.toml())
            return
        if last.round == begun["rounds"]:
            _evaluate_again(config, run, last)
        run.save_checkpoint(last)
        kept = out / "checkpoints" / f"round-{last.round:06d}.safetensors"
        delete([path for path in written(out, CHECKPOINTS) if path != kept], out, CHECKPOINTS)
    write_whole(out / CONFIG, config.toml())
    delete(written(out, ENDED), out, ENDED)


def _evaluate_again(config: Config, run: RunFolder, last: Checkpoint) -> None:
    """Evaluate the former last round again, as a round in the middle of a run: without the final evaluation."""
    runtime = runtime_of(config)
    *before, line = run.lines(METRICS)
    trained = {name: value for name, value in line.items() if not is_of_evaluation(name)}
    tested: Line = {"global_acc": None, "untested": {}, "client_acc": {}}
    if runtime.settings.evaluates(last.round, runtime.method):
        executor = SerialExecutor()
        executor.start(lambda: runtime, TaskRunner(runtime, run.client_states))
        tested = Evaluation(last.round, runtime, executor, run, lambda *_: None).line(last.state, last.stored)
    run.rewrite(METRICS, [*before, trained | tested])
    if last.round % runtime.settings.checkpoint_every:  # its pictures were saved only because it was the last round
        delete([run.path / "pictures" / f"round-{last.round:06d}.safetensors"], run.path, PICTURES)
