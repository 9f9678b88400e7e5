"""Two views of whole batches are torchvision's of single images (specification D.0)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms import functional as F
from torchvision.transforms.functional import InterpolationMode

from kinfed.errors import InputError
from kinfed.learning.views import Draw, draw, one_view, two_views, unnormalised, view
from kinfed.streams import torch_stream
from tests.builders import dataset, float_samples


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(count: int, channels: int, height: int, width: int) -> Tensor:
    """Smooth colours and noise, a uniform image and a grey one among them."""
    pixels = torch.rand(count, channels, height, width, generator=stream(7))
    pixels[0] = 0.25
    pixels[1] = pixels[1, :1]
    pixels[2] = pixels[2].mul(255).round() / 255
    pixels[3, 0] = 1.0
    return pixels


def by_torchvision(image: Tensor, d: Draw, i: int) -> Tensor:
    box = [int(side[i]) for side in (d.top, d.left, d.height, d.width)]
    image = F.resized_crop(image, *box, list(image.shape[1:]), InterpolationMode.BILINEAR, antialias=True)
    if d.flipped[i]:
        image = F.hflip(image)
    changes = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)
    if d.jittered[i]:
        for which in d.order[i].tolist():
            image = changes[which](image, d.factors[i, which].item())
    return F.rgb_to_grayscale(image, len(image)) if d.grey[i] and len(image) == 3 else image


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("height", "width"), [(32, 32), (8, 8), (20, 31)])
def test_every_pixel_is_torchvisions(channels: int, height: int, width: int) -> None:
    given, drawn = images(64, channels, height, width), draw(64, height, width, stream())
    seen = view(given, drawn)
    expected = torch.stack([by_torchvision(image, drawn, i) for i, image in enumerate(given)])
    assert seen.shape == given.shape
    # A hue of nearly no chroma is rounding, and so is what is made of it: 1e-4 is a fortieth of a step of 1/255.
    assert torch.allclose(seen, expected, atol=1e-4)
    assert (seen - expected).abs().mean() < 1e-6


@pytest.mark.parametrize("which", range(4))
def test_each_change_of_colour_is_torchvisions(which: int) -> None:
    given = images(32, 3, 16, 16)
    plain = draw(32, 16, 16, stream())
    whole = replace(
        plain,
        top=torch.zeros(32, dtype=torch.int64),
        left=torch.zeros(32, dtype=torch.int64),
        height=torch.full((32,), 16),
        width=torch.full((32,), 16),
        flipped=torch.zeros(32, dtype=torch.bool),
        jittered=torch.ones(32, dtype=torch.bool),
        grey=torch.zeros(32, dtype=torch.bool),
        factors=torch.where(torch.arange(4) == which, plain.factors, torch.tensor([1.0, 1.0, 1.0, 0.0])),
    )
    change = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)[which]
    expected = torch.stack([change(image, whole.factors[i, which].item()) for i, image in enumerate(given)])
    assert torch.allclose(view(given, whole), expected, atol=1e-5)
    assert not torch.allclose(expected, given, atol=0.05)


def test_crops_have_the_sizes_and_places_that_torchvision_draws() -> None:
    """Means over many draws, within four standard errors of torchvision's own."""
    count, height, width = 4000, 24, 40
    drawn = draw(count, height, width, stream())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        blank = torch.zeros(1, height, width)
        theirs = torch.tensor(
            [RandomResizedCrop.get_params(blank, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(count)],
            dtype=torch.float64,
        )
    ours = torch.stack([drawn.top, drawn.left, drawn.height, drawn.width], dim=1).double()
    error = (ours.var(dim=0) / count + theirs.var(dim=0) / count).sqrt()
    assert ((ours.mean(dim=0) - theirs.mean(dim=0)).abs() < 4 * error).all()
    assert (ours[:, 0] + ours[:, 2] <= height).all()
    assert (ours[:, 1] + ours[:, 3] <= width).all()
    assert (ours[:, 2:] >= 1).all()


@pytest.mark.parametrize(("height", "width"), [(4, 64), (64, 4)])
def test_where_hardly_a_crop_fits_it_is_the_middle(height: int, width: int) -> None:
    drawn = draw(2000, height, width, stream())
    long, short = ("width", "height") if width > height else ("height", "width")
    expected = 5  # 4 · 4/3, rounded
    offset = drawn.left if width > height else drawn.top
    middle = offset == (64 - expected) // 2
    assert getattr(drawn, short).max() == 4
    assert ((getattr(drawn, long) == expected) & middle).sum() > 1000


def test_chances_and_ranges_are_those_of_the_paper() -> None:
    drawn = draw(20000, 32, 32, stream())
    for chosen, share in ((drawn.flipped, 0.5), (drawn.jittered, 0.8), (drawn.grey, 0.2)):
        assert chosen.double().mean().item() == pytest.approx(share, abs=0.015)
    low, high = drawn.factors.aminmax(dim=0)
    assert low.tolist() == pytest.approx([0.2, 0.2, 0.2, -0.2], abs=2e-3)
    assert high.tolist() == pytest.approx([1.8, 1.8, 1.8, 0.2], abs=2e-3)
    orders = drawn.order.unique(dim=0, return_counts=True)[1]
    assert len(orders) == 24
    assert orders.min() > 700


def test_two_views_differ_from_one_another_and_from_image_to_image() -> None:
    given = images(4, 3, 32, 32)[3:].expand(6, -1, -1, -1)
    first, second = two_views(given, stream())
    seen = torch.cat([first, second]).flatten(1)
    assert ((seen[:, None] - seen).abs().amax(dim=2) + torch.eye(12) > 0.01).all()
    assert 0 <= seen.min() <= seen.max() <= 1


def test_the_stream_is_all_that_a_view_depends_on(global_generators: None) -> None:  # case 53
    given = dataset(16).train.inputs
    streams = [torch_stream(0, "views", client, round) for client in (0, 1) for round in (1, 2)]
    seen = [two_views(given, each)[0] for each in streams]
    assert torch.equal(seen[0], two_views(given, torch_stream(0, "views", 0, 1))[0])
    assert all(not torch.equal(seen[0], other) for other in seen[1:])


def test_stored_bytes_and_unit_floats_are_the_same_images() -> None:
    stored = torch.randint(0, 256, (5, 3, 16, 16), dtype=torch.uint8, generator=stream())
    for ours, theirs in zip(two_views(stored, stream(1)), two_views(stored / 255, stream(1)), strict=True):
        assert torch.equal(ours, theirs)
    read = unnormalised(float_samples(stored, [0] * 5)).batch(slice(None))
    assert torch.allclose(read, stored / 255, atol=1e-6)
    assert torch.equal(unnormalised(float_samples(stored / 255, [0] * 5)).batch(slice(None)), stored / 255)


@pytest.mark.parametrize("shape", [(4, 8), (4, 2, 8, 8)])
def test_what_is_no_image_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="two views need greyscale or RGB images"):
        two_views(torch.zeros(shape), stream())


def test_one_view_of_a_set_is_that_of_its_images_as_floats_in_0_to_1(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = images(20, 3, 8, 8)
    samples = float_samples(pixels, [0] * 20)
    seen = one_view(samples, stream())
    assert torch.equal(seen.batch(slice(None)), view(pixels, draw(20, 8, 8, stream())))
    assert seen.labels is None
    stored = float_samples(pixels.mul(255).round().to(torch.uint8), [0] * 20)
    assert torch.allclose(one_view(stored, stream()).inputs, seen.inputs, atol=0.02)
    monkeypatch.setattr("kinfed.learning.views.CHUNK", 8)
    parts = one_view(samples, stream()).inputs
    assert torch.equal(parts[:8], view(pixels[:8], draw(8, 8, 8, stream())))
    assert parts.shape == pixels.shape
