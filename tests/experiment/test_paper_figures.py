"""Figures of the papers: what is run for them, what is measured, and what is written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import kinfed
from kinfed.engine import NoCallback
from kinfed.errors import InputError
from kinfed.experiment.config import Config
from kinfed.experiment.cost import Cost
from kinfed.experiment.papers import FIGURES, TABLES
from kinfed.experiment.papers.figure import (
    CLASS_COUNTS,
    CRSM,
    HEAD_DISTANCE,
    LAYERS,
    PANELS,
    SPEED_UP,
    Curve,
    Matrix,
    Measured,
    PaperFigure,
    numbers,
)
from kinfed.experiment.papers.figures import reproduce_figure
from kinfed.experiment.papers.quantities import head_distance, layer_similarity, similarities, speed_up
from kinfed.experiment.papers.reproduce import comparisons
from kinfed.experiment.papers.table import PaperTable, Row, Scale
from kinfed.files import write_whole
from kinfed.models import save_tensors
from kinfed.report.paper_figure import write_pictures

FIELDS: dict[str, Any] = {
    "data": "digits", "model": "tiny_cnn", "clients": 4, "partition": "iid", "public": 0, "train_images": 200,
    "rounds": 2, "ft_epochs": 0,
}  # fmt: skip
BASIC: dict[str, Any] = {
    "title": "A figure", "shows": "something.", "quantity": "global_acc", "fields": FIELDS,
    "rows": (Row("A", "fedavg"),), "panels": {"all": {}}, "scales": {"small": Scale(("all",), {})},
}  # fmt: skip


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> dict[str, PaperFigure]:
    """Figures under names of their own; the fixture is empty, and a test adds what it needs."""
    figures: dict[str, PaperFigure] = {}
    for module in ("papers", "papers.figures"):
        monkeypatch.setattr(f"kinfed.experiment.{module}.FIGURES", figures)
    return figures


class Watching:
    """Keeps the costs, and refuses to see a source as a run."""

    def __init__(self, costs: list[Cost]) -> None:
        self.cost = costs.append
        self.runs: list[str] = []
        self.sources: list[str] = []

    def run(self, method: str, seed: int, rounds: int) -> NoCallback:
        self.runs.append(method)
        return NoCallback()

    def source(self, name: str, seed: int, epochs: int) -> NoCallback:
        self.sources.append(name)
        return NoCallback()


def drawn(folder: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((folder / "figure.json").read_text())
    return told


# -- the presets ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "scale"), [(name, scale) for name in FIGURES for scale in FIGURES[name].scales])
def test_every_run_of_every_figure_is_a_valid_config(name: str, scale: str) -> None:
    figure, digits = FIGURES[name], {"data": "digits"}
    pools = {panel: {"sources": os.curdir} for panel in figure.panels} if figure.sources and not figure.start else {}
    table = figure.table(scale, pools)
    for column in table.scales[scale].columns:
        for comparison in comparisons(table, scale, column, digits):
            assert comparison.config.rounds >= 1
    for place in figure.places(scale):
        assert place.column in table.columns
        assert place.row in table.rows


def test_figures_with_numbers_have_those_of_their_table() -> None:
    table = TABLES["fedshibu-table1"]
    assert isinstance(table, PaperTable)
    places = {(p.panel, p.curve, p.x): p.paper for p in FIGURES["fedshibu-figure4"].places("paper")}
    for row in table.rows:
        if row.label in ("FedSHIBU linear", "FedBABU"):
            for column, number in zip(table.columns, row.printed, strict=True):
                called, _, shards = column.partition(" s=")
                assert places[called, row.label, int(shards)] == number
    small = {p.x: p.paper for p in FIGURES["fedshibu-figure4"].places("small") if p.curve == "FedBABU"}
    assert small == {2: 68.43, 5: 86.93, 10: 90.24}


def test_a_field_of_a_method_varies_in_its_rows_and_the_others_are_level() -> None:
    places = [*FIGURES["fedcka-figure5"].places("small")]
    assert [p.row.settings for p in places if p.curve == "FedCKA"] == [{"layers": n} for n in (1, 2, 4, 7)]
    assert {p.row.label for p in places if p.curve == "FedAvg"} == {"FedAvg"}
    assert [p.x for p in places if p.curve == "FedAvg"] == [1, 2, 4, 7]


# -- the quantities ------------------------------------------------------------------------------------------------


def test_the_head_distance_is_the_mean_over_all_pairs_and_of_heads_alone(tmp_path: Path) -> None:
    for id, at in enumerate(([0.0, 0.0], [3.0, 4.0], [0.0, 0.0])):
        path = tmp_path / "models" / f"client-{id:05d}-personal.safetensors"
        path.parent.mkdir(exist_ok=True)
        save_tensors(path, {"head.weight": torch.tensor([at]), "body.w": torch.full((2,), float(id))}, {})
    assert head_distance(tmp_path) == pytest.approx((5 + 0 + 5) / 3)


def test_a_speed_up_is_a_ratio_of_rounds_to_95_percent_of_the_baselines_best(tmp_path: Path) -> None:
    def run(name: str, accuracies: list[float]) -> Path:
        lines = [json.dumps({"round": n, "global_acc": a}) for n, a in enumerate(accuracies, 1)]
        (tmp_path / name).mkdir()
        write_whole(tmp_path / name / "metrics.jsonl", "".join(f"{line}\n" for line in lines))
        return tmp_path / name

    base = run("base", [0.1, 0.5, 0.94, 0.96, 1.0, 0.9])
    assert speed_up(base, base) == 1
    assert speed_up(run("fast", [0.1, 0.95, 0.2, 0.2, 0.2, 0.2]), base) == 4 / 2
    assert speed_up(run("never", [0.1] * 6), base) == 4 / 6


# -- one of each kind ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_curves_by_round_with_joined_panels(own: dict[str, PaperFigure], out: Path) -> None:
    own["a"] = PaperFigure(
        **BASIC | {
            "panels": {"all": {}, "low": {"classes": ("0", "1")}, "high": {"classes": ("8", "9")}},
            "joined": {"all": "together", "low": "apart", "high": "apart"},
            "scales": {"small": Scale(("all", "low", "high"), {"seeds": 2}, {"low": {"train_images": 100}})},
        }
    )  # fmt: skip
    path = kinfed.reproduce("a", out=out, quiet=True)
    (curves,) = drawn(out)["curves"].values()
    assert [*curves] == ["A, together", "A, apart"]
    each = [json.loads((out / panel / "comparison.json").read_text())[1]["metrics"] for panel in ("low", "high")]
    mean = sum(100 * metrics["global_acc"] for metrics in each) / 2
    assert curves["A, apart"]["x"] == [1, 2]
    assert curves["A, apart"]["values"][1][1] == pytest.approx(mean)
    told = path.read_text()
    assert "The paper: something." in told
    assert "| round | 1 | 2 |" in told
    page = (out / "figure.html").read_text()
    assert "A, together" in page
    assert "<h2>Numbers</h2>" in page
    with Image.open(out / "figure.png") as picture:
        assert picture.size[0] > 300
    with pytest.raises(InputError, match=r"classes: .* is not allowed; it differs between"):
        kinfed.reproduce("a", out=out, quiet=True, classes="1,2")


@pytest.mark.slow
def test_a_quantity_by_a_field_from_a_common_start(own: dict[str, PaperFigure], out: Path) -> None:
    training = {"data": ("digits",), "model": "tiny_cnn", "epochs": 1, "train_images": 100}
    own["a"] = PaperFigure(
        **BASIC | {
            "quantity": HEAD_DISTANCE, "rows": (Row("alone", "local", (7.0, 9.0)),), "over": "rounds",
            "values": {"small": (1, 3), "paper": (1, 3)}, "sources": {"small": {"start": training}}, "start": "start",
        }
    )  # fmt: skip
    watching = Watching([])
    reproduce_figure("a", "small", out, {}, watching)
    assert (watching.runs, len(watching.sources)) == (["local", "local"], 1)  # epochs of a source are no rounds
    curve = drawn(out)["curves"]["all"]["alone"]
    (first,), (last,) = curve["values"]
    assert 0 < first < last  # heads part with every update
    assert curve["paper"] == [7, 9]
    config = Config.read(out / "all, rounds=3" / "local-seed0" / "config.toml")
    assert config.weights == str(out / "sources" / "start" / "digits.safetensors")
    assert "| alone, paper | 7.00 | 9.00 |" in (out / "figure.md").read_text()


@pytest.mark.slow
def test_transfers_between_subsets_as_a_matrix_and_as_a_mean(own: dict[str, PaperFigure], out: Path) -> None:
    subsets = {"low": {"classes": ("0", "1", "2")}, "high": {"classes": ("7", "8", "9")}}
    training = {"data": ("digits",), "model": "tiny_cnn", "epochs": 2, "train_images": 100}
    fields = BASIC | {
        "fields": {**FIELDS, "train_images": 100, "settings": {"fedvote": {"round": 1, "ballot": 1}}},
        "quantity": SPEED_UP, "panels": subsets, "over": PANELS,
        "rows": (Row("FedAvg", "fedavg"), Row("by vote", "fedvote"),
                 *(Row(f"from {name}", "fedvote", settings={"source": name}) for name in subsets)),
        "scales": {"small": Scale((*subsets,), {})},
        "sources": {"small": {name: {**training, **of} for name, of in subsets.items()}},
    }  # fmt: skip
    own["matrix"] = PaperFigure(**fields, matrix=True)
    own["mean"] = PaperFigure(**fields, joined={f"from {name}": "random" for name in subsets})
    kinfed.reproduce("matrix", out=out, quiet=True)
    (matrix,) = drawn(out)["matrices"].values()
    assert (matrix["rows"], matrix["columns"]) == (["FedAvg", "by vote", "from low", "from high"], ["low", "high"])
    baseline, vote, low, high = matrix["values"]
    assert baseline == [1, 1]
    assert vote == [high[0], low[1]]  # the only source that is not of the target's own classes
    costs: list[Cost] = []
    reproduce_figure("mean", "small", out, {}, Watching(costs))
    assert (costs[0].runs, costs[0].rounds, costs[0].left_runs) == (8, 16, 0)  # the same runs
    (curves,) = drawn(out)["curves"].values()
    assert curves["random"]["values"] == [[high[0]], [low[1]]]


@pytest.mark.parametrize("choice", [{"columns": "all"}, {"rows": ["A"]}])
def test_a_figure_has_no_columns_or_rows_to_choose_from(
    own: dict[str, PaperFigure], out: Path, choice: dict[str, Any]
) -> None:
    own["a"] = PaperFigure(**BASIC)
    with pytest.raises(InputError, match=r"(columns: 'all'|rows: \['A'\]) would do nothing; a figure is drawn whole"):
        kinfed.reproduce("a", out=out, quiet=True, **choice)


def test_class_counts_need_no_training(own: dict[str, PaperFigure], out: Path) -> None:
    own["a"] = PaperFigure(**BASIC | {"quantity": CLASS_COUNTS})
    costs: list[Cost] = []
    reproduce_figure("a", "small", out, {}, Watching(costs))
    assert not costs
    matrix = drawn(out)["matrices"]["all"]
    assert (len(matrix["rows"]), len(matrix["columns"])) == (10, 4)
    assert sum(map(sum, matrix["values"])) == 200
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == []


@pytest.mark.slow
def test_matrices_of_a_run(out: Path) -> None:
    fields = {**FIELDS, "public": 16, "save_local": True, "checkpoint_every": 1, "quiet": True}
    result = kinfed.run("fedshibu", out=out / "shibu", **{k: v for k, v in fields.items() if k != "save_local"})
    found = similarities(result.path, CRSM)
    assert [*found] == ["Shared classes", "After round 1", "After round 2"]
    assert all(len(matrix.values) == 4 for matrix in found.values())
    layers = layer_similarity(kinfed.run("fedavg", out=out / "avg", **fields).path)
    assert [*layers] == ["CKA", "debiased CKA"]
    mean, *clients = layers["CKA"].values
    assert len(clients) == 4
    assert mean[0] == pytest.approx(sum(client[0] or 0 for client in clients) / 4)
    assert all(0 < value <= 1 + 1e-6 for row in layers["CKA"].values for value in row if value is not None)
    assert LAYERS in {figure.quantity for figure in FIGURES.values()}


# -- the pictures --------------------------------------------------------------------------------------------------


def measured(**fields: Any) -> Measured:
    empty: dict[str, Any] = {"curves": {}, "matrices": {}, "other_setting": {}}
    words = dict.fromkeys(("figure", "scale", "title", "shows", "run", "note", "x", "y"), "<b>")
    return Measured(**words | empty | fields)


def test_tables_of_numbers_show_ten_rounds_and_spell_missing_ones() -> None:
    long = Curve([*range(1, 101)], [[float(x), float(x)] for x in range(1, 101)])
    ((_, rows),) = numbers(measured(curves={"": {"long": long}}))
    assert rows[0] == ["<b>", "1", "12", "23", "34", "45", "56", "67", "78", "89", "100"]
    gaps = Curve([1, 2], [[1.0, 3.0], [None, None]], [None, 2.5])
    ((_, rows),) = numbers(measured(curves={"": {"gaps": gaps}}))
    assert rows[1:] == [["gaps", "2.00 ± 1.41", "–"], ["gaps, paper", "–", "2.50"]]
    counts, shares = Matrix(["a"], ["b"], [[3.0]]), Matrix(["a"], ["b", "c"], [[1.0, 0.5]])
    told = dict(numbers(measured(matrices={"counts": counts, "shares": shares})))
    assert (told["counts"][1], told["shares"][1]) == (["a", "3"], ["a", "1.00", "0.50"])


def test_a_damaged_file_is_named_and_texts_are_escaped(tmp_path: Path) -> None:
    from dataclasses import asdict

    (tmp_path / "figure.json").write_text("{}")
    with pytest.raises(InputError, match=r"figure\.json: is damaged"):
        write_pictures(tmp_path)
    matrix = Matrix(["<i>", "b"], ["<i>", "b"], [[1.0, None], [0.5, 1.0]], "told", similarity=True)
    told = measured(curves={"p": {"<i>": Curve(["x"], [[1.0]])}}, matrices={"<i>": matrix})
    (tmp_path / "figure.json").write_text(json.dumps(asdict(told)))
    page = write_pictures(tmp_path).read_text()
    body = page[page.index("<body>") :]
    assert "<h1>&lt;b&gt;</h1>" in body
    assert "<td>&lt;i&gt;</td>" in body
    assert "<i>" not in body
