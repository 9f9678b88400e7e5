"""Hetero-SSFL: its term, what travels, reductions (specification D.5, J.5; case 87)."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kinfed
from kinfed.engine import ClientRuntime
from kinfed.learning import LocalTraining, features, unnormalised
from kinfed.methods import ClientState, Message
from kinfed.methods.hetero_ssfl import HeteroSSFL, disagreement
from kinfed.methods.local_ssl import LocalSSL
from kinfed.methods.mean_gram import Cleaning, cleaned, mean_colours
from kinfed.models import ONLINE, Siamese, Target, build, select
from kinfed.similarity import cka
from kinfed.testing import Check, check_changes_no_argument, check_order_does_not_matter, check_resumes
from tests.builders import build_runtime, federation, run, same

X6 = torch.tensor([[1, 0, 2], [2, 1, 0], [0, 3, 1], [4, 1, 1], [3, 2, 5], [5, 4, 0]], dtype=torch.float64)
Y6 = torch.tensor([[1, 1], [0, 2], [2, 4], [3, 0], [5, 1], [4, 6]], dtype=torch.float64)
ALL6 = torch.arange(6)
PROBE = 48  # images of the RAD here; 4 clients · 8 outputs are fewer, 4 · 16 are more
NARROW, WIDE = {"hidden": 32, "out": 8}, {"hidden": 32, "out": 16}


def shop_of(method: HeteroSSFL | LocalSSL, probe: int = PROBE, **plan: object) -> ClientRuntime:
    return build_runtime(method, federation(public=probe), **plan)  # type: ignore[arg-type]


def mixed(method: HeteroSSFL) -> ClientRuntime:
    """Two clients have one architecture, two another, whose representations have other widths."""
    runtime = shop_of(method)
    models = tuple(build(name, (1, 8, 8), 10, 0) for name in ("tiny_cnn", "mlp"))
    return replace(runtime, models=models, architectures=(0, 0, 1, 1))


def one_round(runtime: ClientRuntime, round: int = 1, state: Message | None = None):  # type: ignore[no-untyped-def]
    state = state or runtime.method.init(runtime.server(0))
    message = runtime.method.download(state, 0)
    answers = {id: runtime.update(id, round, message, ClientState()) for id in range(4)}
    return state, message, answers


# -- the term ---------------------------------------------------------------------------------------------------------


@pytest.mark.independent("hetero_ssfl")
@pytest.mark.parametrize("form", ["gram", "factors"])
def test_the_term_by_hand(form: str) -> None:  # case 87
    shared = {"gram": Y6 @ Y6.T} if form == "gram" else {"factors": Y6}
    x = X6.clone().requires_grad_()
    term = 0.5 * disagreement(x, shared, ALL6)
    assert term.item() == pytest.approx(0.172529, abs=1e-6)
    term.backward()
    assert x.grad is not None
    after = (X6 - 0.1 * x.grad).requires_grad_()
    assert cka(after, Y6).item() > cka(X6, Y6).item() + 1e-4
    assert disagreement(Y6, shared, ALL6).item() == pytest.approx(0, abs=1e-9)


def test_both_forms_of_the_mean_are_the_same_numbers_and_gradients() -> None:
    stream = torch.Generator().manual_seed(0)
    clients = [torch.randn(40, d, generator=stream) + 1 for d in (3, 5, 8)]
    mean = sum(a @ a.T for a in clients) / 3
    side_by_side = torch.cat(clients, dim=1) / 3**0.5
    rows = torch.tensor([3, 39, 0, 7, 12, 20, 31, 8])
    found = []
    for shared in ({"gram": mean}, {"factors": side_by_side}):
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(1)).requires_grad_()
        value = disagreement(x, shared, rows)
        value.backward()
        found.append((value.item(), x.grad))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-6)
    assert torch.allclose(found[0][1], found[1][1], atol=1e-6)  # type: ignore[arg-type]


def test_a_constant_network_gets_no_gradient_of_the_term() -> None:
    x = torch.ones(6, 3, requires_grad=True)
    value = disagreement(x, {"factors": Y6.float()}, ALL6)
    value.backward()
    assert value.isfinite()
    assert x.grad is not None
    assert not x.grad.any()


def test_the_term_pulls_a_client_towards_the_mean() -> None:
    """The larger μ, the more alike what it sends is to what came: here the brightness of the images' quarters."""
    probe = federation(public=PROBE).public_images
    assert probe is not None
    wanted = torch.nn.functional.adaptive_avg_pool2d(probe.inputs / 255, 2).flatten(1)
    found = []
    for mu in (0.0, 0.5, 2.0):
        runtime = shop_of(
            HeteroSSFL(mu=mu, **NARROW), training=LocalTraining(lr=0.02, momentum=0.5, batch_size=16, epochs=6)
        )
        upload, _ = runtime.update(3, 1, Message({"factors": wanted}), ClientState())
        found.append(cka(upload.tensors["representation"], wanted).item())
    assert found[0] < found[1] < found[2]
    assert found[1] > found[0] + 0.3


