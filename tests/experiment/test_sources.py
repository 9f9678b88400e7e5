from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kinfed
from kinfed.data import load, select_classes
from kinfed.errors import InputError
from kinfed.experiment.sources import train_source
from kinfed.experiment.training import Training
from kinfed.learning import LocalTraining
from kinfed.models import open_pool

pytestmark = pytest.mark.usefixtures("global_generators")

TINY: dict[str, Any] = {"model": "tiny_cnn", "epochs": 1, "train_images": 200, "quiet": True}


def arrays(path: Path, size: int = 8, *, channels: int = 1, seed: int = 0, classes: int = 3) -> str:
    """A data set of noise, brighter where the class is higher."""
    rng = np.random.default_rng(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    splits: dict[str, Any] = {}
    for split, count in (("train", 200), ("test", 30)):
        labels = np.arange(count) % classes
        noise = rng.integers(0, 80, (count, size, size, channels))
        images = (noise + 60 * labels[:, None, None, None]).astype(np.uint8)
        splits |= {f"x_{split}": images, f"y_{split}": labels}
    np.savez(path, **splits)
    return str(path)


def bytes_of(pool: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in pool.iterdir()}


def test_a_pool_is_what_was_trained_with_the_same_bits_each_time(tmp_path: Path) -> None:
    data = ["digits", arrays(tmp_path / "noise.npz")]
    pools = [kinfed.train_sources(data, out=tmp_path / name, **TINY) for name in ("one", "two")]
    assert bytes_of(pools[0]) == bytes_of(pools[1])
    digits, noise = open_pool(pools[0])
    assert (digits.name, noise.name) == ("digits", "noise")
    assert (digits.card.data, noise.card.data) == ("digits", data[1])
    for source in (digits, noise):
        dataset = load(str(source.card.data))
        predictor = kinfed.load(pools[0] / f"{source.name}.safetensors")
        told = predictor.predict(dataset.test.inputs)
        assert dataset.test.labels is not None
        right = [name == dataset.classes[k] for name, k in zip(told, dataset.test.labels.tolist(), strict=True)]
        assert np.mean(right) == pytest.approx(source.card.accuracy)
    card = json.loads((pools[0] / "noise.json").read_text())
    assert (card["train"], card["measured_on"]) == (200, "the test set, 30 samples")
    assert card["training"]["epochs"] == 1
    assert noise.card.accuracy is not None
    assert noise.card.accuracy > 0.5


def test_every_source_starts_from_weights_of_its_own(tmp_path: Path) -> None:
    dataset, still = load("digits"), LocalTraining(lr=1e-30, momentum=0.0)
    one, again, other, seeded = (
        train_source(dataset, "tiny_cnn", still, seed=seed, purpose=("source", name))[0].tensors()
        for seed, name in ((0, "a"), (0, "a"), (0, "b"), (1, "a"))
    )
    for name in one:
        assert torch.equal(one[name], again[name])
    for tensors in (other, seeded):
        assert not torch.equal(one["head.weight"], tensors["head.weight"])


def test_more_epochs_teach_more_than_one(tmp_path: Path) -> None:
    accuracies = [
        train_source(
            load("digits"), "tiny_cnn", LocalTraining(lr=0.1, epochs=epochs, momentum=0.9), seed=0, purpose=("x",)
        )[1]
        for epochs in (1, 8)
    ]
    assert accuracies[1] > max(accuracies[0], 0.9)


def test_training_that_diverges_is_told() -> None:
    with pytest.raises(
        InputError, match=r"lr: 1e\+10 is not allowed; the training on digits diverges; must be smaller"
    ):
        train_source(load("digits"), "tiny_cnn", LocalTraining(lr=1e10), seed=0, purpose=("x",))


class Told:
    def __init__(self) -> None:
        self.lines: list[Any] = []

    def started(self, done: int) -> None:
        self.lines.append(done)

    def working(self, what: str, done: int, total: int) -> None:
        self.lines.append((done, total))

    def round(self, line: dict[str, Any]) -> None:
        self.lines.append(line["round"])

    def stopping(self, round: int) -> None:
        raise AssertionError


def test_every_step_and_epoch_is_told() -> None:
    told, dataset = Told(), load("digits")
    dataset = replace(dataset, train=dataset.train.take(range(101)))
    train_source(dataset, "tiny_cnn", LocalTraining(lr=0.1, epochs=2), seed=0, purpose=("x",), callback=told)
    assert told.lines == [0, (1, 3), (2, 3), 1, (3, 3), (1, 3), (2, 3), (3, 3), 2]


# -- going on ---------------------------------------------------------------------------------------------------------


def test_what_is_missing_is_trained_and_the_rest_is_kept(tmp_path: Path) -> None:
    data = [arrays(tmp_path / f"{name}.npz", seed=i) for i, name in enumerate("ab")]
    pool = kinfed.train_sources(data, out=tmp_path / "pool", **TINY)
    whole, inode = bytes_of(pool), (pool / "a.safetensors").stat().st_ino
    (pool / "b.json").unlink()  # killed before the last file
    (pool / "b.safetensors.unfinished").touch()
    kinfed.train_sources(data, out=pool, **TINY)
    assert bytes_of(pool) == whole
    assert (pool / "a.safetensors").stat().st_ino == inode
    harmed = bytearray(whole["b.safetensors"])
    harmed[-1] ^= 1
    (pool / "b.safetensors").write_bytes(harmed)
    kinfed.train_sources(data, out=pool, **TINY)
    assert bytes_of(pool) == whole


def test_other_settings_are_refused_until_they_may_overwrite(tmp_path: Path) -> None:
    pool = kinfed.train_sources(["digits"], out=tmp_path / "pool", **TINY)
    before = bytes_of(pool)
    other = TINY | {"epochs": 2}
    with pytest.raises(InputError, match=r"digits.json' was trained with epochs = 1, not 2; choose another folder, or"):
        kinfed.train_sources(["digits", arrays(tmp_path / "a.npz")], out=pool, **other)
    assert bytes_of(pool) == before
    kinfed.train_sources(["digits"], out=pool, overwrite=True, **other)
    assert bytes_of(pool).keys() == before.keys()
    assert bytes_of(pool) != before


def test_a_source_that_somebody_else_made_is_not_overwritten(tmp_path: Path) -> None:
    pool = kinfed.train_sources(["digits"], out=tmp_path / "pool", **TINY)
    card = json.loads((pool / "digits.json").read_text())
    card.pop("training")
    (pool / "digits.json").write_text(json.dumps(card))
    with pytest.raises(InputError, match="does not say how the source was trained"):
        kinfed.train_sources(["digits"], out=pool, **TINY)


# -- formats ----------------------------------------------------------------------------------------------------------


def format_of(path: Path, **fields: Any) -> tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...]]:
    kinfed.train_sources([arrays(path / "x.npz", 10, channels=3)], out=path / "pool", **TINY, **fields)
    (source,) = open_pool(path / "pool")
    return source.card.shape, source.card.normalisation.mean, source.card.normalisation.std


