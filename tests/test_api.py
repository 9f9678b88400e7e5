"""Python's calls: what is wrong is told in one line, and nothing is touched (case 356)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import kinfed
from kinfed.errors import InputError
from kinfed.experiment.assemble import federation_of
from kinfed.experiment.config import Config
from kinfed.methods import METHODS

SMALL: dict[str, Any] = {"rounds": 1, "clients": 5, "ft_epochs": 0, "quiet": True}
X, Y = np.zeros((4, 8, 8), dtype=np.uint8), [0, 1, 0, 1]
IMAGES = np.zeros((2, 1, 8, 8), dtype=np.uint8)

wrong: Any = kinfed
WRONG: dict[str, tuple[Callable[[Path], Any], str]] = {
    "method 5": (lambda run: wrong.run(5), "methods: 5 is not allowed; must be a name, or an object"),
    "method None": (lambda run: wrong.run(None), "methods: None is not allowed; must be a name"),
    "two methods": (lambda run: wrong.run("fedavg", methods=["fedper"]), "methods: run takes one method"),
    "no methods": (lambda run: wrong.compare(), "methods: none is named"),
    "methods 5": (lambda run: wrong.compare(5), "methods: 5 is not allowed"),
    "methods [None]": (lambda run: wrong.compare([None]), "methods: None is not"),
    "a misspelt one": (lambda run: wrong.compare("fedavgg"), "method: 'fedavgg' is not known; .* mean fedavg?"),
    "a keyword": (lambda run: wrong.run("fedavg", ronds=3), "field: 'ronds' is not known; .* mean rounds?"),
    "out 5": (lambda run: wrong.run("fedavg", out=5), "out: 5 is not allowed; must be a path"),
    "out NUL": (lambda run: wrong.run("fedavg", out="a\0b"), "out: 'a.x00b' is not allowed"),
    "overwrite text": (
        lambda run: wrong.run("fedavg", out=run, overwrite="False"),
        "overwrite: 'False' is not allowed; must be true or false",
    ),
    "quiet None": (lambda run: wrong.run("fedavg", quiet=None), "quiet: None is not"),
    "data 5": (lambda run: wrong.run("fedavg", data=5), "data: 5 is not allowed; must be a name, a path, a Dataset"),
    "data of 3": (lambda run: wrong.run("fedavg", data=(X, Y, X)), "data: .* is not allowed; must be a name, a path"),
    "data array": (lambda run: wrong.run("fedavg", data=X), "data: array.* is not allowed; must be a name, a path"),
    "rounds array": (lambda run: wrong.run("fedavg", rounds=np.zeros((99, 99))), "rounds: array.*… is not allowed"),
    "rounds True": (lambda run: wrong.run("fedavg", rounds=True), "rounds: True is not allowed"),
    "model module": (lambda run: wrong.run("fedavg", model=nn.Linear(2, 2)), "model: .*Linear"),
    "half a character": (lambda run: wrong.run("fedavg", data="\udcff"), "data: '.udcff' is not allowed; .*UTF-8"),
    "settings 5": (lambda run: wrong.run("fedavg", settings=5), "settings: 5 is not allowed; must be a dict of fields"),
    "settings of 5": (lambda run: wrong.run("fedavg", settings={"fedavg": 5}), "settings: {'fedavg': 5} is not"),
    "settings array": (
        lambda run: wrong.run("fedprox", settings={"fedprox": {"mu": np.zeros(3000)}}),
        "fedprox.mu: array.* is not allowed; must be a valid number",
    ),
    "settings True": (lambda run: wrong.run("fedprox", settings={"fedprox": {"mu": True}}), "fedprox.mu: True is not"),
    "device": (lambda run: wrong.run("fedavg", device="meta"), "device: 'meta' is not allowed; must be cpu, cuda"),
    "config 5": (lambda run: wrong.run("fedavg", config=5), "config: 5 is not allowed; must be a path"),
    "resume None": (lambda run: wrong.resume(None), "run: None is not allowed"),
    "table": (lambda run: wrong.reproduce("fedcka"), "table: 'fedcka' is not known; .* mean fedcka-table2?"),
    "table [5]": (lambda run: wrong.reproduce([5]), "table: .5. is not known"),
    "scale": (lambda run: wrong.reproduce("fedcka-table2", scale=[]), "scale: .. is not"),
    "table's settings": (
        lambda run: wrong.reproduce("fedcka-table2", settings={"moon": 3}),
        "settings: {'moon': 3} is not allowed",
    ),
    "table's method": (lambda run: wrong.reproduce("sftl-table1", methods="moon"), "methods: 'moon' is not allowed"),
    "open 5": (lambda run: wrong.open_result(5), "run: 5 is not allowed"),
    "report 5": (lambda run: wrong.open_result(run).report(out=5), "out: 5 is not"),
    "client '3'": (lambda run: wrong.load(run, client="3"), "client: '3' is not allowed"),
    "client -1": (lambda run: wrong.load(run, client=-1), "client: -1 is not allowed; must be a client's number"),
    "client True": (lambda run: wrong.load(run, client=True), "client: True is not allowed"),
    "client 1.5": (lambda run: wrong.load(run, client=1.5), "client: 1.5 is not"),
    "client array": (lambda run: wrong.load(run, client=np.zeros(2)), "client: array"),
    "client 9": (lambda run: wrong.load(run, client=9), "has no model client-00009-personal"),
    "load None": (lambda run: wrong.load(None), "load: None is not allowed"),
    "a class": (lambda run: wrong.load(run, module=nn.Linear), "module: <class"),
    "inputs None": (lambda run: wrong.load(run).predict(None), "inputs: None is not"),
    "inputs text": (lambda run: wrong.load(run).predict("x"), "inputs: 'x': .* there is no such file"),
    "inputs 0-d": (lambda run: wrong.load(run).predict(np.array(5)), "inputs: torch.int64 is not"),
    "inputs a number": (lambda run: wrong.load(run).predict(torch.tensor(5)), "inputs: torch.int64 is not"),
    "no inputs": (lambda run: wrong.load(run).predict([]), "inputs: must have the shape n×1×8×8, not n"),
    "export to": (lambda run: wrong.export(run, "pickle"), "to: 'pickle' is not known"),
    "export out": (lambda run: wrong.export(run, "state_dict", out=3), "out: 3 is not allowed"),
    "evaluate None": (lambda run: wrong.evaluate(run, None), "data: None is not allowed"),
    "evaluate by": (lambda run: wrong.evaluate(run, "digits", measure="f1"), "measure: 'f1' is not known"),
    "inputs whole": (lambda run: wrong.load(run).predict(IMAGES.astype(int)), "inputs: torch.int64 is not allowed; "),
    "inputs complex": (lambda run: wrong.load(run).predict(IMAGES * 1j), "inputs: torch.complex128 is not allowed"),
    "array to forward": (lambda run: wrong.load(run)(IMAGES), "inputs: array.* is not allowed; must be a tensor"),
    "sources None": (lambda run: wrong.train_sources(None, out=run), "data: None is not"),
    "sources out": (lambda run: wrong.train_sources("digits", out=None), "out: None is"),
    "sources in a run": (lambda run: wrong.train_sources("digits", out=run), "is not a pool of source models"),
    "sources in its models": (lambda run: wrong.train_sources("digits", out=run / "models"), "belongs to a run"),
    "vote without": (wrong.vote, "sources: must be given"),
    "vote 5": (lambda run: wrong.vote(5, sources="."), "run: 5 is not allowed"),
    "vote again": (lambda run: wrong.vote(run, sources=".", overwrite=True), "overwrite: is for a new run"),
    "vote ballot": (lambda run: wrong.vote(run, sources=".", ballot="x"), "fedvote.ballot: 'x' is"),
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kinfed.run("fedavg", out=tmp_path_factory.mktemp("api") / "run", **SMALL).path


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_told_in_one_line_and_nothing_is_touched(
    name: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KINFED_CACHE", str(tmp_path / "cache"))
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    call, message = WRONG[name]
    with pytest.raises(InputError, match=message) as told:
        call(run)
    assert "\n" not in str(told.value)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    assert not [*tmp_path.iterdir()]


def test_one_name_is_one_method_and_one_data_set(tmp_path: Path) -> None:
    result = kinfed.compare("fedavg", out=tmp_path / "c", **SMALL)
    assert [summary["method"] for summary in result.summaries] == ["fedavg"]
    kinfed.train_sources("digits", out=tmp_path / "pool", model="tiny_cnn", epochs=1, quiet=True)
    assert (tmp_path / "pool" / "digits.json").is_file()


def test_numpys_numbers_and_paths_are_taken(run: Path, tmp_path: Path) -> None:
    fields = SMALL | {"rounds": np.int64(1), "clients": np.array(5), "lr": np.float64(0.1)}
    again = kinfed.run("fedavg", out=str(tmp_path / "o"), data=Path("digits"), **fields)
    assert (again.path / "metrics.jsonl").read_bytes() == (run / "metrics.jsonl").read_bytes()
    assert kinfed.load(run).predict(IMAGES[::-1]) == kinfed.load(run).predict(torch.from_numpy(IMAGES))
    assert kinfed.load(run).predict(IMAGES[:0]) == []


def test_arrays_are_kept_only_if_all_else_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINFED_CACHE", str(tmp_path / "cache"))
    with pytest.raises(InputError, match="rounds: 0 is not allowed"):
        kinfed.run("fedavg", data=(X, Y, X, Y), rounds=0)
    assert not [*tmp_path.iterdir()]


def test_a_file_has_fields_that_the_call_overrules(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(
        "methods = 'fedprox'\nrounds = 2\nclients = 5\nft_epochs = 0\n[fedprox]\nmu = 0.5\n[moon]\nmu = 9.0\n"
    )
    (summary,) = kinfed.compare(config=file, rounds=1, out=tmp_path / "o", quiet=True).summaries
    assert (summary["method"], summary["rounds"], summary["data"]["clients"]) == ("fedprox", 1, 5)
    assert "mu = 0.5\n" in (tmp_path / "o" / "fedprox-seed0" / "config.toml").read_text()


def test_the_server_holds_a_tenth_of_a_small_data_set(tmp_path: Path) -> None:
    def public(train: int, **fields: Any) -> int:
        config = Config.checked({"methods": "local", "clients": 2, "train_images": train, "partition": "iid", **fields})
        return len(federation_of(config).public_rows)

    assert [public(1400), public(1280), public(1279), public(45), public(9)] == [128, 128, 127, 4, 0]
    assert [public(45, public=20), public(45, public=0)] == [20, 0]
    fields = {"out": tmp_path / "o", "train_images": 45, "partition": "iid", **SMALL}
    path = kinfed.run("fedavg", **fields).path
    assert "\npublic = 4\n" in (path / "config.toml").read_text()
    assert json.loads((path / "summary.json").read_text())["data"]["probe"] == 4
    with pytest.raises(InputError, match="public: 3 is too few; fedshibu compares the clients on images"):
        kinfed.compare(["fedavg", "fedshibu"], **fields | {"out": tmp_path / "p", "train_images": 39})
    assert not (tmp_path / "p").exists()


def test_a_comparison_from_before_the_public_images_were_left_to_the_data_goes_on(tmp_path: Path) -> None:
    from kinfed.experiment.run import go_on, nobody

    config = Config.checked({"methods": "fedavg", "rounds": 1, "clients": 5, "ft_epochs": 0})
    for _ in range(2):
        go_on(config, tmp_path / "o", nobody)
    assert "\npublic = 128\n" in (tmp_path / "o" / "comparison.toml").read_text()
    with pytest.raises(InputError, match="was started with another config"):
        go_on(config.model_copy(update={"public": 64}), tmp_path / "o", nobody)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"on_error": "skip"}, "on_error: 'skip' would do nothing; 'digits' has no image files"),
        ({"on_error": "skip", "data": (X, Y, X, Y)}, "on_error: 'skip' would do nothing; .* has no image files"),
        ({"bn": "batch"}, "bn: 'batch' would do nothing; tiny_cnn has no BatchNorm of maps"),
        ({"bn": "group", "model": "mlp"}, "bn: 'group' would do nothing; mlp has no BatchNorm"),
        (
            {"model": "tests.test_api:whole", "head": "x"},
            "head: 'x' would do nothing; tests.test_api:whole returns a Mod",
        ),
    ],
)
def test_what_does_nothing_for_these_data_or_this_model_is_refused(
    fields: dict[str, Any], message: str, tmp_path: Path
) -> None:  # case 330
    with pytest.raises(InputError, match=message):
        kinfed.compare(**{"methods": "fedavg", "out": tmp_path / "o", **SMALL, **fields})
    assert not [*tmp_path.iterdir()]


def whole(shape: tuple[int, ...], classes: int) -> nn.Module:
    from kinfed.models import Model

    return Model({"flatten": nn.Flatten()}, nn.Linear(64, classes), [])


def test_batchnorm_of_one_of_several_models_is_enough(tmp_path: Path) -> None:
    from kinfed.experiment.uses import refuse_idle_in
    from kinfed.models import build

    config = Config.checked({"methods": "local", "bn": "group"})
    mlp, cnn = (build(name, (1, 16, 16), 10, 0, bn="group") for name in ("mlp", "cnn4"))
    refuse_idle_in(config, [mlp, cnn])
    with pytest.raises(InputError, match="bn: 'group' would do nothing; mlp has"):
        refuse_idle_in(config, [mlp])


def test_every_method_is_exported_under_the_name_of_its_class() -> None:
    for name, method in METHODS.items():
        assert getattr(kinfed, method.__name__) is method, name
    assert {method.__name__ for method in METHODS.values()} <= {*kinfed.__all__}
