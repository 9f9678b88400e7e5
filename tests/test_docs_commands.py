"""The commands of README.md and of the pages in docs are right: each one runs, or would begin to train."""

from __future__ import annotations

import importlib
import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
import typer.main
from safetensors.numpy import save_file

from kinfed import api, cli
from kinfed.data.example import write_example
from tests.test_cli import kinfed  # noqa: F401 - the fixture
from tests.test_docs import PAGES, ROOT
from tests.test_example import commands

DATA = {"mnist": 1, "kmnist": 1, "fashion_mnist": 1, "usps": 1, "svhn": 3, "cifar10": 3}  # stand-ins, by their channels
IMAGES = {"cifar10": 2500}  # training images of a stand-in, if a page asks for more than 300
AS_WRITTEN = ["README.md", "docs/data.md", "docs/use.md"]  # pages whose commands on the example data are run whole
TRAINED_FIRST = ("use.md", "tutorial.md")  # commands that use what the first ones train; the site runs the tutorial
WITH_COMMANDS = [
    page
    for page in PAGES
    if page.name not in TRAINED_FIRST and any(called == "kinfed" for called, *_ in commands(page.read_text()))
]
TRAINED = "RUN"  # folder of a finished run, as the pages call it
INLINE = re.compile(r"`([^`\n]*)`")


class Begun(Exception):
    """Everything that was asked for has been checked, and the training would begin."""


def begin(*_: Any) -> Any:
    raise Begun


def untrained(*_: Any, **__: Any) -> Any:
    return SimpleNamespace(loss=0.0)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the pages name, as small as it can be: data sets, files of activations, weights and code."""
    folder = tmp_path_factory.mktemp("place")
    rng = np.random.default_rng(0)
    for name, channels in DATA.items():
        count, side = IMAGES.get(name, 300), 28 if channels == 1 else 32
        labels = np.arange(count) % 10
        images = rng.integers(256, size=(count, side, side, *([channels] if channels > 1 else [])), dtype=np.uint8)
        arrays = {"x_train": images, "y_train": labels, "x_test": images[:50], "y_test": labels[:50]}
        np.savez(folder / f"{name}.npz", **{key: array.astype(np.uint8, copy=False) for key, array in arrays.items()})
    for name in ("a", "b"):
        layers = {layer: rng.normal(size=(20, 5)) for layer in ("conv1", "conv2")}
        np.savez(folder / f"{name}.npz", **layers)
        save_file(layers, folder / f"{name}.safetensors")
    torch.save(torchvision.models.resnet18().state_dict(), folder / "resnet18-f37072fd.pth")
    shutil.copy(ROOT / "tests" / "outside" / "rv2.py", folder / "mymod.py")
    (folder / "mine.py").write_text("from kinfed.methods.fedavg import FedAvg\n\n\nclass MyMethod(FedAvg):\n    pass\n")
    write_example(folder / "example")
    for images in ("images", "path/to/folder"):
        for site in ("east", "north"):
            shutil.copytree(folder / "example" / "sites" / site, folder / images / site)
    short = {"clients": 5, "rounds": 1, "train_images": 100, "ft_epochs": 0, "lr_schedule": "constant"}
    api.run("ditto", **short, out=folder / TRAINED, quiet=True)
    shutil.copytree(folder / TRAINED, folder / "RUN2")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("KINFED_DATA", str(folder))
        patched.setenv("KINFED_CACHE", str(tmp_path_factory.mktemp("cache")))
        patched.setattr("kinfed.experiment.sources.train", untrained)
        api.train_sources("mnist", out=folder / "pool", like="usps", image_size=28, quiet=True)
    return folder


@pytest.fixture
def ready(place: Path, kinfed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: F811
    """The command line in a new folder with what the pages name."""
    shutil.copytree(place, tmp_path, copy_function=os.link, dirs_exist_ok=True)
    monkeypatch.setenv("KINFED_DATA", str(place))
    monkeypatch.syspath_prepend(str(place))
    return kinfed


def leave_results(arguments: list[str]) -> None:
    """Put the finished run where a command would have written its own."""
    out = arguments[1] if arguments[0] == "resume" else dict(itertools.pairwise(arguments)).get("--out")
    if out is not None:
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(TRAINED, out)


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_runs_or_would_begin_to_train(page: Path, ready: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What would train is run up to where the clients begin, and source models are left untrained.

    A folder of results that a command would write is then that of another run.
    """
    for module, name in (("experiment.run", "executor_of"), ("experiment.run", "doing"), ("tuning.tune", "doing")):
        monkeypatch.setattr(importlib.import_module(f"kinfed.{module}"), name, begin)
    monkeypatch.setattr("kinfed.experiment.sources.train", untrained)
    monkeypatch.setattr(api, "start_ahead", lambda: None)
    for called, *arguments in commands(page.read_text()):
        if called == "python":
            subprocess.run([sys.executable, *arguments], check=True)
        elif called == "kinfed":
            try:
                code, _, told = ready(*arguments)
                assert code == 0, told
            except Begun:
                leave_results(arguments)


