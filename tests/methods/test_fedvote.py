"""FedVote: the vote, the transfer, and what travels (specification E; cases 88 to 91)."""

from __future__ import annotations

import inspect
import pickle
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch

from kinfed.data import Federation
from kinfed.engine import ClientRuntime
from kinfed.errors import InputError, RunFailed
from kinfed.experiment.config import Config
from kinfed.methods import METHODS, Message, Method, make_method, method_fields, name_and_fields
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.fedper import FedPer
from kinfed.methods.fedprox import FedProx
from kinfed.methods.fedshibu import FedSHIBU
from kinfed.methods.fedvote import Vote, ballots, fitting
from kinfed.methods.local import Local
from kinfed.methods.scaffold import SCAFFOLD
from kinfed.methods.voting import count, scores
from kinfed.methods.wrapper import DECLARED
from kinfed.models import ALL, BODY, HEAD, build, select
from tests.builders import Outcome, build_runtime, close, federation, pool, run, same, small

CARRIERS = [name for name, kind in METHODS.items() if Vote.wraps(kind)]


def outcome(path: Path, method: str = "fedvote", **given: Any) -> Outcome:
    own = {name: given.pop(name) for name in [*given] if name in Vote.__dataclass_fields__}
    return run(build_runtime(replace(small(method), **own), **given), path)


def test_before_the_vote_it_is_fedavg_and_the_vote_changes_the_next_round(tmp_path: Path) -> None:
    voted, plain = outcome(tmp_path / "a", rounds=3), run(build_runtime("fedavg", rounds=3), tmp_path / "b")
    told = [(line["train_loss"], line["global_acc"]) for line in voted.lines]
    expected = [(line["train_loss"], line["global_acc"]) for line in plain.lines]
    assert told[0] == expected[0]
    assert told[1][0] == expected[1][0]  # the clients of the round of the vote start from the same model
    assert told[1][1] != expected[1][1]
    assert told[2][0] != expected[2][0]


@pytest.mark.independent("fedvote")
def test_the_winners_body_replaces_the_servers_under_its_head(tmp_path: Path) -> None:
    voted = outcome(tmp_path / "a", rounds=2)
    plain = run(build_runtime("fedavg", rounds=2), tmp_path / "b")
    sources = pool(federation().dataset)
    cast = {int(id): choices for id, choices in voted.lines[1]["ballots"].items()}
    assert cast.keys() == {0, 1, 2, 3}
    winner = sources[count(cast, 3, 2).ranking[0]].model
    assert same(select(voted.state.tensors, BODY), winner.tensors(BODY))
    assert same(select(voted.state.tensors, HEAD), select(plain.state.tensors, HEAD))
    assert "ballots" not in voted.lines[0]


@pytest.mark.parametrize(("classifier", "head"), [("reinit", 0), ("source", 13)])
def test_the_classifier_can_start_anew_or_be_the_sources(classifier: str, head: int, tmp_path: Path) -> None:
    state = outcome(tmp_path / "a", rounds=2, source="13", classifier=classifier).state
    data = federation().dataset
    assert same(select(state.tensors, HEAD), build("tiny_cnn", data.shape, 10, head).tensors(HEAD))
    assert same(select(state.tensors, BODY), build("tiny_cnn", data.shape, 10, 13).tensors(BODY))


@pytest.mark.slow
@pytest.mark.parametrize("base", CARRIERS)
def test_any_method_with_a_body_at_the_server_carries_the_vote(base: str, tmp_path: Path) -> None:
    name = f"fedvote+{base}"
    voted, plain = outcome(tmp_path / "a", name, rounds=3), run(build_runtime(base, rounds=3), tmp_path / "b")
    assert [line["train_loss"] for line in voted.lines[:2]] == [line["train_loss"] for line in plain.lines[:2]]
    assert voted.lines[2]["train_loss"] != plain.lines[2]["train_loss"]
    assert len(voted.lines[1]["ballots"]) == len(voted.lines[1]["clients"])
    after = outcome(tmp_path / "c", name, rounds=2).state.tensors
    winner = {name: t for source in pool(federation().dataset) for name, t in source.model.tensors(BODY).items()}
    assert any(name in after for name in winner)


def test_the_vote_hides_no_field_of_the_method_that_carries_it() -> None:
    own = {field.name for field in fields(Vote)}
    for base in CARRIERS:
        assert not own & {field.name for field in fields(METHODS[base])}


def test_methods_without_a_body_at_the_server_cannot() -> None:
    for name in ("local", "lg_fedavg", "fedproto", "hetero_ssfl", "local_ssl", "fedvote"):
        with pytest.raises(InputError, match=f"'fedvote\\+{name}' is not allowed"):
            make_method(f"fedvote+{name}")
    assert "fedvote" not in CARRIERS


