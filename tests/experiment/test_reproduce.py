from __future__ import annotations

import json
from pathlib import Path

import pytest

import kinfed
from kinfed.errors import InputError
from kinfed.experiment import reproduce
from kinfed.experiment.config import Config
from kinfed.experiment.reproduce import TABLES, PaperTable, Scale
from kinfed.methods import METHODS

SMALL = PaperTable(
    title="A table",
    quantity="global_acc",
    fields={"data": "digits", "clients": 4, "partition": "dirichlet", "probe": 0},
    columns={"α=5": {"alpha": 5.0}, "α=1": {"alpha": 1.0}},
    printed={"fedavg": (64.37, 50.43), "fedbabu": (60.0, 50.0)},
    scales={"small": Scale(("α=1",), {"rounds": 1, "seeds": 2}), "paper": Scale(("α=5", "α=1"), {"rounds": 2})},
    beside={"local": "personal_acc_weighted"},
)


@pytest.fixture(autouse=True)
def _tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "TABLES", {"a-table1": SMALL})


def test_a_table_is_run_and_the_papers_numbers_stand_beside_ours(out: Path) -> None:
    path = kinfed.reproduce("a-table1", out=out, quiet=True)
    summaries = json.loads((out / "α=1" / "comparison.json").read_text())
    ours = [100 * s["metrics"]["global_acc"] for s in summaries if s["method"] == "fedavg"]
    assert json.loads((out / "table.json").read_text())["cells"]["α=1"]["fedavg"] == ours
    lines = path.read_text().splitlines()
    assert "digits, 4 clients, partition dirichlet" in lines[2]
    assert "1 rounds of 1 local epochs, batch 16, lr 0.1, seeds 0 to 1" in lines[2]
    assert lines[4] == "| | α=1: here | α=1: paper |"
    (row,) = (line for line in lines if line.startswith("| fedavg "))
    mean, spread = sum(ours) / 2, abs(ours[0] - ours[1]) / 2**0.5
    assert row == f"| fedavg | {mean:.2f} ± {spread:.2f} | 50.43 |"
    (local,) = (line for line in lines if line.startswith("| local "))
    assert local.endswith("| – |")


def test_the_same_command_goes_on_and_another_config_is_refused(out: Path) -> None:
    before = kinfed.reproduce("a-table1", out=out, quiet=True).read_text()
    (out / "α=1" / "fedbabu-seed1" / "summary.json").unlink()
    assert kinfed.reproduce("a-table1", out=out, quiet=True).read_text() == before
    with pytest.raises(InputError, match="was begun with another config; name another folder"):
        kinfed.reproduce("a-table1", out=out, quiet=True, lr=0.2)


def test_fields_overrule_those_of_the_table(out: Path) -> None:
    text = kinfed.reproduce("a-table1", scale="paper", out=out, quiet=True, rounds=1, alpha=2.0, clients=3).read_text()
    assert "3 clients" in text
    assert "1 rounds" in text
    assert "| | α=5: here | α=5: paper | α=1: here | α=1: paper |" in text


def test_unknown_tables_and_scales_are_told(out: Path) -> None:
    with pytest.raises(InputError, match="table: 'fedcka-table9' is not known; allowed: a-table1"):
        kinfed.reproduce("fedcka-table9", out=out, quiet=True)
    with pytest.raises(InputError, match="scale: 'huge' is not known; allowed: small, paper"):
        kinfed.reproduce("a-table1", scale="huge", out=out, quiet=True)
    assert not out.exists()


@pytest.mark.parametrize("name", TABLES)
def test_every_cell_of_every_table_is_a_valid_config(name: str) -> None:
    table = TABLES[name]
    methods = (*table.printed, *table.beside)
    assert set(methods) <= METHODS.keys()
    assert all(len(numbers) == len(table.columns) for numbers in table.printed.values())
    for scale in table.scales.values():
        for column in scale.columns:
            fields = {**table.fields, **table.columns[column], **scale.fields, "methods": methods, "data": "digits"}
            assert Config.checked(fields).methods == methods
