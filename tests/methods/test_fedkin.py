"""FedKin: what the server learns of the clients, whom it asks, the groups that it forms, and who joins them later."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kinfed.data import load, make_federation, with_shift
from kinfed.learning import LocalTraining
from kinfed.methods import ClientState, Message, ServerState, fedkin
from kinfed.methods.fedkin import ASKING, COMMON, HOLD, LOSS, MOVE, PHASE, ROUNDS, SETTLED, SUM, FedKin
from kinfed.methods.fedper import FedPer
from kinfed.methods.grouped import GROUP, of_group
from kinfed.streams import torch_stream
from tests.builders import build_runtime, close, federation, run
from tests.methods.test_grouped import within_groups

GROUPS = [0, 1, 1, 0]


def held_back(id: int, count: int) -> list[int]:
    """The rows that a client holds back: a fifth, drawn once."""
    return torch.randperm(count, generator=torch_stream(0, "held out", id))[: math.ceil(0.2 * count)].tolist()


@pytest.mark.independent("fedkin")
def test_groups_go_on_alone_from_the_common_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FedAvg without what is held back; in round 2 the clients answer; then FedAvg in the groups on all samples."""
    monkeypatch.setattr(fedkin, "best_cut", lambda levels, costs: np.array(GROUPS))
    outcome = run(build_runtime(FedKin(first=1), rounds=4, fine_tuning=None), tmp_path / "out")
    assert [line["groups"] for line in outcome.lines] == [[0, 0, 0, 0], [1, 2, 2, 1], [1, 2, 2, 1], [1, 2, 2, 1]]
    fed = federation()

    def used(id: int, round: int) -> list[int]:
        rows = range(len(fed.train(id)))
        return [row for row in rows if round > 2 or row not in held_back(id, len(rows))]

    for group, weights in within_groups(fed, GROUPS, rounds=4, common=1, used=used).items():
        assert close(of_group(outcome.state, group + 1).tensors, weights)


def started(method: FedKin, rounds: int = 400) -> tuple[Any, ServerState]:
    """The server in round 1 of a long run, and the initial state."""
    runtime = build_runtime(method, rounds=rounds)
    return runtime.server(1), method.init(runtime.server(0))


def uploads_of(start: dict[str, Tensor], changes: list[Tensor], **numbers: list[float]) -> dict[int, Message]:
    """Uploads of clients 0, 1, …, which changed the weights in given ways."""
    sizes = [tensor.numel() for tensor in start.values()]
    return {
        id: Message(
            {n: t + part.view_as(t) for (n, t), part in zip(start.items(), change.split(sizes), strict=True)},
            {"samples": 10, "steps": 1, **{name.replace("_", "."): of[id] for name, of in numbers.items()}},
        )
        for id, change in enumerate(changes)
    }


def drawn(start: dict[str, Tensor], count: int) -> list[Tensor]:
    stream = torch_stream(0, "test")
    return [torch.randn(sum(t.numel() for t in start.values()), generator=stream) for _ in range(count)]


def test_the_server_sums_how_the_weights_of_the_body_change_apart_from_the_mean() -> None:
    method = FedKin(sketch=10**6)
    server, state = started(method)
    start = of_group(state, 0).tensors
    changes = drawn(start, 3)
    after = method.aggregate(server, state, uploads_of(start, changes))
    sizes = {name: tensor.numel() for name, tensor in start.items()}
    parts = [dict(zip(sizes, change.double().split([*sizes.values()]), strict=True)) for change in changes]
    expected = []
    for name in ("body.conv1.0.weight", "body.conv2.0.weight", "body.fc64.0.weight"):
        unit = torch.stack([part[name] / part[name].norm() for part in parts])
        apart = unit - unit.mean(dim=0)
        expected.append(apart / apart.square().sum(dim=1).mean().sqrt())
    assert torch.allclose(after.tensors[SUM][:3], torch.cat(expected, dim=1), atol=1e-3)
    assert after.tensors[ROUNDS].tolist() == [1, 1, 1, 0]
    shorter = method.aggregate(server, state, uploads_of(start, [changes[0] * 0.01, *changes[1:]]))
    assert torch.allclose(shorter.tensors[SUM], after.tensors[SUM], atol=1e-2)  # the length of an update tells nothing


