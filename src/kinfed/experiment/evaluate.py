"""Test of the models of a run on other labelled data; classes are matched by name."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor

from kinfed.data.loading import load_labelled
from kinfed.data.splits import Labelled
from kinfed.data.tables import Table
from kinfed.errors import InputError, check_choice
from kinfed.experiment.config import Measure
from kinfed.experiment.predictor import Predictor, load, saved_clients
from kinfed.experiment.preparation import Preparation
from kinfed.learning.measures import Answers, grades

__all__ = ["Evaluation", "evaluate"]

MEASURES: tuple[str, ...] = get_args(Measure)


@dataclass(frozen=True)
class Evaluation:
    """Measures of the models of a run on other labelled data.

    Attributes:
        which: Which samples the models are tested on, in words.
        samples: Number of samples of classes that the models know; only these are tested.
        models: Measures in [0, 1] by name, of each model: ``global model``, or ``client NAME`` with the name or number
            of the client. A measure that is not defined is None.
        unknown: Numbers of samples of each class that the models do not know; these are left out.
        missing: Classes of the models of which there is no sample.
    """

    which: str
    samples: int
    models: Mapping[str, Mapping[str, float | None]]
    unknown: Mapping[str, int]
    missing: tuple[str, ...]


def evaluate(
    path: Path,
    data: str,
    *,
    client: int | str | None = None,
    measure: str | None = None,
    label: str | None = None,
    allow_code: bool = False,
) -> Evaluation:
    """Test the global model of a run and those of its clients, or one of these, on other labelled data.

    Args:
        path: Run folder, or a safetensors file of a model.
        data: Name or path of the data. Their test set is used, or all samples if they have no split.
        client: Number (int) or name (text) of the client whose model is tested alone; None for all models.
        measure: The only measure to compute; None for all.
        label: Name of the column that is the label.
        allow_code: Import the user's own architecture that the models' files name.

    Raises:
        InputError: If there is no such model, data or measure, the data do not fit the model or have no class that the
            model knows.
    """
    if measure is not None:
        check_choice("measure", measure, MEASURES)
    models = _models(path, client, allow_code)
    name, model = next(models)
    size = model.shape
    square, coloured = len(size) == 3 and size[1] == size[2], len(size) == 3 and size[0] in (1, 3)
    tested = load_labelled(
        data, label=label, channels=size[0] if coloured else None, image_size=size[1] if square else None
    )
    unknown = Counter(label for label in tested.labels if label not in model.classes)
    inputs, labels = _known(tested, model)
    wanted = MEASURES if measure is None else (measure,)
    return Evaluation(
        which=tested.which,
        samples=len(labels),
        models={name: _measured(one, inputs, labels, wanted) for name, one in itertools.chain([(name, model)], models)},
        unknown=dict(sorted(unknown.items())),
        missing=tuple(name for name in model.classes if name not in tested.labels),
    )


def _models(path: Path, client: int | str | None, allow_code: bool) -> Iterator[tuple[str, Predictor]]:
    """Yield the models that are tested, one at a time, each with its name."""
    clients = saved_clients(path)
    if client is not None:
        model = load(path, client, allow_code=allow_code)
        yield f"client {next(name for name, number in clients.items() if client in (name, number))}", model
        return
    if not clients:
        yield "global model" if path.is_dir() else path.stem, load(path, allow_code=allow_code)
        return
    if (path / "models" / "global.safetensors").is_file():
        yield "global model", load(path, allow_code=allow_code)
    for name, number in clients.items():
        yield f"client {name}", load(path, number, allow_code=allow_code)


def _known(tested: Labelled, model: Predictor) -> tuple[Tensor, Tensor]:
    """Return the samples of classes that a model knows, as it takes them, and the numbers of their classes.

    Raises:
        InputError: If there are none, or the model takes other inputs.
    """
    number = {name: k for k, name in enumerate(model.classes)}
    labels = torch.tensor([number.get(label, -1) for label in tested.labels])
    known = labels >= 0
    if model.classes and not known.any():
        theirs, ours = (", ".join([*names][:5]) for names in (dict.fromkeys(tested.labels), model.classes))
        raise InputError(f"data: {tested.which} has none of the model's classes, but {theirs}; the model has {ours}")
    table = tested.inputs.frame if isinstance(tested.inputs, Table) else None
    if table is not None and model.encoding is None:
        size = "×".join(map(str, model.shape))
        raise InputError(f"data: {tested.which} is a table, but the model takes inputs of shape {size}")
    parts = Preparation(model.shape, model.encoding)(tested.inputs if table is None else table)
    return torch.cat([*parts])[known], labels[known]


def _measured(model: Predictor, inputs: Tensor, labels: Tensor, wanted: Sequence[str]) -> dict[str, float | None]:
    """Return the measures of one model."""
    (grade,) = grades(Answers.of_one(0, labels, model.logits(inputs)), 1, auroc="auroc" in wanted)
    found = {"accuracy": grade.accuracy, **grade.measures}
    return {name: found[name] for name in wanted}
