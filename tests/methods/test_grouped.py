"""Clients in groups: the true ones, those of CFL and IFCA, and what they have in common."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from kinfed.data import Federation, with_shift
from kinfed.errors import InputError
from kinfed.learning import LocalTraining
from kinfed.methods import METHODS, Message, make_method
from kinfed.methods.cfl import CFL, bipartition
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.fedper import FedPer
from kinfed.methods.grouped import GROUP, Grouped, of_group
from kinfed.methods.ifca import CHOSEN, IFCA
from kinfed.methods.oracle_groups import OracleGroups
from kinfed.models import HEAD, Tensors, build, reinitialised, select
from kinfed.streams import torch_stream
from tests.builders import build_runtime, close, federation, parabolas, run, same, small

GROUPS = (0, 1, 1, 0)
STEP = LocalTraining(lr=0.1, batch_size=1)
WRAPPABLE = [name for name, kind in METHODS.items() if Grouped.wraps(kind)]


def within_groups(
    fed: Federation,
    groups: Sequence[int],
    rounds: int = 3,
    common: int = 0,
) -> dict[int, Tensors]:
    """FedAvg in each group by an implementation of its own: torch and state dicts, with kinfed's data and streams.

    In the first ``common`` rounds, all clients are one group.
    """
    models = {group: build("tiny_cnn", (1, 8, 8), 10, 0).state_dict() for group in groups}
    for round, group in itertools.product(range(1, rounds + 1), [*models]):
        weights = models[group]
        members = [id for id in range(len(fed)) if round <= common or groups[id] == group]
        samples = {id: fed.train(id) for id in members}
        total: Tensors = {n: torch.zeros_like(t, dtype=torch.float64) for n, t in weights.items()}
        for id in members:
            model = build("tiny_cnn", (1, 8, 8), 10, 99)
            model.load_state_dict(weights)
            optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
            for rows in torch.randperm(len(samples[id]), generator=torch_stream(0, "batches 0", id, round)).split(16):
                optimiser.zero_grad()
                pixels = samples[id].inputs[rows].float() / 255
                nn.functional.cross_entropy(model(pixels), samples[id].labels[rows]).backward()  # type: ignore[index]
                optimiser.step()
            share = len(fed.train(id)) / sum(len(fed.train(member)) for member in members)
            for n, t in model.state_dict().items():
                total[n] += share * t.double()
        models[group] = {n: t.float() for n, t in total.items()}
    return models


# -- what all have in common ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrapper", "base"),
    [
        *itertools.product(["cfl", "ifca", "fedkin"], ["fedavg", "fedper", "scaffold"]),
        *(pytest.param("fedkin", base, marks=pytest.mark.slow) for base in WRAPPABLE),
    ],
)
def test_with_one_group_it_is_the_base_bit_for_bit(wrapper: str, base: str, tmp_path: Path) -> None:
    alone = run(build_runtime(base, rounds=2), tmp_path / "alone")
    fields = {"fedkin": {"first": 99}, "cfl": {"after": 99}, "ifca": {"k": 1}}[wrapper]
    method = replace(make_method(f"{wrapper}+{base}", fields), base=small(base))
    wrapped = run(build_runtime(method, rounds=2), tmp_path / "wrapped")
    assert wrapped.lines[-1]["groups"] == [0, 0, 0, 0]
    assert same(of_group(wrapped.state, 0), alone.state)
    personal = (line["client_acc"]["personal"] for line in (wrapped.lines[-1], alone.lines[-1]))
    assert len({*map(tuple, personal)}) == 1
    for told in ("train_loss", "down_bytes", "up_bytes"):
        assert wrapped.lines[-1][told] == alone.lines[-1][told]


@pytest.mark.parametrize("base", ["local", "central", "fedproto", "fedshibu", "fedbyol"])
def test_a_method_that_shares_no_common_part_is_refused(base: str) -> None:
    with pytest.raises(InputError, match=rf"'fedkin\+{base}' is not allowed; groups need a method with labels whose"):
        make_method(f"fedkin+{base}")


def test_a_method_that_wraps_nothing_is_refused() -> None:
    with pytest.raises(InputError, match=r"'fedprox\+fedavg' is not allowed; fedprox cannot be joined"):
        make_method("fedprox+fedavg")


def test_a_personal_head_stays_with_its_client(tmp_path: Path) -> None:
    outcome = run(build_runtime(OracleGroups(FedPer()), replace(federation(), groups=GROUPS)), tmp_path / "out")
    assert not any(name.startswith(HEAD) for group in (0, 1) for name in of_group(outcome.state, group).tensors)
    assert outcome.lines[-1]["client_acc"].keys() >= {"personal", "refreshed"}


# -- the true groups --------------------------------------------------------------------------------------------------


@pytest.mark.independent("oracle_groups")
def test_true_groups_are_federations_of_their_own(tmp_path: Path) -> None:
    fed = replace(federation(), groups=GROUPS)
    state = run(build_runtime("oracle_groups", fed, fine_tuning=None), tmp_path / "out").state
    for group, weights in within_groups(fed, GROUPS).items():
        assert close(of_group(state, group).tensors, weights)


def test_only_a_method_that_requires_them_is_told_the_true_groups() -> None:
    fed = replace(federation(), groups=GROUPS)
    assert build_runtime("oracle_groups", fed).server(1).true_groups == GROUPS
    assert build_runtime("fedkin", fed).server(1).true_groups == ()


def test_true_groups_need_a_planted_shift() -> None:
    runtime = build_runtime("fedavg")
    with pytest.raises(InputError, match="shift: this method is told the groups of a planted shift, and there are"):
        replace(runtime, method=OracleGroups())


# -- CFL --------------------------------------------------------------------------------------------------------------


@pytest.mark.independent("cfl")
def test_cfl_splits_where_the_mean_stands_still_and_the_clients_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss of client i is (w - m_i)²/2 and w⁰ = 0: the first mean update is 0, and that of each client is ±0.1."""
    centres = [-1.0, 1.0, -1.0, 1.0]
    method = CFL(eps1=1e-6, eps2=1e-3, after=0)
    outcome = run(parabolas(method, centres, monkeypatch, rounds=40, training=STEP), tmp_path / "out")
    assert outcome.lines[0]["groups"] == [0, 1, 0, 1]
    assert outcome.lines[-1]["groups"] == [0, 1, 0, 1]  # both clusters go on, but all of their clients agree
    for group, centre in ((0, -1.0), (1, 1.0)):
        weight = of_group(outcome.state, group).tensors["head.weight"]
        assert weight.item() == pytest.approx(centre * (1 - 0.9**40), abs=1e-5)


