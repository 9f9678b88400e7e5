"""From a config to a run folder, and from several methods to a comparison of them on the same clients."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kinfed.data import Federation, load, make_federation, subsample
from kinfed.engine import (
    Callback,
    ClientRuntime,
    Executor,
    NoCallback,
    ProcessExecutor,
    RoundSettings,
    RunFolder,
    SerialExecutor,
    TaskRunner,
    run_rounds,
)
from kinfed.engine.exchange import clear_left_behind
from kinfed.errors import InputError, RunFailed
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
from kinfed.experiment.participation import never_trained, of_trained
from kinfed.experiment.so_far import Lines, SoFar
from kinfed.experiment.targets import rounds_to
from kinfed.experiment.trackers import TRACKERS, TrackedCallback
from kinfed.experiment.uses import refuse_idle_in
from kinfed.files import claimed, clear_unfinished, read_json, read_json_object, write_whole
from kinfed.learning import LocalTraining, Phase
from kinfed.models import ALL, BODY, HEAD, Model, Source, build, checksum, default_architecture, load_weights, open_pool
from kinfed.registry import nothing_from_files
from kinfed.settings import own_settings

__all__ = [
    "MakeCallback",
    "check_unchanged",
    "compare",
    "federation_of",
    "go_on",
    "resume",
    "rounds_to",
    "run",
    "runtime_of",
]

SUMMARY_VERSION = 1
SPREAD = ("acc_weighted", "acc_mean", "acc_std", "acc_worst_tenth")
PARTS = {"full": ALL, "head": HEAD, "body": BODY}


MakeCallback = Callable[[str, int, int], Callback]  # method, seed, rounds -> who looks at that run


def nobody(method: str, seed: int, rounds: int) -> Callback:
    """Nobody looks."""
    del method, seed, rounds
    return NoCallback()


def federation_of(config: Config) -> Federation:
    """The clients of a config.

    Raises:
        InputError: If the data do not allow its partition.
    """
    if config.data.startswith("<"):
        federation: Federation = config.objects[config.data]
        return federation
    dataset = load(config.data, channels=config.channels, image_size=config.image_size, on_error=config.on_error)
    if config.train_images is not None:
        dataset = subsample(dataset, config.train_images, config.seed)
    return make_federation(
        dataset,
        config.partitioner(),
        clients=config.clients,
        seed=config.seed,
        probe=config.probe,
        new_clients=config.new_clients,
    )


def runtime_of(config: Config) -> ClientRuntime:
    """Everything that a run works with; the config names one method."""
    (name,) = config.methods
    federation = federation_of(config)
    shares = model_shares(config.models or "") or [
        (config.model or default_architecture(federation.dataset.shape), 1.0)
    ]
    models = tuple(_model(config, name, federation) for name, _ in shares)
    tuning = Phase(train=PARTS[config.ft_part], epochs=config.ft_epochs, lr=config.ft_lr)
    settings = RoundSettings(
        rounds=config.rounds,
        sgd=LocalTraining(
            lr=config.lr,
            epochs=config.local_epochs,
            batch_size=config.batch_size,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            augment=config.augment,
            feature_cache_mb=config.feature_cache_mb,
        ),
        lr_schedule=config.lr_schedule,
        participation=config.participation,
        seed=config.seed,
        checkpoint_every=config.checkpoint_every,
        evaluate_every=config.evaluate_every,
        save_local=config.save_local,
        fine_tuning=tuning if config.ft_epochs else None,
        linear_probe=config.linear_probe,
        knn_every=config.knn_every,
        probed=config.linear_probe_images,
    )
    architectures = _architectures([share for _, share in shares], len(federation))
    return ClientRuntime(
        config.method(name), federation, models, settings, architectures, _sources(config, name, federation)
    )


def _sources(config: Config, name: str, federation: Federation) -> tuple[Source, ...]:
    """The source models; none if the method does not ask for them."""
    if not config.method(name).requires.source_models:
        return ()
    assert config.sources is not None
    return open_sources(Path(config.sources), federation.dataset.shape, config.device)


def open_sources(pool: Path, shape: tuple[int, ...], device: str) -> tuple[Source, ...]:
    """The source models in a folder, on a device.

    Raises:
        InputError: If it is no pool, or a source takes inputs of another shape.
    """
    sources = open_pool(pool)
    for source in sources:
        if source.card.shape != shape:
            takes, are = ("×".join(map(str, size)) for size in (source.card.shape, shape))
            raise InputError(f"sources: {source.name!r} takes inputs of {takes}, and those of the data are {are}")
        source.model.to(device)
    return sources


def _model(config: Config, name: str, federation: Federation) -> Model:
    """A model with its start weights, on the device."""
    shape = federation.dataset.shape
    if config.augment != "none" and len(shape) != 3:
        raise InputError(f"augment: {config.augment} is for images, and the inputs are {'×'.join(map(str, shape))}")
    made, classes = config.architecture(name), len(federation.dataset.classes)
    model = build(made, shape, classes, config.seed, bn=config.bn, head=config.head)
    if config.weights is not None:
        load_weights(model, Path(config.weights))
    return model.to(config.device)


def _architectures(shares: Sequence[float], clients: int) -> tuple[int, ...]:
    """Deal the models: ⌊share·N⌋ clients get the first, and so on; the last gets the rest (specification D.5)."""
    counts = [math.floor(share * clients + 1e-9) for share in shares[:-1]]
    return tuple(which for which, count in enumerate([*counts, clients - sum(counts)]) for _ in range(count))


@own_settings()
def run(config: Config, out: Path, watcher: MakeCallback = nobody, *, overwrite: bool = False) -> None:
    """Run one method with one seed into a new folder.

    Raises:
        InputError: If the config does not fit the data, or the folder exists and may not be overwritten.
    """
    if len(config.methods) > 1 or config.seeds > 1:
        raise InputError("run: takes one method and one seed; compare takes several")
    check_room(out, overwrite=overwrite)
    runtime = runtime_of(config)
    config = _settled(config, runtime)
    with _executor(config) as executor, new_run(out, overwrite=overwrite):
        _run(config, runtime, out, watcher, executor)


def _settled(config: Config, runtime: ClientRuntime) -> Config:
    """The config with what was left to the data.

    Raises:
        InputError: If a method needs more probe images than that, or ``bn`` is of no use to the models.
    """
    refuse_idle_in(config, runtime.models)
    return Config.checked(config.model_dump() | {"probe": len(runtime.federation.probe_rows)}, config.objects)


@own_settings()
def compare(config: Config, out: Path, watcher: MakeCallback = nobody, *, overwrite: bool = False) -> None:
    """Run several methods, and several seeds, on the same clients: a run folder each, and ``comparison.json``.

    Raises:
        InputError: As `run`.
    """
    check_room(out, overwrite=overwrite)
    # What does not fit the data or the model shows before a folder changes.
    runtime = runtime_of(config.of(config.methods[0], config.seed))
    config = _settled(config, runtime)
    for method in config.methods:
        sources = _sources(config, method, runtime.federation)
        dataclasses.replace(runtime, method=config.method(method), sources=sources)
    with _executor(config) as executor, new_run(out, overwrite=overwrite):
        write_whole(out / COMPARISON, config.toml())
        _compare(config, out, watcher, executor)


@own_settings()
def resume(
    out: Path,
    watcher: MakeCallback = nobody,
    *,
    device: str | None = None,
    objects: Mapping[str, Any] | None = None,
) -> None:
    """Go on with a run or a comparison where it stopped; one that is finished stays as it is.

    Args:
        out: Its folder.
        watcher: Looks at the runs.
        device: Where to go on, if not where it began; last bits then differ.
        objects: What names in angle brackets stand for.

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
        with _executor(config) as executor:
            (_compare if several else _run_the_rest)(config, out, watcher, executor)


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
    told = _rounds_to_target(config, RunFolder(out).lines("metrics.jsonl"))
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
    so_far = SoFar(folder, config.rounds, functools.partial(_summary, config, runtime))
    trackers = {"so_far.json": so_far, **{name: TRACKERS[name]() for name in config.trackers}}
    watch = watcher(method, config.seed, config.rounds)
    with TrackedCallback(config.parameters, folder, watch, trackers) as tracked:
        run_rounds(runtime, executor, folder, tracked)
    lines, seconds = folder.lines("metrics.jsonl"), folder.lines("seconds.jsonl")
    write_whole(out / SUMMARY, json.dumps(_summary(config, runtime, lines, seconds), indent=1) + "\n")


