"""MOON and FedCKA: reductions, hand-computed terms, and what frozen models must not do (specification B.4, B.5, J)."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from kinfed.data import Samples
from kinfed.errors import InputError
from kinfed.learning import Batch, LocalTraining, Loss
from kinfed.methods import Client, ClientState, Message, Method
from kinfed.methods.contrast import ContrastiveBase
from kinfed.methods.fedcka import FedCKA
from kinfed.methods.moon import MOON
from kinfed.models import Model, Tensors, build
from kinfed.similarity import cka, cosine, frobenius
from tests.builders import build_runtime, dataset, float_samples, run, same

METRICS = ("linear", "rbf", "debiased", "frobenius", "cosine")
CONTRASTS: list[ContrastiveBase] = [MOON(mu=5.0), FedCKA(), *(FedCKA(metric=m, tap="pool") for m in METRICS)]  # type: ignore[arg-type]
ids = pytest.mark.parametrize("method", CONTRASTS, ids=lambda m: f"{type(m).__name__}-{getattr(m, 'metric', '')}")


def a_client(samples: Samples, name: str = "tiny_cnn", round: int = 2, **training: Any) -> Client:
    model = build(name, tuple(samples.inputs.shape[1:]), 10, 0)
    return Client(
        model=model, seed=0, round=round, rounds=9, id=1, train=samples,
        training=LocalTraining(**{"lr": 0.05, "batch_size": 16, "epochs": 2, **training}),
    )  # fmt: skip


def other(client: Client, name: str = "tiny_cnn") -> Tensors:
    """Another local model: what the client had before."""
    return build(name, tuple(client.train.inputs.shape[1:]), 10, 7).tensors()


def trained(method: Method, samples: Samples, name: str = "tiny_cnn", **training: Any) -> Tensors:
    client = a_client(samples, name, **training)
    message, state = Message(client.model.tensors()), ClientState(other(client, name))
    return method.update(client, message, state)[0].tensors


def close(a: Tensors, b: Tensors, atol: float = 1e-5) -> bool:
    return a.keys() == b.keys() and all(torch.allclose(a[n], b[n], rtol=1e-4, atol=atol) for n in a)


# -- reductions (J.1) -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [MOON, FedCKA])
def test_without_weight_it_is_fedavg_bit_for_bit(kind: type[ContrastiveBase], tmp_path: Path) -> None:
    plain = run(build_runtime("fedavg", participation=0.5), tmp_path / "fedavg")
    with_term = run(build_runtime(kind(mu=0), participation=0.5), tmp_path / "other")
    assert [line.pop("train_term") for line in with_term.lines] == [0.0] * 3
    assert plain.lines == with_term.lines
    assert same(plain.state, with_term.state)


@ids
def test_the_first_round_is_fedavg_bit_for_bit_and_its_term_log_2(method: ContrastiveBase, tmp_path: Path) -> None:
    plain, first = (run(build_runtime(m, rounds=1), tmp_path / n) for m, n in (("fedavg", "a"), (method, "b")))
    assert same(plain.state, first.state)
    expected = plain.lines[0]["train_loss"] + method.mu * math.log(2)
    assert first.lines[0]["train_loss"] == pytest.approx(expected, rel=1e-6)


@ids
def test_a_previous_model_that_is_the_global_one_has_no_gradient(method: ContrastiveBase) -> None:
    samples = dataset(40).train
    client = a_client(samples)
    tensors = client.model.tensors()
    same_model = method.update(client, Message(tensors), ClientState(tensors))[0]
    plain = replace(method, mu=0.0).update(client, Message(tensors), ClientState())[0]
    assert close(same_model.tensors, plain.tensors, atol=1e-6)
    assert same_model.numbers["loss"] == pytest.approx(plain.numbers["loss"] + method.mu * math.log(2), rel=1e-5)


@pytest.mark.parametrize("kind", [MOON, FedCKA])
def test_a_random_previous_model_acts_in_the_first_round_and_belongs_to_the_client(kind: type[ContrastiveBase]) -> None:
    def first(id: int) -> Tensors:
        client = replace(a_client(dataset(40).train, round=1), id=id)
        client = replace(
            client, training=replace(client.training, batch_size=40, epochs=1)
        )  # one batch, whose order is no matter
        message = Message(client.model.tensors())
        return kind(prev_init="random").update(client, message, ClientState())[0].tensors

    assert same(first(0), first(0))
    assert not close(first(0), first(1), atol=1e-6)


def test_the_memory_is_the_clients_own_local_model(tmp_path: Path) -> None:
    runtime = build_runtime("moon")
    state = runtime.method.init(runtime.server(0))
    upload, kept = runtime.update(0, 1, runtime.method.download(state, 0), ClientState())
    assert same(upload.tensors, kept.tensors)


# -- the terms --------------------------------------------------------------------------------------------------------


def flat_model(weight: list[list[float]]) -> Model:
    """z = W x, and a head that says nothing."""
    body, head = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    body.weight.data = torch.tensor(weight)
    nn.init.zeros_(head.weight)
    return Model({"linear": body}, head, [])


@pytest.mark.independent("moon")
@pytest.mark.parametrize(("previous", "expected"), [([[0.0], [1.0]], 0.126928), ([[1.0], [0.0]], math.log(2))])
def test_moon_compares_with_the_global_and_the_previous_model(previous: list[list[float]], expected: float) -> None:
    """Case 70: z and the global model's are [1, 0], the previous model's [0, 1]."""
    column = lambda values: [[v[0], 0.0] for v in values]  # noqa: E731 - what is made of x = [1, 0]
    samples = float_samples(torch.tensor([[1.0, 0.0]]), [0])
    model = flat_model([[1.0, 0.0], [0.0, 0.0]])
    client = replace(a_client(dataset(40).train), model=model, train=samples)
    before = {**model.tensors(), "body.linear.weight": torch.tensor(column(previous))}
    objective = MOON(mu=1).contrast(client, Message(model.tensors()), before)
    loss = objective(model, Batch(samples.inputs, torch.tensor([0]), torch.tensor([0])))
    assert isinstance(loss, Loss)
    assert loss.plain.item() == pytest.approx(math.log(2))  # two classes, equal logits
    assert loss.term is not None
    assert loss.term.item() == pytest.approx(expected, abs=1e-6)


def a_batch(client: Client, count: int = 16) -> Batch:
    rows = torch.arange(count).flip(0)
    assert client.train.labels is not None
    return Batch(client.train.batch(rows), client.train.labels[rows], rows)


def total(loss: torch.Tensor | Loss) -> torch.Tensor:
    return loss.total if isinstance(loss, Loss) else loss


def moved(model: Model) -> Model:
    """A local model that is neither the global nor the previous one."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(3)
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.02)
    return model


