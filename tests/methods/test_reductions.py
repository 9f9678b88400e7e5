"""Exact reductions and hand-computed rounds of each method (METHODS.md J)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kinfed.data import Federation, Partition
from kinfed.learning import SGD
from kinfed.methods import Memory, Message, fedshibu
from kinfed.methods.fedbabu import FedBABU
from kinfed.methods.fedshibu import FedSHIBU, row_weights
from kinfed.methods.local import Local
from kinfed.models import BODY, HEAD, Part, Tensors, build, select
from kinfed.streams import torch_stream
from tests.worlds import close, dataset, federation, run, same, workshop


def equal_sizes(clients: int = 4) -> Federation:
    data = dataset()
    cut = lambda rows: np.array_split(rows, clients)  # noqa: E731
    return Federation(data, Partition(cut(np.arange(24, 240)), cut(np.arange(120))), np.arange(24))


# -- FedAvg -----------------------------------------------------------------------------------------------------------


def test_fedavg_is_the_plain_loop_of_the_paper(tmp_path: Path) -> None:
    """An independent re-implementation: torch and state dicts; from kinfed only data, streams and initial weights."""
    fed, rounds = federation(), 3
    weights = build("tiny_cnn", (1, 8, 8), 10, 0).state_dict()
    for round in range(1, rounds + 1):
        total: Tensors = {n: torch.zeros_like(t, dtype=torch.float64) for n, t in weights.items()}
        for client in range(len(fed)):
            model = build("tiny_cnn", (1, 8, 8), 10, 99)
            model.load_state_dict(weights)
            optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
            samples = fed.train(client)
            shuffled = torch.randperm(len(samples), generator=torch_stream(0, "batches 0", client, round))
            for rows in shuffled.split(16):
                optimiser.zero_grad()
                pixels = samples.inputs[rows].float() / 255
                nn.functional.cross_entropy(model(pixels), samples.labels[rows]).backward()  # type: ignore[index]
                optimiser.step()
            for n, t in model.state_dict().items():
                total[n] += len(samples) / 216 * t.double()
        weights = {n: t.float() for n, t in total.items()}
    assert close(run(workshop("fedavg", fed), tmp_path / "out").state.tensors, weights)


def test_fedavg_with_one_client_is_central_training(tmp_path: Path) -> None:
    fed = federation(clients=1)
    fedavg, central = (run(workshop(name, fed), tmp_path / name) for name in ("fedavg", "central"))
    assert same(fedavg.state, central.state)
    sent = ("down_bytes", "up_bytes")
    assert [line | dict.fromkeys(sent, 0) for line in fedavg.lines] == central.lines  # centrally nothing travels


def test_fedavg_of_clients_with_the_same_data_is_one_of_them(tmp_path: Path) -> None:
    data = dataset(60, 20)
    twice = replace(data, train=data.train.take([*range(60)] * 2))
    fed = Federation(
        twice, Partition([np.arange(60), np.arange(60, 120)], [np.arange(10), np.arange(10, 20)]), np.arange(0)
    )
    alone = Federation(data, Partition([np.arange(60)], [np.arange(20)]), np.arange(0))
    sgd = SGD(lr=0.05, batch_size=60)  # whole batches, whose order does not matter
    both, one = (run(workshop("fedavg", f, sgd=sgd), tmp_path / n) for f, n in ((fed, "both"), (alone, "one")))
    assert close(both.state.tensors, one.state.tensors)


def test_the_global_models_own_test_accuracies_add_up_to_its_accuracy(tmp_path: Path) -> None:
    """Where the local test sets cover the pooled one, the weighted mean over clients is the pooled accuracy (B.1)."""
    line = run(workshop("fedavg", rounds=8), tmp_path / "out").lines[-1]
    assert line["global_acc"] > 0.1
    assert line["personal_acc_weighted"] == pytest.approx(line["global_acc"])


# -- local only, central ----------------------------------------------------------------------------------------------


def test_local_is_fedavg_with_one_client_for_each(tmp_path: Path) -> None:
    fed = federation(clients=1)
    local, fedavg = (run(workshop(name, fed), tmp_path / name) for name in ("local", "fedavg"))
    assert same(local.memories[0].tensors, fedavg.state.tensors)
    assert not local.state.tensors
    assert local.lines[-1]["client_acc"] == fedavg.lines[-1]["client_acc"]


def test_local_sends_nothing_and_trains_everybody_whatever_the_participation(tmp_path: Path) -> None:
    lines = run(workshop("local", participation=0.25), tmp_path / "out").lines
    assert {(line["down_bytes"], line["up_bytes"]) for line in lines} == {(0, 0)}
    assert all(line["clients"] == [0, 1, 2, 3] for line in lines)


def test_one_clients_local_model_does_not_depend_on_the_others(tmp_path: Path) -> None:
    fed = federation()
    cut = replace(fed.partition, train=[fed.partition.train[0], *(rows[:5] for rows in fed.partition.train[1:])])
    whole, others_cut = (
        run(workshop("local", f), tmp_path / n) for f, n in ((fed, "a"), (replace(fed, partition=cut), "b"))
    )
    assert same(whole.memories[0], others_cut.memories[0])


# -- FedBABU ----------------------------------------------------------------------------------------------------------


def test_fedbabu_never_moves_the_head_and_fine_tuning_moves_what_it_should(tmp_path: Path) -> None:  # case 76
    initial = build("tiny_cnn", (1, 8, 8), 10, 0).tensors()
    for part, moved in (("head", HEAD), ("body", BODY), ("full", HEAD + BODY)):
        sgd = SGD(lr=0.05, batch_size=16, weight_decay=0.1)
        shop = workshop(FedBABU(ft_part=part, ft_lr=0.1), rounds=5, sgd=sgd)  # type: ignore[arg-type]
        state = run(shop, tmp_path / part).state
        untouched = shop.method.global_model(shop.server(5), state)
        assert untouched is not None
        assert same(select(untouched, HEAD), select(initial, HEAD))
        assert not same(select(untouched, BODY), select(initial, BODY))
        tuned = shop.method.evaluated(shop.client(0, 5), shop.method.download(state, 0), Memory())["fine_tuned"]
        for each in (HEAD, BODY):
            assert same(select(tuned, each), select(untouched, each)) == (not set(each) <= set(moved))


def test_fedbabu_sends_the_body_alone_and_keeps_nothing(tmp_path: Path) -> None:
    outcome = run(workshop("fedbabu"), tmp_path / "out")
    body = sum(t.nbytes for t in build("tiny_cnn", (1, 8, 8), 10, 0).tensors(BODY).values())
    assert {(line["down_bytes"], line["up_bytes"]) for line in outcome.lines} == {(4 * body, 4 * body)}
    assert not any(memory.tensors for memory in outcome.memories.values())


def test_fine_tuning_is_due_after_the_last_round_only_and_is_not_written_back(tmp_path: Path) -> None:
    with_it, without = (run(workshop(FedBABU(ft_epochs=n)), tmp_path / str(n)) for n in (5, 0))
    assert ["fine_tuned" in line["client_acc"] for line in with_it.lines] == [False, False, True]
    assert "fine_tuned" not in without.lines[-1]["client_acc"]
    assert same(with_it.state, without.state)


# -- FedSHIBU ---------------------------------------------------------------------------------------------------------


def with_similarity(monkeypatch: pytest.MonkeyPatch, matrix: Tensor) -> None:
    monkeypatch.setattr(fedshibu, "similarity_matrix", lambda representations, **_: matrix)


@pytest.mark.parametrize("norm", ["minmax", "sum"])
def test_fedshibu_with_equal_similarities_is_fedbabu(
    norm: fedshibu.Norm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_similarity(monkeypatch, torch.ones(4, 4, dtype=torch.float64))
    fed = equal_sizes()
    shibu, babu = (run(workshop(m, fed), tmp_path / n) for m, n in ((FedSHIBU(norm=norm), "s"), (FedBABU(), "b")))
    for id in range(4):
        own = {n: rows[id] for n, rows in shibu.state.tensors.items() if n != "crsm"}
        assert close(own, babu.state.tensors)
    assert shibu.lines[-1]["client_acc"] == babu.lines[-1]["client_acc"]


@dataclass(frozen=True, kw_only=True)
class LocalBody(FedBABU, Local):
    """Each client trains a body of its own under the initial head, alone."""

    shared: ClassVar[Part] = ()
    kept: ClassVar[Part] = BODY


@pytest.mark.parametrize("norm", ["minmax", "sum"])
def test_fedshibu_with_similarity_to_oneself_alone_is_isolated_training(
    norm: fedshibu.Norm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_similarity(monkeypatch, torch.eye(4, dtype=torch.float64))
    shibu, alone = (run(workshop(m), tmp_path / n) for m, n in ((FedSHIBU(norm=norm), "s"), (LocalBody(), "l")))
    for id in range(4):
        own = {n: rows[id] for n, rows in shibu.state.tensors.items() if n != "crsm"}
        assert same(own, alone.memories[id].tensors)


def test_permuting_the_clients_of_fedshibu_permutes_the_mixtures_only() -> None:
    shop = workshop("fedshibu")
    method = shop.method
    state = method.init(shop.server(0))
    uploads = {id: shop.update(id, 1, method.download(state, id), Memory())[0] for id in range(4)}
    order = [2, 0, 3, 1]
    straight = method.aggregate(shop.server(1), state, uploads)
    permuted = method.aggregate(shop.server(1), state, {i: uploads[o] for i, o in enumerate(order)})
    assert close(
        {n: t[order] for n, t in straight.tensors.items() if n != "crsm"},
        {n: t for n, t in permuted.tensors.items() if n != "crsm"},
    )
    assert torch.allclose(straight.tensors["crsm"][order][:, order], permuted.tensors["crsm"])


def test_clients_that_took_no_part_keep_their_mixture_and_are_not_compared(tmp_path: Path) -> None:
    shop = workshop("fedshibu", participation=0.5, rounds=1)
    outcome = run(shop, tmp_path / "out")
    took_part = outcome.lines[0]["clients"]
    initial = build("tiny_cnn", (1, 8, 8), 10, 0).tensors(BODY)
    for id in range(4):
        assert same(shop.method.download(outcome.state, id).tensors, initial) == (id not in took_part)
    known = ~outcome.state.tensors["crsm"].isnan()
    assert known.nonzero().tolist() == [[a, b] for a in took_part for b in took_part]


def test_the_crsm_tells_two_groups_with_disjoint_classes_apart(tmp_path: Path) -> None:  # METHODS.md J.10
    data = dataset(600, 120)
    assert data.train.labels is not None
    assert data.test.labels is not None
    high = (data.train.labels >= 5).numpy()
    probe = np.arange(60)
    low_rows, high_rows = (np.flatnonzero(high == side)[np.flatnonzero(high == side) >= 60] for side in (False, True))
    cut = Partition([*np.array_split(low_rows, 2), *np.array_split(high_rows, 2)], np.array_split(np.arange(120), 4))
    for seed in (0, 1):
        shop = workshop(
            "fedshibu", Federation(data, cut, probe), rounds=8, seed=seed, sgd=SGD(lr=0.1, batch_size=16, epochs=2)
        )
        crsm = run(shop, tmp_path / str(seed)).state.tensors["crsm"]
        within = (crsm[0, 1] + crsm[2, 3]) / 2
        across = crsm[:2, 2:].mean()
        assert within > across


def test_rows_become_weights() -> None:
    similarity = torch.tensor([[1.0, 0.5, 0.0], [0.5, 1.0, 0.75], [0.0, 0.75, 1.0]], dtype=torch.float64)
    assert torch.allclose(row_weights(similarity, "sum")[0], torch.tensor([2 / 3, 1 / 3, 0], dtype=torch.float64))
    # min-max of the second row: 0, 1, 0.5
    assert torch.allclose(row_weights(similarity, "minmax")[1], torch.tensor([0, 2 / 3, 1 / 3], dtype=torch.float64))
    for norm in ("sum", "minmax"):
        assert torch.allclose(row_weights(similarity, norm).sum(dim=1), torch.ones(3, dtype=torch.float64))  # type: ignore[arg-type]


@pytest.mark.parametrize("norm", ["minmax", "sum"])
@pytest.mark.filterwarnings("ignore:.*constant")
def test_a_body_of_zeros_cannot_be_compared_and_stays_alone(norm: fedshibu.Norm) -> None:  # case 72
    shop = workshop(FedSHIBU(norm=norm))
    state = shop.method.init(shop.server(0))
    uploads = {id: shop.update(id, 1, shop.method.download(state, id), Memory())[0] for id in range(4)}
    zeros = {n: torch.zeros_like(t) for n, t in uploads[0].tensors.items()}
    bodies = shop.method.aggregate(shop.server(1), state, {**uploads, 0: Message(zeros, uploads[0].numbers)}).tensors
    for name, rows in bodies.items():
        if name != "crsm":
            assert rows.isfinite().all()
            assert not rows[0].any()
            assert all(rows[id].any() for id in (1, 2, 3))


@pytest.mark.parametrize("norm", ["minmax", "sum"])
def test_an_undefined_similarity_weighs_nothing(norm: fedshibu.Norm) -> None:  # case 72
    similarity = torch.tensor([[1.0, torch.nan, 0.5], [torch.nan] * 3, [0.5, torch.nan, 1.0]], dtype=torch.float64)
    weights = row_weights(similarity, norm)
    assert weights[0, 1] == weights[2, 1] == 0
    assert weights[1].tolist() == [0, 1, 0]  # whom nothing is known of keeps its own body
    assert torch.allclose(weights.sum(dim=1), torch.ones(3, dtype=torch.float64))


def test_one_client_alone_keeps_its_body() -> None:
    assert row_weights(torch.ones(1, 1), "minmax").tolist() == [[1.0]]
