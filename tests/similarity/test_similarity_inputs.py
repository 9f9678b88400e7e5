"""What is let in, and what is rounding: the rows of the second set of cases on similarity, by number."""

import inspect
import json
import warnings

import numpy as np
import pytest
import scipy.sparse
import torch

from kinfed import similarity as s
from kinfed.errors import InputError

NAMES = [name for name, one in s.MEASURES.items() if not one.options]  # measures that are functions too


def related(n=200, p=3, q=3, seed=0):
    """Two sides that share some of what they say."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, p))
    return x, x[:, :1] @ rng.standard_normal((1, q)) + rng.standard_normal((n, q))


def widened(x, rng, columns=16):
    """The same space in more columns."""
    return x @ np.linalg.qr(rng.standard_normal((columns, x.shape[1])))[0].T


# -- rounding follows the precision that a side came in (cases 325, 345, 349) ------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "shift", "error"),
    [(torch.float64, 0, 1e-9), (torch.float64, 1e6, 1e-6), (torch.float32, 0, 1e-5), (torch.float32, 1e3, 3e-2),
     (torch.float16, 0, 1e-2), (torch.bfloat16, 0, 5e-2)],
)  # fmt: skip
@pytest.mark.parametrize("measure_name", ["cca", "svcca", "pwcca"])
def test_a_bottleneck_counts_as_wide_as_it_is_in_any_precision(measure_name, dtype, shift, error):  # case 325
    x, y = related()
    exact = [widened(side, np.random.default_rng(i)) for i, side in enumerate((x, y))]
    wide = [torch.from_numpy(side + shift).to(dtype) for side in exact]
    measure = getattr(s, measure_name)
    # pwcca weighs by the features, and a rotation into more of them does not leave these alone.
    expected = measure(*exact) if measure_name == "pwcca" else measure(x, y)
    assert measure(*wide).item() == pytest.approx(expected, abs=error)
    assert s.similarity_matrix(wide, measure_name)[0, 1].item() == pytest.approx(expected, abs=error)
    assert s.kept_dimensions(wide[0], 1.0) == 3
    assert len(s.canonical_correlations(*wide)) == 3


def test_softmax_outputs_have_one_dimension_less_than_classes():  # case 325
    logits = [torch.randn(300, 10, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    x, y = (of.softmax(dim=1) for of in (logits[0], logits[0] + logits[1]))
    assert s.kept_dimensions(x, 1.0) == 9
    assert s.cca(x, y).item() == pytest.approx(s.cca(x[:, 1:], y[:, 1:]).item(), abs=1e-4)


def test_many_examples_make_rounding_of_nothing_that_is_plainly_none():  # case 325
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((40_000, 4)) * [1, 1, 1, 2e-3]).astype(np.float32)
    assert s.kept_dimensions(x, 1.0) == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    "measure", [s.cka, s.cca, s.svcca, s.pwcca, s.procrustes, s.sketched_cka, s.feature_cov], ids=lambda m: m.__name__
)
def test_a_side_that_varies_by_its_last_digit_alone_is_constant(measure, dtype):  # case 325
    rng = np.random.default_rng(0)
    constant = torch.full((30, 4), 0.7, dtype=dtype)
    one_more = torch.nextafter(constant.float(), torch.tensor(1.0)) if dtype == torch.float32 else constant + 5e-4
    noisy = torch.where(torch.from_numpy(rng.random((30, 4)) < 0.5), constant, one_more.to(dtype))
    assert noisy.unique().numel() == 2
    other = torch.from_numpy(rng.standard_normal((30, 4)))
    with pytest.warns(s.UndefinedSimilarityWarning, match="y is constant$"):
        assert measure(other, noisy).isnan()
    with pytest.warns(s.UndefinedSimilarityWarning, match="representation 1 is constant$"):
        assert s.similarity_matrix([other, noisy], measure.__name__).isnan().sum() == 3
    # as float64 these digits are a signal
    assert not measure(other, noisy.double()).isnan()


def test_the_bandwidth_of_rows_that_differ_by_rounding_is_not_defined():  # case 325
    rows = np.tile(np.random.default_rng(0).standard_normal(700), (9, 1))
    rows[0] += 1
    rows[2] += 1e-16 * rows[2]
    with pytest.warns(s.UndefinedSimilarityWarning):
        assert np.isnan(s.cka(rows, np.arange(18.0).reshape(9, 2) ** 2, kernel="rbf"))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_share_that_is_met_but_for_rounding_is_met(dtype):  # case 345
    for seed in range(60):
        left = np.random.default_rng(seed).standard_normal((20, 10))
        left = np.linalg.qr(left - left.mean(0))[0].astype(dtype)
        assert [s.kept_dimensions(left, tenths / 10) for tenths in range(1, 11)] == list(range(1, 11))
        assert s.kept_dimensions(left, 0.8001) == 9


def test_ties_that_rounding_would_tear_apart_are_ties():
    # At a rounding boundary of 12 decimals, as every multiple of 2⁻¹³ is.
    tied = np.array([2**-13 - 1e-17, 2**-13 + 1e-17, 0.5, 1])
    assert s.spearman(tied, np.array([1, 1, 2, 3])) == pytest.approx(1, abs=1e-12)
    assert s.spearman(tied[[1, 0, 2, 3]], np.array([1, 1, 2, 3])) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("measure", [s.cca, s.pwcca, s.svcca])
def test_dead_features_change_nothing(measure):  # case 349
    x, y = related(n=7)
    dead = np.hstack([x, np.tile([0.1, -3.3, 1e6], (7, 1))])
    expected = measure(x, y)
    assert measure(dead, y) == pytest.approx(expected, abs=1e-12)
    assert measure(y, dead) == pytest.approx(measure(y, x), abs=1e-12)
    assert s.similarity_matrix([dead, y], measure.__name__)[0, 1] == pytest.approx(expected, abs=1e-12)
    single = torch.from_numpy(dead).float()
    assert measure(single, torch.from_numpy(y)).item() == pytest.approx(expected, abs=1e-4)


def test_living_features_count():  # case 349
    rng = np.random.default_rng(0)
    dead = np.hstack([rng.standard_normal((7, 6)), np.ones((7, 3))])
    with pytest.raises(InputError, match="n=7 examples and p=6 features"):
        s.cca(dead, rng.standard_normal((7, 2)))


# -- options (case 326) -----------------------------------------------------------------------------------------------

X, Y = related(n=30)
FUNCTIONS = {
    **{measure_name: (getattr(s, measure_name), (X, Y)) for measure_name in NAMES},
    **{f"{m}_distance": (getattr(s, f"{m}_distance"), (X, Y)) for m in ("emd", "frobenius", "procrustes")},
    "cka_gap": (s.cka_gap, (torch.from_numpy(X), torch.eye(30))),
    "minibatch_cka": (s.minibatch_cka, ()),
    "compare_layers": (s.compare_layers, ({"a": X}, {"b": Y})),
    "Gram.of_features": (s.Gram.of_features, (X,)),
    "Gram.of_matrix": (s.Gram.of_matrix, (X @ X.T,)),
}


def keywords(function):
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]


@pytest.mark.parametrize(
    ("name", "option"),
    [(name, option) for name, (f, _) in FUNCTIONS.items() for option in keywords(f) if option != "ids"],
)
def test_every_option_refuses_what_it_is_not(name, option):  # case 326
    function, sides = FUNCTIONS[name]
    for nonsense in ("Nonsense", -1.5, float("nan"), [1], None):
        if not (option == "rows" and nonsense is None):
            with pytest.raises(InputError, match=f"^{option} (is|must be) .*got {nonsense!r}".replace("[1]", r"\[1\]")):
                function(*sides, **{option: nonsense})
            if name in NAMES:
                with pytest.raises(InputError, match=f"^{option} (is|must be) "):
                    s.similarity_matrix([X, Y], name, **{option: nonsense})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: s.minibatch_cka(kernel="RBF"), "kernel must be 'linear' or 'rbf', got 'RBF'"),
        (lambda: s.cka_gap(torch.from_numpy(X), torch.eye(30), kernel="RBF"), "kernel must be 'linear' or 'rbf'"),
        (lambda: s.cca(X, Y, statistic="R"), "statistic must be 'rho' or 'r2', got 'R'"),
        (lambda: s.svcca(X, Y, variance=99), "variance must be above 0 and at most 1, got 99"),
        (lambda: s.kept_dimensions(X, 0), "variance must be above 0 and at most 1, got 0"),
        (lambda: s.cka(X, Y, bandwidth=float("inf")), "bandwidth must be positive, got inf"),
        (lambda: s.cka(X, Y, debiased="no"), "debiased must be True or False, got 'no'"),
        (lambda: s.cka(X, Y, center="after"), "center must be True or False, got 'after'"),
        (lambda: s.sketched_cka(X, Y, center=True), "center must be 'before' or 'after', got True"),
        (lambda: s.sketched_cka(X, Y, rows=2.5), "rows must be a whole number of at least 1, got 2.5"),
        (lambda: s.sketched_cka(X, Y, rows=2, nonzeros=3), "is not allowed; must be from 1 to 2, the rows of the "
                                                           "sketch"),
        (lambda: s.emd(X, Y, seed=0.5), "seed must be a whole number, got 0.5"),
        (lambda: s.flatten(X, "mean"), "how must be 'full' or 'spatial' or 'gap', got 'mean'"),
        (lambda: s.class_means(X, np.zeros(30), 0), "classes must be a whole number of at least 1, got 0"),
        (lambda: s.class_means(X, np.full(30, 0.5), 2), "class_means needs 30 labels, whole numbers from 0 to 1; got"),
        (lambda: s.class_means(X, np.full(30, -1), 2), "class_means needs 30 labels, whole numbers from 0 to 1; got"),
        (lambda: s.similarity_matrix([X], "CKA"), "measure must be one of cka, "),
    ],
)  # fmt: skip
def test_a_misspelt_option_is_refused_in_one_line(call, message):  # case 326
    with pytest.raises(InputError) as caught:
        call()
    assert message in str(caught.value)


def test_numbers_of_numpy_are_numbers():
    assert s.svcca(X, Y, variance=np.float32(0.5)) == s.svcca(X, Y, variance=0.5)
    assert s.sketched_cka(X, Y, rows=np.int64(9)) == s.sketched_cka(X, Y, rows=9)
    assert s.cka(X, Y, debiased=np.bool_(True)) == s.cka(X, Y, debiased=True)


# -- more features than examples (case 328) ---------------------------------------------------------------------------


def unrelated(*widths, n=50):
    return [np.random.default_rng(i).standard_normal((n, p)) for i, p in enumerate(widths)]


BIASED = {
    "cka": ({}, {"debiased": True}),
    "cka rbf": ({"kernel": "rbf"}, {"kernel": "rbf", "debiased": True}),
    "sketched_cka": ({}, {"debiased": True}),
}


@pytest.mark.parametrize("name", BIASED)
def test_a_bias_that_misleads_is_told_with_n_and_p_and_the_debiased_value(name):  # case 328
    own, wide, narrow = unrelated(512, 512, 32)
    measure_name, (options, debiased) = name.split()[0], BIASED[name]
    for other in (wide, narrow):
        with pytest.warns(s.BiasedSimilarityWarning) as caught:
            value = getattr(s, measure_name)(own, other, **options)
        assert value > 0.5
        (told,) = (str(w.message) for w in caught)
        assert f"{measure_name} of n=50 examples" in told
        assert f"p=512 features is {value:.2f}, the debiased value is {s.cka(own, other, **debiased):.2f}: with" in told
        assert caught[0].filename == __file__
    with pytest.warns(
        s.BiasedSimilarityWarning, match=f"^representation 0 against [01]: {measure_name} of n=50"
    ) as caught:
        s.similarity_matrix([own], measure_name, against=[wide, narrow], **options)
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_the_most_biased_of_many_pairs_is_named():  # case 328
    n, rng = 40, np.random.default_rng(0)
    low = [rng.standard_normal((n, 2)) @ rng.standard_normal((2, 600)) for _ in range(3)]  # wide, but without a bias
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        s.similarity_matrix(low)
    noise = unrelated(300, 300, n=n)
    for xs, pair in (([*low, *noise], "3 against 4"), ([noise[0], *low, noise[0], noise[1]], "[04] against [05]")):
        with pytest.warns(s.BiasedSimilarityWarning, match=f"^representation {pair}: cka of n=40 examples and p=300"):
            matrix = s.similarity_matrix(xs)
        assert matrix == pytest.approx(s.similarity_matrix([s.Gram.of_features(x) for x in xs]).numpy(), abs=1e-12)


def test_no_wolf_is_cried():  # case 328
    wide, other, narrow = unrelated(512, 512, 8)
    twin = wide + 0.05 * np.random.default_rng(3).standard_normal(wide.shape)
    live = torch.from_numpy(wide).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        s.cka(wide, wide)
        s.cka(wide, twin)  # alike, and not by chance
        s.cka(wide, other, debiased=True)
        s.cka(live, torch.from_numpy(other))  # a term of a loss
        s.cka(live, other, kernel="rbf")
        s.sketched_cka(live, other)
        s.similarity_matrix([live, other])
        s.cka(live.detach(), s.Gram.of_features(other))
        s.similarity_matrix([s.Gram.of_features(x) for x in (wide, other)])
        s.compare_layers({"a": wide}, {"b": other})  # has both values
        s.cka(np.repeat(narrow, 100, axis=1), narrow)  # 800 columns that say what 8 say


def test_what_is_told_holds_on_average():  # case 328
    """The rule takes the value of shuffled examples for what unrelated sides come to: so it is, by the definition."""
    x, y = unrelated(60, 90, n=20)
    apart = np.eye(20)
    grams = [s.Gram.of_features(side) for side in (x, y, apart)]
    chance = float(s.cka(grams[0], grams[2]) * s.cka(grams[2], grams[1]))
    rng, (k, m) = np.random.default_rng(0), (gram.unit.numpy() for gram in grams[:2])
    drawn = [np.sum(k * m[np.ix_(order, order)]) for order in (rng.permutation(20) for _ in range(4000))]
    assert np.mean(drawn) == pytest.approx(chance, abs=4 * np.std(drawn) / 4000**0.5)


def test_too_few_examples_for_a_debiased_value_are_told_so():  # case 328
    with pytest.warns(
        s.BiasedSimilarityWarning, match="n=3 examples and p=9 features is .*, the debiased value is not defined"
    ):
        s.cka(*unrelated(9, 7, n=3))


# -- an example without a dissimilarity (case 341) --------------------------------------------------------------------


@pytest.mark.parametrize("fill", [0, 0.1])
def test_an_example_of_equal_features_is_named_and_the_rest_counts(fill):  # case 341
    x, y = related(n=600, p=5, q=4)
    expected = s.rsa(np.delete(x, 17, 0), np.delete(y, 17, 0))
    y[17] = fill
    with pytest.warns(
        s.UndefinedSimilarityWarning,
        match="^rsa leaves out all pairs with example 17 of y: all their features are equal",
    ):
        assert s.rsa(x, y) == pytest.approx(expected, abs=1e-12)
    with pytest.warns(s.UndefinedSimilarityWarning, match="example 17 of representation 1: ") as caught:
        matrix = s.similarity_matrix([x, y], "rsa")
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert matrix == pytest.approx(np.array([[1, expected], [expected, 1]]), abs=1e-12)
    with pytest.warns(s.UndefinedSimilarityWarning, match="example 17 of against 0: "):
        s.similarity_matrix([x], "rsa", against=[y])


def test_many_such_examples_are_counted_and_a_side_of_them_is_not_defined():  # case 341
    x, y = related(n=20, p=5, q=4)
    x[:7], y[3] = 1, 2
    with pytest.warns(s.UndefinedSimilarityWarning, match="example 0, 1, 2, 3, 4 and 2 more of x; 3 of y: "):
        assert s.rsa(x, y) == pytest.approx(s.rsa(x[7:], y[7:]), abs=1e-12)
    x[:19] = 0
    with pytest.warns(s.UndefinedSimilarityWarning) as caught:
        assert np.isnan(s.rsa(x, y))
    assert "rsa is not defined, NaN: 0/0 for x or y" in str(caught[1].message)
    with pytest.warns(s.UndefinedSimilarityWarning, match="NaN: x is constant"):
        s.rsa(x * 0 + np.arange(5), np.arange(20)[:, None] * [1, 2] + [0, 1])


# -- containers (case 342) --------------------------------------------------------------------------------------------


class Frame:
    """As data frames are: no array, but NumPy makes one of it."""

    def __init__(self, values):
        self.values, self.shape = values, values.shape

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype=dtype)


NO_NUMBERS = {
    "masked": (np.ma.masked_greater(X, 1), "masked numbers"),
    "complex": (X + 0j, "ndarray of complex128"),
    "complex tensor": (torch.from_numpy(X + 0j), "a tensor of complex128"),
    "objects": (X.astype(object), "ndarray of object"),
    "missing": (Frame(np.where(X > 0, X, None)), "Frame of object"),
    "text": (X.astype(str), "ndarray of <U"),
    "dates": (np.full(30, "2020-01-01", dtype="M8[D]"), "ndarray of datetime64"),
    "durations": (np.full(30, 3, dtype="m8[D]"), "ndarray of timedelta64"),
    "records": (np.zeros(30, dtype="f8,f8"), "ndarray of [("),
    "ragged": ([[1, 2], [3]], "is not an array of numbers: "),
    "sparse": (scipy.sparse.csr_array(X), "csr_array of object"),
    "sparse tensor": (torch.from_numpy(X).to_sparse(), "a tensor of float64, sparse_coo, on cpu"),
    "meta": (torch.empty(30, 3, device="meta"), "on meta"),
    "nothing": (None, "NoneType of object"),
    "a number": (3.0, "at least one example and one feature, got shape ()"),
    "a number in a tensor": (torch.tensor(3.0), "at least one example and one feature, got shape ()"),
    "no features": (np.zeros((30, 0)), "at least one example and one feature, got shape (30, 0)"),
    "a dictionary": ({"a": X}, "dict of object"),
}
TAKERS = {
    **{measure_name: (lambda side, m=measure_name: getattr(s, m)(X, side)) for measure_name in NAMES},
    "first of cka": lambda side: s.cka(side, X),
    "beside a Gram": lambda side: s.cka(side, s.Gram.of_features(X)),
    "procrustes_distance": lambda side: s.procrustes_distance(side, X),
    "similarity_matrix": lambda side: s.similarity_matrix([X, side]),
    "against": lambda side: s.similarity_matrix([X], "cca", against=[side]),
    "canonical_correlations": lambda side: s.canonical_correlations(side, X),
    "kept_dimensions": s.kept_dimensions,
    "dissimilarities": s.dissimilarities,
    "median_square_distance": s.median_square_distance,
    "flatten": s.flatten,
    "Gram.of_features": s.Gram.of_features,
    "Gram.of_matrix": s.Gram.of_matrix,
    "class_means": lambda side: s.class_means(side, np.zeros(30), 1),
    "labels": lambda side: s.class_means(X, side, 1),
    "minibatch_cka": lambda side: s.minibatch_cka().update([X], [side]),
    "compare_layers": lambda side: s.compare_layers({"a": X}, {"b": side}),
    "spearman": lambda side: s.spearman(X[:, 0], side),
    "cka_gap": lambda side: s.cka_gap(side, torch.eye(30)),
}


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("kind", NO_NUMBERS)
def test_what_is_no_array_of_numbers_is_refused_in_one_line(kind, taker):  # case 342
    given, message = NO_NUMBERS[kind]
    with pytest.raises(InputError) as caught:
        TAKERS[taker](given)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("measure_name", NAMES)
def test_numbers_of_any_make_are_read(measure_name):  # case 342
    measure, expected = getattr(s, measure_name), getattr(s, measure_name)(X, Y)
    for same in (X.tolist(), Frame(X), np.ma.masked_array(X, mask=False), X.astype(np.longdouble), X.view(np.ndarray)):
        assert measure(same, Y) == pytest.approx(expected, abs=1e-12)
    whole = np.random.default_rng(0).permuted(np.tile([0, 1, 1], (30, 1)), axis=1)
    expected = measure(whole.astype(float), Y)
    for kind in (bool, np.uint8, np.int8, np.uint16, np.uint32, np.uint64, np.int64, np.float16):
        assert measure(whole.astype(kind), Y) == pytest.approx(expected, abs=1e-12)
        assert s.similarity_matrix([whole.astype(kind), Y], measure_name)[0, 1] == pytest.approx(expected, abs=1e-12)
    for kind in (torch.bool, torch.uint8, torch.int32, torch.bfloat16):
        assert measure(torch.from_numpy(whole).to(kind), Y).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("measure", [s.cca, s.svcca, s.pwcca, s.canonical_correlations])
def test_tokens_are_not_taken_for_channels(measure):  # case 342
    tokens = np.random.default_rng(0).standard_normal((30, 4, 3))
    for pair in ((tokens, tokens), (tokens, X), (X, tokens)):
        with pytest.raises(
            InputError, match=r"a representation of shape \(30, 4, 3\) is neither n×p nor a feature map n×c×h×w"
        ):
            measure(*pair)
    with pytest.raises(InputError, match="is neither n×p"):
        s.kept_dimensions(tokens)
    with pytest.raises(InputError, match="is neither n×p"):
        s.similarity_matrix([tokens, tokens], "cca")


@pytest.mark.parametrize("several", [X, torch.from_numpy(X), Frame(X), {"a": X}, iter([X]), "ab", 3, None])
def test_one_representation_is_not_taken_for_several(several):  # case 342
    for call in (
        lambda: s.similarity_matrix(several),
        lambda: s.minibatch_cka().update(several, [X]),
        lambda: s.minibatch_cka().update([X], several),
    ):
        with pytest.raises(InputError, match="must be a list of representations, or a stack N×n×p; got "):
            call()
    if several is not None:
        with pytest.raises(InputError, match=r"^against must be a list of representations"):
            s.similarity_matrix([X], against=several)


def test_layers_without_names_are_refused():  # case 342
    for layers in (X, [X], {}):
        with pytest.raises(InputError, match="compare_layers: b needs at least one layer, by name"):
            s.compare_layers({"a": X}, layers)


def test_spearman_takes_two_vectors():
    for u, v in ((X, X), (X[:, 0], X[:5, 0]), (X[:, :1], X[:, :1])):
        with pytest.raises(InputError, match="spearman needs two vectors of equal length, got shapes"):
            s.spearman(u, v)


@pytest.mark.parametrize("taker", [s.canonical_correlations, lambda x, _: s.kept_dimensions(x)])
def test_sides_of_the_cca_family_that_are_not_finite_are_refused(taker):
    broken = X.copy()
    broken[2, 1] = np.inf
    with pytest.raises(InputError, match=r"x is not finite in 1 places, first at \(2, 1\)"):
        taker(broken, Y)


# -- flattening arrays (case 348) -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
def test_arrays_are_flattened_as_tensors_are(dtype):  # case 348
    maps = np.random.default_rng(0).integers(-9, 9, (5, 3, 2, 4)).astype(dtype)
    assert s.flatten(maps, "gap") == pytest.approx(maps.mean((2, 3)))
    assert (s.flatten(maps) == maps.reshape(5, 24)).all()
    assert (s.flatten(maps, "spatial") == np.moveaxis(maps, 1, -1).reshape(40, 3)).all()
    assert (s.flatten(maps[:, :, 0, 0], "gap") == maps[:, :, 0, 0]).all()
    assert s.flatten(maps[:, 0, 0, 0]).shape == (5, 1)
    for how in ("full", "spatial", "gap"):
        of_array, of_tensor = s.flatten(maps, how), s.flatten(torch.from_numpy(maps), how)
        assert isinstance(of_array, np.ndarray)
        assert isinstance(of_tensor, torch.Tensor)
        assert (of_array == of_tensor.numpy()).all()
    volumes = np.random.default_rng(0).standard_normal((5, 3, 2, 4, 2))
    assert s.flatten(volumes, "gap") == pytest.approx(volumes.mean((2, 3, 4)))


# -- ids (case 351) ---------------------------------------------------------------------------------------------------


def test_examples_are_matched_by_their_ids():  # case 351
    x, y = related(n=30, p=4, q=5)
    order = np.random.default_rng(0).permutation(30)
    expected = s.compare_layers({"a": x}, {"b": y, "c": y[:, :2]})
    assert expected.order == "trusted"
    for ids in (
        np.arange(30),
        np.array([f"img{i}" for i in range(30)]),
        torch.arange(30),
        [f"é{i}" for i in range(30)],
    ):
        shuffled = [ids[i] for i in order] if isinstance(ids, list) else ids[order]
        matched = s.compare_layers({"a": x}, {"b": y[order], "c": y[order, :2]}, ids=(ids, shuffled))
        assert matched.order == "ids"
        assert json.loads(json.dumps(matched.to_dict()))["order"] == "ids"
        assert matched.debiased == pytest.approx(expected.debiased, abs=1e-12)
        assert matched.biased == pytest.approx(expected.biased, abs=1e-12)


@pytest.mark.parametrize(
    ("ids_a", "ids_b", "message"),
    [
        (range(30), range(1, 31), "ids: a and b must have the same examples: 1 are not in b, the first is 0; 1 are "),
        (range(30), [str(i) for i in range(30)], "30 are not in b, the first is 0; 30 are not in a, the first is '0'"),
        (range(30), [*range(29), 0], "ids of b: 0 occurs twice; each example must have its own id"),
        (range(29), range(29), "ids of a: there are 29, but layer 'a' has 30 rows"),
        (np.arange(30.0), range(30), "ids of a: must be one whole number or text per example; got float64"),
        (np.arange(60).reshape(30, 2), range(30), "got int64 of shape (30, 2)"),
    ],
)  # fmt: skip
def test_ids_that_do_not_match_are_the_error(ids_a, ids_b, message):  # case 351
    with pytest.raises(InputError) as caught:
        s.compare_layers({"a": X}, {"b": Y}, ids=([*ids_a] if isinstance(ids_a, range) else ids_a, [*ids_b]))
    assert message in str(caught.value)


def test_ids_in_files_are_no_layer(tmp_path):  # case 351
    np.savez(tmp_path / "a.npz", ids=np.array(["x", "y", "z", "w"]), layer=np.eye(4))
    np.savez(tmp_path / "b.npz", ids=np.arange(4))
    np.save(tmp_path / "ids.npy", np.eye(4))
    assert [*s.load_activations(tmp_path / "a.npz")] == ["layer"]
    assert s.load_ids(tmp_path / "a.npz") == ["x", "y", "z", "w"]
    assert s.load_ids(tmp_path / "ids.npy") is None
    assert [*s.load_activations(tmp_path / "ids.npy")] == ["ids"]
    with pytest.raises(InputError, match="no layers"):
        s.load_activations(tmp_path / "b.npz")
    with pytest.raises(InputError, match=r"no layer 'ids'; it has layer$"):
        s.load_activations(tmp_path / "a.npz", ["ids"])