def test_a_wrong_command_is_found(ready: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinfed.experiment.run.executor_of", begin)
    with pytest.raises(Begun):
        ready("run", "fedprox", "--set", "fedprox.mu=0.1", "--rounds", "100000")
    for wrong in (["--set", "fedprox.nu=0.1"], ["--round", "3"], ["--alpha", "0.3"], ["--model", "cnn4"]):
        assert ready("run", "fedprox", *wrong)[0] == 2


@pytest.mark.slow
@pytest.mark.parametrize("page", AS_WRITTEN)
def test_the_commands_on_the_example_data_work_as_written(page: str, kinfed: Any) -> None:  # noqa: F811
    every = filter(None, commands((ROOT / page).read_text()))  # without blank lines
    about = ("demo", "runs/sites", "runs/wards")
    asked = [of for called, *of in every if called == "kinfed" and any(name in " ".join(of) for name in about)]
    assert asked[0] == ["example", "demo"]
    assert len(asked) > 2
    for arguments in asked:
        assert kinfed(*arguments)[0] == 0, arguments


def options_of(group: Any) -> Iterator[tuple[str, set[str]]]:
    """Names of all commands, each with its options."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from ((f"{name} {inner}", options) for inner, options in options_of(command))
        else:
            yield (
                name,
                {option for parameter in command.params for option in [*parameter.opts, *parameter.secondary_opts]},
            )


OPTIONS = dict(options_of(typer.main.get_command(cli.app)))


def wrong_options(text: str) -> Iterator[str]:
    """Spans of code in a text with an option that no command has, or with a command that lacks it."""
    others = {
        "--help",
        *re.findall(r'"(--[a-z-]+)"', "".join(path.read_text() for path in (ROOT / "benchmarks").glob("*.py"))),
    }
    for span in INLINE.findall(text):
        named = {*re.findall(r"(?<![\w-])--[a-z][\w-]*", span)}
        command = next((name for name in OPTIONS if re.match(rf"kinfed {name}\b", span)), None)
        if span.startswith("kinfed ") and not span.startswith("kinfed COMMAND ") and named and command is None:
            yield span
        elif span.startswith(("--", "kinfed ")):
            has = {*others, *(option for options in OPTIONS.values() for option in options)}
            if named - (has if command is None else {"--help", *OPTIONS[command]}):
                yield span


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_option_that_a_page_names_exists(page: Path) -> None:
    assert not [*wrong_options(page.read_text())]


def test_a_wrong_option_is_found() -> None:
    right = "`--lr 0.1`, `kinfed run fedavg --lr 0.1`, `kinfed sources train --epochs 2`, `pip --this`"
    assert not [*wrong_options(right)]
    wrong = ["--learning-rate", "kinfed report RUN --lr 0.1", "kinfed go --lr 0.1", "kinfed sources list --epochs 1"]
    assert [*wrong_options(" ".join(f"`{span}`" for span in wrong))] == wrong
