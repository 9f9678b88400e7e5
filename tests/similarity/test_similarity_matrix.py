"""Many representations at once, and layers from files."""

import sys

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfed import similarity as s
from kinfed.errors import InputError

# What is asked here is whether the numbers are right, not whether they mean anything.
pytestmark = pytest.mark.filterwarnings("ignore::kinfed.similarity.BiasedSimilarityWarning")

NAMES = [name for name, one in s.MEASURES.items() if not one.options]  # measures that are functions too


def representations(count=5, n=12, seed=0):
    rng = np.random.default_rng(seed)
    base = rng.standard_normal((n, 6))
    return [base @ rng.standard_normal((6, 20)) + rng.standard_normal((n, 20)) + 3 for _ in range(count)]


@pytest.mark.parametrize("measure_name", NAMES)
def test_every_metric_is_that_of_the_pairs(measure_name):
    xs = [x[:, :5] for x in representations()]
    measure = getattr(s, measure_name)
    expected = np.array([[measure(x, y) for y in xs] for x in xs])
    assert s.similarity_matrix(xs, measure_name) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("options", [{}, {"kernel": "rbf", "bandwidth": 0.8}, {"debiased": True}, {"center": False}])
@pytest.mark.parametrize("n", [4, 9, 40])
def test_cka_of_many_is_that_of_the_pairs(options, n):
    xs = [x[:, : 20 - i] for i, x in enumerate(representations(n=n))]
    xs = [*xs, xs[0].reshape(n, 5, 2, 2)]
    matrix = s.similarity_matrix(xs, **options)
    expected = np.array([[s.cka(x, y, **options) for y in xs] for x in xs])
    assert matrix == pytest.approx(expected, abs=1e-10)
    assert (matrix == matrix.T).all()
    assert (matrix.diagonal() == 1).all()


