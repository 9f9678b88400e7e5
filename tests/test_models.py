from __future__ import annotations

import pytest
import torch

from kinfed.errors import InputError
from kinfed.models import ALL, ARCHITECTURES, BODY, HEAD, Model, build, select, suited

SHAPES = {
    "tiny_cnn": (1, 8, 8),
    "small_cnn": (3, 32, 32),
    "cnn4": (3, 32, 32),
    "mlp": (1, 28, 28),
    "resnet18": (3, 32, 32),
}


def made(name: str) -> Model:
    return build(name, SHAPES[name], 10, seed=0)


@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [
        ("small_cnn", (3, 32, 32), 151_802),  # METHODS.md B.5
        ("cnn4", (3, 32, 32), 115_658),  # METHODS.md C.6
        ("mlp", (1, 28, 28), 199_210),  # McMahan et al. 2017
        ("tiny_cnn", (1, 8, 8), (9 + 1) * 16 + (16 * 9 + 1) * 32 + (128 + 1) * 64 + (64 + 1) * 10),
        ("resnet18", (3, 32, 32), 11_173_962),  # torchvision's 11,689,512, less 999 classes and 7×7 - 3×3 of the stem
    ],
)
def test_parameter_counts(name: str, shape: tuple[int, ...], parameters: int) -> None:
    assert sum(p.numel() for p in build(name, shape, 10, 0).parameters()) == parameters
    assert 11_689_512 - 513 * 990 - 64 * 3 * (49 - 9) == 11_173_962


def test_cnn4_on_mnist_has_64_features() -> None:
    assert build("cnn4", (1, 28, 28), 10, 0).head.in_features == 64


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_head_of_body_is_the_model(name: str) -> None:
    model = made(name).eval()
    x = torch.rand(2, *SHAPES[name])
    with torch.no_grad():
        assert torch.equal(model(x), model.head(model.body(x)))
        assert model(x).shape == (2, 10)
    assert model.tensors(BODY).keys() | model.tensors(HEAD).keys() == model.state_dict().keys()
    assert model.tensors(HEAD).keys() == {"head.weight", "head.bias"}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_tap_can_be_read_and_reading_changes_nothing(name: str) -> None:
    model = made(name).eval()
    x = torch.rand(2, *SHAPES[name])
    with torch.no_grad():
        read = model.activations(x, model.taps)
        assert [*read] == [*model.taps]
        assert torch.equal(read["head"], model(x))
        for tap in model.taps:  # an in-place layer after the tap would have overwritten it (case 22)
            assert torch.equal(read[tap], model.activations(x, [tap])[tap])


def test_reading_a_tap_runs_no_further() -> None:
    model = made("small_cnn")
    model.body.fc120.register_forward_hook(lambda *_: pytest.fail("ran further than conv2"))
    assert model.activations(torch.rand(2, 3, 32, 32), ["conv1", "conv2"])["conv2"].shape == (2, 32, 10, 10)


def test_small_cnn_has_fedckas_seven_layers() -> None:  # METHODS.md B.5
    assert made("small_cnn").taps[:6] == ("conv1", "conv2", "fc120", "fc84", "proj84", "proj256")


def test_an_unknown_tap_is_refused_with_those_there_are() -> None:  # case 25
    with pytest.raises(InputError, match=r"'conv1.weight' is no tap point .* conv1, conv2, fc64, body, head"):
        made("tiny_cnn").activations(torch.rand(1, 1, 8, 8), ["conv1.weight"])


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_weights_belong_to_the_seed(name: str) -> None:
    first, again, other = (build(name, SHAPES[name], 10, seed).tensors() for seed in (0, 0, 1))
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_the_head_is_initialised_as_pytorch_does() -> None:  # METHODS.md C.3
    head = made("tiny_cnn").head
    assert head.weight.abs().max() <= 64**-0.5
    assert head.weight.std().item() == pytest.approx(64**-0.5 / 3**0.5, rel=0.1)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("small_cnn", (1, 8, 8), "small_cnn needs images of 16×16 or more, and these are 8×8; tiny_cnn suits them"),
        ("cnn4", (3, 32, 15), "needs images of 16×16 or more, and these are 32×15"),
        ("cnn4", (30,), "takes images c×h×w, and the inputs are 30; mlp takes flat features"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(name, shape, 10, 0)


@pytest.mark.parametrize("name", [n for n, a in ARCHITECTURES.items() if a.smallest])
def test_the_smallest_inputs_that_are_allowed_work(name: str) -> None:
    side = ARCHITECTURES[name].smallest
    assert side is not None
    assert build(name, (1, side, side), 3, 0).eval()(torch.rand(2, 1, side, side)).shape == (2, 3)


@pytest.mark.parametrize(
    ("shape", "name"),
    [((1, 8, 8), "tiny_cnn"), ((1, 16, 16), "cnn4"), ((3, 32, 32), "cnn4"), ((3, 64, 64), "resnet18"), ((30,), "mlp")],
)
def test_data_get_the_model_that_suits_them(shape: tuple[int, ...], name: str) -> None:
    assert suited(shape) == name
    build(name, shape, 2, 0)


def test_large_images_get_the_original_stem() -> None:
    assert build("resnet18", (1, 96, 96), 2, 0).body.stem[0].kernel_size == (7, 7)
    assert build("resnet18", (1, 64, 64), 2, 0).body.stem[0].kernel_size == (3, 3)


def test_tensors_are_copies_and_load_copies() -> None:
    model = made("tiny_cnn")
    kept = model.tensors()
    with torch.no_grad():
        model.head.bias.add_(1)
    assert not torch.equal(kept["head.bias"], model.head.bias)
    model.load(kept)
    assert torch.equal(kept["head.bias"], model.head.bias)
    kept["head.bias"].add_(1)
    assert not torch.equal(kept["head.bias"], model.head.bias)


def test_loading_a_part_leaves_the_rest() -> None:
    model, other = made("tiny_cnn"), build("tiny_cnn", SHAPES["tiny_cnn"], 10, seed=1)
    before = model.tensors(HEAD)
    model.load(other.tensors(BODY))
    assert all(torch.equal(before[n], t) for n, t in model.tensors(HEAD).items())
    assert all(torch.equal(other.tensors(BODY)[n], t) for n, t in model.tensors(BODY).items())
    assert select(model.tensors(), ALL).keys() == model.tensors().keys()
