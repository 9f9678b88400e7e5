"""Export of a trained model to a file that other programs can use, with a description and an example beside it."""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import io
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save
from torch import Tensor, nn

from kinfed.errors import InputError, check_choice
from kinfed.experiment.predictor import Predictor, load, model_file
from kinfed.files import claimed, output, write_whole
from kinfed.models import apart
from kinfed.settings import own_settings
from kinfed.streams import torch_stream

__all__ = ["Exported", "Form", "export"]

T = TypeVar("T")
Form = Literal["onnx", "torchscript", "state_dict"]

FOLDER = "exported"  # folder in that of the run
SUFFIXES: dict[str, str] = {"onnx": ".onnx", "torchscript": ".torchscript", "state_dict": ".safetensors"}
PACKAGES = ("onnx", "onnxscript", "onnxruntime")  # what the extra kinfed[onnx] has
CHECKED = 5  # inputs on which the exported model is compared with the original
LARGEST = 1e-3  # largest difference of an output, in relation to 1 or the largest output; no file differs more


@dataclasses.dataclass(frozen=True)
class Exported:
    """An exported model.

    Attributes:
        path: The file of the model.
        about: The JSON file that describes it.
        runner: What ran the file to check it, with its version.
        difference: Largest difference between its outputs and those of the original, on a few inputs.
    """

    path: Path
    about: Path
    runner: str
    difference: float


class _Complete(nn.Module):
    """A trained model from its raw inputs, uint8 images or features, to the probabilities of the classes.

    A model without classes gives representations instead.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, model: Predictor) -> None:
        super().__init__()
        self.net = model.model if model.classes else model.model.body
        self.has_classes = bool(model.classes)
        size = (1, -1) + (1,) * (len(model.shape) - 1)
        self.register_buffer("mean", torch.tensor(model.normalise.mean).view(size))
        self.register_buffer("scale", torch.tensor(model.normalise.std).reciprocal().view(size))

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the probabilities, n×K, or the representations, n×d."""
        outputs: Tensor = self.net((inputs.float() - self.mean) * self.scale)
        return outputs.softmax(dim=1) if self.has_classes else outputs


@own_settings(threads=None)
def export(
    path: Path, to: str = "onnx", *, client: int | str | None = None, out: Path | None = None, allow_code: bool = False
) -> Exported:
    """Export a model of a run, after a check that the exported one has the same outputs.

    Args:
        path: Run folder, or a safetensors file of a model.
        to: ``onnx``, ``torchscript``, or ``state_dict`` for the weights alone, under the names of their module.
        client: Number (int) or name (text) of the client whose model is exported; None for the global model.
        out: Folder for the two files, neither of which may be there; None for ``exported`` in the folder of the run,
            where former exports of the model are replaced.
        allow_code: Import the user's own architecture that the model's file names.

    Raises:
        InputError: If there is no such model or form, a package is missing, the form cannot express the model, or the
            folder cannot be written.
    """
    check_choice("to", to, get_args(Form))
    if to == "onnx" and not all(importlib.util.find_spec(package) for package in PACKAGES):
        raise InputError("to: onnx needs packages that are not installed: pip install 'kinfed[onnx]'")
    if out is None and not path.is_dir():
        raise InputError(f"out: must be given, since {str(path)!r} is not a run folder")
    model = load(path, client, allow_code=allow_code)
    name = f"{model_file(path, client).stem}{SUFFIXES[to]}"
    folder = path / FOLDER if out is None else out
    files = folder / name, folder / f"{name}.json"
    if out is not None and (there := next((file for file in files if file.exists()), None)):
        raise InputError(f"out: {str(there)!r} exists; choose another folder")
    whole, inputs = _Complete(model).eval(), _inputs(model)
    with torch.no_grad():
        outputs = whole(inputs)
        content, runner, made = FORMS[to](model, whole, inputs)
    difference = (made - outputs).abs().max().item()
    if not difference <= LARGEST * max(1.0, outputs.abs().max().item()):
        raise InputError(f"to: {to} does not reproduce this model; an output differs by {difference:.2g}")
    told = _described(model, to, name) | {"checked": {"by": runner, "inputs": CHECKED, "difference": difference}}
    with output(folder), claimed(path if out is None else out):
        folder.mkdir(exist_ok=True)
        write_whole(files[0], content)
        write_whole(files[1], json.dumps(told, indent=1, ensure_ascii=False) + "\n")
    return Exported(*files, runner, difference)


