"""Reference values (specification A.14) and independent implementations."""

import contextlib

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
import scipy.spatial
import scipy.stats
import torch
from sklearn.cross_decomposition import CCA
from sklearn.decomposition import PCA

from kinfed import similarity as s
from kinfed.similarity.gram import gram_of

legacy = np.random.RandomState(1337)
X = legacy.randn(100, 10)
Y = legacy.randn(100, 10) + X


def pooled(batch: int) -> float:
    accumulator = s.minibatch_cka()
    for start in range(0, 100, batch):
        accumulator.update([X[start : start + batch]], [Y[start : start + batch]])
    return accumulator.compute()[0, 0]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (lambda: s.cka(X, Y), 0.5576132566),
        (lambda: s.cka(X, Y, center=False), 0.5576338185),
        (lambda: s.cka(X, Y, kernel="rbf"), 0.6548311822),
        (lambda: s.cka(X, Y, kernel="rbf", bandwidth=0.8), 0.5858570893),
        (lambda: s.cka(X, Y, kernel="rbf", bandwidth=0.2), 0.9898069303),
        (lambda: s.cka(X, Y, debiased=True), 0.5134564895),
        (lambda: pooled(20), 0.5337183634),
        (lambda: pooled(50), 0.5308439528),
        (lambda: pooled(100), 0.5134564895),
        (lambda: s.cca(X, Y, statistic="r2"), 0.5453963322),
        (lambda: s.cca(X, Y), 0.7310139588),
        (lambda: s.svcca(X, Y), 0.7310139588),
        (lambda: s.pwcca(X, Y), 0.7346677196),
        (lambda: s.pwcca(Y, X), 0.7368405676),
        (lambda: s.procrustes(X, Y), 0.7362553106),
        (lambda: s.rsa(X, Y), 0.4724396738),
        (lambda: s.emd_distance(X, Y), 2.9545983079),
        (lambda: s.emd(X, Y), -2.9545983079),
        (lambda: s.frobenius(X, Y), -0.9592556474),
        # computed with 40-digit decimals
        (lambda: s.cosine(X, Y), 0.7218960445),
    ],
)
def test_reference_values(value, expected):
    assert value() == pytest.approx(expected, abs=2e-10)


def test_reference_value_of_the_frobenius_distance():
    assert s.frobenius_distance(X, Y) == pytest.approx(959.2556474, abs=1e-7)


def test_the_median_counts_the_zero_distances_of_the_diagonal():
    assert s.cka(X, Y, kernel="rbf") != pytest.approx(0.6540059277, abs=1e-5)
    assert s.median_square_distance(X) == pytest.approx(np.median(scipy.spatial.distance.cdist(X, X, "sqeuclidean")))


def test_svcca_keeps_all_ten_directions_here():
    assert (s.kept_dimensions(X), s.kept_dimensions(Y)) == (10, 10)


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
@pytest.mark.parametrize("debiased", [False, True])
def test_cka_agrees_with_the_definition_written_out(kernel, debiased):
    def gram(x):
        if kernel == "linear":
            return x @ x.T
        squares = scipy.spatial.distance.cdist(x, x, "sqeuclidean")
        return np.exp(-squares / (2 * 0.5**2 * np.median(squares)))

    def hsic(k, m):
        n = len(k)
        h = np.eye(n) - 1 / n
        if not debiased:
            return np.trace(k @ h @ m @ h)
        k, m, one = k * (1 - np.eye(n)), m * (1 - np.eye(n)), np.ones(n)
        return (
            np.trace(k @ m)
            + (one @ k @ one) * (one @ m @ one) / ((n - 1) * (n - 2))
            - 2 / (n - 2) * (one @ k @ m @ one)
        ) / (n * (n - 3))

    k, m = gram(X[:30]), gram(Y[:30])
    expected = hsic(k, m) / np.sqrt(hsic(k, k) * hsic(m, m))
    assert s.cka(X[:30], Y[:30], kernel=kernel, debiased=debiased) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("debiased", [False, True])
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("shape", [(40, 7, 9), (40, 300, 3), (12, 30, 11), (12, 30, 40)])
@pytest.mark.filterwarnings("ignore::kinfed.similarity.BiasedSimilarityWarning")
def test_feature_form_and_gram_form_agree(shape, center, debiased):
    n, p, q = shape
    rng = np.random.default_rng(n + p)
    x = rng.standard_normal((n, p)) + 1
    y = rng.standard_normal((n, q)) + x[:, :1]
    k, m = (gram_of(torch.from_numpy(side), debiased=debiased, center=center) for side in (x, y))
    by_grams = float((k * m).sum() / (torch.linalg.matrix_norm(k) * torch.linalg.matrix_norm(m)))
    assert s.cka(x, y, debiased=debiased, center=center) == pytest.approx(by_grams, abs=1e-12)


def test_linear_cka_agrees_with_repsim():
    repsim = pytest.importorskip("repsim")
    assert s.cka(X, Y) == pytest.approx(repsim.cka([X, Y], kernel_type="linear", estimator="gretton")[0, 1], abs=1e-10)