@pytest.mark.parametrize(
    "fields", [{"after": 1}, {"eps1": 0.0}, {"eps2": 10.0}, {"gamma": 1.0}], ids=lambda fields: next(iter(fields))
)
def test_cfl_does_not_split_if_a_condition_does_not_hold(
    fields: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = CFL(**({"eps1": 1e-6, "eps2": 1e-3, "after": 0} | fields))  # type: ignore[arg-type]
    outcome = run(parabolas(method, [-1.0, 1.0, -1.0, 1.0], monkeypatch, rounds=1, training=STEP), tmp_path / "out")
    assert outcome.lines[0]["groups"] == [0, 0, 0, 0]


def test_a_bipartition_has_the_least_largest_similarity_across_its_parts() -> None:
    """The paper's Algorithm 1, against all bipartitions of seven clients."""
    stream = torch_stream(0, "test")
    for _ in range(20):
        drawn = torch.rand(7, 7, generator=stream, dtype=torch.float64)
        similarity = ((drawn + drawn.T) / 2).fill_diagonal_(1.0)
        across = {
            parts: similarity[list(parts)][:, [i for i in range(7) if i not in parts]].max().item()
            for size in range(1, 7)
            for parts in itertools.combinations(range(7), size)
        }
        second = bipartition(similarity)
        assert similarity[second][:, ~second].max().item() == min(across.values())


# -- IFCA -------------------------------------------------------------------------------------------------------------


@pytest.mark.independent("ifca")
def test_an_ifca_client_trains_the_model_with_the_least_loss(tmp_path: Path) -> None:
    fed = federation()
    runtime = build_runtime(IFCA(k=3), fed)
    state = runtime.method.init(runtime.server(0))
    models = [build("tiny_cnn", (1, 8, 8), 10, 0)]
    models += [reinitialised(models[0], torch_stream(0, "ifca", group)) for group in (1, 2)]
    chosen = []
    for id in range(len(fed)):
        samples = fed.train(id)
        with torch.no_grad():
            losses = [functional.cross_entropy(m(samples.inputs.float() / 255), samples.labels) for m in models]  # type: ignore[arg-type]
        chosen.append(int(torch.stack(losses).argmin()))
    outcome = run(build_runtime(IFCA(k=3), fed, rounds=1), tmp_path / "out")
    assert outcome.lines[0]["groups"] == chosen
    assert outcome.lines[0]["down_bytes"] == 4 * 3 * sum(t.nbytes for t in of_group(state, 0).tensors.values())
    for group in {0, 1, 2} - {*chosen}:
        assert same(of_group(outcome.state, group), of_group(state, group))  # nobody trained it


def test_the_models_of_ifca_begin_with_different_weights() -> None:
    runtime = build_runtime(IFCA(k=2))
    state = runtime.method.init(runtime.server(0))
    first, second = (select(of_group(state, group).tensors, HEAD) for group in (0, 1))
    assert not torch.equal(first["head.weight"], second["head.weight"])


def test_a_choice_that_does_not_exist_is_left_out() -> None:
    runtime = build_runtime(IFCA(k=2))
    server = runtime.server(1)
    state = runtime.method.init(server)
    tensors = of_group(state, 0).tensors
    bad = [Message(tensors, {"samples": 10, **numbers}) for numbers in ({}, {CHOSEN: 2.0}, {CHOSEN: 0.5})]
    after = runtime.method.aggregate(server, state, dict(enumerate(bad)))
    assert after.tensors[GROUP].tolist() == [0, 0, 0, 0]
    assert same(after, state)


def test_groups_are_told_with_their_agreement(tmp_path: Path) -> None:
    fed = with_shift(federation(), "permute_labels:2", 0)
    (line, *_) = run(build_runtime("oracle_groups", fed, rounds=1), tmp_path / "oracle").lines
    assert (line["groups"], line["adjusted_rand_index"]) == ([*fed.groups], 1.0)
    (line, *_) = run(build_runtime("fedshibu", fed, rounds=1), tmp_path / "fedshibu").lines
    assert 0 <= line["pair_auc"] <= 1
    assert "groups" not in line
    (line, *_) = run(build_runtime(FedAvg(), fed, rounds=1), tmp_path / "fedavg").lines
    assert not {"groups", "adjusted_rand_index", "pair_auc"} & line.keys()
