from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import kinfed
from kinfed.report.kinship import kin_order

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "out"
    methods = ["fedavg", "fedshibu"]
    return kinfed.compare(methods, out=out, clients=10, rounds=3, seeds=2, quiet=True).report()


@pytest.mark.slow
def test_the_page_needs_nothing_from_elsewhere(page: Path) -> None:
    own = re.sub(r"<script.*?</script>", "", page.read_text(), flags=re.DOTALL)
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!data:)[^"']+""", own)
    assert "@import" not in own


@pytest.mark.slow
def test_the_page_says_what_was_run_and_holds_the_complete_config(page: Path) -> None:
    text = page.read_text()
    for part in (
        "10 clients",
        "2 shards per client",
        "seeds 0, 1",
        "fedshibu-seed1",
        "norm = ",
        "checkpoint_every = 10",
    ):
        assert part in text
    assert text.count("<details>") == 6
    assert "<dt>torch</dt>" in text
    assert page.stat().st_size < 1e6


@pytest.mark.slow
def test_new_clients_are_told_of_where_there_are_any(page: Path, tmp_path: Path) -> None:
    assert "New clients" not in page.read_text()
    result = kinfed.run("fedper", out=tmp_path / "o", clients=10, new_clients=2, rounds=1, quiet=True)
    text = result.report().read_text()
    assert "<h2>New clients</h2>" in text
    for part in (
        "2 new clients held out",
        "Accuracy of clients that took no part",
        ">as it is</th>",
        ">own head</th>",
        "<td>mean</td>",
    ):
        assert part in text


@pytest.mark.slow
def test_names_are_escaped(tmp_path: Path) -> None:
    folder = tmp_path / "<img src=x onerror=alert(1)>"
    kinfed.run("local", out=folder, clients=10, rounds=1, quiet=True)
    assert "<img src=x onerror" not in kinfed.open_result(folder).report(tmp_path / "r.html").read_text()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_in_a_browser_every_figure_is_drawn_without_an_error(page: Path, tmp_path: Path) -> None:
    assert CHROMIUM is not None
    flags = [
        "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path}", "--virtual-time-budget=10000",
        "--enable-logging=stderr",
    ]  # fmt: skip
    opened = subprocess.run(
        [CHROMIUM, *flags, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=120, check=False
    )
    dom = opened.stdout
    assert not [line for line in opened.stderr.splitlines() if "CONSOLE" in line]
    figures = dom.count('class="figure')
    assert figures == 11
    drawn = re.findall(r'<svg class="main-svg"', dom)
    assert len(drawn) >= figures
    assert (
        dom.count('class="trace scatter') == 2 * 2 * 3 + 2
    )  # accuracy and loss of three methods, each with a band; a note of two seeds
    assert dom.count('class="trace boxes"') == 3
    assert dom.count('class="hm"') == 5  # confusion, the partition, the classes in common, the CRSM, the weights
    assert dom.count('class="trace bars"') == 2 + 5  # bytes by way; seconds by part


@pytest.mark.slow
def test_the_picture_is_a_picture(page: Path) -> None:
    with Image.open(page.with_suffix(".png")) as picture:
        assert picture.size[0] > 1000
        assert len(np.unique(np.asarray(picture.convert("L")))) > 50


def test_kin_stand_together() -> None:
    groups = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2])
    similarity = np.where(groups[:, None] == groups, 0.95, 0.2) + np.eye(9) * 0.05
    ordered = groups[kin_order(similarity)]
    assert (np.diff(ordered) != 0).sum() == 2
    assert kin_order(np.ones((1, 1))) == [0]
    assert sorted(kin_order(np.full((4, 4), np.nan))) == [0, 1, 2, 3]