# -- what travels -----------------------------------------------------------------------------------------------------


def test_the_mean_travels_in_the_smaller_form_and_is_the_mean_of_the_clients_grams() -> None:
    for sizes, form, width in ((NARROW, "factors", 32), (WIDE, "gram", PROBE)):
        runtime = shop_of(HeteroSSFL(**sizes))
        state, _, answers = one_round(runtime)
        uploads = {id: upload for id, (upload, _) in answers.items()}
        message = runtime.method.download(runtime.method.aggregate(runtime.server(1), state, uploads), 0)
        assert {name: tuple(t.shape) for name, t in message.tensors.items()} == {form: (PROBE, width)}
        sent = [upload.tensors["representation"].double() for upload in uploads.values()]
        expected = sum(a @ a.T for a in sent) / 4
        (shared,) = message.tensors.values()
        found = shared.double() @ shared.T.double() if form == "factors" else shared.double()
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item())


def test_a_client_sends_its_gram_where_that_is_smaller_or_widths_differ() -> None:
    narrow = {}
    for name, method in {
        "rows": HeteroSSFL(phi="projector", **WIDE),
        "gram": HeteroSSFL(phi="projector", hidden=32, out=64),
        "backbone": HeteroSSFL(phi="backbone", **NARROW),
    }.items():
        runtime = mixed(method)
        _, _, answers = one_round(runtime)
        narrow[name] = {tuple(upload.tensors["representation"].shape) for upload, _ in answers.values()}
    assert narrow == {"rows": {(PROBE, 16)}, "gram": {(PROBE, PROBE)}, "backbone": {(PROBE, PROBE)}}


def test_rows_and_grams_train_alike() -> None:
    """The same clients' views of the RAD as factors and as a mean Gram: the same training but for rounding."""
    stream = torch.Generator().manual_seed(0)
    factors = torch.randn(PROBE, 32, generator=stream)
    runtime = shop_of(HeteroSSFL(**NARROW))
    uploads = [
        runtime.update(3, 1, Message(shared), ClientState())[0]
        for shared in ({"factors": factors}, {"gram": factors @ factors.T})
    ]
    a, b = (upload.tensors["representation"] for upload in uploads)
    assert torch.allclose(a, b, atol=1e-3)
    assert uploads[0].numbers["loss"] == pytest.approx(uploads[1].numbers["loss"], abs=1e-4)


@pytest.mark.parametrize("sizes", [NARROW, WIDE])
def test_weights_never_leave_a_client(sizes: dict[str, int]) -> None:
    """Every message of three rounds of mixed clients: no name and no shape of a model's tensor, both ways."""
    runtime = mixed(HeteroSSFL(**sizes))
    names, shapes = set(), set()
    for id in (0, 2):
        online = Siamese(runtime.client(id, 1).model, 0, **sizes)
        names |= {*online.state_dict(), *Target(online).state_dict()}
        shapes |= {tuple(t.shape) for t in online.state_dict().values()}
    state, client_states = runtime.method.init(runtime.server(0)), {}
    seen = [state]
    for round in (1, 2, 3):
        messages = {id: runtime.method.download(state, id) for id in range(4)}
        answers = {id: runtime.update(id, round, messages[id], client_states.get(id, ClientState())) for id in range(4)}
        uploads = {id: upload for id, (upload, _) in answers.items()}
        client_states = {id: kept for id, (_, kept) in answers.items()}
        state = runtime.method.aggregate(runtime.server(round), state, uploads)
        seen += [*messages.values(), *uploads.values(), state]
    assert {name for message in seen for name in message.tensors} <= {"factors", "gram", "representation", "clients"}
    assert not names & {name for message in seen for name in message.tensors}
    assert not shapes & {tuple(t.shape) for message in seen for t in message.tensors.values()}
    assert all(len(t) == PROBE for message in seen for name, t in message.tensors.items() if name != "clients")
    assert client_states[0].tensors.keys() >= select(client_states[0].tensors, ONLINE).keys() != set()


