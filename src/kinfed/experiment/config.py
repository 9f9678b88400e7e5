"""The configuration of an experiment: one flat set of fields, checked before anything is loaded.

The module does not import torch, so that the command line can show its options quickly; checks that need torch import
it locally.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import tomli_w
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from kinfed.data.names import EMBEDDED, locate
from kinfed.data.partitions import PARTITIONS, as_partition, make_partition, partition_options
from kinfed.data.partitions import check_name as check_partition
from kinfed.errors import InputError, check_choice
from kinfed.experiment.config_file import MARK, read_toml, with_present_names
from kinfed.experiment.device import Precision, available
from kinfed.fields import listed, one_line, plain_value, short
from kinfed.labels import folder_name, parse_label
from kinfed.methods import METHODS, make_method, method_fields, name_and_fields
from kinfed.methods import check_name as check_method
from kinfed.models import ARCHITECTURES

if TYPE_CHECKING:
    from kinfed.data.partitions.partitioner import Partitioner
    from kinfed.data.partitions.saved import Saved
    from kinfed.methods import Method

__all__ = [
    "EXECUTION",
    "FEWEST_PUBLIC",
    "OF_TRAINING",
    "USUAL_LR",
    "Config",
    "Measure",
    "as_tuple",
    "finder",
    "model_shares",
    "refuse_mistyped",
]

SavedModels = Literal["none", "global", "all"]
Measure = Literal["accuracy", "balanced_accuracy", "macro_f1", "auroc"]

CLIENTS = 20  # default number of clients, unless the data define them
BY_DATA = ("by", "folders", "file")  # partitions whose clients are those of the data or of a file
MANY, SAMPLE = 1000, 200  # of more clients than MANY, a SAMPLE is tested further, unless the config has a number
FEWEST_PUBLIC = 4  # smallest number of public images; similarities on fewer are meaningless

# Fields that do not influence the results, so that they may change when a run is resumed. The device influences only
# rounding. The target is applied to the results: another one needs no training. The folder of the source models may
# change, since federation.json records which models they are. The measure only says by which results a run is judged.
EXECUTION = {
    "workers", "client_timeout", "cpus_per_client", "gpus_per_client", "parallel", "checkpoint_every", "save_local",
    "save_models", "seeds", "log", "device", "target_acc", "sources", "measure",
}  # fmt: skip

# Fields that say how the data set is read.
OF_READING = ("channels", "image_size", "on_error", "label", "client", "group", "test_fraction", "drop", "standardise")

# Settings of the local training for which a method may have a value of its own, as in fedprox:lr=0.03.
OF_TRAINING = ("lr", "optimizer", "momentum", "weight_decay", "local_epochs", "batch_size")

USUAL_LR = {"sgd": 0.1, "adam": 0.001, "adamw": 0.001}  # default learning rate of each optimiser


class Fields(BaseModel):
    """The fields of an experiment, with what can be checked of each one without torch, whose import takes seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    methods: tuple[str, ...] = Field(description="names of the methods to run")
    data: str = Field("digits", description="data set: a name (see: kinfed datasets), hub:OWNER/NAME, or a path")
    labelled: str | None = Field(
        None,
        description="data set with labels, like data, on which representations are tested if data has no labels",
    )
    channels: int | None = Field(
        None, description="number of channels of the images, 1 or 3; by default 1 if all images are grey, otherwise 3"
    )
    image_size: int | None = Field(
        None, ge=1, description="side in pixels to which images are resized; by default they keep their size"
    )
    on_error: Literal["stop", "skip"] = Field(
        "stop", description="stop the run at an image that cannot be decoded, or skip the image"
    )
    label: str | None = Field(
        None, description="name of the column that is the label; by default label, fine_label or labels"
    )
    client: str | None = Field(
        None, description="name of the column whose values are the clients; then no partition is needed"
    )
    group: str | None = Field(
        None,
        description="name of the column of groups, such as patients: samples of one group stay on one side of the cuts "
        "between training, validation and test",
    )
    test_fraction: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="share of the samples that is held out as test set, where the data have no split; of labelled, if "
        "data has no labels",
    )
    drop: tuple[str, ...] | None = Field(
        None, description="names of columns of a table that are no features, as in id,admitted_on"
    )
    standardise: bool | None = Field(
        None,
        description="false if the features of a table or array are standardised already; by default they are "
        "standardised by the training rows",
    )
    classes: tuple[str, ...] | None = Field(
        None,
        description="classes to train and test on, as in 0,1; the model still has an output for every class; by "
        "default all",
    )
    train_images: int | None = Field(
        None,
        ge=1,
        description="number of training samples to use, drawn at random with balanced classes; by default all",
    )
    model: str | None = Field(
        None,
        description="architecture: a name (see: kinfed models) or package.module:function [by the data]",
    )
    models: str | None = Field(
        None, description="several architectures and their shares of the clients, as in resnet18:0.4,resnet34:0.6"
    )
    head: str | None = Field(
        None, description="name of the last linear layer of your own model; by default the last one that is found"
    )
    bn: Literal["track", "batch", "group", "frozen"] = Field(
        "track",
        description="BatchNorm layers: running statistics, statistics of each batch, group normalisation instead, or "
        "frozen as they are in the weights",
    )
    weights: str | None = Field(
        None,
        description="safetensors file with start weights of the whole model or of its body; or a folder with such a "
        "file for each client, NAME.safetensors",
    )
    sources: str | None = Field(None, description="folder of source models for fedvote; kinfed sources train makes one")
    augment: Literal["none", "crop_flip"] = Field("none", description="augmentation of the training images")
    clients: int | None = Field(
        None,
        ge=1,
        description="number of clients, by default 20; if the data define the clients, the largest number, by default "
        "all; with a saved partition, the number in its file",
    )
    participation: float = Field(1.0, gt=0, le=1, description="fraction of the clients that train in each round")
    partition: str = Field(
        "shards",
        description="assignment of the samples to clients, by default the clients that the data define, or else "
        f"shards (iid without labels): {', '.join(PARTITIONS)}",
    )
    shards: int = Field(2, ge=1, description="number of shards per client, of one class each (partition shards)")
    alpha: float = Field(
        0.5,
        gt=0,
        description="Dirichlet concentration; small is skewed (dirichlet, dirichlet_clients, quantity)",
    )
    classes_per_client: int | None = Field(
        None, ge=1, description="number of classes per client, which other clients may have too (partition disjoint)"
    )
    validation: float = Field(
        0.0, ge=0, lt=1, description="share of each client's training samples that is set aside for validation"
    )
    patience: int | None = Field(
        None,
        ge=1,
        description="rounds without a better validation accuracy after which a run ends early; by default never",
    )
    shift: str | None = Field(
        None,
        description="planted groups of clients whose data differ, NAME:GROUPS[:SIZES]: rotate:4, permute_labels:4, "
        "invert:4 or colour:4; rotate:4:1,2,3,4 with relative sizes",
    )
    new_clients: int = Field(
        0, ge=0, description="number of clients, drawn at random, that never train and are tested at the end"
    )
    hold_out: tuple[str, ...] | None = Field(
        None, description="names of clients, as in north,south, that are new clients as well; by default none"
    )
    rounds: int = Field(30, ge=1, description="number of rounds")
    local_epochs: int = Field(
        1, ge=1, description="number of passes over its samples that a client makes in each round"
    )
    batch_size: int = Field(16, ge=1, description="number of samples in a training step")
    optimizer: Literal["sgd", "adam", "adamw"] = Field(
        "sgd", description="optimiser of the clients, which begins anew in every round"
    )
    lr: float = Field(
        USUAL_LR["sgd"], gt=0, description="learning rate in the first round; with adam and adamw the default is 0.001"
    )
    lr_schedule: str = Field(
        "step:0.75",
        description="constant, cosine, or step:F:D,…: divided by D (default 10) after the fraction F of the rounds",
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of SGD")
    weight_decay: float = Field(0.0, ge=0, description="weight decay; of adamw decoupled from the gradient")
    feature_cache_mb: float = Field(
        1024.0, ge=0, description="limit in MiB per process on stored activations of frozen models"
    )
    ft_epochs: int = Field(
        5,
        ge=0,
        description="epochs of each client's fine-tuning after the last round; 0 for no fine-tuning",
    )
    ft_lr: float = Field(1e-3, gt=0, description="learning rate of the fine-tuning")
    ft_part: Literal["full", "head", "body"] = Field("full", description="part of the model that is fine-tuned")
    further_clients: int | None = Field(
        None,
        ge=1,
        description="number of clients, drawn at random, at which models are fine-tuned, re-fitted, refreshed and "
        "tested among the client's own classes after the last round; by default all of up to 1,000, and 200 of more",
    )
    linear_probe: bool | None = Field(
        None,
        description="true to fit linear probes after the last round; by default for methods that read no labels",
    )
    linear_probe_images: int | None = Field(
        None,
        ge=1,
        description="number of training images for linear probes and nearest neighbours; by default all",
    )
    knn_every: int = Field(
        10,
        ge=0,
        description="rounds between two tests by nearest neighbours, for methods that read no labels; 0 for none",
    )
    public: int | None = Field(
        None,
        ge=0,
        description="number of training images that become public images of the server; by default at most 128",
    )
    seed: int = Field(0, ge=0, description="seed of the run; the first one if there are several seeds")
    seeds: int = Field(1, ge=1, description="number of seeds with which each method of a comparison is run")
    evaluate_every: int = Field(
        1, ge=1, description="number of rounds between two evaluations; the last round is always evaluated"
    )
    target_acc: float | None = Field(
        None,
        gt=0,
        le=1,
        description="accuracy of the global model on the pooled test set; the first round that reaches it is reported",
    )
    stop_acc: float | None = Field(
        None,
        gt=0,
        le=1,
        description="accuracy of the global model on the pooled test set at which a run ends early; it looks at the "
        "test set, so that its last accuracy is no fair one",
    )
    measure: Measure = Field(
        "accuracy", description="measure by which methods are compared and settings are chosen, on the clients' samples"
    )
    checkpoint_every: int = Field(10, ge=1, description="number of rounds between two checkpoints")
    save_local: bool = Field(
        False,
        description="true to save the clients' models of the last round, for methods that send whole models",
    )
    save_models: SavedModels = Field(
        "all", description="models to save after the last round: none, global, or all, also those of the clients"
    )
    workers: int = Field(
        0, ge=0, description="number of worker processes; 0 to train the clients one by one in this process"
    )
    client_timeout: float | None = Field(
        None,
        gt=0,
        description="seconds after which a client's work counts as failed; needs workers; by default no limit",
    )
    cpus_per_client: float | None = Field(
        None, gt=0, description="cores that each of the workers takes on Ray, for the placement; by default 1"
    )
    gpus_per_client: float | None = Field(
        None, gt=0, description="GPUs that each of the workers takes on Ray, as in 0.25; by default none"
    )
    parallel: int = Field(
        1, ge=1, description="number of runs that are done side by side, each in a process of its own with its workers"
    )
    device: str = Field("cpu", description="cpu, cuda, cuda:N or mps")
    precision: Precision = Field(
        "float32",
        description="float32; bfloat16 for the layers of models, which is faster on some processors and GPUs; auto for "
        "bfloat16 on those",
    )
    log: str | None = Field(None, description="trackers to log to: tensorboard, mlflow, wandb, or several with commas")
    settings: dict[str, dict[str, Any]] = Field(default_factory=dict, description="fields of the methods, by method")

    @field_validator("*", mode="before")
    @classmethod
    def _plain(cls, value: Any, info: ValidationInfo) -> Any:
        value = plain_value(cls, value, info)
        return as_tuple(value) if info.field_name == "methods" else value

    @field_validator("classes", "drop", "hold_out", mode="before")
    @classmethod
    def _listed(cls, names: Any) -> Any:
        return listed(names)

    @field_validator("methods")
    @classmethod
    def _names_of_methods(cls, methods: tuple[str, ...]) -> tuple[str, ...]:
        for name, _ in map(parse_label, methods):
            if not name.startswith("<"):
                check_method(name)
        return methods

    @field_validator("model")
    @classmethod
    def _name_of_model(cls, model: str | None) -> str | None:
        if model is not None and not model.startswith("<"):
            check_choice("model", model, ARCHITECTURES)
        return model

    @field_validator("models")
    @classmethod
    def _names_of_models(cls, models: str | None) -> str | None:
        for name, _ in model_shares(models or ""):
            check_choice("model", name, ARCHITECTURES)
        return models

    @field_validator("data", "labelled")
    @classmethod
    def _name_of_data(cls, data: str | None) -> str | None:
        if data is not None and data != EMBEDDED and not data.startswith("<"):
            locate(data)
        return data

    @field_validator("partition")
    @classmethod
    def _name_of_partition(cls, partition: str) -> str:
        if not partition.startswith("<"):
            check_partition(partition)
        return partition

    @field_validator("sources")
    @classmethod
    def _a_folder(cls, sources: str | None) -> str | None:
        if sources is not None and not Path(sources).is_dir():
            raise InputError(f"sources: {sources!r} is no folder; kinfed sources train makes one")
        return sources

    @field_validator("log")
    @classmethod
    def _known_trackers(cls, log: str | None) -> str | None:
        from kinfed.experiment.trackers import TRACKERS, check_installed

        for name in _listed(log):
            check_choice("log", name, TRACKERS)
            check_installed(name)
        return log


class Config(Fields):
    """The configuration of an experiment: data, clients, training and methods.

    A run's ``config.toml`` is a Config with one method and one seed. A name in angle brackets, such as ``<MyMethod>``,
    stands for a Python object that has no import path; `objects` has these objects.
    """

    model_config = ConfigDict(defer_build=True)

    _objects: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _usual_lr(cls, fields: Any) -> Any:
        """Add the default learning rate of the optimiser."""
        usual = USUAL_LR.get(str(fields.get("optimizer"))) if isinstance(fields, Mapping) else None
        return fields if usual is None else {"lr": usual, **fields}

    @model_validator(mode="before")
    @classmethod
    def _clients_of_the_data(cls, fields: Any) -> Any:
        """Fill in the partition and the number of clients, whose defaults depend on the data."""
        if fields.get("partition") is None:
            fields = {**fields, "partition": _partition_of_data(fields)}
        if fields.get("clients") is None and str(fields["partition"]).partition(":")[0] not in BY_DATA:
            fields = {**fields, "clients": CLIENTS}
        return fields

    @field_validator("methods")
    @classmethod
    def _known_methods(cls, methods: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if not methods:
            raise InputError(f"methods: none is named; allowed: {', '.join(METHODS)}")
        for label in methods:
            method_fields(parse_label(label)[0], finder(info.context))
        folders = [folder_name(label, 0) for label in methods]
        if twice := [label for label, folder in zip(methods, folders, strict=True) if folders.count(folder) > 1]:
            raise InputError(
                f"methods: {twice[0]!r} is named twice; variants of a method differ in a field: fedprox:mu=0.1 "
                "fedprox:mu=1"
            )
        return methods

    @field_validator("model")
    @classmethod
    def _known_model(cls, model: str | None, info: ValidationInfo) -> str | None:
        if model is not None:
            _architecture(model, info.context)
        return model

    @field_validator("models")
    @classmethod
    def _known_models(cls, models: str | None) -> str | None:
        for name, _ in model_shares(models or ""):
            _architecture(name)
        return models

    @field_validator("weights")
    @classmethod
    def _a_file_or_folder(cls, weights: str | None) -> str | None:
        from kinfed.models import is_saved, refuse_pickle

        if weights is not None and not Path(weights).is_dir():
            refuse_pickle(Path(weights))
            if not is_saved(Path(weights)):
                raise InputError(f"weights: {weights!r} is neither a file nor a folder")
        return weights

    @field_validator("data", "labelled")
    @classmethod
    def _there_is_data(cls, data: str | None, info: ValidationInfo) -> str | None:
        if data is None:
            return data
        if data.startswith("<") and info.field_name == "data":
            given_in_python("data", data, info.context)
            return data
        from kinfed.data.loading import find

        find(data)
        return data

    @field_validator("channels")
    @classmethod
    def _grey_or_colour(cls, channels: int | None) -> int | None:
        from kinfed.data.images import Decoding

        return Decoding(channels).channels

    @field_validator("partition")
    @classmethod
    def _a_partition(cls, partition: str, info: ValidationInfo) -> str:
        name, _ = parse_label(partition)
        if name.startswith("<"):
            given_in_python("partition", name, info.context)
        else:
            make_partition(partition)
        return partition

    @field_validator("lr_schedule")
    @classmethod
    def _a_schedule(cls, schedule: str) -> str:
        from kinfed.learning.schedule import parse_schedule

        parse_schedule(schedule)
        return schedule

    @field_validator("device")
    @classmethod
    def _available(cls, device: str) -> str:
        return available(device)

    @field_validator("settings")
    @classmethod
    def _complete_settings(cls, settings: dict[str, dict[str, Any]], info: ValidationInfo) -> dict[str, dict[str, Any]]:
        """Complete every method's fields with their defaults, in the types that the method declares."""
        methods: tuple[str, ...] = info.data.get("methods", ())
        for name in settings:
            check_choice("set", name, [*methods, *dict.fromkeys(parse_label(label)[0] for label in methods)])
        complete = {}
        for label in methods:
            name, typed = parse_label(label)
            own = {**settings.get(name, {}), **settings.get(label, {}), **typed}
            complete[label] = _complete(label, own, info.data.get("optimizer", "sgd"), finder(info.context))
        return complete

    @model_validator(mode="after")
    def _keep_objects(self, info: ValidationInfo) -> Self:
        self._objects = dict(info.context or {})
        return self

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        if self.client_timeout is not None and not self.workers:
            raise InputError(
                f"client_timeout: {self.client_timeout:g} needs workers of 1 or more; nobody can stop a client in this "
                "process"
            )
        if self.patience is not None and not self.validation and not self.data.startswith("<"):
            raise InputError(
                f"patience: {self.patience} needs validation samples; set a share of the training samples aside, as in "
                "validation=0.2"
            )
        if self.clients is not None and self.new_clients >= self.clients:
            raise InputError(
                f"new_clients: {self.new_clients} is not allowed; must be less than the {self.clients} clients"
            )
        if self.shift is not None:
            from kinfed.data.shifts import parse_shift

            planted = parse_shift(self.shift)
            if self.clients is not None:
                planted.check(self.clients - self.new_clients)
        if self.bn == "frozen" and self.weights is None:
            raise InputError("bn: 'frozen' needs weights, whose running statistics then stay as they are")
        if self.models is not None and self.model is not None:
            raise InputError("models: takes the place of model; give one of them")
        if self.models is not None and self.weights is not None and self.weights_by_client is None:
            raise InputError(f"weights: {self.weights!r} is of one architecture; models needs a folder of files")
        return self

    @model_validator(mode="after")
    def _methods_have_what_they_need(self) -> Self:
        for name in self.methods:
            method = self.method(name)
            needs = method.requires
            if needs.public_images and self.public is not None and self.public < FEWEST_PUBLIC:
                raise InputError(
                    f"public: {self.public} is too few; {name} compares the clients on images that the server holds, "
                    f"{FEWEST_PUBLIC} or more"
                )
            if needs.source_models and self.sources is None:
                raise InputError(
                    f"sources: {name} needs a folder of source models; kinfed sources train makes one of data sets"
                )
            if needs.true_groups and self.shift is None and self.data not in self.objects:
                raise InputError(
                    f"shift: {name} is told the groups of a planted shift, and there are none; try shift=rotate:4"
                )
            if (optimizer := self.training(name)["optimizer"]) not in method.optimizers:
                able = " or ".join(method.optimizers)
                raise InputError(
                    f"optimizer: {optimizer!r} is not allowed; {name} needs {able}, as in {name}:optimizer=sgd"
                )
            if self.rounds < needs.rounds:
                raise InputError(f"rounds: {self.rounds} is too few; {name} needs {needs.rounds} or more")
            if self.models is not None and not method.mixes_architectures:
                able = ", ".join(n for n, kind in METHODS.items() if kind.mixes_architectures)
                raise InputError(f"models: {name} needs one architecture for all clients; different ones suit {able}")
            if self.weights_by_client is not None and not method.mixes_architectures:
                able = ", ".join(n for n, kind in METHODS.items() if kind.mixes_architectures)
                raise InputError(
                    f"weights: {self.weights!r} is a folder, but {name} starts all clients from one model; a file for "
                    f"each client suits {able}"
                )
        return self

    @property
    def objects(self) -> dict[str, Any]:
        """Python objects by their names in angle brackets."""
        return self._objects

    @property
    def weights_by_client(self) -> Path | None:
        """The folder with a file of start weights for each client; None if all start alike."""
        return Path(self.weights) if self.weights is not None and Path(self.weights).is_dir() else None

    @property
    def lacks_labels(self) -> bool:
        """True if the files of the data have no labels, as far as is known before they are read."""
        from kinfed.data.loading import lacks_labels

        return self.label is None and not self.data.startswith("<") and lacks_labels(self.data)

    @property
    def reading(self) -> dict[str, Any]:
        """The fields that say how the data set is read, as keyword arguments of `kinfed.data.load`."""
        return {name: getattr(self, name) for name in OF_READING}

    @property
    def partition_options(self) -> Mapping[str, str]:
        """Fields of this config that the partition reads, each with the partition's own field."""
        return {} if self.partition.startswith("<") else partition_options(self.partition)

    def partitioner(self) -> Partitioner | Saved:
        """Make the partition, with its fields."""
        fields = {field: getattr(self, option) for option, field in self.partition_options.items()}
        return _partition(self.partition, fields, self._objects)

    def architecture(self, name: str) -> Any:
        """Return an architecture: the name itself, or the Python object that a name in angle brackets stands for."""
        return _architecture(name, self._objects)

    def method(self, label: str) -> Method:
        """Make one of the methods, with its fields."""
        name, training = parse_label(label)[0], self.own_training(label)
        fields = {field: value for field, value in self.settings[label].items() if field not in training}
        return make_method(name, fields, finder(self._objects))

    def own_training(self, label: str) -> dict[str, Any]:
        """Return the settings of the local training that a method has for itself, such as ``lr``, by name."""
        names = {*OF_TRAINING} - {*method_fields(parse_label(label)[0], finder(self._objects))}
        return {name: value for name, value in self.settings[label].items() if name in names}

    def training(self, label: str) -> dict[str, Any]:
        """Return the settings of a method's local training, its own or those of the experiment, by name."""
        return {name: getattr(self, name) for name in OF_TRAINING} | self.own_training(label)

    @property
    def trackers(self) -> list[str]:
        """The names in ``log``."""
        return _listed(self.log)

    @property
    def parameters(self) -> dict[str, Any]:
        """Fields of a run by name, for trackers; the method's own are ``METHOD.FIELD`` or ``fedvote/METHOD.FIELD``."""
        (method,) = self.methods
        fields = self.model_dump(exclude_none=True, exclude={"methods", "settings", "seeds", "log"})
        prefix = re.sub(r"[^\w./ -]", "/", method)  # MLflow takes no other characters in a name
        return {"method": method, **fields, **{f"{prefix}.{name}": v for name, v in self.settings[method].items()}}

    @classmethod
    def checked(cls, fields: Mapping[str, Any], objects: Mapping[str, Any] | None = None) -> Self:
        """Make a Config from fields, with a check of each one.

        Args:
            fields: Values by name of the field.
            objects: Python objects by their names in angle brackets.

        Raises:
            InputError: If a field is unknown or its value is not allowed; one line names field, value and allowed
                values.

        >>> Config.checked({"methods": ["fedavg"], "clients": 10}).rounds
        30
        """
        names = [*cls.model_fields]
        for name in fields:
            check_choice("field", name, names)
        try:
            # The settings are validated even if none are given, so that the methods' defaults are filled in.
            return cls.model_validate({"settings": {}, **fields}, context=objects)
        except ValidationError as error:
            raise InputError(one_line(error)) from error

    @classmethod
    def read(cls, file: Path, objects: Mapping[str, Any] | None = None, **changed: Any) -> Self:
        """Read a Config from a TOML file.

        Args:
            file: The file.
            objects: Python objects by their names in angle brackets.
            changed: Values that replace those in the file, by name of the field.

        Raises:
            InputError: If the file cannot be read or is no valid config; the message names the file.
        """
        fields = read_toml(file) | changed
        try:
            return cls.checked(fields, objects)
        except InputError as error:
            raise InputError(f"{file}: {error}") from error

    def of(self, method: str, seed: int) -> Self:
        """Return the config of one run of the comparison."""
        fields = self.model_dump() | {"methods": (method,), "seed": seed, "seeds": 1}
        return self.checked(fields | {"settings": {method: self.settings[method]}}, self._objects)

    def with_local(self) -> Self:
        """Return the config with training alone added to the methods, as the baseline of the comparison.

        ``local`` is added if a method is personalised. ``local_ssl`` is added if a method learns without labels, with
        the settings that it shares with the first such method.
        """
        kinds = {label: self.method(label) for label in self.methods}
        unlabelled = [name for name, kind in kinds.items() if not kind.supervised]
        personal = any(kind.serves != "global" and kind.supervised for kind in kinds.values())
        wanted = [("local", personal), ("local_ssl", bool(unlabelled))]
        there = {parse_label(label)[0] for label in self.methods}
        joining = tuple(name for name, joins in wanted if joins and name not in there)
        if not joining:
            return self
        settings = dict(self.settings)
        if "local_ssl" in joining:
            has = {f.name for f in dataclasses.fields(METHODS["local_ssl"])}
            has |= {*self.own_training(unlabelled[0])}
            settings["local_ssl"] = {name: v for name, v in self.settings[unlabelled[0]].items() if name in has}
        fields = self.model_dump() | {"methods": (*self.methods, *joining), "settings": settings}
        return self.checked(fields, self._objects)

    def toml(self) -> str:
        """Return the config as TOML: all fields, and one table per method with its own fields."""
        fields = self.model_dump(exclude_none=True, exclude={"settings"})
        fields["methods"] = list(self.methods)
        tables = {name: {field: v for field, v in own.items() if v is not None} for name, own in self.settings.items()}
        return f"{MARK}\n" + tomli_w.dumps(fields | {name: own for name, own in tables.items() if own})


def _partition_of_data(fields: Mapping[str, Any]) -> str:
    """Return the default partition: the clients that the data define, or else `shards`, or `iid` without labels."""
    from kinfed.data.loading import lacks_labels, names_clients

    if fields.get("client") is not None:
        return "by:client"
    data = str(fields.get("data", "digits"))
    with contextlib.suppress(InputError):  # the check of the field data reports it
        if not data.startswith("<") and names_clients(data):
            return "folders"
        if not data.startswith("<") and fields.get("label") is None and lacks_labels(data):
            return "iid"
    return "shards"


def refuse_mistyped(fields: Mapping[str, Any]) -> Fields:
    """Refuse names and values that are wrong by themselves, as `Config.checked` does, but without importing torch.

    Args:
        fields: Values by name of the field. Those that are neither text nor of the type of the default, which the
            command line never gives, are left to the whole check.

    Returns:
        The fields that were checked, with defaults in place of the others.

    Raises:
        InputError: If a name is unknown or a value is not allowed.
    """
    named = fields.get("methods", ())
    methods = [name for name in (named if isinstance(named, list | tuple) else [named]) if isinstance(name, str)]
    given, known = with_present_names(fields), Fields.model_fields
    plain = {
        name: given[name]
        for name in (known.keys() & given.keys()) - {"settings", "methods"}
        if isinstance(given[name], (str, type(known[name].default)))
    }
    try:
        return Fields.model_validate({**plain, "methods": methods})
    except ValidationError as error:
        raise InputError(one_line(error)) from error


def model_shares(models: str) -> list[tuple[str, float]]:
    """Parse ``NAME:SHARE,…`` to names and shares; empty text gives an empty list.

    Raises:
        InputError: If the text has another form, or the shares do not sum to 1.

    >>> model_shares("resnet18:0.4,resnet34:0.6")
    [('resnet18', 0.4), ('resnet34', 0.6)]
    """
    shares = []
    for part in models.split(",") if models else ():
        name, _, share = part.rpartition(":")
        try:
            shares.append((name, float(share)))
        except ValueError:
            shares.append(("", 0.0))
    whole = abs(sum(share for _, share in shares) - 1) < 1e-6
    if shares and not (whole and all(name and 0 < share <= 1 for name, share in shares)):
        raise InputError(f"models: {short(models)} must have the form NAME:SHARE,… with shares that sum to 1")
    return shares


def _listed(names: str | None) -> list[str]:
    """Split names with commas; None gives an empty list."""
    return [] if names is None else [name.strip() for name in names.split(",")]


def finder(objects: Mapping[str, Any] | None) -> Callable[[str], type[Method]]:
    """Return a function that finds the class of a method by its name; names in angle brackets are in ``objects``."""
    return lambda name: given_in_python("methods", name, objects) if name.startswith("<") else METHODS.find(name)


def _partition(text: str, fields: Mapping[str, Any], objects: Mapping[str, Any] | None) -> Partitioner | Saved:
    """Make a partition from a name or label and its fields."""
    name, typed = parse_label(text)
    if name.startswith("<"):
        thing = given_in_python("partition", name, objects)
        return as_partition(thing(**typed) if isinstance(thing, type) else thing)
    return make_partition(text, fields)


def given_in_python(field: str, name: str, objects: Mapping[str, Any] | None) -> Any:
    """Return the Python object that a name in angle brackets stands for.

    Args:
        field: Field of the config, for an error message.
        name: Name in angle brackets.
        objects: Python objects by name.

    Raises:
        InputError: If the object is not known in this process.
    """
    if name not in (objects or {}):
        raise InputError(
            f"{field}: {name} was given in Python, and no import path leads to it; go on there: "
            f"kinfed.resume(path, {field}=…)"
        )
    return (objects or {})[name]


def _complete(
    label: str, own: Mapping[str, Any], optimizer: str, find: Callable[[str], type[Method]]
) -> dict[str, Any]:
    """Return all fields of a method, in the types that it declares, from the given fields and the defaults.

    With an optimiser of its own, a method has this optimiser's default learning rate, if it has none of its own: that
    of the experiment is for another optimiser.

    Args:
        label: Label of the method, as in ``methods``.
        own: Given fields of the method.
        optimizer: Optimiser of the experiment.
        find: Function that finds the class of a method by its name.
    """
    name, _ = parse_label(label)
    fields = method_fields(name, find)
    training = {field: _type_of(field) for field in OF_TRAINING if field not in fields}
    types, given = {**fields, **training}, {}
    for field, value in own.items():
        check_choice(f"set: {name}", field, types)
        try:
            given[field] = TypeAdapter(types[field]).validate_python(value)
        except ValidationError as error:
            raise InputError(one_line(error, f"{name}.{field}")) from error
        if isinstance(given[field], float) and not math.isfinite(given[field]):
            raise InputError(f"{name}.{field}: {given[field]} is not allowed; must be a finite number")
        if isinstance(value, bool) and not isinstance(given[field], bool):
            raise InputError(f"{name}.{field}: {value} is not allowed; must not be true or false")
    try:
        method = make_method(name, {field: value for field, value in given.items() if field in fields}, find)
    except InputError as error:
        raise InputError(f"{name}.{error}") from error
    _, complete = name_and_fields(method, lambda kind: kind.__name__)
    trained = {field: value for field, value in given.items() if field in training}
    usual = USUAL_LR[trained.get("optimizer", optimizer)]
    if "lr" in training and usual != USUAL_LR[optimizer]:
        trained.setdefault("lr", usual)
    return complete | trained


def _type_of(field: str) -> Any:
    """Return the type of a field of the experiment, with its limits."""
    told = Config.model_fields[field]
    return Annotated[told.annotation, *told.metadata] if told.metadata else told.annotation


def _architecture(name: str, objects: Mapping[str, Any] | None = None) -> Any:
    """Return an architecture: its name, after a check, or the Python object of a name in angle brackets."""
    if name.startswith("<"):
        return given_in_python("model", name, objects)
    ARCHITECTURES.find(name)
    return name


def as_tuple(names: Any) -> Any:
    """Turn a single name into a tuple; return any other value unchanged."""
    return (names,) if isinstance(names, str) else names
