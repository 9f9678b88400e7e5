"""Folders of runs: whose they are, what is deleted of them, what becomes of them when their files are changed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kinfed
from kinfed.engine import NoCallback
from kinfed.errors import InputError, RunFailed
from kinfed.experiment.config import Config
from kinfed.experiment.run import run
from kinfed.files import claimed
from kinfed.report.folders import read_runs
from kinfed.report.notes import notes
from kinfed.report.rows import setting
from kinfed.report.table import table
from kinfed.report.verdict import verdict
from tests.experiment.test_run import files

SMALL: dict[str, Any] = {
    "clients": 5, "partition": "iid", "rounds": 3, "checkpoint_every": 1, "ft_epochs": 0, "lr_schedule": "constant",
    "quiet": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished comparison of two methods; never to be changed."""
    out = tmp_path_factory.mktemp("finished") / "out"
    kinfed.compare(["fedper", "local"], out=out, **SMALL)
    return out


@pytest.fixture
def compared(finished: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(finished, tmp_path / "out")


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "kinfed", *map(str, arguments)]
    return subprocess.run(call, capture_output=True, text=True, check=False)


# -- what is overwritten -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["comparison.toml", "config.toml"])
def test_a_config_without_kinfeds_mark_is_anybodys(name: str, out: Path) -> None:  # case 302
    out.mkdir()
    (out / name).write_text('methods = ["fedavg"]\n')
    (out / "federation.json").write_text("{}")
    with pytest.raises(InputError, match="exists and is not a run folder, so it is not overwritten"):
        kinfed.run("fedavg", out=out, overwrite=True, **SMALL)
    assert len([*out.iterdir()]) == 2


def test_overwriting_deletes_only_what_kinfed_wrote_and_tells_what_is_left(compared: Path) -> None:  # case 302
    kinfed.open_result(compared).report()
    theirs = [
        compared / "notes.txt",
        compared / "fedper-seed0" / "models" / "mine.txt",
        compared / "local-seed0x" / "a",
    ]
    for path in theirs:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    with pytest.warns(
        UserWarning, match=r"still contains files that kinfed did not write: fedper-seed0, local-seed0x, notes\.txt"
    ):
        kinfed.compare(["fedavg"], out=compared, overwrite=True, **{**SMALL, "rounds": 1})
    assert all(path.read_text() == "mine" for path in theirs)
    assert {path.name for path in compared.rglob("*") if path.is_file() and path not in theirs} & {
        "report.html", "report.png", "client-00000-personal.json",
    } == set()  # fmt: skip


# -- two processes -----------------------------------------------------------------------------------------------------


class Waiting(NoCallback):
    """Holds a run in its first round until it may go on."""

    def __init__(self) -> None:
        self.there, self.may_go_on = threading.Event(), threading.Event()

    def round(self, line: dict[str, Any]) -> None:
        self.there.set()
        assert self.may_go_on.wait(600)


@pytest.mark.slow
def test_a_run_that_is_going_is_left_alone_by_other_processes(out: Path, tmp_path: Path) -> None:  # case 303
    fields = {name: value for name, value in SMALL.items() if name != "quiet"}
    waiting = Waiting()
    going = threading.Thread(
        target=lambda: run(Config.checked({"methods": ("fedper",), **fields}), out, lambda *_: waiting)
    )
    going.start()
    assert waiting.there.wait(120)
    for arguments in (("resume", out), ("run", "local", "--out", out, "--overwrite"), ("run", "local", "--out", out)):
        told = command(*arguments)
        assert told.returncode == 2
        (line,) = told.stderr.splitlines()
        assert "is in use by another kinfed process" in line or "exists; overwrite it" in line
    waiting.may_go_on.set()
    going.join()
    kinfed.run("fedper", out=tmp_path / "straight", **SMALL)
    assert files(out) == files(tmp_path / "straight")


def test_runs_without_a_named_folder_get_one_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # case 303
    from kinfed import api

    monkeypatch.chdir(tmp_path)
    with api.result_folder(None, "fedavg") as first, api.result_folder(None, "fedavg") as second:
        (first / "a").touch()
        (second / "a").touch()
    assert first != second
    with pytest.raises(InputError), api.result_folder(None, "refused") as third:
        raise InputError("before anything was written")
    assert not third.exists()


