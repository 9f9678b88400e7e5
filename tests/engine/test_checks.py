"""Whatever a client sends, or would keep, is refused with a reason or is sound; nothing makes the check raise."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as some
from torch import nn

from kinfed.engine.checks import bounded, diverged, not_finite, unsound, upload_error
from kinfed.methods import Message

LIKE = {"w": torch.zeros(2), "n": torch.tensor(0)}


def upload(samples: Any = 3, loss: Any = 1.0, **tensors: Any) -> Message:
    merged = {"w": torch.ones(2), "n": torch.tensor(1), **tensors}
    return Message({n: t for n, t in merged.items() if t is not ...}, {"samples": samples, "loss": loss})


class Hostile(torch.Tensor):
    """A tensor that raises whenever something is asked of it."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise SystemError("no")


BAD = [
    (None, "it is a NoneType, not a Message"),
    (Message(None, {}), "its tensors are a NoneType, not a dict"),  # type: ignore[arg-type]
    (Message({}, [("samples", 1)]), "its numbers are a list, not a dict"),  # type: ignore[arg-type]
    (Message({3: torch.ones(1)}, {}), "its tensors have a name of type int, not str"),  # type: ignore[dict-item]
    (Message({}, {None: 1}), "its numbers have a name of type NoneType, not str"),  # type: ignore[dict-item]
    (upload(w=None), "w is a NoneType, not a plain tensor"),
    (upload(w=[1.0, 1.0]), "w is a list, not a plain tensor"),
    (upload(w=np.ones(2, np.float32)), "w is a ndarray, not a plain tensor"),
    (upload(w=nn.Parameter(torch.ones(2))), "w is a Parameter, not a plain tensor"),
    (upload(w=torch.ones(2).as_subclass(Hostile)), "w is a Hostile, not a plain tensor"),
    (upload(w=torch.ones(2).to_sparse()), "w has the layout torch.sparse_coo, not torch.strided"),
    (upload(w=torch.ones(2, device="meta")), "w is on the device meta, not cpu"),
    (upload(w=torch.ones(2, dtype=torch.complex64)), "w has the type torch.complex64, not torch.float32"),
    (upload(w=torch.tensor([1, torch.nan])), "w is not finite"),
    (upload(**{"x\n\x1b[2J": torch.ones(1)}), r"x \x1b[2J is unexpected"),
    (upload(loss=None), "loss is a NoneType, not a number"),
    (upload(loss="1.0"), "loss is a str, not a number"),
    (upload(loss=True), "loss is a bool, not a number"),
    (upload(loss=torch.tensor(True)), "loss is a bool, not a number"),
    (upload(loss=1j), "loss is a complex, not a number"),
    (upload(loss=torch.ones(2)), "loss is a Tensor, not a number"),
    (upload(loss=torch.ones(1, device="meta")), "it cannot be checked: .*"),
    (upload(loss=10**400), "loss is too large"),
    (upload(loss=float("inf")), "loss is inf"),
    (upload(loss=np.float32("nan")), "loss is nan"),
    (upload(samples=float("nan")), "samples is nan"),
    (upload(samples="3"), "samples is a str, not a number"),
    (upload(samples=10**5000), "samples is too large"),
    (upload(samples=True), "samples is a bool, not a number"),
]


@pytest.mark.parametrize(("bad", "reason"), BAD)
def test_what_is_no_upload_is_refused_with_the_reason(bad: Any, reason: str) -> None:  # case 307
    told = upload_error(bad, LIKE, 10)
    assert told == reason or re.fullmatch(reason, str(told))


@pytest.mark.parametrize("count", [3, 3.0, np.int64(3), np.float32(3), torch.tensor(3)])
def test_numbers_of_numpy_and_torch_are_numbers(count: Any) -> None:
    assert upload_error(upload(samples=count, loss=torch.tensor([0.5])), LIKE, 10) is None


STRANGE = [torch.ones(2), torch.ones(2, device="meta"), torch.ones(2).to_sparse(), torch.tensor(1), object()]
SIMPLE = [some.none(), some.booleans(), some.integers(), some.floats(), some.text(), some.complex_numbers()]
ANYTHING = some.recursive(
    some.one_of(*SIMPLE, some.sampled_from(STRANGE)),
    lambda inner: some.lists(inner) | some.dictionaries(some.text() | some.integers() | some.none(), inner),
    max_leaves=6,
)


@settings(deadline=None)
@given(tensors=ANYTHING, numbers=ANYTHING)
def test_nothing_that_is_sent_makes_the_check_raise(tensors: Any, numbers: Any) -> None:
    assume(not (isinstance(tensors, torch.Tensor) and isinstance(numbers, torch.Tensor)))  # they may be an upload
    for sent in (tensors, Message(tensors, numbers), Message({"w": tensors, "n": numbers}, {"samples": numbers})):
        told = upload_error(sent, LIKE, 10)
        assert told
        assert told.isprintable()
        assert len(told) <= 600


def test_a_memory_may_be_of_any_plain_tensors_and_finite_numbers() -> None:
    assert unsound(Message({"a": torch.ones(3), "k": torch.ones(2, dtype=torch.int64)}, {"best": 0.5})) is None
    assert unsound(Message({}, {"best": float("nan")})) == "best is nan"
    assert unsound(Message({"a": torch.ones(3).to_sparse()})) == "a has the layout torch.sparse_coo, not torch.strided"


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, complex(1, float("nan"))])
def test_the_first_tensor_that_is_not_finite_is_named(value: complex) -> None:
    tensors = {"k": torch.tensor(3), "none": torch.empty(0), "a": torch.ones(2), "b": torch.tensor([1, value])}
    assert not_finite(tensors) == "b is not finite"
    assert diverged("b is not finite")
    del tensors["b"]
    assert not_finite(tensors) is None


def test_reasons_say_whether_smaller_steps_may_help() -> None:
    assert all(
        map(diverged, ("loss is nan", "its new state: a is not finite", "loss is -inf", "its outputs are not finite"))
    )
    assert not any(map(diverged, ("w is missing", "loss is nancy", "OSError: the disk is finite")))


def test_a_reason_is_one_line_that_is_not_too_long() -> None:
    assert bounded("a\nb") == "a b"
    assert len(bounded("x" * 10**6)) == 600
