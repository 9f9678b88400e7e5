"""Methods whose clients keep a model, or a part of one, of their own (specification C, J; cases 74 to 78)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from kinfed.data import Dataset, Federation, Partition
from kinfed.errors import InputError
from kinfed.learning import Batch, LocalTraining, Phase, features, train
from kinfed.methods import METHODS, ClientState, Message, Method, Server, ServerState, fedavg
from kinfed.methods.ditto import Ditto
from kinfed.methods.fedbabu import FedBABU
from kinfed.methods.fedcrc import FedCRC
from kinfed.methods.fedper import FedPer
from kinfed.methods.fedproto import FedProto
from kinfed.methods.fedrep import FedRep
from kinfed.methods.lg_fedavg import LGFedAvg
from kinfed.models import BODY, HEAD, Model, Tensors, build, select
from tests.builders import build_runtime, close, federation, float_samples, larger, parabolas, run, same

OWN_HEADS = ["fedper", "fedrep", "fedcrc"]
OWN = [*OWN_HEADS, "ditto", "fedproto", "lg_fedavg"]


def initial(model: str = "tiny_cnn") -> Tensors:
    return build(model, (1, 8, 8), 10, 0).tensors()


# -- who keeps what ---------------------------------------------------------------------------------------------------


def one_weight(body: float, head: float) -> Model:
    model = Model({"scale": nn.Linear(1, 1, bias=False)}, nn.Linear(1, 1, bias=False), [])
    nn.init.constant_(model.body.scale.weight, body)
    nn.init.constant_(model.head.weight, head)
    return model


@pytest.mark.independent("fedper", "lg_fedavg")
@pytest.mark.parametrize(
    ("method", "averaged", "personal"),
    [
        (FedPer(), {"body.scale.weight": 2.0}, [(2.0, 10.0), (2.0, 20.0)]),
        (FedRep(), {"body.scale.weight": 2.0}, [(2.0, 10.0), (2.0, 20.0)]),
        (LGFedAvg(), {"head.weight": 15.0}, [(1.0, 15.0), (3.0, 15.0)]),
    ],
)
def test_what_is_shared_is_averaged_and_what_is_kept_is_left(
    method: fedavg.FedAvg, averaged: dict[str, float], personal: list[tuple[float, float]]
) -> None:  # case 74
    uploads, kept = {}, {}
    for id, (body, head) in enumerate(((1.0, 10.0), (3.0, 20.0))):
        tensors = one_weight(body, head).tensors()
        uploads[id] = Message(select(tensors, method.shared), {"samples": 5})
        kept[id] = ClientState(select(tensors, method.private))
    assert [u.nbytes for u in uploads.values()] == [4, 4]  # one float32: what is shared alone
    state = method.aggregate(None, None, uploads)  # type: ignore[arg-type]
    assert {n: t.item() for n, t in state.tensors.items()} == averaged
    runtime = build_runtime(method, wrap=lambda _: one_weight(0, 0))
    for id in (0, 1):
        own = method.evaluated(runtime.client(id, 1), method.download(state, id), kept[id])[method.primary]
        assert (own["body.scale.weight"].item(), own["head.weight"].item()) == personal[id]


@pytest.mark.parametrize("name", ["fedper", "fedrep", "lg_fedavg"])
def test_with_no_training_only_what_is_shared_travels(name: str, tmp_path: Path) -> None:  # case 74
    outcome = run(build_runtime(name, training=LocalTraining(lr=1e-30, batch_size=16)), tmp_path / "out")
    shared = select(initial(), METHODS[name].shared)  # type: ignore[attr-defined]
    assert close(outcome.state.tensors, shared)
    sent = 4 * sum(t.nbytes for t in shared.values())
    assert {(line["down_bytes"], line["up_bytes"]) for line in outcome.lines} == {(sent, sent)}


@pytest.mark.parametrize("name", OWN_HEADS)
def test_everybody_has_the_same_body_and_who_never_took_part_the_initial_head(name: str, tmp_path: Path) -> None:
    runtime = build_runtime(name, participation=0.25, rounds=1)
    outcome = run(runtime, tmp_path / "out")
    (trained,) = outcome.client_states
    for id in range(4):
        message = runtime.method.download(outcome.state, id)
        state = outcome.client_states.get(id, ClientState())
        personal = runtime.method.evaluated(runtime.client(id, 1), message, state)["stale"]
        assert same(select(personal, BODY), select(outcome.state.tensors, BODY))
        assert same(select(personal, HEAD), select(initial(), HEAD)) == (id != trained)


@pytest.mark.parametrize("name", ["ditto", "fedproto"])
def test_who_never_took_part_has_the_initial_model(name: str, tmp_path: Path) -> None:
    runtime = build_runtime(name, participation=0.25, rounds=1)
    outcome = run(runtime, tmp_path / "out")
    for id in range(4):
        state = outcome.client_states.get(id, ClientState())
        own = runtime.method.evaluated(runtime.client(id, 1), runtime.method.download(outcome.state, id), state)["own"]
        assert same(own, initial()) == (id not in outcome.client_states)


@pytest.mark.parametrize("name", OWN)
def test_what_a_client_keeps_is_there_when_it_takes_part_again(name: str) -> None:  # case 75
    """The client's model at the start of its training is what came, and what it kept four rounds before."""
    runtime = build_runtime(name, rounds=5)
    method = runtime.method
    state, started = method.init(runtime.server(0)), []
    client_states: dict[int, ClientState] = {}

    def watched(model: Model, *given: Any, **hooks: Any) -> Any:
        started.append(model.tensors())
        return train(model, *given, **hooks)

    for round, id in enumerate((2, 0, 1, 3, 2), start=1):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fedavg, "train", watched)
            message, kept = method.download(state, id), client_states.get(id, ClientState())
            upload, client_states[id] = runtime.update(id, round, message, kept)
        if round == 5:
            assert method.private  # type: ignore[attr-defined]
            assert kept.tensors.keys() == select(initial(), method.private).keys()  # type: ignore[attr-defined]
            expected = {**message.tensors, **(kept.tensors if name != "fedcrc" else {})}  # there h_i comes second
            began = started[-2 if name in ("ditto", "fedrep") else -1]
            assert same(began, {n: t for n, t in expected.items() if n in began})
        started.clear()
        state = method.aggregate(runtime.server(round), state, {id: upload})