def test_clients_of_different_architectures_learn_from_one_another(tmp_path: Path) -> None:
    outcome = run(mixed(HeteroSSFL(**WIDE)), tmp_path / "out")
    assert not any(line["refused"] for line in outcome.lines)
    kept = {id: {n for n in state.tensors if n.startswith("body.")} for id, state in outcome.client_states.items()}
    assert kept[0] == kept[1] != kept[2] == kept[3]
    assert (tmp_path / "out" / "models" / "client-00003-personal.safetensors").is_file()


@pytest.mark.slow
def test_the_bytes_are_those_of_the_smaller_form(tmp_path: Path) -> None:
    for sizes, down in ((NARROW, PROBE * 32), (WIDE, PROBE * PROBE)):
        lines = run(shop_of(HeteroSSFL(**sizes)), tmp_path / str(sizes["out"])).lines
        images = 4 * PROBE * 64  # 8×8, a byte a pixel, to each of four clients, once
        assert [line["down_bytes"] for line in lines] == [4 * 4 * down + images, *[4 * 4 * down] * (len(lines) - 1)]
        assert {line["up_bytes"] for line in lines} == {4 * 4 * PROBE * sizes["out"]}


def test_what_a_client_sends_is_what_its_network_says_of_the_probe_in_evaluation() -> None:
    runtime = shop_of(HeteroSSFL(**NARROW))
    upload, state = runtime.update(
        3, 1, runtime.method.download(runtime.method.init(runtime.server(0)), 0), ClientState()
    )
    model = build("tiny_cnn", (1, 8, 8), 10, 0)
    online = Siamese(model, 0, **NARROW)
    online.load(select(state.tensors, ONLINE))
    online.eval()
    probe = runtime.federation.public_images
    assert probe is not None
    body = features(online, unnormalised(probe))
    with torch.no_grad():
        expected = online.predictor(online.projector(body))
    assert torch.allclose(upload.tensors["representation"], expected, atol=1e-5)


def test_clients_get_the_probe_only_where_the_method_sends_it() -> None:
    assert shop_of(HeteroSSFL(**NARROW)).client(0, 1).public_images is not None
    assert shop_of(LocalSSL(**NARROW)).client(0, 1).public_images is None
    assert build_runtime("fedshibu").client(0, 1).public_images is None


def test_labels_of_the_probe_are_gone() -> None:
    probe = shop_of(HeteroSSFL(**NARROW)).client(0, 1).public_images
    assert probe is not None
    assert probe.labels is None


# -- the server -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [NARROW, WIDE])
def test_who_takes_no_part_is_remembered_as_it_was(sizes: dict[str, int]) -> None:
    runtime = shop_of(HeteroSSFL(**sizes))
    state, _, answers = one_round(runtime)
    some = {id: answers[id][0] for id in (1, 3)}
    after = runtime.method.aggregate(runtime.server(1), state, some)
    for id in range(4):
        own = after.tensors["clients"][id]
        expected = some[id].tensors["representation"] / 2 if id in some else state.tensors["clients"][id]
        assert torch.allclose(own, expected, atol=1e-6)
    assert not torch.equal(after.tensors["clients"][1], state.tensors["clients"][1])


def test_the_first_mean_is_that_of_the_initial_networks() -> None:
    """So before its first step a client agrees with everybody."""
    method = HeteroSSFL(mu=1.0, **NARROW)
    runtime = shop_of(method)
    client = runtime.client(3, 1)
    message = method.download(method.init(runtime.server(0)), 3)
    online = Siamese(runtime.client(3, 1).model, 0, **NARROW)
    term = method._term(client, online, message)
    assert term is not None
    value = term()
    assert value is not None
    assert value.item() == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("sizes", [NARROW, WIDE])
