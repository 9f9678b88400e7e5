"""Construction of the parts of a run from its config: federation, models, settings of the rounds, source models.

A source model is a pre-trained model from which FedVote can transfer the body; a pool is a folder of such models.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kinfed.data import Federation, load, make_federation, select_classes, subsample, with_shift, with_validation
from kinfed.data.holdout import refuse_divided_groups
from kinfed.data.samples import GROUP
from kinfed.engine import (
    ClientRuntime,
    RoundSettings,
)
from kinfed.errors import InputError, plain
from kinfed.experiment.config import MANY, OF_TRAINING, SAMPLE, Config, model_shares
from kinfed.experiment.device import computed_in
from kinfed.experiment.folders import (
    FEDERATION,
)
from kinfed.experiment.uses import refuse_idle_in, refuse_unlabelled, refuse_without_labels
from kinfed.files import read_json
from kinfed.learning import LocalTraining, Phase
from kinfed.models import ALL, BODY, HEAD, Model, Source, build, checksum, default_architecture, load_weights, open_pool

__all__ = [
    "about_clients", "check_unchanged", "federation_of", "open_sources", "runtime_of", "settled", "sources_of",
]  # fmt: skip

PARTS = {"full": ALL, "head": HEAD, "body": BODY}


def federation_of(config: Config) -> Federation:
    """Make the federation of a config: load the data set, divide it among the clients, and plant the shift.

    Raises:
        InputError: If the data cannot be loaded, or do not allow the partition or the shift of the config.
    """
    federation = with_validation(_divided(config), config.validation, config.seed)
    return with_shift(federation, config.shift, config.seed)


def _divided(config: Config) -> Federation:
    """Load the data set and divide it among the clients, or return the federation that was given in Python."""
    if config.data.startswith("<"):
        federation: Federation = config.objects[config.data]
        refuse_without_labels(config, federation.dataset)
        return _with_labelled(config, federation)
    of_labelled = {"test_fraction": None} if config.labelled is not None and config.lacks_labels else {}
    dataset = load(config.data, **config.reading | of_labelled)
    refuse_without_labels(config, dataset)
    if config.classes is not None:
        dataset = select_classes(dataset, config.classes)
    if config.train_images is not None:
        dataset = subsample(dataset, config.train_images, config.seed)
    federation = make_federation(
        dataset,
        config.partitioner(),
        clients=config.clients,
        seed=config.seed,
        public=config.public,
        groups=None if config.group is None else dataset.columns[GROUP][0],
        new_clients=config.new_clients,
        hold_out=config.hold_out or (),
    )
    if config.group is not None:
        refuse_divided_groups(federation)
    return _with_labelled(config, federation)


def _with_labelled(config: Config, federation: Federation) -> Federation:
    """Return the federation with the labelled data of the config, if it has any.

    Raises:
        InputError: If the labelled data cannot be loaded, have other shapes than the clients' data, or no labels.
    """
    if config.labelled is None:
        return federation
    shape = federation.dataset.shape
    reading = {name: getattr(config, name) for name in ("channels", "image_size", "test_fraction")}
    labelled = load(config.labelled, **reading)
    if not labelled.labelled:
        raise InputError(f"labelled: {config.labelled!r} has no labels")
    if labelled.shape != shape:
        takes, are = ("×".join(map(str, size)) for size in (shape, labelled.shape))
        raise InputError(
            f"labelled: {config.labelled!r} has inputs of shape {are}, but the clients' have the shape {takes}; set "
            "image_size or channels for both"
        )
    return replace(federation, labelled=labelled)


def runtime_of(config: Config) -> ClientRuntime:
    """Make the runtime of one run (method, federation, models and settings) from a config that names one method."""
    (name,) = config.methods
    federation = federation_of(config)
    refuse_unlabelled(name, config.method(name), federation.dataset)
    shares = model_shares(config.models or "") or [
        (config.model or default_architecture(federation.dataset.shape), 1.0)
    ]
    architectures = _architectures([share for _, share in shares], len(federation))
    if config.weights_by_client is None:
        weights = None if config.weights is None else Path(config.weights)
        models = tuple(_model(config, name, federation, weights) for name, _ in shares)
    else:  # every client has a start of its own, as if its architecture were no one else's
        files = _files_of_clients(config.weights_by_client, federation)
        of_clients = [shares[which][0] for which in (*architectures, *[0] * len(federation.new_clients))]
        models = tuple(_model(config, name, federation, file) for name, file in zip(of_clients, files, strict=True))
        architectures = tuple(range(len(files)))
    tuning = Phase(train=PARTS[config.ft_part], epochs=config.ft_epochs, lr=config.ft_lr)
    common = _training(config)
    settings = RoundSettings(
        rounds=config.rounds,
        training=replace(common, **_as_training(config.training(name))),
        refitting=common,
        lr_schedule=config.lr_schedule,
        participation=config.participation,
        seed=config.seed,
        checkpoint_every=config.checkpoint_every,
        evaluate_every=config.evaluate_every,
        patience=config.patience,
        stop_acc=config.stop_acc,
        save_local=config.save_local,
        save_models=config.save_models,
        further_clients=config.further_clients or (SAMPLE if len(federation) > MANY else None),
        fine_tuning=tuning if config.ft_epochs else None,
        linear_probe=config.linear_probe,
        knn_every=config.knn_every,
        probed=config.linear_probe_images,
        measure=config.measure,
    )
    return ClientRuntime(
        config.method(name), federation, models, settings, architectures, sources_of(config, name, federation)
    )


def _training(config: Config) -> LocalTraining:
    """Return the local training of a config, without what methods have of their own."""
    numbers = {field: getattr(config, field) for field in OF_TRAINING}
    return LocalTraining(
        **_as_training(numbers),
        augment=config.augment,
        feature_cache_mb=config.feature_cache_mb,
    )


def _as_training(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a config under their names in `LocalTraining`."""
    return {"epochs" if name == "local_epochs" else name: value for name, value in numbers.items()}


