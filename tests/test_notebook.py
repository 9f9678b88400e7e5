from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from kinfed.display import Display
from kinfed.experiment.cost import Cost


def test_a_notebook_shows_all_runs_in_one_output_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    new: list[str] = []
    replaced: list[str] = []

    def display(shown: dict[str, str], **how: Any) -> SimpleNamespace:
        assert how == {"raw": True, "display_id": True}
        new.append(shown["text/html"])
        return SimpleNamespace(update=lambda shown, raw: replaced.append(shown["text/plain"]))

    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    monkeypatch.setattr("kinfed.display.bars.NOTEBOOK_SECONDS", 0.0)
    with Display(Console(force_jupyter=True)) as shown:
        shown.runs(Cost(runs=2, rounds=4, left_runs=2, left={"<b>": 4}, seconds=None))
        for seed in (0, 1):
            run = shown.run("<b>", seed, 2)
            run.started(0)
            for round in (1, 2):
                run.working("training", 1, 2)
                run.round({"round": round, "personal_acc_weighted": 0.5, "refused": {}})
            run.ended(2)
        present = replaced[-1].splitlines()
    assert len(new) == 1
    assert "all runs" in new[0]
    assert [line[:9] for line in present] == ["<b> (seed", "<b> (seed", "all runs "]
    assert "4/4" in present[2]
    assert [line[:16] for line in replaced[-1].splitlines()] == ["<b> (seed 0) 2/2", "<b> (seed 1) 2/2"]


@pytest.mark.slow
@pytest.mark.skipif(not all(map(importlib.util.find_spec, ("ipykernel", "nbconvert"))), reason="needs Jupyter")
def test_a_comparison_in_jupyter_has_one_output_and_the_result_is_a_table(tmp_path: Path) -> None:
    cells = [
        'import kinfed\nresult = kinfed.compare("fedavg", clients=5, train_images=300, rounds=2, out="run")',
        "result",
    ]
    empty = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
    notebook = {
        "cells": [{**empty, "source": cell} for cell in cells],
        "metadata": {},
        "nbformat": 4,
        "nbformat_minor": 4,
    }
    (tmp_path / "try.ipynb").write_text(json.dumps(notebook))
    command = [sys.executable, "-m", "nbconvert", "--to", "notebook", "--execute", "--inplace", "try.ipynb"]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = json.loads((tmp_path / "try.ipynb").read_text())["cells"]
    ((bars,), (table,)) = (cell["outputs"] for cell in done)
    assert "fedavg (seed 0) 2/2" in "".join(bars["data"]["text/plain"])
    assert "<table" in "".join(table["data"]["text/html"])
