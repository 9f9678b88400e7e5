"""The one private piece of torch that is used: where a version of torch lacks it, the values are the same."""

from __future__ import annotations

import importlib.util
import sys
import types
from types import ModuleType

import pytest
import torch

from kinfed.similarity import gram


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module as it is where torch has renamed the operation; and using it is an error."""
    monkeypatch.setattr(torch.ops, "mkldnn", types.SimpleNamespace())
    spec = importlib.util.spec_from_file_location("gram_without_onednn", gram.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # where dataclasses look their module up
    spec.loader.exec_module(module)
    assert not module.ONEDNN
    return module


@pytest.mark.parametrize("shape", [(100, 30), (7, 900), (130, 1)])
def test_a_product_is_the_same_to_rounding_without_the_private_operation(  # case 355
    shape: tuple[int, int], without: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found = without.times_own_transpose(x)
    monkeypatch.undo()
    assert torch.allclose(found, gram.times_own_transpose(x), rtol=1e-5, atol=1e-5 * shape[1])
    assert torch.allclose(found, x @ x.T, rtol=1e-5, atol=1e-5 * shape[1])


def test_a_loss_has_the_same_value_and_gradient_without_it(
    without: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = torch.Generator().manual_seed(0)
    x, y = (torch.randn(40, 25, generator=stream) for _ in range(2))

    def of(module: ModuleType) -> list[torch.Tensor]:
        live = x.clone().requires_grad_()
        gap = module.gram_of(y) / module.gram_of(y).norm()
        value = module.LinearGap.apply(live, gap)
        value.backward()
        assert live.grad is not None
        return [value.detach(), live.grad]

    found = of(without)
    monkeypatch.undo()
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(found, of(gram), strict=True))