def check_unchanged(runtime: ClientRuntime, out: Path) -> None:
    """The data and the sources must still be what they were.

    Raises:
        InputError: If the clients or the source models are not those that the run in a folder began with.
    """
    if read_json(out / FEDERATION) != json.loads(about_clients(runtime)):
        what = "data: the clients" if not runtime.sources else "data, sources: the clients or the source models"
        raise InputError(f"{what} are not those that the run in {str(out)!r} began with; they changed")


@contextlib.contextmanager
def _executor(config: Config) -> Iterator[Executor]:
    """The executor of a run, or of all runs of a comparison.

    Raises:
        InputError: If the model is a function that they cannot import.
        WorkersFailed: If they cannot be started.
    """
    clear_left_behind()
    names = [config.model, *(name for name, _ in model_shares(config.models or ""))]
    if config.workers and (name := next((name for name in names if name and name.startswith("__main__:")), None)):
        raise InputError(
            f"model: {name!r} cannot be imported by workers; move it to a file of its own, or use workers=0"
        )
    executor = ProcessExecutor(config.workers, config.client_timeout) if config.workers else SerialExecutor()
    with contextlib.closing(executor):
        yield executor


def about_clients(runtime: ClientRuntime) -> str:
    """``federation.json``: training samples by client and class, test samples by client, source models."""
    federation = runtime.federation
    sources = {source.name: checksum(source.model.tensors()) for source in runtime.sources}
    names, left = federation.partition.names, federation.dataset.left_out
    about = {
        **({"names": list(names)} if names else {}),
        "classes": list(federation.dataset.classes),
        "train": federation.class_counts().tolist(),
        "test": [len(rows) for rows in federation.partition.test],
        "probe": len(federation.probe_rows),
        "skipped": federation.dataset.skipped,
        "skipped_names": list(federation.dataset.skipped_names),
        **({"left_out": len(left), "left_out_names": list(left[:5])} if left else {}),
        "new_clients": len(federation.new_clients),
        "unused": federation.unused,
        **({"sources": sources} if sources else {}),
    }
    return json.dumps(about) + "\n"


