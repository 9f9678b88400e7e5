"""The whole of an advice: what it refuses before anything is loaded, and a small one from end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kinfed as package
from kinfed.errors import InputError
from kinfed.report.advice import read_advice
from tests.test_cli import kinfed  # noqa: F401 - the fixture

Command = Any
SMALL: dict[str, Any] = {
    "clients": 4, "partition": "iid", "train_images": 120, "model": "mlp", "rounds": 2, "seeds": 2, "public": 0,
}  # fmt: skip


def options(fields: dict[str, Any]) -> list[str]:
    return [word for name, value in fields.items() for word in (f"--{name.replace('_', '-')}", str(value))]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--clients", "0"], "clients: "),
        (["--budget", "soon"], "budget: 'soon' is not allowed; must be a time above 0"),
        (["--validation", "0"], "validation: 0 is not allowed"),
        (["--knn-every", "5"], "knn_every: 5 would do nothing; it is of methods that read no labels"),
        (["--unlabelled", "--ft-epochs", "3"], "ft_epochs: 3 would do nothing"),
        (["--unlabelled", "--knn-every", "0"], "knn_every: 0 is not allowed"),
        (["--out", "taken"], "out: 'taken' exists"),
        (["--data", "nowhere"], "data: 'nowhere' is neither a name"),
    ],
)
def test_wrong_input_gets_one_line_before_the_data_are_loaded(
    kinfed: Command,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: list[str],
    line: str,
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("the data were loaded")

    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    monkeypatch.setattr("kinfed.experiment.assemble.load", never)
    code, _, said = kinfed("advise", *arguments)
    assert code == 2
    assert said.startswith(f"kinfed: {line}")
    assert said.count("\n") == 1


def test_from_python_methods_and_wrong_flags_are_refused() -> None:
    with pytest.raises(InputError, match=r"^methods: advise takes none"):
        package.advise(methods="fedavg")  # type: ignore[call-arg]
    with pytest.raises(InputError, match=r"^unlabelled: 'no' is not allowed; must be true or false"):
        package.advise(unlabelled="no")  # type: ignore[arg-type]


def test_a_damaged_advice_is_named(tmp_path: Path) -> None:
    assert read_advice(tmp_path) is None
    (tmp_path / "advice.json").write_text('{"paragraph": 3}')
    with pytest.raises(InputError, match=r"advice\.json: "):
        read_advice(tmp_path)


@pytest.mark.slow
def test_an_advice_from_end_to_end_goes_on_with_the_same_command(
    kinfed: Command,  # noqa: F811
    tmp_path: Path,
) -> None:
    out = tmp_path / "advice"
    asked = ["advise", *options(SMALL), "--budget", "5s", "--out", str(out)]
    code, shown, said = kinfed(*asked)
    assert code == 0, said
    told = json.loads((out / "advice.json").read_text())
    assert {of["label"] for of in told["candidates"] if of["raced"]} == {"fedavg", "local", "central"}
    assert "raced: fedavg: one model for all" in said
    assert " ".join(shown.split()).endswith(f"{told['paragraph']} {told['command']}")
    assert told["paragraph"] in (out / "advice.md").read_text()
    page = (out / "report.html").read_text()
    assert "<h2>Advice</h2><p>Use " in page
    assert f"<pre>{told['command']}</pre>" in page
    (out / "local-seed1" / "summary.json").unlink()
    (out / "advice.json").unlink()
    assert kinfed(*asked)[0] == 0
    assert json.loads((out / "advice.json").read_text())["candidates"] == told["candidates"]
    code, _, said = kinfed(*asked, "--lr", "0.2")
    assert (code, said.count("was started with another tuning")) == (2, 1)


@pytest.mark.slow
def test_without_labels_the_advice_rests_on_linear_probes(tmp_path: Path) -> None:
    fields = {**SMALL, "model": "tiny_cnn", "knn_every": 1, "linear_probe_images": 60}
    advice = package.advise(unlabelled=True, budget=5, out=tmp_path / "advice", quiet=True, **fields)
    assert "with a linear probe" in advice.paragraph
    assert not advice.traits.labelled
    assert advice.path == tmp_path / "advice"
