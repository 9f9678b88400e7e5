"""Run a config into a folder, several methods and seeds into a comparison, and go on with either."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kinfed.engine import (
    Callback,
    ClientRuntime,
    Executor,
    NoCallback,
    ProcessExecutor,
    RunFolder,
    SerialExecutor,
    TaskRunner,
    run_rounds,
)
from kinfed.engine.exchange import clear_left_behind
from kinfed.errors import InputError, RunFailed
from kinfed.experiment.assemble import about_clients, check_unchanged, runtime_of, settled, sources_of
from kinfed.experiment.config import EXECUTION, Config, model_shares
from kinfed.experiment.config_file import read_toml
from kinfed.experiment.folders import (
    COMPARISON,
    COMPARISON_SUMMARIES,
    CONFIG,
    FEDERATION,
    FILES,
    SUMMARY,
    check_room,
    is_ours,
    new_run,
    run_folders,
)
from kinfed.experiment.so_far import SoFar
from kinfed.experiment.summary import summarise, target_reached
from kinfed.experiment.trackers import TRACKERS, TrackedCallback
from kinfed.files import claimed, clear_unfinished, read_json, read_json_object, write_whole
from kinfed.registry import nothing_from_files
from kinfed.settings import own_settings

__all__ = ["MakeCallback", "compare", "go_on", "nobody", "resume", "run"]


MakeCallback = Callable[[str, int, int], Callback]  # method, seed, rounds -> who looks at that run


def nobody(method: str, seed: int, rounds: int) -> Callback:
    """Nobody looks."""
    del method, seed, rounds
    return NoCallback()


@own_settings()
def run(
    config: Config,
    out: Path,
    watcher: MakeCallback = nobody,
    *,
    overwrite: bool = False,
    executor: Executor | None = None,
) -> None:
    """Run one method with one seed into a new folder.

    Raises:
        InputError: If the config does not fit the data, or the folder exists and may not be overwritten.
    """
    if len(config.methods) > 1 or config.seeds > 1:
        raise InputError("run: takes one method and one seed; compare takes several")
    check_room(out, overwrite=overwrite)
    runtime = runtime_of(config)
    config = settled(config, runtime)
    with _executor(config, executor) as ready, new_run(out, overwrite=overwrite):
        _run(config, runtime, out, watcher, ready)


@own_settings()
def compare(
    config: Config,
    out: Path,
    watcher: MakeCallback = nobody,
    *,
    overwrite: bool = False,
    executor: Executor | None = None,
) -> None:
    """Run several methods, and several seeds, on the same clients: a run folder each, and ``comparison.json``.

    Raises:
        InputError: As `run`.
    """
    check_room(out, overwrite=overwrite)
    # What does not fit the data or the model shows before a folder changes.
    runtime = runtime_of(config.of(config.methods[0], config.seed))
    config = settled(config, runtime)
    for method in config.methods:
        sources = sources_of(config, method, runtime.federation)
        dataclasses.replace(runtime, method=config.method(method), sources=sources)
    with _executor(config, executor) as ready, new_run(out, overwrite=overwrite):
        write_whole(out / COMPARISON, config.toml())
        _compare(config, out, watcher, ready)


@own_settings()
def resume(
    out: Path,
    watcher: MakeCallback = nobody,
    *,
    device: str | None = None,
    objects: Mapping[str, Any] | None = None,
    executor: Executor | None = None,
) -> None:
    """Go on with a run or a comparison where it stopped; one that is finished stays as it is.

    Args:
        out: Its folder.
        watcher: Looks at the runs.
        device: Where to go on, if not where it began; last bits then differ.
        objects: What names in angle brackets stand for.
        executor: Executor that does the clients' work; that of the config if not given.

    Raises:
        InputError: If the folder holds neither, is in use, or was changed.
    """
    if not is_ours(out):
        raise InputError(f"run: {str(out)!r} is no run folder; it has no {CONFIG} or {COMPARISON} of kinfed's")
    with claimed(out, "run"):
        clear_unfinished(out, FILES)
        several = (out / COMPARISON).is_file()
        file = out / (COMPARISON if several else CONFIG)
        begun_on = read_toml(file).get("device")
        config = Config.read(file, objects, **({} if device is None else {"device": device}))
        if not several and (len(config.methods) > 1 or config.seeds > 1):
            raise InputError(f"{file}: names several methods or seeds; a run has one of each")
        if config.device != begun_on:
            warnings.warn(f"{out} goes on on {config.device}: last bits differ from those of {begun_on}", stacklevel=2)
        if device is not None:
            write_whole(file, config.toml())
        with _executor(config, executor) as ready:
            (_compare if several else _run_the_rest)(config, out, watcher, ready)


@own_settings()
def go_on(config: Config, folder: Path, watcher: MakeCallback) -> None:
    """Run a comparison, or what is left of it, now with as many workers and seeds as this config has.

    Raises:
        InputError: If it was begun with a config of other results.
    """
    if not (folder / COMPARISON).is_file():
        compare(config, folder, watcher)
        return
    # What was the case then may be gone: a device, a moved pool; and the folder may be older than a field.
    now = {name: getattr(config, name) for name in EXECUTION}
    with nothing_from_files((), folder):
        begun = Config.read(folder / COMPARISON, config.objects, **now)
    config = config.model_copy(update={"probe": begun.probe}) if config.probe is None else config
    if begun.model_dump(exclude=EXECUTION) != config.model_dump(exclude=EXECUTION):
        raise InputError(f"out: {str(folder)!r} was begun with another config; name another folder")
    with claimed(folder):
        write_whole(folder / COMPARISON, config.toml())
        resume(folder, watcher, objects=config.objects)


def _compare(config: Config, out: Path, watcher: MakeCallback, executor: Executor) -> None:
    """Every run that is still to do. One that fails does not keep the others from being done."""
    failed = []
    for method, seed, folder in run_folders(config, out):
        try:
            _run_the_rest(config.of(method, seed), folder, watcher, executor)
        except RunFailed as error:
            failed.append(f"{method} (seed {seed}): {error}")
        summaries = [read_json(path) for path in _in_order(config, out)]
        write_whole(out / COMPARISON_SUMMARIES, json.dumps(summaries, indent=1) + "\n")
    if failed:
        raise RunFailed("; ".join(failed))


def _in_order(config: Config, out: Path) -> list[Path]:
    """The summaries that are there, method by method."""
    runs = sorted(run_folders(config, out), key=lambda run: config.methods.index(run[0]))
    return [folder / SUMMARY for _, _, folder in runs if (folder / SUMMARY).is_file()]


def _run_the_rest(config: Config, out: Path, watcher: MakeCallback, executor: Executor) -> None:
    if (out / SUMMARY).is_file():
        check_config(config, out)
        _tell_target(config, out)
    else:
        _run(config, runtime_of(config), out, watcher, executor)


def check_config(config: Config, out: Path) -> None:
    """Refuse a config that is not the one with which the run in a folder was done.

    Raises:
        InputError: If its own file, or its last checkpoint, says something else; the message names the field.
    """
    if (out / CONFIG).is_file():
        now = {name: getattr(config, name) for name in EXECUTION}
        own = Config.read(out / CONFIG, config.objects, **now).model_dump()
        for name, value in config.model_dump().items():
            if own[name] != value:
                raise InputError(f"{out / CONFIG}: {name} is {own[name]!r} and not {value!r}; one of them was changed")
    try:
        folder_of(config, out).check_identity()
    except ValueError as error:
        more = f"; more rounds are asked for by: kinfed resume {out} --rounds N"
        raise InputError(f"{out / CONFIG}: was changed: the last checkpoint {str(error)[3:]}{more}") from error


def _tell_target(config: Config, out: Path) -> None:
    """Look a finished run's rounds up again where it was asked for another target, or none."""
    summary = read_json_object(out / SUMMARY)
    told = target_reached(config, RunFolder(out).lines("metrics.jsonl"))
    if summary.get("rounds_to_target") != told:
        write_whole(out / SUMMARY, json.dumps(summary | {"rounds_to_target": told}, indent=1) + "\n")
        begun = Config.read(out / CONFIG, config.objects, sources=config.sources)  # the rest stays as it was
        write_whole(out / CONFIG, begun.model_copy(update={"target_acc": config.target_acc}).toml())


