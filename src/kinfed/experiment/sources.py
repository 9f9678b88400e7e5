"""Training of source models, and the pool that they are written to (specification E.4, E.5).

A source model is trained on a data set other than the clients' own; FedVote can transfer its body to the clients. A
pool is a folder of source models.
"""

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
from kinfed.engine import Callback, NoCallback, save_model
from kinfed.engine.checks import not_finite
from kinfed.errors import InputError
from kinfed.experiment.folders import CONFIG
from kinfed.experiment.run import MakeCallback, nobody
from kinfed.experiment.training import Training
from kinfed.files import LOCK, UNFINISHED, claimed, clear_unfinished, delete, read_json
from kinfed.learning import AfterStep, LocalTraining, Phase, correct, train
from kinfed.models import Model, Tensors, build, read_tensors
from kinfed.settings import own_settings
from kinfed.streams import torch_stream

__all__ = ["DEFAULT", "is_there", "save_source", "train_source", "train_sources"]

FILES = re.compile(r"[^/]+\.(?:safetensors|json)|\.tmp\w+")  # the files of a pool
DEFAULT = LocalTraining(lr=0.05, epochs=5, batch_size=50, momentum=0.0)  # specification E.4


@own_settings()
def train_source(
    dataset: Dataset,
    architecture: str = "mcmahan_cnn",
    training: LocalTraining = DEFAULT,
    *,
    seed: int,
    purpose: tuple[str | int, ...],
    device: str = "cpu",
    callback: Callback | None = None,
) -> tuple[Model, float]:
    """Train one model on a whole data set. The result is the same, bit by bit, each time.

    Args:
        dataset: Data set with training and test samples.
        architecture: Name of an architecture in `kinfed.models.ARCHITECTURES`.
        training: Settings of the training: learning rate, epochs, batch size and so on.
        seed: Seed of the random streams.
        purpose: Name of the random streams; the initial weights and the order of samples follow from seed and name.
        device: Device to train on.
        callback: Observer of every step and epoch; None for no observer.

    Returns:
        The model, on the CPU and in evaluation mode, and its accuracy on the test set, in [0, 1].

    Raises:
        InputError: If the architecture does not take inputs of this shape, or the training diverges.
    """
    callback = callback or NoCallback()
    model = build(architecture, dataset.shape, len(dataset.classes), seed, stream=(*purpose, "model")).to(device)
    model.prefer_channels_last()
    samples, test = (split.to(torch.device(device)) for split in (dataset.train, dataset.test))
    callback.started(0)
    tally = train(
        model,
        samples,
        Phase(),
        training,
        torch_stream(seed, *purpose, "order"),
        after_step=_telling(callback, math.ceil(len(samples) / training.batch_size), training.epochs),
    )
    if not math.isfinite(tally.loss) or not_finite(model.state_dict()):
        raise InputError(
            f"lr: {training.lr:g} is not allowed; the training on {dataset.name} diverges; must be smaller"
        )
    accuracy = correct(model.eval(), test).double().mean().item()
    callback.round({"round": training.epochs, "personal_acc_weighted": accuracy, "refused": {}})
    return model.cpu(), accuracy


def _telling(callback: Callback, steps: int, epochs: int) -> AfterStep:
    """Return a hook that reports each step and each finished epoch except the last to an observer.

    The caller reports the last epoch, together with the accuracy.

    Args:
        callback: Observer that gets the reports.
        steps: Training steps per epoch.
        epochs: Number of epochs.
    """
    done = 0

    def tell(weights: Tensors) -> None:
        nonlocal done
        del weights
        done += 1
        epoch, step = divmod(done, steps)
        if not step and epoch < epochs:
            callback.round({"round": epoch, "refused": {}})
        callback.working("step", step or steps, steps)

    return tell


@own_settings()
def train_sources(
    training: Training, out: Path, make_callback: MakeCallback = nobody, *, overwrite: bool = False
) -> None:
    """Train a source model on each data set, and write each to a pool as soon as it is trained.

    Args:
        training: Data sets and settings of the training.
        out: Folder of the pool. Sources that it holds are kept.
        make_callback: Observer of each training.
        overwrite: Train and replace sources of these names that the pool holds.

    Raises:
        InputError: If a data set does not fit the architecture, a training diverges, a source of one of the names was
            trained with other settings, or the folder is in use or cannot be written.
    """
    _refuse_foreign(out)
    with claimed(out):
        _train_missing(training, out, make_callback, overwrite=overwrite)


