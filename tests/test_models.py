from __future__ import annotations

import copy
import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from kinfed.errors import InputError
from kinfed.models import (
    ALL,
    ARCHITECTURES,
    BODY,
    HEAD,
    Model,
    build,
    default_architecture,
    load_weights,
    open_saved,
    select,
    set_batchnorm,
)
from tests.builders import installed_package

LARGER = dict.fromkeys(("resnet34", "resnet50", "vgg16", "vgg16_bn"), (3, 32, 32)) | {"mcmahan_cnn": (1, 28, 28)}
SHAPES = LARGER | {
    "tiny_cnn": (1, 8, 8),
    "small_cnn": (3, 32, 32),
    "cnn4": (3, 32, 32),
    "cnn4_half": (3, 32, 32),
    "mlp": (1, 28, 28),
    "resnet18": (3, 32, 32),
}


def made(name: str) -> Model:
    return build(name, SHAPES[name], 10, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [
        ("small_cnn", (3, 32, 32), 151_802),  # specification B.5
        ("cnn4", (3, 32, 32), 115_658),  # specification C.6
        ("cnn4_half", (3, 32, 32), 28 * 32 + 64 + 3 * (289 * 32 + 64) + 129 * 10),
        ("mlp", (1, 28, 28), 199_210),  # McMahan et al. 2017
        ("tiny_cnn", (1, 8, 8), (9 + 1) * 16 + (16 * 9 + 1) * 32 + (128 + 1) * 64 + (64 + 1) * 10),
        ("resnet18", (3, 32, 32), 11_173_962),  # torchvision's 11,689,512, less 990 classes and 7×7 - 3×3 of the stem
        ("mcmahan_cnn", (1, 28, 28), 1_663_370),  # specification E.4
        ("resnet34", (3, 32, 32), 21_797_672 - 513 * 990 - 64 * 3 * (49 - 9)),
        ("resnet50", (3, 32, 32), 25_557_032 - 2049 * 990 - 64 * 3 * (49 - 9)),
        ("resnet50", (3, 96, 96), 25_557_032 - 2049 * 990),
        ("vgg16", (3, 32, 32), 14_714_688 + 5_130),  # the convolutions, and 512 → 10
        ("vgg16_bn", (3, 32, 32), 14_723_136 + 5_130),
        ("vgg16", (3, 96, 96), 138_357_544 - 4097 * 990),
    ],
)
def test_parameter_counts(name: str, shape: tuple[int, ...], parameters: int) -> None:
    assert sum(p.numel() for p in build(name, shape, 10, 0).parameters()) == parameters


def test_cnn4_on_mnist_has_64_features() -> None:
    assert build("cnn4", (1, 28, 28), 10, 0).head.in_features == 64


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_head_of_body_is_the_model(name: str) -> None:
    model = made(name).eval()
    x = torch.rand(2, *SHAPES[name])
    with torch.no_grad():
        assert torch.equal(model(x), model.head(model.body(x)))
        assert model(x).shape == (2, 10)
    assert model.tensors(BODY).keys() | model.tensors(HEAD).keys() == model.state_dict().keys()
    assert model.tensors(HEAD).keys() == {"head.weight", "head.bias"}


@pytest.mark.slow
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


def test_small_cnn_has_fedckas_seven_layers() -> None:  # specification B.5
    assert made("small_cnn").taps[:6] == ("conv1", "conv2", "fc120", "fc84", "proj84", "proj256")


