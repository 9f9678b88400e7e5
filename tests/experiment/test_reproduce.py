from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kinfed
from kinfed.errors import InputError
from kinfed.experiment.config_file import read_toml
from kinfed.experiment.folders import COMPARISON
from kinfed.experiment.papers import TABLES, reproduce
from kinfed.experiment.papers.table import ROUNDS, PaperTable, Row, Scale
from kinfed.learning.schedule import lr_factor
from kinfed.methods import METHODS

COMPARED = {name: table for name, table in TABLES.items() if isinstance(table, PaperTable)}
SMALL = PaperTable(
    title="A table",
    quantity="global_acc",
    fields={"data": "digits", "clients": 4, "partition": "dirichlet", "public": 0},
    columns={"α=5": {"alpha": 5.0}, "α=1": {"alpha": 1.0}},
    rows=(
        Row("fedavg", "fedavg", (64.37, 50.43)),
        Row("fedbabu", "fedbabu", (60.0, 50.0)),
        Row("local", "local", quantity="personal_acc_weighted"),
    ),
    scales={"small": Scale(("α=1",), {"rounds": 1, "seeds": 2}), "paper": Scale(("α=5", "α=1"), {"rounds": 2})},
)
SEVERAL = PaperTable(
    title="Several models of one run, and several runs of one method",
    quantity="personal_acc_mean",
    fields={"model": "tiny_cnn", "clients": 4, "participation": 0.5, "public": 16, "ft_epochs": 1, "partition": "iid"},
    columns={"digits": {"data": "digits"}, "grey": {"data": "digits", "channels": 1, "partition": "sort"}},
    rows=(
        Row("FedCRC", "fedcrc", (1.0, 2.0), quantity="global_acc_mean", also="fine_tuned_acc_mean"),
        Row("FedCRC-Per", "fedcrc", (3.0, 4.0), quantity="stale_acc_mean", also="refreshed_acc_mean"),
        Row("linear", "fedshibu", (5.0, 6.0)),
        Row("sum", "fedshibu", settings={"norm": "sum"}, also="fine_tuned_acc_mean"),
        Row("local", "local", quantity="personal_acc_mean"),
    ),
    scales={"small": Scale(("digits", "grey"), {"rounds": 2, "local_epochs": 2}, {"local": {"rounds": 1}})},
    note="What to know.",
)
STAND_INS = PaperTable(
    title="A scale with models, rows and a column of its own",
    quantity="linear_global_acc_mean",
    fields={"clients": 4, "partition": "disjoint", "public": 16, "linear_probe": True, "batch_size": 64},
    columns={
        "A": {"data": "cifar10"},
        "B": {"data": "digits", "settings": {"hetero_ssfl": {"mu": 0.25}}},
    },
    rows=(Row("resnet", "hetero_ssfl", (85.4,)), Row("fedavg", "fedavg", (68.5,), quantity="global_acc")),
    scales={
        "small": Scale(
            ("B",),
            {"models": "tiny_cnn:0.5,mlp:0.5", "rounds": 1, "settings": {"hetero_ssfl": {"hidden": 16, "out": 8}}},
            {"fedavg": {"model": "tiny_cnn", "models": None}},
            instead=(
                Row("tiny_cnn", "hetero_ssfl", (85.4,), quantity="linear_global_acc_mean_of_tiny_cnn"),
                Row(
                    "mlp", "hetero_ssfl", quantity="linear_global_acc_mean_of_mlp", also="linear_local_acc_mean_of_mlp"
                ),
                Row("fedavg", "fedavg", (68.5,), quantity="global_acc", also="linear_global_acc_mean"),
            ),
        ),
        "paper": Scale(("A",), {"model": "resnet18"}),
    },
)


@pytest.fixture(autouse=True)
def _tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        reproduce, "TABLES", {"a-table1": SMALL, "a-table2": SEVERAL, "a-table3": STAND_INS, "a-table4": TO_TARGET}
    )