def test_with_normalised_grams_nobody_counts_for_more(sizes: dict[str, int]) -> None:
    def alike(normalise: bool) -> tuple[float, float]:
        """How alike the mean is to the views of a client with outputs ten times as large, and of another."""
        runtime = shop_of(HeteroSSFL(normalise_gram=normalise, **sizes))
        stream = torch.Generator().manual_seed(0)
        views = [torch.randn(PROBE, sizes["out"], generator=stream) for _ in range(4)]
        views[2] *= 10
        uploads = {id: Message({"representation": a}, {"samples": 1}) for id, a in enumerate(views)}
        state = runtime.method.aggregate(runtime.server(1), runtime.method.init(runtime.server(0)), uploads)
        (shared,) = runtime.method.download(state, 0).tensors.items()
        values = [1 - disagreement(views[id], dict([shared]), torch.arange(PROBE)).item() for id in (2, 0)]
        return values[0], values[1]

    literal, normalised = alike(False), alike(True)
    assert literal[0] > 0.99
    assert normalised[0] - normalised[1] < 0.1 < literal[0] - literal[1]


# -- reductions and options -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("ssl", ["byol", "simsiam"])
def test_without_the_term_it_is_local_ssl_bit_for_bit(ssl: str, tmp_path: Path) -> None:
    ours, local = (
        run(shop_of(m), tmp_path / n)
        for m, n in ((HeteroSSFL(mu=0.0, ssl=ssl, **NARROW), "h"), (LocalSSL(ssl=ssl, **NARROW), "l"))  # type: ignore[arg-type]
    )
    assert ours.client_states.keys() == local.client_states.keys()
    assert all(same(ours.client_states[id], local.client_states[id]) for id in local.client_states)
    assert [line["train_loss"] for line in ours.lines] == [line["train_loss"] for line in local.lines]


