"""Scores, ballots and the count (specification E.2; cases 88, 89 and 91)."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kinfed.learning import features
from kinfed.methods.voting import ballot, count, scores, seen
from kinfed.similarity import MEASURES, cka, sketched_cka
from tests.builders import dataset, pool

NAN = float("nan")


def test_most_votes_win_and_ties_go_by_points_then_by_index() -> None:
    counted = count({0: [2, 1], 1: [2, 0], 2: [1, 2], 3: [0, 3]}, 4, 2)
    assert counted.votes == [2, 2, 3, 1]
    assert counted.points == [3, 3, 5, 1]
    assert counted.ranking == [2, 0, 1, 3]  # of the equal 0 and 1 the first


def test_the_case_of_the_tie() -> None:  # case 91: A 0, B 1; votes 3 and 3, points 4 and 5
    cast = {i: ballot(torch.tensor(told), 2) for i, told in enumerate([[0.9, 0.5], [0.4, 0.5], [0.1, 0.2], [NAN, NAN]])}
    assert cast == {0: [0, 1], 1: [1, 0], 2: [1, 0], 3: []}
    counted = count(cast, 2, 2)
    assert (counted.votes, counted.points, counted.ranking[0]) == ([3, 3], [4, 5], 1)


@given(
    st.lists(st.permutations(range(5)).map(lambda order: order[:3]), min_size=1, max_size=8),
    st.permutations(range(5)),
    st.randoms(use_true_random=False),
)
def test_neither_the_clients_order_nor_the_sources_matters_but_for_ties(ballots, renamed, random) -> None:  # type: ignore[no-untyped-def]
    counted = count(dict(enumerate(ballots)), 5, 3)
    shuffled = [*ballots]
    random.shuffle(shuffled)
    assert count(dict(enumerate(shuffled)), 5, 3) == counted
    others = count(dict(enumerate([[renamed[i] for i in b] for b in ballots])), 5, 3)
    assert [others.votes[renamed[i]] for i in range(5)] == counted.votes
    assert [others.points[renamed[i]] for i in range(5)] == counted.points


def test_of_equal_scores_the_first_source_stands_first_and_undefined_ones_nowhere() -> None:
    assert ballot(torch.tensor([0.5, NAN, 0.7, 0.5]), 3) == [2, 0, 3]
    assert ballot(torch.tensor([0.5, NAN, 0.7, 0.5]), 1) == [2]
    assert ballot(torch.tensor([NAN, NAN]), 3) == []


@pytest.mark.filterwarnings("ignore::kinfed.similarity.BiasedSimilarityWarning")
def test_scores_are_the_measure_of_the_representations() -> None:
    model, *sources = [source.model for source in pool(dataset(), (1, 2, 3))]
    named, train = pool(dataset(), (2, 3)), dataset().train.take(range(60))
    own = features(model, train)
    theirs = [features(source, train) for source in sources]
    told = scores(seen(model, named, train, [("body", "body")]), "sketched_cka")
    assert told.tolist() == pytest.approx([float(sketched_cka(own, other)) for other in theirs], abs=1e-9)
    told = scores(seen(model, named, train, [("body", "body"), ("conv1", "conv2")]), "cka")
    at = [features(model, train, "conv1"), [features(source, train, "conv2") for source in sources]]
    expected = [(cka(own, a) + cka(at[0], b)) / 2 for a, b in zip(theirs, at[1], strict=True)]  # type: ignore[arg-type]
    assert told.tolist() == pytest.approx([float(e) for e in expected], abs=1e-9)


@pytest.mark.parametrize("measure", [name for name, one in MEASURES.items() if not one.needs_labels])
def test_every_measure_finds_the_model_itself(measure: str) -> None:
    model = pool(dataset(), (1,))[0].model
    told = seen(model, pool(dataset(), (2, 1, 3)), dataset().train.take(range(200)), [("body", "body")])
    assert ballot(scores(told, measure), 1) == [1]


def test_labels_are_not_looked_at() -> None:
    model, train = pool(dataset(), (1,))[0].model, dataset().train.take(range(60))
    assert train.labels is not None
    others = replace(train, labels=train.labels.flip(0))
    one, other = (seen(model, pool(dataset()), images, [("body", "body")]) for images in (train, others))
    assert torch.equal(scores(one, "sketched_cka"), scores(other, "sketched_cka"))


def test_sources_of_other_widths_are_scored() -> None:  # case 89
    data = dataset()
    model = pool(data, (1,))[0].model
    wide = [*pool(data, (2,)), *pool(data, (3,), "mlp"), *pool(data, (4,), "mcmahan_cnn")]  # 64, 200, 512 features
    for measure in ("sketched_cka", "cka", "debiased_cka", "rsa"):
        told = scores(seen(model, wide, data.train.take(range(100)), [("body", "body")]), measure)
        pairs = [scores(seen(model, [one], data.train.take(range(100)), [("body", "body")]), measure) for one in wide]
        assert told.tolist() == pytest.approx(list(itertools.chain(*(p.tolist() for p in pairs))), abs=1e-9)
        assert bool(told.isfinite().all())
    with pytest.raises(ValueError, match="x has 64, y has 200"):
        scores(seen(model, wide, data.train.take(range(100)), [("body", "body")]), "emd")