@pytest.mark.slow
def test_a_table_is_run_and_the_papers_numbers_stand_beside_ours(out: Path) -> None:
    path = kinfed.reproduce("a-table1", out=out, quiet=True)
    summaries = json.loads((out / "α=1" / "comparison.json").read_text())
    ours = [100 * s["metrics"]["global_acc"] for s in summaries if s["method"] == "fedavg"]
    assert json.loads((out / "table.json").read_text())["cells"]["α=1"]["fedavg"] == ours
    lines = path.read_text().splitlines()
    assert "digits, 4 clients, partition dirichlet" in lines[2]
    assert "1 rounds of 1 local epochs, batch 16, lr 0.1, seeds 0 to 1" in lines[2]
    assert lines[4] == "| | α=1: here | α=1: paper |"
    (row,) = (line for line in lines if line.startswith("| fedavg "))
    mean, spread = sum(ours) / 2, abs(ours[0] - ours[1]) / 2**0.5
    assert row == f"| fedavg | {mean:.2f} ± {spread:.2f} | 50.43 |"
    (local,) = (line for line in lines if line.startswith("| local "))
    assert local.endswith("| – |")


@pytest.mark.slow
def test_the_same_command_goes_on_and_another_config_is_refused(out: Path) -> None:
    before = kinfed.reproduce("a-table1", out=out, quiet=True).read_text()
    (out / "α=1" / "fedbabu-seed1" / "summary.json").unlink()
    assert kinfed.reproduce("a-table1", out=out, quiet=True).read_text() == before
    with pytest.raises(InputError, match="was started with another config; choose another folder"):
        kinfed.reproduce("a-table1", out=out, quiet=True, lr=0.2)


@pytest.mark.slow
def test_it_goes_on_with_more_seeds_and_workers(out: Path) -> None:
    kinfed.reproduce("a-table1", out=out, quiet=True, seeds=1)
    first = (out / "α=1" / "fedavg-seed0" / "summary.json").read_bytes()
    more = kinfed.reproduce("a-table1", out=out, quiet=True, seeds=2, workers=1).read_text()
    assert (out / "α=1" / "fedavg-seed0" / "summary.json").read_bytes() == first
    assert (out / "α=1" / "fedavg-seed1" / "summary.json").is_file()
    assert "seeds 0 to 1" in more


@pytest.mark.slow
def test_fields_overrule_those_of_the_table_and_the_papers_numbers_are_of_another_setting(out: Path) -> None:
    # case 343
    fields = {"rounds": 1, "clients": "3", "settings": {"fedbabu": {}}, "seeds": 1, "momentum": 0.9, "device": "cpu"}
    lines = kinfed.reproduce("a-table1", scale="paper", out=out, quiet=True, **fields).read_text().splitlines()
    assert "3 clients" in lines[2]
    assert "1 rounds" in lines[2]
    assert lines[4] == (
        "The setting differs from this table's: rounds=1, clients=3. The paper's numbers are of the table's setting."
    )
    beside = "| α={0}: here | α={0}: paper, another setting "
    assert lines[6] == f"| {beside.format(5)}{beside.format(1)}|"
    assert json.loads((out / "table.json").read_text())["other_setting"] == {"rounds": 1, "clients": 3}


@pytest.mark.slow
def test_what_is_said_as_the_table_has_it_is_no_other_setting(out: Path) -> None:
    fields = {"rounds": 1, "seeds": 1, "clients": 4, "seed": 3, "evaluate_every": 2, "checkpoint_every": 1}
    assert "another setting" not in kinfed.reproduce("a-table1", out=out, quiet=True, **fields).read_text()


