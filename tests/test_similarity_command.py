from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

import kinfed as package
from tests.test_cli import kinfed  # noqa: F401 - the fixture

Command = Any


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(40, 6)), rng.normal(size=(40, 3, 2, 2))
    np.savez(tmp_path / "a.npz", first=a, second=a[:, :2] ** 2)
    save_file({"map": b.astype(np.float32)}, tmp_path / "b.safetensors")
    np.save(tmp_path / "short.npy", a[:30])
    (tmp_path / "broken.npz").write_bytes(b"no archive")
    return {path.name: path for path in tmp_path.iterdir()}


def test_two_files_of_activations(kinfed: Command, files: dict[str, Path], tmp_path: Path) -> None:  # noqa: F811
    code, out, _ = kinfed("similarity", str(files["a.npz"]), str(files["b.safetensors"]), "--out", "o")
    assert code == 0
    told = json.loads((tmp_path / "o" / "similarity.json").read_text())
    x, y = np.load(files["a.npz"])["second"], np.random.default_rng(0)
    y.normal(size=(40, 6))
    other = y.normal(size=(40, 3, 2, 2)).astype(np.float32)
    for kind, debiased in (("biased", False), ("debiased", True)):
        assert told[kind][1][0] == pytest.approx(package.similarity.cka(x, other, debiased=debiased))
    assert (told["n"], told["kernel"], told["bandwidth"]) == (40, "linear", None)
    assert told["features_a"] == {"first": 6, "second": 2}
    assert told["features_b"] == {"map": 12}
    shown = " ".join(out.split())
    for part in (
        "n = 40 examples",
        "kernel linear",
        "centring",
        "first 6",
        "second 2",
        f"{told['debiased'][1][0]:.3f}",
    ):
        assert part in shown
    with Image.open(tmp_path / "o" / "similarity.png") as picture:
        assert picture.size[0] > 400


def test_the_rbf_kernel_tells_its_bandwidth(kinfed: Command, files: dict[str, Path], tmp_path: Path) -> None:  # noqa: F811
    a = str(files["a.npz"])
    code, out, _ = kinfed("similarity", a, a, "--kernel", "rbf", "--bandwidth", "0.8", "--layer", "first", "--out", "o")
    assert code == 0
    told = json.loads((tmp_path / "o" / "similarity.json").read_text())
    assert told["biased"] == [[pytest.approx(1)]]
    assert told["bandwidth"] == 0.8
    assert told["sigma_a"]["first"] > 0
    assert "bandwidth 0.8" in " ".join(out.split())


def test_two_saved_models_see_the_same_test_images(kinfed: Command, tmp_path: Path) -> None:  # noqa: F811
    package.run("local", out=tmp_path / "run", clients=10, rounds=1, quiet=True)
    models = [str(tmp_path / "run" / "models" / f"client-0000{i}-personal.safetensors") for i in (0, 1)]
    code, _, _ = kinfed("similarity", *models, "--data", "digits", "--samples", "64", "--out", "o")
    assert code == 0
    told = json.loads((tmp_path / "o" / "similarity.json").read_text())
    assert [*told["features_a"]] == ["conv1", "conv2", "fc64", "head"]
    assert told["n"] == 64
    diagonal = np.diagonal(np.array(told["biased"]))
    assert diagonal[0] > 0.8  # they started from the same weights
    assert diagonal.max() < 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.npy", "a.npz"], "nowhere.npy: no such file"),
        (["a.npz", "a.txt"], "a.txt: activations are .npy, .npz or .safetensors files"),
        (["broken.npz", "a.npz"], "broken.npz: not a .npz file of plain arrays"),
        (["a.npz", "a.npz", "--layer", "third"], "a.npz: no layer 'third'; it has first, second"),
        (["a.npz", "short.npy"], "the numbers of rows differ"),
        (["a.npz", "a.npz", "--kernel", "poly"], "'poly' is not one of 'linear', 'rbf'"),
        (["a.npz", "a.npz", "--kernel", "rbf", "--bandwidth", "0"], "bandwidth must be positive"),
        (["a.npz", "a.npz", "--bandwidth", "0.8"], "bandwidth: 0.8 would do nothing; it is of kernel rbf"),
        (["a.npz", "a.npz", "--samples", "9"], "samples: 9 would do nothing; it is of the images that models see"),
        (["a.npz", "a.npz", "--out", "."], "out: '.' exists"),
        (["a.npz", "a.npz", "--data", "digits", "--samples", "3"], "samples: 3 is not allowed"),
    ],
)
def test_wrong_input_gets_one_line(
    kinfed: Command,  # noqa: F811
    files: dict[str, Path],
    arguments: list[str],
    message: str,
) -> None:
    code, out, err = kinfed("similarity", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert len([*files["a.npz"].parent.iterdir()]) == len(files)


def test_models_need_data_that_fit(kinfed: Command, tmp_path: Path) -> None:  # noqa: F811
    package.run("fedavg", out=tmp_path / "run", clients=10, rounds=1, model="mlp", quiet=True)
    model = str(tmp_path / "run" / "models" / "global.safetensors")
    assert "name a data set with --data" in kinfed("similarity", model, model)[2]
    from tests.data.test_sources import grey, write

    for split in ("train", "test"):
        write(tmp_path / "large", split, [grey(i, side=9) for i in range(8)], [0, 1] * 4)
    told = kinfed("similarity", model, model, "--data", "large", "--samples", "4")[2]
    assert "the model takes inputs of 1×8×8, the data set has 1×9×9" in told
