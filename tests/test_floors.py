"""Imports go down only (docs/design.md)."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import kinfed

ROOT = Path(kinfed.__file__).parent
FLOORS = {
    "errors": -1, "labels": -1, "registry": -1, "fields": -1, "streams": -1, "files": -1, "settings": -1,
    "interrupt": -1, "fork_server": -1,
    "similarity": 0, "data": 0, "models": 0,
    "learning": 1, "methods": 2, "engine": 3, "experiment": 4, "tuning": 5, "report": 5, "display": 5, "flower": 5,
    "api": 6, "testing": 6, "advice": 6, "__init__": 7, "cli": 7, "__main__": 8,
}  # fmt: skip


def floor_of(module: str) -> int:
    return FLOORS[module.removeprefix("kinfed").removeprefix(".").split(".")[0] or "__init__"]


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= (
                {f"{node.module}.{alias.name}" for alias in node.names} if node.module == "kinfed" else {node.module}
            )
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.split(".")[0] == "kinfed"}


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_down_only(path: Path) -> None:
    own = floor_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
    assert {name for name in imports(path) if floor_of(name) > own} == set()


def test_similarity_knows_nothing_but_the_streams() -> None:
    used = {name for path in (ROOT / "similarity").rglob("*.py") for name in imports(path)}
    assert {name for name in used if floor_of(name) == 0 and not name.startswith("kinfed.similarity")} == set()


def test_no_modules_import_each_other_in_a_circle_even_for_the_type_checker() -> None:
    paths = {
        ".".join(("kinfed", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in ROOT.rglob("*.py")
    }
    graph = {name: {other for other in modules_used(path, {*paths}) if other != name} for name, path in paths.items()}
    sorter = TopologicalSorter(graph)
    sorter.prepare()  # raises CycleError, which names the circle


def modules_used(path: Path, known: set[str]) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else node.module for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & known
