"""Quantities of the papers' figures, read from run folders: numbers of a run, and matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike

from kinfed.data import load
from kinfed.experiment.assemble import federation_of
from kinfed.experiment.config import Config
from kinfed.experiment.folders import CONFIG, FEDERATION, SUMMARY
from kinfed.experiment.papers.figure import HEAD_DISTANCE, Matrix
from kinfed.experiment.targets import rounds_to
from kinfed.files import read_json, read_json_lines
from kinfed.learning import class_overlap, features, rank_correlation
from kinfed.models import HEAD, open_saved, read_tensors, saved_models, select
from kinfed.similarity import MEASURES
from kinfed.streams import numpy_stream

__all__ = ["at_the_end", "by_round", "class_counts", "layer_similarity", "similarities", "speed_up"]

REACHED = 0.95  # share of the baseline's best accuracy that a speed-up is about (specification E.6)
IMAGES = 512  # test images on which layers are compared
ROUNDS = 4  # largest number of rounds whose matrices are drawn


def by_round(run: Path, quantity: str) -> dict[int, float]:
    """Return an accuracy of a run in percent, by round in which it was measured."""
    lines = read_json_lines(run / "metrics.jsonl")
    return {line["round"]: 100 * line[quantity] for line in lines if line.get(quantity) is not None}


def at_the_end(run: Path, quantity: str) -> float | None:
    """Return an accuracy of a run after the last round, in percent, or the ``head_distance`` of its clients' models."""
    if quantity == HEAD_DISTANCE:
        return head_distance(run)
    accuracy = read_json(run / SUMMARY)["metrics"].get(quantity)
    return None if accuracy is None else 100 * accuracy


def head_distance(run: Path) -> float:
    """Compute the L2 distance between the heads of two clients' own models, mean over all pairs of clients.

    It is how far predictors drift apart in FedCRC's Figure 1.
    """
    paths = _models(run, "personal")
    heads = [torch.cat([x.flatten() for x in select(read_tensors(path)[0], HEAD).values()]) for path in paths]
    return float(torch.pdist(torch.stack(heads).double()).mean())


def _models(run: Path, kind: str) -> list[Path]:
    """Return the paths of the clients' models of a kind in a run, in the order of the clients."""
    folder = run / "models"
    return [folder / f"{name}.safetensors" for name in saved_models(folder) if name.endswith(f"-{kind}")]


def speed_up(run: Path, baseline: Path) -> float:
    """Compute the rounds that a baseline takes to 95 % of its best accuracy, divided by those of a run.

    The accuracy is that of the global model on the pooled test set. A run that does not reach it counts with all its
    rounds, so that the true speed-up is smaller.
    """
    curves = [[line.get("global_acc") for line in read_json_lines(path / "metrics.jsonl")] for path in (baseline, run)]
    target = REACHED * max(accuracy for accuracy in curves[0] if accuracy is not None)
    without, own = (rounds_to(curve, target) or len(curve) for curve in curves)
    return without / own


def similarities(run: Path, quantity: str) -> dict[str, Matrix]:
    """Return the classes that clients share, and their similarity after some of the rounds, by heading.

    Args:
        run: Folder of the run.
        quantity: Name of the method's picture, N×N.
    """
    overlap = class_overlap(np.array(read_json(run / FEDERATION)["train"]))
    clients = [str(i) for i in range(len(overlap))]
    found = {"Shared classes": Matrix(clients, clients, _plain(overlap), similarity=True)}
    paths = sorted((run / "pictures").glob("round-*.safetensors"))
    for at in np.unique(np.linspace(0, len(paths) - 1, ROUNDS).round().astype(int)):
        matrix = read_tensors(paths[at])[0][quantity].numpy()
        value = rank_correlation(matrix, overlap)
        told = "" if value is None else f"rank correlation with shared classes {value:.2f}"
        heading = f"After round {int(paths[at].stem.removeprefix('round-'))}"
        found[heading] = Matrix(clients, clients, _plain(matrix), told, similarity=True)
    return found


def layer_similarity(run: Path) -> dict[str, Matrix]:
    """Compute biased and debiased CKA of each client's local model with the global one, layer by layer.

    The run must have saved the clients' models of the last round. They see test images drawn with a fixed seed.
    """
    config = Config.read(run / CONFIG)
    test = load(config.data, **config.reading).test
    images = test.take(numpy_stream(0, "similarity").choice(len(test), min(IMAGES, len(test)), replace=False))
    paths = [run / "models" / "global.safetensors", *_models(run, "local")]
    models = [open_saved(path)[0] for path in paths]
    layers = [*models[0].layers]
    common, *own = [[features(model, images, layer) for layer in layers] for model in models]
    clients = [f"client {i}" for i in range(len(own))]
    found = {}
    for heading, measure in (("CKA", "cka"), ("debiased CKA", "debiased_cka")):
        by = MEASURES[measure]
        cka = np.array([[float(by(x, g)) for x, g in zip(of, common, strict=True)] for of in own])
        found[heading] = Matrix(["mean", *clients], layers, _plain([cka.mean(axis=0), *cka]))
    return found


def class_counts(config: Config) -> Matrix:
    """Count the training samples of each class and client of a config; nothing is trained."""
    federation = federation_of(config)
    clients = [f"client {i}" for i in range(len(federation))]
    return Matrix(
        [f"class {name}" for name in federation.dataset.classes], clients, federation.class_counts().T.tolist()
    )


def _plain(matrix: ArrayLike) -> Sequence[Sequence[float | None]]:
    """Turn a matrix into lists for JSON; None where it is not defined."""
    return [[None if math.isnan(value) else float(value) for value in row] for row in np.asarray(matrix)]
