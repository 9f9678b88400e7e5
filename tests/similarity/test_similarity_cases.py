"""Faults that users of such software reported: the similarity rows of CASES.md, by id."""

import math

import numpy as np
import pytest
import torch

from kinfed import similarity as s

X5 = np.array([[1, 2], [3, 5], [2, 0], [4, 1], [0, 3]])
Y5 = np.array([[2, 1], [1, 4], [3, 3], [5, 0], [4, 2]])
X6 = np.array([[1, 0, 2], [2, 1, 0], [0, 3, 1], [4, 1, 1], [3, 2, 5], [5, 4, 0]])
Y6 = np.array([[1, 1], [0, 2], [2, 4], [3, 0], [5, 1], [4, 6]])
ROW, COLUMN = np.ogrid[:12, :3]
U12 = (7 * ROW + 3 * COLUMN) % 11
V12 = (5 * ROW + 4 * COLUMN + 2)[:, :2] % 13
R07 = np.array([[math.cos(0.7), -math.sin(0.7)], [math.sin(0.7), math.cos(0.7)]])


def pooled(x, y, sizes):
    accumulator, start = s.minibatch_cka(), 0
    for size in sizes:
        accumulator.update([x[start : start + size]], [y[start : start + size]])
        start += size
    return accumulator


def test_1_constant_input_is_nan_and_named():
    c = np.full((6, 3), 5)
    with pytest.warns(s.UndefinedSimilarityWarning, match="x is constant$"):
        assert math.isnan(s.cka(c, Y6))
    with pytest.warns(s.UndefinedSimilarityWarning, match="x is constant, y is constant$"):
        assert math.isnan(s.cka(c, c))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("options", [{}, {"kernel": "rbf"}, {"debiased": True}])
def test_1_constant_up_to_rounding_is_constant(dtype, options):
    c = torch.full((7, 3), 0.1, dtype=dtype) * torch.tensor([1.0, 3.3, 1e4], dtype=dtype)
    with pytest.warns(s.UndefinedSimilarityWarning, match="y is constant$"):
        assert s.cka(torch.arange(14.0).reshape(7, 2) ** 2, c, **options).isnan()


@pytest.mark.parametrize("options", [{}, {"kernel": "rbf"}, {"debiased": True}])
def test_1_nan_stays_in_its_row_and_column(options):
    c = np.full((6, 4), 0.1, dtype=np.float32)
    with pytest.warns(s.UndefinedSimilarityWarning) as caught:
        matrix = s.similarity_matrix([X6, c, Y6, c], **options)
    assert len(caught) == 1
    assert "representation 1 is constant, representation 3 is constant" in str(caught[0].message)
    assert np.isnan(matrix).sum() == 12
    assert matrix[0, 2] == pytest.approx(s.cka(X6, Y6, **options))


def test_2_a_batch_too_small_is_left_out_and_counted():
    with pytest.warns(UserWarning, match="a batch of 2 examples is left out"):
        accumulator = pooled(U12[:10], V12[:10], [4, 4, 2])
    assert accumulator.compute()[0, 0] == pytest.approx(0.640521, abs=1e-5)
    assert (accumulator.batches, accumulator.left_out) == (2, 1)


def test_2_debiased_names_the_least_number_of_examples():
    with pytest.raises(ValueError, match="at least 4 examples, got 3"):
        s.cka(X6[:3], Y6[:3], debiased=True)


def test_3_unbiased_hsic():
    accumulator = pooled(X5, X5, [5])
    assert float(accumulator._hsic[0, 0]) == pytest.approx(11.6, abs=1e-10)


def test_4_normalised_by_the_root():
    assert s.cka(X6, X6) == pytest.approx(1)
    assert s.cka(X6, 1000 * X6) == pytest.approx(1)
    assert s.cka(X6, Y6) == pytest.approx(0.654941, abs=1e-6)


