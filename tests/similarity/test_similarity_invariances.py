"""What changes a measure and what does not: the promises of docs/similarity.md."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfed import similarity as s
from kinfed.similarity.sketch import count_sketch

seeds = st.integers(0, 2**32 - 1)
quick = settings(max_examples=15, deadline=None)


def data(seed):
    """Two related 24×5 sides, not centred, and a generator for the maps."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((24, 5)) * rng.uniform(0.5, 2, 5) + rng.uniform(-3, 3, 5)
    return x, x @ rng.standard_normal((5, 5)) + rng.standard_normal((24, 5)), rng


def rotation(rng, p=5):
    return np.linalg.qr(rng.standard_normal((p, p)))[0]


def stretching(rng, p=5):
    """Invertible, far from a rotation, well conditioned."""
    return rotation(rng) @ np.diag([0.3, 0.6, 1, 2, 4]) @ rotation(rng)


def rbf(x, y):
    return s.cka(x, y, kernel="rbf")


def debiased(x, y):
    return s.cka(x, y, debiased=True)


def uncentred(x, y):
    return s.cka(x, y, center=False)


MAPS = {
    "rotation": lambda x, rng: x @ rotation(rng),
    "scaling": lambda x, rng: x * rng.uniform(0.1, 10),
    "shift": lambda x, rng: x + rng.uniform(3, 9, 5),
    "invertible": lambda x, rng: x @ stretching(rng),
    "examples": lambda x, rng: x * rng.uniform(0.5, 5, (24, 1)) + rng.uniform(-3, 3, (24, 1)),
}
# To which maps of one side a measure is blind; every other map of the five must show.
BLIND = {
    s.cka: {"rotation", "scaling", "shift"},
    rbf: {"rotation", "scaling", "shift"},
    debiased: {"rotation", "scaling", "shift"},
    uncentred: {"rotation", "scaling"},
    s.sketched_cka: {"rotation", "scaling", "shift"},
    s.cca: {"rotation", "scaling", "shift", "invertible"},
    s.svcca: {"rotation", "scaling", "shift"},
    s.pwcca: {"scaling", "shift"},
    s.procrustes: {"rotation", "scaling", "shift"},
    s.rsa: {"scaling", "examples"},
    s.emd: set(),
    s.frobenius: set(),
    s.cosine: {"scaling"},
    s.feature_cov: {"scaling", "shift"},
}


@pytest.mark.parametrize(
    ("measure", "name"),
    [(m, name) for m, names in BLIND.items() for name in sorted(names)],
    ids=lambda v: getattr(v, "__name__", v),
)
@quick
@given(seed=seeds)
def test_invariant(measure, name, seed):
    x, y, rng = data(seed)
    assert measure(MAPS[name](x, rng), y) == pytest.approx(measure(x, y), abs=1e-8)


@pytest.mark.parametrize(
    ("measure", "name"),
    [(m, name) for m, names in BLIND.items() for name in MAPS if name not in names],
    ids=lambda v: getattr(v, "__name__", v),
)
def test_not_invariant(measure, name):
    x, y, rng = data(7)
    assert abs(measure(MAPS[name](x, rng), y) - measure(x, y)) > 1e-3


@pytest.mark.parametrize("name", ["rotation", "scaling", "shift", "invertible"])
@quick
@given(seed=seeds)
def test_pwcca_is_blind_to_invertible_maps_of_the_side_that_does_not_weigh(name, seed):
    x, y, rng = data(seed)
    assert s.pwcca(x, MAPS[name](y, rng)) == pytest.approx(s.pwcca(x, y), abs=1e-8)


@pytest.mark.parametrize("measure", list(BLIND), ids=lambda m: m.__name__)
@quick
@given(seed=seeds)
def test_bounded_and_largest_for_equal_sides(measure, seed):
    x, y, _ = data(seed)
    top = 0 if measure in (s.emd, s.frobenius) else 1
    assert measure(x, x) == pytest.approx(top, abs=1e-9)
    assert measure(x, y) <= top
    assert measure(x, x) <= top or measure is debiased


@pytest.mark.parametrize("measure", [m for m in BLIND if m is not s.pwcca], ids=lambda m: m.__name__)
@quick
@given(seed=seeds)
def test_symmetric(measure, seed):
    x, y, _ = data(seed)
    assert measure(x, y) == pytest.approx(measure(y, x), abs=1e-9)


@pytest.mark.parametrize("measure", [m for m in BLIND if m is not s.sketched_cka], ids=lambda m: m.__name__)
@quick
@given(seed=seeds)
def test_one_order_of_the_examples_is_as_good_as_another(measure, seed):
    x, y, rng = data(seed)
    order = rng.permutation(len(x))
    assert measure(x[order], y[order]) == pytest.approx(measure(x, y), abs=1e-9)


