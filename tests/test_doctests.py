"""The examples in docstrings run, those of wrapped functions too."""

from __future__ import annotations

import doctest
import importlib
import inspect
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import kinfed

ROOT = Path(kinfed.__file__).parent
MODULES = sorted(
    ".".join(("kinfed", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    for path in ROOT.rglob("*.py")
    if ">>>" in path.read_text() and path.name != "__main__.py"
)


def examples(name: str) -> Iterator[doctest.DocTest]:
    """Those of a module, its classes and its functions; a decorator hides a function from the standard finder."""
    module = importlib.import_module(name)
    finder, seen = doctest.DocTestFinder(exclude_empty=True), set()
    found = finder.find(module, name)
    for attribute, thing in vars(module).items():
        inner = inspect.unwrap(thing) if callable(thing) else thing
        if inner is not thing and getattr(inner, "__module__", None) == name:
            found += finder.find(inner, f"{name}.{attribute}", module=False, globs=vars(module).copy())
    for test in found:
        if test.examples and (test.name, test.lineno) not in seen:
            seen.add((test.name, test.lineno))
            yield test


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for test in examples(name):
        out = io.StringIO()
        with torch.random.fork_rng():  # layers draw their first weights from the global generator
            failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=out.write)
        assert not failed, out.getvalue()


def test_examples_of_wrapped_functions_are_found() -> None:
    assert any(test.name.endswith(".cka") for test in examples("kinfed.similarity.cka"))
