"""Methods as objects, variants of one method, and code that only a file names."""

from __future__ import annotations

import inspect
import json
import math
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import kinfed
from kinfed.data import from_arrays, make_federation
from kinfed.data.partitions.columns import ByColumn
from kinfed.data.partitions.dirichlet import Dirichlet
from kinfed.data.partitions.iid import IID
from kinfed.errors import InputError
from kinfed.experiment.config import Config
from kinfed.experiment.configure import configure
from kinfed.experiment.keywords import Fields
from kinfed.experiment.objects import as_fields, methods_of, names_in
from kinfed.learning import LocalTraining
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.fedbyol import FedBYOL
from kinfed.methods.fedkin import FedKin
from kinfed.methods.fedprox import FedProx
from kinfed.methods.fedshibu import FedSHIBU
from tests.experiment.test_run import files

SMALL: dict[str, Any] = {"clients": 5, "rounds": 2, "train_images": 200, "ft_epochs": 0, "public": 0, "quiet": True}


@dataclass(frozen=True, kw_only=True)
class Mine(FedProx):
    """FedProx under another name."""


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A method in a file of its own, in the working directory; its import path."""
    (tmp_path / "outside_method.py").write_text(
        "from dataclasses import dataclass\n"
        "from kinfed.methods.fedprox import FedProx\n\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Outside(FedProx):\n"
        '    """FedProx from elsewhere."""\n'
    )
    monkeypatch.chdir(tmp_path)
    yield "outside_method:Outside"
    sys.modules.pop("outside_method", None)


def local_class() -> type[FedProx]:
    @dataclass(frozen=True, kw_only=True)
    class Cell(FedProx):
        """A class as in a cell of a notebook: no import path leads to it."""

    return Cell


def same(folder: Path) -> dict[str, bytes]:
    """The files that do not tell the time."""
    timed = ("seconds.jsonl", "summary.json", "comparison.json")
    return {name: content for name, content in files(folder).items() if not name.endswith(timed)}


def test_an_object_is_the_name_with_its_fields() -> None:
    fields, objects = as_fields({"methods": [FedAvg(), FedProx(mu=0.3)]})
    assert fields == {"methods": ("fedavg", "fedprox"), "settings": {"fedavg": {}, "fedprox": {"mu": 0.3}}}
    assert objects == {}


def test_variants_of_a_method_are_called_by_what_differs() -> None:
    fields, _ = as_fields({"methods": [FedProx(mu=0.1), FedProx(mu=1.0), "fedprox:mu=2", FedAvg]})
    assert fields["methods"] == ("fedprox:mu=0.1", "fedprox:mu=1.0", "fedprox:mu=2", "fedavg")
    config = Config.checked(fields)
    assert [config.method(label) for label in config.methods[:3]] == [FedProx(mu=mu) for mu in (0.1, 1.0, 2.0)]


def test_a_variant_with_a_field_that_is_none_can_be_read_again() -> None:
    fields, _ = as_fields({"methods": [FedBYOL(), FedBYOL(hidden=64)]})
    assert fields["methods"] == ("fedbyol", "fedbyol:hidden=64")
    config = Config.checked(fields)
    assert [config.method(label) for label in config.methods] == [FedBYOL(), FedBYOL(hidden=64)]


def test_a_variant_may_name_a_measure_of_ones_own(tmp_path: Path) -> None:
    label = "fedvote:measure=tests.outside.rv2:rv2"
    config = Config.checked({"methods": label, "sources": str(tmp_path)})
    assert config.settings[label]["measure"] == "tests.outside.rv2:rv2"
    assert "tests.outside.rv2:rv2" in names_in({"methods": label})


def test_set_is_for_all_variants_that_do_not_say_otherwise() -> None:
    config = Config.checked(
        {"methods": ("fedprox", "fedprox:mu=2", "fedshibu:k=3"), "settings": {"fedprox": {"mu": 0.7}}}
    )
    assert [config.settings[label]["mu"] for label in config.methods[:2]] == [0.7, 2.0]


@pytest.mark.parametrize(
    ("methods", "told"),
    [
        (("fedprox:mu=1", "fedprox:mu=1"), "methods: 'fedprox:mu=1' is named twice"),
        (
            ("fedprox:nu=1",),
            "set: fedprox: 'nu' is not known; allowed: mu, lr, optimizer, momentum, weight_decay, local_epochs, "
            "batch_size",
        ),
        (("fedprox:mu=x",), "fedprox.mu: 'x' is not allowed; must be a valid number"),
        (("<Cell>",), "methods: <Cell> was given in Python, and no import path leads to it"),
    ],
)
def test_labels_that_cannot_be_meant_are_told_in_one_line(methods: tuple[str, ...], told: str) -> None:
    with pytest.raises(InputError) as error:
        Config.checked({"methods": methods})
    assert str(error.value).startswith(told)


@pytest.mark.parametrize("wrong", [3, object(), dict, [None]])
def test_what_is_no_method_is_told_in_one_line(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"^methods: .* is not allowed; must be a name, or an object or a class derived"
    ):
        kinfed.compare(wrong, out=tmp_path / "o", **SMALL)
    assert not (tmp_path / "o").exists()


def test_training_is_given_as_one_object() -> None:
    training = LocalTraining(lr=0.3, epochs=2, batch_size=5)
    fields, _ = as_fields({"methods": "fedavg", "training": training})
    config = Config.checked(fields)
    assert (config.lr, config.local_epochs, config.batch_size) == (0.3, 2, 5)
    with pytest.raises(InputError, match=r"^lr: is also a field of training; give only one"):
        as_fields({"training": training, "lr": 0.1})


def test_the_same_run_by_name_by_object_and_from_outside(outside: str, tmp_path: Path) -> None:
    kinfed.run("fedprox:mu=0.3", out=tmp_path / "name", **SMALL)
    kinfed.run(FedProx(mu=0.3), out=tmp_path / "object", **SMALL)
    kinfed.run(outside, settings={outside: {"mu": 0.3}}, out=tmp_path / "outside", **SMALL)
    kinfed.run(local_class()(mu=0.3), out=tmp_path / "cell", **SMALL)
    curves = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("name", "object", "outside", "cell")]
    assert len({*curves}) == 1
    methods = [json.loads((tmp_path / n / "summary.json").read_text())["method"] for n in ("object", "outside", "cell")]
    assert methods == ["fedprox", outside, "<Cell>"]


def test_a_class_without_an_import_path_is_given_again_to_go_on(tmp_path: Path) -> None:
    cell, out = local_class(), tmp_path / "o"
    kinfed.compare([cell(mu=0.3), FedAvg], out=out, **SMALL)
    whole = same(out)
    assert kinfed.open_result(out).frame()["method"].unique().tolist() == ["<Cell>", "fedavg"]  # needs no class
    (out / "Cell-seed0" / "summary.json").unlink()
    shutil.rmtree(out / "Cell-seed0" / "checkpoints")
    with pytest.raises(InputError, match=r"methods: <Cell> was given in Python, .* kinfed.resume\(path, methods=…\)"):
        kinfed.resume(out, quiet=True)
    with pytest.raises(InputError, match=r"^methods: .*mu=0\.5.* is not a method of the run"):
        kinfed.resume(out, methods=cell(mu=0.5), quiet=True)
    kinfed.resume(out, methods=cell, quiet=True)
    assert same(out) == whole


def test_code_that_only_a_file_names_is_not_imported(outside: str, tmp_path: Path) -> None:
    out = tmp_path / "o"
    kinfed.run(outside, out=out, **SMALL)
    (out / "summary.json").unlink()
    sys.modules.pop("outside_method")
    with pytest.raises(InputError, match=rf"method: '{outside}' is named in .*o, and importing it would run its code"):
        kinfed.resume(out, quiet=True)
    (tmp_path / "config.toml").write_text(f'methods = ["{outside}"]\n')
    with pytest.raises(InputError, match=rf"^method: '{outside}' is named in .*config.toml"):
        kinfed.compare(config=tmp_path / "config.toml", out=tmp_path / "p", **SMALL)
    assert "outside_method" not in sys.modules
    kinfed.resume(out, allow_code=True, quiet=True)
    assert (out / "summary.json").is_file()


def test_the_signature_names_every_field_of_the_config() -> None:
    own = {"methods", "settings", "measure"}
    assert Fields.__annotations__.keys() - {"training", "config", "dp"} == Config.model_fields.keys() - own | {
        "settings"
    }
    shown = inspect.signature(kinfed.compare).parameters
    assert (shown["lr"].default, shown["measure"].default) == (0.1, "accuracy")
    assert not any(parameter.kind is parameter.VAR_KEYWORD for parameter in shown.values())


def test_the_frame_has_a_row_for_each_method_seed_round_and_client(tmp_path: Path) -> None:
    result = kinfed.compare(["fedavg", FedProx(mu=0.3)], out=tmp_path / "o", seeds=2, new_clients=1, **SMALL)
    frame = result.frame()
    assert frame.groupby(["method", "seed", "round"]).size().to_list() == [4, 5] * 4  # the new client at the end
    last = frame[(frame["round"] == 2) & (frame["seed"] == 1) & (frame["method"] == "fedprox")]
    line = json.loads((tmp_path / "o" / "fedprox-seed1" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["accuracy"].to_list()[:4] == line["client_acc"]["personal"]
    assert last["new_global"].to_list()[4:] == line["client_acc"]["new_global"]


def test_a_partition_is_given_as_object_class_function_or_label() -> None:
    def by_halves(labels: Any, clients: int, rng: Any) -> Any:
        return np.array_split(np.arange(len(labels)), clients)

    given: dict[str, tuple[Any, dict[str, Any]]] = {
        "fields": (Dirichlet(alpha=0.3), {"partition": "dirichlet", "alpha": 0.3}),
        "class": (IID, {"partition": "iid"}),
        "column": (ByColumn("site"), {"partition": "by:site"}),
        "function": (by_halves, {"partition": "<by_halves>"}),
    }
    for partition, wanted in given.values():
        fields, objects = as_fields({"methods": "fedavg", "partition": partition})
        assert {name: fields[name] for name in wanted} == wanted
        Config.checked(fields, objects)
    assert Config.checked({"methods": "fedavg", "partition": "dirichlet:alpha=0.3"}).partitioner() == Dirichlet(
        alpha=0.3
    )
    with pytest.raises(InputError, match=r"^partition: 3 is not allowed; a name, a Partitioner or a function is"):
        as_fields({"partition": 3})
    with pytest.raises(InputError, match=r"^partition: 'dirichlet' has no field 'beta'"):
        Config.checked({"methods": "fedavg", "partition": "dirichlet:beta=0.3"})


def test_the_same_clients_by_name_and_by_object(tmp_path: Path) -> None:
    kinfed.run("fedavg", partition="dirichlet", alpha=0.3, out=tmp_path / "name", **SMALL)
    kinfed.run("fedavg", partition=Dirichlet(alpha=0.3), out=tmp_path / "object", **SMALL)
    assert files(tmp_path / "name")["config.toml"] == files(tmp_path / "object")["config.toml"]
    assert files(tmp_path / "name")["federation.json"] == files(tmp_path / "object")["federation.json"]


def test_a_model_is_given_as_module_function_or_class(tmp_path: Path) -> None:
    def make(shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))

    kinfed.run("fedavg", model=make, out=tmp_path / "function", **SMALL)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    kinfed.run("fedper", model=module, out=tmp_path / "module", **SMALL)
    summaries = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("function", "module")]
    assert [summary["model"] for summary in summaries] == ["<make>", "<Sequential>"]
    with pytest.raises(InputError, match="its architecture '<make>'"):
        kinfed.load(tmp_path / "function")
    assert kinfed.load(tmp_path / "function", module=make((1, 8, 8), 10)).classes[:2] == ("0", "1")
    with pytest.raises(InputError, match=r"model: <make> was given in Python"):
        kinfed.resume(tmp_path / "function", quiet=True)
    kinfed.resume(tmp_path / "function", model=make, quiet=True)


def test_data_are_given_as_arrays_torch_dataset_path_or_federation(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (100, 8, 8), dtype=np.uint8), np.arange(100) % 5
    own: dict[str, Any] = {**SMALL, "clients": 4, "partition": "iid", "train_images": None}
    with pytest.warns(UserWarning, match="test"):
        kinfed.run("fedavg", data=(x, y), out=tmp_path / "arrays", **own)
    pairs = [(torch.from_numpy(image), int(label)) for image, label in zip(x, y, strict=True)]
    with pytest.warns(UserWarning, match="test"):
        kinfed.run("fedavg", data=Pairs(pairs), out=tmp_path / "torch", **own)
    assert files(tmp_path / "arrays")["metrics.jsonl"] == files(tmp_path / "torch")["metrics.jsonl"]

    federation = make_federation(from_arrays(x[:80], y[:80], x[80:], y[80:]), IID(), clients=4, public=0, seed=0)
    given = {name: value for name, value in own.items() if name in ("rounds", "ft_epochs", "quiet")}
    kinfed.run("fedavg", data=federation, out=tmp_path / "federation", **given)
    kinfed.run("fedavg", data=(x[:80], y[:80], x[80:], y[80:]), out=tmp_path / "four", **own)
    assert files(tmp_path / "federation")["metrics.jsonl"] == files(tmp_path / "four")["metrics.jsonl"]
    with pytest.raises(InputError, match=r"data: <Federation> was given in Python"):
        kinfed.resume(tmp_path / "federation", quiet=True)
    kinfed.resume(tmp_path / "federation", data=federation, quiet=True)
    with pytest.raises(InputError, match=r"^clients: would do nothing; the data are a Federation"):
        kinfed.run("fedavg", data=federation, clients=3, out=tmp_path / "o", **given)


class Pairs(torch.utils.data.Dataset[Any]):
    """A map-style torch data set."""

    def __init__(self, pairs: list[Any]) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, at: int) -> Any:
        return self.pairs[at]


def test_a_field_that_an_object_has_by_default_is_not_one_that_somebody_asked_for() -> None:
    labels, settings = methods_of([FedSHIBU(norm="sum"), FedKin(FedProx(mu=0.5))], {})
    assert labels == ("fedshibu", "fedkin+fedprox")
    assert settings == {"fedshibu": {"norm": "sum"}, "fedkin+fedprox": {"mu": 0.5}}
    given = {"methods": labels, "settings": settings}
    assert configure(given).settings["fedshibu"]["norm"] == "sum"  # gamma, k, … would do nothing, and are not refused
    with pytest.raises(InputError, match=r"^fedshibu.gamma: 2.0 would do nothing; it is of norm=power"):
        configure({"methods": labels, "settings": {"fedshibu": {"norm": "sum", "gamma": 2.0}}})


def test_the_frame_tells_the_group_of_every_client(tmp_path: Path) -> None:
    fields = {**SMALL, "clients": 6, "new_clients": 2, "rounds": 1, "partition": "iid", "shift": "rotate:2"}
    frame = kinfed.run("oracle_groups", out=tmp_path / "oracle", **fields).frame()
    federation = json.loads((tmp_path / "oracle" / "federation.json").read_text())
    assert frame["group"].to_list()[:4] == federation["groups"][:4]
    frame = kinfed.run("fedkin", out=tmp_path / "kin", **fields).frame()  # one round: nobody is divided
    assert frame["group"].to_list() == [0] * 6  # the new clients' groups as well
