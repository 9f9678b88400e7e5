"""Names from installed packages and import paths."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinfed.errors import InputError
from kinfed.methods import METHODS
from kinfed.methods.fedprox import FedProx
from kinfed.registry import import_path, imported, nothing_from_files
from tests.builders import installed_package

MODULE = '''
from dataclasses import dataclass
from kinfed.methods.fedavg import FedAvg

@dataclass(frozen=True, kw_only=True)
class Mine(FedAvg):
    """FedAvg under another name."""
    beta: float = 0.5

number = 3
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package with entry points: a method, one that is none, one that cannot be imported, a known name."""
    (tmp_path / "kinfed_mine.py").write_text(MODULE)
    points = (
        "[kinfed.methods]\nmine = kinfed_mine:Mine\nnumber = kinfed_mine:number\ngone = kinfed_gone:Gone\n"
        "fedavg = kinfed_mine:Mine\n"
    )
    with installed_package(tmp_path, "kinfed-mine", "1.2", points, monkeypatch):
        yield tmp_path
    sys.modules.pop("kinfed_mine", None)


@pytest.mark.usefixtures("package")
def test_an_installed_package_adds_a_method_by_name() -> None:
    assert "mine" in METHODS
    assert METHODS.find("mine")(beta=2).beta == 2  # type: ignore[attr-defined, call-arg]
    assert METHODS.origin("mine") == "kinfed-mine 1.2"
    assert METHODS.name_of(METHODS["mine"]) == "mine"


@pytest.mark.usefixtures("package")
def test_a_name_of_kinfeds_own_stays_kinfeds() -> None:
    assert METHODS["fedavg"].__module__ == "kinfed.methods.fedavg"
    assert METHODS.origin("fedavg") == "kinfed"


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("number", "method: 'number' is not a method; it must be a class derived from kinfed.methods.Method"),
        ("gone", "method: 'gone' of kinfed-mine 1.2 cannot be imported: No module named 'kinfed_gone'"),
        ("fedprix", "method: 'fedprix' is not known"),
        ("kinfed_mine:number", "method: 'kinfed_mine:number' is not a method"),
        ("kinfed_mine:Other", "method: 'kinfed_mine:Other' cannot be imported"),
        ("kinfed_gone:Gone", "method: 'kinfed_gone:Gone' cannot be imported: No module named 'kinfed_gone'"),
    ],
)
def test_what_cannot_be_used_is_told_in_one_line(name: str, told: str) -> None:
    with pytest.raises(InputError) as error:
        METHODS.find(name)
    assert str(error.value).startswith(told)


@pytest.mark.usefixtures("package")
def test_a_package_that_cannot_be_imported_does_not_keep_the_others_from_being_listed() -> None:
    assert {"fedavg", "mine", "gone"} <= {*METHODS}


def test_a_summary_is_the_first_line_of_the_docstring() -> None:
    assert {name: METHODS.summary(name) for name in METHODS} == {
        name: str(inspect.getdoc(kind)).splitlines()[0] for name, kind in METHODS.items()
    }


@pytest.mark.usefixtures("package")
def test_what_only_a_file_names_is_not_imported() -> None:
    with nothing_from_files({"kinfed_mine:Mine"}, "runs/a"):
        assert imported("kinfed_mine:Mine", "method").__name__ == "Mine"
        assert METHODS["mine"].__name__ == "Mine"  # an entry point of what is installed
        with pytest.raises(InputError, match=r"^method: 'os:system' is named in runs/a, and importing"):
            METHODS.find("os:system")
    with nothing_from_files((), "runs/a", allow=True):
        assert METHODS.find("kinfed_mine:Mine").__name__ == "Mine"


def test_an_import_path_leads_back_or_there_is_none() -> None:
    assert import_path(FedProx) == "kinfed.methods.fedprox:FedProx"
    assert METHODS.name_of(FedProx) == "fedprox"

    class Local(FedProx):
        pass

    assert import_path(Local) is None
    assert import_path(lambda: None) is None
    assert import_path(type("FedProx", (), {"__module__": "kinfed.methods.fedprox"})) is None  # one of the same name