@pytest.mark.parametrize("measure", list(BLIND), ids=lambda m: m.__name__)
def test_all_but_two_need_the_examples_to_correspond(measure):
    x, y, rng = data(7)
    change = abs(measure(x[rng.permutation(len(x))], y) - measure(x, y))
    if measure in (s.emd, s.feature_cov):
        assert change < 1e-9
    else:
        assert change > 1e-3


@quick
@given(seed=seeds)
def test_procrustes_distance_is_a_metric(seed):
    x, y, rng = data(seed)
    z = y + rng.standard_normal(y.shape)
    d = s.procrustes_distance
    assert d(x, z) <= d(x, y) + d(y, z) + 1e-9
    assert d(x, y) == pytest.approx(np.sqrt(2 - 2 * s.procrustes(x, y)))


@quick
@given(seed=seeds)
def test_a_batch_of_a_gram_is_the_gram_of_the_batch(seed):
    x, y, rng = data(seed)
    batch = rng.permutation(24)[:9]
    gram = s.Gram.of_matrix((x @ x.T)[np.ix_(batch, batch)])
    assert s.cka(y[batch], gram) == pytest.approx(s.cka(y[batch], x[batch]), abs=1e-9)


@pytest.mark.parametrize("exponent", [-20, -10, 10, 20])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scale_neither_overflows_nor_underflows(dtype, exponent):
    x, y, _ = data(1)
    for measure in set(BLIND) - {s.emd, s.frobenius}:
        huge = (x * 10.0**exponent).astype(dtype)
        if measure in (s.cosine, s.feature_cov, uncentred) or "scaling" in BLIND[measure]:
            assert measure(huge, y) == pytest.approx(measure(x, y), abs=1e-5)


def test_a_large_mean_costs_no_digits():

    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 32))
    y = x @ rng.standard_normal((32, 32)) / 6 + 0.5 * rng.standard_normal((64, 32))
    shifted = (x + 1000).astype(np.float32)
    truth = s.cka(shifted.astype(np.float64), y)

    naive_k, naive_l = torch.from_numpy(shifted @ shifted.T), torch.from_numpy((y @ y.T).astype(np.float32))
    center = torch.eye(64) - 1 / 64
    k, m = center @ naive_k @ center, center @ naive_l @ center
    assert abs(float((k * m).sum() / k.norm() / m.norm()) - truth) > 0.01

    assert s.cka(shifted, y) == pytest.approx(truth, abs=1e-12)
    live = torch.from_numpy(shifted).requires_grad_()
    assert s.cka(live, s.Gram.of_features(torch.from_numpy(y))).item() == pytest.approx(truth, abs=1e-5)
    assert s.cka(live, s.Gram.of_features(torch.from_numpy(y), kernel="rbf"), kernel="rbf").item() == pytest.approx(
        s.cka(shifted, y, kernel="rbf"), abs=1e-5
    )


def test_a_shared_sketch_separates_related_from_unrelated():
    rng = np.random.default_rng(0)
    x = np.maximum(rng.standard_normal((600, 40)) + 0.5, 0)
    related = x @ rotation(rng, 40) + 0.1 * rng.standard_normal((600, 40))
    unrelated = np.maximum(rng.standard_normal((600, 40)) + 0.5, 0)
    near, far = (s.sketched_cka(x, y, rows=128, seed=3) for y in (related, unrelated))
    assert near > far + 0.5
    assert near == pytest.approx(s.cka(x, related), abs=0.1)
    # Centred after the sketch, as in Tang's code, unrelated rectified features look alike.
    assert s.sketched_cka(x, unrelated, rows=128, seed=3, center="after") > far + 0.3


def test_independent_sketches_separate_nothing():

    rng = np.random.default_rng(1)
    x = rng.standard_normal((600, 40))
    sketches = [
        count_sketch(600, 128, seed, 0, 1) @ torch.from_numpy(y)
        for seed, y in ((0, x), (1, x), (2, rng.standard_normal((600, 40))))
    ]
    same, other = (float(s.cka(sketches[0], y, center=False)) for y in sketches[1:])
    assert abs(same - other) < 0.1


def test_a_sketch_is_named_by_its_seed_and_more_of_them_are_steadier():
    x, y, _ = data(0)
    assert s.sketched_cka(x, y, seed=5) == s.sketched_cka(x, y, seed=5)
    assert s.sketched_cka(x, y, seed=5) != s.sketched_cka(x, y, seed=6)

    def spread(**options):
        return np.std([s.sketched_cka(x, y, seed=seed, **options) for seed in range(12)])

    assert spread(repeats=8) < 0.7 * spread()


def test_a_sketch_with_several_entries_keeps_inner_products_on_average():

    x = torch.from_numpy(data(0)[0])
    grams = [(z := count_sketch(24, 8, seed, 0, 3) @ x).T @ z for seed in range(400)]
    assert torch.stack(grams).mean(0) == pytest.approx((x.T @ x).numpy(), rel=0.2, abs=8)