class Adds(nn.Module):
    """Changes what it is given in place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(1)


def test_a_module_that_stands_twice_runs_twice() -> None:  # case 321
    relu, first, second = nn.ReLU(), nn.Linear(2, 2), nn.Linear(2, 2)
    nn.init.constant_(second.bias, -1)  # so that the second ReLU has something to do, whatever the weights
    model = Model({"fc1": first, "act1": relu, "fc2": second, "act2": relu}, nn.Linear(2, 2), ["act1", "fc2", "act2"])
    x = noise(50, 2)
    with torch.no_grad():
        expected = {"act1": first(x).relu(), "fc2": second(first(x).relu()), "body": second(first(x).relu()).relu()}
        read = model.activations(x, model.taps)
        assert torch.equal(read["head"], model(x))
        assert torch.equal(read["head"], model.head(expected["body"]))
    assert (expected["fc2"] < 0).any()
    assert all(torch.equal(read[tap], value) for tap, value in (expected | {"act2": expected["body"]}).items())
    assert model.layers == ("act1", "fc2", "act2", "head")


def test_a_tap_before_a_layer_that_works_in_place_is_what_it_was_there() -> None:  # case 321
    first = nn.Linear(2, 3)
    stages = {"fc": first, "view": nn.Flatten(), "act": nn.ReLU(inplace=True), "adds": Adds()}
    model = Model(stages, nn.Linear(3, 2), ["fc", "view", "act", "adds"])
    x = noise(50, 2)
    read = model.activations(x, ["fc", "view", "act", "adds", "body"])
    expected = [first(x), first(x), first(x).relu(), first(x).relu() + 1, first(x).relu() + 1]
    assert all(torch.equal(found, right) for found, right in zip(read.values(), expected, strict=True))
    (gradient,) = torch.autograd.grad(read["fc"].sum(), first.bias)
    assert gradient.tolist() == [50.0] * 3


def test_a_first_layer_that_works_in_place_leaves_the_inputs_alone() -> None:
    model = Model({"adds": Adds()}, nn.Linear(2, 2), ["adds"])
    x = noise(3, 2)
    before = x.clone()
    assert torch.equal(model.body(x), before + 1)
    assert torch.equal(model.activations(x, ["adds"])["adds"], before + 1)
    assert torch.equal(x, before)


def tied() -> Model:
    """A layer that stands twice, and a weight that two layers have."""
    layer, other = nn.Linear(3, 3), nn.Linear(3, 3)
    other.weight = layer.weight
    return Model({"first": layer, "act": nn.ReLU(), "second": layer, "third": other}, nn.Linear(3, 2), [])


def test_what_is_used_twice_is_one_tensor_of_one_name() -> None:  # case 321
    model = tied()
    assert [*model.tensors()] == [
        "body.first.weight", "body.first.bias", "body.third.bias", "head.weight", "head.bias",
    ]  # fmt: skip
    model.load({"body.first.weight": torch.eye(3)})
    assert all(torch.equal(model.stages[name].weight, torch.eye(3)) for name in ("first", "second", "third"))


def test_a_model_with_tied_weights_is_saved_and_loaded(tmp_path: Path) -> None:
    model, other = tied(), tied()
    load_weights(other, saved(tmp_path / "tied.safetensors", model.tensors()))
    x = noise(4, 3)
    with torch.no_grad():
        assert torch.equal(model(x), other(x))


def test_a_head_whose_weights_are_used_in_the_body_is_refused() -> None:
    head = nn.Linear(2, 2)
    with pytest.raises(InputError, match=r"head: shares its weights with again.weight in the body"):
        Model({"again": head}, head, [])


def test_an_unknown_tap_is_refused_with_those_there_are() -> None:  # case 25
    with pytest.raises(InputError, match=r"'conv1.weight' is not a tap point .* conv1, conv2, fc64, body, head"):
        made("tiny_cnn").activations(torch.rand(1, 1, 8, 8), ["conv1.weight"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_weights_belong_to_the_seed(name: str) -> None:
    first, again, other = (build(name, SHAPES[name], 10, seed).tensors() for seed in (0, 0, 1))
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_the_head_is_initialised_as_pytorch_does() -> None:  # specification C.3
    head = made("tiny_cnn").head
    assert head.weight.abs().max() <= 64**-0.5
    assert head.weight.std().item() == pytest.approx(64**-0.5 / 3**0.5, rel=0.1)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("small_cnn", (1, 8, 8), "small_cnn needs images of 16×16 or more, but these are 8×8; use tiny_cnn"),
        ("cnn4", (3, 32, 15), "needs images of 16×16 or more, but these are 32×15"),
        ("cnn4", (30,), "needs images c×h×w, but the inputs have the shape 30; mlp takes flat features"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(name, shape, 10, 0)


@pytest.mark.slow
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
    assert default_architecture(shape) == name
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


# -- BatchNorm --------------------------------------------------------------------------------------------------------


def layers(model: Model, kind: type[nn.Module]) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, kind)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cnn4", "resnet18", "vgg16_bn"])
def test_batchnorm_tracks_knows_its_batch_alone_or_becomes_groupnorm(name: str) -> None:
    made_with = {bn: build(name, (3, 32, 32), 10, 0, bn=bn) for bn in ("track", "batch", "group")}  # type: ignore[arg-type]
    count = len(layers(made_with["track"], nn.BatchNorm2d))
    assert count > 3
    assert all(layer.track_running_stats for layer in layers(made_with["track"], nn.BatchNorm2d))
    assert len(layers(made_with["batch"], nn.BatchNorm2d)) == count
    assert not [n for n in made_with["batch"].state_dict() if "running" in n]
    assert not layers(made_with["group"], nn.BatchNorm2d)
    assert [layer.num_groups for layer in layers(made_with["group"], nn.GroupNorm)] == [32] * count
    same_weights = [made_with[bn].state_dict()["head.weight"] for bn in made_with]
    assert all(torch.equal(same_weights[0], w) for w in same_weights)


def test_a_batchnorm_that_is_used_twice_becomes_one_layer() -> None:
    norm = nn.BatchNorm2d(4)
    model = Model({"norm": norm, "block": nn.Sequential(nn.ReLU(), norm), "again": norm}, nn.Linear(4, 2), [])
    set_batchnorm(model, "group")
    changed = model.stages["norm"]
    assert isinstance(changed, nn.GroupNorm)
    assert changed is model.stages["again"] is model.body.block[1]


def test_an_evaluation_depends_on_its_batch_only_where_batchnorm_says_so() -> None:
    x = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for bn, depends in (("track", False), ("group", False), ("batch", True)):
        model = build("cnn4", (3, 32, 32), 10, 0, bn=bn).eval()  # type: ignore[arg-type]
        with torch.no_grad():
            assert torch.allclose(model(x)[:4], model(x[:4]), atol=1e-5) != depends


# -- a user's own -----------------------------------------------------------------------------------------------------


class Own(nn.Module):
    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, 7)
        self.classifier = nn.Sequential(nn.Dropout(0.5), nn.Linear(7, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.first(x.flatten(1)).relu())  # type: ignore[no-any-return]


def own(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Own(shape[0] * shape[1] * shape[2], classes)


def half_frozen(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The first layer without gradient, BatchNorm in evaluation mode."""
    frozen = nn.Sequential(nn.Conv2d(shape[0], 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 7))
    frozen[0].requires_grad_(False)
    frozen[1].eval()
    return nn.Sequential(frozen, nn.ReLU(), nn.Linear(7, classes))


