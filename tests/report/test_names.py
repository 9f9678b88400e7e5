"""Names that are not tame are shown as text, wherever they are shown (case 312)."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

import kinfed as package
from kinfed.display import Display
from kinfed.errors import InputError
from kinfed.methods import Picture
from kinfed.report import terminal
from kinfed.report.figures import clients, cost, curves, partition, save_report_picture
from kinfed.report.folders import Run, read_runs
from kinfed.report.kinship import kinship
from kinfed.report.matrices import matrix_figure
from kinfed.report.names import hypertext, labels
from kinfed.report.page import write_report
from kinfed.report.picture import picture
from tests.report.test_ballots import with_vote
from tests.report.test_table import made
from tests.test_cli import kinfed  # noqa: F401 - the fixture

CLASSES = [
    r"$\foo$", "from $5{ to $10", "[/b]", "\x1b[31mred", "a\nb", '<b>&lt;<a href="x">', "\ud800", "x" * 500,
    "שלום 🙂", "%{x}</script><script>", "", "[red] :smile:",
]  # fmt: skip
HOLDERS = [b"$\\foo$ {", b"<b>x<i>", b"[red] :smile: [", b"esc\x1b[2J\nb", b"\xff" + b"y" * 150, "\u202eא 🙂".encode()]
FOLDER = "out [b]$\\x{\x1b[1m\n :smile: \u202e"


def test_labels_are_lines_that_differ() -> None:
    assert labels(["a\nb", "a b", "", " ", "\x1b[2J", "\ud800"]) == [
        "a b", "a b (2)", "''", "'' (2)", "\\x1b[2J", "\\ud800",
    ]  # fmt: skip
    assert labels(["x" * 25, "x" * 26, "x" * 24]) == ["x" * 23 + "…", "x" * 23 + "… (2)", "x" * 24]
    assert labels(["a", "a", "a (2)"]) == ["a", "a (2)", "a (2) (2)"]
    assert labels([3, 4]) == ["3", "4"]
    assert hypertext("<b>\x1b & $x$") == "&lt;b&gt;\\x1b &amp; $x$"


def test_dollars_make_no_formula_and_a_missing_glyph_ends_nothing(tmp_path: Path) -> None:
    sizes = {}
    for name in ("$x^2$", r"$\foo$", "🙂"):
        with picture(tmp_path / "p.png", 3, 2) as figure:
            text = figure.subplots().set_title(name)
        sizes[name] = text.get_text()
        assert not text.get_parse_math()
    assert [*sizes] == [*sizes.values()]


def holding(classes: list[str], **more: Any) -> Run:
    run = made("fedavg", 0.5, lines=[{"round": 1, "train_loss": 1.0, "personal_acc_weighted": 0.5,
                                      "global_acc": 0.5, "client_acc": {"personal": [0.5, 0.5]}}], **more)  # fmt: skip
    run.federation.update(classes=classes, train=[[1] * len(classes), [2] * len(classes)], test=[1, 1])
    return run


@pytest.mark.slow
def test_plotly_and_matplotlib_are_given_text(tmp_path: Path) -> None:
    run = holding(CLASSES)
    (heatmap,) = partition(run).data
    assert heatmap.x[0] == "$\\foo$"
    assert '&lt;b&gt;&amp;lt;&lt;a href="x"&gt;' in heatmap.x
    assert len({*heatmap.x}) == len(CLASSES)
    save_report_picture([run], tmp_path / "p.png")
    title = "<b>\x1b[31m$\\foo$"
    run.pictured[1] = {
        "alike": Picture(torch.eye(2), title, "clients", "clients", similarity=True),
        "other": Picture(torch.ones(2, len(CLASSES)), title, "clients", "classes"),
        "named": Picture(torch.ones(1, len(CLASSES)), title, ["<b>"], CLASSES),
    }
    left, right = (panel.figure for panel in kinship(run, "alike"))
    told = left.data[0].text[0][0]
    for figure in (left, right, matrix_figure(run, "other"), matrix_figure(run, "named")):
        assert "<b>" not in figure.to_json()
    save_report_picture([run], tmp_path / "p.png")
    assert not set("\x1b\n<\ud800") & set(told)
    rows = [holding(["a"], config={"fedavg": {"x": name}}) for name in ("<b>%{y}", "\ud800[/b]")]
    for figure in (curves(rows)[0].figure, clients(rows), cost(rows)[0].figure):
        text = figure.to_json()
        assert "<b>" not in text
        assert "fedavg x=&lt;b&gt;%{y}" in text
        assert not re.search(r"hovertemplate[^,]*%{y}%{y}", text)


def test_a_page_has_no_tag_of_a_name(tmp_path: Path) -> None:
    run = with_vote()
    run.summary["vote"]["sources"] = [*CLASSES[1:4]]
    run.summary["vote"]["transferred"] = CLASSES[5]
    run.summary["data"]["name"] = '\ud800<img src="x">'
    write_it = tmp_path / "r.html"
    from kinfed.report import page

    text = page._page([holding(CLASSES, summary={"data": run.summary["data"]})])
    write_it.write_text(text)
    assert "<img" not in text
    assert "<b>" not in text
    assert "\\ud800&lt;img src=" in text


def test_bars_and_lines_show_names_as_they_are() -> None:
    for is_terminal in (False, True):
        console = Console(file=io.StringIO(), force_terminal=is_terminal, width=120, color_system=None)
        with Display(console) as display:
            run = display.source("[/b] :smile: \x1b[2J", 0, 1)
            run.started(0)
            run.round({"round": 1, "refused": {"0": "[/b]\x1b\n:smile:"}})
        text = console.file.getvalue()  # type: ignore[attr-defined]
        assert "[/b] :smile: \\x1b[2J (seed 0)" in text
        assert "refused: [/b]\\x1b :smile:" in text
        assert "\x1b[2J (seed" not in text


def test_the_table_in_a_terminal_shows_names_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [made("fedavg", 0.5, config={"fedavg": {"x": name}}) for name in ("[/b]", ":smile:", "\x1b[2J\ud800")]
    for run in runs:
        run.summary["data"]["name"] = "[/b] :smile: \x1b"
    monkeypatch.setattr(terminal, "read_runs", lambda paths, measure: runs)
    console = Console(file=io.StringIO())
    terminal.show([], console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for told in ("[/b] :smile: \\x1b: 1,200", "fedavg x=[/b]", "fedavg x=:smile:", "fedavg x=\\x1b[2J\\ud800"):
        assert told in text


def arrays(count: int) -> tuple[Any, Any]:
    which = np.arange(count) % len(CLASSES)
    images = np.random.default_rng(0).integers(0, 250, (count, 8, 8)).astype(np.uint8)
    images[np.arange(count), which // 2] = 255
    return images, np.array(CLASSES)[which]


@pytest.fixture
def federation(tmp_path: Path) -> str:
    """A folder a client."""
    for name in HOLDERS:
        folder = tmp_path / "data [b] $x{ <i>" / os.fsdecode(name)
        folder.mkdir(parents=True)
        (x, y), (x_test, y_test) = arrays(48), arrays(24)
        np.savez(folder / "a.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    return "data [b] $x{ <i>"


@pytest.mark.slow
def test_every_command_shows_them(
    kinfed: Any,  # noqa: F811
    federation: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_data = ["--data", federation, "--partition", "folders"]
    x, y = arrays(60)
    for name in ("[b] $5{.npz", "<i>s[.npz"):
        np.savez(tmp_path / name, x_train=x, y_train=y, x_test=x, y_test=y)
    layers = {"$\\foo$": x.reshape(60, -1).astype(float), "[/b] <i>": x.reshape(60, -1).astype(float)}
    np.savez(tmp_path / "layers.npz", **layers)
    monkeypatch.setenv("KINFED_DATA", str(tmp_path))
    short = ["--rounds", "1", "--ft-epochs", "0"]
    model = f"v{FOLDER}/models/global.safetensors"
    told = {}
    for called, *arguments in (
        ("partition", "partition", *of_data, "--out", f"p{FOLDER}"),
        ("fedshibu", "run", "fedshibu", *of_data, *short, "--out", FOLDER),
        ("report", "report", FOLDER),
        ("resume", "resume", FOLDER),
        ("fedavg", "run", "fedavg", *of_data, *short, "--save-local", "--log", "tensorboard", "--out",
         f"v{FOLDER}"),
        ("sources", "sources", "train", "--data", "[b] $5{.npz", "--data", "<i>s[.npz", "--model", "tiny_cnn",
         "--epochs", "1", "--out", "pool"),
        ("list", "sources", "list", "pool"),
        ("vote", "vote", f"v{FOLDER}", "--sources", "pool", "--ballot", "1"),
        ("fedvote", "run", "fedvote", *of_data, *short, "--set", "fedvote.round=1", "--sources", "pool", "--out",
         f"w{FOLDER}"),
        ("datasets", "datasets"),
        ("layers", "similarity", "layers.npz", "layers.npz", "--out", "s"),
        ("models", "similarity", model, model, "--data", federation, "--samples", "50", "--out", "t"),
    ):  # fmt: skip
        code, out, err = kinfed(*arguments)
        assert code == 0, (called, err)
        assert all(c.isprintable() or c == "\n" for c in out + err), called
        told[called] = out + err
    folder = "out [b]$\\x{\\x1b[1m :smile: \\u202e"
    for called, shown in (
        ("partition", "data [b] $x{ <i>, partition folders"),
        ("partition", "\\u202eא 🙂"),
        ("partition", "[red] :smile: ["),
        ("partition", f"p{folder}/rows.json"),
        ("fedshibu", f"results  {folder}"),
        ("sources", "[b] $5{ (seed 0)"),
        ("list", "<i>s[ "),
        ("vote", "[b] $5{"),
        ("fedvote", "<i>s["),
        ("datasets", "[b] $5{ "),
        ("layers", "[/b] <i>"),
    ):
        assert shown in told[called]
    pictures = [*tmp_path.rglob("*.png")]
    assert len(pictures) == 10
    for path in pictures:
        with Image.open(path) as image:
            assert image.size[0] > 300
    classes = json.loads((tmp_path / FOLDER / "federation.json").read_text())["classes"]
    assert package.load(model).classes == tuple(classes)
    assert {*classes} == {name.encode("utf-8", "backslashreplace").decode() for name in CLASSES}
    (run,) = read_runs([tmp_path / f"w{FOLDER}"])
    assert "\\x1b" in write_report([run.path], tmp_path / "r.html").read_text()


def test_a_folder_that_cannot_be_written_as_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"out: 'a.udcff' is not allowed; must be a path that can be encoded in UTF-8"):
        package.run("fedavg", out="a\udcff")
    assert not [*tmp_path.iterdir()]