@pytest.mark.parametrize("name", ["fedper", "lg_fedavg"])
def test_with_one_client_what_is_shared_and_what_is_kept_is_fedavg(name: str, tmp_path: Path) -> None:
    fed = federation(clients=1)
    own, whole = (run(build_runtime(n, fed), tmp_path / n) for n in (name, "fedavg"))
    assert same({**own.state.tensors, **own.client_states[0].tensors}, whole.state.tensors)


def opposite_labels() -> Federation:
    """Two clients that agree on what the inputs are and disagree on what to call them."""
    x = torch.linspace(-1, 1, 40)[:, None]
    sign = (x[:, 0] > 0).long()
    samples = float_samples(torch.cat([x, x]), torch.cat([sign, 1 - sign]))
    cut = [np.arange(40), np.arange(40, 80)]
    return Federation(Dataset("opposite", samples, samples, ("0", "1")), Partition(cut, cut), np.arange(0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [FedPer(), FedRep(body_epochs=5), FedCRC(), Ditto(lam=0.01), FedProto(lam=0.1), LGFedAvg()]
)
def test_clients_with_opposite_labels_need_something_of_their_own(method: Method, tmp_path: Path) -> None:  # case 77
    def outcome(method: Method | str, out: str) -> dict:  # type: ignore[type-arg]
        runtime = build_runtime(
            method, opposite_labels(), rounds=40, model="mlp", training=LocalTraining(lr=0.1, batch_size=40, epochs=5)
        )
        return run(runtime, tmp_path / out).lines[-1]

    own = outcome(method, "own")
    # FedCRC's body is trained under a common head, to which both clients together say nothing.
    assert min(own["client_acc"]["personal"]) >= (0.75 if isinstance(method, FedCRC) else 1.0)
    expected = pytest.approx(0.5) if isinstance(method, FedCRC | Ditto) else None
    assert own["global_acc"] == expected  # named apart from the personal one
    assert outcome("fedavg", "fedavg")["global_acc"] == pytest.approx(0.5)


# -- stale and refreshed heads ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OWN_HEADS)
def test_heads_are_refreshed_after_the_last_round_only_and_not_written_back(name: str, tmp_path: Path) -> None:
    runtime = build_runtime(name)
    outcome = run(runtime, tmp_path / "out")
    assert ["refreshed" in line["client_acc"] for line in outcome.lines] == [False, False, True]
    for id, state in outcome.client_states.items():
        message = runtime.method.download(outcome.state, id)
        heads = runtime.method.evaluated(runtime.client(id, 3, final=True), message, state)
        assert same(select(heads["stale"], HEAD), state.tensors)
        assert same(select(heads["stale"], BODY), select(heads["refreshed"], BODY))
        assert not same(select(heads["stale"], HEAD), select(heads["refreshed"], HEAD))


def plainly(model: Model, parameters: Any, loss: Callable[[Tensor, Tensor], Tensor], data: tuple, epochs: int) -> None:  # type: ignore[type-arg]
    """SGD as one would write it for this alone: samples, their order; images through the whole model."""
    samples, order = data
    optimiser = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    for _ in range(epochs):
        for rows in torch.randperm(len(samples), generator=order).split(16):
            optimiser.zero_grad()
            loss(samples.inputs[rows].float() / 255, samples.labels[rows]).backward()
            optimiser.step()


@pytest.mark.parametrize(("name", "epochs"), [("fedper", 3), ("fedrep", 5), ("fedcrc", 3)])
def test_a_refreshed_head_is_the_stale_one_trained_on_the_latest_body(name: str, epochs: int, tmp_path: Path) -> None:
    runtime = build_runtime(name, rounds=2, training=LocalTraining(lr=0.05, batch_size=16, epochs=3))
    outcome = run(runtime, tmp_path / "out")
    message, state = runtime.method.download(outcome.state, 1), outcome.client_states[1]
    client = runtime.client(1, 2, final=True)
    refreshed = runtime.method.evaluated(client, message, state)["refreshed"]
    model = build("tiny_cnn", (1, 8, 8), 10, 7)
    model.load({**message.tensors, **state.tensors})
    data = (client.train, client.stream("refreshed head"))
    plainly(model, model.head.parameters(), lambda x, y: functional.cross_entropy(model(x), y), data, epochs)
    assert close(refreshed, model.tensors())


# -- FedRep -----------------------------------------------------------------------------------------------------------


def test_fedrep_trains_the_head_on_a_frozen_body_and_then_the_body_under_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each phase leaves the other half bit for bit, BatchNorm statistics and all (J.4)."""
    runtime = build_runtime("fedrep", larger(federation()), model="cnn4")
    seen = []

    def watched(model: Model, *given: Any, **hooks: Any) -> Any:
        before = model.tensors()
        tally = train(model, *given, **hooks)
        after = model.tensors()
        seen.append((given[1], tuple(same(select(before, part), select(after, part)) for part in (HEAD, BODY))))
        return tally

    monkeypatch.setattr(fedavg, "train", watched)
    runtime.update(3, 1, runtime.method.download(runtime.method.init(runtime.server(0)), 3), ClientState())
    head_first, then_body = Phase(train=HEAD, epochs=5), Phase(train=BODY, epochs=1)
    assert seen == [(head_first, (False, True)), (then_body, (True, False))]


@pytest.mark.independent("fedrep")
def test_fedrep_is_the_plain_loop_of_the_paper() -> None:
    runtime = build_runtime(
        FedRep(head_epochs=3, body_epochs=2), training=LocalTraining(lr=0.05, batch_size=16, epochs=9)
    )
    client, model = runtime.client(2, 1), build("tiny_cnn", (1, 8, 8), 10, 0)
    upload, state = runtime.update(2, 1, Message(model.tensors(BODY)), ClientState())

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(model(x), y)

    plainly(model, model.head.parameters(), loss, (client.train, client.stream("batches 0")), 3)
    plainly(model, model.body.parameters(), loss, (client.train, client.stream("batches 1")), 2)
    assert close({**upload.tensors, **state.tensors}, model.tensors())


# -- FedCRC -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_fedcrc_whose_head_never_moves_is_fedbabu(tmp_path: Path) -> None:  # J.3, case 76
    training = LocalTraining(lr=0.05, batch_size=16, epochs=2, weight_decay=0.1)
    fed = larger(federation())
    crc, babu = (
        run(
            build_runtime(m, fed, model="cnn4", training=training, rounds=4, participation=0.5),
            tmp_path / type(m).__name__,
        )
        for m in (FedCRC(tau=1), FedBABU())
    )
    assert same(select(crc.state.tensors, BODY), babu.state.tensors)
    initial_head = build("cnn4", fed.dataset.shape, 10, 0).tensors(HEAD)
    assert same(select(crc.state.tensors, HEAD), initial_head)
    for ours, theirs in zip(crc.lines, babu.lines, strict=True):
        assert (ours["global_acc"], ours["train_loss"]) == (theirs["global_acc"], theirs["train_loss"])
    moved = run(
        build_runtime(FedCRC(tau=0.5), fed, model="cnn4", training=training, rounds=4, participation=0.5),
        tmp_path / "moved",
    )
    assert not same(select(moved.state.tensors, HEAD), initial_head)
    assert not same(select(moved.state.tensors, BODY), babu.state.tensors)


def test_fedcrcs_global_head_moves_slowly_and_its_body_at_once() -> None:
    state = ServerState(one_weight(5, 10).tensors())
    uploads = {
        0: Message(one_weight(1, 20).tensors(), {"samples": 1}),
        1: Message(one_weight(3, 40).tensors(), {"samples": 3}),
    }
    server = Server(model=one_weight(0, 0), seed=0, round=1, rounds=1, clients=2, cohort=2, public_images=None)
    after = FedCRC(tau=0.9).aggregate(server, state, uploads).tensors
    assert after["body.scale.weight"].item() == pytest.approx(2.5)  # (1·1 + 3·3)/4
    assert after["head.weight"].item() == pytest.approx(0.9 * 10 + 0.1 * 35)  # (20 + 3·40)/4 = 35


@pytest.mark.parametrize(
    ("kl", "expected"),
    [
        ("forward", 0.9 * math.log(0.9 / 0.5) + 0.1 * math.log(0.1 / 0.5)),
        ("reverse", 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1)),
    ],
)
def test_the_global_head_learns_from_the_personal_one(kl: Any, expected: float) -> None:
    """p_personal = (0.9, 0.1), p_global = (0.5, 0.5), and only the global head has a gradient."""
    heads = [Model({}, nn.Linear(1, 2, bias=False), ()) for _ in range(2)]
    personal, ours = heads
    nn.init.zeros_(ours.head.weight)
    personal.load({"head.weight": torch.tensor([[math.log(9)], [0.0]])})
    personal.freeze_all_but(())
    batch = Batch(torch.ones(4, 1), torch.tensor([0, 1, 1, 0]), torch.arange(4))
    loss = FedCRC(kl=kl).imitation(personal)(ours, batch).total  # type: ignore[union-attr]
    assert loss.item() == pytest.approx(math.log(2) + expected)
    loss.backward()
    assert ours.head.weight.grad is not None
    assert personal.head.weight.grad is None


@pytest.mark.independent("fedcrc")
@pytest.mark.parametrize("kl", ["forward", "reverse"])
def test_fedcrc_is_the_plain_loop_of_the_paper(kl: Any) -> None:
    """Three models, three phases, and nothing stored; h_i and h_g come in different."""
    runtime = build_runtime(FedCRC(kl=kl), training=LocalTraining(lr=0.05, batch_size=16, epochs=2))
    client = runtime.client(2, 3)
    received, own = (build("tiny_cnn", (1, 8, 8), 10, seed) for seed in (5, 6))
    upload, state = runtime.update(2, 3, Message(received.tensors()), ClientState(own.tensors(HEAD)))

    f, h_g, h_i = received.body, received.head, own.head
    entropy = functional.cross_entropy
    of = lambda purpose: (client.train, client.stream(purpose))  # noqa: E731
    plainly(received, f.parameters(), lambda x, y: entropy(h_g(f(x)), y), of("batches 0"), 2)
    plainly(received, h_i.parameters(), lambda x, y: entropy(h_i(f(x)), y), of("personal head"), 2)

    def imitation(x: Tensor, y: Tensor) -> Tensor:
        z = f(x)
        p_g, p_i = h_g(z).softmax(1), h_i(z).softmax(1).detach()
        kl_terms = p_i * (p_i / p_g).log() if kl == "forward" else p_g * (p_g / p_i).log()
        return entropy(h_g(z), y) + kl_terms.sum(dim=1).mean()

    plainly(received, h_g.parameters(), imitation, of("global head"), 1)
    assert close(upload.tensors, received.tensors())
    assert close(state.tensors, own.tensors(HEAD))


def body_passes(runtime: Any) -> tuple[list[str], Message, ClientState]:
    """In which mode the body ran, pass by pass, during one client's work; and what came of it."""
    model, modes = runtime.models[0], []
    handle = model.body.conv1.register_forward_hook(lambda m, *_: modes.append("train" if m.training else "eval"))
    answer = runtime.update(1, 1, runtime.method.download(runtime.method.init(runtime.server(0)), 1), ClientState())
    handle.remove()
    return modes, *answer


def test_fedcrcs_frozen_body_runs_once_for_both_heads() -> None:
    training = LocalTraining(lr=0.05, batch_size=16, epochs=3)
    runtime = build_runtime("fedcrc", training=training)
    batches = math.ceil(len(runtime.trained.train(1)) / 16)
    modes, upload, state = body_passes(runtime)
    assert modes == ["train"] * 3 * batches + ["eval"]
    with pytest.warns(RuntimeWarning, match="feature_cache_mb"):
        modes, upload_without, memory_without = body_passes(
            build_runtime("fedcrc", training=replace(training, feature_cache_mb=0))
        )
    assert modes.count("eval") > 4 * batches
    assert close(upload.tensors, upload_without.tensors)
    assert close(state.tensors, memory_without.tensors)
    modes, *_ = body_passes(
        build_runtime("fedcrc", training=replace(training, augment="crop_flip"))
    )  # every batch is new
    assert modes == ["train"] * 3 * batches + ["eval"] * 4 * batches


# -- Ditto ------------------------------------------------------------------------------------------------------------


def test_ditto_without_a_pull_is_training_alone_beside_fedavg(tmp_path: Path) -> None:  # J.5
    ditto, local, average = (
        run(build_runtime(m), tmp_path / n) for m, n in ((Ditto(lam=0), "d"), ("local", "l"), ("fedavg", "f"))
    )
    assert same(ditto.state, average.state)
    assert all(same(ditto.client_states[id], local.client_states[id]) for id in range(4))
    held = run(build_runtime(Ditto(lam=2)), tmp_path / "held")
    assert same(held.state, average.state)  # the personal models change nothing for the global one
    assert not any(same(held.client_states[id], local.client_states[id]) for id in range(4))


@pytest.mark.independent("ditto")
def test_dittos_models_are_held_near_what_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: a step of w is η(w − m), one of v is η(v − m) + ηλ(v − w of the round's start)."""
    centres, lr, lam, epochs = [1.0, 4.0], 0.1, 0.5, 2
    runtime = parabolas(
        Ditto(lam=lam), centres, monkeypatch, training=LocalTraining(lr=lr, momentum=0, epochs=epochs), rounds=3
    )
    outcome = run(runtime, tmp_path / "out")
    w, v = 0.0, [0.0, 0.0]
    for _ in range(3):
        trained = []
        for i, m in enumerate(centres):
            w_i = w
            for _ in range(epochs):
                v[i] -= lr * (v[i] - m + lam * (v[i] - w))
                w_i -= lr * (w_i - m)
            trained.append(w_i)
        w = sum(trained) / 2
    assert outcome.state.tensors["head.weight"].item() == pytest.approx(w, rel=1e-5)
    assert [outcome.client_states[i].tensors["head.weight"].item() for i in (0, 1)] == pytest.approx(v, rel=1e-5)


# -- FedProto ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_fedproto_without_prototypes_or_without_weight_is_training_alone(tmp_path: Path) -> None:
    once, alone, unweighted, longer = (
        run(build_runtime(m, rounds=r), tmp_path / f"{n}{r}")
        for m, n, r in (("fedproto", "p", 1), ("local", "l", 1), (FedProto(lam=0), "u", 3), ("local", "l", 3))
    )
    assert all(same(once.client_states[id], alone.client_states[id]) for id in range(4))
    assert once.lines[0]["train_loss"] == alone.lines[0]["train_loss"]
    assert all(same(unweighted.client_states[id], longer.client_states[id]) for id in range(4))
    pulled = run(build_runtime("fedproto", rounds=3), tmp_path / "pulled")
    assert not any(same(pulled.client_states[id], longer.client_states[id]) for id in range(4))


def without_classes(gone: list[list[int]]) -> Federation:
    """A federation whose client k has no samples of the classes gone[k]."""
    fed = federation(clients=len(gone))
    labels = fed.dataset.train.labels
    assert labels is not None
    own = [
        rows[~np.isin(labels[torch.as_tensor(rows)].numpy(), lost)]
        for rows, lost in zip(fed.partition.train, gone, strict=True)
    ]
    return replace(fed, partition=replace(fed.partition, train=own))


@pytest.mark.independent("fedproto")
@pytest.mark.parametrize("aggregation", ["counts", "uniform"])
def test_prototypes_are_the_class_means_of_the_trained_models_weighted_by_counts(aggregation: Any) -> None:
    """Client 0 has no 3; nobody has a 7."""
    fed = without_classes([[3, 7], [7], [7]])
    runtime = build_runtime(FedProto(aggregation=aggregation), larger(fed), model="cnn4")
    method = runtime.method
    state = method.init(runtime.server(0))
    answers = {id: runtime.update(id, 1, method.download(state, id), ClientState()) for id in range(3)}
    sums: dict[int, list[tuple[int, Tensor]]] = {}
    for id, (upload, kept) in answers.items():
        model, samples = runtime.client(id, 1).model, runtime.trained.train(id)
        model.load(kept.tensors)
        model.eval()
        assert samples.labels is not None
        z = model.body(samples.batch(slice(None))).detach().double()
        for k in range(10):
            mine = z[samples.labels == k]
            assert upload.tensors["counts"][k] == len(mine)
            assert upload.tensors["prototypes"].shape == (10, 64)
            if len(mine):
                mean = mine.sum(dim=0) / len(mine)
                assert torch.allclose(upload.tensors["prototypes"][k].double(), mean, atol=1e-5)
                sums.setdefault(k, []).append((len(mine), mean))
    after = method.aggregate(runtime.server(1), state, {id: upload for id, (upload, _) in answers.items()})
    assert after.tensors["prototypes"][7].isnan().all()
    assert sums.keys() == set(range(10)) - {7}
    assert len(sums[3]) == 2
    for k, parts in sums.items():
        weights = [count if aggregation == "counts" else 1 for count, _ in parts]
        mean = sum(w * c for w, (_, c) in zip(weights, parts, strict=True)) / sum(weights)
        assert torch.allclose(after.tensors["prototypes"][k].double(), mean, atol=1e-5)


def test_a_class_that_nobody_has_in_a_round_keeps_its_prototype() -> None:
    state = ServerState({"prototypes": torch.tensor([[1.0], [2.0], [math.nan]])})
    sent = {"prototypes": torch.tensor([[5.0], [0.0], [0.0]]), "counts": torch.tensor([3, 0, 0])}
    after = FedProto().aggregate(None, state, {0: Message(sent, {"samples": 3})})  # type: ignore[arg-type]
    assert after.tensors["prototypes"].nan_to_num(-1).tolist() == [[5.0], [2.0], [-1.0]]


def test_the_distance_counts_for_classes_with_a_prototype_only() -> None:
    """By hand: z = x; c_0 = (1, 1), and class 1 has none. Of four elements two differ from c_0, by 1 and by 2."""
    model = Model({"same": nn.Identity()}, nn.Linear(2, 2), ())
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    x = torch.tensor([[2.0, 3.0], [50.0, 60.0]], requires_grad=True)
    prototypes = torch.tensor([[1.0, 1.0], [math.nan, math.nan]])
    loss = FedProto(lam=2).near(prototypes)(model, Batch(x, torch.tensor([0, 1]), torch.arange(2))).total  # type: ignore[union-attr]
    assert loss.item() == pytest.approx(math.log(2) + 2 * (1 + 4) / 4)
    loss.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[1.0, 2.0], [0.0, 0.0]]  # 2 · 2(z − c)/4


def test_the_nearest_prototype_among_the_clients_classes_is_an_answer(tmp_path: Path) -> None:
    runtime = build_runtime(
        "fedproto", without_classes([[3, 4], [], []]), rounds=3, training=LocalTraining(lr=0.1, epochs=3, batch_size=8)
    )
    outcome = run(runtime, tmp_path / "out")
    prototypes = outcome.state.tensors["prototypes"]
    for id, kept in outcome.client_states.items():
        client = runtime.client(id, 3)
        models = runtime.method.evaluated(client, runtime.method.download(outcome.state, id), kept)
        model, test = client.model, runtime.federation.tested.samples
        model.load(models["prototype"])
        answered = features(model, test, "head").argmax(dim=1)
        distances = torch.cdist(features(model, test).double(), prototypes.double())
        assert client.train.labels is not None
        lacking = [k for k in range(10) if k not in client.train.labels]
        assert lacking == ([3, 4] if id == 0 else [])
        distances[:, lacking] = torch.inf
        assert torch.equal(answered, distances.argmin(dim=1))
        assert same(select(models["prototype"], BODY), select(models["own"], BODY))
    assert {"personal", "prototype", "own_classes", "refit", "fine_tuned"} == outcome.lines[-1]["client_acc"].keys()
    assert outcome.lines[-1]["prototype_acc_mean"] > 0.3


def test_no_prototype_is_no_answer() -> None:
    runtime = build_runtime("fedproto")
    state = runtime.method.init(runtime.server(0))
    assert runtime.method.evaluated(runtime.client(0, 1), runtime.method.download(state, 0), ClientState()).keys() == {
        "own"
    }


def two_architectures(width: int) -> Any:
    """A workshop in which every other client has a small MLP, with representations of some width."""
    runtime = build_runtime("fedproto", participation=0.75)
    mlp = Model({"flatten": nn.Flatten(), "fc": nn.Linear(64, width), "relu": nn.ReLU()}, nn.Linear(width, 10), ())
    return replace(runtime, models=(runtime.models[0], mlp), architectures=(0, 1, 0, 1))


def test_prototypes_are_all_that_travels_between_models_of_different_architectures(tmp_path: Path) -> None:
    runtime = two_architectures(64)
    outcome = run(runtime, tmp_path / "out")
    assert not any(line["refused"] or line["untested"] for line in outcome.lines)
    down, counts = 10 * 64 * 4, 10 * 8
    assert {(line["down_bytes"], line["up_bytes"]) for line in outcome.lines} == {(3 * down, 3 * (down + counts))}
    for id, kept in outcome.client_states.items():
        assert kept.tensors.keys() == runtime.tensor_names(id)
    assert outcome.lines[-1]["global_acc"] is None


def test_representations_of_two_widths_are_refused_before_anything_is_trained() -> None:  # case 335
    told = "models: fedproto needs representations of equal width; tiny_cnn has 64, a model has 50"
    with pytest.raises(InputError, match=told):
        two_architectures(50)