def test_sketches_keep_the_products_of_updates() -> None:
    """The error of a product of unit vectors has a standard deviation of about 1/√d."""
    server, state = started(FedKin())
    start = of_group(state, 0).tensors
    changes = drawn(start, 12)
    changes += [change + 0.5 * changes[0] for change in changes[1:]]
    exact, hashed = (
        torch.stack(
            [
                method._hashed(server, method._units(server, of_group(state, 0), upload), torch.ones(3))
                for upload in uploads_of(start, changes).values()
            ]
        )
        for method in (FedKin(sketch=10**6), FedKin(sketch=1024))
    )
    errors = (hashed @ hashed.T - exact @ exact.T).flatten() / 3  # three tensors of length 1
    assert hashed.shape == (len(changes), 1024)
    assert errors.std() < 1.5 / math.sqrt(1024)
    assert errors.abs().max() < 5 / math.sqrt(1024)


def asked() -> tuple[FedKin, Any, ServerState, list[Tensor]]:
    """Clients 0 and 1 are alike, 2 is not, and 3 has yet to take part; they form groups in round 2."""
    method = FedKin(first=1)
    server, state = started(method, rounds=3)
    start = of_group(state, 0).tensors
    one, other = drawn(start, 2)
    changes = [one, one * 1.1, other]
    state = method.aggregate(server, state, uploads_of(start, changes))
    assert state.numbers[PHASE] == ASKING
    told = {"kin_loss_0": [2.0] * 3, "kin_loss_1": [1.0] * 3, "kin_loss_2": [2.0] * 3}
    uploads = uploads_of(of_group(state, 0).tensors, changes, **told)
    return method, server, method.aggregate(server, state, uploads), changes


def test_clients_that_do_better_apart_form_groups() -> None:
    *_, state, _ = asked()
    assert state.tensors[GROUP].tolist() == [1, 1, 2, 0]
    assert not any(name.startswith("leaf") for name in state.tensors)


def test_a_client_gets_a_model_for_each_level_only_when_it_is_asked() -> None:
    method = FedKin(first=1)
    server, state = started(method)
    start = of_group(state, 0).tensors
    assert method.download(state, 0).tensors.keys() == start.keys()
    changes = drawn(start, 4)
    uploads = uploads_of(start, changes)
    state = method.aggregate(server, state, uploads)
    message = method.download(state, 0)
    named = {name.partition(".")[0] for name in message.tensors}
    assert named == {"body", "head", *(name for name in named if name.startswith("level"))}
    assert close({n.removeprefix("level0."): t for n, t in message.tensors.items() if "level0" in n},
                 of_group(state, 0).tensors)  # the mean of all  # fmt: skip
    finest = max(name for name in named if name.startswith("level"))
    assert close({n.removeprefix(f"{finest}."): t for n, t in message.tensors.items() if f"{finest}." in n},
                 uploads[0].tensors)  # fmt: skip


def test_a_newcomer_joins_the_nearest_group_after_one_update_from_the_common_model() -> None:
    method, server, state, changes = asked()
    start = of_group(state, 0).tensors
    assert close(method.download(state, 3).tensors, start)
    (sent,) = uploads_of(start, [changes[2] * 0.9]).values()
    assert method.group_of_new(server, state, sent) == 2
    joined = method.aggregate(server, state, {3: sent})
    assert joined.tensors[GROUP].tolist() == [1, 1, 2, 2]
    assert close(of_group(joined, 2).tensors, of_group(state, 2).tensors)  # its first update has another start


def test_what_is_held_back_is_not_trained_on(tmp_path: Path) -> None:
    runtime = build_runtime(FedKin(), rounds=400)
    method, client = runtime.method, runtime.client(0, 1)
    message = method.download(method.init(runtime.server(0)), 0)
    upload, _ = method.update(client, message, ClientState())
    assert message.numbers[HOLD] == 1
    trained = len(client.train) - math.ceil(0.2 * len(client.train))
    assert upload.numbers["samples"] == len(client.train)  # its weight
    assert upload.numbers["steps"] == math.ceil(trained / 16)
    assert set(method._held(client).tolist()) == {*held_back(0, len(client.train))}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("own", "others", "expected"),
    [
        ([3.0] * 4, {"2": [1.0, 1.0], "1": [4.0, 4.0]}, {1: 2}),  # the first group's clients do better in the second
        ([3.0] * 4, {"2": [4.0, 4.0], "1": [4.0, 4.0]}, {}),
        ([3.0] * 4, {"2": [1.0, 1.0], "1": [1.0, 1.0]}, {1: 2}),  # of two that would join, one stays
        ([3.0] * 4, {"2": [1.0, 1.0], "1": [1.0, 1.0], "all": [2.0] * 4}, {1: 3, 2: 3}),  # all together again
    ],
    ids=["join", "stay", "not both", "everybody"],
)
def test_groups_join_where_their_clients_do_better(
    own: list[float], others: dict[str, list[float]], expected: dict[int, int]
) -> None:
    groups = torch.tensor([1, 1, 2, 2])
    uploads = {}
    for id in range(4):
        told = {f"{LOSS}.0": own[id]}
        for other, losses in others.items():
            if other == "all" or other != str(int(groups[id])):
                told[f"{LOSS}.group{other}"] = losses[id % len(losses)]
        uploads[id] = Message(numbers=told)
    assert fedkin._joining(groups, uploads) == expected


