"""Torchvision's names of the tensors in its architectures."""

from __future__ import annotations

from torch import nn

from kinfed.models.model import Model

__all__ = ["torchvision_names"]


def torchvision_names(model: Model) -> dict[str, str]:
    """Map the names of a model's tensors to torchvision's, such as ``body.stem.0.weight`` to ``conv1.weight``.

    The map is empty if the architecture is not one of torchvision's. The head of a VGG for small images, which has no
    ``classifier.0`` and ``classifier.3``, is named ``classifier``.
    """
    naming = NAMINGS.get(model.recipe.get("architecture", ""))
    tensors = {}
    for ours, theirs in naming(model).items() if naming else ():
        for name in model.named_tensors():
            if name.startswith(f"{ours}."):
                tensors[name] = theirs + name.removeprefix(ours)
    return tensors


def _resnet(model: Model) -> dict[str, str]:
    modules = {"body.stem.0": "conv1", "body.stem.1": "bn1", "head": "fc"}
    for stage in model.stages:
        layer, _, number = stage.partition("_")
        if number:
            modules[f"body.{stage}"] = f"{layer}.{int(number) - 1}"
    return modules


def _vgg(model: Model) -> dict[str, str]:
    stages = model.stages
    modules = {"body.fc1.0": "classifier.0", "body.fc2.0": "classifier.3"}
    modules["head"] = "classifier.6" if "fc2" in stages else "classifier"
    position = 0  # in torchvision's ``features``, in which the ReLU of a convolution comes before the pooling
    for name, stage in stages.items():
        layers = [layer for layer in stage.children() if not isinstance(layer, nn.ReLU)]
        for i in range(len(layers)):
            modules.setdefault(f"body.{name}.{i}", f"features.{position + i}")
        position += len(layers) + name.startswith("conv")
    return modules


NAMINGS = {"resnet18": _resnet, "resnet34": _resnet, "resnet50": _resnet, "vgg16": _vgg, "vgg16_bn": _vgg}