@pytest.mark.parametrize(
    ("table", "fields", "message"),
    [
        ("a-table1", {"alpha": 2.0}, "alpha: 2.0 is not allowed; it differs between the columns or rows of this table"),
        ("a-table2", {"channels": 3}, "channels: 3 is not allowed; it differs"),
        ("a-table2", {"settings": {"fedshibu": {"norm": "topk"}}}, "fedshibu.norm: 'topk' is not allowed; it differs"),
        ("a-table3", {"settings": {"hetero_ssfl": {"mu": 1}}}, "hetero_ssfl.mu: 1 is not allowed; it differs"),
        ("a-table1", {"methods": ["fedper"]}, "methods: .'fedper'. is not allowed; it differs"),
        ("a-table1", {"shards": 3}, "shards: 3 would do nothing; it is of partition shards"),
        ("a-table1", {"knn_every": 3}, "knn_every: 3 would do nothing; it is of methods that read no labels"),
        ("a-table2", {"settings": {"fedshibu": {"k": 2}}}, "fedshibu.k: 2 would do nothing; it is of norm=topk"),
        ("a-table4", {"rounds": 0}, "rounds: 0 is not allowed"),
        ("a-table4", {"settings": {"fedvote": {"source": "x"}}}, "fedvote.source: 'x' is not allowed; it differs"),
    ],
)
def test_what_tells_columns_apart_or_does_nothing_is_refused_before_anything_is_done(
    table: str, fields: dict[str, Any], message: str, out: Path
) -> None:  # case 343
    with pytest.raises(InputError, match=message):
        kinfed.reproduce(table, out=out, quiet=True, **fields)
    assert not out.exists()


@pytest.mark.slow
def test_a_field_that_one_of_a_tables_runs_reads_may_be_given(out: Path) -> None:
    fields: dict[str, Any] = {"rounds": 1, "local_epochs": 1, "clients": 2, "participation": 1.0}
    text = kinfed.reproduce(
        "a-table2", out=out, quiet=True, **fields, settings={"fedshibu": {"reach": 0.5}}
    ).read_text()
    assert "participation=1.0, fedshibu.reach=0.5." in text  # one row has norm=distance


def test_unknown_tables_and_scales_are_told(out: Path) -> None:
    with pytest.raises(
        InputError, match="table: 'fedcka-table9' is not known; allowed: a-table1, a-table2, a-table3, a-table4"
    ):
        kinfed.reproduce("fedcka-table9", out=out, quiet=True)
    with pytest.raises(InputError, match="scale: 'huge' is not known; allowed: small, paper"):
        kinfed.reproduce("a-table1", scale="huge", out=out, quiet=True)
    assert not out.exists()


@pytest.mark.slow
def test_rows_of_one_run_and_runs_of_one_method(out: Path) -> None:
    lines = kinfed.reproduce("a-table2", out=out, quiet=True).read_text().splitlines()
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == [
        "digits", "digits, local", "digits, sum", "grey", "grey, local", "grey, sum"
    ]  # fmt: skip
    assert sorted(path.name for path in (out / "digits").iterdir() if path.is_dir()) == [
        "fedcrc-seed0", "fedshibu-seed0"
    ]  # fmt: skip
    assert [path.name for path in (out / "digits, sum").iterdir() if path.is_dir()] == ["fedshibu-seed0"]
    assert [path.name for path in (out / "digits, local").iterdir() if path.is_dir()] == ["local-seed0"]

    def measured(folder: str, quantity: str) -> str:
        return f"{100 * json.loads((out / folder / 'summary.json').read_text())['metrics'][quantity]:.2f}"

    def row(label: str, quantity: str, run: str, printed: tuple[str, str]) -> str:
        digits, grey = (measured(f"{column}{run}-seed0", quantity) for column in ("digits", "grey"))
        return f"| {label} | {digits} | {printed[0]} | {grey} | {printed[1]} |"

    assert lines[2] == (
        "digits, 4 clients (50% of them per round), partition iid/sort, model tiny_cnn, 2 rounds of 2 local epochs, "
        "batch 16, lr 0.1, "
        "fine-tuning for 1 epochs with lr 0.001, seed 0; local: rounds 1. The numbers are "
        "personal_acc_mean after the last round, in percent; for FedCRC, global_acc_mean; "
        "for FedCRC-Per, stale_acc_mean; for local, personal_acc_mean."
    )
    assert lines[4] == "What to know."
    assert lines[8:13] == [
        row("FedCRC", "global_acc_mean", "/fedcrc", ("1.00", "2.00")),
        row("FedCRC-Per", "stale_acc_mean", "/fedcrc", ("3.00", "4.00")),
        row("linear", "personal_acc_mean", "/fedshibu", ("5.00", "6.00")),
        row("sum", "personal_acc_mean", ", sum/fedshibu", ("–", "–")),
        row("local", "personal_acc_mean", ", local/local", ("–", "–")),
    ]
    tuned = [measured(f"{run}/fedshibu-seed0", "fine_tuned_acc_mean") for run in ("digits, sum", "grey, sum")]
    at = lines.index("fine_tuned_acc_mean of the same runs:")
    assert lines[at + 2] == "| | digits | grey |"
    assert lines[at + 4].startswith("| FedCRC | ")
    assert lines[at + 5 : at + 7] == [f"| sum | {' | '.join(tuned)} |", ""]
    refreshed = json.loads((out / "table.json").read_text())["refreshed_acc_mean"]
    assert {column: [*rows] for column, rows in refreshed.items()} == {"digits": ["FedCRC-Per"], "grey": ["FedCRC-Per"]}