def _summary(config: Config, runtime: ClientRuntime, lines: Lines, seconds: Lines) -> dict[str, Any]:
    """``summary.json``, version 1: accuracies at the last round; best-on-test stands beside them, never for them."""
    (method,) = config.methods
    federation = runtime.federation
    always = [f"{name}_{quantity}" for name in ("personal", "fine_tuned") for quantity in SPREAD]
    spreads = {name: value for name, value in lines[-1].items() if name.endswith(SPREAD)}
    metrics: dict[str, float | None] = dict.fromkeys(always) | spreads
    metrics["global_acc"] = lines[-1]["global_acc"]
    never = [] if runtime.method.trains == "pooled" else never_trained(lines, len(federation))
    sizes = [len(rows) for rows in federation.partition.test]
    metrics |= of_trained(lines[-1]["client_acc"].get("personal", ()), sizes, never)
    metrics |= _by_architecture(runtime, lines[-1]["client_acc"])
    for name in ("personal_acc_weighted", "global_acc"):
        series = [line[name] for line in lines if line.get(name) is not None]
        metrics[f"{name}_mean_of_last_10_rounds"] = math.fsum(series[-10:]) / len(series[-10:]) if series else None
        metrics[f"{name}_best_on_test"] = max(series, default=None)
    return {
        "version": SUMMARY_VERSION,
        "method": method,
        "seed": config.seed,
        "rounds": len(lines),
        "supervised": runtime.method.supervised,
        "tested": runtime.method.primary_label,
        "model": config.models or config.model or default_architecture(federation.dataset.shape),
        "data": {
            "name": config.data,
            "clients": len(federation),
            "new_clients": len(federation.new_clients),
            "partition": config.partition,
            **{option: getattr(config, option) for option in config.partition_options},
            "train": sum(len(rows) for rows in federation.partition.train),
            "test": sum(len(rows) for rows in federation.partition.test),
            "probe": len(federation.probe_rows),
        },
        "metrics": metrics,
        "rounds_to_target": _rounds_to_target(config, lines),
        "vote": None,  # of every run; a method's outcome may be one
        "train_loss": lines[-1]["train_loss"],
        "train_cross_entropy": lines[-1].get("train_cross_entropy"),
        "train_term": lines[-1].get("train_term"),
        "communication": {way: sum(line[way] for line in lines) for way in ("down_bytes", "up_bytes")},
        "seconds": {
            "total": round(sum(sum(v for k, v in line.items() if k != "round") for line in seconds), 3),
            "train": round(sum(line["train"] for line in seconds), 3),
            "evaluate": round(sum(line["evaluate"] for line in seconds), 3),
        },
        "refused": sum(len(line["refused"]) for line in lines),
        "refusals": _told(lines, "refused"),
        "untested": sum(len(line["untested"]) for line in lines),
        "untested_reasons": _told(lines, "untested"),
        "skipped_samples": sum(line["skipped_samples"] for line in lines),
        "never_trained": len(never),
        "zero_step_clients": sum(line["zero_step_clients"] for line in lines),
        "collapsed": [],
        **runtime.method.outcome(runtime.server(len(lines)), lines, runtime.class_counts),
    }


def _rounds_to_target(config: Config, lines: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Of the global model; None if no target was asked for."""
    if config.target_acc is None:
        return None
    return {
        "target": config.target_acc,
        "round": rounds_to([line["global_acc"] for line in lines], config.target_acc),
    }


def _by_architecture(
    runtime: ClientRuntime, accuracies: Mapping[str, Sequence[float | None]]
) -> dict[str, float | None]:
    """``linear_global_acc_mean_of_cnn4`` and the like: plain means over the clients of one of several architectures."""
    if len(runtime.models) < 2:
        return {}
    of_clients = [runtime.architecture(id) for id in range(len(runtime.federation))]
    means: dict[str, float | None] = {}
    for name, told in accuracies.items():
        if name.startswith("new_"):
            continue
        for architecture in dict.fromkeys(of_clients):
            theirs = [a for a, of in zip(told, of_clients, strict=True) if of == architecture and a is not None]
            means[f"{name}_acc_mean_of_{architecture}"] = math.fsum(theirs) / len(theirs) if theirs else None
    return means


def _told(lines: Sequence[dict[str, Any]], what: str) -> list[dict[str, Any]]:
    """Each reason that stands in the metrics: how often, and where first."""
    told: dict[str, dict[str, Any]] = {}
    for line in lines:
        for client, reason in line[what].items():
            first = {"reason": reason, "times": 0, "first": {"round": line["round"], "client": client}}
            told.setdefault(reason, first)["times"] += 1
    return list(told.values())