# -- places ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["afile/x", "n" * 300, "/proc/x", "dangling"])
def test_a_place_that_cannot_be_written_is_told_before_anything_is_trained(
    place: str, tmp_path: Path
) -> None:  # case 314
    (tmp_path / "afile").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere" / "at all")
    for method in (
        lambda out: kinfed.run("fedavg", out=out, **SMALL),
        lambda out: kinfed.compare(["fedavg"], out=out, **SMALL),
        lambda out: kinfed.train_sources(["digits"], out=out, quiet=True),
        lambda out: kinfed.reproduce("fedcrc-table1", out=out, quiet=True),
    ):
        with pytest.raises(InputError, match=r"^out: .* cannot be written: "):
            method(tmp_path / place)


def test_a_page_that_cannot_be_written_is_told(compared: Path) -> None:  # case 314
    with pytest.raises(InputError, match=r"^out: .*summary\.json/x\.html' cannot be written: "):
        kinfed.open_result(compared).report(compared / "fedper-seed0" / "summary.json" / "x.html")


# -- files that were changed -------------------------------------------------------------------------------------------

DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "cut": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "missing": lambda content: None,
    "{}": lambda content: b"{}",
    "[]": lambda content: b"[]\n",
    "numbers": lambda content: b"1\n2\n",
    "binary": lambda content: b"\xff\x00\xfe" * 20,
}
DAMAGED = [
    "comparison.toml", "comparison.json", "fedper-seed0/summary.json", "fedper-seed0/metrics.jsonl",
    "fedper-seed0/seconds.jsonl", "fedper-seed0/federation.json", "fedper-seed0/config.toml",
    "fedper-seed0/checkpoints/round-000003.safetensors",
    "fedper-seed0/memories/000/client-00000-round-000003.safetensors",
]  # fmt: skip


def report(path: Path) -> None:
    """All that a table tells."""
    runs = read_runs([path])
    table(runs).fitted(80)
    assert setting(runs) + verdict(runs) + "".join(notes(runs))