@pytest.mark.slow
def test_a_vote_that_is_never_held_is_its_base_method(tmp_path: Path) -> None:
    for base in ("fedavg", "scaffold", "fedshibu"):
        never = replace(small(f"fedvote+{base}" if base != "fedavg" else "fedvote"), round=9)  # type: ignore[call-arg]
        voted, plain = (
            run(build_runtime(never), tmp_path / f"{base}-a"),
            run(build_runtime(base), tmp_path / f"{base}-b"),
        )
        assert voted.lines == plain.lines
        assert same(voted.state, plain.state)


def test_a_vote_is_a_wrapper_that_pickles_and_has_the_declarations_of_its_base() -> None:
    for base in (FedPer(), FedProx(mu=1.0), SCAFFOLD(), FedSHIBU()):
        vote = Vote(base, round=3)
        assert pickle.loads(pickle.dumps(vote)) == vote
        assert vote.unwrapped is base
        assert [getattr(vote, name) for name in DECLARED] == [getattr(base, name) for name in DECLARED]
        assert vote.requires == replace(base.requires, source_models=True, rounds=3)
        own = {"space", "trial", "uses_only_means"}  # a wrapper aggregates in its own way
        assert {name for name in get_type_hints(Method) if not name.startswith("_")} == {*DECLARED, *own}
    assert Vote() == Vote(FedAvg())
    assert "FedVote around a method" in (inspect.getdoc(Vote) or "")
    with pytest.raises(InputError, match="base: Local\\(\\) is not allowed; the vote needs a method with a body"):
        Vote(Local())


@pytest.mark.parametrize("name", ["fedprox", "fedvote", "fedvote+fedprox", "fedvote+fedbyol", "fedkin", "ifca+fedper"])
def test_name_and_fields_of_a_method_make_it_again(name: str) -> None:
    method = small(name)
    told = name_and_fields(method, lambda kind: METHODS.name_of(kind) or "")
    assert told[0] == name
    assert [*told[1]] == [*method_fields(name)]
    assert make_method(*told) == method


def test_only_indices_travel_beside_what_the_base_method_sends() -> None:
    with_vote, without = build_runtime("fedvote", rounds=2), build_runtime("fedavg", rounds=2)
    state = with_vote.method.init(with_vote.server(0))
    for round in (1, 2):
        message = with_vote.method.download(state, 0)
        sent, kept = with_vote.update(0, round, message, Message())
        plain, _ = without.update(0, round, without.method.download(state, 0), Message())
        assert same(sent.tensors, plain.tensors)
        assert not kept.tensors
        beside = {name: number for name, number in sent.numbers.items() if name not in plain.numbers}
        assert {name: sent.numbers[name] for name in plain.numbers} == plain.numbers
        assert beside == {} if round == 1 else (len(beside) == 2 and {*beside.values()} <= {0, 1, 2})


def test_test_data_change_no_ballot(tmp_path: Path) -> None:  # case 88
    fed = federation()
    test = fed.dataset.test
    assert test.labels is not None
    other = replace(fed.dataset, test=replace(test, inputs=test.inputs.flip(0), labels=(test.labels + 1) % 10))
    changed = Federation(other, fed.partition, fed.public_rows)
    one, another = (outcome(tmp_path / str(i), fed=f, rounds=2) for i, f in enumerate((fed, changed)))
    assert one.lines[1]["ballots"] == another.lines[1]["ballots"]
    assert one.lines[1]["global_acc"] != another.lines[1]["global_acc"]


def test_a_source_that_a_client_has_trained_itself_wins(tmp_path: Path) -> None:
    """The federation's own model after the same rounds is among untrained ones, and wins by every ballot."""
    trained = run(build_runtime("fedavg", rounds=3, seed=0), tmp_path / "a").state.tensors
    sources = pool(federation().dataset)
    sources[1].model.load(trained)
    line = run(build_runtime(Vote(round=2, ballot=1), sources=sources, rounds=2), tmp_path / "b").lines[1]
    assert [*line["ballots"].values()] == [[1]] * 4


def test_nobody_voting_ends_the_run(tmp_path: Path) -> None:  # case 90
    sources = pool(federation().dataset)
    for source in sources:
        source.model.load({name: torch.zeros_like(t) for name, t in source.model.tensors(ALL).items()})
    with pytest.raises(RunFailed, match=r"no client voted in round 2, since sketched_cka is not defined"):
        run(build_runtime("fedvote", sources=sources), tmp_path / "a")
    assert len((tmp_path / "a" / "metrics.jsonl").read_text().splitlines()) == 1


def test_ballots_that_name_no_source_or_one_twice_are_left_out() -> None:
    told = {0: [1, 0], 1: [3, 0], 2: [0, 0], 3: [0.5], 4: [-1, 0], 5: []}
    sent = {
        id: Message({}, {f"choice.{place}": float(n) for place, n in enumerate(choices, start=1)})
        for id, choices in told.items()
    }
    assert ballots(sent, 3) == {0: [1, 0]}