@pytest.mark.parametrize("options", [{}, {"kernel": "rbf"}, {"debiased": True}])
def test_blocks_and_chunks_change_nothing(monkeypatch, options):
    xs = representations(count=7)
    whole = s.similarity_matrix(xs, **options)
    cka_module = sys.modules["kinfed.similarity.cka"]
    monkeypatch.setattr(cka_module, "BLOCK_ENTRIES", 12 * 13 // 2 * 3)
    monkeypatch.setattr(cka_module, "CHUNK_ENTRIES", 12 * 20 * 2)
    assert s.similarity_matrix(xs, **options) == pytest.approx(whole, abs=1e-13)


def test_large_sides_are_made_ready_one_at_a_time_with_the_same_result(monkeypatch):
    xs = representations(count=5)
    a, b = ({str(i): x for i, x in enumerate(side)} for side in (xs[:2], xs[2:]))
    whole = s.compare_layers(a, b)
    monkeypatch.setattr(sys.modules["kinfed.similarity.cka"], "BLOCK_ENTRIES", 1)
    again = s.compare_layers(a, b)
    assert again.biased == pytest.approx(whole.biased, abs=1e-13)
    assert again.debiased == pytest.approx(whole.debiased, abs=1e-13)


@pytest.mark.parametrize("n", [12, 200])
def test_layers_have_the_biased_and_debiased_cka_of_their_pairs(n):
    """With few examples Grams are shorter, with many the products of features, which both share."""
    xs = representations(count=5, n=n)
    found = s.compare_layers({str(i): x for i, x in enumerate(xs[:2])}, {str(i): x for i, x in enumerate(xs[2:])})
    for debiased, matrix in ((False, found.biased), (True, found.debiased)):
        expected = np.array([[s.cka(x, y, debiased=debiased) for y in xs[2:]] for x in xs[:2]])
        assert matrix == pytest.approx(expected, abs=1e-10)


def test_single_precision_input_is_computed_in_double():
    xs = [torch.from_numpy(x).float() for x in representations()]
    matrix = s.similarity_matrix(xs)
    assert matrix.dtype == torch.float64
    torch.testing.assert_close(matrix, s.similarity_matrix([x.double() for x in xs]), atol=1e-13, rtol=0)


def test_a_side_that_is_not_finite_stays_in_its_row_and_column():
    xs = representations()
    xs[1][0, 0] = np.inf
    for measure_name in ("cka", "procrustes", "emd"):
        with pytest.warns(s.UndefinedSimilarityWarning, match="representation 1 is not finite$"):
            matrix = s.similarity_matrix(xs, measure_name)
        assert np.isnan(matrix).sum() == 9


@pytest.mark.parametrize("options", [{"debiased": True}, {"kernel": "rbf", "debiased": True}])
def test_equidistant_examples_have_no_debiased_similarity(options):
    rotated = np.linalg.qr(np.random.default_rng(0).standard_normal((9, 9)))[0]
    with pytest.warns(s.UndefinedSimilarityWarning, match="0/0 for x or y, though not constant"):
        assert np.isnan(s.cka(rotated, np.arange(18).reshape(9, 2) ** 2, **options))


@pytest.mark.parametrize("n", range(5, 16))
def test_equidistant_examples_have_no_debiased_similarity_by_features_either(n):
    simplex = np.linalg.svd(np.eye(n) - 1 / n)[0][:, : n - 1]
    with pytest.warns(s.UndefinedSimilarityWarning, match="0/0 for x or y, though not constant"):
        assert np.isnan(s.cka(simplex, np.arange(2 * n).reshape(n, 2) ** 2, debiased=True))


@pytest.mark.parametrize("p", [5, 30])
def test_debiased_is_centred_in_any_case(p):
    x, y = (
        side[:, :p]
        for side in (np.hstack(pair) for pair in zip(representations(2), representations(2, seed=1), strict=True))
    )
    far = s.cka(x + 1e7, y, debiased=True, center=False)
    assert far == pytest.approx(s.cka(x, y, debiased=True), abs=1e-7)


def test_rbf_without_a_bandwidth_is_not_defined():
    mostly_equal = np.zeros((8, 2))
    mostly_equal[0] = 1
    with pytest.warns(s.UndefinedSimilarityWarning):
        assert np.isnan(s.cka(mostly_equal, np.arange(8), kernel="rbf"))


@pytest.mark.parametrize("side", ["x", "y"])
@pytest.mark.parametrize("measure_name", [m for m in NAMES if m not in ("emd", "frobenius")])
def test_a_constant_side_is_nan_and_named_by_every_measure_that_divides(measure_name, side):
    fill = 0.0 if measure_name in ("cosine", "class_mean") else 0.1
    sides = {"x": representations(1)[0][:, :5], "y": representations(1)[0][:, :5], side: np.full((12, 5), fill)}
    with pytest.warns(s.UndefinedSimilarityWarning, match=f"{measure_name} is not defined, NaN: {side} is constant$"):
        assert np.isnan(getattr(s, measure_name)(sides["x"], sides["y"]))


def test_wide_layers_keep_their_debiased_rbf_similarity_in_a_float32_loss():
    x = torch.randn(16, 100_000, generator=torch.Generator().manual_seed(0))
    y = x + torch.randn(16, 100_000, generator=torch.Generator().manual_seed(1))
    options = {"kernel": "rbf", "debiased": True}
    live = s.cka(x.clone().requires_grad_(), s.Gram.of_features(y, **options), **options)
    assert live.item() == pytest.approx(s.cka(x, y, **options).item(), abs=1e-3)


def test_unknown_names_and_options_are_refused():
    xs = representations(2)
    with pytest.raises(ValueError, match=r"measure must be one of cka, .*'ckaa'"):
        s.similarity_matrix(xs, "ckaa")
    with pytest.raises(TypeError, match="kernell"):
        s.similarity_matrix(xs, kernell="rbf")
    with pytest.raises(ValueError, match="'linear' or 'rbf'"):
        s.cka(xs[0], xs[1], kernel="poly")
    with pytest.raises(ValueError, match="bandwidth must be positive"):
        s.cka(xs[0], xs[1], kernel="rbf", bandwidth=0)
    with pytest.raises(ValueError, match="at least one representation"):
        s.similarity_matrix([])
    with pytest.raises(ValueError, match="at least one example and one feature"):
        s.cka(np.empty((0, 3)), np.empty((0, 3)))
    for measure in (s.emd, s.frobenius, s.cosine, s.feature_cov):
        with pytest.raises(ValueError, match="same features on both sides: x has 20, y has 19"):
            measure(xs[0], xs[1][:, 1:])


def test_arrays_of_any_make_are_read():
    x = np.arange(24.0).reshape(6, 4) ** 1.5
    expected = s.cka(x, x[:, :2])
    read_only = x.copy()
    read_only.flags.writeable = False
    for odd in (read_only, np.flip(np.flip(x, 1).copy(), 1), x.astype(">f8"), np.asfortranarray(x)):
        assert s.cka(odd, x[:, :2]) == pytest.approx(expected)


def test_feature_cov_takes_any_examples_and_class_means_any_clients():
    rng = np.random.default_rng(0)
    mixing = rng.standard_normal((5, 5))
    x, y = rng.standard_normal((400, 5)) @ mixing, rng.standard_normal((300, 5)) @ mixing
    assert s.feature_cov(x, y) > 0.95
    covariances = [np.cov(side.T).ravel() for side in (x, y)]
    cosine = covariances[0] @ covariances[1] / np.linalg.norm(covariances[0]) / np.linalg.norm(covariances[1])
    assert s.feature_cov(x, y) == pytest.approx(cosine, abs=1e-12)

    means = s.class_means(np.array([[1.0, 2], [3, 4], [5, 6]]), np.array([2, 0, 2]), 4)
    assert means.tolist() == [[3, 4], [0, 0], [3, 4], [0, 0]]
    one, other = (s.class_means(x[:6], labels, 4) for labels in ([0, 0, 1, 1, 1, 0], [2, 3, 3, 2, 2, 2]))
    assert s.class_mean(one, one) == pytest.approx(1)
    assert s.class_mean(one, other) == 0
    for labels in ([0, 4], [0]):
        with pytest.raises(ValueError, match="2 labels, whole numbers from 0 to 3"):
            s.class_means(x[:2], labels, 4)


def test_cca_compares_maps_place_by_place_where_it_can():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((10, 3, 4, 4)), rng.standard_normal((10, 2, 4, 4))
    by_place = [np.moveaxis(side, 1, -1).reshape(160, -1) for side in (x, y)]
    assert s.cca(x, y) == pytest.approx(s.cca(*by_place))
    pooled = y[:, :, :2, :2]
    assert s.cca(x, pooled) == pytest.approx(s.cca(x.mean((2, 3)), pooled.mean((2, 3))))


@pytest.mark.slow
def test_emd_of_many_rows_draws_the_same_of_both_sides():
    x = np.random.default_rng(0).standard_normal((1200, 2))
    assert s.emd_distance(x, x) == 0
    assert s.emd_distance(x, x + 5, seed=1) == pytest.approx(5 * 2**0.5, abs=1e-9)


def test_dissimilarities_are_those_of_numpy():
    x = representations(1)[0]
    assert s.dissimilarities(x) == pytest.approx(1 - np.corrcoef(x), abs=1e-12)


def test_minibatch_cka_refuses_what_does_not_fit():
    x = representations(1)[0]
    pooled = s.minibatch_cka()
    with pytest.raises(ValueError, match="no batch was added"):
        pooled.compute()
    pooled.update([x, x], [x])
    with pytest.raises(ValueError, match=r"\(1, 1\) layers, but the batches before had \(2, 1\)"):
        pooled.update([x], [x])
    with pytest.raises(ValueError, match="layer 1 of xs is not finite"):
        pooled.update([x, x * np.nan], [x])


def test_minibatch_cka_names_a_constant_layer():
    x = representations(1)[0]
    pooled = s.minibatch_cka(kernel="rbf")
    for scale in (1, 2):
        pooled.update([x, x * 0 + scale], [x])
    with pytest.warns(s.UndefinedSimilarityWarning, match="layer 1 of xs$"):
        values = pooled.compute()
    assert values[0, 0] == pytest.approx(1)
    assert np.isnan(values[1, 0])


def test_minibatch_cka_does_not_depend_on_the_scale_of_a_model():
    x, y = representations(2)
    one, other = s.minibatch_cka(), s.minibatch_cka()
    for rows in (slice(0, 6), slice(6, 12)):
        one.update([x[rows]], [y[rows]])
        other.update([x[rows] * 1e15], [y[rows] * 1e-15])
    assert one.compute() == pytest.approx(other.compute(), abs=1e-12)


@pytest.fixture
def files(tmp_path):
    a, b = representations(2)
    np.save(tmp_path / "a.npy", a)
    np.savez(tmp_path / "b.npz", conv=a.reshape(12, 5, 2, 2), fc=b.astype(np.float32), flat=np.ones((12, 2)))
    layers = {"conv": torch.from_numpy(a), "fc": torch.from_numpy(b).bfloat16()}
    safetensors.torch.save_file(layers, tmp_path / "c.safetensors")
    return tmp_path


def test_activations_are_read_from_all_three_kinds_of_file(files):
    assert {name: tuple(x.shape) for name, x in s.load_activations(files / "a.npy").items()} == {"a": (12, 20)}
    assert list(s.load_activations(files / "b.npz", ["fc", "conv"])) == ["fc", "conv"]
    assert s.load_activations(files / "c.safetensors", ["fc"])["fc"].dtype == torch.bfloat16


def test_files_that_cannot_be_used_are_named_in_one_line(files):
    np.save(files / "pickled.npy", np.array([{"a": 1}]), allow_pickle=True)
    np.savez(files / "words.npz", names=np.array(["a", "b"]))
    np.savez(files / "empty.npz")
    np.save(files / "scalar.npy", np.float64(3))
    for name in ("broken.npy", "broken.npz", "broken.safetensors"):
        (files / name).write_bytes(b"\x93NUMPY what")
    for name, message in {
        "missing.npy": "no such file",
        "table.csv": ".npy, .npz or .safetensors",
        "pickled.npy": "not a .npy file of plain arrays",
        "words.npz": "layer 'names' has <U1, not numbers",
        "empty.npz": "no layers",
        "scalar.npy": r"layer 'scalar' has shape \(\)",
        "broken.npy": "not a .npy file",
        "broken.npz": "not a .npz file",
        "broken.safetensors": "not a .safetensors file",
    }.items():
        with pytest.raises(InputError, match=message) as caught:
            s.load_activations(files / name)
        assert str(files / name) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_layer_that_is_not_there_is_answered_with_those_that_are(files):
    for name, layers in {"a.npy": "a", "b.npz": "conv, fc, flat", "c.safetensors": "conv, fc"}.items():
        with pytest.raises(InputError, match=f"no layer 'conv1.weight'; it has {layers}$"):
            s.load_activations(files / name, ["conv1.weight"])


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_layers_are_compared_with_all_that_the_numbers_depend_on(files, kernel):
    a, b = s.load_activations(files / "a.npy"), s.load_activations(files / "b.npz")
    with pytest.warns(s.UndefinedSimilarityWarning, match="layer 'flat' of b is constant$"):
        result = s.compare_layers(a, b, kernel=kernel)
    assert result.biased.shape == (1, 3)
    assert result.biased[0, 0] == pytest.approx(1)
    assert result.biased[0, 1] == pytest.approx(s.cka(a["a"], b["fc"], kernel=kernel).item())
    assert result.debiased[0, 1] == pytest.approx(s.cka(a["a"], b["fc"], kernel=kernel, debiased=True).item())
    facts = result.to_dict()
    assert (facts["n"], facts["features_a"], facts["features_b"]) == (12, {"a": 20}, {"conv": 20, "fc": 20, "flat": 2})
    assert facts["debiased"][0][2] is None
    if kernel == "rbf":
        assert facts["bandwidth"] == 0.5
        assert facts["sigma_a"]["a"] == pytest.approx(0.5 * s.median_square_distance(a["a"]) ** 0.5)
    else:
        assert facts["bandwidth"] is None
        assert facts["sigma_a"] == {}


def test_layers_of_different_examples_are_refused(files):
    a = s.load_activations(files / "a.npy")
    with pytest.raises(ValueError, match=r"numbers of rows differ: \[12, 11\]"):
        s.compare_layers(a, {"fc": a["a"][1:]})
    with pytest.raises(ValueError, match="at least one layer"):
        s.compare_layers(a, {})


@pytest.mark.parametrize("options", [{}, {"kernel": "rbf"}, {"debiased": True}])
def test_grams_stand_for_what_they_are_of(options):
    xs = [torch.from_numpy(x) for x in representations()]
    grams = [s.Gram.of_features(x, **options) for x in xs]
    assert torch.allclose(s.similarity_matrix(grams, **options), s.similarity_matrix(xs, **options), atol=1e-12)


def test_the_gram_of_a_constant_is_like_nothing():
    xs = [torch.from_numpy(x) for x in representations(count=3)]
    grams = [s.Gram.of_features(x) for x in [xs[0], torch.ones(12, 4), xs[2]]]
    with pytest.warns(s.UndefinedSimilarityWarning, match="representation 1"):
        matrix = s.similarity_matrix(grams)
    assert matrix.isnan().tolist() == [[False, True, False], [True] * 3, [False, True, False]]


def test_grams_are_refused_where_they_do_not_fit():
    gram, debiased = (s.Gram.of_features(torch.eye(6), debiased=d) for d in (False, True))
    for grams, options in (([gram, debiased], {}), ([gram], {"debiased": True})):
        with pytest.raises(ValueError, match="debiased"):
            s.similarity_matrix(grams, **options)
    with pytest.raises(ValueError, match="Grams only for cka"):
        s.similarity_matrix([gram, torch.eye(6)])
    with pytest.raises(ValueError, match="Grams only for cka"):
        s.similarity_matrix([gram], "rsa")


@pytest.mark.parametrize("measure_name", NAMES)
def test_each_against_each_of_others_is_a_block_of_all_pairs(measure_name):
    xs = [x[:, :5] for x in representations(7)]
    block = s.similarity_matrix(xs[:3], measure_name, against=xs[3:])
    assert block.shape == (3, 4)
    assert block == pytest.approx(s.similarity_matrix(xs, measure_name)[:3, 3:], abs=1e-12)


@pytest.mark.parametrize("options", [{}, {"kernel": "rbf", "bandwidth": 0.8}, {"debiased": True}, {"center": False}])
@pytest.mark.parametrize("n", [4, 9, 40])
def test_cka_against_others_is_that_of_the_pairs(monkeypatch, options, n):
    xs = representations(3, n=n)
    ys = [representations(5, n=n)[3], xs[0][:, :7].astype(np.float32), xs[1].reshape(n, 5, 2, 2), xs[2][:, :1]]
    expected = np.array([[s.cka(x, y, **options) for y in ys] for x in xs])
    assert s.similarity_matrix(xs, against=ys, **options) == pytest.approx(expected, abs=1e-10)
    cka_module = sys.modules["kinfed.similarity.cka"]
    monkeypatch.setattr(cka_module, "BLOCK_ENTRIES", n * (n + 1) // 2 * 2)
    assert s.similarity_matrix(xs, against=ys, **options) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("options", [{}, {"kernel": "rbf"}, {"debiased": True}])
def test_grams_against_grams_stand_for_what_they_are_of(options):
    xs = [torch.from_numpy(x) for x in representations()]
    grams = [s.Gram.of_features(x, **options) for x in xs]
    block = s.similarity_matrix(grams[:2], against=grams[2:], **options)
    assert torch.allclose(block, s.similarity_matrix(xs, **options)[:2, 2:], atol=1e-12)
    for rows, others in ((grams[:2], xs), (xs, grams[:2])):
        with pytest.raises(ValueError, match="Grams only for cka"):
            s.similarity_matrix(rows, against=others, **options)


@pytest.mark.parametrize(
    "options",
    [{}, {"rows": 5}, {"seed": 3, "repeats": 4}, {"rows": 8, "nonzeros": 3}, {"center": "after", "repeats": 2}],
)
def test_sketched_cka_of_many_is_that_of_the_pairs(options):
    xs = [x[:, : 20 - i] for i, x in enumerate(representations(6, n=80))]
    expected = np.array([[s.sketched_cka(x, y, **options) for y in xs] for x in xs])
    assert s.similarity_matrix(xs, "sketched_cka", **options) == pytest.approx(expected, abs=1e-12)
    singles = [torch.from_numpy(x).float() for x in xs]
    expected = torch.stack([torch.stack([s.sketched_cka(x, y, **options) for y in singles[2:]]) for x in singles[:2]])
    block = s.similarity_matrix(singles[:2], "sketched_cka", against=singles[2:], **options)
    torch.testing.assert_close(block, expected, atol=1e-12, rtol=0)


def test_each_side_is_sketched_once(monkeypatch):
    sketch = sys.modules["kinfed.similarity.sketch"]
    centred, seen = sketch.centred, []
    monkeypatch.setattr(sketch, "centred", lambda x: seen.append(x) or centred(x))
    s.similarity_matrix(representations(2), "sketched_cka", against=representations(5), repeats=3, rows=20)
    assert len(seen) == 7


@pytest.mark.parametrize(
    ("measure_name", "options"), [("cca", {"statistic": "r2"}), ("svcca", {"variance": 0.8}), ("pwcca", {})]
)
@pytest.mark.parametrize("places", [(), (4, 4), (2, 2)])
def test_the_cca_family_of_many_is_that_of_the_pairs(measure_name, options, places):
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal((30, p, *places)) + 2 for p in (3, 4, 5)]
    xs = [*xs, np.concatenate([xs[0], xs[1] * 1e3], axis=1), rng.standard_normal((30, 3, 4, 4))]
    for sides in (xs, xs[:-1]):
        expected = np.array([[getattr(s, measure_name)(x, y, **options) for y in sides] for x in sides])
        assert s.similarity_matrix(sides, measure_name, **options) == pytest.approx(expected, abs=1e-12)
        block = s.similarity_matrix(sides[:2], measure_name, against=sides[2:], **options)
        assert block == pytest.approx(expected[:2, 2:], abs=1e-12)


def test_each_side_of_a_cca_is_decomposed_once(monkeypatch):
    matrix = sys.modules["kinfed.similarity.matrix"]
    side, seen = matrix.side, []
    monkeypatch.setattr(matrix, "side", lambda x: seen.append(x) or side(x))
    xs = [x[:, :5] for x in representations()]
    for measure_name in ("cca", "svcca", "pwcca"):
        s.similarity_matrix(xs[:2], measure_name, against=xs[2:])
        assert len(seen) == 5
        seen.clear()


def test_widths_need_not_be_that_of_the_target():
    rng = np.random.default_rng(0)
    target = rng.standard_normal((600, 256))
    sources = [target[:, :16] @ rng.standard_normal((16, p)) + rng.standard_normal((600, p)) for p in (64, 128, 512)]
    for measure_name in ("cka", "sketched_cka", "rsa", "procrustes"):
        scores = s.similarity_matrix([target], measure_name, against=sources)
        assert scores.shape == (1, 3)
        assert scores[0] == pytest.approx([getattr(s, measure_name)(target, y) for y in sources], abs=1e-10)
    for measure_name in ("frobenius", "cosine", "emd", "feature_cov"):
        with pytest.raises(
            ValueError, match=r"^representation 0 against 0: .* same features on both sides: x has 256, y has 64$"
        ) as caught:
            s.similarity_matrix([target], measure_name, against=sources)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("measure_name", "message"),
    [
        ("cca", "cca of n=12 examples and p=20 features"),
        ("svcca", "svcca of n=12 examples"),
        ("pwcca", "pwcca of n=12"),
        ("feature_cov", "same features on both sides: x has 5, y has 20"),
        ("cosine", "same features on both sides: x has 5, y has 20"),
    ],
)
def test_a_pair_that_a_measure_refuses_is_named(measure_name, message):
    wide = [np.random.default_rng(seed).standard_normal((12, 20)) for seed in range(3)]
    narrow = [x[:, :5] for x in wide]
    unknown = np.full((12, 5), np.nan)
    with pytest.raises(ValueError, match=f"^representation [01] against 2: .*{message}"):
        s.similarity_matrix([unknown, narrow[1]], measure_name, against=[*narrow[:2], wide[2]])


