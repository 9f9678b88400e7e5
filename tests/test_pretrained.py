"""Pre-trained weights: a new head, BatchNorm as it was, architectures of libraries, and what a run says of it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn

import kinfed
from kinfed.errors import InputError
from kinfed.learning import LocalTraining, Phase, train
from kinfed.models import BODY, HEAD, build, load_weights, select
from kinfed.report.folders import read_runs
from kinfed.report.notes import notes
from tests.builders import float_samples, same

GREY, COLOUR = (1, 16, 16), (3, 32, 32)


def saved(path: Path, model: nn.Module) -> Path:
    """A file with the tensors of a module under its own names."""
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, path)
    return path


def mobilenet(classes: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        module: nn.Module = torchvision.models.mobilenet_v3_small(weights=None, num_classes=classes)
    return module


# -- the head ---------------------------------------------------------------------------------------------------------


def test_a_head_for_other_classes_is_left_out_and_this_is_told(tmp_path: Path) -> None:
    of_ten, fresh, model = build("tiny_cnn", (1, 8, 8), 10, 1), *(build("tiny_cnn", (1, 8, 8), 3, 0) for _ in range(2))
    load_weights(model, saved(tmp_path / "w.safetensors", of_ten))
    assert same(model.tensors(BODY), of_ten.tensors(BODY))
    assert same(model.tensors(HEAD), fresh.tensors(HEAD))
    (told,) = model.start
    assert told.startswith("The head is new: ")
    assert told.endswith("w.safetensors has one for 10 classes, and the data have 3.")


def test_a_head_for_as_many_classes_is_kept(tmp_path: Path) -> None:
    other, model = (build("tiny_cnn", (1, 8, 8), 10, seed) for seed in (1, 0))
    load_weights(model, saved(tmp_path / "w.safetensors", other))
    assert same(model.tensors(), other.tensors())
    assert model.start == ()


def test_a_run_says_that_its_head_is_new(tmp_path: Path) -> None:
    weights = saved(tmp_path / "w.safetensors", build("tiny_cnn", (1, 8, 8), 3, 1))
    small: dict[str, Any] = {"data": "digits", "train_images": 60, "clients": 2, "partition": "iid", "public": 0}
    out = tmp_path / "out"
    kinfed.run("fedavg", **small, rounds=1, ft_epochs=0, model="tiny_cnn", weights=weights, out=out, quiet=True)
    (note,) = [note for note in notes(read_runs([out])) if "head" in note]
    assert note.endswith("has one for 3 classes, and the data have 10.")


# -- BatchNorm --------------------------------------------------------------------------------------------------------


def test_frozen_batchnorm_does_not_change_and_the_rest_is_trained() -> None:
    model = build("cnn4", GREY, 10, 0, bn="frozen")
    with torch.no_grad():
        for name, tensor in model.named_tensors().items():
            if "running" in name:
                tensor.add_(0.5)
    before, samples = model.tensors(), float_samples(torch.rand(33, *GREY), [i % 10 for i in range(33)])
    tally = train(model, samples, Phase(), LocalTraining(lr=0.1, batch_size=16, weight_decay=0.1), torch.Generator())
    norms = tuple(f"{name}." for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d))
    assert len(norms) == 4
    assert same(select(model.tensors(), norms), select(before, norms))
    moved = {name for name, tensor in model.tensors().items() if not torch.equal(tensor, before[name])}
    assert moved == {name for name in before if not name.startswith(norms)}
    assert (tally.steps, tally.skipped) == (3, 0)  # a batch of one sample is enough


def test_group_normalisation_takes_the_weights_of_batchnorm_and_tells_what_it_does_not(tmp_path: Path) -> None:
    other = build("cnn4", GREY, 10, 1)
    for parameter in other.parameters():
        nn.init.uniform_(parameter, generator=torch.Generator().manual_seed(0))
    path = saved(tmp_path / "w.safetensors", other)
    for bn in ("group", "batch"):
        model = build("cnn4", GREY, 10, 0, bn=bn)  # type: ignore[arg-type]
        load_weights(model, path)
        assert same(model.tensors(), {n: t for n, t in other.tensors().items() if n in model.tensors()})
        assert model.start == (f"The running statistics of BatchNorm in {path} are not used (bn={bn}).",)


def test_frozen_batchnorm_is_refused_without_weights(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^bn: 'frozen' needs weights, whose running statistics"):
        kinfed.run("fedavg", data="digits", bn="frozen", out=tmp_path / "out", quiet=True)


# -- architectures of libraries ---------------------------------------------------------------------------------------


def test_a_file_of_torchvision_fits_the_architecture_of_this_name(tmp_path: Path) -> None:
    theirs = mobilenet(7).eval()
    model = build("torchvision:mobilenet_v3_small", COLOUR, 7, 0)
    load_weights(model, saved(tmp_path / "w.safetensors", theirs))
    x = torch.rand(2, *COLOUR, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(model.eval()(x), theirs(x))
    other = build("torchvision:mobilenet_v3_small", COLOUR, 3, 0)
    load_weights(other, tmp_path / "w.safetensors")
    assert same(other.tensors(BODY), model.tensors(BODY))
    assert len(other.start) == 1


@pytest.mark.slow
def test_a_saved_model_of_a_library_is_opened_without_code_of_the_user(tmp_path: Path) -> None:
    small: dict[str, Any] = {"data": "digits", "train_images": 30, "clients": 2, "partition": "iid", "public": 0}
    kinfed.run(
        "fedavg", **small, channels=3, image_size=16, rounds=1, ft_epochs=0, out=tmp_path / "out", quiet=True,
        model="torchvision:mobilenet_v3_small",
    )  # fmt: skip
    assert kinfed.load(tmp_path / "out").predict(torch.zeros(1, 3, 16, 16, dtype=torch.uint8))


def test_timm_makes_the_architectures_that_it_has_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def create_model(name: str, *, pretrained: bool, num_classes: int) -> nn.Module:
        assert (name, pretrained) == ("small", False)
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, num_classes))

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(list_models=lambda: ["small"], create_model=create_model))
    assert build("timm:small", COLOUR, 7, 0).head.out_features == 7
    with pytest.raises(InputError, match=r"^model: 'timm:hf-hub:x/y' is not known; timm\.list_models\(\) has"):
        build("timm:hf-hub:x/y", COLOUR, 7, 0)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(InputError, match=r"^model: 'timm:small' needs timm: pip install timm$"):
        build("timm:small", COLOUR, 7, 0)


@pytest.mark.parametrize(
    ("name", "shape", "told"),
    [
        ("torchvision:mobilenet_v3_smal", COLOUR, "did you mean torchvision:mobilenet_v3_small"),
        ("torchvision:googlenet", COLOUR, "is not known"),
        (
            "torchvision:resnet18",
            GREY,
            "needs colour images 3×h×w, but the inputs have the shape 1×16×16; with",
        ),
        pytest.param("torchvision:vit_b_32", COLOUR, "does not take inputs of 3×32×32: ", marks=pytest.mark.slow),
        ("torchvision.models:resnet18", COLOUR, "takes no shape; give its name: 'torchvision:resnet18'"),
    ],
)
def test_what_a_library_cannot_make_is_refused_in_one_line(name: str, shape: tuple[int, ...], told: str) -> None:
    with pytest.raises(InputError) as error:
        build(name, shape, 7, 0)
    assert str(error.value).startswith("model: ")
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_a_stem_that_does_not_fit_is_refused_with_what_makes_it_fit(tmp_path: Path) -> None:
    theirs = torchvision.models.resnet18(weights=None)
    path = saved(tmp_path / "w.safetensors", theirs)
    for shape, told in (((1, 96, 96), "; with channels=3 grey images"), (COLOUR, "only images above 64×64 have")):
        with torch.device("meta"):
            model = build("resnet18", shape, 7, 0)
        with pytest.raises(InputError, match=r"conv1\.weight .* has the shape \(64, 3, 7, 7\); must be ") as error:
            load_weights(model, path)
        assert told in str(error.value)
