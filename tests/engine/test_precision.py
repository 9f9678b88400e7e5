"""Computing in bfloat16: what changes, what stays float32, and when ``auto`` takes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import kinfed
from kinfed.experiment import device
from kinfed.models import Siamese, Target, build, read_tensors

FIELDS: dict[str, Any] = {
    "data": "digits", "train_images": 120, "model": "tiny_cnn", "clients": 3, "partition": "iid", "rounds": 2,
    "checkpoint_every": 1, "ft_epochs": 1, "lr_schedule": "constant", "quiet": True,
}  # fmt: skip


def tensors_of(run: Path) -> dict[str, torch.Tensor]:
    return read_tensors(run / "models" / "global.safetensors")[0]


@pytest.mark.filterwarnings("ignore:precision:UserWarning")
@pytest.mark.parametrize("method", ["fedcka", pytest.param("fedbyol", marks=pytest.mark.slow)])
def test_bfloat16_gives_the_same_bits_in_workers_and_after_a_stop(tmp_path: Path, method: str) -> None:
    fields = FIELDS | ({"ft_epochs": 0} if method == "fedbyol" else {}) | {"precision": "bfloat16"}
    one = kinfed.run(method, out=tmp_path / "one", **fields).path
    workers = kinfed.run(method, out=tmp_path / "workers", workers=2, **fields).path
    stopped = kinfed.run(method, out=tmp_path / "stopped", **fields | {"rounds": 1}).path
    kinfed.resume(stopped, rounds=2, quiet=True)
    whole = kinfed.run(method, out=tmp_path / "whole", **fields | {"precision": "float32"}).path
    expected = tensors_of(one)
    for run in (workers, stopped):
        assert (run / "metrics.jsonl").read_bytes() == (one / "metrics.jsonl").read_bytes()
        assert all(torch.equal(tensor, expected[name]) for name, tensor in tensors_of(run).items())
    other = tensors_of(whole)
    assert any(not torch.equal(tensor, other[name]) for name, tensor in expected.items())
    assert all(tensor.dtype == other[name].dtype for name, tensor in expected.items())


def test_a_processor_without_units_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_flags", set)
    with pytest.warns(UserWarning, match="precision: this processor has no units for bfloat16, which is slower here"):
        kinfed.run("fedavg", out=tmp_path / "run", precision="bfloat16", **FIELDS | {"rounds": 1})


def test_layers_compute_in_bfloat16_and_outputs_and_gradients_are_float32() -> None:
    model = build("tiny_cnn", (1, 8, 8), 10, 0)
    x = torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    single = model.activations(x, model.taps)
    model.body.in_bfloat16 = True
    seen: list[torch.dtype] = []
    conv = next(module for module in model.modules() if isinstance(module, torch.nn.Conv2d))
    conv.register_forward_hook(lambda _, __, output: seen.append(output.dtype))
    half = model.activations(x, model.taps)
    assert seen == [torch.bfloat16]
    for tap, output in half.items():
        assert output.dtype == torch.float32
        assert 0 < (output - single[tap]).norm() < 0.02 * single[tap].norm()
    model(x).sum().backward()
    assert {parameter.grad.dtype for parameter in model.parameters() if parameter.grad is not None} == {torch.float32}


def test_networks_without_labels_compute_in_the_precision_of_their_body() -> None:
    model = build("tiny_cnn", (1, 8, 8), 10, 0)
    model.body.in_bfloat16 = True
    online = Siamese(model, seed=0, hidden=16, out=8)
    seen: list[torch.dtype] = []
    for network in (online, target := Target(online)):
        for module in network.modules():
            if isinstance(module, torch.nn.Conv2d):
                module.register_forward_hook(lambda _, __, output: seen.append(output.dtype))
    x = torch.randn(16, 1, 8, 8)
    assert {online.project(x).dtype, target(x).dtype} == {torch.float32}
    assert set(seen) == {torch.bfloat16}


@pytest.mark.parametrize(
    ("flags", "precision", "why"),
    [
        ({"fpu", "avx2"}, "float32", "this processor has no units for bfloat16"),
        ({"fpu", "avx512_bf16"}, "bfloat16", "this processor has units for bfloat16"),
        ({"amx_bf16"}, "bfloat16", "this processor has units for bfloat16"),
    ],
)
def test_auto_takes_what_the_processor_has_units_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: set[str], precision: str, why: str
) -> None:
    monkeypatch.setattr(device, "_flags", lambda: flags)
    with pytest.warns(UserWarning, match=f"precision: auto is {precision} here, since {why}"):
        run = kinfed.run("fedavg", out=tmp_path / "run", precision="auto", **FIELDS | {"rounds": 1}).path
    assert f'precision = "{precision}"' in (run / "config.toml").read_text()