@pytest.mark.parametrize(("mu", "independent"), [(0.0, True), (0.5, False)])
def test_only_without_the_term_a_client_does_not_depend_on_what_comes(mu: float, independent: bool) -> None:  # J.5
    runtime = shop_of(HeteroSSFL(mu=mu, **NARROW))
    views = [torch.randn(PROBE, 32, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    answers = [runtime.update(3, 1, Message({"factors": factors}), ClientState()) for factors in views]
    assert same(answers[0][0], answers[1][0]) == same(answers[0][1], answers[1][1]) == independent


def test_the_term_may_start_in_round_2() -> None:
    late, never = shop_of(HeteroSSFL(start=2, **NARROW)), shop_of(HeteroSSFL(mu=0.0, **NARROW))
    message = late.method.download(late.method.init(late.server(0)), 0)
    kept = [[runtime.update(3, round, message, ClientState())[1] for runtime in (late, never)] for round in (1, 2)]
    assert [same(a, b) for a, b in kept] == [True, False]


def test_the_term_may_start_in_any_round() -> None:
    late, never = shop_of(HeteroSSFL(start=3, **NARROW)), shop_of(HeteroSSFL(mu=0.0, **NARROW))
    message = late.method.download(late.method.init(late.server(0)), 0)
    kept = [[runtime.update(3, round, message, ClientState())[1] for runtime in (late, never)] for round in (2, 3)]
    assert [same(a, b) for a, b in kept] == [True, False]


def test_with_the_start_after_all_rounds_it_is_local_ssl_bit_for_bit() -> None:
    kept = []
    for method in (HeteroSSFL(start=3, views=True, clean="colour", **NARROW), LocalSSL(**NARROW)):
        runtime, states = shop_of(method), {id: ClientState() for id in range(4)}
        state = method.init(runtime.server(0))
        for round in (1, 2):
            answers = {id: runtime.update(id, round, method.download(state, id), states[id]) for id in range(4)}
            states = {id: own for id, (_, own) in answers.items()}
            uploads = {id: upload for id, (upload, _) in answers.items()}
            state = method.aggregate(runtime.server(round), state, uploads)
        kept.append(states)
    assert all(same(kept[0][id], kept[1][id]) for id in range(4))


def first_term(method: HeteroSSFL, round: int) -> float:
    """The term in the first step of a client on whose public images all agree on something else."""
    runtime = shop_of(method)
    client = runtime.client(3, round)
    online = Siamese(client.model, 0, **NARROW)
    message = Message({"factors": torch.randn(PROBE, 5, generator=torch.Generator().manual_seed(0))}, {"views": round})
    term = method._term(client, online, message)
    value = None if term is None else term()
    return 0.0 if value is None else value.item()


def test_on_the_ramp_the_weight_rises_in_equal_steps_and_is_mu_at_its_end() -> None:
    shares = [
        first_term(HeteroSSFL(start=2, ramp=3, rad_full=True, **NARROW), round)
        / first_term(HeteroSSFL(start=1, rad_full=True, **NARROW), round)
        for round in range(1, 8)
    ]
    assert shares == pytest.approx([0, 0.25, 0.5, 0.75, 1, 1, 1], abs=1e-6)


# -- views ------------------------------------------------------------------------------------------------------------


def test_all_compare_the_same_views_which_are_new_in_each_round() -> None:
    method = HeteroSSFL(views=True, **NARROW)
    runtime = shop_of(method)
    sites = [runtime.server(5), runtime.client(0, 5), runtime.client(3, 7)]
    seen = [method._images(site, {"views": 6}).inputs for site in sites]
    assert all(torch.equal(views, seen[0]) for views in seen)
    assert not torch.equal(method._images(sites[0], {"views": 7}).inputs, seen[0])
    other = replace(sites[0], seed=1)
    assert not torch.equal(method._images(other, {"views": 6}).inputs, seen[0])


def test_a_client_compares_on_the_views_that_the_mean_is_of(tmp_path: Path) -> None:
    """Alone, it agrees with the mean before each round's first step: what it sent was of the coming round's views."""
    method = HeteroSSFL(views=True, rad_full=True, rad_bn="eval", **NARROW)
    runtime = build_runtime(method, federation(clients=1, public=PROBE))
    state, kept = method.init(runtime.server(0)), ClientState()
    for round in (1, 2, 3):
        message = method.download(state, 0)
        assert message.numbers == {"views": round}
        client = runtime.client(0, round)
        terms = [method._term(client, method.own(client, kept), told) for told in (message, other_round(message))]
        agreed, apart = (term().item() for term in terms if term is not None)  # type: ignore[union-attr]
        assert agreed == pytest.approx(0, abs=1e-5)
        assert apart > 0.01
        upload, kept = runtime.update(0, round, message, kept)
        state = method.aggregate(runtime.server(round), state, {0: upload})


def other_round(message: Message) -> Message:
    return Message(message.tensors, {"views": message.numbers["views"] + 1})


def test_with_views_the_mean_is_over_those_who_sent_their_outputs_of_them() -> None:
    runtime = shop_of(HeteroSSFL(views=True, **NARROW))
    state, _, answers = one_round(runtime)
    some = {id: answers[id][0] for id in (1, 3)}
    after = runtime.method.aggregate(runtime.server(1), state, some)
    expected = torch.stack([upload.tensors["representation"] for upload in some.values()]) / 2**0.5
    assert torch.allclose(after.tensors["clients"], expected)
    message = runtime.method.download(after, 0)
    assert {name: tuple(tensor.shape) for name, tensor in message.tensors.items()} == {"factors": (PROBE, 16)}


def test_without_views_no_number_travels_down() -> None:
    runtime = shop_of(HeteroSSFL(**NARROW))
    assert runtime.method.download(runtime.method.init(runtime.server(0)), 0).numbers == {}


@pytest.mark.slow
def test_views_are_the_same_in_worker_processes(tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "data": "digits", "train_images": 300, "partition": "iid", "clients": 4, "participation": 0.5, "public": PROBE,
        "model": "tiny_cnn", "rounds": 3,
    }  # fmt: skip
    told = []
    for workers in (1, 2):
        out = tmp_path / str(workers)
        method = HeteroSSFL(views=True, clean="colour", **NARROW)
        kinfed.run(method, out=out, quiet=True, workers=workers, **fields)
        told.append((out / "metrics.jsonl").read_text())
    assert told[0] == told[1]


@pytest.mark.slow
@pytest.mark.parametrize("check", [check_resumes, check_order_does_not_matter, check_changes_no_argument])
def test_with_views_it_keeps_what_every_method_keeps(check: Check, tmp_path: Path) -> None:
    check(HeteroSSFL(views=True, clean="neighbours", hidden=32, out=16), tmp_path)


# -- what is sent ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clean", "phi", "form"),
    [
        ("colour", "predictor", "factors"),
        ("colour", "backbone", "gram"),
        ("whitened", "predictor", "factors"),
        ("whitened", "backbone", "factors"),
        ("neighbours", "predictor", "gram"),
    ],
)
@pytest.mark.parametrize("views", [False, True])
def test_the_mean_is_cleaned_before_it_is_sent(clean: Cleaning, phi: str, form: str, views: bool) -> None:
    runtime = shop_of(HeteroSSFL(clean=clean, views=views, phi=phi, **NARROW))  # type: ignore[arg-type]
    plain = shop_of(HeteroSSFL(views=views, phi=phi, **NARROW))  # type: ignore[arg-type]
    server = runtime.server(0)
    state, raw = runtime.method.init(server), plain.method.init(server)
    colours = mean_colours(runtime.method._images(server, {"views": 1}))  # type: ignore[attr-defined]
    expected = cleaned(plain.method.download(raw, 0).tensors, clean, colours)
    sent = runtime.method.download(state, 2).tensors
    assert same(Message(sent), Message(expected))
    assert sent.keys() == {form}
    assert torch.equal(state.tensors["clients"], raw.tensors["clients"])


def test_the_notes_tell_what_is_in_the_mean_before_it_is_cleaned() -> None:
    told, clients = [], torch.empty(0)
    for clean in ("none", "whitened"):
        runtime = shop_of(HeteroSSFL(clean=clean, **NARROW))  # type: ignore[arg-type]
        state = runtime.method.init(runtime.server(0))
        clients = state.tensors["clients"].double()
        told.append(runtime.method.notes(runtime.server(0), state, {}, runtime.class_counts))
    factors, images = clients.movedim(0, 1).flatten(1), federation(public=PROBE).public_images
    assert images is not None
    values = torch.linalg.svdvals(factors - factors.mean(dim=0)).square()
    ratio = (values.sum().square() / values.square().sum()).item()
    colour = cka(factors, images.inputs.double().mean(dim=(2, 3)), debiased=True).item()
    for notes in told:
        assert notes["mean_gram_participation_ratio"] == pytest.approx(ratio, rel=1e-4)
        assert notes["mean_gram_cka_with_colour"] == pytest.approx(colour, abs=1e-5)


def test_every_round_has_the_notes(tmp_path: Path) -> None:
    (line,) = run(shop_of(HeteroSSFL(mu=0.0, **NARROW), rounds=1), tmp_path / "out").lines
    assert line["mean_gram_participation_ratio"] > 1
    assert -1 < line["mean_gram_cka_with_colour"] < 1
    assert line["spread"].keys() == {"0", "1", "2", "3"}


# -- the initial networks ---------------------------------------------------------------------------------------------


def test_the_first_mean_may_be_that_of_every_clients_own_initial_network() -> None:
    """So each client agrees with its own part of it; here two clients have one architecture, two another."""
    runtime = mixed(HeteroSSFL(initial="clients", **NARROW))
    clients = runtime.method.init(runtime.server(0)).tensors["clients"]
    for id in range(4):
        client = runtime.client(id, 1)
        online = Siamese(client.model, 0, **NARROW)
        own = runtime.method._sent(online, client, 1)  # type: ignore[attr-defined]
        assert torch.equal(clients[id], own / 2)
    assert not torch.allclose(clients[0], clients[2], atol=1e-3)


def test_clients_of_one_architecture_start_as_the_server_does() -> None:
    states = []
    for initial in ("server", "clients"):
        runtime = shop_of(HeteroSSFL(initial=initial, **NARROW))  # type: ignore[arg-type]
        states.append(runtime.method.init(runtime.server(0)))
    assert same(*states)


def test_only_a_server_that_must_know_the_clients_models_has_them() -> None:
    assert mixed(HeteroSSFL(**NARROW)).server(0).client_models == ()
    runtime = mixed(HeteroSSFL(initial="clients", **NARROW))
    with torch.no_grad():
        runtime.fresh_model(2).head.weight.zero_()
    models = runtime.server(1).client_models
    assert [model is models[0] for model in models] == [True, True, False, False]
    assert models[0] is runtime.server(1).model
    assert models[2].head.weight.any()  # with its initial weights again


@pytest.mark.parametrize(
    ("fields", "idle"),
    [
        ({"mu": 0.0}, {"ramp", "views", "clean", "initial", "start"}),
        ({}, set()),
        ({"start": 2}, set()),  # who has not taken part yet is in the mean as he was initially
        ({"start": 2, "views": True}, {"initial"}),
    ],
)
def test_which_fields_nothing_reads(fields: dict[str, float], idle: set[str]) -> None:
    found = HeteroSSFL(**fields).idle.keys()  # type: ignore[arg-type]
    assert found & {"ramp", "views", "clean", "initial", "start"} == idle


class Counting(HeteroSSFL):
    """Notes how many images of the RAD its networks are shown at a time, with a gradient."""

    seen: list[int] = []  # noqa: RUF012

    def _represented(self, online: Siamese, images: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            self.seen.append(len(images))
        return super()._represented(online, images)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [16] * 3),  # as many as the step has of its own
        ({"rad_batch": 8}, [8] * 3),
        ({"rad_full": True}, [PROBE] * 3),
        ({"rad_batch": 1000}, [PROBE] * 3),
        ({"rad_every": 2}, [16] * 2),
    ],
)
def test_how_much_of_the_rad_a_step_compares(fields: dict[str, int], expected: list[int]) -> None:
    runtime = shop_of(Counting(**NARROW, **fields))  # type: ignore[arg-type]
    client = runtime.client(3, 1)
    client = replace(client, train=client.train.take(range(3 * 16)))
    Counting.seen.clear()
    runtime.method.update(client, runtime.method.download(runtime.method.init(runtime.server(0)), 0), ClientState())
    assert Counting.seen == expected


