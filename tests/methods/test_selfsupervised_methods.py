"""FedBYOL, FedSimSiam, FedU, FedEMA, local SSL and central BYOL: reductions and rules (specification D, J; case 86)."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from kinfed.engine import ClientRuntime
from kinfed.learning import LocalTraining
from kinfed.methods import METHODS, ClientState, Message, Method
from kinfed.methods.central_byol import CentralBYOL
from kinfed.methods.fedbyol import FedBYOL
from kinfed.methods.fedema import FedEMA, merged
from kinfed.methods.fedsimsiam import FedSimSiam
from kinfed.methods.fedu import FedU
from kinfed.methods.local_ssl import LocalSSL
from kinfed.methods.selfsupervised import divergence, encoder_weights
from kinfed.models import BODY, HEAD, ONLINE, PREDICTOR, TARGET, Siamese, Tensors, build, select
from tests.builders import build_runtime, federation, run, same

SIZES = {"hidden": 32, "out": 16}
UNLABELLED = [name for name, method in METHODS.items() if not method.supervised]
STILL = LocalTraining(lr=1e-12, batch_size=16)  # training that moves no float32 weight


def first_message(runtime: ClientRuntime) -> Message:
    return runtime.method.download(runtime.method.init(runtime.server(0)), 0)


def shifted(message: Message, by: float) -> Message:
    """Other global weights: all parameters moved, counters as they were."""
    return Message({n: t + by if t.is_floating_point() else t for n, t in message.tensors.items()})


def parameters_of(runtime: ClientRuntime) -> set[str]:
    online = Siamese(runtime.server(0).model, 0, **SIZES)
    return {name for name, _ in online.named_parameters() if name.startswith(ONLINE)}


# -- all of them ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", UNLABELLED)
def test_labels_are_not_read(name: str) -> None:
    runtime = build_runtime(name)
    message = first_message(runtime)
    last = len(runtime.trained) - 1
    client = runtime.client(last, 1)
    assert client.train.labels is not None
    shuffled = replace(client.train, labels=client.train.labels.flip(0))
    answers = [
        runtime.method.update(replace(runtime.client(last, 1), train=train), message, ClientState())
        for train in (client.train, shuffled, client.train.without_labels())
    ]
    for upload, state in answers[1:]:
        assert same(upload, answers[0][0])
        assert same(state, answers[0][1])


@pytest.mark.parametrize("name", UNLABELLED)
def test_the_first_target_is_a_deep_copy_of_the_first_encoder(name: str) -> None:
    """With one object for both, the target would take whole steps; a copy takes a hundredth of one."""
    training = LocalTraining(lr=0.1, momentum=0.0, batch_size=64)
    runtime = build_runtime(name, training=training)
    client = runtime.client(len(runtime.trained) - 1, 1)
    start = Siamese(client.model, 0, **SIZES).tensors(ONLINE)
    one_batch = replace(client, train=client.train.take(range(60)))
    upload, state = runtime.method.update(one_batch, first_message(runtime), ClientState())
    kept = select(state.tensors, TARGET)
    if isinstance(runtime.method, FedSimSiam):
        assert not kept
        return
    end = select({**state.tensors, **upload.tensors}, ONLINE)
    name = "body.conv1.0.weight"
    step = end[name] - start[name]
    assert step.abs().max() > 1e-5
    assert torch.allclose(kept[f"target.{name}"] - start[name], 0.01 * step, atol=1e-7)


@pytest.mark.parametrize("name", UNLABELLED)
def test_an_upload_tells_how_far_apart_its_outputs_are(name: str) -> None:
    runtime = build_runtime(name)
    upload, _ = runtime.update(len(runtime.trained) - 1, 1, first_message(runtime), ClientState())
    assert 0 < upload.numbers["spread"] <= 1


@pytest.mark.parametrize("name", UNLABELLED)
def test_a_client_without_a_step_tells_no_spread_and_keeps_its_weights(name: str) -> None:
    runtime = build_runtime(name)
    client = runtime.client(0, 1)
    start = Siamese(client.model, 0, **SIZES).tensors(ONLINE)
    upload, state = runtime.method.update(
        replace(client, train=client.train.take([0])), first_message(runtime), ClientState()
    )
    assert {*upload.numbers} == {"samples", "steps", "skipped"}
    ends = select({**state.tensors, **upload.tensors}, ONLINE)
    assert all(torch.equal(ends[n], start[n]) for n in ends)


def test_projector_and_predictor_are_in_proportion_to_the_representation() -> None:  # case 347
    for model, width in (("tiny_cnn", 64), ("mlp", 200)):
        online = METHODS["fedbyol"]().online(build_runtime("fedbyol", model=model).client(0, 1))  # type: ignore[attr-defined]
        shapes = [
            layer.weight.shape for layer in (*online.projector, *online.predictor) if isinstance(layer, nn.Linear)
        ]
        assert shapes == [(4 * width, width), (128, 4 * width), (4 * width, 128), (128, 4 * width)]


def test_the_other_defaults_are_the_papers() -> None:
    assert (FedU().threshold, FedEMA().tau, FedEMA().autoscale) == (0.4, 0.7, True)


# -- FedBYOL, FedSimSiam, central BYOL --------------------------------------------------------------------------------


@pytest.mark.independent("fedbyol", "fedsimsiam")
@pytest.mark.parametrize("name", ["fedbyol", "fedsimsiam"])
def test_a_round_is_the_mean_of_what_the_clients_trained(name: str, tmp_path: Path) -> None:
    runtime = build_runtime(name, rounds=1)
    state = run(runtime, tmp_path / "out").state
    message = first_message(runtime)
    uploads = {id: runtime.update(id, 1, message, ClientState())[0] for id in range(4)}
    samples = [len(rows) for rows in runtime.federation.partition.train]
    for tensor, mean in state.tensors.items():
        if mean.is_floating_point():
            expected = sum(n * uploads[id].tensors[tensor].double() for id, n in enumerate(samples)) / sum(samples)
            assert torch.allclose(mean.double(), expected, atol=1e-6)


def test_what_travels_is_the_online_network_and_what_stays_is_the_target(tmp_path: Path) -> None:
    runtime = build_runtime("fedbyol", rounds=2)
    outcome = run(runtime, tmp_path / "out")
    online = Siamese(runtime.server(0).model, 0, **SIZES)
    assert outcome.state.tensors.keys() == online.tensors(ONLINE).keys()
    assert not online.tensors(HEAD).keys() & outcome.state.tensors.keys()
    kept = [state.tensors for state in outcome.client_states.values()]
    assert len(kept) == 4
    assert all(tensors and all(name.startswith(TARGET) for name in tensors) for tensors in kept)
    simsiam = run(build_runtime("fedsimsiam", rounds=2), tmp_path / "simsiam")
    assert not any(state.tensors for state in simsiam.client_states.values())


@pytest.mark.parametrize("update_target", ["own", "both"])
def test_a_target_goes_on_from_its_last_participation_or_starts_at_the_global_encoder(update_target: str) -> None:
    """With training that moves no weight, a target only follows the encoder, a hundredth of the way in each step."""
    runtime = build_runtime(FedBYOL(update_target=update_target, **SIZES), training=STILL)  # type: ignore[arg-type]
    message = first_message(runtime)
    _, state = runtime.update(3, 1, message, ClientState())
    upload, later = runtime.update(3, 2, shifted(message, 1.0), state)
    name = "body.conv1.0.weight"
    followed = 1.0 if update_target == "both" else 1 - 0.99 ** upload.numbers["steps"]
    assert torch.allclose(later.tensors[f"target.{name}"], message.tensors[name] + followed, atol=1e-6)


def test_the_global_model_is_the_trained_body_under_the_initial_head(tmp_path: Path) -> None:
    runtime = build_runtime("fedbyol")
    state = run(runtime, tmp_path / "out").state
    tensors = runtime.method.global_model(runtime.server(3), state)
    assert tensors is not None
    assert same(select(tensors, BODY), select(state.tensors, BODY))
    assert same(select(tensors, HEAD), build("tiny_cnn", (1, 8, 8), 10, 0).tensors(HEAD))


@pytest.mark.independent("central_byol")
def test_with_one_client_it_is_central_byol(tmp_path: Path) -> None:
    fed = federation(clients=1)
    ours, central = (run(build_runtime(m(**SIZES), fed), tmp_path / m.__name__) for m in (FedBYOL, CentralBYOL))
    assert same(ours.state, central.state)
    assert {(line["down_bytes"], line["up_bytes"]) for line in central.lines} == {(0, 0)}


# -- FedU -------------------------------------------------------------------------------------------------------------


def test_divergence_is_the_mean_of_the_tensors_norms() -> None:  # case 86
    before = [torch.zeros(2, 2), torch.zeros(3)]
    after = [torch.tensor([[0.2, 0.0], [0.0, 0.0]]), torch.tensor([0.0, 0.4, 0.0])]
    assert divergence(before, after) == pytest.approx(0.3)
    assert divergence([], []) == 0


def test_divergence_is_of_the_convolutions_or_else_of_the_linear_layers() -> None:
    cnn = Siamese(build("cnn4", (1, 16, 16), 10, 0), 0, **SIZES)
    assert [t.ndim for t in encoder_weights(cnn)] == [4] * 4
    mlp = Siamese(build("mlp", (8,), 10, 0), 0, **SIZES)
    assert [tuple(t.shape) for t in encoder_weights(mlp)] == [(200, 8), (200, 200)]


@pytest.mark.independent("fedu")
@pytest.mark.parametrize(("threshold", "from_server"), [(0.4, True), (0.3, False), (0.2, False)])
def test_a_predictor_comes_from_the_server_if_the_client_has_moved_little(threshold: float, from_server: bool) -> None:
    """Case 86: d = 0.3 and a threshold of 0.4: from the server; d < μ is strict."""
    runtime = build_runtime(FedU(threshold=threshold, **SIZES), training=STILL)
    message = first_message(runtime)
    _, state = runtime.update(3, 1, message, ClientState())
    upload, _ = runtime.update(3, 2, shifted(message, 1.0), ClientState(state.tensors, {"divergence": 0.3}))
    for name in parameters_of(runtime):
        moved = from_server or not name.startswith(PREDICTOR)
        assert torch.allclose(upload.tensors[name], message.tensors[name] + float(moved), atol=1e-6)


@pytest.mark.slow
def test_without_a_bound_the_predictor_is_always_global_and_that_is_fedbyol(tmp_path: Path) -> None:
    compared = {"u": FedU(threshold=math.inf, **SIZES), "b": FedBYOL(**SIZES)}
    ours, byol = (run(build_runtime(method, rounds=4), tmp_path / name) for name, method in compared.items())
    assert same(ours.state, byol.state)
    assert ours.lines == byol.lines


def test_with_a_bound_of_zero_the_predictor_is_always_local() -> None:
    runtime = build_runtime(FedU(threshold=0.0, **SIZES))
    message, client_states = first_message(runtime), []
    _, state = runtime.update(3, 1, message, ClientState())
    for other in (0.0, 5.0):  # whatever predictor comes
        sent = {n: t + other for n, t in select(message.tensors, PREDICTOR).items() if t.is_floating_point()}
        client_states.append(runtime.update(3, 2, Message({**message.tensors, **sent}), state))
    assert same(client_states[0][0], client_states[1][0])
    assert same(client_states[0][1], client_states[1][1])


def test_the_divergence_is_that_of_the_clients_own_last_training() -> None:
    runtime = build_runtime("fedu")
    message = first_message(runtime)
    upload, state = runtime.update(3, 1, message, ClientState())
    names = [n for n in upload.tensors if n.startswith("body.conv") and n.endswith("weight")]
    norms = [(upload.tensors[n] - message.tensors[n]).norm().item() for n in names]
    assert len(norms) == 2
    assert state.numbers["divergence"] == pytest.approx(sum(norms) / 2, rel=1e-5)


# -- FedEMA -----------------------------------------------------------------------------------------------------------


@pytest.mark.independent("fedema")
@pytest.mark.parametrize(("scale", "expected"), [(0.1, [2.5, 3.0]), (0.04, [1.6, 1.8]), (9.0, [4.0, 5.0])])
def test_the_share_of_the_own_network_is_lambda_times_d(scale: float, expected: list[float]) -> None:  # case 86
    runtime = build_runtime(FedEMA(autoscale=False, scale=scale, **SIZES), training=STILL)
    message = first_message(runtime)
    _, state = runtime.update(3, 1, message, ClientState())

    def with_bias(tensors: Tensors, values: list[float]) -> Tensors:
        return {**tensors, "predictor.3.bias": torch.tensor(values * 8), "body.fc64.0.bias": torch.tensor(values * 32)}

    own = ClientState(with_bias(state.tensors, [4.0, 5.0]), {**state.numbers, "divergence": 5.0})
    upload, _ = runtime.update(3, 2, Message(with_bias(message.tensors, [1.0, 1.0])), own)
    for name in ("predictor.3.bias", "body.fc64.0.bias"):
        assert upload.tensors[name][:2].tolist() == pytest.approx(expected)


@pytest.mark.parametrize(("mu", "of_predictor"), [(0.5, 2.0), (0.6, 1.0)])
def test_buffers_of_the_encoder_are_global_and_of_the_predictor_those_of_the_nearer_one(
    mu: float, of_predictor: float
) -> None:
    online = Siamese(build("cnn4", (1, 16, 16), 10, 0), 0, **SIZES)
    own = {n: torch.full_like(t, 1) for n, t in online.tensors(ONLINE).items()}
    theirs = {n: torch.full_like(t, 2) for n, t in own.items()}
    found = merged(online, own, theirs, mu)
    assert found["body.conv1.1.running_mean"].unique().item() == 2
    assert found["projector.1.running_var"].unique().item() == 2
    assert found["predictor.1.running_mean"].unique().item() == of_predictor
    assert found["predictor.1.num_batches_tracked"].item() == of_predictor
    assert found["body.conv1.1.weight"].unique().item() == pytest.approx(2 - mu)


def test_lambda_is_fixed_by_the_first_divergence_so_that_mu_is_tau_at_first() -> None:
    runtime = build_runtime(FedEMA(tau=0.7, **SIZES))
    message = first_message(runtime)
    _, first = runtime.update(3, 1, message, ClientState())
    assert first.numbers["scale"] * first.numbers["divergence"] == pytest.approx(0.7)
    _, second = runtime.update(3, 2, message, first)
    assert second.numbers["scale"] == first.numbers["scale"]
    assert second.numbers["divergence"] != first.numbers["divergence"]
    still = build_runtime(FedEMA(tau=0.7, **SIZES), training=STILL)
    global_weights = shifted(message, 1.0)
    upload, _ = still.update(3, 2, global_weights, first)
    name = "body.conv1.0.weight"
    expected = 0.7 * first.tensors[name] + 0.3 * global_weights.tensors[name]
    assert torch.allclose(upload.tensors[name], expected, atol=1e-6)


@pytest.mark.slow
def test_without_a_share_of_its_own_it_is_fedbyol(tmp_path: Path) -> None:
    compared = {"e": FedEMA(tau=0.0, **SIZES), "b": FedBYOL(**SIZES)}
    ours, byol = (run(build_runtime(method, rounds=4), tmp_path / name) for name, method in compared.items())
    assert same(ours.state, byol.state)
    assert ours.lines == byol.lines
    for id, state in byol.client_states.items():
        assert same(state.tensors, select(ours.client_states[id].tensors, TARGET))


def test_with_nothing_but_its_own_a_client_never_takes_global_weights() -> None:
    """And so trains like local SSL, but for the round's running statistics, which training does not read."""
    alone, ours = (build_runtime(m) for m in (LocalSSL(**SIZES), FedEMA(autoscale=False, scale=1e9, **SIZES)))
    message, mine, theirs = first_message(ours), ClientState(), ClientState()
    for round in (1, 2, 3):
        _, mine = alone.update(3, round, Message(), mine)
        _, theirs = ours.update(3, round, shifted(message, round - 1.0), theirs)
    for name in parameters_of(ours):
        assert torch.equal(mine.tensors[name], theirs.tensors[name])
    assert all(torch.equal(mine.tensors[n], theirs.tensors[n]) for n in mine.tensors if n.startswith(TARGET))