def too_few(shape: tuple[int, ...], classes: int) -> nn.Module:
    return own(shape, classes - 1)


def ready(shape: tuple[int, ...], classes: int) -> nn.Module:
    return build("mlp", shape, classes, 0)


def test_any_module_whose_head_is_named_is_a_model() -> None:
    model = build(f"{__name__}:own", (1, 8, 8), 10, 3, head="classifier.1").eval()
    assert model.layers == ("body", "head")
    assert model.head.in_features == 7
    with torch.random.fork_rng(devices=[]):
        x = torch.rand(2, 1, 8, 8)
    with torch.no_grad():
        assert torch.equal(model(x), model.head(model.body(x)))
        assert (model.body(x) >= 0).all()
    assert select(model.state_dict(), HEAD).keys() == {"head.weight", "head.bias"}
    again = build(f"{__name__}:own", (1, 8, 8), 10, 3, head="classifier.1")
    assert torch.equal(model.head.weight, again.head.weight)


def test_what_a_function_froze_is_frozen_whatever_is_trained() -> None:  # case 322
    model = build(f"{__name__}:half_frozen", (1, 8, 8), 10, 0, head="2")
    layers = model.body.net[0]

    def modes() -> list[bool]:
        return [layer.training for layer in (layers, layers[0], layers[1], layers[3], model.head)]

    assert modes() == [True, True, False, True, True]
    for part in (HEAD, BODY, ALL):
        model.eval()
        model.freeze_all_but(part)
        assert not any(p.requires_grad for p in layers[0].parameters())
        assert all(p.requires_grad == (part != HEAD) for p in layers[3].parameters())
        assert all(p.requires_grad == (part != BODY) for p in model.head.parameters())
        assert modes() == [part != HEAD, part != HEAD, False, part != HEAD, part != BODY]
    assert not copy.deepcopy(model).eval().train().body.net[0][1].training


