from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from safetensors.torch import load_file, save_file

import kinfed
from kinfed.errors import InputError
from kinfed.experiment.config import Config
from kinfed.models import BODY, build, load_weights, open_pool, save_tensors, select, weights_for
from tests.builders import same
from tests.test_models import noise

pytestmark = pytest.mark.usefixtures("global_generators")

TORCHVISION = ["resnet18", "vgg16_bn"]


def described(architecture: str, shape: tuple[int, ...], classes: int, **more: Any) -> dict[str, Any]:
    statistics = {"mean": [0.0] * shape[0], "std": [255.0] * shape[0]}
    names = [str(k) for k in range(classes)]
    card = {"version": 1, "architecture": architecture, "bn": "track", "shape": shape, "classes": names}
    return {**card, "normalisation": statistics, **more}


def put(
    folder: Path,
    name: str,
    tensors: dict[str, torch.Tensor] | None = None,
    *,
    architecture: str = "tiny_cnn",
    shape: tuple[int, ...] = (1, 8, 8),
    classes: int = 10,
    **more: Any,
) -> Path:
    """Files as somebody may have made them who has never run kinfed."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.safetensors"
    save_file(tensors or build(architecture, shape, classes, seed=1).tensors(), path)
    path.with_suffix(".json").write_text(json.dumps(described(architecture, shape, classes, **more)))
    return path


def torchvisions(architecture: str, classes: int) -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        model: torch.nn.Module = getattr(torchvision.models, architecture)(num_classes=classes)
    for name, buffer in model.named_buffers():  # as training leaves them
        if name.endswith("running_mean"):
            buffer.copy_(torch.linspace(-0.1, 0.1, len(buffer)))
    return model.eval()


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    return tmp_path / "pool"


def test_a_pool_is_read_by_name_whatever_its_shapes_and_widths(pool: Path) -> None:
    put(pool, "wide", architecture="mlp", shape=(3, 5, 4), classes=3, data="x", accuracy=0.5)
    put(pool, "cnn")
    cnn, wide = open_pool(pool)
    assert (cnn.name, wide.name) == ("cnn", "wide")
    assert (wide.card.data, wide.card.accuracy, wide.card.classes) == ("x", 0.5, ("0", "1", "2"))
    assert (cnn.card.data, cnn.card.accuracy, cnn.card.shape) == (None, None, (1, 8, 8))
    expected = build("tiny_cnn", (1, 8, 8), 10, seed=1).tensors()
    assert all(torch.equal(expected[name], tensor) for name, tensor in cnn.model.tensors().items())
    for source in (cnn, wide):
        assert not source.model.training
        assert not any(parameter.requires_grad for parameter in source.model.parameters())
        assert {t.device.type for t in source.model.state_dict().values()} == {"cpu"}
        assert source.model(noise(2, *source.card.shape)).shape == (2, len(source.card.classes))


def test_half_precision_becomes_single(pool: Path) -> None:
    put(pool, "half", {n: t.half() for n, t in build("tiny_cnn", (1, 8, 8), 10, 0).tensors().items()})
    (source,) = open_pool(pool)
    assert source.model.head.weight.dtype == torch.float32


def changed(path: Path, **fields: Any) -> None:
    card = json.loads(path.with_suffix(".json").read_text())
    path.with_suffix(".json").write_text(json.dumps(card | fields))


def rewritten(path: Path, tensors: dict[str, torch.Tensor], about: dict[str, Any] | None = None) -> None:
    save_file(load_file(path) | tensors, path, {"about": json.dumps(about)} if about else None)


def nested(path: Path) -> None:
    """An ``about`` a hundred thousand deep."""
    save_file(load_file(path), path, {"about": "[" * 100_000 + "]" * 100_000})


def header(path: Path, told: dict[str, Any], length: int | None = None) -> None:
    """A header that says this, of however many bytes, before 40 bytes of numbers."""
    text = json.dumps(told).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + bytes(40))


ABOUT = {"architecture": "tiny_cnn", "bn": "track", "shape": [1, 8, 8], "classes": [str(k) for k in range(10)]}


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda p: p.with_suffix(".json").unlink(), r"m\.safetensors must have its description m\.json"),
        (lambda p: p.unlink(), "has no source; a pool must have NAME.safetensors and NAME.json"),
        (lambda p: p.with_suffix(".json").write_text("{"), r"m\.json: is not a description of a model: Invalid JSON"),
        (lambda p: p.with_suffix(".json").write_bytes(b"\xff"), r"m\.json: is not a description of a model"),
        (lambda p: p.write_bytes(p.read_bytes()[:-9]), r"m\.safetensors.* cannot be read as safetensors"),
        (lambda p: p.write_bytes(b"pickle"), r"m\.safetensors.* cannot be read as safetensors"),
        (lambda p: rewritten(p, {}, {**ABOUT, "crc32": 1}), r"m\.safetensors is damaged"),
        (lambda p: rewritten(p, {}, {**ABOUT, "shape": [1, 9, 9]}), "since its shape differs"),
        (lambda p: rewritten(p, {"more": torch.ones(1)}), "has an unknown tensor more"),
        (
            lambda p: rewritten(p, {"head.bias": torch.full((10,), torch.nan)}),
            "a number in head.bias that is not finite",
        ),
        (
            lambda p: rewritten(p, {"head.bias": torch.full((10,), 1e300, dtype=torch.float64)}),
            "in head.bias that is not finite",
        ),
        (lambda p: rewritten(p, {"head.bias": torch.zeros(10, dtype=torch.int64)}), "has the type torch.int64"),
        (lambda p: rewritten(p, {"head.bias": torch.zeros(10, dtype=torch.complex64)}), "has the type torch.complex64"),
        (lambda p: save_file(select(load_file(p), BODY), p), "is a body without a head"),
        (lambda p: p.with_suffix(".json").write_text('{"a":' + "[" * 5000), r"Invalid JSON: recursion limit exceeded"),
        (lambda p: p.with_suffix(".json").write_text(" " * 2**24 + "{}"), "it has more than 16,777,216 bytes"),
        (
            lambda p: header(p, {"head.bias": {"dtype": "F32", "shape": [2**60], "data_offsets": [0, 40]}}),
            "as safetensors",
        ),
        (lambda p: header(p, {"head.bias": {"dtype": "F4", "shape": [80], "data_offsets": [0, 40]}}), "m.safetensors"),
        (lambda p: header(p, {}, length=2**62), "as safetensors"),
        (lambda p: (p.unlink(), p.mkdir()), "as safetensors"),
        (lambda p: (p.unlink(), p.symlink_to(p.parent / "gone")), "as safetensors"),
        (lambda p: changed(p, shape=[1, 2**20, 2**20], classes=["a"] * 2**18), "has the shape"),
        (lambda p: changed(p, architecture="lenet"), "architecture: 'lenet' is not known; allowed: tiny_cnn, "),
        (lambda p: changed(p, architecture="os:system"), "'os:system' is not known, and a file may not import"),
        (lambda p: changed(p, architecture="mlp"), "has an unknown tensor body.conv1.0.bias"),
        (lambda p: changed(p, architecture="vgg16"), r"m\.safetensors: .*: model: vgg16 needs images of 32×32"),
        (lambda p: changed(p, classes=["a", "b"]), r"head.bias in .* \(10,\); must be \(2,\)"),
        (lambda p: changed(p, shape=[1, 2**15, 2**15]), "has the shape"),
        (lambda p: changed(p, shape=[1, 2**60, 2**60]), "shape has more than 1,099,511,627,776 values"),
        (lambda p: changed(p, shape=[1, 0, 8]), "shape.1: Input should be greater than or equal to 1"),
        (lambda p: changed(p, shape=[64], normalisation={"mean": [0] * 64, "std": [1] * 64}), "needs images c×h×w"),
        (
            lambda p: (p.parent / "x.pth").touch(),
            r"save_file\(torch.load\('x.pth', weights_only=True\)",
        ),
    ],
)
def test_what_is_no_pool_is_told_in_one_line(harm: Callable[[Path], object], message: str, pool: Path) -> None:
    harm(put(pool, "m"))
    with pytest.raises(InputError, match=message) as told:
        open_pool(pool)
    assert "\n" not in str(told.value)


def test_a_pool_that_is_not_there_is_told(pool: Path) -> None:
    with pytest.raises(InputError, match=r"sources: '.*pool' is not a folder"):
        open_pool(pool)


# -- torchvision's names ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("architecture", TORCHVISION)
def test_torchvisions_own_files_give_its_own_logits(architecture: str, pool: Path, tmp_path: Path) -> None:
    theirs = torchvisions(architecture, 7)
    tensors = {n: t for n, t in theirs.state_dict().items() if not n.endswith("num_batches_tracked")}
    path = put(pool, "theirs", tensors, architecture=architecture, shape=(3, 96, 96), classes=7)
    x = noise(2, 3, 96, 96)
    ours = build(architecture, (3, 96, 96), 7, seed=0).eval()
    load_weights(ours, path)
    (source,) = open_pool(pool)
    with torch.no_grad():
        expected = theirs(x)
        assert torch.allclose(source.model(x), expected, atol=1e-5)
        assert torch.equal(source.model(x), ours(x))
        assert torch.allclose(kinfed.load(path)(x), expected, atol=1e-5)
    assert expected.abs().max() > 0.01
    assert len({*source.model.tensors()}) == len(theirs.state_dict())


@pytest.mark.parametrize("architecture", ["resnet34", "resnet50", "vgg16"])
def test_every_tensor_of_torchvisions_has_a_name(architecture: str, tmp_path: Path) -> None:
    from kinfed.models.torchvision_names import torchvision_names

    with torch.device("meta"):
        ours = build(architecture, (3, 96, 96), 1000, seed=0)
        theirs = getattr(torchvision.models, architecture)()
    names = torchvision_names(ours)
    shapes = {names[name]: tensor.shape for name, tensor in ours.state_dict().items()}
    assert shapes == {name: tensor.shape for name, tensor in theirs.state_dict().items()}


def test_the_stem_for_large_images_does_not_fit_small_ones(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file(torchvisions("resnet18", 10).state_dict(), path)
    with pytest.raises(InputError, match=r"conv1.weight in .* \(64, 3, 7, 7\); must be \(64, 3, 3, 3\)"):
        load_weights(build("resnet18", (3, 32, 32), 10, 0), path)


def test_without_their_head_torchvisions_weights_are_a_body_to_start_from(tmp_path: Path) -> None:
    path, tensors = tmp_path / "w.safetensors", torchvisions("resnet18", 1000).state_dict()
    save_file({name: tensor for name, tensor in tensors.items() if not name.startswith("fc.")}, path)
    model = build("resnet18", (3, 96, 96), 10, 0)
    before = model.head.weight.clone()
    load_weights(model, path)
    assert torch.equal(model.head.weight, before)
    assert torch.equal(model.state_dict()["body.layer4_2.conv2.weight"], tensors["layer4.1.conv2.weight"])


def test_pickles_are_refused_as_start_weights_before_anything_is_read(tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    path.touch()
    for refused in (
        lambda: load_weights(build("tiny_cnn", (1, 8, 8), 10, 0), path),
        lambda: Config.checked({"methods": ("fedavg",), "weights": str(path)}),
    ):
        with pytest.raises(
            InputError, match=r"may be a pickle, which can run code; if you trust it, .*'w.safetensors'"
        ):
            refused()


@pytest.mark.parametrize("harm", [nested, lambda p: save_file(load_file(p), p, {"about": " " * 2**26 + "{}"})])
def test_what_another_program_says_in_a_file_is_no_matter_however_deep_or_long(
    harm: Callable[[Path], object], tmp_path: Path
) -> None:  # case 311
    path = tmp_path / "m.safetensors"
    model = build("tiny_cnn", (1, 8, 8), 10, 0)
    save_tensors(path, model.tensors(), {})
    harm(path)
    assert same(weights_for(build("tiny_cnn", (1, 8, 8), 10, 1), path), model.tensors())