def test_5_batches_are_pooled_whatever_the_number_of_layers():
    assert pooled(U12, U12, [4, 4, 4]).compute()[0, 0] == pytest.approx(1)
    assert pooled(U12, V12, [4, 4, 4]).compute()[0, 0] == pytest.approx(0.587208, abs=1e-6)
    five = s.minibatch_cka()
    for start in (0, 4, 8):
        layers = [U12[start : start + 4] * factor for factor in range(1, 6)]
        five.update(layers, [*layers, V12[start : start + 4]])
    assert five.compute()[:, :5] == pytest.approx(np.ones((5, 5)))
    assert five.compute()[:, 5] == pytest.approx(np.full(5, 0.587208), abs=1e-6)


def test_6_debiased_is_zero_on_average_for_unrelated_features():
    def pair(first, second):
        return (np.random.default_rng(seed).standard_normal((32, 8)) for seed in (first, second))

    assert s.cka(*pair(0, 1)) == pytest.approx(0.218126, abs=1e-6)
    assert s.cka(*pair(0, 1), debiased=True) == pytest.approx(0.049379, abs=1e-6)
    pairs = [tuple(pair(2 * i, 2 * i + 1)) for i in range(200)]
    assert abs(np.mean([s.cka(x, y, debiased=True) for x, y in pairs])) < 0.01
    assert np.mean([s.cka(x, y) for x, y in pairs]) == pytest.approx(0.202, abs=0.01)


def test_7_different_numbers_of_samples_are_refused_both_ways():
    for x, y in ((X5, Y6), (Y6, X5)):
        for measure in (s.cka, s.cca, s.procrustes, s.rsa, s.emd, s.frobenius, s.cosine, s.sketched_cka):
            with pytest.raises(ValueError, match="same examples"):
                measure(x, y)
        with pytest.raises(ValueError, match="same examples"):
            s.minibatch_cka().update([x], [y])
        with pytest.raises(ValueError, match="same examples"):
            s.similarity_matrix([x, y])


def test_8_similarities_are_one_and_distances_zero_for_equal_sides():
    assert s.cka(X5, X5) == pytest.approx(1)
    assert s.cka(X5, Y5) == pytest.approx(0.281275, abs=1e-6)
    for similarity in (s.cca, s.procrustes, s.pwcca, s.svcca, s.cosine):
        assert similarity(X5, X5) == pytest.approx(1)
    for distance in (s.procrustes_distance, s.emd_distance, s.frobenius_distance):
        assert distance(X5, X5) == pytest.approx(0, abs=1e-7)


def test_9_cca_with_too_few_examples_is_refused():
    x, y = (np.random.default_rng(seed).standard_normal((5, 6)) for seed in (5, 6))
    for measure in (s.cca, s.pwcca, s.svcca):
        with pytest.raises(ValueError, match="n=5 examples and p="):
            measure(x, y)
    assert s.cca(x, y, allow_degenerate=True) == pytest.approx(1)


def test_10_correlations_are_not_squared():
    x, y = np.arange(1, 6), np.array([2, 1, 4, 3, 5])
    assert s.canonical_correlations(x, y) == pytest.approx(np.array([0.8]))
    assert s.cca(x, y) == pytest.approx(0.8)
    assert s.cca(x, y, statistic="r2") == pytest.approx(0.64)


def test_11_a_repeated_column_changes_no_canonical_correlation():
    repeated = np.hstack([X6, X6[:, :1]])
    for x in (X6, repeated):
        assert s.canonical_correlations(x, Y6) == pytest.approx(np.array([0.983086, 0.913084]), abs=1e-6)
        assert s.cca(Y6, x, allow_degenerate=True) == pytest.approx(np.mean([0.983086, 0.913084]), abs=1e-6)
    assert s.cka(repeated, Y6) == pytest.approx(0.530856, abs=1e-6)


def test_12_canonical_correlations_are_sorted_and_in_range():
    rng = np.random.default_rng(0)
    for _ in range(100):
        x, y = rng.standard_normal((30, 5)), rng.standard_normal((30, 4))
        rho = s.canonical_correlations(x, y)
        q_x, q_y = (np.linalg.qr(side - side.mean(0))[0] for side in (x, y))
        assert rho == pytest.approx(np.linalg.svd(q_x.T @ q_y, compute_uv=False), abs=1e-6)
        assert (np.diff(rho) <= 0).all()
        assert rho.min() >= 0
        assert rho.max() <= 1


