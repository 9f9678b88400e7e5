"""Commands for certificates, keys and nodes stand in the README of a deployed run and in docs/deploy.md, and agree."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kinfed

PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"
README = Path(kinfed.__file__).parent / "flower" / "run_readme.md"


def options(text: str) -> set[tuple[str, str]]:
    """Long options in the commands of a page, each with its command."""
    code = "\n".join(re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ")
    lines = [line.split() for line in re.split(r"\n|&&|;", code) if line.strip()]
    return {(words[0], word) for words in lines for word in words if word.startswith("--")}


@pytest.mark.skipif(not PAGE.is_file(), reason="needs the repository")
def test_the_readme_of_a_deployed_run_and_the_docs_give_commands_the_same_options() -> None:
    of_page, of_readme = options(PAGE.read_text()), options(README.read_text())
    needed = {"--enable-supernode-auth", "--database"}  # without the latter a new start ends the nodes of all sites
    assert needed <= {option for command, option in of_readme if command == "flower-superlink"}
    assert {option for option in of_readme if option not in of_page} == set()


@pytest.mark.skipif(not PAGE.is_file() or not shutil.which("systemd-analyze"), reason="needs the page and systemd")
def test_systemd_accepts_the_service_of_the_docs(tmp_path: Path) -> None:
    unit = re.findall(r"```ini\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    (tmp_path / "kinfed-site.service").write_text(unit.replace("/opt/kinfed/bin/flower-supernode", sys.executable))
    told = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / "kinfed-site.service"], capture_output=True, text=True, check=False
    )
    assert (told.returncode, told.stderr) == (0, "")
