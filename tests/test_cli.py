from __future__ import annotations

import json
import multiprocessing
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kinfed import __version__, cli
from kinfed.data.formats.hub import HUB
from kinfed.experiment.config import Config
from kinfed.methods import METHODS
from kinfed.methods.fields_of import described_fields
from kinfed.models import ARCHITECTURES
from tests.builders import installed_package


@pytest.fixture
def kinfed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["kinfed", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    return call


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "Missing argument 'METHOD'"),
        (["rnu"], "No such command 'rnu'"),
        (["run", "fedavg", "--foo", "3"], "No such option"),
        (["run", "fedawg"], "method: 'fedawg' is not known"),
        (["watch", "no"], "run: 'no' has no journal in 'no.journal.jsonl'; kinfed deploy and flwr run begin one"),
        (["run", "fedavg", "--rounds", "-1"], "rounds: '-1' is not allowed"),
        (["run", "fedavg", "--lr", "abc"], "lr: 'abc' is not allowed"),
        (["run", "fedavg", "--alpha", "0"], "alpha: '0' is not allowed"),
        (["run", "fedavg", "--log", "mlfow"], "log: 'mlfow' is not known"),
        (["run", "fedavg", "--data", "/nowhere"], "data: '/nowhere' is neither"),
        (["run", "fedavg", "--clients", "5000"], "clients: 5000 is more than the 1272 training samples"),
        (["run", "fedavg", "--model", "cnn4"], "model: cnn4 needs images of 16×16 or more"),
        (["run", "fedavg", "--out", "."], "out: '.' exists"),
        (["run", "fedavg", "--seeds", "2"], "run: takes one method and one seed"),
        (["run", "fedavg", "--set", "norm=sum"], "must have the form METHOD.FIELD=VALUE"),
        (["compare"], "methods: none is named"),
        (["run", "fedavg", "--overwrite", "False"], "(False)"),  # case 109
        (["compare", "fedavg", "--overwrite", "False"], "method: 'False' is not known"),
        (["resume", "nowhere"], "run: 'nowhere' is not a run folder"),
        (["report", "nowhere"], "run: 'nowhere' is not a run folder"),
        (["run", "fedavg", "--config", "nowhere.toml"], "config: 'nowhere.toml' cannot be read"),
        (["run", "fedavg", "--weights", "w.pth"], "weights: 'w.pth' may be a pickle"),
        (["sources"], "Missing command"),
        (["sources", "train", "--out", "o"], "Missing option '--data'"),
        (["sources", "train", "--data", "digits"], "Missing option '--out'"),
        (["sources", "train", "--data", "digits", "--out", "o", "--epochs", "0"], "epochs: '0' is not allowed"),
        (["sources", "train", "--data", "digits", "--out", "o", "--rounds", "3"], "No such option"),
        (
            ["sources", "train", "--data", "digits", "--out", "something", "--model", "mlp"],
            "'something' is not a folder",
        ),
        (["sources", "list", "nowhere"], "sources: 'nowhere' is not a folder"),
        (["sources", "list", "."], "sources: '.' has no source"),
        (["tune"], "methods: none is named"),
        (["tune", "fedavg", "--validation", "0"], "validation: 0 is not allowed; settings are chosen on validation"),
        (["tune", "fedavg", "--budget", "soon"], "budget: 'soon' is not allowed; must be a time above 0"),
        (["tune", "fedavg", "--over", "lr=x"], "fedavg.lr: 'x' is not allowed"),
        (["tune", "fedavg", "--out", "."], "out: '.' exists"),
    ],
)
def test_wrong_input_gets_one_line_and_exit_code_2(kinfed, tmp_path: Path, arguments: list[str], message: str) -> None:  # type: ignore[no-untyped-def]  # case 111
    (tmp_path / "something").touch()
    code, out, err = kinfed(*arguments)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("kinfed: ")
    assert message in err
    assert [path.name for path in tmp_path.iterdir()] == ["something"]