@pytest.mark.parametrize("scale", [0.01, 1e-12, 1e12])
def test_13_no_fixed_epsilon(scale):
    assert s.canonical_correlations(scale * X6, scale * X6) == pytest.approx(np.ones(3), abs=1e-6)


def test_14_pwcca_weights_come_from_the_first_side():
    assert s.pwcca(X6, Y6) == pytest.approx(0.948411, abs=1e-6)
    assert s.pwcca(Y6, X6) == pytest.approx(0.949793, abs=1e-6)
    assert s.pwcca(X6, Y6, symmetric=True) == pytest.approx((0.948411 + 0.949793) / 2, abs=1e-6)
    assert s.similarity_matrix([X6, Y6], "pwcca")[1, 0] == pytest.approx(0.949793, abs=1e-6)


def test_15_centred_by_default():
    assert s.cka(X6 + 100, Y6) == pytest.approx(0.654941, abs=1e-6)
    assert s.canonical_correlations(X6 + 100, Y6) == pytest.approx(np.array([0.983086, 0.913084]), abs=1e-6)
    assert s.cka(X6 + 100, Y6, center=False) == pytest.approx(0.734304, abs=1e-6)


def test_16_svcca_threshold_is_on_squared_singular_values():
    rng = np.random.default_rng(0)
    left = rng.standard_normal((20, 3))
    left = np.linalg.qr(left - left.mean(0))[0]
    layer = left * [10, 3, 1]
    assert s.kept_dimensions(layer, 0.99) == 2
    assert s.kept_dimensions(layer, 0.995) == 3
    assert s.kept_dimensions(layer, 0.9) == 1


def test_16_a_threshold_met_exactly_is_met():
    for seed in range(20):
        left = np.random.default_rng(seed).standard_normal((20, 10))
        left = np.linalg.qr(left - left.mean(0))[0]
        assert [s.kept_dimensions(left, tenths / 10) for tenths in range(1, 11)] == list(range(1, 11))


def test_17_procrustes_scale():
    rotated = 3 * X5 @ R07 + 10
    assert s.procrustes(X5, rotated) == pytest.approx(1)
    assert s.procrustes_distance(X5, rotated) == pytest.approx(0, abs=1e-7)
    assert s.procrustes(X5, Y5) == pytest.approx(0.423598, abs=1e-6)
    assert s.procrustes_distance(X5, Y5) == pytest.approx(math.sqrt(1.152803), abs=1e-6)


def test_18_never_above_one():
    assert math.acos(s.cka(X5, X5)) == pytest.approx(0, abs=1e-7)
    assert math.acos(s.cka(X5, Y5)) == pytest.approx(1.285674, abs=1e-6)
    x = torch.randn(1000, 50, 16, generator=torch.Generator().manual_seed(0))
    assert max(float(s.cka(row, row)) for row in x[:200]) <= 1
    frozen = [s.cka(row.clone().requires_grad_(), s.Gram.of_features(row)).item() for row in x]
    assert max(frozen) <= 1
    assert min(frozen) > 1 - 1e-6


def test_19_nan_positions_are_named_not_counted():
    u, v = np.array([2, np.nan, 5, 1, 7, 3]), np.array([4, 6, np.nan, 3, 5, 2])
    with pytest.raises(ValueError, match=r"\{'u': \[1\], 'v': \[2\]\}"):
        s.spearman(u, v)
    broken = X6.astype(float)
    broken[2, 1] = np.nan
    for measure in (s.rsa, s.cka, s.cca, s.procrustes, s.emd):
        with pytest.raises(ValueError, match=r"x is not finite in 1 places, first at \(2, 1\)"):
            measure(broken, Y6[:, :1] + X6)


def test_20_ties_share_their_rank():
    assert s.spearman(np.array([1, 2, 2, 3, 5]), np.array([2, 1, 3, 3, 4])) == pytest.approx(0.763158, abs=1e-6)


def test_20_dissimilarities_equal_up_to_rounding_are_ties():
    rows = np.random.default_rng(3).standard_normal((4, 50))
    x = np.vstack([rows, rows * 3.3, rows * 1e-3 + 1 / 3])
    assert s.rsa(x, x + 0) == 1
    assert s.rsa(x, x[:, ::-1]) == 1


