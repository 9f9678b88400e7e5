"""FedKin: what the server learns of the clients, whom it asks, the groups that it forms, and who joins them later."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kinfed.data import load, make_federation, with_shift
from kinfed.learning import LocalTraining
from kinfed.methods import Client, ClientState, Message, ServerState, fedkin, kin_questions
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.fedkin import (
    ANSWERS,
    ASKING,
    COMMON,
    GATHERING,
    LOOKS,
    NOW,
    PHASE,
    POINTS,
    ROUNDS,
    SETTLED,
    SINCE,
    WATCH,
    FedKin,
)
from kinfed.methods.fedper import FedPer
from kinfed.methods.grouped import GROUP, of_group
from kinfed.methods.kin_questions import APART, ERROR, LOSS, Candidate, question, read_answer
from kinfed.methods.scaffold import SCAFFOLD
from kinfed.models import Tensors, under
from kinfed.streams import torch_stream
from tests.builders import build_runtime, close, federation, run
from tests.methods.test_grouped import within_groups

GROUPS = [0, 1, 1, 0]


@pytest.mark.independent("fedkin")
def test_groups_go_on_alone_from_the_common_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In round 2 the clients answer: FedAvg before, FedAvg in the groups after that."""
    monkeypatch.setattr(fedkin, "best_cut", lambda *told: np.array(GROUPS))
    outcome = run(build_runtime(FedKin(first=1), rounds=4, fine_tuning=None), tmp_path / "out")
    assert [line["groups"] for line in outcome.lines] == [[0, 0, 0, 0], [1, 2, 2, 1], [1, 2, 2, 1], [1, 2, 2, 1]]
    for group, weights in within_groups(federation(), GROUPS, rounds=4, common=1).items():
        assert close(of_group(outcome.state, group + 1).tensors, weights)


def started(method: FedKin, rounds: int = 400) -> tuple[Any, ServerState]:
    """The server in round 1 of a long run, and the initial state."""
    runtime = build_runtime(method, rounds=rounds)
    return runtime.server(1), method.init(runtime.server(0))


def answers(losses: list[float | None], apart: float = 1.0) -> dict[str, float]:
    """What a client tells at some levels."""
    known = {level: loss for level, loss in enumerate(losses) if loss is not None}
    told = {LOSS: known, APART: dict.fromkeys(known, apart), ERROR: dict.fromkeys(known, 0.01)}
    return {f"{prefix}{level}": value for prefix, of in told.items() for level, value in of.items()}