def test_debiased_cka_agrees_with_pytorch_cka():
    features = pytest.importorskip("cka").cka_from_features
    expected = float(features(torch.from_numpy(X), torch.from_numpy(Y)))
    assert s.cka(X, Y, debiased=True) == pytest.approx(expected, abs=1e-10)


def test_the_cca_family_agrees_with_repsim():
    repsim = pytest.importorskip("repsim")
    # With equal ranks its "yanai" is the mean square and its "pillai" the mean correlation.
    assert s.cca(X, Y, statistic="r2") == pytest.approx(repsim.cca([X, Y], "yanai")[0, 1], abs=1e-10)
    assert s.cca(X, Y) == pytest.approx(repsim.cca([X, Y], "pillai")[0, 1], abs=1e-10)
    assert s.pwcca(X, Y, symmetric=True) == pytest.approx(repsim.pwcca([X, Y])[0, 1], abs=1e-10)


def test_svcca_is_cca_of_the_leading_principal_components():
    x, y = X @ np.diag(0.3 ** np.arange(10)), Y @ np.diag(0.5 ** np.arange(10))
    reduced = [PCA(0.99, svd_solver="full").fit_transform(side) for side in (x, y)]
    assert [s.kept_dimensions(side) for side in (x, y)] == [side.shape[1] for side in reduced] != [10, 10]
    rho = np.cos(scipy.linalg.subspace_angles(*reduced))
    assert s.svcca(x, y) == pytest.approx(rho.mean(), abs=1e-10)


def test_canonical_correlations_agree_with_scikit_learn():
    model = CCA(n_components=3, max_iter=5000, tol=1e-12).fit(X[:, :3], Y[:, :4])
    u, v = model.transform(X[:, :3], Y[:, :4])
    expected = [np.corrcoef(u[:, i], v[:, i])[0, 1] for i in range(3)]
    assert s.canonical_correlations(X[:, :3], Y[:, :4]) == pytest.approx(np.array(expected), abs=1e-6)


def test_procrustes_agrees_with_scipy():
    disparity = scipy.spatial.procrustes(X, Y)[2]
    assert 1 - s.procrustes(X, Y) ** 2 == pytest.approx(disparity, abs=1e-10)


def test_procrustes_of_wide_layers_agrees_with_the_plain_nuclear_norm():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((9, 40)), rng.standard_normal((9, 25))
    a, b = ((side - side.mean(0)) / np.linalg.norm(side - side.mean(0)) for side in (x, y))
    assert s.procrustes(x, y) == pytest.approx(np.linalg.norm(a.T @ b, "nuc"), abs=1e-10)


def test_rsa_agrees_with_scipy():
    u, v = (scipy.spatial.distance.pdist(side, "correlation") for side in (X, Y))
    assert s.rsa(X, Y) == pytest.approx(scipy.stats.spearmanr(u, v).statistic, abs=1e-10)


def test_emd_agrees_with_a_linear_programme():
    x, y = X[:8], Y[:8]
    cost = scipy.spatial.distance.cdist(x, y).ravel()
    rows, columns = np.kron(np.eye(8), np.ones(8)), np.kron(np.ones(8), np.eye(8))
    plan = scipy.optimize.linprog(cost, A_eq=np.vstack([rows, columns]), b_eq=np.full(16, 1 / 8))
    assert s.emd_distance(x, y) == pytest.approx(plan.fun, abs=1e-8)


def test_pwcca_agrees_with_its_definition_by_projections():
    x, y = X[:, :3] - X[:, :3].mean(0), Y[:, :5] - Y[:, :5].mean(0)
    rho = np.cos(np.sort(scipy.linalg.subspace_angles(x, y)))
    assert s.canonical_correlations(x, y) == pytest.approx(rho, abs=1e-10)
    # Eigenvectors of the two projections give the canonical variates without any SVD of a product.
    p, q = scipy.linalg.orth(x) @ scipy.linalg.orth(x).T, scipy.linalg.orth(y) @ scipy.linalg.orth(y).T
    values, vectors = np.linalg.eigh(p @ q @ p)
    variates = vectors[:, np.argsort(values)[::-1][:3]]
    weights = np.abs(variates.T @ x).sum(axis=1)
    assert s.pwcca(x, y) == pytest.approx(weights @ rho / weights.sum(), abs=1e-10)


def test_bias_grows_with_the_width_and_the_debiased_value_stays_near_zero():
    biased, debiased = [], []
    for p in (128, 2048):
        rng = np.random.default_rng(p)
        x, y = rng.standard_normal((128, p)), rng.standard_normal((128, p))
        with pytest.warns(s.BiasedSimilarityWarning) if p > 128 else contextlib.nullcontext():
            biased.append(s.cka(x, y))
        debiased.append(s.cka(x, y, debiased=True))
    assert biased == pytest.approx([0.5, 0.94], abs=0.02)
    assert debiased == pytest.approx([0, 0], abs=0.03)
