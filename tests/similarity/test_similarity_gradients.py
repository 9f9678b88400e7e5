"""Measures as terms of a loss."""

import functools
import math

import numpy as np
import pytest
import torch

from kinfed import similarity as s
from kinfed.errors import InputError

# What is asked here is whether the numbers are right, not whether they mean anything.
pytestmark = pytest.mark.filterwarnings("ignore::kinfed.similarity.BiasedSimilarityWarning")


def sides(n=7, p=4, q=5, dtype=torch.float64, seed=0):
    stream = torch.Generator().manual_seed(seed)
    x = torch.randn(n, p, generator=stream, dtype=dtype)
    return x.requires_grad_(), torch.randn(n, q, generator=stream, dtype=dtype) + x.detach()[:, :1]


OPTIONS = [{}, {"debiased": True}, {"center": False}, {"kernel": "rbf"}, {"kernel": "rbf", "debiased": True}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("p", [4, 20])
def test_gradient_of_cka_with_a_frozen_side(options, p):
    x, y = sides(p=p)
    frozen = s.Gram.of_features(y, **options)
    # The median of the RBF rule is a constant to the gradient, but not to finite differences: see the test below.
    if "kernel" not in options:
        assert torch.autograd.gradcheck(lambda x: s.cka(x, frozen, **options), x, atol=1e-7)
    assert s.cka(x, frozen, **options).item() == pytest.approx(s.cka(x.detach(), y, **options).item(), abs=1e-12)


def test_gradient_of_a_centred_side_against_one_that_is_not():
    x, y = sides()
    frozen = s.Gram.of_features(y, center=False)
    assert torch.autograd.gradcheck(lambda x: s.cka(x, frozen), x, atol=1e-7)


@pytest.mark.parametrize("options", OPTIONS[:3], ids=str)
@pytest.mark.parametrize("p", [4, 20])
def test_gradient_of_cka_with_two_live_sides(options, p):
    x, y = sides(p=p)
    y.requires_grad_()
    assert torch.autograd.gradcheck(lambda x, y: s.cka(x, y, **options), (x, y), atol=1e-7)


@pytest.mark.parametrize("debiased", [False, True])
def test_gradient_of_rbf_cka_with_the_median_held_constant(debiased):
    x, y = sides()
    frozen = s.Gram.of_features(y, kernel="rbf", debiased=debiased)
    median = s.median_square_distance(x)

    def with_constant_median(x):
        distances = (x[:, None] - x[None]).square().sum(-1)
        gram = s.Gram.of_matrix(torch.exp(-distances / (2 * 0.5**2 * median)), debiased=debiased)
        return s.cka(gram, frozen, debiased=debiased)

    expected = torch.autograd.grad(with_constant_median(x), x)[0]
    assert torch.autograd.gradcheck(with_constant_median, x, atol=1e-6)
    found = torch.autograd.grad(s.cka(x, frozen, kernel="rbf", debiased=debiased), x)[0]
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize(
    "measure", [s.procrustes, s.frobenius, s.cosine, s.emd, s.feature_cov, s.sketched_cka, s.class_mean]
)
@pytest.mark.parametrize("p", [3, 12])
def test_gradient_of_the_other_differentiable_measures(measure, p):
    x, y = sides(p=p, q=p)
    assert torch.autograd.gradcheck(lambda x: measure(x, y), x, atol=1e-6)


NO_GRADIENT = r"has no gradient, but .* requires one: detach\(\) it, or use torch\.no_grad\(\)"
WITHOUT_GRADIENT = {
    "cca": s.cca,
    "svcca": s.svcca,
    "pwcca": s.pwcca,
    "rsa": s.rsa,
    "canonical_correlations": s.canonical_correlations,
    "minibatch_cka": lambda x, y: s.minibatch_cka().update([x], [y]),
    **{
        f"similarity_matrix of {name}": lambda x, y, name=name: s.similarity_matrix([x, y], name)
        for name in ("cca", "svcca", "pwcca", "rsa")
    },
}


@pytest.mark.parametrize("measure", WITHOUT_GRADIENT.values(), ids=WITHOUT_GRADIENT)
def test_measures_without_a_gradient_say_so_before_a_loss_loses_it(measure):  # case 327
    x, y = sides(n=12)
    for pair in ((x, y), (y, x), (x, y.numpy())):
        with pytest.raises(InputError, match=NO_GRADIENT):
            measure(*pair)
    with torch.no_grad():
        measure(x, y)


def test_dissimilarities_have_no_gradient_either():  # case 327
    with pytest.raises(InputError, match=NO_GRADIENT):
        s.dissimilarities(sides()[0])


DIFFERENTIABLE = {
    "procrustes": s.procrustes,
    "procrustes_distance": s.procrustes_distance,
    "frobenius": s.frobenius,
    "frobenius_distance": s.frobenius_distance,
    "cosine": s.cosine,
    "emd": s.emd,
    "emd_distance": s.emd_distance,
    "feature_cov": s.feature_cov,
    "sketched_cka": s.sketched_cka,
    "class_mean": s.class_mean,
    **{f"cka {options}": functools.partial(s.cka, **options) for options in OPTIONS},
    "similarity_matrix": lambda x, y: s.similarity_matrix([x, y])[0, 1],
    "similarity_matrix against": lambda x, y: s.similarity_matrix([x], "cosine", against=[y])[0, 0],
}


@pytest.mark.parametrize("other", [torch.as_tensor, torch.Tensor.numpy, torch.Tensor.tolist], ids=lambda f: f.__name__)
@pytest.mark.parametrize("measure", DIFFERENTIABLE.values(), ids=DIFFERENTIABLE)
def test_the_live_side_keeps_its_gradient_whatever_the_other_is_in(measure, other):  # case 327
    x, y = sides(n=7, p=4, q=4)
    expected = torch.autograd.grad(measure(x, y), x)[0]
    assert expected.abs().max() > 0
    for value in (measure(x, other(y)), measure(other(y), x)):
        torch.testing.assert_close(torch.autograd.grad(value, x)[0], expected)


def test_a_live_gram_keeps_its_gradient_beside_an_array():  # case 327
    x, y = sides()
    expected = torch.autograd.grad(s.cka(x, y), x)[0]
    for pair in ((s.Gram.of_features(x), y.numpy()), (y.numpy(), s.Gram.of_features(x))):
        torch.testing.assert_close(torch.autograd.grad(s.cka(*pair), x)[0], expected)
    assert isinstance(s.cka(y.numpy(), s.Gram.of_features(y)), float)


def test_the_gap_refuses_sides_that_are_trained():  # case 327
    x, y = sides(n=6)
    with pytest.raises(InputError, match="cka_gap has no gradient, but gap requires one"):
        s.cka_gap(y, s.Gram.of_features(x).unit - s.Gram.of_features(y).unit)


@pytest.mark.parametrize("measure", [s.cca, s.svcca, s.pwcca, s.rsa])
def test_measures_without_a_gradient_give_float64(measure):
    x, y = sides(n=12, dtype=torch.float32)
    value = measure(x.detach(), y)
    assert not value.requires_grad
    assert value.dtype == torch.float64


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gradients_in_float32_agree_with_float64(options):
    x, y = sides(n=32, p=300, q=40)
    expected = torch.autograd.grad(s.cka(x, s.Gram.of_features(y, **options), **options), x)[0]
    single = x.detach().float().requires_grad_()
    value = s.cka(single, s.Gram.of_features(y.float(), **options), **options)
    assert value.dtype == torch.float32
    found = torch.autograd.grad(value, single)[0].double()
    assert (found - expected).norm() / expected.norm() < 1e-5


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_constant_side_adds_nothing_to_a_loss(options):
    c = torch.full((6, 3), 0.0 if options.get("center") is False else 0.1, requires_grad=True)
    _, y = sides(n=6)
    for side in (s.Gram.of_features(y, **options), y):
        value = s.cka(c, side, **options)
        assert value.item() == 0
        assert torch.autograd.grad(value, c)[0].abs().max() == 0
    x, _ = sides(n=6)
    value = s.cka(x, s.Gram.of_features(c.detach(), **options), **options)
    assert value.item() == 0
    assert torch.autograd.grad(value, x)[0].abs().max() == 0


@pytest.mark.parametrize("measure", [s.procrustes, s.cosine])
def test_an_all_zero_side_adds_nothing_to_a_loss(measure):
    x, _ = sides(q=4)
    zero = torch.zeros(7, 4, dtype=torch.float64, requires_grad=True)
    value = measure(zero, x.detach())
    assert value.item() == 0
    assert torch.autograd.grad(value, zero)[0].abs().max() == 0


def test_a_diverged_side_shows_in_the_loss():
    x, y = sides()
    broken = x.detach().clone()
    broken[0, 0] = math.inf
    assert s.cka(broken.requires_grad_(), s.Gram.of_features(y)).isnan()
    assert s.cka(x, s.Gram.of_features(broken.detach())).isnan()


@pytest.mark.parametrize("exponent", [-20, 20])
def test_a_loss_in_float32_neither_overflows_nor_underflows(exponent):
    x, y = sides(n=16, p=30)
    scaled = (x.detach() * 10.0**exponent).float().requires_grad_()
    value = s.cka(scaled, s.Gram.of_features(y))
    assert value.item() == pytest.approx(s.cka(x.detach(), y).item(), abs=1e-5)
    expected = torch.autograd.grad(s.cka(x, y), x)[0]
    found = torch.autograd.grad(value, scaled)[0].double() * 10.0**exponent
    assert (found - expected).norm() / expected.norm() < 1e-4


def test_autocast_and_half_precision_compute_in_float32():
    x, y = sides(n=16, p=600, dtype=torch.float32)
    truth = s.cka(x.detach(), y).item()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert s.cka(x, s.Gram.of_features(y)).item() == pytest.approx(truth, abs=1e-6)
        assert s.cka(x, y).item() == pytest.approx(truth, abs=1e-6)
        assert s.procrustes(x, y).item() == pytest.approx(s.procrustes(x.detach(), y).item(), abs=1e-5)
    half = x.detach().half().requires_grad_()
    value = s.cka(half, s.Gram.of_features(y))
    assert value.dtype == torch.float32
    assert torch.autograd.grad(value, half)[0].dtype == torch.float16


def test_without_a_gradient_everything_is_float64():
    x, y = sides(dtype=torch.float32)
    with torch.no_grad():
        assert s.cka(x, y).dtype == torch.float64
    assert s.cka(x.detach(), y).dtype == torch.float64
    assert isinstance(s.cka(x.detach().numpy(), y.numpy()), float)


def test_the_difference_of_two_similarities_is_a_softplus():
    x, y = sides()
    near, far = (s.cka(x, s.Gram.of_features(side)) for side in (y, y.flip(0)))
    two_terms = -torch.log(near.exp() / (near.exp() + far.exp()))
    torch.testing.assert_close(torch.nn.functional.softplus(far - near), two_terms)


def test_a_matrix_of_live_representations_is_differentiable():
    x, y = sides(n=6, p=9, q=9)

    def spread(x):
        return s.similarity_matrix([x, y, x.square()], kernel="linear").triu(1).sum()

    assert torch.autograd.gradcheck(spread, x, atol=1e-6)


def test_grams_must_match():
    x, y = sides()
    with pytest.raises(ValueError, match="cka: debiased=False needs Grams"):
        s.cka(x, s.Gram.of_features(y, debiased=True))
    with pytest.raises(ValueError, match="same examples"):
        s.cka(x[:5], s.Gram.of_features(y))
    with pytest.raises(ValueError, match="square"):
        s.Gram.of_matrix(np.ones((3, 2)))


@pytest.mark.parametrize("shift", [0.0, 10.0, 1e4])
@pytest.mark.parametrize("options", [{}, {"kernel": "rbf"}, {"debiased": True}], ids=str)
def test_the_gap_of_two_frozen_sides_is_the_difference_of_their_cka(options: dict, shift: float) -> None:  # type: ignore[type-arg]
    stream = torch.Generator().manual_seed(0)
    x, noise, more = (torch.randn(70, 300, generator=stream) for _ in range(3))
    x = x.relu() + shift
    p, g = (s.Gram.of_features(x + other, **options) for other in (noise, more))
    exact = x.double().requires_grad_()
    expected = s.cka(exact, p, **options) - s.cka(exact, g, **options)
    expected.backward()
    live = x.clone().requires_grad_()
    found = s.cka_gap(live, p.unit - g.unit, **options)
    found.backward()
    assert found.item() == pytest.approx(expected.item(), abs=1e-5)
    assert exact.grad is not None
    assert live.grad is not None
    assert (live.grad - exact.grad).norm() < 1e-3 * exact.grad.norm()


def test_the_gap_of_constant_activations_is_0_without_a_gradient() -> None:
    live = torch.full((6, 5), 0.3, requires_grad=True)
    value = s.cka_gap(live, torch.randn(6, 6, generator=torch.Generator().manual_seed(0)))
    value.backward()
    assert value.item() == 0
    assert live.grad is not None
    assert not live.grad.any()
