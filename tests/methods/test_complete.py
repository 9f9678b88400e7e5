"""Whatever is registered is complete; what lacks something is told by its name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinfed.methods import METHODS
from kinfed.similarity import MEASURES

ROOT = Path(__file__).parents[2]
OWN = [name for name, method in METHODS.items() if method.__module__.startswith("kinfed.")]


def marked_independent() -> Iterator[str]:
    """The methods that a test marked ``independent`` names."""
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.independent":
                yield from (ast.literal_eval(name) for name in node.args)


CHECKED = {*marked_independent()}


@pytest.mark.parametrize("name", OWN)
def test_a_method_has_a_golden_trace(name: str) -> None:
    assert (ROOT / "tests" / "methods" / "golden" / f"{name}.json").is_file(), (
        f"{name} has no golden trace: KINFED_UPDATE_GOLDEN=1 pytest tests/methods/test_golden.py writes it"
    )


@pytest.mark.parametrize("name", OWN)
def test_a_method_has_a_card(name: str) -> None:
    card = ROOT / "docs" / "methods" / f"{name}.md"
    assert card.is_file(), f"{name} has no card: write docs/methods/{name}.md"


@pytest.mark.parametrize("name", OWN)
def test_a_method_has_a_row_in_the_table_of_methods(name: str) -> None:
    table = (ROOT / "docs" / "methods.md").read_text()
    rows = [line for line in table.splitlines() if line.startswith(f"| `{name}` |")]
    assert len(rows) == 1, f"{name} has {len(rows)} rows in docs/methods.md; it must have one"
    assert f"(methods/{name}.md)" in rows[0], f"{name}'s row in docs/methods.md does not lead to its card"


@pytest.mark.parametrize("name", OWN)
def test_a_method_has_an_independent_check(name: str) -> None:
    assert name in CHECKED, (
        f'{name} has no independent check: a test marked @pytest.mark.independent("{name}"), by hand, by an '
        "implementation module, or by a reduction to other methods"
    )


def test_independent_checks_and_cards_are_of_methods_that_there_are() -> None:
    assert {*OWN} >= CHECKED
    assert {path.stem for path in (ROOT / "docs" / "methods").glob("*.md")} == {*OWN}
    assert {path.stem for path in (ROOT / "tests" / "methods" / "golden").glob("*.json")} == {*OWN}


@pytest.mark.parametrize("name", MEASURES)
def test_a_measure_stands_in_its_document(name: str) -> None:
    assert f"`{name}`" in (ROOT / "docs" / "similarity.md").read_text(), f"docs/similarity.md does not tell of {name}"