def test_who_missed_a_round_starts_from_the_global_network_target_included() -> None:
    runtime = build_runtime(FedEMA(tau=0.7, **SIZES), training=STILL)
    message = first_message(runtime)
    moved = shifted(message, 1.0)
    _, state = build_runtime(FedEMA(tau=0.7, **SIZES)).update(3, 1, message, ClientState())
    upload, later = runtime.update(3, 3, moved, state)  # not in round 2
    for name in parameters_of(runtime):
        assert torch.allclose(upload.tensors[name], moved.tensors[name], atol=1e-6)
        if f"target.{name}" in later.tensors:
            assert torch.allclose(later.tensors[f"target.{name}"], moved.tensors[name], atol=1e-6)
    assert later.numbers["scale"] == state.numbers["scale"]
    assert later.numbers["round"] == 3


def test_a_client_that_could_not_train_fixes_no_lambda() -> None:
    runtime = build_runtime("fedema")
    client = runtime.client(0, 1)
    _, state = runtime.method.update(
        replace(client, train=client.train.take([0])), first_message(runtime), ClientState()
    )
    assert state.numbers == {"round": 1, "divergence": 0.0}
    upload, later = runtime.update(0, 2, first_message(runtime), state)
    assert later.numbers["scale"] > 0
    assert all(t.isfinite().all() for t in upload.tensors.values())


