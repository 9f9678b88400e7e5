from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special
import torch
from PIL import Image
from torch import nn

import kinfed
from kinfed.data import Federation, Samples
from kinfed.errors import InputError
from kinfed.experiment.assemble import federation_of
from kinfed.experiment.config import Config
from kinfed.experiment.config_file import read_toml
from kinfed.models import Model, read_tensors, save_tensors

SMALL: dict[str, Any] = {"clients": 5, "rounds": 2, "quiet": True, "partition": "dirichlet"}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.norm(self.conv(x)).relu().mean(dim=(2, 3)))  # type: ignore[no-any-return]


def net(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Net()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A run folder of a method, made once."""
    made: dict[str, Path] = {}

    def run(method: str, **fields: Any) -> Path:
        name = f"{method}-{'-'.join(fields)}"
        if name not in made:
            made[name] = kinfed.run(method, out=tmp_path_factory.mktemp("runs") / name, **SMALL, **fields).path
        return made[name]

    return run


def copied(run: Path, to: Path) -> Path:
    """The files of a run's global model, at another place."""
    for suffix in (".safetensors", ".json"):
        (to / f"m{suffix}").write_bytes((run / "models" / f"global{suffix}").read_bytes())
    return to / "m.safetensors"


def clients_of(run: Path) -> Federation:
    return federation_of(Config.checked(read_toml(run / "config.toml")))


def right(model: Callable[..., list[str]], samples: Samples, classes: tuple[str, ...]) -> float:
    assert samples.labels is not None
    told = model(samples.inputs)
    return sum(name == classes[k] for name, k in zip(told, samples.labels.tolist(), strict=True)) / len(samples)


def test_a_clients_model_predicts_with_the_accuracy_that_the_run_told(runs: Callable[..., Path]) -> None:
    run = runs("fedper")
    fed, last = clients_of(run), json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    for id in range(5):
        for name in ("personal", "refreshed", "fine_tuned"):
            accuracies = last["client_acc"][name]
            card = json.loads((run / "models" / f"client-{id:05d}-{name}.json").read_text())
            model = kinfed.load(run / "models" / f"client-{id:05d}-{name}.safetensors")
            assert right(model.predict, fed.test(id), model.classes) == accuracies[id] == card["accuracy"]
            assert card["measured_on"] == f"the client's own test samples, {len(fed.test(id))}"
    personal = kinfed.load(run, client=3)
    assert right(personal.predict, fed.test(3), personal.classes) == last["client_acc"]["personal"][3]


def test_the_global_model_predicts_with_the_accuracy_that_the_run_told(runs: Callable[..., Path]) -> None:
    run = runs("fedavg")
    fed, model = clients_of(run), kinfed.load(str(run))
    card = json.loads((run / "models" / "global.json").read_text())
    summary = json.loads((run / "summary.json").read_text())
    test = fed.dataset.test
    assert right(model.predict, test, model.classes) == card["accuracy"] == summary["metrics"]["global_acc"]
    assert card["measured_on"] == f"the pooled test set, {len(test)} samples"
    assert not model.training
    with torch.no_grad():  # floats are taken as they are
        assert torch.equal(model(test.batch(slice(0, 9))), model(test.inputs[:9]))
    assert model.predict(test.inputs[:3].numpy()) == model.predict(test.inputs[:3])


def test_what_is_known_of_a_model_stands_beside_it(runs: Callable[..., Path]) -> None:
    card = json.loads((runs("fedper") / "models" / "client-00002-personal.json").read_text())
    card.pop("accuracy")
    card.pop("measured_on")
    assert card == {
        "version": 1, "method": "fedper", "data": "digits", "partition": "dirichlet", "architecture": "tiny_cnn",
        "bn": "track", "shape": [1, 8, 8], "classes": [str(k) for k in range(10)],
        "normalisation": {"mean": [0.0], "std": [255.0]}, "learned": "with labels", "seed": 0, "rounds": 2, "client": 2,
    }  # fmt: skip


def test_what_a_run_does_not_have_is_told_with_what_it_has(runs: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"^client: must be given, since .* has no global model; .* of their own are 0, 1, 2, 3, 4$"
    ):
        kinfed.load(runs("fedper"))
    with pytest.raises(InputError, match=r"has no model client-00009-personal; it has client-00000-fine_tuned, .*, …$"):
        kinfed.load(runs("fedper"), client=9)
    with pytest.raises(InputError, match=r"has no model client-00001-personal; it has global$"):
        kinfed.load(runs("fedavg"), client=1)
    with pytest.raises(InputError, match="has no model global; it has none, since a run saves models when it ends"):
        kinfed.load(tmp_path)
    with pytest.raises(InputError, match="is neither a run folder nor an existing safetensors file"):
        kinfed.load(tmp_path / "nothing.safetensors")
    with pytest.raises(InputError, match="client: 1 is not allowed; it needs a run folder"):
        kinfed.load(runs("fedavg") / "models" / "global.safetensors", client=1)


def test_inputs_of_another_shape_are_refused(runs: Callable[..., Path]) -> None:
    model = kinfed.load(runs("fedavg"))
    with pytest.raises(InputError, match=r"inputs: must have the shape n×1×8×8, not n×3×8×8"):
        model(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
    with pytest.raises(InputError, match=r"inputs: must have the shape n×1×8×8, not n×9×9"):
        model.predict(torch.zeros(2, 9, 9, dtype=torch.uint8))  # it may be one image of another layout
    with pytest.raises(InputError, match=r"inputs: must have the shape n×1×8×8, not n×1×9×9"):
        model.predict(torch.zeros(2, 1, 9, 9))


def pictures(run: Path, folder: Path) -> tuple[list[Path], torch.Tensor]:
    """Six test images of a run, as files in colour of twice the size, and as the model takes them."""
    images = clients_of(run).dataset.test.inputs[:6]
    paths = []
    for number, image in enumerate(images):
        paths.append(folder / f"{number}.png")
        grey = Image.fromarray(image[0].numpy())
        grey.resize((16, 16), Image.Resampling.NEAREST).convert("RGB").save(paths[-1])
    return paths, images


def test_files_and_pictures_are_prepared_like_images_of_the_training(runs: Callable[..., Path], tmp_path: Path) -> None:
    model = kinfed.load(runs("fedavg"))
    paths, _ = pictures(runs("fedavg"), tmp_path)
    folder = tmp_path / "0"
    for number, path in enumerate(paths):
        (folder / str(number % 2)).mkdir(parents=True, exist_ok=True)
        (folder / str(number % 2) / path.name).write_bytes(path.read_bytes())
    read = kinfed.data.load(folder, channels=1, image_size=8, test_fraction=0.5)
    trained = torch.cat([read.train.inputs, read.test.inputs])
    wanted = sorted(map(tuple, model.predict_proba(trained).round(5).tolist()))
    opened = [Image.open(path) for path in paths]
    arrays = [np.asarray(picture) for picture in opened]
    for given in (paths, [*map(str, paths)], opened, arrays, np.stack(arrays), [*paths[:2], *opened[2:4], *arrays[4:]]):
        assert sorted(map(tuple, model.predict_proba(given).round(5).tolist())) == wanted
    assert opened[0].size == (16, 16)
    assert opened[0].mode == "RGB"
    assert model.predict(paths[0]) == model.predict(opened[0]) == model.predict(paths)[:1]


def test_probabilities_are_those_of_the_logits(runs: Callable[..., Path]) -> None:
    model, images = kinfed.load(runs("fedavg")), clients_of(runs("fedavg")).dataset.test.inputs[:200]
    told = model.predict_proba(images)
    assert told.shape == (200, 10)
    assert told == pytest.approx(scipy.special.softmax(model.logits(images).numpy(), axis=1), abs=1e-6)
    assert [model.classes[k] for k in told.argmax(axis=1)] == model.predict(images)
    assert model.predict_proba(images[:, 0].numpy()) == pytest.approx(told)  # grey images n×h×w


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("nowhere.png", r"inputs: 'nowhere\.png': the image cannot be decoded: there is no such file"),
        (["broken.png"], r"inputs: 'broken\.png': the image cannot be decoded: its format is not known to PIL"),
        ([np.zeros((8, 8, 3), np.uint8), 3], "inputs: 3 is not allowed in a list of images and arrays"),
        ("text", "inputs: 'text': the image cannot be decoded: there is no such file"),
        ({"a": 1}, r"inputs: {'a': 1} is not allowed; must be an array, a tensor, an image, or a list of these"),
        ([[1, 2], [3, 4]], "inputs: torch.int64 is not allowed; must be uint8 images or floats"),
    ],
)
def test_what_is_no_image_is_refused_in_one_line(
    given: Any, message: str, runs: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.png").write_bytes(b"no image")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        kinfed.load(runs("fedavg")).predict(given)


def test_a_comparison_says_which_runs_it_has(tmp_path: Path) -> None:
    path = kinfed.compare(["fedper"], out=tmp_path / "c", **SMALL | {"rounds": 1, "ft_epochs": 0}).path
    with pytest.raises(
        InputError, match=r"^load: .* is a comparison; give one of its runs: fedper-seed0, local-seed0$"
    ):
        kinfed.load(path)


def changed(path: Path, **fields: Any) -> None:
    card = json.loads(path.read_text())
    path.write_text(json.dumps({name: value for name, value in (card | fields).items() if value is not None}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (Path.unlink, "cannot be read: No such file"),
        (lambda p: p.write_bytes(p.read_bytes()[:-20]), "is not a description of a model: Invalid JSON"),
        (lambda p: p.write_bytes(b"\xff\xfe"), "is not a description of a model"),
        (lambda p: changed(p, version=2), "is not a description of a model: version: Input should be 1"),
        (lambda p: changed(p, shape=None), "is not a description of a model: shape: Field required"),
        (lambda p: changed(p, shape=[1, 99999, 99999]), "does not belong to m.safetensors, since its shape differs"),
        (lambda p: changed(p, classes=["a"] * 10), "since its classes differs"),
        (lambda p: changed(p, architecture="mlp"), "since its architecture differs"),
        (lambda p: changed(p, normalisation={"mean": [0], "std": [0]}), "std.0: Input should be greater than 0"),
        (lambda p: changed(p, normalisation={"mean": [0, 0], "std": [1, 1]}), "normalisation must have 1 channels"),
    ],
)
def test_a_damaged_description_is_told_in_one_line(
    damage: Callable[[Path], object], message: str, runs: Callable[..., Path], tmp_path: Path
) -> None:
    path = copied(runs("fedavg"), tmp_path)
    damage(path.with_suffix(".json"))
    with pytest.raises(InputError, match=message) as told:
        kinfed.load(path)
    assert "\n" not in str(told.value)
    assert "m.json" in str(told.value)


@pytest.mark.parametrize("damage", [lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda b: b[:-8], lambda b: b"pickle"])
def test_damaged_weights_are_told_in_one_line(
    damage: Callable[[bytes], bytes], runs: Callable[..., Path], tmp_path: Path
) -> None:
    path = copied(runs("fedavg"), tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=r"m\.safetensors:? (is damaged|cannot be read)") as told:
        kinfed.load(path)
    assert "\n" not in str(told.value)


def test_a_model_that_is_not_finite_is_refused(runs: Callable[..., Path], tmp_path: Path) -> None:  # case 306
    path = copied(runs("fedavg"), tmp_path)
    tensors, about = read_tensors(path)
    tensors["head.bias"][3] = torch.nan
    save_tensors(path, tensors, about)
    with pytest.raises(InputError, match=r"m\.safetensors has a number in head\.bias that is not finite"):
        kinfed.load(path)


@pytest.mark.slow
def test_a_model_of_ones_own_architecture_is_given_and_never_imported(runs: Callable[..., Path]) -> None:
    run = runs("fedavg", model=f"{__name__}:net", head="fc")
    command = f"import kinfed, sys; kinfed.load({str(run)!r})"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=False)
    assert (
        f"importing its architecture '{__name__}:net' would run code; allow that with allow_code=True"
        in done.stderr.splitlines()[-1]
    )
    module = Net()
    before = [*module.state_dict()]
    model = kinfed.load(run, module=module)
    accuracy = json.loads((run / "summary.json").read_text())["metrics"]["global_acc"]
    assert right(model.predict, clients_of(run).dataset.test, model.classes) == accuracy
    assert [*module.state_dict()] == before
    with pytest.raises(InputError, match="head: 'fc' is not a linear layer of the model"):
        kinfed.load(run, module=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    with pytest.raises(InputError, match=r"weights: .* lacks body\.conv"):
        kinfed.load(run, module=Model({"conv": nn.Conv2d(1, 4, 3)}, nn.Linear(4, 10), []))


@pytest.mark.parametrize("bn", ["batch", "group"])
def test_what_became_of_batchnorm_is_known(bn: str, runs: Callable[..., Path], tmp_path: Path) -> None:
    fields = {"model": f"{__name__}:net", "head": "fc", "bn": bn}
    run = kinfed.run("fedavg", out=tmp_path / "o", **SMALL, **fields).path
    model = kinfed.load(run, module=Net())
    accuracy = json.loads((run / "summary.json").read_text())["metrics"]["global_acc"]
    assert right(model.predict, clients_of(run).dataset.test, model.classes) == accuracy
