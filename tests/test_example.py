"""The command ``kinfed example``: the data that it writes, and the commands in their README.md."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kinfed.data import load
from kinfed.data.example import write_example
from kinfed.errors import InputError
from tests.test_cli import kinfed  # noqa: F401 - the fixture


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("example") / "data"
    write_example(folder)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_it_writes_the_same_files_every_time(example: Path, tmp_path: Path) -> None:
    write_example(tmp_path)  # an empty folder will do
    assert contents(tmp_path) == contents(example)


def test_the_sites_are_a_federation_and_each_of_them_a_data_set(example: Path) -> None:
    data = load(example / "sites")
    assert (data.shape, data.classes, data.left_out) == ((1, 8, 8), tuple("0123456789"), ())
    assert np.unique(data.columns["client"][0], return_counts=True)[0].tolist() == ["east", "north", "south", "west"]
    for site in ("east", "north", "south", "west"):
        alone = load(example / "sites" / site)
        assert 2 < len(alone.classes) < 10
        assert len(alone.train) == 60


def test_wards_have_patients_of_one_diagnosis_who_stay_in_one_ward(example: Path) -> None:
    table = pd.read_csv(example / "wards.csv")
    assert table.shape == (569, 34)
    assert not table.isna().any(axis=None)
    of_patient = table.groupby("patient")[["ward", "diagnosis", "device"]].nunique()
    assert (of_patient == 1).all(axis=None)
    assert 200 < len(of_patient) < 500
    malignant = (table["diagnosis"] == "malignant").groupby(table["ward"]).mean()
    assert malignant.is_monotonic_increasing
    assert malignant.max() - malignant.min() > 0.4


def test_the_clinics_have_images_and_no_labels(example: Path) -> None:
    images = [path.relative_to(example / "unlabelled") for path in (example / "unlabelled").rglob("*.png")]
    assert {path.parts[0] for path in images} == {"ash", "birch", "cedar"}
    assert {len(path.parts) for path in images} == {2}
    assert len(images) == 180


def test_the_scans_are_described_by_a_table(example: Path) -> None:
    data = load(example / "scans", label="digit", client="clinic", group="writer", test_fraction=0.2)
    assert {*data.columns["client"][0]} == {"ash", "birch", "cedar"}
    assert not {*data.columns["group"][0]} & {*data.columns["group"][1]}
    assert data.left_out == ()


def test_a_folder_with_files_is_refused(kinfed: Any, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "mine.txt").write_text("mine")
    code, out, err = kinfed("example", str(tmp_path))
    assert (code, out) == (2, "")
    assert err == f"kinfed: folder: {str(tmp_path)!r} is not an empty folder; choose a new one\n"
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    with pytest.raises(InputError, match=r"^folder: .*mine\.txt' is not an empty folder"):
        write_example(tmp_path / "mine.txt")


def commands(readme: str) -> list[list[str]]:
    blocks = re.findall(r"^```sh\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    return [shlex.split(line, comments=True) for block in blocks for line in block.replace("\\\n", "").splitlines()]


@pytest.mark.slow
def test_the_commands_of_its_readme_work(kinfed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    code, out, _ = kinfed("example", "data")
    assert (code, out) == (0, "data/README.md has the commands to try\n")
    monkeypatch.chdir(tmp_path / "data")
    asked = commands(Path("README.md").read_text())
    assert len(asked) == 8
    for called, *arguments in asked:
        assert called == "kinfed"
        assert kinfed(*arguments)[0] == 0, arguments


@pytest.mark.slow
@pytest.mark.parametrize(("page", "number"), [("data.md", 9), ("use.md", 8)])
def test_the_commands_of_a_page_work(kinfed: Any, page: str, number: int) -> None:  # noqa: F811
    asked = [asked for asked in commands((Path(__file__).parent.parent / "docs" / page).read_text()) if asked]
    assert len(asked) == number
    assert asked[0] == ["kinfed", "example", "demo"]
    for _, *arguments in asked:
        assert kinfed(*arguments)[0] == 0, arguments
