"""The mean Gram of Hetero-SSFL's clients: what is in it, and its cleaning, by closed forms (specification D.5)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kinfed.data import Normalisation, Samples
from kinfed.methods.hetero_ssfl import disagreement
from kinfed.methods.mean_gram import (
    Cleaning,
    cka_with_colour,
    cleaned,
    mean_colours,
    participation_ratio,
)
from kinfed.models import Tensors
from kinfed.similarity import cka

L = 40
ALL = torch.arange(L)
FORMS = pytest.mark.parametrize("form", ["factors", "gram"])
CLEANINGS: tuple[Cleaning, ...] = ("colour", "whitened", "neighbours")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def orthonormal(count: int, seed: int = 0) -> Tensor:
    """Orthonormal columns of mean 0, L×count."""
    x = normal(L, count, seed=seed).double()
    return torch.linalg.qr(x - x.mean(dim=0)).Q


def mean(a: Tensor, form: str) -> Tensors:
    return {"factors": a.float()} if form == "factors" else {"gram": (a @ a.T).float()}


def whole(found: Tensors) -> Tensor:
    ((form, given),) = found.items()
    return given.double() @ given.double().T if form == "factors" else given.double()


def centred(matrix: Tensor) -> Tensor:
    return matrix - matrix.mean(dim=0) - matrix.mean(dim=1, keepdim=True) + matrix.mean()


COLOURS = torch.rand(L, 3, generator=torch.Generator().manual_seed(5))


@FORMS
def test_the_participation_ratio_is_that_of_the_eigenvalues(form: str) -> None:
    values = torch.tensor([4.0, 2.0, 1.0, 1.0], dtype=torch.float64)
    a = orthonormal(4) * values.sqrt() + 3  # the shift changes nothing
    assert participation_ratio(mean(a, form)) == pytest.approx(8**2 / 22, rel=1e-3)
    assert participation_ratio(mean(torch.ones(L, 2), form)) is None


@FORMS
def test_colour_explains_all_of_its_own_gram_and_nothing_of_noise(form: str) -> None:
    assert cka_with_colour(mean(COLOURS, form), COLOURS) == pytest.approx(1, abs=1e-4)
    told = cka_with_colour(mean(normal(L, 8), form), COLOURS)
    assert told == pytest.approx(float(cka(normal(L, 8), COLOURS, debiased=True)), abs=1e-5)
    assert abs(told) < 0.1
    assert cka_with_colour(mean(normal(L, 8), form), torch.ones(L, 3)) is None
    assert cka_with_colour(mean(normal(3, 2), form), COLOURS[:3]) is None  # debiased CKA needs four


def test_mean_colours_are_in_0_to_1_whatever_the_pixels_are() -> None:
    pixels = torch.zeros(2, 3, 2, 2, dtype=torch.uint8)
    pixels[0, 1] = 255
    pixels[1, 2, 0] = 51
    images = Samples(pixels, None, Normalisation((0.0,) * 3, (255.0,) * 3))
    assert torch.allclose(mean_colours(images), torch.tensor([[0, 1, 0], [0, 0, 0.1]]))


@FORMS
def test_without_colour_nothing_is_left_of_the_colours_gram_and_all_of_what_is_apart_from_it(form: str) -> None:
    left = cleaned(mean(2 * COLOURS + 1, form), "colour", COLOURS)
    assert not any(tensor.any() for tensor in left.values())
    x = normal(L, 4).requires_grad_()
    disagreement(x, left, ALL).backward()
    assert x.grad is not None
    assert not x.grad.any()
    basis = torch.linalg.qr((COLOURS - COLOURS.mean(dim=0)).double()).Q
    apart = orthonormal(6)
    apart -= basis @ (basis.T @ apart)
    both = torch.cat([apart, COLOURS], dim=1)
    assert torch.allclose(whole(cleaned(mean(both, form), "colour", COLOURS)), apart @ apart.T, atol=1e-6)


@FORMS
def test_with_images_of_one_colour_there_is_nothing_to_take_out(form: str) -> None:
    a = normal(L, 5).double()
    left = whole(cleaned(mean(a, form), "colour", torch.full((L, 3), 0.3)))
    assert torch.allclose(left, centred(a @ a.T), atol=1e-4)


@FORMS
@pytest.mark.parametrize("directions", [1, 8, 30])
def test_whitening_changes_no_isotropic_gram(form: str, directions: int) -> None:
    a = 3 * orthonormal(directions)
    assert torch.allclose(whole(cleaned(mean(a, form), "whitened", COLOURS)), a @ a.T, atol=1e-5)


@FORMS
def test_whitened_the_leading_directions_count_alike_and_the_others_not_at_all(form: str) -> None:
    u = orthonormal(4)
    a = u * torch.tensor([10.0, 4.0, 1.0, 0.05]).double().sqrt()  # the last has less than a hundredth of the first
    found = cleaned(mean(a, form), "whitened", COLOURS)
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == {"factors": (L, 3)}
    assert torch.allclose(whole(found), 5 * u[:, :3] @ u[:, :3].T, atol=1e-4)


@FORMS
def test_with_neighbours_groups_of_k_become_the_gram_of_their_labels(form: str) -> None:
    """Twenty pairs of images: k = 2, and each image's neighbours are itself and the other of the pair."""
    labels = torch.arange(L) // 2
    a = torch.nn.functional.one_hot(labels).double() + 0.1 * normal(L, L // 2, seed=3).double()
    found = cleaned(mean(a, form), "neighbours", COLOURS)
    assert torch.equal(found["gram"], (labels[:, None] == labels).float())


@FORMS
def test_neighbours_in_common_count(form: str) -> None:
    """Images on a line, ever further apart: an image's two nearest are itself and the one before it."""
    found = cleaned(mean(1.1 ** torch.arange(L).double()[:, None], form), "neighbours", COLOURS)["gram"]
    assert torch.equal(found[10, 8:13], torch.tensor([0, 0.5, 1, 0.5, 0]))
    assert found[0, 1] == 1  # each is the other's nearest
    assert torch.equal(found, found.T)


@FORMS
@pytest.mark.parametrize("how", CLEANINGS)
def test_of_a_constant_mean_nothing_is_left(how: Cleaning, form: str) -> None:
    found = cleaned(mean(torch.full((L, 2), 0.7), form), how, COLOURS)
    assert not any(tensor.any() for tensor in found.values())


@pytest.mark.parametrize("how", CLEANINGS)
def test_both_forms_are_cleaned_alike(how: Cleaning) -> None:
    a = normal(L, 6, seed=2) * torch.tensor([3.0, 2, 1, 1, 0.5, 0.5]) + COLOURS[:, :1]
    rows = torch.tensor([3, 39, 0, 7, 12, 20])
    values = [disagreement(normal(6, 5), cleaned(mean(a, of), how, COLOURS), rows) for of in ("factors", "gram")]
    assert values[0].item() == pytest.approx(values[1].item(), abs=1e-4)
