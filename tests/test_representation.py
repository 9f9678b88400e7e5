"""Linear probe and nearest neighbours on fixed features (specification D.7; CASES 84, 85)."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from kinfed.learning import features, knn, linear_probe, unnormalised
from kinfed.models import build
from tests.builders import dataset, same


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def blobs(count: int, seed: int, distance: float = 1.0) -> tuple[Tensor, Tensor]:
    """Three classes about three corners, 20 features."""
    labels = torch.arange(count) % 3
    noise = torch.randn(count, 20, generator=stream(seed))
    return distance * torch.eye(20)[labels] + noise, labels


def share(head: nn.Linear, test: tuple[Tensor, Tensor]) -> float:
    return (head(test[0]).argmax(dim=1) == test[1]).double().mean().item()


def test_a_probe_is_a_logistic_regression() -> None:
    train, test = blobs(3000, 0, 2.0), blobs(3000, 1, 2.0)
    ours = share(linear_probe(*train, classes=3, stream=stream()), test)
    theirs = LogisticRegression(C=1e6).fit(*(t.numpy() for t in train)).score(*(t.numpy() for t in test))
    assert ours == pytest.approx(theirs, abs=0.01)
    assert 0.7 < ours < 0.95


def test_a_probe_of_two_linear_layers_is_linear_too() -> None:
    train, test = blobs(900, 0, 2.0), blobs(900, 1, 2.0)
    one, two = (share(linear_probe(*train, classes=3, stream=stream(), hidden=h), test) for h in (None, 50))
    assert one == pytest.approx(two, abs=0.03)
    corners = torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]]).repeat(200, 1)
    labels = torch.tensor([0, 0, 1, 1]).repeat(200)  # exclusive or
    head = linear_probe(corners, labels, classes=2, stream=stream(), hidden=1000, epochs=30)
    assert (head.in_features, head.out_features) == (2, 2)
    assert share(head, (corners, labels)) <= 0.75


def test_the_stream_decides_a_probe(global_generators: None) -> None:
    train = blobs(300, 0)
    found = [linear_probe(*train, classes=3, stream=stream(seed), epochs=2).weight for seed in (0, 0, 1)]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_a_probe_leaves_the_encoder_alone() -> None:  # case 84
    samples = dataset(64).train
    grown = samples.inputs.repeat_interleave(2, 2).repeat_interleave(2, 3)
    samples = unnormalised(type(samples)(grown, samples.labels, samples.normalise))
    encoder = build("cnn4", (1, 16, 16), 10, 0)
    before = encoder.tensors()
    read = features(encoder, samples)
    assert samples.labels is not None
    linear_probe(read, samples.labels, classes=10, stream=stream(), epochs=1)
    assert same(before, encoder.tensors())


def test_a_class_without_a_vote_is_no_hit() -> None:  # case 85
    train, test = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]), torch.tensor([[1.0, 0.1]])
    found = {
        (k, top, truth): knn(
            train, torch.tensor([0, 1, 2]), test, torch.tensor([truth]), classes=3, k=k, temperature=0.1, top=top
        ).item()
        for k in (1, 2)
        for top in (1, 5)
        for truth in (0, 1)
    }
    assert found[1, 5, 1] == 0
    assert found[1, 5, 0] == found[1, 1, 0] == 1
    assert (found[2, 1, 1], found[2, 5, 1]) == (0, 1)


def test_neighbours_vote_with_their_cosines() -> None:
    """Two of cosine 0.6 against one of cosine 1: e^6 + e^6 < e^10, but at t = 1 they win."""
    train = torch.tensor([[3.0, 0.0], [0.6, 0.8], [0.6, -0.8]])
    labels, test = torch.tensor([0, 1, 1]), torch.tensor([[5.0, 0.0]])
    sharp, soft = (knn(train, labels, test, torch.tensor([0]), classes=2, temperature=t).item() for t in (0.1, 1.0))
    assert (sharp, soft) == (1, 0)


def test_neighbours_by_hand_over_many_chunks() -> None:
    train, test = blobs(60, 0, 2.0), blobs(600, 1, 2.0)
    votes = torch.zeros(600, 3, dtype=torch.float64)
    for i, x in enumerate(test[0].double()):
        cosines = torch.stack([x @ y / (x.norm() * y.norm()) for y in train[0].double()])
        for j in cosines.argsort(descending=True)[:7]:
            votes[i, train[1][j]] += math.exp(cosines[j].item() / 0.1)
    expected = (votes.argmax(dim=1) == test[1]).double().mean().item()
    assert knn(*train, *test, classes=3, k=7).double().mean().item() == pytest.approx(expected, abs=2 / 600)


def test_of_nothing_to_test_nothing_is_right() -> None:
    train, none = blobs(30, 0), (torch.zeros(0, 20), torch.zeros(0, dtype=torch.int64))
    assert knn(*train, *none, classes=3).shape == (0,)