OF_KINFED: dict[str, Any] = {
    "linear": cka,
    "rbf": lambda x, y: cka(x, y, kernel="rbf"),
    "debiased": lambda x, y: cka(x, y, debiased=True),
    "frobenius": frobenius,
    "cosine": cosine,
}


@pytest.mark.independent("fedcka")
@pytest.mark.parametrize("augment", ["none", "crop_flip"])
@pytest.mark.parametrize("epochs", [1, 9])  # of 48 samples: batch by batch, and one Gram over all
@pytest.mark.parametrize("metric", METRICS)
def test_fedcka_is_its_two_term_form_with_kinfeds_own_similarities(metric: str, epochs: int, augment: Any) -> None:
    client = a_client(dataset(48).train, epochs=epochs, augment=augment)
    models = [build("tiny_cnn", (1, 8, 8), 10, seed) for seed in (0, 7)]
    global_, previous = (m.eval() for m in models)
    method = FedCKA(metric=metric, mu=2.0)  # type: ignore[arg-type]
    objective = method.contrast(client, Message(global_.tensors()), previous.tensors())
    local, batch = moved(client.model), a_batch(client)
    found = total(objective(local, batch))
    found.backward()
    gradients = {n: p.grad.clone() for n, p in local.named_parameters() if p.grad is not None}

    local.zero_grad()
    taps, similarity = ["conv1", "conv2"], OF_KINFED[metric]
    of = lambda m: {n: x.contiguous() for n, x in m.activations(batch.inputs, taps).items()}  # noqa: E731
    a, g, p = of(local), *({n: x.detach() for n, x in of(m).items()} for m in (global_, previous))
    s_g, s_p = (torch.stack([similarity(a[n], x[n]) for n in taps]) for x in (g, p))
    term = -torch.log(s_g.exp() / (s_g.exp() + s_p.exp())).mean()
    expected = functional.cross_entropy(local(batch.inputs), batch.labels) + 2 * term
    expected.backward()
    assert found.item() == pytest.approx(expected.item(), abs=1e-5)
    assert all(torch.allclose(q.grad, gradients[n], atol=2e-5) for n, q in local.named_parameters())  # type: ignore[arg-type]
    if metric in ("linear", "rbf"):
        assert 0.3133 <= term.item() <= 1.3133