def _to_onnx(model: Predictor, whole: nn.Module, inputs: Tensor) -> tuple[bytes, str, Tensor]:
    """Return the content of an ONNX file, what ran it, and its outputs for some inputs."""
    import onnxruntime

    def graph() -> bytes:
        program = torch.onnx.export(
            whole,
            (inputs[:2],),
            dynamo=True,
            input_names=[_words(model)[0]],
            output_names=[_words(model)[1]],
            dynamic_shapes=({0: torch.export.Dim("n")},),
            verbose=False,
        )
        assert program is not None
        made = program.model_proto
        for node in made.graph.node:
            del node.metadata_props[:]  # the places in the source code, with paths of this machine
        content: bytes = made.SerializeToString()
        return content

    content = _quietly("onnx", graph)
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    (made,) = session.run(None, {_words(model)[0]: inputs.numpy()})
    return content, f"onnxruntime {onnxruntime.__version__}", torch.from_numpy(made)


def _to_torchscript(model: Predictor, whole: nn.Module, inputs: Tensor) -> tuple[bytes, str, Tensor]:
    """Return the content of a TorchScript file, what ran it, and its outputs for some inputs."""
    del model

    def traced() -> tuple[bytes, Tensor]:
        file = io.BytesIO()
        torch.jit.save(torch.jit.trace(whole, inputs[:2]), file)
        file.seek(0)
        return file.getvalue(), torch.jit.load(file)(inputs)

    content, made = _quietly("torchscript", traced)
    return content, f"torch {torch.__version__}", made


def _to_state_dict(model: Predictor, whole: nn.Module, inputs: Tensor) -> tuple[bytes, str, Tensor]:
    """Return the content of a safetensors file, what read it, and the outputs of a model with its weights."""
    del whole
    names = _own_names(model)
    content = save(apart({names[name]: tensor for name, tensor in model.model.state_dict().items()}))
    read, again = load_tensors(content), copy.deepcopy(model)
    with torch.no_grad():
        for parameter in again.model.parameters():
            parameter.zero_()
    again.model.load_state_dict({name: read[own] for name, own in names.items()})
    return content, f"torch {torch.__version__}", _Complete(again).eval()(inputs)


FORMS: dict[str, Callable[[Predictor, nn.Module, Tensor], tuple[bytes, str, Tensor]]] = {
    "onnx": _to_onnx,
    "torchscript": _to_torchscript,
    "state_dict": _to_state_dict,
}


def _quietly(to: str, make: Callable[[], T]) -> T:
    """Return what a function makes, without the warnings of torch's exporters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return make()
        except Exception as error:  # torch's exporters raise exceptions of many types
            raise InputError(f"to: {to} cannot express this model: {error}") from error


def _own_names(model: Predictor) -> dict[str, str]:
    """Map the names of a model's tensors to those in the module that an architecture of another library makes."""
    replaced = model.model.former if model.card.bn in ("track", "frozen") else {}
    names = {}
    for name in model.model.state_dict():
        now = next((now for now in replaced if name.startswith(now)), None)
        names[name] = name if now is None else replaced[now] + name.removeprefix(now)
    return names


def _takes_pixels(model: Predictor) -> bool:
    """Return True for a model of uint8 images, and False for one of features, which have other means and scales."""
    told = model.normalise
    scaled = any(told.mean) or any(std != 1 for std in told.std)
    return len(model.shape) == 3 and model.shape[0] in (1, 3) and scaled


def _inputs(model: Predictor) -> Tensor:
    """Draw a few inputs of a model."""
    stream, size = torch_stream(0, "export"), (CHECKED, *model.shape)
    if _takes_pixels(model):
        return torch.randint(0, 256, size, generator=stream, dtype=torch.uint8)
    mean, std = (
        torch.tensor(own).view(1, -1, *[1] * (len(size) - 2)) for own in (model.normalise.mean, model.normalise.std)
    )
    return torch.randn(size, generator=stream) * std + mean