def test_21_a_constant_dissimilarity_matrix_is_nan_and_leaves_the_rest_of_a_bootstrap_alone():
    with pytest.warns(s.UndefinedSimilarityWarning, match="rsa is not defined"):
        draws = np.array([s.rsa(X6[rows], X6[rows] + 1.0 * Y6[rows, :1] ** 2) for rows in ([1] * 5, [0, 1, 2, 3, 4])])
    assert np.isnan(draws).tolist() == [True, False]
    with pytest.warns(s.UndefinedSimilarityWarning):
        assert np.isnan(s.similarity_matrix([X6, X6 * 0 + 1, X6], "rsa")).sum() == 5


@pytest.mark.filterwarnings("ignore::kinfed.similarity.BiasedSimilarityWarning")
def test_23_maps_are_flattened_unless_asked():
    n, c, h, w = np.ogrid[:6, :2, :2, :2]
    maps = (5 * n + 3 * c + 2 * h + w) % 7
    assert s.cka(maps, Y6) == pytest.approx(0.553173, abs=1e-6)
    mean = s.flatten(torch.from_numpy(maps).double(), "gap")
    assert s.cka(mean, torch.from_numpy(Y6)).item() == pytest.approx(0.604579, abs=1e-6)


def test_24_half_precision_and_huge_numbers():
    y = torch.from_numpy(Y6)
    assert float(s.cka(torch.from_numpy(X6 * 100).half(), y)) == pytest.approx(0.654941, abs=1e-3)
    assert float(s.cka(torch.from_numpy(X6 * 1e20).float(), y)) == pytest.approx(0.654941, abs=1e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_26_distances_are_never_negative_and_similarities_never_above_one(dtype):
    x = X5.astype(dtype)
    for distance in (s.procrustes_distance, s.emd_distance, s.frobenius_distance):
        assert 0 <= distance(x, x) < 1e-7
    for similarity in (s.cka, s.cca, s.svcca, s.pwcca, s.procrustes, s.rsa, s.cosine, s.sketched_cka):
        assert 1 - 1e-7 < similarity(x[:, ::-1] + x**2, x[:, ::-1] + x**2) <= 1


def test_27_the_width_of_the_rbf_kernel():
    def with_sigma(sigma_x, sigma_y):
        grams = [
            s.Gram.of_features(x, kernel="rbf", bandwidth=sigma / s.median_square_distance(x) ** 0.5)
            for x, sigma in ((X6, sigma_x), (Y6, sigma_y))
        ]
        return float(s.cka(*grams))

    assert with_sigma(2, 2) == pytest.approx(0.864574, abs=1e-6)
    assert with_sigma(4.242641, 4) == pytest.approx(0.732166, abs=1e-6)
    assert s.cka(X6, Y6, kernel="rbf", bandwidth=1e6) == pytest.approx(s.cka(X6, Y6), abs=1e-9)


def test_28_invariances():
    stretched, rotated = X5 * [2, 0.5], 3 * X5 @ R07 + 10
    assert s.cka(X5, stretched) == pytest.approx(0.637329, abs=1e-6)
    assert s.canonical_correlations(X5, stretched) == pytest.approx(np.ones(2))
    assert s.procrustes(X5, stretched) == pytest.approx(0.833554, abs=1e-6)
    for measure in (s.cka, s.cca, s.procrustes):
        assert measure(X5, rotated) == pytest.approx(1)


def test_87_as_a_loss_term_a_step_raises_the_similarity():
    shared = s.Gram.of_matrix(Y6 @ Y6.T)
    x = torch.tensor(X6, dtype=torch.float64, requires_grad=True)
    loss = 0.5 * (1 - s.cka(x, shared))
    assert loss.item() == pytest.approx(0.172529, abs=1e-6)
    loss.backward()
    assert s.cka(x.detach() - 0.1 * x.grad, shared) > s.cka(x.detach(), shared)
    assert 1 - s.cka(x, s.Gram.of_matrix(X6 @ X6.T)).item() == pytest.approx(0, abs=1e-12)