@pytest.mark.parametrize("rows", [3, 4])
def test_fedcka_leaves_the_term_out_of_batches_of_three(rows: int) -> None:
    client = a_client(dataset(40).train)
    objective = FedCKA().contrast(client, Message(client.model.tensors()), other(client))
    model, batch = client.model, a_batch(client, rows)
    plain = functional.cross_entropy(model(batch.inputs), batch.labels)
    assert (total(objective(model, batch)).item() == plain.item()) == (rows == 3)


@ids
def test_the_gradient_reaches_the_local_model_alone(method: ContrastiveBase) -> None:
    client = a_client(dataset(40).train)
    message, previous = Message(client.model.tensors()), other(client)
    objective = method.contrast(client, message, previous)
    difference = total(objective(moved(client.model), a_batch(client))) - functional.cross_entropy(
        client.model(a_batch(client).inputs), a_batch(client).labels
    )
    difference.backward()
    first = client.model.body.conv1[0].weight.grad
    assert first is not None
    assert first.abs().max() > 0
    assert not any(t.requires_grad for t in (*message.tensors.values(), *previous.values()))


@ids
def test_a_term_is_told_apart_from_the_cross_entropy(method: ContrastiveBase) -> None:  # case 332
    client = a_client(dataset(32).train, epochs=1)
    message, previous = Message(client.model.tensors()), ClientState(other(client))
    numbers = method.update(client, message, previous)[0].numbers
    assert numbers["loss"] == pytest.approx(numbers["cross_entropy"] + numbers["term"], rel=1e-6)
    assert numbers["term"] > 0.1
    first = method.update(a_client(dataset(32).train, epochs=1), message, ClientState())[0].numbers
    plain = replace(method, mu=0.0).update(a_client(dataset(32).train, epochs=1), message, ClientState())[0].numbers
    assert first["term"] == pytest.approx(method.mu * math.log(2))
    assert first["cross_entropy"] == plain["loss"] == plain["cross_entropy"]
    assert plain["term"] == 0


# -- what frozen models make of the samples, once ---------------------------------------------------------------------


def with_hooks(
    method: ContrastiveBase, samples: Samples, monkeypatch: pytest.MonkeyPatch, **training: Any
) -> dict[str, int]:
    """How many samples each stage of the frozen models saw."""
    from kinfed.methods import fedcka, moon

    seen: dict[str, int] = {}
    for module in (fedcka, moon):
        copied = module.frozen_copy

        def hooked(model: Model, tensors: Tensors, copied: Any = copied) -> Model:
            frozen = copied(model, tensors)
            for name, stage in frozen.body.named_children():
                stage.register_forward_hook(
                    lambda _, inputs, __, name=name: seen.update({name: seen.get(name, 0) + len(inputs[0])})
                )
            return frozen

        monkeypatch.setattr(module, "frozen_copy", hooked)
    trained(method, samples, **training)
    return seen


