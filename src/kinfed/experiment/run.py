"""Execution of experiments: single runs, comparisons of several methods and seeds, and their continuation.

A run writes its results into a run folder, a comparison into a folder with one run folder for each method and seed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
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
from kinfed.experiment.config_file import ADDED, FORMER_NAMES, read_toml
from kinfed.experiment.executors import address_of, refuse_executor
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
from kinfed.experiment.side_by_side import Doing, InTurn, Job, SideBySide
from kinfed.experiment.so_far import SoFar
from kinfed.experiment.summary import summarise, target_reached
from kinfed.experiment.trackers import TRACKERS, TrackedCallback
from kinfed.experiment.uses import refuse_unlabelled
from kinfed.files import claimed, clear_unfinished, read_json, read_json_object, write_whole
from kinfed.registry import nothing_from_files
from kinfed.settings import own_settings

__all__ = ["MakeCallback", "compare", "do_run", "doing", "executor_of", "go_on", "nobody", "resume", "run"]


MakeCallback = Callable[[str, int, int], Callback]  # method, seed, rounds -> observer of that run


def nobody(method: str, seed: int, rounds: int) -> Callback:
    """Return an observer that does nothing, for any run."""
    del method, seed, rounds
    return NoCallback()


@own_settings()
def run(
    config: Config,
    out: Path,
    make_callback: MakeCallback = nobody,
    *,
    overwrite: bool = False,
    executor: Executor | str | None = None,
) -> None:
    """Run one method with one seed into a new folder.

    Args:
        config: Config with one method and one seed.
        out: Folder of the run.
        make_callback: Function that makes the observer of the run.
        overwrite: True to replace a run or comparison that the folder holds.
        executor: Executor of the clients' tasks, or ``ray[:ADDRESS]``; None for that of the config.

    Raises:
        InputError: If the config does not fit the data, or the folder exists and may not be overwritten.
    """
    if len(config.methods) > 1 or config.seeds > 1:
        raise InputError("run: takes one method and one seed; compare takes several")
    check_room(out, overwrite=overwrite)
    runtime = runtime_of(config)
    config = settled(config, runtime)
    with executor_of(config, executor) as ready, new_run(out, overwrite=overwrite):
        _run(config, runtime, out, make_callback(config.methods[0], config.seed, config.rounds), ready)


@own_settings()
def compare(
    config: Config,
    out: Path,
    make_callback: MakeCallback = nobody,
    *,
    overwrite: bool = False,
    executor: Executor | str | None = None,
) -> None:
    """Run several methods, with one or more seeds, on the same clients.

    Each run gets a folder of its own; ``comparison.json`` collects their summaries.

    Args:
        config: Config with the methods and the number of seeds.
        out: Folder of the comparison.
        make_callback: Function that makes the observer of each run.
        overwrite: True to replace a run or comparison that the folder holds.
        executor: Executor of the clients' tasks, or ``ray[:ADDRESS]``; None for that of the config.

    Raises:
        InputError: If the config does not fit the data, or the folder exists and may not be overwritten.
        RunFailed: If a run failed; the other runs are done first.
    """
    check_room(out, overwrite=overwrite)
    # Checks that the config fits the data and the models, before the folder is changed.
    runtime = runtime_of(config.of(config.methods[0], config.seed))
    config = settled(config, runtime)
    for method in config.methods:
        refuse_unlabelled(method, config.method(method), runtime.federation.dataset)
        sources = sources_of(config, method, runtime.federation)
        dataclasses.replace(runtime, method=config.method(method), sources=sources)
    with doing(config, executor) as do, new_run(out, overwrite=overwrite):
        write_whole(out / COMPARISON, config.toml())
        _compare(config, out, make_callback, do)


@own_settings()
def resume(
    out: Path,
    make_callback: MakeCallback = nobody,
    *,
    device: str | None = None,
    objects: Mapping[str, Any] | None = None,
    executor: Executor | str | None = None,
) -> None:
    """Continue a run or a comparison where it stopped; finished runs are not repeated.

    Args:
        out: Folder of the run or the comparison.
        make_callback: Function that makes the observer of each run.
        device: Device to continue on; None for that of the config. On another device the last bits differ.
        objects: Python objects by their names in angle brackets in the config.
        executor: Executor of the clients' tasks, or ``ray[:ADDRESS]``; None for that of the config.

    Raises:
        InputError: If the folder holds no run and no comparison, is in use, or was changed.
        RunFailed: If a run of a comparison failed; the other runs are done first.
    """
    if not is_ours(out):
        raise InputError(f"run: {str(out)!r} is not a run folder; it has no {CONFIG} or {COMPARISON} written by kinfed")
    with claimed(out, "run"):
        clear_unfinished(out, FILES)
        several = (out / COMPARISON).is_file()
        file = out / (COMPARISON if several else CONFIG)
        begun_on = read_toml(file).get("device")
        config = Config.read(file, objects, **({} if device is None else {"device": device}))
        if not several and (len(config.methods) > 1 or config.seeds > 1):
            raise InputError(f"{file}: has several methods or seeds; a run has one of each")
        if config.device != begun_on:
            warnings.warn(
                f"{out} continues on {config.device}: results can differ in the last bits from those on {begun_on}",
                stacklevel=2,
            )
        if device is not None:
            write_whole(file, config.toml())
        if several:
            with doing(config, executor) as do:
                _compare(config, out, make_callback, do)
        else:
            with executor_of(config, executor) as ready:
                do_run(config, out, None, make_callback(config.methods[0], config.seed, config.rounds), ready)


@own_settings()
def go_on(config: Config, folder: Path, make_callback: MakeCallback, executor: Executor | str | None = None) -> None:
    """Run a comparison, or continue it with the methods, workers and seeds of this config.

    Methods that the comparison in the folder has beside these stay in it as they are; new ones join it.

    Args:
        config: Config of the comparison.
        folder: Folder of the comparison.
        make_callback: Function that makes the observer of each run.
        executor: Executor of the clients' tasks, or ``ray[:ADDRESS]``; None for that of the config.

    Raises:
        InputError: If the comparison in the folder was begun with a config that gives other results.
        RunFailed: If a run failed; the other runs are done first.
    """
    if not (folder / COMPARISON).is_file():
        compare(config, folder, make_callback, executor=executor)
        return
    # The former device or pool may no longer exist, and the folder may be older than a field of the config.
    now = {name: getattr(config, name) for name in EXECUTION}
    with nothing_from_files((), folder):
        begun = Config.read(folder / COMPARISON, config.objects, **now)
    config = config.model_copy(update={"public": begun.public}) if config.public is None else config
    settings = {**begun.settings, **config.settings}
    whole = config.model_copy(update={"methods": (*settings,), "settings": settings})
    of_config = EXECUTION | {"methods", "settings"}
    same = all(begun.settings[method] == settings[method] for method in begun.methods)
    if not same or begun.model_dump(exclude=of_config) != config.model_dump(exclude=of_config):
        raise InputError(f"out: {str(folder)!r} was started with another config; choose another folder")
    with claimed(folder):
        clear_unfinished(folder, FILES)
        write_whole(folder / COMPARISON, whole.toml())
        with doing(config, executor) as do:
            _compare(config, folder, make_callback, do, whole)


def _compare(config: Config, out: Path, make_callback: MakeCallback, do: Doing, whole: Config | None = None) -> None:
    """Do the remaining runs of a comparison, and update ``comparison.json`` after each.

    Args:
        config: Config of the runs.
        out: Folder of the comparison.
        make_callback: Function that makes the observer of each run.
        do: Doer of the runs.
        whole: Config of the comparison, if it has more methods.

    Raises:
        RunFailed: If a run failed; the other runs are done first.
    """
    failed: dict[Path, str] = {}

    def ended(job: Job, error: RunFailed | None) -> None:
        if error is not None:
            failed[job.out] = f"{job.config.methods[0]} (seed {job.config.seed}): {error}"
        summaries = [read_json(path) for path in _in_order(whole or config, out)]
        write_whole(out / COMPARISON_SUMMARIES, json.dumps(summaries, indent=1) + "\n")

    def job(method: str, seed: int, folder: Path) -> Job:
        make = nobody if (folder / SUMMARY).is_file() else make_callback  # nothing of a finished run is left to observe
        return Job(config.of(method, seed), folder, functools.partial(make, method, seed, config.rounds))

    runs = [*run_folders(config, out)]
    do(itertools.starmap(job, runs), ended)
    if failed:
        raise RunFailed("; ".join(failed[folder] for _, _, folder in runs if folder in failed))


def _in_order(config: Config, out: Path) -> list[Path]:
    """Return the paths of the summaries of finished runs, ordered by method."""
    runs = sorted(run_folders(config, out), key=lambda run: config.methods.index(run[0]))
    return [folder / SUMMARY for _, _, folder in runs if (folder / SUMMARY).is_file()]


def do_run(config: Config, out: Path, until: int | None, callback: Callback, executor: Executor) -> None:
    """Do the rounds of a run from where it stands, with the bits of a run that never paused; none if it has ended.

    Args:
        config: Config of one method and one seed.
        out: Folder of the run; it is made if it does not exist.
        until: Round after which the run pauses; None to run to the end.
        callback: Observer of the run.
        executor: Executor of the clients' tasks.

    Raises:
        RunFailed: If the run cannot go on.
        InputError: If the folder holds a run with another config.
    """
    if not (out / SUMMARY).is_file():
        _run(config, runtime_of(config), out, callback, executor, until)
    elif until is None:
        check_config(config, out)
        _tell_target(config, out)


def check_config(config: Config, out: Path) -> None:
    """Refuse a config other than the one with which the run in a folder was done.

    Raises:
        InputError: If the run's config file or its last checkpoint has another value; the message names the field.
    """
    if (out / CONFIG).is_file():
        now = {name: getattr(config, name) for name in EXECUTION}
        own = Config.read(out / CONFIG, config.objects, **now).model_dump()
        for name, value in config.model_dump().items():
            if own[name] != value:
                raise InputError(
                    f"{out / CONFIG}: {name} is {own[name]!r}, not {value!r} as in the comparison; one "
                    "of them was changed"
                )
    try:
        folder_of(config, out).check_identity()
    except ValueError as error:
        more = f"; to add rounds: kinfed resume {out} --rounds N"
        raise InputError(f"{out / CONFIG}: was changed; the last checkpoint {str(error)[3:]}{more}") from error


def _tell_target(config: Config, out: Path) -> None:
    """Update the rounds to the target in a finished run's summary if the config has another target accuracy."""
    summary = read_json_object(out / SUMMARY)
    told = target_reached(config, RunFolder(out).lines("metrics.jsonl"))
    if summary.get("rounds_to_target") != told:
        write_whole(out / SUMMARY, json.dumps(summary | {"rounds_to_target": told}, indent=1) + "\n")
        begun = Config.read(out / CONFIG, config.objects, sources=config.sources)  # all other fields keep their values
        write_whole(out / CONFIG, begun.model_copy(update={"target_acc": config.target_acc}).toml())


