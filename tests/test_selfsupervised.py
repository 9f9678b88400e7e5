"""Losses, target, collapse and local training without labels (specification D.0; CASES 79 to 83)."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from kinfed.data import Samples
from kinfed.learning import COLLAPSED, LocalTraining, byol_loss, simsiam_loss, spread, train_siamese, two_views
from kinfed.models import BODY, HEAD, ONLINE, PREDICTOR, PROJECTOR, TARGET, Model, Siamese, Target, build
from tests.builders import dataset, same


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def siamese(name: str = "tiny_cnn", shape: tuple[int, ...] = (1, 8, 8), hidden: int = 32, out: int = 16) -> Siamese:
    return Siamese(build(name, shape, 10, 0), 0, hidden=hidden, out=out)


# -- losses -----------------------------------------------------------------------------------------------------------


def test_the_losses_by_hand() -> None:  # case 81
    p, z = torch.tensor([[3.0, 4.0]], requires_grad=True), torch.tensor([[4.0, 3.0]], requires_grad=True)
    assert simsiam_loss(p, z).item() == pytest.approx(-0.96)
    assert byol_loss(p, z).item() == pytest.approx(0.08)
    (simsiam_loss(p, z) + byol_loss(p, z)).backward()
    assert z.grad is None
    assert p.grad is not None
    assert p.grad.abs().max() > 0.01


def test_the_losses_are_means_over_the_batch() -> None:
    p = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
    z = torch.tensor([[4.0, 3.0], [0.0, 5.0]])
    assert simsiam_loss(p, z).item() == pytest.approx(-0.48)
    assert byol_loss(p, z).item() == pytest.approx((0.08 + 2) / 2)


@pytest.mark.parametrize("loss", [byol_loss, simsiam_loss])
def test_a_zero_vector_in_half_precision_has_a_finite_loss(loss) -> None:  # type: ignore[no-untyped-def]  # case 82
    p = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=torch.float16)
    assert loss(p, p.flip(0)).isfinite()
    assert loss(p, p).item() == pytest.approx(1.0 if loss is byol_loss else -0.5)


def test_a_constant_output_is_a_collapse() -> None:  # case 80
    constant = torch.tensor([[0.3, -1.2, 0.7]]).expand(64, -1)
    assert simsiam_loss(constant, constant).item() == pytest.approx(-1.0)
    assert byol_loss(constant, constant).item() == pytest.approx(0.0, abs=1e-6)
    assert spread(constant).item() == 0
    assert spread(constant * torch.rand(64, 1, generator=stream())) < COLLAPSED  # lengths do not count
    assert spread(constant + 1e-3 * torch.randn(64, 3, generator=stream())) < COLLAPSED


def test_directions_that_are_spread_evenly_have_a_spread_of_nearly_one() -> None:
    assert spread(torch.randn(512, 128, generator=stream())).item() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("with_target", [True, False])
def test_an_encoder_that_returns_a_constant_is_seen_in_training(with_target: bool) -> None:  # case 80
    online = siamese()
    for part in (online.projector, online.predictor):
        nn.init.zeros_(part[3].weight)
        nn.init.ones_(part[3].bias)
    training = LocalTraining(lr=1e-12, batch_size=16)
    target = Target(online) if with_target else None
    tally, found = train_siamese(online, target, dataset(48).train, training, stream())
    assert found < 1e-6
    assert tally.loss == pytest.approx(0.0 if with_target else -1.0, abs=1e-5)


# -- networks ---------------------------------------------------------------------------------------------------------


def test_projector_and_predictor_have_the_sizes_asked_for() -> None:  # case 83
    online = siamese(hidden=32, out=16)
    z = online.project(torch.rand(4, 1, 8, 8))
    assert z.shape == online.predictor(z).shape == (4, 16)
    shapes = {name: tuple(t.shape) for name, t in online.tensors(PROJECTOR + PREDICTOR).items() if t.ndim == 2}
    assert shapes == {
        "projector.0.weight": (32, 64),
        "projector.3.weight": (16, 32),
        "predictor.0.weight": (32, 16),
        "predictor.3.weight": (16, 32),
    }
    assert online.projector[1].num_features == online.predictor[1].num_features == 32


def test_a_siamese_network_is_still_the_model_that_it_was_made_of() -> None:
    model = build("tiny_cnn", (1, 8, 8), 10, 0)
    online = Siamese(model, 0, hidden=32, out=16)
    assert same(online.tensors(), model.tensors())
    assert online.layers == model.layers
    assert {name.split(".")[0] for name in online.tensors(ONLINE)} == {"body", "projector", "predictor"}


def test_the_seed_decides_what_projector_and_predictor_start_with(global_generators: None) -> None:
    one, again = siamese(), siamese()
    other = Siamese(build("tiny_cnn", (1, 8, 8), 10, 0), 1, hidden=32, out=16)
    assert same(one.tensors(ONLINE), again.tensors(ONLINE))
    assert not same(one.tensors(PREDICTOR), other.tensors(PREDICTOR))


def test_the_target_is_a_deep_copy_that_no_gradient_reaches() -> None:
    online = siamese()
    target = Target(online)
    copied = {name.removeprefix("target."): tensor for name, tensor in target.tensors(TARGET).items()}
    assert same(copied, online.tensors(BODY + PROJECTOR))
    mine = {p.data_ptr() for p in target.parameters()} | {b.data_ptr() for b in target.buffers()}
    assert not mine & {t.data_ptr() for t in online.state_dict().values()}
    assert not any(p.requires_grad for p in target.parameters())
    assert all(name.startswith(TARGET) for name in target.state_dict())


def test_the_target_follows_in_its_parameters_and_keeps_its_own_buffers() -> None:  # case 79
    online = siamese("cnn4", (1, 16, 16))
    target = Target(online)
    norm, of_target = online.body.conv1[1], target.target.body.conv1[1]
    with torch.no_grad():
        norm.weight.fill_(2)
        of_target.weight.fill_(1)
        norm.running_mean.fill_(5)
    before = {name: b.clone() for name, b in target.named_buffers()}
    target.follow(online, 0.9)
    assert of_target.weight.tolist() == pytest.approx([1.1] * 64)
    assert same(before, dict(target.named_buffers()))
    target(torch.rand(8, 1, 16, 16))
    assert of_target.running_mean.abs().max() > 0  # in training mode, so its statistics are those of what it sees
    assert of_target.running_mean.abs().max() < 1


# -- local training ---------------------------------------------------------------------------------------------------


def by_hand(online: Siamese, samples: Samples, training: LocalTraining, byol: bool) -> list[Tensor]:
    """BYOL or SimSiam as one would write it for this alone."""
    target = copy.deepcopy(online)
    parameters = [p for name, p in online.named_parameters() if name.startswith(ONLINE)]
    optimiser = torch.optim.SGD(parameters, training.lr, momentum=training.momentum, weight_decay=training.weight_decay)
    order = stream()
    cos = lambda a, b: nn.functional.cosine_similarity(a, b, dim=1).mean()  # noqa: E731
    online.train()
    target.train()
    for _ in range(training.epochs):
        for rows in torch.randperm(len(samples), generator=order).split(training.batch_size):
            if len(rows) < training.batch_size:
                continue
            v, w = two_views(samples.inputs[rows], order)
            z, y = online.projector(online.body(v)), online.projector(online.body(w))
            p, q = online.predictor(z), online.predictor(y)
            if byol:
                with torch.no_grad():
                    a, b = target.projector(target.body(v)), target.projector(target.body(w))
                loss = 2 - 2 * cos(p, b) + 2 - 2 * cos(q, a)
            else:
                loss = -cos(p, y.detach()) / 2 - cos(q, z.detach()) / 2
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            for theirs, ours in zip(target.parameters(), online.parameters(), strict=True):
                theirs.data = 0.99 * theirs.data + 0.01 * ours.data
    return [*online.parameters(), *target.body.parameters(), *target.projector.parameters()]


@pytest.mark.parametrize("byol", [True, False])
def test_local_training_is_the_plain_loop(byol: bool) -> None:
    samples, training = dataset(40).train, LocalTraining(lr=0.05, batch_size=16, epochs=2, weight_decay=5e-4)
    online, other = siamese(), siamese()
    target = Target(online)
    tally, _ = train_siamese(online, target if byol else None, samples, training, stream())
    found = [*online.parameters(), *target.parameters()]
    expected = by_hand(other, samples, training, byol)
    assert tally.steps == 4
    assert tally.skipped == 16  # 8 of 40 in each epoch
    compared = len(found) if byol else len([*online.parameters()])
    pairs = list(zip(found, expected, strict=True))[:compared]
    assert all(torch.allclose(a, b, atol=2e-5) for a, b in pairs)
    assert not same(online.tensors(BODY), siamese().tensors(BODY))


def test_the_head_and_the_labels_have_no_part_in_it(global_generators: None) -> None:
    train = dataset(40).train
    assert train.labels is not None
    training = LocalTraining(lr=0.05, batch_size=16)
    trained = []
    for labels in (train.labels, train.labels.flip(0), None):
        online = siamese()
        train_siamese(online, Target(online), Samples(train.inputs, labels, train.normalise), training, stream())
        trained.append(online)
    assert same(trained[0].tensors(ONLINE), trained[1].tensors(ONLINE))
    assert same(trained[0].tensors(ONLINE), trained[2].tensors(ONLINE))
    assert same(trained[0].tensors(HEAD), siamese().tensors(HEAD))


@pytest.mark.parametrize(("count", "steps", "skipped"), [(1, 0, 2), (2, 2, 0), (15, 2, 0), (16, 2, 0), (33, 4, 2)])
def test_whole_batches_only_but_never_no_step_because_of_it(count: int, steps: int, skipped: int) -> None:  # case 57
    online = siamese()
    samples = dataset(40).train.take(range(count))
    tally, found = train_siamese(
        online, Target(online), samples, LocalTraining(lr=0.01, batch_size=16, epochs=2), stream()
    )
    assert (tally.steps, tally.skipped) == (steps, skipped)
    assert math.isnan(found) == math.isnan(tally.loss) == (steps == 0)


def test_images_are_seen_in_the_unit_range_whatever_their_normalisation() -> None:
    seen: list[Tensor] = []
    online = siamese()
    online.body.conv1.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    train_siamese(online, None, dataset(32).train, LocalTraining(lr=0.01, batch_size=16), stream())
    assert len(seen) == 4  # two steps, two views
    assert all(0 <= x.min() <= x.max() <= 1 for x in seen)
    assert max(x.max() for x in seen) > 0.9


def test_what_is_added_to_the_loss_is_trained_too() -> None:
    online, without = siamese(), siamese()
    training = LocalTraining(lr=0.05, batch_size=16)
    train_siamese(online, None, dataset(32).train, training, stream(), term=lambda: online.head.weight.sum() * 0 + 3.0)
    tally, _ = train_siamese(without, None, dataset(32).train, training, stream(), term=lambda: None)
    assert same(online.tensors(ONLINE), without.tensors(ONLINE))
    pulled = siamese()
    heavier, _ = train_siamese(
        pulled, None, dataset(32).train, training, stream(), term=lambda: pulled.projector[0].weight.square().sum()
    )
    assert heavier.loss > tally.loss
    assert pulled.projector[0].weight.norm() < without.projector[0].weight.norm()


def test_training_makes_two_views_alike() -> None:
    online = siamese(hidden=64, out=32)
    training = LocalTraining(lr=0.1, batch_size=32, epochs=8)
    target = Target(online)
    order = stream()
    first, _ = train_siamese(online, target, dataset(240).train, LocalTraining(lr=1e-12, batch_size=32), order)
    train_siamese(online, target, dataset(240).train, training, order)
    last, found = train_siamese(online, target, dataset(240).train, LocalTraining(lr=1e-12, batch_size=32), order)
    assert last.loss < 0.8 * first.loss
    assert found > COLLAPSED


def test_a_model_with_a_frozen_part_keeps_its_siamese_children_still() -> None:
    online = siamese()
    online.freeze_all_but(ONLINE)
    assert {name: child.training for name, child in online.named_children()} == {
        "body": True,
        "head": False,
        "projector": True,
        "predictor": True,
    }
    assert isinstance(online, Model)
    assert {name.split(".")[0] for name, p in online.named_parameters() if not p.requires_grad} == {"head"}