@pytest.mark.slow
def test_a_scale_has_rows_and_a_column_that_the_paper_has_not(out: Path) -> None:
    text = kinfed.reproduce("a-table3", out=out, quiet=True, settings={"hetero_ssfl": {"out": 4}}).read_text()
    (hetero,) = json.loads((out / "B" / "comparison.json").read_text())
    (fedavg,) = json.loads((out / "B, fedavg" / "comparison.json").read_text())
    assert "model tiny_cnn:0.5,mlp:0.5, 1 rounds" in text
    assert "; fedavg: model tiny_cnn. The numbers are linear_global_acc_mean after" in text
    for label, metrics, quantity in (
        ("tiny_cnn", hetero["metrics"], "linear_global_acc_mean_of_tiny_cnn"),
        ("mlp", hetero["metrics"], "linear_global_acc_mean_of_mlp"),
        ("fedavg", fedavg["metrics"], "global_acc"),
    ):
        assert f"| {label} | {100 * metrics[quantity]:.2f} | – |" in text
    assert "linear_local_acc_mean_of_mlp of the same runs:" in text
    assert f"| fedavg | {100 * fedavg['metrics']['linear_global_acc_mean']:.2f} |" in text
    own = read_toml(out / "B" / COMPARISON)["settings"]["hetero_ssfl"]
    assert (own["mu"], own["hidden"], own["out"]) == (0.25, 16, 4)  # of the column, the scale and the caller


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_hetero_ssfl_has_the_mu_of_the_data_and_two_architectures(scale: str) -> None:
    table = TABLES["hetero-ssfl-table1"].at(scale)
    for column in table.scales[scale].columns:
        alike, hetero = (c.config for c in reproduce.comparisons(table, scale, column, {"data": "digits"}))
        assert hetero.methods == ("hetero_ssfl", "local_ssl")
        assert (alike.models, hetero.model) == (None, None)
        assert hetero.models is not None
        assert alike.model in hetero.models  # the larger of the two
        assert hetero.settings["hetero_ssfl"]["mu"] == (1.0 if column == "Tiny-ImageNet" else 0.5)
        wide = {(own["hidden"], own["out"]) for c in (alike, hetero) for own in c.settings.values() if "out" in own}
        assert wide == {(4096, 2048) if scale == "paper" else (512, 128)}


