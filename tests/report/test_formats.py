"""The table of a comparison as CSV, JSON, Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest

from kinfed.report.formats import FORMATS
from kinfed.report.table import table

from .test_table import made


@pytest.fixture
def shown():  # type: ignore[no-untyped-def]
    runs = [made("fedavg", a, seed) for seed, a in enumerate((0.5, 0.7))]
    return table([*runs, *(made("=1+1|_%", None, seed) for seed in (0, 1))])


def test_csv_has_a_column_for_each_spread_and_no_formula(shown) -> None:  # type: ignore[no-untyped-def]
    first, second = csv.DictReader(io.StringIO(FORMATS["csv"](shown)))
    assert (first["method"], first["own test (accuracy)"], first["own test (accuracy) sd"]) == (
        "fedavg",
        "0.600",
        "0.141",
    )
    assert (second["method"], second["own test (accuracy)"], second["own test (accuracy) sd"]) == ("'=1+1|_%", "", "")


def test_json_has_numbers_and_null_for_what_is_not_known(shown) -> None:  # type: ignore[no-untyped-def]
    first, second = json.loads(FORMATS["json"](shown))
    assert (first["method"], first["own test (accuracy)"], first["own test (accuracy) sd"]) == ("fedavg", 0.6, 0.141)
    assert (second["method"], second["own test (accuracy)"]) == ("=1+1|_%", None)


def test_markdown_escapes_pipes_and_marks_the_best(shown) -> None:  # type: ignore[no-untyped-def]
    head, rule, first, second = FORMATS["markdown"](shown).splitlines()
    assert head.count("|") == rule.count("|") == first.count("|")
    assert "**0.600 ±0.141**" in first
    assert r"=1+1\|\_%" in second


def test_latex_escapes_its_special_characters(shown) -> None:  # type: ignore[no-untyped-def]
    told = FORMATS["latex"](shown)
    assert r"\_\%" in told
    assert r"0.600 $\pm$0.141" in told


@pytest.mark.parametrize(("measure", "told"), [("accuracy", "accuracy"), ("macro_f1", "macro F1")])
def test_every_format_names_the_measure_of_a_column(measure: str, told: str) -> None:
    run = made("fedavg", 0.5)
    run.summary["metrics"] |= {"personal_macro_f1_weighted": 0.4}
    shown = table([replace(run, measure=measure)])
    for form in FORMATS.values():
        assert f"own test ({told})" in form(shown)
        assert "MB (" not in form(shown)
    assert "own test" in shown.headings
