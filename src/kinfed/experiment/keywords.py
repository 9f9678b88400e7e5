"""The fields of an experiment as keyword arguments, so that editors complete them and ``help()`` lists them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypedDict, TypeVar

from kinfed.experiment.config import Config, Measure, SavedModels
from kinfed.experiment.device import Precision

if TYPE_CHECKING:
    from kinfed.data import Dataset, Federation
    from kinfed.learning import LocalTraining

__all__ = ["ADVICE_DEFAULTS", "TUNING_DEFAULTS", "Fields", "JudgedFields", "with_fields"]

TUNING_DEFAULTS = {"validation": 0.2, "seeds": 3}  # defaults of a tuning that are not those of a run
ADVICE_DEFAULTS = {
    "validation": 0.2,
    "seeds": 5,
    "ft_epochs": 0,
}  # those of advice, which does not read the fine-tuning

P = ParamSpec("P")
R = TypeVar("R")


class Fields(TypedDict, total=False):
    """The fields of an experiment except its methods; `Config` describes them and has their defaults."""

    data: str | Path | Dataset | Federation | Sequence[Any] | Any
    labelled: str | Path | None
    channels: int | None
    image_size: int | None
    on_error: Literal["stop", "skip"]
    label: str | None
    client: str | None
    group: str | None
    test_fraction: float | None
    drop: Sequence[str] | str | None
    standardise: bool | None
    classes: Sequence[str] | str | None
    train_images: int | None
    model: str | Callable[..., Any] | None
    models: str | None
    head: str | None
    bn: Literal["track", "batch", "group", "frozen"]
    weights: str | Path | None
    sources: str | Path | None
    augment: Literal["none", "crop_flip"]
    clients: int | None
    participation: float
    partition: str | Callable[..., Any]
    shards: int
    alpha: float
    classes_per_client: int | None
    validation: float
    patience: int | None
    shift: str | None
    new_clients: int
    hold_out: Sequence[str] | str | None
    rounds: int
    training: LocalTraining
    local_epochs: int
    batch_size: int
    optimizer: Literal["sgd", "adam", "adamw"]
    lr: float
    lr_schedule: str
    momentum: float
    weight_decay: float
    feature_cache_mb: float
    ft_epochs: int
    ft_lr: float
    ft_part: Literal["full", "head", "body"]
    further_clients: int | None
    linear_probe: bool | None
    linear_probe_images: int | None
    knn_every: int
    public: int | None
    seed: int
    seeds: int
    evaluate_every: int
    target_acc: float | None
    stop_acc: float | None
    checkpoint_every: int
    save_local: bool
    save_models: SavedModels
    workers: int
    client_timeout: float | None
    cpus_per_client: float | None
    gpus_per_client: float | None
    parallel: int
    device: str
    precision: Precision
    log: str | None
    settings: Mapping[str, Mapping[str, Any]]
    dp: str | None
    config: str | Path | None


class JudgedFields(Fields, total=False):
    """The fields of an experiment whose results are judged by a measure."""

    measure: Measure


def with_fields(kind: type = Fields, /, **defaults: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function so that its signature names each field with its default, instead of ``**fields``.

    Args:
        kind: `Fields` or `JudgedFields`.
        **defaults: Defaults of fields where they are not those of `Config`.
    """

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        own = [p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
        shown = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=_default(name, defaults),
                annotation=getattr(annotation, "__forward_arg__", annotation),
            )
            for name, annotation in kind.__annotations__.items()
            if name not in {p.name for p in own}
        ]
        function.__signature__ = inspect.Signature([*own, *shown])  # type: ignore[attr-defined]
        return function

    return decorated


def _default(name: str, defaults: Mapping[str, Any]) -> Any:
    if name in defaults or name not in Config.model_fields:
        return defaults.get(name)
    return Config.model_fields[name].get_default(call_default_factory=True)