def folder_of(config: Config, out: Path) -> RunFolder:
    """Return the folder of a run of one method; it refuses checkpoints that were made with another config."""
    (method,) = config.methods
    defaults = {name for name in ADDED if getattr(config, name) == Config.model_fields[name].default}
    fields = config.model_dump(mode="json", exclude=EXECUTION | defaults)
    return RunFolder(
        out,
        {FORMER_NAMES.get(name, name): value for name, value in fields.items()},
        {"method": method, "data": config.data, "partition": config.partition},
    )


def _run(
    config: Config,
    runtime: ClientRuntime,
    out: Path,
    callback: Callback,
    executor: Executor,
    until: int | None = None,
) -> None:
    """Do the remaining rounds of a run, or those up to a round, and write the summary of a run that has ended."""
    out.mkdir(parents=True, exist_ok=True)
    if not (out / CONFIG).is_file():
        write_whole(out / CONFIG, config.toml())
    if not (out / FEDERATION).is_file():
        write_whole(out / FEDERATION, about_clients(runtime))
    check_unchanged(runtime, out)
    folder = dataclasses.replace(folder_of(config, out), states=executor.client_states(out))
    executor.start(functools.partial(runtime_of, config), TaskRunner(runtime, folder.client_states))
    so_far = SoFar(folder, config.rounds, functools.partial(summarise, config, runtime))
    trackers = {"so_far.json": so_far, **{name: TRACKERS[name]() for name in config.trackers}} if until is None else {}
    with TrackedCallback(config.parameters, folder, callback, trackers) as tracked:
        ended = run_rounds(runtime, executor, folder, tracked, until)
    if not ended:
        return
    lines, seconds = folder.lines("metrics.jsonl"), folder.lines("seconds.jsonl")
    write_whole(out / SUMMARY, json.dumps(summarise(config, runtime, lines, seconds), indent=1) + "\n")


