"""A model: a body up to the representation, a head, and points between whose activations can be read."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Self

import torch
from torch import Tensor, nn

from kinfed.errors import InputError

__all__ = ["ALL", "BODY", "HEAD", "NOTHING", "BeforeReLU", "Model", "Part", "Parts", "Tensors", "select"]

Tensors = dict[str, Tensor]
Part = tuple[str, ...]  # prefixes of tensor names

BODY: Part = ("body.",)
HEAD: Part = ("head.",)
ALL: Part = BODY + HEAD
NOTHING: Part = ()


def select(tensors: Mapping[str, Tensor], part: Part) -> Tensors:
    """The tensors of one part of a model, by the prefixes of their names."""
    return {name: tensor for name, tensor in tensors.items() if name.startswith(part)}


class Parts(nn.Module):
    """A module whose children are the parts by which tensors are named: what travels, is trained, or is kept.

    What its maker froze is frozen for good: no phase of training moves it.
    """

    frozen: frozenset[str] = frozenset()
    """Names of the parameters that came without gradient."""

    still: frozenset[str] = frozenset()
    """Names of the modules that came in evaluation mode, such as a BatchNorm whose statistics must not move."""

    def keep_frozen(self) -> None:
        """Note what is frozen now, which it then is for good."""
        parameters = self.named_parameters(remove_duplicate=False)
        self.frozen = frozenset(name for name, parameter in parameters if not parameter.requires_grad)
        modules = self.named_modules(remove_duplicate=False)
        self.still = frozenset(name for name, module in modules if not module.training)

    @property
    def frozen_layers(self) -> set[str]:
        """Names of the modules whose own parameters or statistics are frozen for good, or some of them."""
        return {*self.still, *(name.rpartition(".")[0] for name in self.frozen)}

    def trainable(self, part: Part) -> bool:
        """Whether a part has a parameter that is not frozen for good."""
        return any(name.startswith(part) and name not in self.frozen for name, _ in self.named_parameters())

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all modules but those that are in evaluation mode for good."""
        super().train(mode)
        self._hold_still()
        return self

    def _hold_still(self) -> None:
        for name in self.still:
            self.get_submodule(name).training = False

    def named_tensors(self) -> Tensors:
        """The parameters and buffers themselves, by name; one that is used in several places has the first name."""
        named = self.state_dict(keep_vars=True)
        names = {id(tensor): name for name, tensor in reversed(named.items())}
        return {name: tensor.detach() for name, tensor in named.items() if names[id(tensor)] == name}

    def tensors(self, part: Part = ALL) -> Tensors:
        """A copy of the parameters and buffers of one part, by name, on the CPU: what travels and what is saved.

        Contiguous, whatever the layout here.
        """
        plain = partial(Tensor.to, device="cpu", copy=True, memory_format=torch.contiguous_format)
        return {name: plain(tensor) for name, tensor in select(self.named_tensors(), part).items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy the given tensors in, by name; the others stay as they are."""
        mine = self.named_tensors()
        with torch.no_grad():
            for name, tensor in tensors.items():
                mine[name].copy_(tensor)

    def prefer_channels_last(self) -> None:
        """Store the weights of convolutions in the layout that makes them fast, which their outputs then follow.

        Not on MPS, where backward passes of that layout have failed (pytorch/pytorch#140902, #188371).
        """
        for module in self.modules():
            if isinstance(module, nn.Conv2d) and module.weight.device.type != "mps":
                module.to(memory_format=torch.channels_last)

    def freeze_all_but(self, part: Part) -> None:
        """Let only one part be trained; what is frozen is in evaluation mode, its BatchNorm statistics untouched."""
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name.startswith(part) and name not in self.frozen)
        for name, child in self.named_children():
            child.train(f"{name}.".startswith(part))
        self._hold_still()


class BeforeReLU(nn.Sequential):
    """A stage whose ReLU comes after the pooling that follows; its tap is nevertheless read after a ReLU.

    ReLU and max pooling commute, in values and gradients, and after pooling a quarter of the elements is left.
    """


class _Body(nn.Sequential):
    """Stages that run on a copy of their input, which the first of them may change in place."""

    def forward(self, x: Tensor) -> Tensor:
        """Representations, n×d."""
        x = x.clone()
        for stage in self:
            x = stage(x)
        return x


class Model(Parts):
    """``head(body(x))``: the head is the last linear layer, the body everything before it.

    Args:
        stages: The body's stages by name, run one after the other; the last one gives the representation, n×d. A module
            may stand there several times.
        head: Linear, d → classes, with weights of its own. Returns logits.
        taps: Names of the stages whose outputs can be read, in order; ``"body"`` (the representation) and ``"head"``
            (the logits) can be read in every model.

    Raises:
        InputError: If the head's weights are used in the body, too.
    """

    recipe: Mapping[str, str]
    """What `kinfed.models.build` made it of; empty if something else did."""

    def __init__(self, stages: Mapping[str, nn.Module], head: nn.Linear, taps: Sequence[str]) -> None:
        super().__init__()
        self.recipe = {}
        self.body = _Body()
        for name, stage in stages.items():
            self.body.add_module(name, stage)
        self.head = head
        self.taps = (*taps, "body", "head")
        of_head = {id(parameter) for parameter in head.parameters()}
        if both := [name for name, parameter in self.body.named_parameters() if id(parameter) in of_head]:
            raise InputError(f"head: its weights are used in the body, too, as {both[0]}; it must have its own")
        self.keep_frozen()

    @property
    def stages(self) -> dict[str, nn.Module]:
        """The body's stages by name; a module that runs several times stands here as often."""
        return {name: stage for name, stage in self.body._modules.items() if stage is not None}

    @property
    def layers(self) -> tuple[str, ...]:
        """The tap points, without ``"body"`` where that is a second name of the last stage."""
        *_, last = self.stages
        return tuple(tap for tap in self.taps if tap != "body" or last not in self.taps)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, n×classes."""
        logits: Tensor = self.head(self.body(x))
        return logits

    def activations(self, x: Tensor, taps: Sequence[str]) -> Tensors:
        """Outputs of the named tap points, running no further than the last of them.

        Raises:
            InputError: If a name is no tap point of this model; the message lists those it has.
        """
        readable = {*self.taps, *map(self.pooled, self.taps)}
        if unknown := [tap for tap in taps if tap not in readable]:
            raise InputError(f"tap: {unknown[0]!r} is no tap point of this model; it has {', '.join(self.taps)}")
        wanted = set(taps)
        read: Tensors = {}
        x = x.clone()  # as of what is read, since a stage may change what it is given in place
        for name, stage in self.stages.items():
            if wanted <= read.keys():
                break
            x = stage(x)
            if name in wanted:
                read[name] = x.relu() if isinstance(stage, BeforeReLU) else x.clone()
        if "body" in wanted:
            read["body"] = x
        if "head" in wanted:
            read["head"] = self.head(x)
        return {tap: read[tap] for tap in taps}

    def pooled(self, tap: str) -> str:
        """The pooling stage that directly follows a tap point, or the tap point itself; `activations` reads both."""
        following = dict(itertools.pairwise(self.stages)).get(tap, tap)
        return following if following.startswith("pool") else tap