@pytest.mark.parametrize(("mode", "moves"), [("eval", False), ("train", True)])
def test_the_rad_leaves_running_statistics_alone_unless_asked(mode: str, moves: bool) -> None:
    method = HeteroSSFL(rad_bn=mode, **NARROW)  # type: ignore[arg-type]
    runtime = shop_of(method)
    online = Siamese(runtime.client(3, 1).model, 0, **NARROW)
    probe = runtime.client(3, 1).public_images
    assert probe is not None
    before = online.tensors(ONLINE)
    a = method._represented(online, unnormalised(probe).batch(slice(None)))
    a.square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in (online.body.conv1[0].weight, online.predictor[3].weight))
    assert same(before, online.tensors(ONLINE)) != moves
    assert all(part.training for part in (online.body, online.projector, online.predictor))


@pytest.mark.slow
@pytest.mark.parametrize("phi", ["predictor", "projector", "backbone"])
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_every_place_to_read_trains(phi: str, mode: str, tmp_path: Path) -> None:
    method = HeteroSSFL(phi=phi, rad_bn=mode, **NARROW)  # type: ignore[arg-type]
    outcome = run(shop_of(method, rounds=2), tmp_path / "out")
    assert not any(line["refused"] for line in outcome.lines)
    grams = [tuple(t.shape) for t in outcome.state.tensors.values()]
    assert ((4, PROBE, 8) in grams) == (phi != "backbone")


def test_rounds_with_some_clients_go_on_with_what_the_others_said(tmp_path: Path) -> None:
    outcome = run(shop_of(HeteroSSFL(**NARROW), participation=0.5, rounds=1), tmp_path / "out")
    initial = shop_of(HeteroSSFL(**NARROW))
    start = initial.method.init(initial.server(0)).tensors["clients"]
    moved = {id for id in range(4) if not torch.equal(start[id], outcome.state.tensors["clients"][id])}
    assert moved == set(outcome.lines[0]["clients"])
    assert all(a.shape == b.shape for a, b in itertools.pairwise(outcome.state.tensors["clients"]))