def test_a_layer_that_is_frozen_is_not_replaced() -> None:
    with pytest.raises(InputError, match=r"bn: 'group' is not allowed; it replaces body.net.0.1, which is frozen"):
        build(f"{__name__}:half_frozen", (1, 8, 8), 10, 0, bn="group", head="2")


def test_a_function_may_return_a_model_of_kinfed() -> None:
    assert build(f"{__name__}:ready", (1, 8, 8), 10, 0).layers == ("fc1", "fc2", "head")


@pytest.mark.parametrize(
    ("name", "head", "message"),
    [
        (
            "upside_down",
            None,
            "head: must be given, since the linear layer defined last, first, does not run last",
        ),
        ("soft", None, "the model must end in its head, one of 1"),
        ("headless", None, "head: the model must have a linear layer; it has none"),
        ("no_module", None, "no_module returns str; must be a torch.nn.Module"),
        ("own", "fc", "head: 'fc' is not a linear layer of the model; it has first, classifier.1"),
        ("own", "classifier", "head: 'classifier' is not a linear layer"),
        ("too_few", "classifier.1", r"has outputs of shape \(2, 9\) for 2 samples; must be \(2, 10\)"),
        ("nothing", None, "cannot be imported: .* has no attribute 'nothing'"),
        ("SHAPES", None, "is not a function"),
    ],
)
def test_what_is_no_model_is_refused(name: str, head: str | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(f"{__name__}:{name}", (1, 8, 8), 10, 0, head=head)


class UpsideDown(nn.Module):
    """Defines its head first."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.head, self.first = nn.Linear(7, classes), nn.Linear(shape[1] * shape[2], 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.first(x.flatten(1)).relu())  # type: ignore[no-any-return]


class Plain(nn.Sequential):
    """A flat one."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(shape[1] * shape[2], 7), nn.Tanh(), nn.Linear(7, classes))


upside_down = UpsideDown


def soft(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[1] * shape[2], classes), nn.Softmax(dim=1))


def headless(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, classes, shape[1]), nn.Flatten())


def no_module(shape: tuple[int, ...], classes: int) -> str:
    return f"{shape} {classes}"


PLAIN = Plain((1, 8, 8), 10)


@pytest.mark.parametrize(
    ("given", "architecture"),
    [
        (own, f"{__name__}:own"),
        (f"{__name__}:own", f"{__name__}:own"),
        (Plain, f"{__name__}:Plain"),
        (f"{__name__}:Plain", f"{__name__}:Plain"),
        (PLAIN, "<Plain>"),
        (f"{__name__}:PLAIN", f"{__name__}:PLAIN"),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), "<Sequential>"),
        (lambda shape, classes: Plain(shape[:], classes), "<lambda>"),
        (functools.partial(own), "<partial>"),
    ],
)
def test_a_model_is_whatever_makes_a_module(given: Any, architecture: str) -> None:
    model = build(given, (1, 8, 8), 10, 3)
    assert model.recipe == {"architecture": architecture, "bn": "track"}
    assert model.layers == ("body", "head")
    assert model.head.out_features == 10
    x = torch.linspace(0, 1, 128).reshape(2, 1, 8, 8)
    with torch.no_grad():
        assert torch.equal(model.eval()(x), model.head(model.body(x)))
    again, other = (build(given, (1, 8, 8), 10, seed).state_dict() for seed in (3, 4))
    assert all(torch.equal(again[name], tensor) for name, tensor in model.state_dict().items())
    ready = isinstance(given, nn.Module) or architecture.endswith("PLAIN")
    assert torch.equal(model.head.weight, other["head.weight"]) is ready


def test_a_ready_module_is_copied_with_its_weights() -> None:
    before = {name: tensor.clone() for name, tensor in PLAIN.state_dict().items()}
    model = build(PLAIN, (1, 8, 8), 10, 0)
    assert torch.equal(model.head.weight, before["3.weight"])
    with torch.no_grad():
        model.head.weight.add_(1)
        model.body.net[1].weight.add_(1)
    assert all(torch.equal(PLAIN.state_dict()[name], tensor) for name, tensor in before.items())


