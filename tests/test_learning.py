from __future__ import annotations

import math
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from kinfed.data import Samples
from kinfed.learning import (
    Batch,
    LocalTraining,
    Loss,
    Optimizer,
    Phase,
    class_overlap,
    correct,
    features,
    over_clients,
    rank_correlation,
    train,
)
from kinfed.learning.augmentation import crop_and_flip
from kinfed.learning.schedule import lr_factor, parse_schedule
from kinfed.models import ALL, BODY, HEAD, Model, Part, Tensors, build
from kinfed.streams import seeded_globals
from tests.builders import dataset, float_samples, same


def order(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def linear(weight: float = 0.0) -> Model:
    """One weight, body and bias idle: f(x) = w·x as the logit."""
    head = nn.Linear(1, 1, bias=False)
    nn.init.constant_(head.weight, weight)
    return Model({"identity": nn.Identity()}, head, [])


def batchnorm_model() -> Model:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Model({"norm": nn.BatchNorm1d(2)}, nn.Linear(2, 2), [])


def two_classes(n: int) -> Samples:
    return float_samples(torch.arange(2.0 * n).reshape(n, 2).sin(), [i % 2 for i in range(n)])


def gradient_of(values: list[float]) -> tuple[Samples, object]:
    """Samples and an objective whose gradient in w is the mean of the batch's values."""
    return float_samples(torch.tensor(values)[:, None], [0] * len(values)), lambda m, b: m(b.inputs).mean()


def test_momentum_starts_anew_with_every_training() -> None:  # case 60
    training = LocalTraining(lr=0.1, momentum=0.9, batch_size=1)
    model = linear()
    train(model, *_with(gradient_of([1.0, 1.0, 1.0]), training))
    assert model.head.weight.item() == pytest.approx(-0.1 * (1 + 1.9 + 2.71))
    with torch.no_grad():
        model.head.weight.zero_()
    train(model, *_with(gradient_of([2.0]), training))
    assert model.head.weight.item() == pytest.approx(-0.2)


def _with(data: tuple[Samples, object], training: LocalTraining) -> tuple:  # type: ignore[type-arg]
    samples, objective = data
    return samples, Phase(), training, order(), objective


def test_the_training_loss_weighs_samples_not_batches() -> None:  # case 58
    samples = float_samples(torch.tensor([[1.0]] * 32 + [[1.0]]), [0] * 33)
    losses = iter([1.0, 5.0])
    tally = train(
        linear(),
        samples,
        Phase(),
        LocalTraining(lr=1e-9, batch_size=32),
        order(),
        lambda m, b: 0 * m(b.inputs).sum() + next(losses),
    )
    assert tally.loss == pytest.approx(37 / 33)  # 1.121212


def test_a_batch_of_one_is_left_out_and_counted_where_batchnorm_needs_two() -> None:  # case 56
    tally = train(batchnorm_model(), two_classes(33), Phase(), LocalTraining(lr=0.1, batch_size=32, epochs=2), order())
    assert (tally.steps, tally.skipped) == (2, 2)


def test_a_client_with_one_sample_and_batchnorm_makes_no_step_and_tells_no_loss() -> None:
    model = batchnorm_model()
    before = model.tensors()
    tally = train(model, two_classes(1), Phase(), LocalTraining(lr=0.1), order())
    assert (tally.steps, tally.skipped) == (0, 1)
    assert math.isnan(tally.loss)
    assert same(before, model.tensors())


def test_without_batchnorm_a_batch_of_one_is_used() -> None:
    samples, objective = gradient_of([1.0, 1.0, 1.0])
    tally = train(linear(), samples, Phase(), LocalTraining(lr=0.1, batch_size=2), order(), objective)  # type: ignore[arg-type]
    assert (tally.steps, tally.skipped) == (2, 0)


def test_a_client_with_fewer_samples_than_a_batch_makes_one_smaller_batch() -> None:  # case 57
    assert train(batchnorm_model(), two_classes(20), Phase(), LocalTraining(lr=0.1, batch_size=32), order()).steps == 1


def test_after_an_evaluation_training_updates_batchnorm_again() -> None:  # case 59
    model = Model({"norm": nn.BatchNorm1d(1)}, nn.Linear(1, 2), [])
    samples = float_samples(torch.tensor([[1.0], [3.0]]), [0, 1])
    correct(model, samples)
    train(model, samples, Phase(), LocalTraining(lr=1e-9, batch_size=2), order())
    norm = model.body.norm
    assert norm.running_mean.item() == pytest.approx(0.2)
    assert norm.running_var.item() == pytest.approx(0.9 + 0.1 * 2)
    assert norm.num_batches_tracked == 1


@pytest.mark.parametrize("name", ["tiny_cnn", "cnn4"])
@pytest.mark.parametrize(("trained", "frozen"), [(BODY, HEAD), (HEAD, BODY)])
def test_what_a_phase_does_not_train_stays_bit_equal(name: str, trained: tuple, frozen: tuple) -> None:  # type: ignore[type-arg]  # cases 61, 84
    samples = dataset(48).train
    if name == "cnn4":
        samples = Samples(samples.inputs.repeat(1, 1, 2, 2), samples.labels, samples.normalise)
    model = build(name, tuple(samples.inputs.shape[1:]), 10, 0)
    before = {part: model.tensors(part) for part in (trained, frozen)}
    train(model, samples, Phase(train=trained), LocalTraining(lr=0.1, batch_size=16, weight_decay=0.1), order())
    assert same(before[frozen], model.tensors(frozen))
    assert not same(before[trained], model.tensors(trained))


def test_a_weight_that_is_frozen_after_a_step_with_momentum_stays_where_it_was() -> None:  # case 61
    body, head = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    for layer in (body, head):
        nn.init.ones_(layer.weight)
    model, (samples, objective) = Model({"scale": body}, head, []), gradient_of([1.0])
    training = LocalTraining(lr=0.1, momentum=0.9, weight_decay=0.01)
    train(model, samples, Phase(train=BODY), training, order(), objective)  # type: ignore[arg-type]
    before = body.weight.detach().clone()
    assert before.item() == pytest.approx(0.899)
    train(model, samples, Phase(train=HEAD), training, order(), objective)  # type: ignore[arg-type]
    assert torch.equal(body.weight, before)
    assert head.weight.item() == pytest.approx(1 - 0.1 * (0.899 + 0.01))


def test_a_head_trained_on_stored_features_is_the_head_trained_through_the_frozen_body() -> None:
    samples = dataset(48).train
    stored, through = (build("tiny_cnn", (1, 8, 8), 10, 0) for _ in range(2))
    training = LocalTraining(lr=0.1, batch_size=16, epochs=3)
    train(stored, samples, Phase(train=HEAD), training, order())
    optimiser = torch.optim.SGD(through.head.parameters(), lr=0.1, momentum=0.9)
    through.eval()
    shuffle = order()
    for _ in range(3):
        for rows in torch.randperm(48, generator=shuffle).split(16):
            optimiser.zero_grad()
            nn.functional.cross_entropy(through(samples.batch(rows)), samples.labels[rows]).backward()  # type: ignore[index]
            optimiser.step()
    assert torch.allclose(stored.head.weight, through.head.weight, atol=1e-6)


def test_a_frozen_body_runs_once_whatever_the_epochs() -> None:
    model, runs = build("tiny_cnn", (1, 8, 8), 10, 0), []
    model.body.conv1.register_forward_hook(lambda *_: runs.append(1))
    train(model, dataset(48).train, Phase(train=HEAD), LocalTraining(lr=0.1, batch_size=16, epochs=5), order())
    assert len(runs) == 1


def test_a_learning_rate_of_zero_moves_nothing() -> None:  # case 324
    model = build("tiny_cnn", (1, 8, 8), 10, 0)
    before = model.tensors()
    tally = train(model, dataset(48).train, Phase(lr=0.0), LocalTraining(lr=0.1, batch_size=16), order())
    assert tally.steps == 3
    assert same(before, model.tensors())


def test_of_what_is_frozen_for_good_no_step_is_made() -> None:  # case 322
    head = nn.Linear(64, 10).requires_grad_(False)
    model = Model({"flatten": nn.Flatten(), "fc": nn.Linear(64, 64)}, head, [])
    before = model.tensors()
    tally = train(model, dataset(48).train, Phase(train=HEAD), LocalTraining(lr=0.1, batch_size=16), order())
    assert (tally.steps, tally.skipped) == (0, 0)
    assert math.isnan(tally.loss)
    train(model, dataset(48).train, Phase(), LocalTraining(lr=0.1, batch_size=16, weight_decay=0.1), order())
    assert same({n: t for n, t in before.items() if "head" in n}, model.tensors(HEAD))
    assert not torch.equal(before["body.fc.weight"], model.body.fc.weight)


def test_a_batch_of_one_is_used_where_batchnorm_is_in_evaluation_mode_for_good() -> None:
    model = Model({"norm": nn.BatchNorm1d(2).eval()}, nn.Linear(2, 2), [])
    before = model.tensors(BODY)
    tally = train(model, two_classes(33), Phase(), LocalTraining(lr=0.1, batch_size=32), order())
    assert (tally.steps, tally.skipped) == (2, 0)
    after = model.tensors(BODY)
    assert same({n: before[n] for n in after if "running" in n}, {n: after[n] for n in after if "running" in n})
    assert not torch.equal(before["body.norm.weight"], after["body.norm.weight"])


class Spare(nn.Module):
    """Has a layer that it never uses."""

    def __init__(self) -> None:
        super().__init__()
        self.never = nn.Linear(5, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.parametrize(
    ("part", "names"),
    [
        (ALL, ["body.fc.weight", "body.fc.bias", "head.weight", "head.bias"]),
        (BODY, ["body.fc.weight", "body.fc.bias"]),
        (HEAD, ["head.weight", "head.bias"]),
    ],
)
def test_hooks_get_the_weights_that_have_a_gradient_by_name(part: Part, names: list[str]) -> None:  # case 323
    model = Model({"flatten": nn.Flatten(), "spare": Spare(), "fc": nn.Linear(64, 4)}, nn.Linear(4, 10), [])
    before, told = model.tensors(), []

    def before_step(weights: Tensors, gradients: Tensors) -> None:
        told.append([*weights])
        assert weights.keys() == gradients.keys()
        for name, gradient in gradients.items():
            assert torch.equal(weights[name], before[name])
            gradient.fill_(1.0)

    def after_step(weights: Tensors) -> None:
        told.append([*weights])
        for weight in weights.values():
            weight.add_(0.5)

    training = LocalTraining(lr=0.1, batch_size=48, momentum=0.0)
    train(
        model, dataset(48).train, Phase(train=part), training, order(), before_step=before_step, after_step=after_step
    )
    assert told == [names, names]
    after = model.tensors()
    assert all(torch.allclose(after[n], before[n] - 0.1 + 0.5) for n in names)
    assert all(torch.equal(after[n], before[n]) for n in before.keys() - {*names})


def test_a_loss_and_its_term_are_told_apart_over_the_samples() -> None:  # case 332
    losses = iter([Loss(torch.tensor(1.0), torch.tensor(4.0)), Loss(torch.tensor(3.0)), Loss(torch.tensor(2.0))])

    def objective(model: Model, batch: Batch) -> Loss:
        plain, term = next(losses)
        return Loss(plain + 0 * model(batch.inputs).sum(), term)

    samples = float_samples(torch.ones(5, 1), [0] * 5)
    tally = train(linear(), samples, Phase(), LocalTraining(lr=0.1, batch_size=2), order(), objective)
    assert tally.plain == pytest.approx((2 * 1 + 2 * 3 + 2) / 5)
    assert tally.term == pytest.approx(2 * 4 / 5)
    assert tally.loss == pytest.approx(tally.plain + 2 * 4 / 5)
    plain = train(linear(), samples, Phase(), LocalTraining(lr=0.1, batch_size=2), order())
    assert (plain.loss, plain.term) == (plain.plain, None)


def test_samples_are_shuffled_anew_every_epoch() -> None:  # case 54
    seen: list[list[int]] = []

    def objective(model: Model, batch: Batch) -> torch.Tensor:
        seen.append(batch.rows.tolist())
        return model(batch.inputs).mean()

    samples = float_samples(torch.ones(20, 1), [0] * 20)
    train(linear(), samples, Phase(), LocalTraining(lr=0.1, batch_size=20, epochs=2), order(), objective)
    first, second = seen
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second
    assert list(range(20)) not in seen


def test_features_are_those_of_evaluation_mode_and_come_whole() -> None:
    samples = dataset(240, 10).train
    model = build("tiny_cnn", (1, 8, 8), 10, 0)
    read = features(model, samples)
    assert read.shape == (240, 64)
    assert not read.requires_grad
    assert torch.allclose(model.head(read), features(model, samples, "head"), atol=1e-6)


def test_hits_of_nothing_are_nothing() -> None:
    assert correct(linear(), float_samples(torch.ones(0, 1), torch.zeros(0, dtype=torch.int64))).shape == (0,)


def test_means_and_spread_over_clients() -> None:  # case 114
    spread = over_clients([0.9, 0.5, 0.7], [10, 40, 50])
    assert spread["acc_weighted"] == pytest.approx(0.64)
    assert spread["acc_mean"] == pytest.approx(0.70)
    assert spread["acc_std"] == pytest.approx(0.163299, abs=1e-6)
    assert spread["acc_worst_tenth"] == pytest.approx(0.5)


def test_clients_without_test_samples_do_not_count() -> None:  # case 115
    spread = over_clients([9 / 10, 20 / 40, None], [10, 40, 0])
    assert spread["acc_weighted"] == pytest.approx(0.58)
    assert spread["acc_mean"] == pytest.approx(0.7)
    assert set(over_clients([None, None], [0, 0]).values()) == {None}
    spread = over_clients([0.5, 0.7], [0, 0])  # case 337: tested on what is not their own
    assert (spread["acc_weighted"], spread["acc_mean"]) == (None, pytest.approx(0.6))


def test_the_worst_tenth_of_25_clients_is_the_mean_of_the_worst_two() -> None:
    accuracies = [0.1, 0.3] + [0.9] * 23
    assert over_clients(accuracies[::-1], [1] * 25)["acc_worst_tenth"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ("constant", [1, 1, 1, 1, 1, 1, 1, 1]),
        ("step:0.5,0.75", [1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01]),  # specification C: after rounds T/2 and 3T/4
        ("step:0.5:5,0.75", [1, 1, 1, 1, 0.2, 0.2, 0.02, 0.02]),  # specification G.4: 0.05, 0.01, 0.001
        ("cosine", [0.5 * (1 + math.cos(math.pi * t / 8)) for t in range(8)]),
    ],
)
def test_learning_rate_schedules(schedule: str, factors: list[float]) -> None:
    assert [lr_factor(schedule, round, 8) for round in range(1, 9)] == pytest.approx(factors)


def test_the_last_quarter_of_30_rounds_starts_after_round_22() -> None:
    assert [lr_factor("step:0.75", round, 30) for round in (22, 23)] == pytest.approx([1, 0.1])


@pytest.mark.parametrize(
    "schedule",
    [
        "linear",
        "step:",
        "step:0.5,0.2",
        "step:1.5",
        "step:0",
        "step:x",
        "step:0.5:",
        "step:0.5:1",
        "step:0.5:inf",
        "constant:0.5",
    ],
)
def test_other_schedules_are_refused(schedule: str) -> None:
    with pytest.raises(ValueError, match="must be 'constant', 'cosine' or 'step:'"):
        parse_schedule(schedule)


# -- augmentation and dropout -----------------------------------------------------------------------------------------


def numbered(count: int, channels: int = 1, side: int = 6) -> torch.Tensor:
    """Images whose pixels are all different and never black."""
    pixels = torch.arange(1, channels * side * side + 1, dtype=torch.uint8).reshape(1, channels, side, side)
    return pixels.expand(count, -1, -1, -1).contiguous()


def test_a_crop_is_a_window_of_the_padded_image_or_its_mirror() -> None:
    images = numbered(64, channels=2)
    padded = nn.functional.pad(images[0], (4, 4, 4, 4))
    windows = {
        bytes(window.contiguous().numpy()): (y, x, mirrored)
        for y in range(9)
        for x in range(9)
        for mirrored in (False, True)
        for window in [padded[:, y : y + 6, x : x + 6].flip(2) if mirrored else padded[:, y : y + 6, x : x + 6]]
    }
    drawn = [windows[bytes(image.contiguous().numpy())] for image in crop_and_flip(images, order())]
    assert len(set(drawn)) > 40  # each image has its own
    assert 0.3 < sum(mirrored for *_, mirrored in drawn) / 64 < 0.7
    assert {y for y, *_ in drawn} == {x for _, x, _ in drawn} == set(range(9))


def test_the_same_stream_augments_alike_and_another_differently() -> None:
    images = numbered(8)
    assert torch.equal(crop_and_flip(images, order(0)), crop_and_flip(images, order(0)))
    assert not torch.equal(crop_and_flip(images, order(0)), crop_and_flip(images, order(1)))
    assert crop_and_flip(images, order()).dtype == torch.uint8


def test_clients_with_the_same_images_augment_them_differently() -> None:  # case 53
    from kinfed.streams import torch_stream

    streams = [torch_stream(0, "batches 0", client, round) for client in (0, 1) for round in (1, 2)]
    drawn = [bytes(crop_and_flip(numbered(8), stream).contiguous().numpy()) for stream in streams]
    assert len(set(drawn)) == 4


def test_training_sees_augmented_images_new_in_every_epoch_and_evaluation_does_not() -> None:
    seen: list[torch.Tensor] = []

    def objective(model: Model, batch: Batch) -> torch.Tensor:
        seen.append(batch.inputs[batch.rows.argsort()])
        return model(batch.inputs.flatten(1)[:, :1]).mean()

    samples = float_samples(numbered(4), [0] * 4)
    train(
        linear(),
        samples,
        Phase(),
        LocalTraining(lr=0.1, batch_size=4, epochs=2, augment="crop_flip"),
        order(),
        objective,
    )
    assert not torch.equal(seen[0], seen[1])
    assert (seen[0] == 0).any()  # the margin, black before normalisation
    assert torch.equal(samples.batch(slice(None)), numbered(4).float())


def test_with_augmentation_a_frozen_body_runs_on_every_batch() -> None:
    model, runs = build("tiny_cnn", (1, 8, 8), 10, 0), []
    model.body.conv1.register_forward_hook(lambda *_: runs.append(1))
    before = model.tensors(BODY)
    training = LocalTraining(lr=0.1, batch_size=16, epochs=2, augment="crop_flip")
    train(model, dataset(48).train, Phase(train=HEAD), training, order())
    assert len(runs) == 6
    assert same(before, model.tensors(BODY))


def test_dropout_belongs_to_the_clients_stream(global_generators: None) -> None:
    def trained(seed: int) -> torch.Tensor:
        body = {"flatten": nn.Flatten(), "dropout": nn.Dropout(0.5)}
        head = nn.Linear(64, 10)
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        training = LocalTraining(lr=0.1, batch_size=48)  # one whole batch, whose order does not matter
        train(Model(body, head, []), dataset(48).train, Phase(), training, order(seed))
        return head.weight

    with torch.random.fork_rng(devices=[]):
        assert torch.equal(trained(0), trained(0))
        assert not torch.allclose(trained(0), trained(1), atol=1e-3)


class Noisy(nn.Module):
    """Draws from the generators of Python and of NumPy's legacy functions."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1 + random.random()) + float(np.random.rand())  # noqa: NPY002


def test_what_a_module_draws_belongs_to_the_clients_stream(global_generators: None) -> None:  # case 352
    def trained(seed: int) -> torch.Tensor:
        head = nn.Linear(64, 10, bias=False)
        nn.init.zeros_(head.weight)
        model = Model({"flatten": nn.Flatten(), "noisy": Noisy()}, head, [])
        train(model, dataset(48).train, Phase(), LocalTraining(lr=0.1, batch_size=48), order(seed))
        return head.weight

    with torch.random.fork_rng(devices=[]):
        assert torch.equal(trained(0), trained(0))
        assert not torch.allclose(trained(0), trained(1), atol=1e-3)


def test_training_in_channels_last_is_training() -> None:
    def trained(model: Model) -> dict[str, torch.Tensor]:
        train(model, dataset(96).train, Phase(), LocalTraining(lr=0.05, batch_size=16, weight_decay=1e-3), order())
        return model.tensors()

    plain, other = (build("tiny_cnn", (1, 8, 8), 10, 0) for _ in range(2))
    other.prefer_channels_last()
    expected, found = trained(plain), trained(other)
    assert all(torch.allclose(expected[n], found[n], atol=1e-5) for n in expected)


def test_training_is_plain_sgd_with_momentum() -> None:
    model, other = (build("tiny_cnn", (1, 8, 8), 10, 0) for _ in range(2))
    samples, training = dataset(48).train, LocalTraining(lr=0.1, batch_size=16, weight_decay=1e-2)
    train(model, samples, Phase(), training, order())
    optimiser = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2, foreach=False)
    for rows in torch.randperm(48, generator=order()).split(16):
        optimiser.zero_grad()
        nn.functional.cross_entropy(other(samples.batch(rows)), samples.labels[rows]).backward()  # type: ignore[index]
        optimiser.step()
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize(("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
def test_training_with_adam_is_torchs(name: Optimizer, kind: type[torch.optim.Adam]) -> None:
    model, other = (build("tiny_cnn", (1, 8, 8), 10, 0) for _ in range(2))
    samples, training = (
        dataset(48).train,
        LocalTraining(lr=0.01, batch_size=16, optimizer=name, weight_decay=1e-2, epochs=2),
    )
    train(model, samples, Phase(), training, order())
    optimiser, stream = kind(other.parameters(), lr=0.01, weight_decay=1e-2, foreach=False), order()
    for _ in range(2):
        for rows in torch.randperm(48, generator=stream).split(16):
            optimiser.zero_grad()
            nn.functional.cross_entropy(other(samples.batch(rows)), samples.labels[rows]).backward()  # type: ignore[index]
            optimiser.step()
    assert all(torch.allclose(ours, theirs, atol=1e-6) for ours, theirs in zip(*_weights(model, other), strict=True))


def _weights(*models: Model) -> list[list[torch.Tensor]]:
    return [[*model.parameters()] for model in models]


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_adams_moments_start_anew_with_every_training(name: Optimizer) -> None:
    """The first step of Adam is the learning rate, whatever the gradient, and whatever was trained before."""
    training, model = LocalTraining(lr=0.1, optimizer=name, batch_size=1), linear()
    for gradient, weight in ((1.0, -0.1), (-50.0, 0.0), (0.01, -0.1)):
        train(model, *_with(gradient_of([gradient]), training))
        assert model.head.weight.item() == pytest.approx(weight, abs=1e-5)


def test_weight_decay_is_in_the_gradient_of_adam_and_beside_that_of_adamw() -> None:
    """Without a gradient of the loss: Adam steps by the learning rate, AdamW shrinks the weight by lr times decay."""
    for name, weight in (("adam", 1.9), ("adamw", 2 * (1 - 0.1 * 0.5))):
        training = LocalTraining(lr=0.1, optimizer=name, weight_decay=0.5, batch_size=1)  # type: ignore[arg-type]
        model = linear(2.0)
        train(model, *_with(gradient_of([0.0]), training))
        assert model.head.weight.item() == pytest.approx(weight)


def test_seeding_leaves_no_notes_for_devices_that_are_not_in_use() -> None:
    before = len(torch.cuda._queued_calls)  # type: ignore[attr-defined]
    with seeded_globals(order(1), torch.device("cpu")):
        pass
    assert len(torch.cuda._queued_calls) == before  # type: ignore[attr-defined]


def test_the_overlap_of_classes_is_the_cosine_of_their_counts() -> None:
    overlap = class_overlap(np.array([[3, 4, 0], [6, 8, 0], [0, 0, 5], [4, 3, 0]]))
    assert overlap == pytest.approx(np.array([[1, 1, 0, 0.96], [1, 1, 0, 0.96], [0, 0, 1, 0], [0.96, 0.96, 0, 1]]))


def test_the_rank_correlation_is_over_the_pairs_that_both_know() -> None:
    rng = np.random.default_rng(0)
    one = rng.random((6, 6))
    one = one + one.T
    assert rank_correlation(one, one**3) == pytest.approx(1.0)  # monotone
    assert rank_correlation(one, -one) == pytest.approx(-1.0)
    other = np.array([[9, 1, 2, 3], [1, 9, 4, np.nan], [2, 4, 9, 6], [3, np.nan, 6, 9]])
    known = np.array([[0, 2, 1, 4], [2, 0, 3, 5], [1, 3, 0, np.nan], [4, 5, np.nan, 0]])
    # of the pairs 01, 02, 03, 12 that both know: ranks 1 2 3 4 and 2 1 4 3
    assert rank_correlation(other, known) == pytest.approx(0.6)


def test_nothing_is_correlated_with_what_is_the_same_for_all() -> None:
    same_for_all = np.full((4, 4), 0.3) + 1e-15 * np.arange(16).reshape(4, 4)
    assert rank_correlation(np.arange(16.0).reshape(4, 4), same_for_all) is None
    assert rank_correlation(np.eye(2), np.eye(2)) is None  # one pair


def test_a_new_process_trains_without_the_compiler_of_pytorch() -> None:
    """It takes two seconds to import, in every worker process and for every message to a site."""
    program = """if True:
        import sys
        from tests.test_learning import LocalTraining, Phase, batchnorm_model, order, train, two_classes
        tally = train(batchnorm_model(), two_classes(4), Phase(), LocalTraining(lr=0.1, momentum=0.9), order())
        assert tally.steps and "torch._dynamo" not in sys.modules
        """
    subprocess.run([sys.executable, "-c", program], check=True)