def uploads_of(start: dict[str, Tensor], changes: list[Tensor], **numbers: float) -> dict[int, Message]:
    """Uploads of clients 0, 1, …, which changed the weights in given ways."""
    sizes = [tensor.numel() for tensor in start.values()]
    return {
        id: Message(
            {n: t + part.view_as(t) for (n, t), part in zip(start.items(), change.split(sizes), strict=True)},
            {"samples": 10, "steps": 1, **numbers},
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
    assert torch.allclose(after.tensors[POINTS][:3], torch.cat(expected, dim=1), atol=1e-3)
    assert after.tensors[ROUNDS].tolist() == [1, 1, 1, 0]
    shorter = method.aggregate(server, state, uploads_of(start, [changes[0] * 0.01, *changes[1:]]))
    assert torch.allclose(shorter.tensors[POINTS], after.tensors[POINTS], atol=1e-2)  # lengths tell nothing


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
    server = replace(server, round=2)  # of three: there is no time for another question
    uploads = uploads_of(of_group(state, 0).tensors, changes, **answers([2.0, 1.0, 2.0]))
    return method, server, method.aggregate(server, state, uploads), changes


def test_clients_that_do_better_apart_form_groups() -> None:
    *_, state, _ = asked()
    assert state.tensors[GROUP].tolist() == [1, 1, 2, 0]


def test_a_client_gets_a_model_for_each_level_only_when_it_is_asked() -> None:
    method = FedKin(first=1)
    server, state = started(method)
    start = of_group(state, 0).tensors
    assert method.download(state, 0).tensors.keys() == start.keys()
    changes = drawn(start, 4)
    uploads = uploads_of(start, changes)
    state = method.aggregate(server, state, uploads)
    message = method.download(state, 0)
    asked = {int(name.removeprefix("kin.share.")) for name in message.numbers if "kin.share" in name}
    assert close(under("kin.own0.", message.tensors), of_group(state, 0).tensors)  # the mean of all
    assert message.numbers["kin.share.0"] == 1 / 4
    alone = max(asked)  # nothing is left of a cluster of one client without itself: where all began
    assert not under(f"kin.own{alone}.", message.tensors)
    assert message.numbers[f"kin.share.{alone}"] == 0
    assert close(under("kin.start.", message.tensors), start)
    assert len(under("kin.rest1.", message.tensors)) == len(start)  # of the other two or three
    assert not under("kin.rest0.", message.tensors)
    answered = {**state.tensors, ANSWERS: torch.ones_like(state.tensors[ANSWERS])}
    again = method.download(ServerState(answered, state.numbers), 0)
    assert again.tensors.keys() == start.keys()  # it has told already


def test_a_client_is_asked_about_those_from_whom_its_cluster_is_divided() -> None:
    method = FedKin(first=1)
    server, state = started(method)
    start = of_group(state, 0).tensors
    one, other = drawn(start, 2)
    uploads = uploads_of(start, [one, one * 1.1, other, other * 1.1])
    state = method.aggregate(server, state, uploads)
    message = method.download(state, 0)
    for which, ids in (("own", (0, 1)), ("rest", (2, 3))):
        mean = {n: (uploads[ids[0]].tensors[n] + uploads[ids[1]].tensors[n]) / 2 for n in start}
        assert close(under(f"kin.{which}1.", message.tensors), mean)


def test_a_newcomer_joins_the_nearest_group_after_one_update_from_the_common_model() -> None:
    method, server, state, changes = asked()
    start = of_group(state, 0).tensors
    assert close(method.download(state, 3).tensors, start)
    (sent,) = uploads_of(start, [changes[2] * 0.9]).values()
    assert method.group_of_new(server, state, sent) == 2
    joined = method.aggregate(server, state, {3: sent})
    assert joined.tensors[GROUP].tolist() == [1, 1, 2, 2]
    assert close(of_group(joined, 2).tensors, of_group(state, 2).tensors)  # its first update has another start


def asked_of(client: Client, start: Tensors, candidates: dict[int, Candidate], state: ClientState) -> dict[str, float]:
    message = question(start, candidates, round=1)
    return kin_questions.answers(FedAvg(), client, Message({**message.tensors, **start}, message.numbers), state)


def test_a_client_takes_its_own_part_out_of_a_mean_before_it_tests_it() -> None:
    """What it tells is the loss of the mean of the others; if there are none, that of where all began."""
    client = build_runtime("fedavg").client(0, 1)
    start = client.model.tensors()
    stream = torch_stream(0, "test")
    own, one, other = (
        {n: t + 0.1 * torch.randn(t.shape, generator=stream) for n, t in start.items()} for _ in range(3)
    )
    mean = {n: 0.5 * own[n] + 0.2 * one[n] + 0.3 * other[n] for n in start}
    others = {n: 0.4 * one[n] + 0.6 * other[n] for n in start}
    state = ClientState({f"kin.trained.{name}": tensor for name, tensor in own.items()}, {"kin.round": 1})
    asked = {0: Candidate(mean, 0.5, None), 1: Candidate(others, 0.0, one), 2: Candidate(None, 0.0, start)}
    told = asked_of(client, start, asked, state)
    assert told[f"{LOSS}0"] == pytest.approx(told[f"{LOSS}1"], rel=1e-4)
    assert told[f"{APART}2"] == told[f"{ERROR}2"] == 0
    (of_one,) = (
        loss for name, loss in asked_of(client, start, {0: Candidate(one, 0.0, None)}, state).items() if LOSS in name
    )
    assert told[f"{APART}1"] == pytest.approx((of_one - told[f"{LOSS}1"]) / len(client.train))
    assert close(client.model.tensors(), start)
    assert not asked_of(client, start, asked, ClientState())
    assert not asked_of(client, start, asked, ClientState(state.tensors, {"kin.round": 2}))  # it has trained since


def test_what_a_model_believes_of_the_frequencies_of_classes_is_left_out() -> None:
    """Another bias of the head changes the loss as it is, but not what a client tells."""
    client = build_runtime("fedavg").client(0, 1)
    start = client.model.tensors()
    other = {**start, "head.bias": start["head.bias"] + torch.linspace(0, 0.2, 10)}
    told = asked_of(client, start, {0: Candidate(start, 0.0, None), 1: Candidate(other, 0.0, start)}, ClientState())
    assert told[f"{LOSS}0"] == pytest.approx(told[f"{LOSS}1"], rel=1e-3)
    assert abs(told[f"{APART}1"]) < 1e-3


def test_a_client_with_a_loss_that_is_not_finite_tells_nothing() -> None:
    client = build_runtime("fedavg").client(0, 1)
    start = client.model.tensors()
    broken = {name: tensor * torch.nan for name, tensor in start.items()}
    assert not asked_of(client, start, {0: Candidate(start, 0.0, None), 1: Candidate(broken, 0.0, None)}, ClientState())


def test_a_level_without_a_model_has_the_loss_of_the_level_before_and_no_preference() -> None:
    told = read_answer(answers([3.0, None, 1.0, None]), levels=4)
    assert told is not None
    assert told.tolist() == [[3, 3, 1, 1], [1, 0, 1, 0], [0.01, 0, 0.01, 0]]


@pytest.mark.parametrize("name", [f"{LOSS}0", f"{ERROR}2"])
def test_an_answer_with_a_missing_or_negative_number_is_none(name: str) -> None:
    whole = answers([3.0, None, 1.0])
    assert read_answer({**whole, name: -1.0}, levels=3) is None
    assert read_answer({of: number for of, number in whole.items() if of != name}, levels=3) is None


def test_a_client_keeps_what_it_trained_only_while_it_may_be_asked() -> None:
    runtime = build_runtime(FedKin(SCAFFOLD()), rounds=400)
    method, client = runtime.method, runtime.client(0, 1)
    message = method.download(method.init(runtime.server(0)), 0)
    upload, state = method.update(client, message, ClientState())
    trained = {name: tensor for name, tensor in state.tensors.items() if name.startswith("kin.trained.")}
    change = {name: upload.tensors[f"change.{name}"] for name, _ in client.model.named_parameters()}
    assert close({f"kin.trained.{n}": message.tensors[n] + of for n, of in change.items()}, trained)
    _, state = method.update(client, Message(message.tensors, {**message.numbers, WATCH: 0.0}), state)
    assert not any(name.startswith("kin.") for name in [*state.tensors, *state.numbers])


def test_a_personal_head_is_no_part_of_what_is_compared() -> None:
    _, state = started(FedKin(FedPer(), sketch=10**6))
    assert state.tensors[POINTS].shape == (4, 16 * 9 + 32 * 16 * 9 + 64 * 32 * 4)
    assert state.tensors[COMMON].shape == (16 * 9 + 32 * 16 * 9 + 64 * 32 * 4,)


def test_with_too_few_rounds_to_ask_it_is_fedavg() -> None:
    assert started(FedKin(first=3), rounds=4)[1].numbers[PHASE] == SETTLED
    assert started(FedKin(first=3), rounds=5)[1].numbers[PHASE] != SETTLED


@pytest.mark.slow
def test_clients_of_other_labels_are_told_apart_and_new_ones_find_their_kin(tmp_path: Path) -> None:
    plain = make_federation(load("digits"), "iid", clients=12, new_clients=4, seed=0)
    fed = with_shift(plain, "permute_labels:2", 0)
    training = LocalTraining(lr=0.1, batch_size=16)
    line = run(build_runtime(FedKin(first=4), fed, rounds=16, training=training), tmp_path / "out").lines[-1]
    assert line["adjusted_rand_index"] == 1
    kin = dict(zip(line["groups"], fed.groups[:8], strict=True))
    assert [kin[group] for group in line["new_groups"]] == [*fed.groups[8:]]


@pytest.mark.slow
def test_clients_without_groups_stay_together(tmp_path: Path) -> None:
    fed = make_federation(load("digits"), "iid", clients=8, seed=0)
    training = LocalTraining(lr=0.1, batch_size=16)
    line = run(build_runtime(FedKin(first=4), fed, rounds=16, training=training), tmp_path / "out").lines[-1]
    assert {*line["groups"]} == {0}


def test_a_client_that_comes_while_the_others_are_asked_joins_a_group_when_they_are_divided() -> None:
    """The last common model stays what it was: no client that is new can overwrite it."""
    method = FedKin(first=1)
    server, state = started(method, rounds=3)
    one, other = drawn(of_group(state, 0).tensors, 2)
    state = method.aggregate(server, state, uploads_of(of_group(state, 0).tensors, [one, one * 1.1, other]))
    start = of_group(state, 0).tensors
    uploads = uploads_of(start, [one, one * 1.1, other, other * 0.9], **answers([2.0, 1.0, 1.0]))
    after = method.aggregate(replace(server, round=2), state, uploads)
    assert after.tensors[GROUP].tolist() == [1, 1, 2, 2]
    assert close(of_group(after, 0).tensors, start)
    assert close(method.greeting(after).tensors, start)


def test_a_new_client_trains_on_the_greeting() -> None:
    runtime = build_runtime(FedKin(), rounds=400)
    method = runtime.method
    greeting = method.greeting(method.init(runtime.server(0)))
    assert greeting is not None
    upload, state = method.update(runtime.client(0, 1), greeting, ClientState())
    assert upload.tensors
    assert not state.tensors


def test_one_update_in_a_round_is_no_reason_to_ask() -> None:
    method = FedKin(first=1)
    server, state = started(method)
    start = of_group(state, 0).tensors
    state = method.aggregate(server, state, uploads_of(start, drawn(start, 1)))
    assert state.numbers[PHASE] == GATHERING


@pytest.mark.parametrize(
    ("losses", "apart", "until"),
    [
        ([1.0, 2.0, 2.0], -1.0, 2),  # nobody does better in smaller clusters, nor prefers them
        ([2.0, 1.0, 1.0], 0.01, 6),  # perhaps: the clients are asked five times
        ([2.0, 1.0, 1.0], 1.0, 3),  # two questions in a row find the same groups
    ],
    ids=["no", "perhaps", "yes"],
)
def test_clients_are_asked_again_while_they_may_do_better_apart(
    losses: list[float | None], apart: float, until: int
) -> None:
    method = FedKin(first=1)
    server, state = started(method)
    for round in range(1, 8):
        start = of_group(state, int(state.tensors[GROUP][0])).tensors
        one, other = drawn(start, 2)
        told = answers(losses, apart) if state.numbers[PHASE] == ASKING else {}
        state = method.aggregate(server, state, uploads_of(start, [one, one, other, other], **told))
        assert state.numbers[PHASE] == (ASKING if round < until else SETTLED)
    assert bool(state.tensors[GROUP].any()) == (apart == 1.0)


def test_groups_that_no_two_questions_agree_on_are_formed_after_the_last_question_alone() -> None:
    """Clients 1 and 2 change places in every round."""
    method = FedKin(first=1)
    server, state = started(method)
    for round in range(1, 7):
        start = of_group(state, 0).tensors
        one, other = drawn(start, 2)
        changes = [one, *([one, other] if round % 2 else [other, one]), other]
        told = answers([2.0, 1.0, 1.0]) if state.numbers[PHASE] == ASKING else {}
        state = replace(state, tensors={**state.tensors, ROUNDS: state.tensors[ROUNDS] * 0})  # this round's alone
        state = method.aggregate(server, state, uploads_of(start, changes, **told))
        assert bool(state.tensors[GROUP].any()) == (round == 6)


def test_the_groups_count_that_agreed_best_if_no_two_questions_find_the_same_ones() -> None:
    """Five questions; the third one agrees with the second but for one client, and the fifth one finds nothing."""
    runtime = build_runtime(FedKin(first=1), federation(clients=12), rounds=400)
    method, server = runtime.method, runtime.server(1)
    state = method.init(runtime.server(0))
    places = [[0, 1] * 6, [0, 0, 1, 1] * 3, [0] * 6 + [1] * 6, [0] * 5 + [1] * 7, [0, 1, 1, 0] * 3, [0, 1] * 6]
    for round, sides in enumerate(places, start=1):
        start = of_group(state, 0).tensors
        of_sides = drawn(start, 2)
        asks = state.numbers[PHASE] == ASKING
        told = answers([2.0, 1.0, 1.0, 1.0, 1.0], 1.0 if round < 6 else -1.0) if asks else {}
        state = replace(state, tensors={**state.tensors, ROUNDS: state.tensors[ROUNDS] * 0})  # this round's alone
        state = method.aggregate(server, state, uploads_of(start, [of_sides[side] for side in sides], **told))
        assert bool(state.tensors[GROUP].any()) == (round == 6)
    assert state.tensors[GROUP].tolist() == [1] * 5 + [2] * 7


def looked(prefers: float, also: float = 1.0) -> list[int]:
    """Groups after the first looks of clients 0 to 2 and 3 to 5, where client 2 prefers its group by some value."""
    method = FedKin(first=1)
    groups = torch.tensor([1, 1, 1, 2, 2, 2])
    runtime = build_runtime(method, federation(clients=6), rounds=400)
    server, state = runtime.server(5), method.init(runtime.server(0))
    start = of_group(state, 0)
    models = {f"group{g}.{n}": tensor for g in (1, 2) for n, tensor in start.tensors.items()}
    numbers = {**state.numbers, PHASE: SETTLED, NOW: 4.0}
    state = ServerState({**state.tensors, **models, GROUP: groups, SINCE: torch.full((6,), 3)}, numbers)
    message = method.download(state, 2)
    assert len(under("kin.rest1.", message.tensors)) == len(start.tensors)  # the other group's model
    assert not under("kin.rest0.", message.tensors)
    uploads = uploads_of(start.tensors, drawn(start.tensors, 6))
    told = {id: also if id < 3 else 1.0 for id in range(6)} | {2: prefers}
    uploads = {
        id: replace(
            upload,
            numbers={
                **upload.numbers,
                **{f"{LOSS}{of}": 1.0 for of in (0, 1)},
                **{f"{APART}{of}": told[id] if of != groups[id] - 1 else 0.0 for of in (0, 1)},
                **{f"{ERROR}{of}": 0.01 if of != groups[id] - 1 else 0.0 for of in (0, 1)},
            },
        )
        for id, upload in uploads.items()
    }
    after = method.aggregate(server, state, uploads)
    assert after.tensors[LOOKS].tolist() == [1] * 6
    assert after.tensors[SINCE].tolist() == [5] * 6
    return [int(group) for group in after.tensors[GROUP]]


def test_a_client_in_a_wrong_group_changes_to_the_one_that_it_prefers() -> None:
    assert looked(-0.5) == [1, 1, 2, 2, 2, 2]
    assert looked(0.5) == [1, 1, 1, 2, 2, 2]
    assert looked(-1e300) == [1, 1, 2, 2, 2, 2]  # a liar moves nobody but itself
    assert looked(-0.05) == [1, 1, 1, 2, 2, 2]  # within its standard error of 0.1
    assert looked(-0.5, also=-0.4) == [1, 1, 1, 2, 2, 2]  # all of its group prefer the other model: a better one


def test_numbers_beyond_belief_and_answers_that_nobody_asked_for_are_cut() -> None:
    """Three clients are asked; the fourth one is new."""
    method = FedKin(first=1)
    server, state = started(method, rounds=3)
    start = of_group(state, 0).tensors
    changes = drawn(start, 4)
    state = method.aggregate(server, state, uploads_of(start, changes[:3]))
    sent = uploads_of(start, changes, **answers([1e300, 0.0, 0.0], 1e300))
    told = fedkin._with_answers(state, sent).tensors[ANSWERS]
    assert told[0].abs().max() <= 10 * 10  # ten samples
    assert told[0, 1].max() <= 10
    assert told[3, 0, 0] == -1  # it has no part in the tree


def test_a_personal_head_is_trained_anew_for_each_body_on_samples_other_than_those_it_is_tested_on() -> None:
    """With labels by chance, no head can do better than chance on samples that it has not seen."""
    runtime = build_runtime("fedper")
    client = runtime.client(0, 1)
    labels = torch.randint(10, (len(client.train),), generator=torch_stream(0, "test"))
    client = replace(client, train=replace(client.train, labels=labels), training=LocalTraining(lr=0.5, batch_size=4))
    start = client.model.tensors()
    body = {name: tensor for name, tensor in start.items() if name.startswith("body.")}
    message = question(body, {0: Candidate(body, 0.0, None)}, round=1)
    sent = Message({**message.tensors, **body}, message.numbers)
    told = kin_questions.answers(FedPer(), client, sent, ClientState())
    assert told[f"{LOSS}0"] / len(labels) > math.log(10) * 0.95
    assert close(client.model.tensors(), start)