def test_sources_are_given_the_targets_format(tmp_path: Path) -> None:
    target = arrays(tmp_path / "target.npz", 8, seed=7)
    at_home, resized = load(target).train.normalise, load(target, image_size=12).train.normalise
    assert format_of(tmp_path / "a", like=target) == ((1, 8, 8), at_home.mean, at_home.std)
    assert format_of(tmp_path / "b", like=target, image_size=12) == ((1, 12, 12), resized.mean, resized.std)
    assert format_of(tmp_path / "c", like=target, channels=3)[0] == (3, 8, 8)
    shape, mean, _ = format_of(tmp_path / "d")
    assert shape == (3, 10, 10)
    assert mean == load(str(tmp_path / "d" / "x.npz")).train.normalise.mean


def test_a_target_whose_images_are_not_square_needs_a_size(tmp_path: Path) -> None:
    images = np.zeros((6, 8, 9), dtype=np.uint8)
    labels = np.arange(6) % 2
    np.savez(tmp_path / "t.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    with pytest.raises(InputError, match=r"like: .*; its inputs have the shape 1×8×9; must be square images"):
        kinfed.train_sources(["digits"], out=tmp_path / "pool", like=str(tmp_path / "t.npz"), **TINY)
    assert not (tmp_path / "pool").exists()


def test_a_source_of_some_classes_keeps_an_output_for_all(tmp_path: Path) -> None:
    for classes in ("0,1", ("2", "3")):
        kinfed.train_sources(["digits"], out=tmp_path / "pool", classes=classes, **TINY)
    low, high = open_pool(tmp_path / "pool")
    assert (low.name, high.name) == ("digits-0-1", "digits-2-3")
    assert len(low.card.classes) == low.model.head.out_features == 10
    pair = select_classes(load("digits"), ["2", "3"])
    predictor = kinfed.load(tmp_path / "pool" / "digits-2-3.safetensors")
    assert {*predictor.predict(pair.test.inputs)} <= {"2", "3"}


def test_only_some_classes_are_left_and_their_labels_stay() -> None:
    digits = load("digits")
    some = select_classes(replace(digits, columns={"row": (np.arange(1400), np.arange(397))}), ["9", "4"])
    for split, whole, rows in zip(
        (some.train, some.test), (digits.train, digits.test), some.columns["row"], strict=True
    ):
        assert split.labels is not None
        assert whole.labels is not None
        assert {*split.labels.tolist()} == {4, 9}
        assert torch.equal(split.labels, whole.labels[rows])
        assert torch.equal(split.inputs, whole.inputs[rows])
        assert len(split) == int(((whole.labels == 4) | (whole.labels == 9)).sum())
    assert some.classes == digits.classes
    with pytest.raises(InputError, match="classes: 'x' is not known; digits has 0, 1, 2"):
        select_classes(digits, ["0", "x"])
    with pytest.raises(InputError, match="classes: digits must have training and test samples of none"):
        select_classes(digits, [])


# -- names and wrong input --------------------------------------------------------------------------------------------


def test_sources_are_called_as_their_data_and_no_two_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = ("digits", arrays(tmp_path / "a" / "noise.npz"), arrays(tmp_path / "b" / "noise.npz"))
    hub = "hub:somebody/pictures/small"
    training = Training.checked({"data": (*data, hub, str(tmp_path / "a") + "/")})
    assert training.sources() == dict(
        zip(["digits", "noise", "noise-2", "pictures-small", "a"], [*data, hub, str(tmp_path / "a") + "/"], strict=True)
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"data": ()}, "data: none is named"),
        ({"data": ("digits", "digits")}, "data: 'digits' is named twice"),
        ({"data": ("digitz",)}, "data: 'digitz' is neither .* did you mean digits"),
        ({"like": "digitz"}, "like: 'digitz' is neither"),
        ({"model": "lenet"}, "model: 'lenet' is not known; allowed: tiny_cnn, "),
        ({"model": "os:system"}, "model: 'os:system' is not known"),
        ({"epochs": 0}, "epochs: 0 is not allowed; must be greater than or equal to 1"),
        ({"lr": float("nan")}, "lr: nan is not allowed"),
        ({"channels": 2}, "channels: 2 is not allowed; must be 1, 3"),
        ({"device": "abacus"}, "device: 'abacus' is not available here"),
        ({"rounds": 3}, "field: 'rounds' is not known"),
        ({"classes": "0,x"}, "classes: 'x' is not known; digits has 0, 1"),
        ({"model": "cnn4"}, "model: cnn4 needs images of 16×16"),
    ],
)
def test_wrong_input_is_told_before_a_folder_changes(fields: dict[str, Any], message: str, out: Path) -> None:
    given = {"data": ("digits",), "model": "tiny_cnn"} | fields
    with pytest.raises(InputError, match=message) as told:
        kinfed.train_sources(given.pop("data"), out=out, quiet=True, **given)
    assert "\n" not in str(told.value)
    assert not out.exists()