def _words(model: Predictor) -> tuple[str, str]:
    """Return the names of the input and of the output of a model."""
    kind = "images" if _takes_pixels(model) else "features"
    return kind, "probabilities" if model.classes else "representations"


def _described(model: Predictor, to: str, name: str) -> dict[str, Any]:
    """Return the description of an exported model: its input, output and classes, and an example of its use."""
    kind, answer = _words(model)
    card, table = model.card, model.encoding
    inside = to != "state_dict"
    scaling = "the mean of each channel is subtracted, and the result is divided by the standard deviation"
    return {
        "version": 1,
        "file": name,
        "form": to,
        "architecture": card.architecture,
        "input": {
            "name": kind,
            "type": "uint8" if kind == "images" else "float32",
            "shape": ["n", *model.shape],
            "normalisation": f"in the file: {scaling}" if inside else f"not in the file: {scaling}",
            **card.normalisation.model_dump(),
        },
        **({} if table is None else {"features": table.names, "table": dataclasses.asdict(table)}),
        "output": {"name": answer if inside else "logits", "shape": ["n", len(model.classes) or "d"]},
        "classes": list(model.classes),
        "example": sorted([*_reading(model), *_running(model, to, name)], key=_after_imports),
    }


def _after_imports(line: str) -> bool:
    return not line.startswith(("import ", "from "))


def _reading(model: Predictor) -> list[str]:
    """Return the lines of the example that make an input."""
    if not _takes_pixels(model):
        size = ", ".join(map(str, (1, *model.shape)))
        return ["import numpy as np", f"features = np.zeros(({size}), dtype=np.float32)"]
    channels, height, width = model.shape
    mode, axes = ("L", "[None, None]") if channels == 1 else ("RGB", ".transpose(2, 0, 1)[None]")
    return [
        "import numpy as np",
        "from PIL import Image",
        f"picture = Image.open('image.png').convert('{mode}').resize(({width}, {height}), Image.Resampling.BILINEAR)",
        f"images = np.asarray(picture){axes}",
    ]


def _running(model: Predictor, to: str, name: str) -> list[str]:
    """Return the lines of the example that run the model."""
    kind, answer = _words(model)
    if to == "onnx":
        return [
            "import onnxruntime",
            f"session = onnxruntime.InferenceSession({name!r})",
            f"({answer},) = session.run(None, {{{kind!r}: {kind}}})",
        ]
    if to == "torchscript":
        return ["import torch", f"model = torch.jit.load({name!r})", f"{answer} = model(torch.tensor({kind}))"]
    size = ", ".join(["1", "-1", *["1"] * (len(model.shape) - 1)])
    mean, std = (f"torch.tensor({list(own)}).view({size})" for own in (model.normalise.mean, model.normalise.std))
    inputs = f"(torch.tensor({kind}).float() - {mean}) / {std}"
    ran = f"model({inputs}).softmax(dim=1)" if model.classes else f"model.body({inputs})"
    return [
        "import torch",
        "from safetensors.torch import load_file",
        *_making(model),
        f"model.load_state_dict(load_file({name!r}))",
        "model.eval()",
        f"{answer} = {ran}",
    ]


def _making(model: Predictor) -> list[str]:
    """Return the lines of the example that make the module with new weights."""
    card, classes = model.card, max(len(model.classes), 1)
    where, _, called = card.architecture.partition(":")
    if model.model.former and card.bn in ("track", "frozen"):
        if where == "torchvision":
            return ["import torchvision", f"model = torchvision.models.get_model({called!r}, num_classes={classes})"]
        if where == "timm":
            return ["import timm", f"model = timm.create_model({called!r}, num_classes={classes})"]
        if called:
            return [f"from {where} import {called}", f"model = {called}({model.shape}, {classes})"]
    options = f"bn={card.bn!r}" + ("" if card.head is None else f", head={card.head!r}")
    return [
        "from kinfed.models import build",
        f"model = build({card.architecture!r}, {model.shape}, {classes}, seed=0, {options})",
    ]