def test_a_move_to_a_group_that_is_not_there_is_left_out() -> None:
    method, server, state, changes = asked()
    start = of_group(state, 1).tensors
    state = ServerState(state.tensors, {**state.numbers, PHASE: ASKING})
    levels = {"kin.levels": torch.zeros(4, 1, dtype=torch.int64), "kin.costs": torch.zeros(4, 1, dtype=torch.float64)}
    state = ServerState({**state.tensors, **levels}, state.numbers)
    for to, expected in ((2.0, [2, 1, 2, 0]), (7.0, [1, 1, 2, 0]), (0.0, [1, 1, 2, 0]), (1.5, [1, 1, 2, 0])):
        (upload,) = uploads_of(start, [changes[0]]).values()
        moving = Message(upload.tensors, {**upload.numbers, MOVE: to, f"{LOSS}.0": 1.0})
        assert method.aggregate(server, state, {0: moving}).tensors[GROUP].tolist() == expected


def test_a_personal_head_is_no_part_of_what_is_compared() -> None:
    _, state = started(FedKin(FedPer(), sketch=10**6))
    assert state.tensors[SUM].shape == (4, 16 * 9 + 32 * 16 * 9 + 64 * 32 * 4)
    assert state.tensors[COMMON].shape == (16 * 9 + 32 * 16 * 9 + 64 * 32 * 4,)


def test_with_too_few_rounds_to_ask_it_is_fedavg() -> None:
    assert started(FedKin(first=3), rounds=4)[1].numbers[PHASE] == SETTLED
    assert started(FedKin(first=3), rounds=5)[1].numbers[PHASE] != SETTLED


@pytest.mark.slow
def test_clients_of_other_labels_are_told_apart_and_new_ones_find_their_kin(tmp_path: Path) -> None:
    plain = make_federation(load("digits"), "iid", clients=12, new_clients=4, seed=0)
    fed = with_shift(plain, "permute_labels:2", 0)
    training = LocalTraining(lr=0.1, batch_size=16)
    line = run(build_runtime("fedkin", fed, rounds=16, training=training), tmp_path / "out").lines[-1]
    assert line["adjusted_rand_index"] == 1
    kin = dict(zip(line["groups"], fed.groups[:8], strict=True))
    assert [kin[group] for group in line["new_groups"]] == [*fed.groups[8:]]


@pytest.mark.slow
def test_clients_without_groups_stay_together(tmp_path: Path) -> None:
    fed = make_federation(load("digits"), "iid", clients=8, seed=0)
    training = LocalTraining(lr=0.1, batch_size=16)
    line = run(build_runtime("fedkin", fed, rounds=16, training=training), tmp_path / "out").lines[-1]
    assert {*line["groups"]} == {0}


def test_a_group_that_is_divided_shares_no_number_with_groups_that_become_one() -> None:
    """Group 1 is cut in two in the same round in which groups 2 and 3 become one."""
    method = FedKin()
    server, state = started(method)
    groups, levels = torch.tensor([1, 1, 2, 3]), torch.tensor([[1, 1], [1, 2], [1, 1], [1, 1]])
    tensors = {**state.tensors, GROUP: groups, "kin.levels": levels}
    tensors["kin.costs"] = torch.tensor([[5.0, 1.0], [5.0, 1.0], [3.0, 3.0], [3.0, 3.0]], dtype=torch.float64)
    told = {f"{LOSS}.0": 3.0, f"{LOSS}.groupall": 1.0}
    uploads = {0: Message(), 1: Message(), 2: Message(numbers=told), 3: Message(numbers=told)}
    after = method.regrouped(server, ServerState(tensors, {**state.numbers, PHASE: ASKING}), uploads).tolist()
    assert after[2] == after[3]
    assert len({*after}) == 3