@pytest.mark.slow
@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("unfinished", [False, True])
def test_a_damaged_file_is_named_in_one_line_or_does_not_matter(
    name: str, damage: str, unfinished: bool, compared: Path
) -> None:  # case 313
    path = compared / name
    if unfinished:
        (compared / "fedper-seed0" / "summary.json").unlink()
    content = DAMAGES[damage](path.read_bytes() if path.is_file() else b"")
    path.unlink(missing_ok=True) if content is None else path.write_bytes(content)
    for action in (report, lambda path: kinfed.resume(path, quiet=True)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of checkpoints that cannot be used
                action(compared)
        except (InputError, RunFailed) as error:
            told = str(error)
        else:
            continue
        assert len(told.splitlines()) == 1
        assert str(compared) in told


def test_a_cut_file_of_a_finished_run_is_an_error(compared: Path) -> None:
    path = compared / "fedper-seed0" / "metrics.jsonl"
    whole = path.read_text()
    path.write_text(whole[:-10])
    with pytest.raises(InputError, match=r"metrics\.jsonl: is cut short in line 3"):
        report(compared)
    path.write_text("".join(whole.splitlines(keepends=True)[:2]))
    with pytest.raises(InputError, match=r"metrics\.jsonl: must have one line for each of the 3 rounds of the run"):
        report(compared)


def test_a_comparison_whose_summaries_name_another_place_is_refused(compared: Path) -> None:
    (compared / "comparison.json").write_text(json.dumps([{"method": "../../elsewhere", "seed": 0}]))
    with pytest.raises(InputError, match=r"comparison\.json: is damaged: 0\.method: "):
        report(compared)


def changed(path: Path, **fields: Any) -> None:
    lines = path.read_text().splitlines()
    for name, value in fields.items():
        lines = [f"{name} = {value}" if line.startswith(f"{name} = ") else line for line in lines]
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(("field", "value"), [("rounds", 6), ("lr", 0.05), ("partition", '"sort"')])
def test_the_config_of_a_finished_run_that_was_edited_is_refused_by_field(
    field: str, value: object, compared: Path
) -> None:  # case 316
    one = compared / "fedper-seed0"
    changed(one / "config.toml", **{field: value})
    with pytest.raises(InputError, match=rf"with {field} = .*; to add rounds: kinfed resume"):
        kinfed.resume(one, quiet=True)
    with pytest.raises(
        InputError, match=rf"config\.toml: {field} is .*, not .* as in the comparison; one of them was changed"
    ):
        kinfed.resume(compared, quiet=True)


# -- more rounds -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same comparison of five rounds."""
    out = tmp_path_factory.mktemp("straight") / "out"
    kinfed.compare(["fedper", "local"], out=out, **{**SMALL, "rounds": 5})
    return out


@pytest.mark.slow
def test_more_rounds_end_with_the_bits_of_a_straight_run(compared: Path, straight: Path) -> None:  # case 316
    kinfed.resume(compared, rounds=5, quiet=True)
    assert files(compared) == files(straight)
    assert [summary["rounds"] for summary in kinfed.open_result(compared).summaries] == [5, 5]
    kinfed.resume(compared, rounds=5, quiet=True)
    assert files(compared) == files(straight)


@pytest.mark.slow
def test_more_rounds_of_one_run_and_without_checkpoints_each_round(out: Path, tmp_path: Path) -> None:
    fields = {**SMALL, "checkpoint_every": 10, "ft_epochs": 1, "participation": 0.5}
    kinfed.run("fedshibu", out=out, **fields)
    kinfed.resume(out, rounds=5, quiet=True)
    kinfed.run("fedshibu", out=tmp_path / "straight", **{**fields, "rounds": 5})
    assert files(out) == files(tmp_path / "straight")


@pytest.mark.slow
def test_more_rounds_of_a_run_that_is_not_finished(compared: Path, straight: Path) -> None:
    one = compared / "fedper-seed0"
    (one / "summary.json").unlink()
    (one / "checkpoints" / "round-000003.safetensors").unlink()
    kinfed.resume(compared, rounds=5, quiet=True)
    assert files(compared) == files(straight)


@pytest.mark.parametrize("rounds", [2, 0, -1])
def test_fewer_rounds_are_refused(rounds: int, compared: Path) -> None:
    with pytest.raises(InputError, match=f"rounds: {rounds} is (fewer than the 3|not allowed)"):
        kinfed.resume(compared, rounds=rounds, quiet=True)


def test_more_rounds_are_refused_where_the_learning_rate_follows_from_their_number(out: Path) -> None:  # case 316
    kinfed.run("fedavg", out=out, **{**SMALL, "lr_schedule": "step:0.75"})
    before = files(out)
    with pytest.raises(InputError, match=r"rounds: 6 .* the lr_schedule step:0\.75 depends on the number of rounds, 3"):
        kinfed.resume(out, rounds=6, quiet=True)
    assert files(out) == before


@pytest.mark.slow
def test_a_kill_while_rounds_are_added_is_made_good_by_the_same_command(
    compared: Path, straight: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kinfed.experiment import extend

    class Killed(BaseException):
        pass

    left = 0
    steps = ("write_whole", "delete")

    def dying(name: str) -> Callable[..., Any]:
        whole = getattr(extend, name)

        def step(*arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return whole(*arguments)

        return step

    with monkeypatch.context() as patched:
        for name in steps:
            patched.setattr(extend, name, dying(name))
        for alive in range(20):
            left = alive
            try:
                extend.extend(compared, 5)
                break
            except Killed:
                continue
        else:
            pytest.fail("it never came to its end")
    assert alive > 3
    kinfed.resume(compared, quiet=True)
    assert files(compared) == files(straight)


def test_a_run_goes_on_on_another_device(compared: Path) -> None:  # case 353
    one = compared / "fedper-seed0"
    before = files(one)
    (one / "summary.json").unlink()
    changed(one / "config.toml", device='"cuda:3"')
    with pytest.raises(InputError, match="device: 'cuda:3' is not available here"):
        kinfed.resume(one, quiet=True)
    with pytest.warns(UserWarning, match="continues on cpu: results can differ in the last bits from those on cuda:3"):
        kinfed.resume(one, device="cpu", quiet=True)
    assert files(one) == before | {".lock": b""}


@pytest.mark.slow
def test_a_claim_of_another_process_is_told_before_data_are_touched(compared: Path) -> None:
    with claimed(compared):
        told = command("resume", compared)
    assert told.returncode == 2
    assert told.stderr == f"kinfed: run: '{compared}' is in use by another kinfed process\n"
