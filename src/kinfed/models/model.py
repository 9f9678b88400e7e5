"""Models made of a body, which gives the representation, and a head, with tap points for reading activations.

A tap point is a named place in a model, usually the end of a layer, at which the activations can be read.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Self

import torch
from torch import Tensor, nn

from kinfed.errors import InputError
from kinfed.streams import seeded_globals

__all__ = [
    "ALL", "BODY", "HEAD", "NOTHING", "BeforeReLU", "Body", "Model", "Part", "Parts", "Tensors", "reinitialised",
    "select", "under",
]  # fmt: skip

Tensors = dict[str, Tensor]
Part = tuple[str, ...]  # prefixes of tensor names

BODY: Part = ("body.",)
HEAD: Part = ("head.",)
ALL: Part = BODY + HEAD
NOTHING: Part = ()


def select(tensors: Mapping[str, Tensor], part: Part) -> Tensors:
    """Select the tensors of one part of a model, by the prefixes of their names.

    >>> [*select({"body.weight": torch.zeros(2), "head.bias": torch.zeros(2)}, HEAD)]
    ['head.bias']
    """
    return {name: tensor for name, tensor in tensors.items() if name.startswith(part)}


def under(prefix: str, tensors: Mapping[str, Tensor]) -> Tensors:
    """Select the tensors whose names begin with a prefix, and name them without it.

    >>> [*under("control.", {"control.body.weight": torch.zeros(2), "body.weight": torch.zeros(2)})]
    ['body.weight']
    """
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


class Parts(nn.Module):
    """Module whose children are the parts that are sent, trained or kept; tensor names begin with their part.

    Parameters that were frozen when it was made stay frozen in every phase of training.
    """

    frozen: frozenset[str] = frozenset()
    """Names of the parameters that are permanently frozen."""

    still: frozenset[str] = frozenset()
    """Names of the modules that stay in evaluation mode, such as a BatchNorm with fixed statistics."""

    def keep_frozen(self) -> None:
        """Record which parameters are frozen and which modules are in evaluation mode now; all phases keep them so."""
        parameters = self.named_parameters(remove_duplicate=False)
        self.frozen = frozenset(name for name, parameter in parameters if not parameter.requires_grad)
        modules = self.named_modules(remove_duplicate=False)
        self.still = frozenset(name for name, module in modules if not module.training)

    @property
    def frozen_layers(self) -> set[str]:
        """Names of the modules that directly own a parameter that is never trained, or never leave evaluation mode.

        A module of the second kind is, for example, a BatchNorm with fixed statistics.
        """
        return {*self.still, *(name.rpartition(".")[0] for name in self.frozen)}

    def trainable(self, part: Part) -> bool:
        """Return True if a part has a parameter that is not permanently frozen."""
        return any(name.startswith(part) and name not in self.frozen for name, _ in self.named_parameters())

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all modules except those that stay in evaluation mode."""
        super().train(mode)
        self._hold_still()
        return self

    def _hold_still(self) -> None:
        for name in self.still:
            self.get_submodule(name).training = False

    def named_tensors(self) -> Tensors:
        """Return the parameters and buffers by name, not copied; one that is used several times has its first name."""
        named = self.state_dict(keep_vars=True)
        names = {id(tensor): name for name, tensor in reversed(named.items())}
        return {name: tensor.detach() for name, tensor in named.items() if names[id(tensor)] == name}

    def tensors(self, part: Part = ALL) -> Tensors:
        """Copy the parameters and buffers of one part, by name, for sending and saving: contiguous and on the CPU."""
        plain = partial(Tensor.to, device="cpu", copy=True, memory_format=torch.contiguous_format)
        return {name: plain(tensor) for name, tensor in select(self.named_tensors(), part).items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy the given tensors into the model, by name; the others do not change."""
        mine = self.named_tensors()
        with torch.no_grad():
            for name, tensor in tensors.items():
                mine[name].copy_(tensor)

    def prefer_channels_last(self) -> None:
        """Store the weights of convolutions channels last, which is faster; their outputs follow this layout.

        Weights on MPS do not change: backward passes in this layout have failed there (pytorch/pytorch#140902,
        #188371).
        """
        for module in self.modules():
            if isinstance(module, nn.Conv2d) and module.weight.device.type != "mps":
                module.to(memory_format=torch.channels_last)

    def freeze_all_but(self, part: Part) -> None:
        """Make only one part trainable; the rest is in evaluation mode, so its BatchNorm statistics do not change."""
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name.startswith(part) and name not in self.frozen)
        for name, child in self.named_children():
            child.train(f"{name}.".startswith(part))
        self._hold_still()


class BeforeReLU(nn.Sequential):
    """Stage whose ReLU runs after the pooling that follows it; its tap point is read with a ReLU applied.

    ReLU and max pooling commute, in values and gradients. After pooling, only a quarter of the elements is left.
    """


class Body(nn.Sequential):
    """Sequence of stages; it copies its input, since the first stage may work in place.

    Attributes:
        in_bfloat16: True to compute layers in bfloat16 where `torch.autocast` does; weights and outputs stay float32.
    """

    in_bfloat16 = False

    def forward(self, x: Tensor) -> Tensor:
        """Compute the representations, n×d."""
        x = x.clone()
        with self.computing():
            for stage in self:
                x = stage(x)
        return x.float() if self.in_bfloat16 else x

    def computing(self) -> contextlib.AbstractContextManager[object]:
        """Return a context manager in which layers compute in this body's precision."""
        if not self.in_bfloat16:
            return contextlib.nullcontext()
        device = next((parameter.device.type for parameter in self.parameters()), "cpu")
        return torch.autocast(device, torch.bfloat16)


class Model(Parts):
    """Model ``head(body(x))``: the head is the last linear layer, the body is everything before it.

    Args:
        stages: Stages of the body by name, in order; the last one gives the representation, n×d. A module may occur
            several times.
        head: Linear layer, d → classes, with its own weights; it gives the logits.
        taps: Names of the stages whose outputs can be read, in order. The tap points ``"body"`` (the representation)
            and ``"head"`` (the logits) are added.

    Raises:
        InputError: If the body uses the head's weights.

    >>> model = Model({"flatten": nn.Flatten(), "fc": nn.Linear(4, 3)}, nn.Linear(3, 2), taps=["fc"])
    >>> model.activations(torch.zeros(5, 1, 2, 2), ["body", "head"])["head"].shape
    torch.Size([5, 2])
    """

    recipe: Mapping[str, str]
    """Architecture and options that `kinfed.models.build` used; empty for a model made otherwise."""

    former: Mapping[str, str] = MappingProxyType({})
    """Beginnings of tensor names, each with the one that it replaced in the module of which the model is made."""

    start: tuple[str, ...] = ()
    """What was left out of the file of the start weights, in sentences."""

    def __init__(self, stages: Mapping[str, nn.Module], head: nn.Linear, taps: Sequence[str]) -> None:
        super().__init__()
        self.recipe = {}
        self.body = Body()
        for name, stage in stages.items():
            self.body.add_module(name, stage)
        self.head = head
        self.taps = (*taps, "body", "head")
        of_head = {id(parameter) for parameter in head.parameters()}
        if both := [name for name, parameter in self.body.named_parameters() if id(parameter) in of_head]:
            raise InputError(f"head: shares its weights with {both[0]} in the body; it must have its own weights")
        self.keep_frozen()

    @property
    def stages(self) -> dict[str, nn.Module]:
        """Stages of the body by name; a module that runs several times is listed as often."""
        return {name: stage for name, stage in self.body._modules.items() if stage is not None}

    @property
    def layers(self) -> tuple[str, ...]:
        """Tap points, without ``"body"`` if the last stage is a tap point itself."""
        *_, last = self.stages
        return tuple(tap for tap in self.taps if tap != "body" or last not in self.taps)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the logits, n×classes."""
        logits: Tensor = self.head(self.body(x))
        return logits

    def activations(self, x: Tensor, taps: Sequence[str]) -> Tensors:
        """Compute the outputs at the named tap points, running no further than the last of them.

        Raises:
            InputError: If the model has no tap point of a name; the message lists its tap points.
        """
        readable = {*self.taps, *map(self.pooled, self.taps)}
        if unknown := [tap for tap in taps if tap not in readable]:
            raise InputError(f"tap: {unknown[0]!r} is not a tap point of this model; it has {', '.join(self.taps)}")
        wanted = set(taps)
        read: Tensors = {}
        x = x.clone()  # like the outputs that are read, since a stage may change its input in place
        with self.body.computing():
            for name, stage in self.stages.items():
                if wanted <= read.keys():
                    break
                x = stage(x)
                if name in wanted:
                    read[name] = x.relu() if isinstance(stage, BeforeReLU) else x.clone()
        if self.body.in_bfloat16:
            x, read = x.float(), {name: output.float() for name, output in read.items()}
        if "body" in wanted:
            read["body"] = x
        if "head" in wanted:
            read["head"] = self.head(x)
        return {tap: read[tap] for tap in taps}

    def pooled(self, tap: str) -> str:
        """Return the name of the pooling stage directly after a tap point, or the tap point itself if none follows.

        `activations` accepts both.
        """
        following = dict(itertools.pairwise(self.stages)).get(tap, tap)
        return following if following.startswith("pool") else tap


def reinitialised(model: Model, stream: torch.Generator) -> Model:
    """Return a copy of a model with new random weights, on the CPU; permanently frozen layers do not change.

    The weights are those of the modules' own ``reset_parameters``, and the same on every device.

    Args:
        model: Model to copy.
        stream: Random stream of the weights.
    """
    model = copy.deepcopy(model).cpu()
    with seeded_globals(stream):
        for name, module in model.named_modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset) and name not in model.frozen_layers:
                reset()
    return model