@pytest.mark.parametrize("epochs", [1, 9])
def test_frozen_models_see_each_image_once_and_run_no_deeper_than_the_deepest_tap(
    epochs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = dataset(40).train
    assert with_hooks(FedCKA(), samples, monkeypatch, epochs=epochs) == {"conv1": 80, "pool1": 80, "conv2": 80}
    assert with_hooks(FedCKA(layers=1), samples, monkeypatch, epochs=epochs) == {"conv1": 80}


def test_with_augmentation_frozen_models_see_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = with_hooks(MOON(mu=5.0), dataset(40).train, monkeypatch, epochs=3, augment="crop_flip")
    assert set(seen.values()) == {2 * 3 * 40}


@ids
@pytest.mark.parametrize("epochs", [2, 5])
def test_stored_features_and_forward_passes_train_alike(method: ContrastiveBase, epochs: int) -> None:
    samples = dataset(48).train
    stored = trained(method, samples, epochs=epochs, lr=0.01)
    with pytest.warns(RuntimeWarning, match="more than feature_cache_mb \\(0\\); they are recomputed"):
        anew = trained(method, samples, epochs=epochs, lr=0.01, feature_cache_mb=0)
    assert close(stored, anew, atol=1e-4)
    assert not close(stored, trained(replace(method, mu=0.0), samples, epochs=epochs, lr=0.01), atol=2e-4)


@ids
def test_no_buffer_changes_but_the_local_models(method: ContrastiveBase) -> None:
    """BatchNorm: the frozen models are in evaluation mode, the local one in training mode."""
    digits = dataset(40).train
    samples = replace(digits, inputs=digits.inputs.repeat_interleave(2, 2).repeat_interleave(2, 3))
    client = a_client(samples, "cnn4")
    message, state = Message(client.model.tensors()), ClientState(other(client, "cnn4"))
    before = [{n: t.clone() for n, t in m.tensors.items()} for m in (message, state)]
    upload, _ = method.update(client, message, state)
    assert all(same(a, b.tensors) for a, b in zip(before, (message, state), strict=True))
    assert upload.tensors["body.conv1.1.num_batches_tracked"] == 6  # 2 epochs of 3 batches, each seen once
    assert client.model.body.conv1.training


# -- layers -----------------------------------------------------------------------------------------------------------


def test_layers_are_counted_from_the_input() -> None:
    assert build("small_cnn", (3, 32, 32), 10, 0).layers == (
        "conv1", "conv2", "fc120", "fc84", "proj84", "proj256", "head",
    )  # fmt: skip
    assert build("resnet18", (3, 32, 32), 10, 0).layers[:2] == ("stem", "layer1_1")


def test_a_pooled_tap_is_refused_where_nothing_is_pooled() -> None:
    with pytest.raises(InputError, match="'pool' would do nothing; none of the compared layers is pooled"):
        build_runtime(FedCKA(tap="pool"), model="mlp")
    build_runtime(FedCKA(tap="pool"), model="tiny_cnn")


def test_a_pooled_tap_is_read_after_the_pooling_that_follows_it() -> None:
    model = build("tiny_cnn", (1, 8, 8), 10, 0)
    assert [model.pooled(tap) for tap in model.layers] == ["pool1", "pool2", "fc64", "head"]
    x = dataset(8).train.batch(slice(None))
    read = model.activations(x, ["conv1", "pool1"])
    assert torch.equal(functional.max_pool2d(read["conv1"], 2), read["pool1"])


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_every_number_of_layers_that_the_model_has(layers: int, tmp_path: Path) -> None:
    lines = run(build_runtime(FedCKA(layers=layers), rounds=2), tmp_path / "out").lines
    assert not lines[-1]["refused"]


def test_more_layers_than_the_model_has_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"fedcka.layers: 5 is not allowed; the model has 4: conv1, conv2, fc64, head"):
        run(build_runtime(FedCKA(layers=5)), tmp_path / "out")


def test_a_model_of_ones_own_has_a_body_and_a_head(tmp_path: Path) -> None:
    own = lambda _: Model({"net": nn.Sequential(nn.Flatten(), nn.Linear(64, 8))}, nn.Linear(8, 10), [])  # noqa: E731
    assert not run(build_runtime(FedCKA(layers=1), wrap=own, rounds=2), tmp_path / "a").lines[-1]["refused"]
    assert not run(build_runtime(MOON(), wrap=own, rounds=2), tmp_path / "b").lines[-1]["refused"]
    with pytest.raises(InputError, match=r"fedcka.layers: 3 is not allowed; the model has 2: body, head"):
        run(build_runtime(FedCKA(layers=3), wrap=own), tmp_path / "c")


def test_constant_activations_add_no_gradient() -> None:
    """A dead first layer: its term is log 2 without a gradient."""
    client = a_client(dataset(40).train)
    dead = client.model.body.conv1[0]
    nn.init.constant_(dead.bias, -100.0)
    objective = FedCKA(layers=1, mu=1).contrast(client, Message(client.model.tensors()), other(client))
    batch = a_batch(client)
    loss = total(objective(client.model, batch))
    loss.backward()
    plain = functional.cross_entropy(client.model(batch.inputs), batch.labels)
    assert loss.item() - plain.item() == pytest.approx(math.log(2), abs=1e-6)
    assert dead.weight.grad is not None
    assert not dead.weight.grad.any()