def test_the_vote_waits_for_a_round_in_which_somebodys_work_can_be_used(tmp_path: Path) -> None:
    runtime = build_runtime("fedvote", rounds=4)

    class Failing(type(runtime.method)):  # type: ignore[misc]
        def update(self, client: Any, message: Any, state: Any) -> Any:
            if client.round == 2:
                raise RuntimeError("no")
            return super().update(client, message, state)

    lines = run(replace(runtime, method=Failing(round=2, ballot=2)), tmp_path / "a").lines
    assert [line["round"] for line in lines if "ballots" in line] == [3]


def test_the_sources_bytes_count_once_to_who_votes(tmp_path: Path) -> None:
    voted = outcome(tmp_path / "a", rounds=3, participation=0.5).lines
    plain = run(build_runtime("fedavg", rounds=3, participation=0.5), tmp_path / "b").lines
    runtime = build_runtime("fedvote")
    more = [one["down_bytes"] - other["down_bytes"] for one, other in zip(voted, plain, strict=True)]
    assert more == [0, 2 * 3 * sum(t.nbytes for t in runtime.sources[0].model.tensors().values()), 0]
    assert [line["up_bytes"] for line in voted] == [line["up_bytes"] for line in plain]


def checked(**given: Any) -> ClientRuntime:
    sources = given.pop("sources", None)
    return build_runtime(replace(small("fedvote"), **given), sources=sources)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"sources": ()}, "sources: there must be at least one source model"),
        ({"source": "14"}, "source: '14' is not among the sources; allowed: 11, 12, 13"),
        ({"taps": "conv9"}, "taps: 'conv9' is not a tap point of the model; it has conv1, conv2, fc64, body, head"),
        ({"taps": "conv1=fc1"}, "taps: 'fc1' is not a tap point of 11; it has conv1, conv2, fc64, body, head"),
        ({"taps": "conv1="}, "taps: 'conv1=' must have the form"),
        ({"measure": "class_mean"}, "measure: 'class_mean' is not allowed; it needs labels"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_done(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        checked(**given)


def test_a_source_that_fits_no_layer_is_refused_and_one_that_fits_some_gives_those(tmp_path: Path) -> None:
    data = federation().dataset
    with pytest.raises(InputError, match="sources: '5' has no layer that fits the model"):
        checked(sources=pool(data, (5,), "mlp"))
    model, (wide,) = build("tiny_cnn", data.shape, 10, 0), pool(data, (5,))
    wide.model.body.fc64 = torch.nn.Linear(128, 32)
    wide.model.head = torch.nn.Linear(32, 10)
    assert {name.rpartition(".")[0] for name in fitting(wide, model)} == {"body.conv1.0", "body.conv2.0"}
    checked(sources=(wide,))
    with pytest.raises(
        InputError,
        match="classifier: 'source' is not allowed; the classifier of '5' does not fit, with 10 outputs and 32",
    ):
        checked(sources=(wide,), classifier="source")
    with pytest.raises(
        InputError, match="measure: emd needs equal numbers of features; body of the model has 64, but body"
    ):
        checked(sources=(wide,), measure="emd")
    checked(sources=(wide,), measure="emd", taps="conv2")


def test_the_config_asks_for_sources_and_for_rounds_enough(tmp_path: Path) -> None:  # case 90
    with pytest.raises(InputError, match="sources: fedvote needs a folder of source models"):
        Config.checked({"methods": ("fedvote",)})
    with pytest.raises(InputError, match=r"sources: '/nowhere' is no folder"):
        Config.checked({"methods": ("fedvote",), "sources": "/nowhere"})
    given = {"methods": ("fedvote+fedprox",), "sources": str(tmp_path), "rounds": 4}
    with pytest.raises(InputError, match=r"rounds: 4 is too few; fedvote\+fedprox needs 5 or more"):
        Config.checked(given)
    config = Config.checked({**given, "settings": {"fedvote+fedprox": {"round": "3", "mu": "0.5"}}})
    assert (config.settings["fedvote+fedprox"]["round"], config.settings["fedvote+fedprox"]["mu"]) == (3, 0.5)
    with pytest.raises(InputError, match=r"method: .fedpro. is not known; .*did you mean fedprox"):
        Config.checked({"methods": ("fedvote+fedpro",)})


def test_the_same_images_are_drawn_where_a_client_has_more_than_are_looked_at(tmp_path: Path) -> None:
    one, again = (outcome(tmp_path / which, rounds=2, images=8) for which in "ab")
    assert one.lines == again.lines


def test_close_to_a_hand_computed_score() -> None:
    """What a client votes by is its own model after local training, not the global one (SFTL-14)."""
    runtime = build_runtime(replace(small("fedvote"), round=1, measure="cka"), rounds=1)
    message = runtime.method.download(runtime.method.init(runtime.server(0)), 2)
    sent, _ = runtime.update(2, 1, message, Message())
    client = runtime.client(2, 1)
    client.model.load(sent.tensors)
    told = scores(runtime.method.seen(client), "cka")  # type: ignore[attr-defined]
    assert int(sent.numbers["choice.1"]) == int(told.argmax())
    assert close(client.model.tensors(), sent.tensors)
