"""FedProx: a round computed by hand, and what it reduces to (specification B.2, J)."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinfed.learning import LocalTraining
from kinfed.methods import ClientState
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.fedprox import FedProx
from tests.builders import build_runtime, parabolas, run, same


@pytest.mark.independent("fedprox")
@pytest.mark.parametrize(("steps", "weight"), [(1, 1.2), (2, 1.36), (3, 1.488)])
def test_steps_by_hand(steps: int, weight: float, monkeypatch: pytest.MonkeyPatch) -> None:  # case 68
    training = LocalTraining(lr=0.1, momentum=0.0, epochs=steps, batch_size=1)
    runtime = parabolas(FedProx(mu=1.0), [3], monkeypatch, start=1.0, training=training)
    upload, state = runtime.update(
        0, 1, runtime.method.download(runtime.method.init(runtime.server(0)), 0), ClientState()
    )
    assert upload.tensors["head.weight"].item() == pytest.approx(weight)
    assert not state.tensors


def test_momentum_and_weight_decay_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pull is a part of the gradient: velocity −2 + 0.5 = −1.5, then −0.75 − 1.85 + 0.575 + 0.15 = −1.875."""
    training = LocalTraining(lr=0.1, momentum=0.5, weight_decay=0.5, epochs=2, batch_size=1)
    runtime = parabolas(FedProx(mu=1.0), [3], monkeypatch, start=1.0, training=training)
    upload, _ = runtime.update(0, 1, runtime.method.download(runtime.method.init(runtime.server(0)), 0), ClientState())
    assert upload.tensors["head.weight"].item() == pytest.approx(1.3375)


def test_without_the_pull_it_is_fedavg_bit_for_bit(tmp_path: Path) -> None:
    training = LocalTraining(lr=0.05, batch_size=16, weight_decay=0.01)
    prox, fedavg = (
        run(build_runtime(m, training=training), tmp_path / type(m).__name__) for m in (FedProx(mu=0.0), FedAvg())
    )
    assert prox.lines == fedavg.lines
    assert same(prox.state, fedavg.state)