@pytest.mark.slow
def test_settings_overrule_those_of_the_rows_one_by_one(out: Path) -> None:
    fields = {"rounds": 1, "local_epochs": 1, "clients": 2, "participation": 1.0}
    kinfed.reproduce("a-table2", out=out, quiet=True, **fields, settings={"fedshibu": {"kernel": "rbf"}})
    texts = [(out / folder / COMPARISON).read_text() for folder in ("digits", "digits, sum")]
    assert all('kernel = "rbf"' in text for text in texts)
    assert ['norm = "sum"' in text for text in texts] == [False, True]
    with pytest.raises(InputError, match="set: 'fedsibu' is not known"):
        kinfed.reproduce("a-table2", out=out, quiet=True, settings={"fedsibu": {"kernel": "rbf"}})


@pytest.mark.slow
def test_a_folder_from_before_a_field_was_there_is_gone_on_with(out: Path) -> None:
    before = kinfed.reproduce("a-table1", out=out, quiet=True).read_text()
    begun = out / "α=1" / COMPARISON
    begun.write_text("".join(line for line in begun.read_text().splitlines(True) if not line.startswith("ft_part")))
    assert kinfed.reproduce("a-table1", out=out, quiet=True).read_text() == before


@pytest.mark.parametrize("name", COMPARED)
def test_every_cell_of_every_table_is_a_valid_config(name: str, tmp_path: Path) -> None:
    given = {"data": "digits", "sources": str(tmp_path)}
    for scale in COMPARED[name].scales:
        table = COMPARED[name].at(scale)
        labels = [row.label for row in table.rows]
        assert len(set(labels)) == len(labels)
        assert {row.method for row in table.rows} <= METHODS.keys()
        (printed,) = {len(row.printed) for row in table.rows if row.printed}
        assert printed <= len(table.columns)
        assert table.scales[scale].rows.keys() <= {*labels}
        for column in table.scales[scale].columns:
            comparisons = reproduce.comparisons(table, scale, column, given)
            assert sorted(row.label for comparison in comparisons for row in comparison.rows) == sorted(labels)


@pytest.mark.parametrize(
    ("name", "label", "column", "number"),
    [
        ("fedcka-table2", "fedcka", "α=0.1", 52.35),
        ("fedshibu-table1", "FedSHIBU linear", "CIFAR-100 s=2", 91.12),
        ("fedshibu-table1", "FedSHIBU RBF", "CIFAR-10 s=4", 85.9),
        ("fedshibu-table1", "FedBABU", "CIFAR-100 s=100", 73.37),
        ("fedshibu-table1", "FedAvg", "CIFAR-10 s=2", 58.13),
        ("fedcrc-table1", "FedPer", "CIFAR-10 β=0.1", 12.57),
        ("fedcrc-table1", "FedRep", "CIFAR-100 IID", 9.43),
        ("fedcrc-table1", "FedCRC", "MNIST IID", 99.17),
        ("fedcrc-table1", "FedCRC-Per", "MNIST β=0.1", 99.24),
        ("hetero-ssfl-table1", "fedu", "Tiny-ImageNet", 58.23),
        ("hetero-ssfl-table1", "hetero_ssfl", "CIFAR-10", 90.29),
        ("hetero-ssfl-table1", "fedavg", "CIFAR-100", 44.29),
        ("hetero-ssfl-table1", "central_byol", "Tiny-ImageNet", 78.7),
        ("hetero-ssfl-table4", "local_ssl (ResNet-18)", "CIFAR-10", 71.9),
        ("hetero-ssfl-table4", "local_ssl (ResNet-34)", "CIFAR-10", 77.8),
        ("hetero-ssfl-table4", "hetero_ssfl (ResNet-18)", "CIFAR-10", 85.4),
        ("hetero-ssfl-table4", "hetero_ssfl (ResNet-34)", "CIFAR-10", 93.7),
        ("sftl-table2", "Baseline", "non-IID", 332),
        ("sftl-table2", "FMNIST", "non-IID", 256),
        ("sftl-table2", "KMNIST", "IID", 225),
    ],
)
def test_printed_numbers_stand_in_their_columns(name: str, label: str, column: str, number: float) -> None:
    (row,) = (row for row in COMPARED[name].at("paper").rows if row.label == label)
    assert row.printed[[*COMPARED[name].columns].index(column)] == number  # specification H


