"""Commands for certificates, keys and nodes stand in the README of a deployed run and in docs/deploy.md, and agree."""

from __future__ import annotations

import re
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
    assert ("flower-superlink", "--enable-supernode-auth") in of_readme
    assert {option for option in of_readme if option not in of_page} == set()