def _train_missing(training: Training, out: Path, make_callback: MakeCallback, *, overwrite: bool) -> None:
    missing = {
        name: data
        for name, data in training.sources().items()
        if overwrite or not is_there(out / f"{name}.safetensors", training.of(data))
    }
    datasets = dict(zip(missing, _datasets(training, [*missing.values()]), strict=True))
    with torch.device("meta"):  # refuses data that do not fit the architecture before anything is trained
        for dataset in datasets.values():
            build(training.model, dataset.shape, len(dataset.classes), training.seed)
    clear_unfinished(out, FILES)
    local = LocalTraining(
        lr=training.lr, epochs=training.epochs, batch_size=training.batch_size, momentum=training.momentum
    )
    for name, dataset in datasets.items():
        model, accuracy = train_source(
            dataset,
            training.model,
            local,
            seed=training.seed,
            purpose=("source", name),
            device=training.device,
            callback=make_callback(name, training.seed, training.epochs),
        )
        told = {"data": missing[name], "seed": training.seed, "training": training.of(missing[name])}
        save_source(out / f"{name}.safetensors", model, dataset, accuracy, told)


def _refuse_foreign(out: Path) -> None:
    """Refuse a folder for a pool if it belongs to a run, or holds other files and no source."""
    there = sorted({*os.listdir(out)} - {LOCK}) if os.path.isdir(out) else []
    strange = next((name for name in there if not (FILES.fullmatch(name) or name.endswith(UNFINISHED))), None)
    if strange is not None and not any(name.endswith(".safetensors") for name in there):
        raise InputError(
            f"out: {str(out)!r} is not a pool of source models, since it contains {strange!r}; choose another folder"
        )
    if (out.parent / CONFIG).is_file() and out.name == "models":
        raise InputError(f"out: {str(out)!r} belongs to a run; choose another folder")


def save_source(path: Path, model: Model, dataset: Dataset, accuracy: float, told: dict[str, Any]) -> None:
    """Write a trained source, and the JSON file that describes it.

    Args:
        path: Path of the file, ``NAME.safetensors`` in the pool.
        model: Trained model, on the CPU.
        dataset: Data set that it was trained and tested on.
        accuracy: Accuracy on the test set, in [0, 1].
        told: Further entries of the JSON file.
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
    # A former JSON goes first and the new one comes last, so that a model without one is known to be incomplete.
    delete([path.with_suffix(".json")], path.parent, FILES)
    save_model(path, model.tensors(), about, {**about, **told}, durable=True)


def is_there(path: Path, settings: dict[str, Any]) -> bool:
    """Return True if a pool holds a source model of this path that is complete and undamaged.

    Args:
        path: Path of the source's safetensors file.
        settings: Settings that it must have been trained with.

    Raises:
        InputError: If the source was trained with other settings, or its JSON does not say with which.
    """
    beside = path.with_suffix(".json")
    if not beside.is_file():
        return False
    try:
        theirs = read_json(beside)["training"]
        name = next((name for name, value in settings.items() if theirs.get(name) != value), None)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"out: {str(beside)!r} exists and does not say how the source was trained; choose another folder, or "
            "--overwrite"
        ) from error
    if name is not None:
        raise InputError(
            f"out: the source of {str(beside)!r} was trained with {name} = {theirs.get(name)!r}, not "
            f"{settings[name]!r}; choose another folder, or --overwrite"
        )
    try:
        read_tensors(path)
    except ValueError:
        return False
    return True


def _datasets(training: Training, names: list[str]) -> Iterator[Dataset]:
    """Load data sets one by one, in the image format and normalisation of the data set ``training.like``."""
    channels, image_size = training.channels, training.image_size
    normalise: Normalisation | None = None
    if names and training.like is not None:
        target = load(training.like, channels=channels, image_size=image_size)
        if len(target.shape) != 3 or target.shape[1] != target.shape[2]:
            size = "×".join(map(str, target.shape))
            raise InputError(
                f"like: {training.like} is not allowed; its inputs have the shape {size}; must be square images "
                "c×n×n; see --image-size"
            )
        channels, image_size, _ = target.shape
        normalise = target.train.normalise
    for name in names:
        dataset = load(name, channels=channels, image_size=image_size)
        if not dataset.labelled:
            raise InputError(f"data: {name!r} has no labels, which source models learn from")
        if training.classes is not None:
            dataset = select_classes(dataset, training.classes)
        if training.train_images is not None and training.train_images < len(dataset.train):
            dataset = subsample(dataset, training.train_images, training.seed)
        if normalise is not None:
            train, test = (replace(split, normalise=normalise) for split in (dataset.train, dataset.test))
            dataset = replace(dataset, train=train, test=test)
        yield dataset
