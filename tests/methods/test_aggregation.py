from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfed.methods import Message, aggregation
from kinfed.methods.aggregation import mix, weighted_mean


def uploads(*weighted: tuple[list[float], float]) -> dict[int, Message]:
    return {
        i: Message({"w": torch.tensor(values, dtype=torch.float32)}, {"samples": n})
        for i, (values, n) in enumerate(weighted)
    }


def test_the_mean_weighs_clients_by_their_samples() -> None:  # case 64
    assert weighted_mean(uploads(([1, 2], 10), ([3, 6], 30)))["w"].tolist() == [2.5, 5.0]


def test_batchnorm_statistics_are_averaged_and_counters_take_the_maximum() -> None:  # cases 65, 66
    clients = {
        0: Message({"mean": torch.tensor([0.2]), "var": torch.tensor([1.0]), "n": torch.tensor(3)}, {"samples": 10}),
        1: Message({"mean": torch.tensor([0.6]), "var": torch.tensor([2.0]), "n": torch.tensor(6)}, {"samples": 30}),
    }
    mean = weighted_mean(clients)
    assert mean["mean"].item() == pytest.approx(0.5)
    assert mean["var"].item() == pytest.approx(1.75)
    assert (mean["n"].item(), mean["n"].dtype) == (6, torch.int64)


def test_the_inputs_stay_as_they_were_and_are_not_the_result() -> None:  # case 67
    clients = uploads(([1, 2], 1), ([3, 4], 1), ([5, 6], 1))
    mean = weighted_mean(clients)
    mean["w"].zero_()
    assert [clients[i].tensors["w"].tolist() for i in range(3)] == [[1, 2], [3, 4], [5, 6]]


def test_the_mean_of_equal_models_is_that_model_bit_for_bit() -> None:
    values = torch.linspace(-3, 3, 1001).exp()
    same = {i: Message({"w": values}, {"samples": n}) for i, n in enumerate((7, 3, 11))}
    assert torch.equal(weighted_mean(same)["w"], values)


@given(weights=st.lists(st.lists(st.floats(0.01, 1), min_size=3, max_size=3), min_size=1, max_size=4))
@settings(deadline=None, max_examples=30)
def test_every_row_makes_its_own_mixture(weights: list[list[float]]) -> None:
    rows = torch.tensor(weights, dtype=torch.float64)
    rows = rows / rows.sum(dim=1, keepdim=True)
    clients = [{"w": torch.arange(4.0).reshape(2, 2) * (i + 1)} for i in range(3)]
    mixed = mix(clients, rows)["w"]
    assert mixed.shape == (len(weights), 2, 2)
    expected = sum(rows[:, i, None, None] * clients[i]["w"] for i in range(3))
    assert torch.allclose(mixed.double(), torch.as_tensor(expected), atol=1e-6)


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = [{"w": torch.linspace(0, i + 1, 100)} for i in range(3)]
    weights = torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64)
    whole = mix(clients, weights)["w"]
    monkeypatch.setattr(aggregation, "CHUNK", 7)
    assert torch.allclose(mix(clients, weights)["w"], whole, rtol=0, atol=1e-7)