def test_a_head_that_is_named_is_the_same_as_the_one_that_is_found() -> None:
    found, named = (build(own, (1, 8, 8), 10, 0, head=head) for head in (None, "classifier.1"))
    assert found.state_dict().keys() == named.state_dict().keys()
    assert all(torch.equal(named.state_dict()[name], tensor) for name, tensor in found.state_dict().items())
    assert build(UpsideDown, (1, 8, 8), 10, 0, head="head").head.in_features == 7


@pytest.mark.parametrize("given", [3, None, [own]])
def test_what_makes_no_module_is_refused(given: Any) -> None:
    with pytest.raises(
        InputError, match=r"^model: .* is not allowed; must be a name, a function, a class or a torch\.nn\.Module"
    ):
        build(given, (1, 8, 8), 10, 0)
    with pytest.raises(InputError, match=r"^model: 'resnet19' is not known; .* did you mean resnet18"):
        build("resnet19", (3, 32, 32), 10, 0)


def test_an_installed_package_adds_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = f"[kinfed.models]\nplain = {__name__}:Plain\n"
    with installed_package(tmp_path, "kinfed-plain", "1.0", points, monkeypatch):
        assert ARCHITECTURES["plain"].summary == "A flat one."
        model = build("plain", (1, 8, 8), 10, 0)
        about = {**model.recipe, "shape": [1, 8, 8], "classes": [*"0123456789"]}
        path = saved(tmp_path / "m.safetensors", model.tensors(), about)
        assert torch.equal(open_saved(path)[0].head.weight, model.head.weight)  # an installed package may be imported


@pytest.mark.parametrize("architecture", [f"{__name__}:Plain", "<Plain>"])
def test_no_file_has_an_own_architecture_imported(architecture: str, tmp_path: Path) -> None:
    model = build(Plain, (1, 8, 8), 10, 0)
    about = {"architecture": architecture, "bn": "track", "shape": [1, 8, 8], "classes": [*"0123456789"]}
    with pytest.raises(InputError, match="is not a model of a known architecture"):
        open_saved(saved(tmp_path / "m.safetensors", model.tensors(), about))


# -- start weights and saved models -----------------------------------------------------------------------------------


def saved(path: Path, tensors: dict[str, torch.Tensor], about: dict[str, object] | None = None) -> Path:
    save_file(tensors, path, {"about": json.dumps(about)} if about else None)
    return path


def test_start_weights_are_those_of_the_file_bit_for_bit(tmp_path: Path) -> None:  # case 96
    other = build("tiny_cnn", (1, 8, 8), 10, seed=5).tensors()
    model = made("tiny_cnn")
    load_weights(model, saved(tmp_path / "whole.safetensors", other))
    assert all(torch.equal(other[n], t) for n, t in model.tensors().items())


