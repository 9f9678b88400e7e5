"""Every relative link in the README, its neighbours and the documents leads somewhere, anchors included."""

import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(\s*<?([^\s)>]+)")
FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)


def anchors(text: str) -> set[str]:
    """Names that GitHub gives to the headings of a page."""
    names: dict[str, int] = {}
    for heading in HEADING.findall(FENCED.sub("", text)):
        shown = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        seen = names[name] = names.get(name, -1) + 1
        if seen:
            names[f"{name}-{seen}"] = 0
    return {*names}


@functools.cache
def anchors_of(page: Path) -> set[str]:
    """Anchors of a file; none where it is no Markdown."""
    return anchors(page.read_text()) if page.suffix == ".md" else set()


def dead_links(page: Path, root: Path) -> Iterator[str]:
    """Relative links of a page that lead nowhere, or out of the repository."""
    for target in LINK.findall(CODE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        to = (page.parent / path).resolve() if path else page
        there = to.exists() and to.is_relative_to(root)
        if not there or (anchor and anchor not in anchors_of(to)):
            yield target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    assert not [*dead_links(page, ROOT)]


def test_anchors_are_githubs() -> None:
    text = "# A.1 Linear CKA\n## The *same* `bits`, again\n## It's C.4 – (ours)\n```\n# none\n```\n# A.1 Linear CKA\n"
    assert anchors(text) == {"a1-linear-cka", "the-same-bits-again", "its-c4--ours", "a1-linear-cka-1"}


def test_dead_links_are_found(tmp_path: Path) -> None:
    page, other = tmp_path / "page.md", tmp_path / "other.md"
    other.write_text("# There\n")
    good = "[a](other.md) [b](other.md#there) [c](#here) [d](https://x.y/#z) `[e](gone.md)`\n"
    page.write_text(f"# Here\n\n{good}\n```\n[f](gone.md)\n```\n")
    assert not [*dead_links(page, tmp_path)]
    bad = tmp_path / "bad.md"
    bad.write_text("[a](gone.md) [b](other.md#here) [c](#nowhere) ![d](../out.png)\n")
    assert [*dead_links(bad, tmp_path)] == ["gone.md", "other.md#here", "#nowhere", "../out.png"]


def test_the_specification_has_the_sections_that_docstrings_name() -> None:
    """0, A to L, and every numbered section between, each once and in order."""
    headings = HEADING.findall(FENCED.sub("", (ROOT / "docs" / "specification.md").read_text()))
    numbers = [number for h in headings if (number := re.match(r"[0A-L](\.\d+)?(?=[. ])", h))]
    told = [number[0] for number in numbers]
    assert [n for n in told if "." not in n] == [*"0ABCDEFGHIJKL"]
    last = {"0": 7, "A": 14, "B": 5, "C": 10, "D": 7, "E": 6, "F": 7, "G": 4, "H": 5, "I": 5}
    first = {letter: 0 if letter in "ADF" else 1 for letter in last}
    for letter, end in last.items():
        own = [n for n in told if n.startswith(f"{letter}.")]
        assert own == [f"{letter}.{i}" for i in range(first[letter], end + 1)]


VERDICTS = {"holds", "does not", "holds for another reason", "not decided at this scale"}


def test_every_claim_of_the_papers_has_a_verdict() -> None:
    lines = (ROOT / "docs" / "claims.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if re.match(r"\| \d+ \|", line)]
    assert [int(row[0]) for row in rows] == [*range(1, 25)]
    assert {row[2] for row in rows} <= VERDICTS
    assert all(len(row) == 5 and all(row) for row in rows)