def _refuse_unimportable(config: Config, by: str, instead: str) -> None:
    """Refuse a model that other processes cannot import."""
    names = [config.model, *(name for name, _ in model_shares(config.models or ""))]
    if name := next((name for name in names if name and name.startswith("__main__:")), None):
        raise InputError(f"model: {name!r} cannot be imported by {by}; move it to a module, or use {instead}")


@contextlib.contextmanager
def doing(config: Config, executor: Executor | str | None = None) -> Iterator[Doing]:
    """Context manager that gives the doer of the runs of a comparison: in turn, or side by side.

    Args:
        config: Config with the number of runs side by side.
        executor: Executor as for `executor_of`.
    """
    if config.parallel == 1 or not (executor is None or isinstance(executor, str)):
        with executor_of(config, executor) as ready:
            yield InTurn(do_run, ready)
        return
    clear_left_behind()
    refuse_executor(config, executor)
    _refuse_unimportable(config, "runs side by side", "parallel=1")
    side_by_side = SideBySide(config.parallel, do_run, functools.partial(executor_of, given=executor))
    with contextlib.closing(side_by_side):
        yield side_by_side


@contextlib.contextmanager
def executor_of(config: Config, given: Executor | str | None = None) -> Iterator[Executor]:
    """Context manager that gives the executor of a run, or of all runs of a comparison.

    Args:
        config: Config with the number of worker processes.
        given: Executor to use, which is left open at the end; None or ``ray[:ADDRESS]`` to make one, which is closed.

    Raises:
        InputError: If the model is a function that worker processes cannot import, or a cluster cannot be reached.
        WorkersFailed: If worker processes cannot be started.
    """
    clear_left_behind()
    refuse_executor(config, given)
    if given is not None and not isinstance(given, str):
        idle = {"workers": config.workers, "parallel": config.parallel if config.parallel > 1 else 0}
        for name, value in idle.items():
            if value:
                raise InputError(f"{name}: {value} would do nothing, since an executor is given")
        yield given
        return
    if config.workers:
        _refuse_unimportable(config, "workers", "workers=0")
    executor: Executor = SerialExecutor()
    if given is not None:
        from kinfed.engine.ray_executor import RayExecutor

        cpus, gpus = config.cpus_per_client or 1.0, config.gpus_per_client or 0.0
        executor = RayExecutor(address_of(given), config.workers, config.client_timeout, cpus=cpus, gpus=gpus)
    elif config.workers:
        executor = ProcessExecutor(config.workers, config.client_timeout)
    with contextlib.closing(executor):
        yield executor
