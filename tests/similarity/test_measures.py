"""The registry of measures: each is as it says of itself, and one from elsewhere is as good as those built in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kinfed.similarity as s
from kinfed.errors import InputError
from kinfed.methods.fedcka import FedCKA
from kinfed.methods.fedvote import Vote
from kinfed.methods.voting import Seen, ballot, scores
from kinfed.similarity import MEASURES, Measure
from tests.builders import build_runtime, installed_package, run
from tests.outside.rv2 import rv2

RV2 = "tests.outside.rv2:rv2"
pytestmark = pytest.mark.filterwarnings("ignore::kinfed.similarity.BiasedSimilarityWarning")


def sides(*widths: int, n: int = 30, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    base = rng.standard_normal((n, 3))
    return [base @ rng.standard_normal((3, p)) + 0.3 * rng.standard_normal((n, p)) for p in widths]


# -- what is built in -------------------------------------------------------------------------------------------------


def taken(measure: Measure, x: Any, y: Any) -> bool:
    try:
        measure(x, y)
    except InputError:
        return False
    return True


@pytest.mark.parametrize("name", MEASURES)
def test_a_measure_is_as_it_says(name: str) -> None:
    measure = MEASURES[name]
    x, y, wide = sides(4, 4, 6)
    assert measure.name == name
    assert taken(measure, x, y[:-1]) is not measure.paired
    assert taken(measure, x, wide) is not measure.same_width
    live = torch.tensor(x, requires_grad=True)
    if measure.differentiable:
        measure(live, torch.from_numpy(y)).backward()
        assert live.grad is not None
        assert live.grad.abs().sum() > 0
    else:
        with pytest.raises(InputError, match="has no gradient"):
            measure(live, y)
    assert (measure(x, y) == pytest.approx(measure(y, x), abs=1e-12)) is measure.symmetric
    few = measure.least_examples
    assert few == 1 or (taken(measure, x[:few], y[:few]) and not taken(measure, x[: few - 1], y[: few - 1]))


@pytest.mark.parametrize("name", MEASURES)
def test_its_matrix_is_that_of_the_pairs(name: str) -> None:
    measure, xs = MEASURES[name], sides(4, 4, 4)
    expected = np.array([[measure(x, y) for y in xs] for x in xs])
    for given in (name, measure):
        assert s.similarity_matrix(xs, given) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("name", [name for name, measure in MEASURES.items() if measure.of_grams])
def test_what_can_be_computed_from_grams_is(name: str) -> None:
    measure, xs = MEASURES[name], sides(4, 6)
    grams = [s.Gram.of_features(torch.from_numpy(x), **measure.options) for x in xs]
    assert s.similarity_matrix(grams, measure)[0, 1].item() == pytest.approx(measure(*xs), abs=1e-12)


@pytest.mark.parametrize("name", [name for name, measure in MEASURES.items() if measure.counterpart])
def test_unrelated_sides_are_not_alike_by_the_counterpart(name: str) -> None:
    x, y = (np.random.default_rng(seed).standard_normal((40, 300)) for seed in (0, 1))
    unbiased = MEASURES[str(MEASURES[name].counterpart)]
    assert unbiased.debiased
    assert MEASURES[name](x, y) > 0.5
    assert abs(unbiased(x, y)) < 0.1


def test_a_function_of_kinfed_is_the_measure_of_its_name() -> None:
    assert s.as_measure(s.pwcca) is MEASURES["pwcca"]
    assert s.as_measure(s.cka) is MEASURES["cka"]


# -- a user's own -----------------------------------------------------------------------------------------------------


def test_a_plain_function_is_a_measure() -> None:
    x, y, z = sides(4, 6, 5)
    expected = [[rv2(a, b) for b in (x, y, z)] for a in (x, y, z)]
    for given in (rv2, RV2, Measure.of(rv2, symmetric=True)):
        assert s.similarity_matrix([x, y, z], given) == pytest.approx(np.array(expected), abs=1e-12)
    assert s.as_measure(RV2).name == RV2
    assert s.similarity_matrix([torch.from_numpy(x).float().requires_grad_(False)], rv2).dtype == torch.float64


def test_what_a_plain_function_is_given_is_checked_before() -> None:
    x, y = sides(4, 6)
    measure = Measure.of(rv2, least_examples=4)
    with pytest.raises(InputError, match=r"^rv2 needs the same examples on both sides, but the numbers of rows differ"):
        measure(x, y[:-1])
    with pytest.raises(InputError, match=r"^rv2: x is not finite in 1 places"):
        measure(np.where(x == x.max(), np.nan, x), y)
    with pytest.raises(InputError, match=r"^rv2 has no gradient, but x requires one"):
        measure(torch.tensor(x, requires_grad=True), y)
    with pytest.raises(InputError, match=r"^rv2 needs at least 4 examples, got 3"):
        measure(x[:3], y[:3])
    with pytest.raises(InputError, match="same features on both sides: x has 4, y has 6"):
        Measure.of(rv2, same_width=True)(x, y)
    with pytest.warns(s.UndefinedSimilarityWarning, match="rv2 is not defined, NaN: x is constant"):
        assert np.isnan(Measure.of(lambda x, y: np.nan, name="rv2")(np.ones((9, 2)), y[:9]))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x, y: x, r"mine returned torch.float64 of shape \(30, 4\); a measure must return one number"),
        (lambda x, y: x @ y, "mine failed with ValueError: matmul"),
        (lambda x, y: "high", "mine failed with"),
    ],
)
def test_a_function_that_gives_no_number_is_told_in_one_line(function: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}") as caught:
        Measure.of(function, name="mine")(*sides(4, 6))
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=f"^representation 0 against 0: {message}"):
        s.similarity_matrix(sides(4), Measure.of(function, name="mine"), against=sides(6))


@pytest.mark.parametrize("given", ["rv3", 3, None, [rv2]])
def test_what_is_no_measure_is_refused(given: Any) -> None:
    with pytest.raises(InputError, match=r"^measure must be one of cka, debiased_cka, .*, or a function .*; got "):
        s.similarity_matrix(sides(4, 4), given)
    with pytest.raises(InputError, match=r"'tests.outside.rv2:NAME' cannot be imported"):
        s.as_measure("tests.outside.rv2:NAME")
    with pytest.raises(InputError, match=r"^measure: 'tests.outside.rv2:__doc__' is not a function of two rep"):
        s.as_measure("tests.outside.rv2:__doc__")


def test_clients_vote_by_it(tmp_path: Path) -> None:
    own, *theirs = [torch.from_numpy(x).float() for x in sides(4, 6, 5)]
    told = scores(Seen([own], [theirs]), RV2)
    assert told.tolist() == pytest.approx([rv2(own.double().numpy(), y.double().numpy()) for y in theirs], abs=1e-9)
    assert ballot(scores(Seen([own], [[theirs[0], own * 2]]), RV2), 1) == [1]
    lines = run(build_runtime(Vote(round=1, measure=RV2), rounds=1), tmp_path / "out").lines
    assert lines[0]["ballots"]


def test_a_measure_with_a_gradient_is_a_term_of_fedcka(tmp_path: Path) -> None:
    by_name, own = (
        run(build_runtime(FedCKA(metric=name), rounds=2), tmp_path / name[-6:])
        for name in ("cosine", f"{__name__}:alike")
    )
    assert own.lines[-1]["train_loss"] == pytest.approx(by_name.lines[-1]["train_loss"], rel=1e-4)
    for metric in ("rsa", "class_mean", RV2):
        with pytest.raises(InputError, match="is not allowed; must be a measure with a gradient and without labels"):
            FedCKA(metric=metric)
    with pytest.raises(InputError, match=r"^metric: 'cosin' is not known; allowed: linear, .*; did you mean cosine"):
        FedCKA(metric="cosin")


alike = Measure.of(lambda x, y: torch.cosine_similarity(x.flatten(), y.flatten(), dim=0), differentiable=True)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with two entry points, one of them broken."""
    points = f"[kinfed.measures]\nrv2 = {RV2}\nbroken = no_such_module:rv\n"
    with installed_package(tmp_path, "kinfed-rv", "1.2", points, monkeypatch):
        yield


@pytest.mark.usefixtures("installed")
def test_an_installed_package_adds_a_measure() -> None:
    x, y = sides(4, 6)
    assert [*MEASURES][-2:] == ["rv2", "broken"]
    assert s.similarity_matrix([x, y], "rv2")[0, 1] == pytest.approx(rv2(x, y), abs=1e-12)
    assert Vote(measure="rv2").measure == "rv2"
    assert MEASURES.origin("rv2") == "kinfed-rv 1.2"
    with pytest.raises(InputError, match=r"^measure: 'broken' of kinfed-rv 1.2 cannot be imported"):
        Vote(measure="broken")
