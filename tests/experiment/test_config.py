from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import kinfed
from kinfed.data.samples import labels_of
from kinfed.errors import InputError
from kinfed.experiment.assemble import federation_of
from kinfed.experiment.config import Config, refuse_mistyped
from kinfed.experiment.config_file import parse_settings, read_toml
from kinfed.experiment.run import folder_of
from kinfed.methods import METHODS
from kinfed.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class Balanced(FedAvg):
    """FedAvg with a flag."""

    balanced: bool = True


SMALLEST: Any = {"train_images": 100, "clients": 2, "partition": "iid", "rounds": 1, "ft_epochs": 0, "quiet": True}


def config(**fields: Any) -> Config:
    return Config.checked({"methods": ("fedavg",), **fields})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"methods": ()}, "methods: none is named; allowed: fedavg"),
        ({"methods": ("fedavgg",)}, "method: 'fedavgg' is not known; allowed: .*; did you mean fedavg?"),
        ({"methods": ("fedavg", "fedavg")}, "methods: 'fedavg' is named twice"),
        ({"ronds": 3}, "field: 'ronds' is not known; .*; did you mean rounds?"),
        ({"rounds": -1}, "rounds: -1 is not allowed; must be greater than or equal to 1"),
        ({"rounds": 0}, "rounds: 0 is not allowed"),
        ({"rounds": "abc"}, "rounds: 'abc' is not allowed; must be a valid integer"),
        ({"rounds": 2.5}, "rounds: 2.5 is not allowed"),
        ({"alpha": 0}, "alpha: 0 is not allowed; must be greater than 0"),
        ({"lr": float("nan")}, "lr: nan is not allowed; must be a finite number"),
        ({"lr": 0}, "lr: 0 is not allowed"),
        ({"participation": 0}, "participation: 0 is not allowed; must be greater than 0"),
        ({"participation": 1.01}, "must be less than or equal to 1"),
        ({"momentum": 1}, "momentum: 1 is not allowed; must be less than 1"),
        ({"partition": "foo"}, "partition: 'foo' is not allowed; must be 'iid', 'shards', .* or 'file:PATH'"),
        ({"model": "resnet180"}, "model: 'resnet180' is not known; allowed: .*; did you mean resnet18?"),
        ({"model": "nowhere.to:be_found"}, "model: 'nowhere.to:be_found' cannot be imported"),
        ({"models": "resnet18"}, "models: 'resnet18' must have the form NAME:SHARE"),
        ({"models": "mlp:0.5,cnn4:0.6"}, "with shares that sum to 1"),
        ({"models": "mlp:0.5,cnn:0.5"}, "model: 'cnn' is not known"),
        (
            {"models": "mlp:0.5,cnn4:0.5"},
            "models: fedavg needs one architecture .*different ones suit fedproto, hetero_ssfl, local",
        ),
        ({"methods": ("local",), "models": "mlp:1", "model": "mlp"}, "models: takes the place of model"),
        ({"bn": "frozen"}, "bn: 'frozen' needs weights"),
        ({"weights": "nowhere.safetensors"}, "weights: 'nowhere.safetensors' is neither a file nor a folder"),
        ({"partition": "shardz:3"}, "partition: 'shardz:3' is not allowed; .*; did you mean shards?"),
        ({"optimizer": "adan"}, "optimizer: 'adan' is not allowed; .* 'adam' or 'adamw'; did you mean adam?"),
        ({"bn": "none"}, "bn: 'none' is not allowed; must be 'track', 'batch', 'group' or 'frozen'"),
        ({"augment": "mixup"}, "augment: 'mixup' is not allowed; must be 'none' or 'crop_flip'"),
        ({"lr_schedule": "linear"}, "lr_schedule: 'linear' is not allowed; must be 'constant', 'cosine' or 'step:'"),
        ({"device": "tpu"}, "device: 'tpu' is not available here"),
        ({"log": "tensorboard,neptune"}, "log: 'neptune' is not known; allowed: tensorboard, mlflow, wandb"),
        ({"log": "tensorbord"}, "log: 'tensorbord' is not known; .*; did you mean tensorboard?"),
        ({"channels": "2"}, "channels: 2 is not allowed; must be 1, 3"),
        ({"image_size": 0}, "image_size: 0 is not allowed; must be greater than or equal to 1"),
        ({"on_error": "ignore"}, "on_error: 'ignore' is not allowed; must be 'stop' or 'skip'"),
        ({"data": "hub:mnist"}, "data: 'hub:mnist' must have the form hub:OWNER/NAME"),
        ({"data": "cifar"}, "data: 'cifar' is neither a name .*; did you mean cifar10?"),
        ({"data": "/nowhere"}, "data: '/nowhere' is neither a name"),
        ({"methods": ("fedshibu",), "public": 3}, "public: 3 is too few; fedshibu compares"),
        ({"settings": {"fedper": {"x": 1}}}, "set: 'fedper' is not known; allowed: fedavg"),
        ({"settings": {"fedavg": {"x": 1}}}, "set: fedavg: 'x' is not known; allowed: lr, optimizer, momentum"),
        ({"methods": ("fedshibu",), "settings": {"fedshibu": {"nrm": "sum"}}}, "'nrm' is not known;.*mean norm?"),
        ({"methods": ("fedshibu",), "settings": {"fedshibu": {"norm": "su"}}}, "fedshibu.norm: 'su' is not allowed"),
        ({"methods": ("fedprox",), "settings": {"fedprox": {"mu": "-1"}}}, "fedprox.mu: '-1' is not allowed"),
        ({"methods": ("fedprox:mu=-1",)}, r"^fedprox\.mu: '-1' is not allowed; must be greater than or equal to 0"),
        ({"methods": ("fedprox:nu=1",)}, "^set: fedprox: 'nu' is not known; allowed: mu, lr"),
        ({"ft_epochs": -1}, "ft_epochs: -1 is not allowed; must be greater than or equal to 0"),
        ({"ft_lr": 0}, "ft_lr: 0 is not allowed; must be greater than 0"),
        ({"target_acc": 0}, "target_acc: 0 is not allowed; must be greater than 0"),
        ({"target_acc": "90"}, "target_acc: '90' is not allowed; must be less than or equal to 1"),
        ({"target_acc": float("nan")}, "target_acc: nan is not allowed; must be a finite number"),
        ({"ft_part": "neck"}, "ft_part: 'neck' is not allowed; must be 'full', 'head' or 'body'"),
    ],
)  # fmt: skip
def test_wrong_fields_are_told_in_one_line_with_what_is_allowed(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as told:
        config(**fields)
    assert "\n" not in str(told.value)


def test_text_is_read_as_the_command_line_types_it() -> None:
    read = config(rounds="7", lr="1e-2", participation="0.5")
    assert (read.rounds, read.lr, read.participation) == (7, 0.01, 0.5)


def test_a_methods_own_fields_are_complete_and_in_their_types() -> None:
    read = config(methods=("fedshibu",), settings={"fedshibu": {"norm": "sum", "samples": "50"}})
    own = read.settings["fedshibu"]
    assert own.items() >= {"norm": "sum", "samples": 50, "kernel": "linear", "include_self": True}.items()
    assert [*own] == [field.name for field in dataclasses.fields(METHODS["fedshibu"])]


@pytest.mark.parametrize(("typed", "read"), [("False", "false"), ("no", "false"), ("true", "true"), ("1", "true")])
def test_a_methods_flag_is_what_was_typed_and_is_told_in_the_config(
    typed: str, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # case 109
    monkeypatch.setitem(METHODS._own, "fedavg", Balanced)
    written = config(settings=parse_settings([f"fedavg.balanced={typed}"])).toml()
    assert written.endswith(f"[fedavg]\nbalanced = {read}\n")
    with pytest.raises(InputError, match=r"fedavg\.balanced: 'maybe' is not allowed"):
        config(settings=parse_settings(["fedavg.balanced=maybe"]))


def test_a_config_survives_its_file(tmp_path: Path) -> None:
    first = config(methods=("fedprox", "local"), lr=0.03, model="mlp", settings={"fedprox": {"mu": 2}})
    (tmp_path / "config.toml").write_text(first.toml())
    assert Config.checked(read_toml(tmp_path / "config.toml")) == first


def test_every_field_is_written_except_those_that_are_not_given() -> None:
    written = config().toml()
    absent = {name for name in Config.model_fields if f"\n{name} = " not in f"\n{written}"}
    assert absent == {
        "label", "client", "group", "test_fraction", "drop", "standardise", "labelled", "hold_out",
        "channels", "classes", "classes_per_client", "patience", "stop_acc", "shift", "client_timeout", "image_size",
        "train_images", "model", "models", "head", "weights", "sources", "linear_probe", "linear_probe_images",
        "public", "target_acc", "log", "settings", "further_clients", "cpus_per_client", "gpus_per_client",
    }  # fmt: skip


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing.toml' cannot be read: No such file"):
        read_toml(tmp_path / "nothing.toml")
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    with pytest.raises(InputError, match=r"bad.toml' is not valid TOML"):
        read_toml(tmp_path / "bad.toml")


def test_a_field_is_read_under_its_former_name_too(tmp_path: Path) -> None:
    (tmp_path / "old.toml").write_text('methods = ["fedavg"]\nprobe = 16\n')
    assert Config.read(tmp_path / "old.toml").public == 16
    assert kinfed.run("fedavg", **SMALLEST, probe=16, out=tmp_path / "out").path  # type: ignore[call-arg]
    assert read_toml(tmp_path / "out" / "config.toml")["public"] == 16
    (tmp_path / "both.toml").write_text('methods = ["fedavg"]\nprobe = 16\npublic = 8\n')
    with pytest.raises(InputError, match="probe: is the former name of public; give only one"):
        read_toml(tmp_path / "both.toml")


def test_checkpoints_name_fields_as_they_always_did(tmp_path: Path) -> None:
    """A run that was begun before a field had its present name goes on."""
    identity = folder_of(config(public=16), tmp_path).identity
    assert identity["probe"] == 16
    assert "public" not in identity


def test_assignments_are_read_by_method() -> None:
    assert parse_settings(["a.x=1", "b.y=2=3", "a.z="]) == {"a": {"x": "1", "z": ""}, "b": {"y": "2=3"}}
    for wrong in ("x", "a.x", "x=1", ".x=1", "a.=1"):
        with pytest.raises(InputError, match=r"must have the form METHOD\.FIELD=VALUE"):
            parse_settings([wrong])


def test_local_joins_a_comparison_that_has_a_personalised_method() -> None:
    assert config(methods=("fedavg", "fedper")).with_local().methods == ("fedavg", "fedper", "local")
    assert config(methods=("fedavg", "central")).with_local().methods == ("fedavg", "central")
    assert config(methods=("local", "fedper")).with_local().methods == ("local", "fedper")


def test_a_run_of_a_comparison_has_one_method_one_seed_and_its_own_settings() -> None:
    whole = config(methods=("fedavg", "fedshibu"), seeds=3, settings={"fedshibu": {"norm": "sum"}})
    one = whole.of("fedshibu", 2)
    assert (one.methods, one.seed, one.seeds) == (("fedshibu",), 2, 1)
    assert one.settings == {"fedshibu": whole.settings["fedshibu"]}
    assert one.settings["fedshibu"]["norm"] == "sum"


@pytest.mark.parametrize(("typed", "meant"), [("False", False), ("true", True), ("0", False)])
def test_a_flag_is_what_was_typed_and_is_told_in_the_config(typed: str, meant: bool) -> None:  # case 109
    flagged = config(save_local=typed)
    assert flagged.save_local is meant
    assert f"save_local = {str(meant).lower()}" in flagged.toml()


def test_some_of_the_classes_are_all_that_a_federation_has() -> None:
    told = config(classes="0, 1", train_images=100, clients=2, partition="iid", public=0)
    assert told.classes == ("0", "1")
    assert Config.checked({"methods": ("local",), "classes": ["0", "1"]}).classes == told.classes
    federation = federation_of(told)
    assert federation.class_counts().sum(axis=0).tolist() == [50, 50, *[0] * 8]
    assert {*labels_of(federation.tested.samples).tolist()} == {0, 1}
    with pytest.raises(InputError, match="classes: 'ten' is not known"):
        federation_of(config(classes="ten"))


@pytest.mark.parametrize(
    "fields",
    [
        {"methods": "fedavgg", "lr": "x"},
        {"methods": ["fedavg", "fedvote+fedproxx"]},
        {"data": "digts"},
        {"data": "hub:mnist"},
        {"model": "resnet81"},
        {"models": "mlp:0.5,cnn:0.5"},
        {"partition": "shardz"},
        {"optimizer": "sdg"},
        {"probe": "x"},
        {"sources": "nowhere"},
    ],
)
def test_the_check_without_torch_says_what_the_whole_check_says(fields: dict[str, Any]) -> None:
    asked = {"methods": "fedavg", **fields}
    with pytest.raises(InputError) as early:
        refuse_mistyped(asked)
    with pytest.raises(InputError) as whole:
        Config.checked({"public" if name == "probe" else name: value for name, value in asked.items()})
    assert str(early.value) == str(whole.value)


def test_the_check_without_torch_leaves_objects_and_correct_names_alone() -> None:
    refuse_mistyped(
        {
            "methods": [Balanced, "fedprox:mu=1", "fedvote+fedper", "no.such:Method"],
            "data": ([[0.0]], [0]),
            "model": "torchvision:resnet18",
            "partition": "by:hospital",
            "classes": ["a,b"],
            "lr": None,
        }
    )
