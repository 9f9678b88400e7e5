"""The table of a comparison in other formats: CSV, JSON, Markdown and LaTeX; names are escaped for each."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from kinfed.files import output, write_whole
from kinfed.report.folders import read_runs
from kinfed.report.table import Table, table

__all__ = ["FORMATS", "as_csv", "formatted", "write_formatted"]

MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~])")
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet takes a text that begins so for a formula


def _csv(shown: Table) -> str:
    """Return comma-separated values: one line for each row, and a further column for the spread of each number."""
    return as_csv(_frame(shown))


def as_csv(content: pd.DataFrame) -> str:
    """Return a DataFrame as comma-separated values in which a spreadsheet finds no formulas."""
    told: str = content.map(lambda of: _no_formula(of) if isinstance(of, str) else of).to_csv(
        index=False, lineterminator="\n"
    )
    return told


def _json(shown: Table) -> str:
    """Return a list of objects, one for each row; numbers are numbers, and what is not known is null."""
    rows = [
        {name: float(text) if _is_number(text) else (text or None) for name, text in row.items()}
        for row in _frame(shown).to_dict("records")
    ]
    return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"


def _markdown(shown: Table) -> str:
    """Return a table of pipes; the best values are bold."""
    lines = [[MARKDOWN.sub(r"\\\1", heading) for heading in shown.full_headings], ["---"] * len(shown.headings)]
    for row in shown.rows:
        texts = [MARKDOWN.sub(r"\\\1", " ".join(f"{cell.text} {cell.spread}".split())) for cell in row]
        lines.append([f"**{text}**" if cell.best else text for text, cell in zip(texts, row, strict=True)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _latex(shown: Table) -> str:
    """Return a tabular in the style of booktabs; spreads stand behind their numbers."""
    texts = [[f"{cell.text} {cell.spread}".strip() for cell in row] for row in shown.rows]
    frame = pd.DataFrame(texts, columns=shown.full_headings, dtype=str)
    told: str = frame.to_latex(index=False, escape=True, column_format="ll" + "r" * (len(shown.headings) - 2))
    return told.replace("±", r"$\pm$").replace("–", "--")


FORMATS: dict[str, Callable[[Table], str]] = {"csv": _csv, "json": _json, "markdown": _markdown, "latex": _latex}


def formatted(paths: Sequence[Path], form: str, measure: str | None = None) -> str:
    """Return the table of some runs in a format.

    Args:
        paths: Run folders and comparison folders.
        form: One of `FORMATS`.
        measure: Measure by which methods are compared; None for that of the runs.

    Raises:
        InputError: If a folder holds no run with results.
    """
    return FORMATS[form](table(read_runs(paths, measure)))


def write_formatted(paths: Sequence[Path], form: str, out: Path, measure: str | None = None) -> None:
    """Write the table of some runs to a file.

    Args:
        paths: Run folders and comparison folders.
        form: One of `FORMATS`.
        out: The file.
        measure: As in `formatted`.

    Raises:
        InputError: If a folder holds no run with results, or the file cannot be written.
    """
    told = formatted(paths, form, measure)
    with output(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, told)


def _frame(shown: Table) -> pd.DataFrame:
    """Return the cells as text; a column with spreads has another one beside it, ``HEADING sd``."""
    columns: dict[str, list[str]] = {}
    for place, heading in enumerate(shown.full_headings):
        cells = [row[place] for row in shown.rows]
        columns[heading] = ["" if cell.text == "–" else cell.text for cell in cells]
        if any(cell.spread for cell in cells):
            columns[f"{heading} sd"] = [cell.spread.removeprefix("±") for cell in cells]
    return pd.DataFrame(columns, dtype=str)


def _no_formula(text: str) -> str:
    """Return a text for a cell of a CSV file, so that no spreadsheet takes it for a formula.

    >>> _no_formula("=1+1"), _no_formula("-3.5"), _no_formula("cat")
    ("'=1+1", '-3.5', 'cat')
    """
    return f"'{text}" if text.startswith(FORMULA) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?", text) is not None