def test_learning_rates_of_fedcrc_are_the_papers() -> None:
    column, *_ = COMPARED["fedcrc-table1"].columns
    config = reproduce.comparisons(COMPARED["fedcrc-table1"], "paper", column, {"data": "digits"})[0].config
    rates = [config.lr * lr_factor(config.lr_schedule, round, config.rounds) for round in (1, 49, 50, 74, 75, 100)]
    assert rates == pytest.approx([0.05, 0.05, 0.01, 0.01, 0.001, 0.001])


TO_TARGET = PaperTable(
    title="Rounds",
    quantity=ROUNDS,
    fields={
        "data": "digits", "model": "tiny_cnn", "clients": 4, "partition": "iid", "public": 0, "rounds": 4,
        "local_epochs": 1, "batch_size": 32, "lr": 0.02, "target_acc": 0.5, "ft_epochs": 0,
        "settings": {"fedvote": {"round": 1, "ballot": 1}},
    },
    columns={"IID": {}},
    rows=(
        Row("Baseline", "fedavg", (332.0,)),
        Row("digits", "fedvote", (66.0,), settings={"source": "digits"}),
        Row("by vote", "fedvote"),
    ),
    scales={"small": Scale(("IID",), {}, sources={"epochs": 8})},
    sources={"model": "tiny_cnn", "lr": 0.1, "batch_size": 16},
)  # fmt: skip


@pytest.mark.slow
def test_a_table_of_rounds_trains_its_sources_and_tells_what_they_save(tmp_path: Path) -> None:
    told = kinfed.reproduce("a-table4", out=tmp_path, quiet=True).read_text()
    rounds = json.loads((tmp_path / "table.json").read_text())["cells"]["IID"]
    (base,), (moved,) = rounds["Baseline"], rounds["digits"]
    assert rounds["by vote"] == [moved]  # there is but one source to vote for
    assert moved == 2 < (base or 5)  # the source is a whole classifier of the same digits, but for its head
    shown = f"{base} | 332" if base else ">4 | 332"
    speed = f"2 ({base / 2:.2f}×)" if base else "2 (>2.00×)"
    assert f"| Baseline | {shown} |" in told
    assert f"| digits | {speed} | 66 (5.03×) |" in told
    assert f"| by vote | {speed} | – |" in told
    assert "IID, by vote, seed 0: 4 clients voted in round 1; votes: digits 4 (4 points); transferred: digits." in told
    assert "rounds until the global model reaches 0.5 on the whole test set" in told
    moved_to = tmp_path.rename(tmp_path.with_name("moved"))
    trained = {path: path.stat().st_mtime_ns for path in moved_to.rglob("*.safetensors")}
    assert kinfed.reproduce("a-table4", out=moved_to, quiet=True).read_text() == told
    again = kinfed.reproduce("a-table4", out=moved_to, quiet=True, target_acc=0.99).read_text()
    assert "reaches 0.99 on the whole test set" in again
    assert {path: path.stat().st_mtime_ns for path in trained} == trained


def test_rounds_that_not_every_seed_has_are_a_bound() -> None:
    base, row, *_ = TO_TARGET.rows
    cell = lambda *seeds: reproduce._of_rounds({base.label: [40, 60], row.label: [*seeds]}, TO_TARGET, row, 60)  # noqa: E731
    assert cell(20, 30) == "25 ± 7.1 (2.00×)"
    assert cell(20, None) == ">40 (<1.25×)"
    assert cell(None, None) == ">60 (<0.83×)"
    lower = reproduce._of_rounds({base.label: [None], row.label: [30]}, TO_TARGET, row, 60)
    assert lower == "30 (>2.00×)"
