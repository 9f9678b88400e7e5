"""Training of source models, and the pool that they are written to (METHODS.md E.4, E.5)."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from kinfed.data import Dataset, Normalisation, load, select_classes, subsample
from kinfed.engine import Unwatched, Watch, save_model
from kinfed.engine.checks import not_finite
from kinfed.errors import InputError
from kinfed.experiment.folders import CONFIG
from kinfed.experiment.run import Watcher, nobody
from kinfed.experiment.training import Training
from kinfed.files import LOCK, UNFINISHED, claimed, clear_unfinished, delete, read_json
from kinfed.learning import SGD, AfterStep, Phase, correct, train
from kinfed.models import Model, Tensors, build, read_tensors
from kinfed.settings import own_settings
from kinfed.streams import torch_stream

__all__ = ["DEFAULT", "is_there", "save_source", "train_source", "train_sources"]

FILES = re.compile(r"[^/]+\.(?:safetensors|json)|\.tmp\w+")  # what a pool is made of
DEFAULT = SGD(lr=0.05, epochs=5, batch_size=50, momentum=0.0)  # METHODS.md E.4


@own_settings()
def train_source(
    dataset: Dataset,
    architecture: str = "mcmahan_cnn",
    sgd: SGD = DEFAULT,
    *,
    seed: int,
    purpose: tuple[str | int, ...],
    device: str = "cpu",
    watch: Watch | None = None,
) -> tuple[Model, float]:
    """Train one model on all of a data set, with the same bits each time.

    Args:
        dataset: What it learns and is tested on.
        architecture: One of `kinfed.models.ARCHITECTURES`.
        sgd: Step size, epochs, batch size and so on.
        seed: Of the streams.
        purpose: Names the streams: start weights and order of samples are those of ``(seed, *purpose, …)``.
        device: Where it is trained.
        watch: Is told of every epoch.

    Returns:
        The model, on the CPU and in evaluation mode, and its accuracy on the test set, a fraction of 1.

    Raises:
        InputError: If the architecture does not take the inputs, or the training diverges.
    """
    watch = watch or Unwatched()
    model = build(architecture, dataset.shape, len(dataset.classes), seed, stream=(*purpose, "model")).to(device)
    model.prefer_channels_last()
    samples, test = (split.to(torch.device(device)) for split in (dataset.train, dataset.test))
    watch.started(0)
    tally = train(
        model,
        samples,
        Phase(),
        sgd,
        torch_stream(seed, *purpose, "order"),
        after_step=_telling(watch, math.ceil(len(samples) / sgd.batch_size), sgd.epochs),
    )
    if not math.isfinite(tally.loss) or not_finite(model.state_dict()):
        raise InputError(f"lr: {sgd.lr:g} makes the training on {dataset.name} diverge; must be smaller")
    accuracy = correct(model.eval(), test).double().mean().item()
    watch.round({"round": sgd.epochs, "personal_acc_weighted": accuracy, "refused": {}})
    return model.cpu(), accuracy


def _telling(watch: Watch, steps: int, epochs: int) -> AfterStep:
    """Tells of every step, and of every epoch but the last, whose line has the accuracy."""
    done = 0

    def tell(weights: Tensors) -> None:
        nonlocal done
        del weights
        done += 1
        epoch, step = divmod(done, steps)
        if not step and epoch < epochs:
            watch.round({"round": epoch, "refused": {}})
        watch.working("step", step or steps, steps)

    return tell


@own_settings()
def train_sources(training: Training, out: Path, watcher: Watcher = nobody, *, overwrite: bool = False) -> None:
    """Train a source a data set and write each to a pool as soon as it is trained; what is there is kept.

    Args:
        training: Which, and how.
        out: The pool; other sources in it stay.
        watcher: Looks at each training.
        overwrite: Whether sources of these names that are there are trained anew.

    Raises:
        InputError: If the data do not fit, a source of one of the names was trained otherwise, or the folder cannot be
            written or is in use.
    """
    _refuse_foreign(out)
    with claimed(out):
        _train_missing(training, out, watcher, overwrite=overwrite)


def _train_missing(training: Training, out: Path, watcher: Watcher, *, overwrite: bool) -> None:
    missing = {
        name: data
        for name, data in training.sources().items()
        if overwrite or not is_there(out / f"{name}.safetensors", training.of(data))
    }
    datasets = dict(zip(missing, _datasets(training, [*missing.values()]), strict=True))
    with torch.device("meta"):  # what does not fit shows before anything is trained
        for dataset in datasets.values():
            build(training.model, dataset.shape, len(dataset.classes), training.seed)
    clear_unfinished(out, FILES)
    sgd = SGD(lr=training.lr, epochs=training.epochs, batch_size=training.batch_size, momentum=training.momentum)
    for name, dataset in datasets.items():
        model, accuracy = train_source(
            dataset,
            training.model,
            sgd,
            seed=training.seed,
            purpose=("source", name),
            device=training.device,
            watch=watcher(name, training.seed, training.epochs),
        )
        told = {"data": missing[name], "seed": training.seed, "training": training.of(missing[name])}
        save_source(out / f"{name}.safetensors", model, dataset, accuracy, told)


def _refuse_foreign(out: Path) -> None:
    """Refuse a place for a pool that is a run's, or has something in it and no source."""
    there = sorted({*os.listdir(out)} - {LOCK}) if os.path.isdir(out) else []
    strange = next((name for name in there if not (FILES.fullmatch(name) or name.endswith(UNFINISHED))), None)
    if strange is not None and not any(name.endswith(".safetensors") for name in there):
        raise InputError(
            f"out: {str(out)!r} is no pool of source models; it has {strange!r} in it; name another folder"
        )
    if (out.parent / CONFIG).is_file() and out.name == "models":
        raise InputError(f"out: {str(out)!r} belongs to a run; name another folder")