# -- local SSL --------------------------------------------------------------------------------------------------------


def test_local_ssl_sends_nothing_and_trains_everybody_whatever_the_participation(tmp_path: Path) -> None:
    lines = run(build_runtime("local_ssl", participation=0.25), tmp_path / "out").lines
    assert {(line["down_bytes"], line["up_bytes"]) for line in lines} == {(0, 0)}
    assert all(line["clients"] == [0, 1, 2, 3] for line in lines)


@pytest.mark.slow
@pytest.mark.independent("local_ssl")
@pytest.mark.parametrize("ssl", ["byol", "simsiam"])
def test_local_ssl_is_its_method_with_one_client_for_each(ssl: str, tmp_path: Path) -> None:
    fed = federation(clients=1)
    twin: Method = FedBYOL(**SIZES) if ssl == "byol" else FedSimSiam(**SIZES)
    compared = {"local": LocalSSL(ssl=ssl, **SIZES), "twin": twin}  # type: ignore[arg-type]
    local, twins = (run(build_runtime(method, fed), tmp_path / name) for name, method in compared.items())
    assert same(select(local.client_states[0].tensors, ONLINE), twins.state.tensors)
    kept = twins.client_states.get(0, ClientState()).tensors  # SimSiam keeps none
    assert same(select(local.client_states[0].tensors, TARGET), kept)


