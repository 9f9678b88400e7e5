"""The extras fit together: one environment can have all of them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def unmet(name: str, extras: frozenset[str], seen: set[tuple[str, frozenset[str]]]) -> Iterator[str]:
    """Requirements of a distribution with extras, and of what they require, that the installed packages do not meet."""
    if (name, extras) in seen:
        return
    seen.add((name, extras))
    for text in distribution(name).requires or []:
        needed = Requirement(text)
        if needed.marker and not any(needed.marker.evaluate({"extra": extra}) for extra in extras or {""}):
            continue
        try:
            version = distribution(needed.name).version
        except PackageNotFoundError:
            yield f"{name} needs {text}, which is not installed"
            continue
        if not needed.specifier.contains(version, prereleases=True):
            yield f"{name} needs {text}, not {version}"
        yield from unmet(canonicalize_name(needed.name), frozenset(needed.extras), seen)


def test_one_environment_meets_the_requirements_of_flower_and_of_the_core() -> None:
    pytest.importorskip("flwr")
    told = [*unmet("kinfed", frozenset({"flower"}), set())]
    assert told == []


def test_one_environment_meets_the_requirements_of_all_extras() -> None:
    told = [*unmet("kinfed", frozenset({"all"}), set())]
    if any("is not installed" in line for line in told):
        pytest.skip("not all extras are installed")
    assert told == []