def test_without_arguments_it_explains_itself_with_exit_code_2(kinfed) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = kinfed()
    assert code == 2
    assert "Usage" in out


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        (
            ["failed", ["RunFailed", "the power went"]],
            1,
            "kinfed: the power went; what was saved stays, go on with: flwr",
        ),
        (["stopped", [143]], 143, "kinfed: stopped; what was saved stays, go on with: flwr run"),
    ],
)
def test_who_watches_a_run_that_ends_early_is_told_in_a_line(  # type: ignore[no-untyped-def]
    line: list[object], code: int, told: str, kinfed
) -> None:
    Path("out.journal.jsonl").write_text(f'["process", [{os.getpid()}]]\n{json.dumps(line)}\n')
    ended, _, err = kinfed("watch", "out")
    assert ended == code
    assert err.splitlines()[-1].startswith(told)


def test_ctrl_c_ends_the_display_of_a_run_and_says_nothing_of_the_run(  # type: ignore[no-untyped-def]
    kinfed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kinfed.flower.journal.watch", interrupted)
    assert kinfed("watch", "out") == (130, "", "")


@pytest.mark.parametrize("began", [False, True])
def test_ctrl_c_names_the_command_that_continues_if_there_is_something_to_continue(  # type: ignore[no-untyped-def]
    began: bool, kinfed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, out: Path, **__: object) -> None:
        if began:
            out.mkdir()
            (out / "config.toml").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr("kinfed.api.run", interrupted)
    told = "what was saved stays, go on with: kinfed resume out" if began else "nothing was saved"
    assert kinfed("run", "fedavg", "--out", "out") == (130, "", f"kinfed: stopped; {told}\n")


LIGHT = """
import sys
from kinfed.cli import main

right = ["--help", "run --help", "methods", "models", "datasets"]
wrong = ["fedavgg", "fedvote+fedproxx", "local --data digts", "local --model mlpp", "local --partition shardz",
         "local --lr x", "local --rounds 0", "local --optimizer sdg", "local --log wanb", "local --lrr 1"]
for code, line in [*((0, line) for line in right), *((2, f"run {line}") for line in wrong)]:
    sys.argv = ["kinfed", *line.split()]
    try: main()
    except SystemExit as ended: assert (ended.code or 0) == code, line
    heavy = {"torch", "numpy", "scipy", "pandas", "sklearn", "matplotlib", "plotly", "pyarrow", "tensorboard", "mlflow"}
    assert not heavy & sys.modules.keys(), line
"""


def test_help_and_lists_and_mistyped_names_need_no_torch(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "KINFED_DATA"}
    told = subprocess.run(
        [sys.executable, "-c", LIGHT], capture_output=True, text=True, check=False, env=environment, cwd=tmp_path
    )
    assert told.returncode == 0, told.stderr
    assert "compare" in told.stdout


def test_what_other_packages_add_is_listed_without_being_imported(
    kinfed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    points = "[kinfed.methods]\ntheirs = kinfed_gone:Method\n[kinfed.models]\ntheir_net = kinfed_gone:net\n"
    with installed_package(tmp_path / "site", "kinfed-gone", "1.2", points, monkeypatch):
        assert re.search(r"^theirs +\[kinfed-gone 1.2\]$", kinfed("methods")[1], re.MULTILINE)
        assert re.search(r"^their_net +\[kinfed-gone 1.2\]$", kinfed("models")[1], re.MULTILINE)
        code, _, err = kinfed("methods", "theirs")
        assert (code, "No module named 'kinfed_gone'" in err) == (2, True)
        code, out, _ = kinfed("methods", "--travels")
        assert (code, "\ntheirs: method: 'theirs' of kinfed-gone 1.2 cannot be imported" in out) == (0, True)


@pytest.mark.parametrize("command", ["run", "compare"])
def test_every_field_of_the_config_is_an_option(kinfed, command: str) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = kinfed(command, "--help")
    assert code == 0
    for name in Config.model_fields.keys() - {"methods", "settings"}:
        assert re.search(rf"--{name.replace('_', '-')}\b", out)


@pytest.mark.slow
def test_the_command_line_overrules_the_file(kinfed, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]  # case 110
    (tmp_path / "experiment.toml").write_text(
        "methods = ['fedavg', 'fedprox']\nlr = 0.1\nrounds = 2\nclients = 10\nft_epochs = 1\n"
        "[fedprox]\nmu = 0.5\n[fedshibu]\nnorm = 'sum'\n"
    )
    arguments = ["--config", "experiment.toml", "--lr", "0.01", "--set", "fedprox.mu=0.25", "--out", "o"]
    code, out, _ = kinfed("compare", *arguments)
    assert code == 0
    written = (tmp_path / "o" / "fedprox-seed0" / "config.toml").read_text()
    assert "lr = 0.01\n" in written
    assert "rounds = 2\n" in written
    assert "ft_epochs = 1\n" in written
    assert "mu = 0.25\n" in written
    assert sorted(path.name for path in (tmp_path / "o").iterdir() if path.is_dir()) == [
        "fedavg-seed0", "fedprox-seed0",
    ]  # fmt: skip
    assert out.rstrip().endswith("o/report.html")


def test_run_resume_and_report_end_with_the_table_and_the_page(kinfed, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    code, out, err = kinfed("run", "fedavg", "--rounds", "2", "--clients", "10", "--out", "here")
    assert code == 0
    assert "fedavg" in out
    assert "round    2/2" in err
    page = tmp_path / "here" / "report.html"
    for command in ("resume", "report"):
        page.unlink()
        code, out, _ = kinfed(command, "here")
        assert code == 0
        assert "fedavg" in out
        assert page.is_file()


FAILING = """
from torch import nn

class Failing(nn.Linear):
    def forward(self, x):
        if self.training:
            raise ArithmeticError("the sensor is broken")
        return super().forward(x)

def model(shape, classes):
    return nn.Sequential(nn.Flatten(), Failing(64, 8), nn.Linear(8, classes))
"""


@pytest.mark.slow
def test_a_run_in_which_all_clients_fail_ends_with_the_reason_and_leaves_no_process(kinfed, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]  # case 95
    (tmp_path / "failing.py").write_text(FAILING)
    before = multiprocessing.active_children()
    options = ["--model", "failing:model", "--head", "2", "--clients", "10", "--workers", "1", "--out", "o"]
    code, _, err = kinfed("run", "fedavg", *options)
    assert code == 1
    reason = "in 3 rounds in a row; the first reason: ArithmeticError: the sensor is broken; what was saved stays"
    assert reason in err.splitlines()[-1]
    log = (tmp_path / "o" / "errors.log").read_text()
    assert log.startswith("round 1, client ")
    assert log.count("Traceback") == 1
    assert multiprocessing.active_children() == before


@pytest.mark.slow
def test_without_out_a_new_folder_is_made_every_time(kinfed, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    assert kinfed("run", "local", "--rounds", "1", "--clients", "10")[0] == 0
    (made,) = (tmp_path / "runs").iterdir()
    assert made.name.endswith("-local")


def test_sources_are_trained_and_listed(kinfed, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    train = ["sources", "train", "--data", "digits", "--out", "pool", "--model", "tiny_cnn", "--epochs", "1"]
    for classes, told in (("0,1", "digits-0-1 (seed 0) epoch    1/1"), ("2,3", "digits-2-3 (seed 0) epoch    1/1")):
        code, out, err = kinfed(*train, "--classes", classes)
        assert code == 0
        assert told in err
    assert [line.split()[:6] for line in out.splitlines()] == [
        [name, "tiny_cnn", "1×8×8", "10", "classes", "digits"] for name in ("digits-0-1", "digits-2-3")
    ]
    assert kinfed("sources", "list", "pool") == (0, out, "")
    assert kinfed(*train, "--classes", "2,3") == (0, out, "")  # nothing is missing


def test_lists_have_a_line_each(kinfed) -> None:  # type: ignore[no-untyped-def]
    for command, names in (("methods", METHODS), ("models", ARCHITECTURES), ("datasets", ["digits", *HUB])):
        code, out, _ = kinfed(command)
        assert code == 0
        assert [line.split()[0] for line in out.splitlines()][: len(names)] == [*names]
        assert all(len(line.split()) > 3 for line in out.splitlines())
        assert len({re.match(r"\S+\s{2,}", line + "x").end() for line in out.splitlines()}) == 1  # type: ignore[union-attr]


def test_every_form_of_a_data_folder_is_listed(kinfed) -> None:  # type: ignore[no-untyped-def]
    out = kinfed("datasets")[1]
    forms = (
        "train.parquet", "train/CLASS/*.png", "metadata.csv", "unlabelled:FOLDER", "train-images-idx3-ubyte.gz",
        "LEAF", "FLamby", "a federation",
    )  # fmt: skip
    assert out.count("\nFOLDER ") == len(forms)
    assert all(form in out for form in forms)


def test_version_and_short_help(kinfed) -> None:  # type: ignore[no-untyped-def]
    assert kinfed("--version") == (0, f"kinfed {__version__}\n", "")
    assert kinfed("run", "-h") == kinfed("run", "--help")


def test_options_stand_in_groups_under_headings(kinfed) -> None:  # type: ignore[no-untyped-def]
    _, out, _ = kinfed("compare", "--help")
    headings = re.findall(r"^(\w[\w ]*):$", out, re.MULTILINE)
    assert headings == ["Arguments", "Options", *cli.GROUPS.values()]
    training = out.partition("\nTraining:")[2].partition("\nTests of the models:")[0]
    assert "--lr FLOAT" in training
    assert "--clients" not in training


def test_true_or_false_is_a_flag(kinfed) -> None:  # type: ignore[no-untyped-def]
    asked = ["run", "fedavg", "--clients", "5", "--partition", "iid", "--rounds", "1", "--ft-epochs", "0", "--quiet"]
    assert kinfed(*asked, "--save-local", "--out", "saved")[0] == 0
    assert kinfed(*asked, "--no-save-local", "--out", "not")[0] == 0
    assert Path("saved/models/client-00000-local.safetensors").is_file()
    assert not Path("not/models/client-00000-local.safetensors").exists()


def test_quiet_shows_no_progress_and_json_prints_the_summaries_alone(kinfed) -> None:  # type: ignore[no-untyped-def]
    asked = ["compare", "fedavg", "--clients", "5", "--partition", "iid", "--rounds", "1", "--ft-epochs", "0"]
    code, out, err = kinfed(*asked, "--quiet", "--out", "quiet")
    assert (code, err) == (0, "")
    assert "fedavg" in out
    code, out, err = kinfed(*asked, "--json", "--out", "told")
    told = json.loads(out)
    assert (code, err, told["path"]) == (0, "", "told")
    assert [run["method"] for run in told["runs"]] == ["fedavg"]
    assert told["runs"][0] == json.loads(Path("told/fedavg-seed0/summary.json").read_text())
    code, out, _ = kinfed("report", "told", "--format", "csv")
    assert (code, out.partition(",")[0]) == (0, "method")
    assert kinfed("report", "told", "--format", "json", "--out", "t.json")[:2] == (0, "")
    assert json.loads(Path("t.json").read_text())[0]["method"] == "fedavg"
    code, _, err = kinfed("report", "told", "--format", "csv", "--out", "told")
    assert (code, err.count("\n")) == (2, 1)


def test_a_method_is_described_with_types_defaults_and_meanings(kinfed) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = kinfed("methods", "fedvote+fedprox")
    assert code == 0
    assert "\n  mu: number ≥ 0 [0.1]\n    Strength μ of the proximal term" in out
    assert "\n  classifier: keep | reinit | source [keep]\n" in out
    code, _, err = kinfed("methods", "fedpro")
    assert (code, err.count("\n")) == (2, 1)
    assert "did you mean fedprox?" in err


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (["comparee"], "Did you mean 'compare'?"),
        (["report", "run", "--format", "htm"], "'html', 'csv', 'json', 'markdown', 'latex'; did you mean html?"),
    ],
)
def test_a_mistyped_command_or_choice_gets_one_suggestion(kinfed, arguments, suggestion) -> None:  # type: ignore[no-untyped-def]
    code, _, err = kinfed(*arguments)
    assert code == 2
    assert err.count("id you mean") == 1
    assert suggestion in err


@pytest.mark.parametrize("name", METHODS)
def test_every_field_of_a_method_has_a_meaning(name: str) -> None:
    assert all(field.meaning and field.type for field in described_fields(METHODS[name]))


def test_what_travels_is_told_with_what_it_says_about_labels(kinfed) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = kinfed("methods", "fedproto", "--travels")
    assert code == 0
    assert (
        "sends     number of its samples of each class (K)\n            labels: the number of each class, exactly"
        in out
    )
    code, out, _ = kinfed("methods", "--travels")
    assert code == 0
    assert out.count("\n  sends") >= len(METHODS)
    code, _, err = kinfed("methods", "fedpro", "--travels")
    assert (code, err.count("\n")) == (2, 1)
