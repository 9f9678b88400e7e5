"""Reproduction of the papers' figures: the runs of a figure, and its numbers in ``figure.json`` and ``figure.md``."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import cast

from kinfed.errors import check_choice, plain
from kinfed.experiment.config_file import with_present_names
from kinfed.experiment.cost import UNSEEN, Spectator, cost_of
from kinfed.experiment.papers import FIGURES
from kinfed.experiment.papers.figure import (
    CLASS_COUNTS,
    LAYERS,
    MATRICES,
    NUMBERS,
    PANELS,
    ROUND,
    SPEED_UP,
    Curve,
    Matrix,
    Measured,
    PaperFigure,
    Place,
    numbers,
)
from kinfed.experiment.papers.quantities import (
    at_the_end,
    by_round,
    class_counts,
    layer_similarity,
    similarities,
    speed_up,
)
from kinfed.experiment.papers.reproduce import (
    Columns,
    Comparison,
    by_column,
    by_folder,
    other_setting,
    run_missing,
    setting_of,
)
from kinfed.experiment.papers.table import Fields, Row
from kinfed.experiment.run import MakeCallback
from kinfed.experiment.sources import train_sources
from kinfed.experiment.training import Training
from kinfed.files import claimed, write_whole
from kinfed.labels import folder_name

__all__ = ["reproduce_figure"]


def reproduce_figure(
    name: str,
    scale: str,
    out: Path,
    given: Fields,
    spectator: Spectator = UNSEEN,
) -> Path:
    """Run the missing experiments of a figure, and write its numbers to ``figure.json`` and ``figure.md``.

    Args:
        name: Name of a figure in `FIGURES`.
        scale: Name of one of the figure's scales.
        out: Folder for the results, with comparison folders as for a table.
        given: Fields of the config that overrule the figure's; not those in which panels or curves differ.
        spectator: Observer of the runs.

    Returns:
        Path of ``figure.md``.

    Raises:
        InputError: If there is no such figure or scale, or a field is wrong, would have no effect, or is one in which
            panels or curves differ.
    """
    check_choice("figure", name, [*FIGURES])
    figure = FIGURES[name]
    check_choice("scale", scale, [*figure.scales])
    given = cast(Fields, with_present_names(given))
    with claimed(out):
        # The folder is a placeholder, so that all fields are checked before a source is trained.
        placed = figure.table(scale, {of: {"sources": os.curdir} for of in _pools(figure, scale)})
        other = other_setting(placed, scale, given)
        trains = figure.quantity != CLASS_COUNTS
        if trains:
            spectator.cost(cost_of(by_folder(by_column(placed, scale, given), out)))
        table = figure.table(scale, _train_sources(figure, scale, out, spectator.source))
        of_columns = by_column(table, scale, given)
        if trains:
            run_missing(of_columns, out, spectator.run)
        curves, matrices = _measured(figure, scale, out, of_columns)
        measured = Measured(
            name, scale, figure.title, figure.shows, f"{setting_of(table, of_columns)}.", figure.note, other,
            "" if figure.quantity in MATRICES or figure.over == PANELS else figure.over,
            {**NUMBERS, **MATRICES}[figure.quantity], curves, matrices,
        )  # fmt: skip
        write_whole(out / "figure.json", json.dumps(asdict(measured), indent=1) + "\n")
        write_whole(out / "figure.md", markdown(measured))
    return out / "figure.md"


def markdown(measured: Measured) -> str:
    """Return a figure's numbers as Markdown, with what was run and what the paper's figure shows."""
    lines = [f"# {measured.title}", "", f"Here: {measured.run}", "", f"The paper: {measured.shows}", ""]
    lines += [measured.note, ""] if measured.note else []
    if measured.other_setting:
        other = ", ".join(f"{name}={plain(value)}" for name, value in measured.other_setting.items())
        lines += [f"The setting differs from this figure's: {other}.", ""]
    lines += [f"Numbers: {measured.y}.", ""]
    for heading, rows in numbers(measured):
        lines += [f"## {heading}", ""] if heading else []
        if not rows:
            lines += ["The numbers are in figure.json.", ""]
            continue
        head, *body = (f"| {' | '.join(row)} |" for row in rows)
        lines += [head, f"|---|{'---|' * (len(rows[0]) - 1)}", *body, ""]
    return "\n".join(lines)


# -- source models -----------------------------------------------------------------------------------------------------


def _pools(figure: PaperFigure, scale: str) -> dict[str, str]:
    """Return the name of the pool of source models of each panel, whose clients may vote, and of rows with a source."""
    if figure.start or not figure.sources:
        return {}
    own = figure.scales[scale]
    rows = [row.label for row in own.instead or figure.rows if "source" in row.settings]
    return {panel: panel for panel in own.columns} | dict.fromkeys(rows, "all")


def _train_sources(figure: PaperFigure, scale: str, out: Path, make_callback: MakeCallback) -> dict[str, Fields]:
    """Train the source models of a figure; return the fields that name them, by panel or row of a figure."""
    sources = figure.sources.get(scale, {})
    trained = {}
    for name, fields in sources.items():
        train_sources(Training.checked(fields), out / "sources" / name, make_callback)
        (trained[name],) = (out / "sources" / name).glob("*.safetensors")
    if figure.start:
        return {panel: {"weights": str(trained[figure.start])} for panel in figure.scales[scale].columns}
    pools = _pools(figure, scale)
    for pool in {*pools.values()}:
        (out / "pools" / pool).mkdir(parents=True, exist_ok=True)
        for name in trained.keys() - {pool}:
            for path in (trained[name], trained[name].with_suffix(".json")):
                shutil.copyfile(path, out / "pools" / pool / f"{name}{path.suffix}")
    return {of: {"sources": str(out / "pools" / pool)} for of, pool in pools.items()}


# -- numbers -----------------------------------------------------------------------------------------------------------


def _measured(
    figure: PaperFigure, scale: str, out: Path, columns: Columns
) -> tuple[dict[str, dict[str, Curve]], dict[str, Matrix]]:
    """Return the curves of a figure by panel, and its matrices by heading; one of the two is empty."""
    if figure.quantity in MATRICES:
        return {}, _matrices(figure, out, columns)
    curves = _curves(figure, [*figure.places(scale)], out, columns)
    if not figure.matrix:
        return curves, {}
    return {}, {
        panel or figure.title: Matrix(
            [*of], [str(x) for x in next(iter(of.values())).x], [c.means for c in of.values()]
        )
        for panel, of in curves.items()
    }


def _matrices(figure: PaperFigure, out: Path, columns: Columns) -> dict[str, Matrix]:
    """Return the matrices of the first run of each column."""
    found = {}
    for column, (comparison, *_) in columns.items():
        if figure.quantity == CLASS_COUNTS:
            config = comparison.config
            found[column] = class_counts(config.of(config.methods[0], config.seed))
            continue
        run = _runs(out, comparison, comparison.rows[0])[0]
        of_run = layer_similarity(run) if figure.quantity == LAYERS else similarities(run, figure.quantity)
        found |= {heading if len(columns) == 1 else f"{column}: {heading}": of for heading, of in of_run.items()}
    return found


def _curves(figure: PaperFigure, places: Sequence[Place], out: Path, columns: Columns) -> dict[str, dict[str, Curve]]:
    """Return the curves of a figure; places of the same panel, curve and x are averaged seed by seed."""
    cells: dict[str, dict[str, dict[float | str, list[list[float | None]]]]] = {}
    paper: dict[tuple[str, str, float | str], float | None] = {}
    for place in places:
        if figure.over == PANELS and place.curve != place.row.label and place.row.settings.get("source") == place.x:
            continue  # the mean of the other sources
        quantity, runs = place.row.quantity or figure.quantity, _runs_at(out, columns, place)
        values: dict[float | str, list[float | None]]
        if figure.over == ROUND:
            series = [by_round(run, quantity) for run in runs]
            rounds = sorted({round for of_seed in series for round in of_seed})
            values = {round: [of_seed.get(round) for of_seed in series] for round in rounds}
        else:
            assert place.x is not None
            baselines = _runs(out, columns[place.column][0], columns[place.column][0].rows[0])
            values = {
                place.x: [
                    speed_up(run, base) if quantity == SPEED_UP else at_the_end(run, quantity)
                    for run, base in zip(runs, baselines, strict=True)
                ]
            }
        of_curve = cells.setdefault(place.panel, {}).setdefault(place.curve, {})
        for x, of_seeds in values.items():
            of_curve.setdefault(x, []).append(of_seeds)
            paper[place.panel, place.curve, x] = place.paper
    return {
        panel: {
            curve: Curve([*at], [_averaged(parts) for parts in at.values()], [paper[panel, curve, x] for x in at])
            for curve, at in of_panel.items()
        }
        for panel, of_panel in cells.items()
    }


def _averaged(parts: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Average the values of several runs, seed by seed; None if one of them has none."""
    of_seeds = ([value for value in values if value is not None] for values in zip(*parts, strict=True))
    return [sum(known) / len(parts) if len(known) == len(parts) else None for known in of_seeds]


def _runs_at(out: Path, columns: Columns, place: Place) -> list[Path]:
    """Return the run folders of a place, one per seed."""
    of_row = ((c, row) for c in columns[place.column] for row in c.rows if row.label == place.row.label)
    return _runs(out, *next(of_row))


def _runs(out: Path, comparison: Comparison, row: Row) -> list[Path]:
    config = comparison.config
    seeds = range(config.seed, config.seed + config.seeds)
    return [out / comparison.folder / folder_name(row.method, seed) for seed in seeds]
