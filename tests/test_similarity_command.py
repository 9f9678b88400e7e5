from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

import kinfed as package
import kinfed.data
import kinfed.models
from kinfed.cli.similarity import _test_images
from kinfed.errors import InputError
from kinfed.learning import features
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


@pytest.mark.parametrize("measure", ["rsa", "sketched_cka", "tests.outside.rv2:rv2"])
def test_layers_by_another_measure(kinfed: Command, files: dict[str, Path], measure: str) -> None:  # noqa: F811
    code, out, _ = kinfed("similarity", str(files["a.npz"]), str(files["a.npz"]), "--measure", measure, "--out", "o")
    assert code == 0
    told = json.loads((files["a.npz"].parent / "o" / "similarity.json").read_text())
    assert (told["measure"], told["biased"], told["debiased"], told["kernel"]) == (measure, None, None, None)
    layers = [*package.similarity.load_activations(files["a.npz"]).values()]
    assert np.array(told["values"]) == pytest.approx(package.similarity.similarity_matrix(layers, measure).numpy())
    assert f"{measure} of n = 40 examples" in " ".join(out.split())
    assert (files["a.npz"].parent / "o" / "similarity.png").stat().st_size > 1000


def test_a_measure_that_is_a_cka_is_told_biased_and_debiased(kinfed: Command, files: dict[str, Path]) -> None:  # noqa: F811
    told = {}
    for out, arguments in (("o", ["--kernel", "rbf"]), ("p", ["--measure", "debiased_rbf_cka"])):
        assert kinfed("similarity", str(files["a.npz"]), str(files["a.npz"]), *arguments, "--out", out)[0] == 0
        told[out] = json.loads((files["a.npz"].parent / out / "similarity.json").read_text())
    assert told["o"]["values"] == told["o"]["biased"] == told["p"]["biased"]
    assert told["p"]["values"] == told["p"]["debiased"] == told["o"]["debiased"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.npy", "a.npz"], "nowhere.npy: no such file"),
        (["a.npz", "a.txt"], "a.txt: must be a .npy, .npz or .safetensors file of activations"),
        (["broken.npz", "a.npz"], "broken.npz: is not a .npz file of plain arrays"),
        (["a.npz", "a.npz", "--layer", "third"], "a.npz: has no layer 'third'; it has first, second"),
        (["a.npz", "short.npy"], "the numbers of rows differ"),
        (["a.npz", "a.npz", "--kernel", "poly"], ": 'poly' is not one of 'linear', 'rbf'"),
        (["a.npz", "a.npz", "--kernel", "rbf", "--bandwidth", "0"], "bandwidth must be positive"),
        (["a.npz", "a.npz", "--bandwidth", "0.8"], "bandwidth: 0.8 would do nothing; it is of kernel rbf"),
        (["a.npz", "a.npz", "--samples", "9"], "samples: 9 would do nothing; it is of the images that models see"),
        (["a.npz", "a.npz", "--measure", "rsaa"], "measure must be one of cka, debiased_cka, "),
        (["a.npz", "a.npz", "--measure", "class_mean"], "measure: 'class_mean' is not allowed; it needs labels"),
        (["a.npz", "a.npz", "--measure", "nowhere:rv2"], "measure: 'nowhere:rv2' cannot be imported: No module named"),
        (["a.npz", "a.npz", "--measure", "emd"], "emd needs the same features on both sides: x has 6, y has 2"),
        (
            ["a.npz", "a.npz", "--measure", "rsa", "--kernel", "rbf"],
            "kernel: 'rbf' would do nothing; it is an option of CKA, and",
        ),
        (["a.npz", "a.npz", "--out", "."], "out: '.' exists"),
        (["a.npz", "a.npz", "--data", "digits"], "data: 'digits' would do nothing;"),
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
    assert "images; give a data set with --data" in kinfed("similarity", model, model)[2]
    from tests.data.test_loading import grey, write

    for split in ("train", "test"):
        write(tmp_path / "large", split, [grey(i, side=9) for i in range(8)], [0, 1] * 4)
    told = kinfed("similarity", model, model, "--data", "large", "--samples", "4")[2]
    assert "the model takes inputs of shape 1×8×8, but the data set has 1×9×9" in told


# -- which example is which (case 351) --------------------------------------------------------------------------------


@pytest.fixture
def shuffled(files: dict[str, Path]) -> Path:
    """The examples of a.npz with their ids, in a.npz itself and in another order in shuffled.npz; and other ids."""
    folder = files["a.npz"].parent
    layers, ids = dict(np.load(files["a.npz"])), np.array([f"img{i}" for i in range(40)])
    order = np.random.default_rng(1).permutation(40)
    np.savez(folder / "named.npz", ids=ids, **layers)
    np.savez(folder / "shuffled.npz", ids=ids[order], **{name: x[order] for name, x in layers.items()})
    np.savez(folder / "others.npz", ids=np.char.add("x", ids), **layers)
    save_file({"ids": order, "first": layers["first"][order]}, folder / "numbered.safetensors")
    np.savez(folder / "numbers.npz", ids=np.arange(40), **layers)
    return folder


@pytest.mark.parametrize("layers", [[], ["--layer", "first"]])
@pytest.mark.parametrize("pair", [("named.npz", "shuffled.npz"), ("numbers.npz", "numbered.safetensors")])
def test_examples_are_matched_by_their_ids(kinfed: Command, shuffled: Path, pair: Any, layers: list[str]) -> None:  # noqa: F811
    code, out, _ = kinfed("similarity", *(str(shuffled / name) for name in pair), *layers, "--out", "o")
    assert code == 0
    told = json.loads((shuffled / "o" / "similarity.json").read_text())
    assert told["order"] == "ids"
    assert "ids" not in told["features_a"]
    assert [told[kind][0][0] for kind in ("biased", "debiased")] == pytest.approx([1, 1])
    assert "n = 40 examples, matched by id; kernel" in " ".join(out.split())


def test_without_ids_it_is_said_that_the_order_is_trusted(kinfed: Command, files: dict[str, Path]) -> None:  # noqa: F811
    code, out, _ = kinfed("similarity", str(files["a.npz"]), str(files["a.npz"]), "--out", "o")
    assert code == 0
    assert "they have no ids: row r of A and row r of B" in " ".join(out.split())
    assert json.loads((files["a.npz"].parent / "o" / "similarity.json").read_text())["order"] == "trusted"


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (
            ("named.npz", "others.npz"),
            "ids: a and b must have the same examples: 40 are not in b, the first is 'img0'",
        ),
        (("named.npz", "numbers.npz"), "40 are not in a, the first is 0"),
        (("named.npz", "a.npz"), "or in neither"),
        (("a.npz", "named.npz"), "or in neither"),
    ],
)
def test_ids_that_do_not_match_are_refused(
    kinfed: Command,  # noqa: F811
    shuffled: Path,
    pair: tuple[str, str],
    message: str,
) -> None:
    code, out, err = kinfed("similarity", *(str(shuffled / name) for name in pair))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_the_examples_of_a_model_are_called_by_their_numbers_in_the_test_set(
    kinfed: Command,  # noqa: F811
    tmp_path: Path,
) -> None:
    package.run("fedavg", out=tmp_path / "run", clients=10, rounds=1, model="mlp", quiet=True)
    model, digits = tmp_path / "run" / "models" / "global.safetensors", package.data.load("digits").test
    order = np.random.default_rng(0).permutation(len(digits))
    read = features(package.models.open_saved(model)[0], digits.take(order), "head").numpy()
    np.savez(tmp_path / "named.npz", ids=order, head=read)
    np.savez(tmp_path / "nameless.npz", head=read)
    options = ["--data", "digits", "--samples", str(len(digits)), "--layer", "head"]
    for file, alike in (("named.npz", True), ("nameless.npz", False)):
        assert kinfed("similarity", str(model), str(tmp_path / file), *options, "--out", file[:5])[0] == 0
        told = json.loads((tmp_path / file[:5] / "similarity.json").read_text())
        assert told["order"] == ("ids" if alike else "trusted")
        assert (told["debiased"][0][0] > 0.999) is alike