def sources_of(config: Config, name: str, federation: Federation) -> tuple[Source, ...]:
    """Open the source models of a config, on its device; none if the method ``name`` does not require them."""
    if not config.method(name).requires.source_models:
        return ()
    assert config.sources is not None
    return open_sources(Path(config.sources), federation.dataset.shape, config.device)


def open_sources(pool: Path, shape: tuple[int, ...], device: str) -> tuple[Source, ...]:
    """Open the source models in a folder, on a device.

    Args:
        pool: Folder of the source models.
        shape: Shape of one input of the data, (c, h, w) for images.
        device: Device of the models.

    Raises:
        InputError: If the folder is no pool, or a source model takes inputs of another shape.
    """
    sources = open_pool(pool)
    for source in sources:
        if source.card.shape != shape:
            takes, are = ("×".join(map(str, size)) for size in (source.card.shape, shape))
            raise InputError(
                f"sources: {source.name!r} takes inputs of shape {takes}, but the data have the shape {are}"
            )
        source.model.to(device)
    return sources


def _files_of_clients(folder: Path, federation: Federation) -> list[Path]:
    """Return the file of start weights of each client and new client: that of its name, or of its number.

    Raises:
        InputError: If a client has no file.
    """
    ids = range(len(federation) + len(federation.new_clients))
    names = [*federation.partition.names, *federation.new_clients.names] or [f"{id}" for id in ids]
    there = {path.stem: path for path in folder.glob("*.safetensors")}
    if missing := [name for name in names if name not in there]:
        has = ", ".join(sorted(there)[:3]) + (", …" if len(there) > 3 else "") or "none"
        raise InputError(
            f"weights: {str(folder)!r} has no file for client {plain(missing[0])}; it has {has}, and must have "
            "NAME.safetensors for each client"
        )
    return [there[name] for name in names]


def _model(config: Config, name: str, federation: Federation, weights: Path | None) -> Model:
    """Build one model of the architecture ``name`` with its initial weights, on the device of the config."""
    shape = federation.dataset.shape
    if config.augment != "none" and len(shape) != 3:
        raise InputError(
            f"augment: {config.augment} is not allowed; it needs images, but the inputs have the shape "
            f"{'×'.join(map(str, shape))}"
        )
    # Without classes the head is neither trained nor saved, but a model has one.
    made, classes = config.architecture(name), max(len(federation.classes), 1)
    model = build(made, shape, classes, config.seed, bn=config.bn, head=config.head)
    if weights is not None:
        load_weights(model, weights)
    model.body.in_bfloat16 = computed_in(config.precision, config.device)[0] == "bfloat16"
    return model.to(config.device)


