"""What is measured after a round: fine-tuning, and clients that took no part."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from kinfed.learning import SGD, Phase, hits, train
from kinfed.methods import METHODS
from kinfed.methods.fedavg import FedAvg
from kinfed.streams import torch_stream
from tests.worlds import federation, run, same, workshop

SPREAD = ("acc_weighted", "acc_mean", "acc_std", "acc_worst_tenth")

# -- fine-tuning ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_every_method_tells_its_headline_before_and_after_fine_tuning(name: str, tmp_path: Path) -> None:  # G.2
    tuning = Phase(epochs=5, lr=0.05)
    with_it, without = (
        run(workshop(name, fine_tuning=t), tmp_path / n) for t, n in ((tuning, "with"), (None, "without"))
    )
    *before, last = with_it.lines
    assert not any("fine_tuned" in key or "initial" in key for line in before for key in line)
    assert same(with_it.state, without.state)
    if METHODS[name].trains == "pooled":
        assert with_it.lines == without.lines
        return
    kinds = ("initial", "fine_tuned")
    assert [last[f"initial_{q}"] for q in SPREAD] == [last[f"personal_{q}"] for q in SPREAD]
    assert last["fine_tuned_acc_mean"] != last["initial_acc_mean"]
    accuracies = {key: value for key, value in last["client_acc"].items() if key not in kinds}
    assert without.lines == [*before, {key: value for key, value in last.items() if not key.startswith(kinds)} | {
        "client_acc": accuracies
    }]  # fmt: skip


def test_the_global_model_is_fine_tuned_as_by_hand_and_not_saved(tmp_path: Path) -> None:
    tuning, sgd = Phase(epochs=2, lr=0.03), SGD(lr=0.05, batch_size=16)
    shop = workshop("fedavg", rounds=2, fine_tuning=tuning, sgd=sgd)
    outcome = run(shop, tmp_path / "out")
    expected = []
    for id in range(4):
        model = shop.client(id, 1).model
        model.load(outcome.state.tensors)
        train(model, shop.federation.train(id), tuning, sgd, torch_stream(0, "fine-tuning", id, 2))
        expected.append(hits(model, shop.federation.test(id)).double().mean().item())
    assert outcome.lines[-1]["client_acc"]["fine_tuned"] == expected
    assert not [*(tmp_path / "out" / "models").glob("client-*")]


@dataclass(frozen=True, kw_only=True)
class Unlabelled(FedAvg):
    """FedAvg of clients that could not fine-tune."""

    adapts: ClassVar[bool] = False


def test_a_method_whose_clients_have_no_labels_is_not_fine_tuned(tmp_path: Path) -> None:
    last = run(workshop(Unlabelled(), federation(new=2)), tmp_path / "out").lines[-1]
    assert last["client_acc"].keys() == {"personal", "new_global"}