def test_a_run_s_models_are_a_pool(tmp_path: Path) -> None:
    small: dict[str, Any] = {"clients": 3, "rounds": 1, "partition": "iid", "quiet": True, "save_local": True}
    run = kinfed.run("fedavg", out=tmp_path / "run", **small).path
    sources = open_pool(run / "models")
    assert [source.name for source in sources] == [*(f"client-0000{i}-local" for i in range(3)), "global"]
    assert {source.card.data for source in sources} == {"digits"}
    assert [source.card.accuracy is None for source in sources] == [True, True, True, False]


SHARED = Path("/work/shared/data")


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "usps").is_dir(), reason="needs the data sets of /work/shared")
def test_real_images_get_the_format_of_usps(tmp_path: Path) -> None:  # specification E.5
    fields = TINY | {"model": "mlp", "train_images": 50, "like": str(SHARED / "usps"), "image_size": 28}
    pool = kinfed.train_sources(
        [str(SHARED / name) for name in ("usps", "cifar100_small")], out=tmp_path / "p", **fields
    )
    cifar, usps = open_pool(pool)
    assert cifar.card.shape == usps.card.shape == (1, 28, 28)
    assert cifar.card.normalisation == usps.card.normalisation
    assert (len(cifar.card.classes), len(usps.card.classes)) == (100, 10)


def test_where_there_are_fewer_images_all_are_used(tmp_path: Path) -> None:
    kinfed.train_sources(["digits"], out=tmp_path / "all", **TINY | {"train_images": 5000})
    assert json.loads((tmp_path / "all" / "digits.json").read_text())["train"] == 1400