def test_the_own_model_is_the_trained_body_under_the_initial_head() -> None:
    runtime = build_runtime("local_ssl")
    _, state = runtime.update(3, 1, Message(), ClientState())
    initial = build("tiny_cnn", (1, 8, 8), 10, 0)
    own = runtime.method.evaluated(runtime.client(3, 1), Message(), state)["own"]
    assert same(select(own, BODY), select(state.tensors, BODY))
    assert same(select(own, HEAD), initial.tensors(HEAD))
    untrained = runtime.method.evaluated(runtime.client(3, 1), Message(), ClientState())["own"]
    assert same(untrained, initial.tensors())


def test_flat_inputs_are_refused_with_a_reason() -> None:
    from kinfed.errors import InputError

    runtime = build_runtime("fedbyol")
    client = runtime.client(3, 1)
    flat = replace(client.train, inputs=client.train.inputs.flatten(1).float())
    with pytest.raises(InputError, match="two views"):
        runtime.method.update(replace(client, train=flat), first_message(runtime), ClientState())


def test_a_model_of_other_layers_trains_too() -> None:
    """Whatever has a body: here one with no convolution and BatchNorm over features."""
    runtime = build_runtime("fedu", model="mlp")
    upload, state = runtime.update(3, 1, first_message(runtime), ClientState())
    assert upload.numbers["steps"] > 0
    assert state.numbers["divergence"] > 0
