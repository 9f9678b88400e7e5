"""Small federations to test on: digits, few clients, few rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from kinfed.data import Dataset, Federation, Normalisation, Partition, Samples, load
from kinfed.engine import (
    ClientRuntime,
    Executor,
    RoundSettings,
    RunFolder,
    SerialExecutor,
    TaskRunner,
    Unwatched,
    federate,
)
from kinfed.engine.folder import Checkpoint
from kinfed.learning import SGD, Batch, Phase, train
from kinfed.methods import Memory, Message, Method, State, fedavg, make_method, method_fields
from kinfed.models import Card, Model, Source, Tensors, build
from kinfed.settings import own_settings

NOBODY = Partition([], [])


def dataset(train: int = 240, test: int = 120) -> Dataset:
    whole = load("digits")
    return replace(whole, train=whole.train.take(range(train)), test=whole.test.take(range(test)))


def federation(clients: int = 4, probe: int = 24, data: Dataset | None = None, new: int = 0) -> Federation:
    """Client k holds about n/N samples, sizes all different; the last ones may be new."""
    data = data or dataset()
    ends = lambda n: np.round(np.linspace(0, 1, clients + new + 1) ** 1.2 * n).astype(int)  # noqa: E731
    cut = lambda first, n: [first + np.arange(a, b) for a, b in zip(ends(n)[:-1], ends(n)[1:], strict=True)]  # noqa: E731
    whole = Partition(cut(probe, len(data.train) - probe), cut(0, len(data.test)))
    return Federation(
        data, whole.of(range(clients)), np.arange(probe), whole.of(range(clients, clients + new)) if new else NOBODY
    )


def equal_sizes(clients: int = 4) -> Federation:
    data = dataset()
    cut = lambda rows: np.array_split(rows, clients)  # noqa: E731
    return Federation(data, Partition(cut(np.arange(24, 240)), cut(np.arange(120))), np.arange(24))


def small(name: str) -> Method:
    """A method with its defaults, but for narrow projectors and predictors, an early vote, and a term that shows."""
    widths = {"hidden": 32, "out": 16} if "hidden" in method_fields(name) else {}
    own = {"moon": {"mu": 5.0}, "central": {"lr_scale": 1.0}}.get(name.removeprefix("fedvote+"), {})
    vote = {"round": 2, "ballot": 2} if name.startswith("fedvote") else {}
    return make_method(name, {**widths, **own, **vote})


def pool(data: Dataset, seeds: Iterable[int] = (11, 12, 13), model: str = "tiny_cnn") -> tuple[Source, ...]:
    """Untrained models under the names of their seeds."""
    built = {str(seed): build(model, data.shape, len(data.classes), seed).eval() for seed in seeds}
    return tuple(Source(name, of.requires_grad_(False), card_of(data, model)) for name, of in built.items())


def card_of(data: Dataset, model: str) -> Card:
    told = data.train.normalise
    normalisation = {"mean": told.mean, "std": told.std}
    return Card.model_validate(
        {"version": 1, "architecture": model, "bn": "track", "shape": data.shape, "classes": data.classes,
         "normalisation": normalisation}
    )  # fmt: skip


def workshop(
    method: str | Method,
    fed: Federation | None = None,
    *,
    rounds: int = 3,
    participation: float = 1.0,
    seed: int = 0,
    sgd: SGD | None = None,
    model: str = "tiny_cnn",
    wrap: Callable[[Model], Model] = lambda m: m,
    sources: tuple[Source, ...] | None = None,
    **plan: Any,
) -> ClientRuntime:
    fed = fed or federation()
    method = small(method) if isinstance(method, str) else method
    if sources is None:
        sources = pool(fed.dataset, model=model) if method.requires.source_models else ()
    return ClientRuntime(
        method,
        fed,
        (wrap(build(model, fed.dataset.shape, len(fed.dataset.classes), seed)),),
        RoundSettings(
            rounds=rounds,
            sgd=sgd or SGD(lr=0.05, batch_size=16),
            lr_schedule=plan.pop("lr_schedule", "constant"),
            participation=participation,
            seed=seed,
            checkpoint_every=plan.pop("checkpoint_every", 100),
            fine_tuning=plan.pop("fine_tuning", Phase(epochs=1, lr=0.01)),
            **plan,
        ),
        sources=sources,
    )


@dataclass(frozen=True)
class Outcome:
    lines: list[dict[str, Any]]
    last: Checkpoint
    folder: RunFolder

    @property
    def state(self) -> State:
        return self.last.state

    @property
    def memories(self) -> dict[int, Memory]:
        return {id: self.folder.memories.read(id, round) for id, round in self.last.kept.items()}


def serial(shop: ClientRuntime, folder: RunFolder) -> SerialExecutor:
    """A serial executor that is started."""
    executor = SerialExecutor()
    executor.start(lambda: shop, TaskRunner(shop, folder.memories))
    return executor


def run(
    shop: ClientRuntime,
    path: Path,
    executor: Executor | None = None,
    build: Callable[[], ClientRuntime] | None = None,
) -> Outcome:
    """All rounds, with the serial executor if no other is given; ``build`` makes the same runtime elsewhere."""
    folder = RunFolder(path)
    path.mkdir(exist_ok=True)
    executor = executor or SerialExecutor()
    with own_settings():
        executor.start(build or (lambda: shop), TaskRunner(shop, folder.memories))
        federate(shop, executor, folder, Unwatched())
    last = folder.last_checkpoint()
    assert last is not None
    return Outcome(folder.lines("metrics.jsonl"), last, folder)


def same(a: Tensors | Message, b: Tensors | Message) -> bool:
    """Bit for bit."""
    if isinstance(a, Message) and isinstance(b, Message):
        return a.numbers == b.numbers and same(a.tensors, b.tensors)
    assert not isinstance(a, Message) and not isinstance(b, Message)  # noqa: PT018
    equal = (a[n].dtype == b[n].dtype and torch.equal(a[n].nan_to_num(), b[n].nan_to_num()) for n in a)
    return a.keys() == b.keys() and all(equal)


def close(a: Tensors, b: Tensors) -> bool:
    assert a.keys() == b.keys()
    return all(torch.allclose(a[n].double(), b[n].double(), rtol=0, atol=1e-6) for n in a)


def float_samples(inputs: torch.Tensor, labels: list[int] | torch.Tensor) -> Samples:
    identity = Normalisation((0.0,) * inputs.shape[1], (1.0,) * inputs.shape[1])
    return Samples(inputs, torch.as_tensor(labels), identity)


def parabolas(
    method: Method, centres: list[float], monkeypatch: pytest.MonkeyPatch, *, start: float = 0.0, sgd: SGD, **plan: Any
) -> ClientRuntime:
    """The model is one weight; client i has one sample, and its loss is (w − m_i)²/2 whatever the method says."""
    samples = float_samples(torch.tensor(centres)[:, None], [0] * len(centres))
    own = [np.array([i]) for i in range(len(centres))]
    fed = Federation(Dataset("parabolas", samples, samples, ("0", "1")), Partition(own, own), np.arange(0))
    model = Model({"same": nn.Identity()}, nn.utils.skip_init(nn.Linear, 1, 1, bias=False), [])
    nn.init.constant_(model.head.weight, start)

    def parabola(model: Model, batch: Batch) -> torch.Tensor:
        return ((model.head.weight - batch.inputs) ** 2 / 2).mean()

    monkeypatch.setattr(fedavg, "train", lambda *given, **hooks: train(*given[:5], parabola, **hooks))
    return workshop(method, fed, sgd=sgd, model="mlp", wrap=lambda _: model, **plan)