def test_different_examples_are_refused_on_either_side():
    xs = representations(3)
    for measure_name in NAMES:
        if measure_name != "feature_cov":
            with pytest.raises(ValueError, match=r"numbers of rows differ: \[12, 12, 11\]"):
                s.similarity_matrix(xs[:2], measure_name, against=[xs[2][1:]])


@pytest.mark.parametrize(
    "measure_name", ["cka", "sketched_cka", "procrustes", "pwcca", "rsa", "class_mean", "feature_cov"]
)
def test_what_is_not_defined_is_named_on_its_side(measure_name):
    xs, ys = ([x[:, :5] for x in representations(3, seed=seed)] for seed in (0, 1))
    xs[1], ys[2] = xs[1] * 0, ys[2] * np.inf
    with pytest.warns(
        s.UndefinedSimilarityWarning,
        match=f"^{measure_name} is not defined, NaN: representation 1 is constant, against 2 is not finite$",
    ) as caught:
        matrix = s.similarity_matrix(xs, measure_name, against=ys)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert np.isnan(matrix).tolist() == [[False, False, True], [True] * 3, [False, False, True]]
    with pytest.warns(s.UndefinedSimilarityWarning, match="NaN: against 0 is not finite$"):
        s.similarity_matrix(xs[:1], measure_name, against=ys[2:])