def _architectures(shares: Sequence[float], clients: int) -> tuple[int, ...]:
    """Assign an architecture to each of N clients (specification D.5).

    The first ⌊share·N⌋ clients get the first architecture, and so on; the remaining clients get the last one.

    Args:
        shares: Share of the clients of each architecture, in [0, 1].
        clients: Number N of clients.

    Returns:
        Index of each client's architecture, N.
    """
    counts = [math.floor(share * clients + 1e-9) for share in shares[:-1]]
    return tuple(which for which, count in enumerate([*counts, clients - sum(counts)]) for _ in range(count))


def settled(config: Config, runtime: ClientRuntime) -> Config:
    """Return the config with what was derived from the data and the device: number of public images, and precision.

    Raises:
        InputError: If a method needs more public images, or a field has no effect on the models.
    """
    refuse_idle_in(config, runtime.models)
    precision, told = computed_in(config.precision, config.device)
    if told:
        warnings.warn(f"precision: {told}", stacklevel=2)
    derived = {"public": len(runtime.federation.public_rows), "precision": precision}
    return Config.checked(config.model_dump() | derived, config.objects)


def about_clients(runtime: ClientRuntime) -> str:
    """Return the text of ``federation.json``, which describes the clients' data and the source models.

    It has the training samples of each client and class, the test samples of each client, the groups of a planted
    shift, the kinds of a table's features, and the checksum of each source model.
    """
    federation = runtime.federation
    sources = {source.name: checksum(source.model.tensors()) for source in runtime.sources}
    names, new_names = federation.partition.names, federation.new_clients.names
    left = federation.dataset.left_out
    groups, new_groups = federation.groups[: len(federation)], federation.groups[len(federation) :]
    features = federation.dataset.features
    about = {
        **({"names": list(names)} if names else {}),
        **({"new_names": list(new_names)} if new_names else {}),
        "classes": list(federation.dataset.classes),
        "train": federation.class_counts().tolist(),
        "test": [len(rows) for rows in federation.partition.test],
        "probe": len(federation.public_rows),
        **({"validation": [len(rows) for rows in federation.validation]} if federation.validation else {}),
        **({"groups": groups} if groups else {}),
        **({"new_groups": new_groups} if new_groups else {}),
        "skipped": federation.dataset.skipped,
        "skipped_names": list(federation.dataset.skipped_names),
        **({"features": features} if features else {}),
        **({"remarks": list(federation.dataset.remarks)} if federation.dataset.remarks else {}),
        **({"left_out": len(left), "left_out_names": list(left[:5])} if left else {}),
        "new_clients": len(federation.new_clients),
        "unused": federation.unused,
        **({"sources": sources} if sources else {}),
        **({} if federation.dataset.labelled else _without_labels(federation)),
    }
    return json.dumps(about) + "\n"


def _without_labels(federation: Federation) -> dict[str, Any]:
    """Return the entries of ``federation.json`` for data without labels, whose samples have no class to be counted."""
    tested, held = federation.labelled, len(federation.labelled_validation)
    labelled = tested and {
        "name": tested.name,
        "classes": list(tested.classes),
        "train": len(tested.train) - held,
        "test": len(tested.test),
        **({"validation": held} if held else {}),
    }
    return {"samples": [len(rows) for rows in federation.partition.train], "labelled": labelled}


def check_unchanged(runtime: ClientRuntime, out: Path) -> None:
    """Refuse to continue a run whose clients or source models have changed since it began.

    Args:
        runtime: Runtime with the present clients and source models.
        out: Folder of the run, with its ``federation.json``.

    Raises:
        InputError: If the clients or the source models differ from those in ``federation.json``.
    """
    if read_json(out / FEDERATION) != json.loads(about_clients(runtime)):
        what = "data: the clients" if not runtime.sources else "data, sources: the clients or source models"
        raise InputError(f"{what} have changed since the run in {str(out)!r} was started")