@pytest.mark.parametrize("name", ["[/b]", "$\\foo$", "from $5{ to $10", "two\nlines", "\x1b[2J"])
def test_a_layer_may_have_any_name(kinfed: Command, tmp_path: Path, name: str) -> None:  # noqa: F811
    x = np.random.default_rng(0).normal(size=(9, 2))
    save_file({name: x}, tmp_path / "a.safetensors")
    code, out, _ = kinfed("similarity", str(tmp_path / "a.safetensors"), str(tmp_path / "a.safetensors"), "--out", "o")
    assert code == 0
    assert "\x1b[2J" not in out
    assert [*json.loads((tmp_path / "o" / "similarity.json").read_text())["features_a"]] == [name]


def test_images_that_nothing_would_look_at_are_refused(kinfed: Command, files: dict[str, Path]) -> None:  # noqa: F811
    code, _, told = kinfed("similarity", str(files["a.npz"]), str(files["b.safetensors"]), "--data", "digits")
    assert code == 2
    assert told.startswith("kinfed: data: 'digits' would do nothing;")
    assert told.count("\n") == 1


def test_too_few_or_too_many_images_are_refused() -> None:
    for count in (3, 398):
        with pytest.raises(
            InputError, match=rf"^samples: {count} is not allowed; must be from 4 to 397, the test images of digits"
        ):
            _test_images("digits", count)