def save_source(path: Path, model: Model, dataset: Dataset, accuracy: float, told: dict[str, Any]) -> None:
    """Write a trained source, and the JSON that says what it is.

    Args:
        path: ``NAME.safetensors``, in the pool.
        model: On the CPU.
        dataset: What it was trained and tested on.
        accuracy: On its test set, a fraction of 1.
        told: What else is to be known of it.
    """
    normalise = dataset.train.normalise
    about = {**model.recipe, "shape": dataset.shape, "classes": dataset.classes}
    told = told | {
        "normalisation": {"mean": normalise.mean, "std": normalise.std},
        "learned": "with labels",
        "train": len(dataset.train),
        "accuracy": accuracy,
        "measured_on": f"the test set, {len(dataset.test)} samples",
    }
    delete([path.with_suffix(".json")], path.parent, FILES)  # of a former one; the JSON comes last
    save_model(path, model.tensors(), about, {**about, **told}, lasting=True)


def is_there(path: Path, settings: dict[str, Any]) -> bool:
    """Whether a source was trained to the end, with these settings; one that was damaged since is none."""
    beside = path.with_suffix(".json")
    if not beside.is_file():
        return False
    try:
        theirs = read_json(beside)["training"]
        name = next((name for name, value in settings.items() if theirs.get(name) != value), None)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"out: {str(beside)!r} is there and does not say how it was trained; name another folder, or --overwrite"
        ) from error
    if name is not None:
        raise InputError(
            f"out: {str(beside)!r} was trained with {name} = {theirs.get(name)!r} and not {settings[name]!r}; name "
            f"another folder, or --overwrite"
        )
    try:
        read_tensors(path)
    except ValueError:
        return False
    return True


def _datasets(training: Training, names: list[str]) -> Iterator[Dataset]:
    """The data sets, in the format of the one that they shall be like."""
    channels, image_size = training.channels, training.image_size
    normalise: Normalisation | None = None
    if names and training.like is not None:
        target = load(training.like, channels=channels, image_size=image_size)
        if len(target.shape) != 3 or target.shape[1] != target.shape[2]:
            size = "×".join(map(str, target.shape))
            raise InputError(
                f"like: {training.like} has inputs of {size}; square images c×n×n are needed: --image-size"
            )
        channels, image_size, _ = target.shape
        normalise = target.train.normalise
    for name in names:
        dataset = load(name, channels=channels, image_size=image_size)
        if training.classes is not None:
            dataset = select_classes(dataset, training.classes)
        if training.train_images is not None and training.train_images < len(dataset.train):
            dataset = subsample(dataset, training.train_images, training.seed)
        if normalise is not None:
            train, test = (replace(split, normalise=normalise) for split in (dataset.train, dataset.test))
            dataset = replace(dataset, train=train, test=test)
        yield dataset
