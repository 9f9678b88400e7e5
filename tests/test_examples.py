"""The programs in examples, the tutorial, and the page of the commands do what they say."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import kinfed

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def of_the_site(name: str) -> ModuleType:
    """A module that the site is built with."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "site" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def same_kinfed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes import the kinfed that is tested here."""
    monkeypatch.setenv("PYTHONPATH", str(Path(kinfed.__file__).parents[1]))


@pytest.mark.slow
@pytest.mark.usefixtures("same_kinfed")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(example: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(example)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("same_kinfed")
def test_the_tutorial_runs_from_top_to_bottom(tmp_path: Path) -> None:
    page = of_the_site("execute").executed((ROOT / "docs" / "tutorial.md").read_text(), tmp_path)
    assert "fedper serves these clients best" in page  # as the text expects


def test_the_output_of_a_block_is_shown_below_it(tmp_path: Path) -> None:
    one, two, three = (
        "```sh\necho one > file; cat file\n```\n",
        "```python\nprint(2)\n```\n",
        "```sh\ntest -f file\n```\n",
    )
    shown = of_the_site("execute").executed(f"a\n{one}b\n{two}{three}", tmp_path)
    assert shown == f"a\n{one}\n```text\none\n```\nb\n{two}\n```text\n2\n```\n{three}"


def test_a_block_that_fails_is_told_with_its_output(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="exit code 3:\necho why; exit 3\n\nwhy"):
        of_the_site("execute").executed("```sh\necho why; exit 3\n```\n", tmp_path)


def test_the_page_of_the_commands_has_every_command_and_its_defaults() -> None:
    page = of_the_site("command_line").commands()
    for command in ("run", "compare", "tune", "advise", "report", "sources train", "sources list", "methods"):
        assert f"\n## kinfed {command}\n" in page
    compare = page.partition("\n## kinfed compare\n")[2].partition("\n## ")[0]
    assert (
        "`--data TEXT`\n: data set: a name (see: kinfed datasets), hub:OWNER/NAME, or a path \\[digits\\]\n" in compare
    )