def folder_of(config: Config, out: Path) -> RunFolder:
    """The folder of a run of one method, whose checkpoints must be of this config."""
    (method,) = config.methods
    return RunFolder(
        out,
        config.model_dump(mode="json", exclude=EXECUTION),
        {"method": method, "data": config.data, "partition": config.partition},
    )


def _run(config: Config, runtime: ClientRuntime, out: Path, watcher: MakeCallback, executor: Executor) -> None:
    """All rounds that are still to do, then the summary."""
    out.mkdir(parents=True, exist_ok=True)
    if not (out / CONFIG).is_file():
        write_whole(out / CONFIG, config.toml())
    if not (out / FEDERATION).is_file():
        write_whole(out / FEDERATION, about_clients(runtime))
    check_unchanged(runtime, out)
    (method,) = config.methods
    folder = folder_of(config, out)
    executor.start(functools.partial(runtime_of, config), TaskRunner(runtime, folder.memories))
    so_far = SoFar(folder, config.rounds, functools.partial(summarise, config, runtime))
    trackers = {"so_far.json": so_far, **{name: TRACKERS[name]() for name in config.trackers}}
    watch = watcher(method, config.seed, config.rounds)
    with TrackedCallback(config.parameters, folder, watch, trackers) as tracked:
        run_rounds(runtime, executor, folder, tracked)
    lines, seconds = folder.lines("metrics.jsonl"), folder.lines("seconds.jsonl")
    write_whole(out / SUMMARY, json.dumps(summarise(config, runtime, lines, seconds), indent=1) + "\n")


@contextlib.contextmanager
def _executor(config: Config, given: Executor | None = None) -> Iterator[Executor]:
    """The executor of a run, or of all runs of a comparison; one that is given is left open.

    Raises:
        InputError: If the model is a function that they cannot import.
        WorkersFailed: If they cannot be started.
    """
    clear_left_behind()
    if given is not None:
        if config.workers:
            raise InputError(f"workers: {config.workers} would do nothing; an executor is given")
        yield given
        return
    names = [config.model, *(name for name, _ in model_shares(config.models or ""))]
    if config.workers and (name := next((name for name in names if name and name.startswith("__main__:")), None)):
        raise InputError(
            f"model: {name!r} cannot be imported by workers; move it to a file of its own, or use workers=0"
        )
    executor = ProcessExecutor(config.workers, config.client_timeout) if config.workers else SerialExecutor()
    with contextlib.closing(executor):
        yield executor