@pytest.mark.parametrize("measure_name", NAMES)
@settings(max_examples=8, deadline=None)
@given(order=st.permutations(range(4)), seed=st.integers(0, 2**32 - 1))
def test_an_order_of_the_others_is_an_order_of_the_columns(measure_name, order, seed):
    xs = [x[:, :5] for x in representations(6, seed=seed)]
    matrix = s.similarity_matrix(xs[4:], measure_name, against=xs[:4])
    permuted = s.similarity_matrix(xs[4:], measure_name, against=[xs[i] for i in order])
    assert permuted == pytest.approx(matrix[:, order], abs=1e-12)


@pytest.mark.parametrize("measure_name", ["cka", "sketched_cka", "cosine"])
@pytest.mark.parametrize("p", [3, 20])
def test_the_gradient_is_that_of_the_pairs(measure_name, p):
    xs = [torch.from_numpy(x[:, :p].copy()) for x in representations(4)]
    live = [xs[0].clone().requires_grad_() for _ in range(2)]
    s.similarity_matrix([live[0], xs[1]], measure_name, against=xs[2:])[0].sum().backward()
    sum(getattr(s, measure_name)(live[1], y) for y in xs[2:]).backward()
    torch.testing.assert_close(live[0].grad, live[1].grad, atol=1e-12, rtol=1e-9)


def test_a_stack_is_as_good_as_a_list():
    stack = np.stack(representations())
    assert (
        s.similarity_matrix(stack[:2], against=stack[2:]) == s.similarity_matrix([*stack[:2]], against=[*stack[2:]])
    ).all()


def test_options_are_those_of_the_measure():
    xs = representations(2)
    for measure_name, option in (
        ("feature_cov", "kernel"),
        ("class_mean", "center"),
        ("sketched_cka", "kernel"),
        ("cka", "ys"),
    ):
        with pytest.raises(TypeError, match=f"^{measure_name} has no option '{option}'"):
            s.similarity_matrix(xs, measure_name, against=xs, **{option: "rbf"})
    with pytest.raises(ValueError, match="center must be 'before' or 'after'"):
        s.similarity_matrix(xs, "sketched_cka", center=True)
    with pytest.raises(ValueError, match="repeats must be a whole number of at least 1"):
        s.sketched_cka(xs[0], xs[1], repeats=0)
    with pytest.raises(ValueError, match="against needs at least one"):
        s.similarity_matrix(xs, against=[])