def test_start_weights_of_the_body_alone_leave_the_head(tmp_path: Path) -> None:
    body = build("tiny_cnn", (1, 8, 8), 99, seed=5).tensors(BODY)
    model = made("tiny_cnn")
    head = model.tensors(HEAD)
    load_weights(model, saved(tmp_path / "body.safetensors", body))
    assert all(torch.equal(body[n], t) for n, t in model.tensors(BODY).items())
    assert all(torch.equal(head[n], t) for n, t in model.tensors(HEAD).items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: {n: v for n, v in t.items() if n != "body.fc64.0.bias"}, "lacks body.fc64.0.bias"),
        (lambda t: t | {"body.more": torch.ones(1)}, "has an unknown tensor body.more"),
        (
            lambda t: t | {"head.bias": torch.ones(3)},
            r"head.bias in .* has the shape \(3,\); must be \(10,\) as in the model",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(change: Any, message: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "w.safetensors", change(made("tiny_cnn").tensors()))
    with pytest.raises(InputError, match=message):
        load_weights(made("tiny_cnn"), path)


def test_what_is_no_safetensors_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(b"pickle")
    with pytest.raises(InputError, match="cannot be read as safetensors"):
        load_weights(made("tiny_cnn"), tmp_path / "w.safetensors")


def test_a_saved_model_predicts_as_it_did(tmp_path: Path) -> None:
    model = build("cnn4", (1, 16, 16), 3, 0, bn="group").eval()
    about = {**model.recipe, "shape": (1, 16, 16), "classes": ["a", "b", "c"]}
    read, shape, classes = open_saved(saved(tmp_path / "m.safetensors", model.tensors(), about))
    with torch.random.fork_rng(devices=[]):
        x = torch.rand(2, 1, 16, 16)
    with torch.no_grad():
        assert torch.equal(read(x), model(x))
    assert (shape, classes) == ((1, 16, 16), ("a", "b", "c"))


def test_a_file_cannot_make_us_import_anything(tmp_path: Path) -> None:
    about = {"architecture": f"{__name__}:own", "bn": "track", "shape": [1, 8, 8], "classes": ["a"]}
    with pytest.raises(InputError, match="is not a model of a known architecture"):
        open_saved(saved(tmp_path / "m.safetensors", {"a": torch.ones(1)}, about))


# -- computed in another order or layout than it is defined in ---------------------------------------------------------

POOLED = {name: SHAPES[name] for name in ("tiny_cnn", "small_cnn", "cnn4", "mcmahan_cnn", "vgg16_bn")}


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def as_defined(model: Model) -> nn.Sequential:
    """The same layers, with every ReLU where specification B.5 has it: before the pooling."""
    layers: list[nn.Module] = []
    for stage in model.body.children():
        if layers and isinstance(stage, nn.Sequential) and isinstance(stage[0], nn.MaxPool2d):
            layers += [nn.ReLU(), stage[0]]
        else:
            layers.append(stage)
    return nn.Sequential(*layers, model.head)


@pytest.mark.slow
@pytest.mark.parametrize("name", POOLED)
@pytest.mark.parametrize("mode", [True, False])
def test_relu_after_pooling_gives_the_same_bits_and_gradients(name: str, mode: bool) -> None:
    model, other = made(name).train(mode), made(name).train(mode)
    x = noise(4, *POOLED[name])
    logits, expected = model(x), as_defined(other)(x)
    assert torch.equal(logits, expected)
    nn.functional.cross_entropy(logits, torch.arange(4)).backward()
    nn.functional.cross_entropy(expected, torch.arange(4)).backward()
    pairs = list(zip(model.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a.grad, b.grad) for a, b in pairs)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", POOLED)
def test_a_convolutions_tap_is_read_after_its_relu_and_carries_gradient(name: str) -> None:
    model = made(name).eval()
    x, first = noise(2, *POOLED[name]), model.taps[0]
    stage, runs = model.body.get_submodule(first), []
    read = model.activations(x, [t for t in model.taps if t.startswith("conv")])
    assert all((activation >= 0).all() and (activation == 0).any() for activation in read.values())
    stage.register_forward_hook(lambda *_: runs.append(1))
    both = model.activations(x, [first, "head"])
    assert len(runs) == 1
    assert torch.equal(both[first], stage(x).relu())
    assert torch.equal(both["head"], model(x))
    weight = next(stage.parameters())
    (gradient,) = torch.autograd.grad(both[first].square().sum(), weight)
    (expected,) = torch.autograd.grad(stage(x).relu().square().sum(), weight)
    assert torch.equal(gradient, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_channels_last_predicts_the_same_and_sends_plain_tensors(name: str) -> None:
    plain, model = made(name).eval(), made(name).eval()
    model.prefer_channels_last()
    kernels = [m.weight for m in model.modules() if isinstance(m, nn.Conv2d) and m.weight.shape[1] > 1]
    kernels = [kernel for kernel in kernels if kernel.shape[2] > 1]  # of others, both layouts are one
    assert all(kernel.is_contiguous(memory_format=torch.channels_last) for kernel in kernels)
    assert not any(kernel.is_contiguous() for kernel in kernels)
    x = noise(2, *SHAPES[name])
    with torch.no_grad():
        expected_logits = plain(x)
        assert torch.allclose(model(x), expected_logits, atol=1e-5 * float(expected_logits.abs().max()))
    sent, expected = model.tensors(), plain.tensors()
    assert all(tensor.is_contiguous() for tensor in sent.values())
    assert all(torch.equal(tensor, expected[n]) for n, tensor in sent.items())
