from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kinfed
from kinfed.errors import InputError
from kinfed.experiment.config import Config
from kinfed.experiment.config_file import read_toml
from kinfed.experiment.cost import cost_of
from kinfed.experiment.folders import COMPARISON
from kinfed.experiment.papers import TABLES, reproduce
from kinfed.experiment.papers.table import ROUNDS, SECONDS, PaperTable, Row, Scale
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
        ("a-table1", {"partition": "iid"}, "partition: 'iid' is not allowed; it differs"),
        ("a-table1", {"columns": "α=5"}, "columns: 'α=5' is not known; allowed: α=1; did you mean α=1?"),
        ("a-table1", {"rows": "fedavg,fedbab"}, "rows: 'fedbab' is not known; allowed: .*; did you mean fedbabu?"),
        ("a-table1", {"rows": []}, r"rows: \[\] is not allowed; must be labels of the table"),
        ("a-table2", {"rows": "local", "settings": {"fedcrc": {"tau": 0.5}}}, "set: 'fedcrc' is not known"),
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


@pytest.mark.parametrize("name", COMPARED)
@pytest.mark.parametrize("scale", ["small", "paper"])
def test_what_a_table_has_in_its_columns_cannot_be_overruled(name: str, scale: str) -> None:  # case 343
    table = COMPARED[name].at(scale)
    apart = reproduce._apart(table, scale)
    configs = [
        reproduce.comparisons(table, scale, column, {"data": "digits", "sources": "."})[0].config
        for column in table.scales[scale].columns
    ]
    differing = {field for field in Config.model_fields if len({str(getattr(c, field)) for c in configs}) > 1}
    assert differing - {"settings", "data"} <= apart
    if apart & {"alpha", "shards", "classes_per_client"}:
        assert "partition" in apart  # another one would not read them


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
def test_some_columns_and_rows_are_run_and_the_rest_may_follow(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fields: dict[str, Any] = {"rounds": 1, "local_epochs": 1}
    text = kinfed.reproduce("a-table2", out=out, columns="grey", rows="FedCRC-Per,sum", **fields).read_text()
    assert "2 runs, 2 rounds; about how long is told after the first round" in capsys.readouterr().err
    assert sorted(str(path.parent.relative_to(out)) for path in out.rglob("summary.json")) == [
        "grey, sum/fedshibu-seed0", "grey/fedcrc-seed0"
    ]  # fmt: skip
    assert "| | grey: here | grey: paper, another setting |" in text
    assert [line.split(" |")[0] for line in text.splitlines() if line.startswith("| ")][1:3] == [
        "| FedCRC-Per",
        "| sum",
    ]
    before = (out / "grey" / "fedcrc-seed0" / "summary.json").read_bytes()
    more = kinfed.reproduce("a-table2", out=out, rows=["FedCRC-Per", "linear"], **fields).read_text()
    assert "3 runs, 3 rounds left of 4 runs, 4 rounds: at the pace so far about " in capsys.readouterr().err
    assert (out / "grey" / "fedcrc-seed0" / "summary.json").read_bytes() == before
    assert [s["method"] for s in json.loads((out / "grey" / "comparison.json").read_text())] == ["fedcrc", "fedshibu"]
    assert "| | digits: here |" in more
    kinfed.reproduce("a-table2", out=out, quiet=True, rows=["linear"], columns=["grey"], **fields)
    assert [s["method"] for s in json.loads((out / "grey" / "comparison.json").read_text())] == ["fedcrc", "fedshibu"]
    with pytest.raises(InputError, match="was started with another config"):
        kinfed.reproduce(
            "a-table2", out=out, quiet=True, rows="linear", settings={"fedshibu": {"kernel": "rbf"}}, **fields
        )


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
        ("fedcka-table1", "fedavg", "Tiny-ImageNet", 19.49),
        ("fedcka-table1", "scaffold", "CIFAR-100", 39.16),
        ("fedcka-table2", "scaffold", "α=0.1", 40.53),
        ("fedcka-table3", "vectorised cosine", "CIFAR-10", 66.67),
        ("fedcka-table3", "kernel CKA", "CIFAR-10", 67.93),
        ("fedcka-table4", "MOON", "50 layers (Tiny-ImageNet)", 1689.28),
        ("fedcka-table4", "FedCKA", "7 layers (CIFAR-10)", 104.17),
        ("fedshibu-table1", "FedSHIBU linear", "CIFAR-100 s=2", 91.12),
        ("fedshibu-table1", "FedSHIBU RBF", "CIFAR-10 s=4", 85.9),
        ("fedshibu-table1", "FedBABU", "CIFAR-100 s=100", 73.37),
        ("fedshibu-table1", "FedAvg", "CIFAR-10 s=2", 58.13),
        ("fedcrc-table1", "FedPer", "CIFAR-10 β=0.1", 12.57),
        ("fedcrc-table1", "FedRep", "CIFAR-100 IID", 9.43),
        ("fedcrc-table1", "FedCRC", "MNIST IID", 99.17),
        ("fedcrc-table1", "FedCRC-Per", "MNIST β=0.1", 99.24),
        ("fedcrc-table2", "FedPer", "CIFAR-10 β=0.1", 14.25),
        ("fedcrc-table2", "FedRep", "CIFAR-10 β=1", 31.31),
        ("fedcrc-table3", "τ=0.5", "CIFAR-10 β=0.1", 60.25),
        ("fedcrc-table3", "τ=0.2", "CIFAR-10 IID", 75.82),
        ("hetero-ssfl-table2", "fedema", "CIFAR-10", 85.9),
        ("hetero-ssfl-table2", "fedsimsiam", "CIFAR-100", 22.19),
        ("hetero-ssfl-table3", "fedu", "CIFAR-100 20(5)", 48.29),
        ("hetero-ssfl-table3", "hetero_ssfl", "CIFAR-100 100(10)", 43.3),
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


def at_scale(name: str, scale: str) -> dict[str, dict[str, Config]]:
    """The config of each row of a table, by column."""
    table = COMPARED[name].at(scale)
    return {
        column: {
            row.label: comparison.config
            for comparison in reproduce.comparisons(table, scale, column, {"data": "digits"})
            for row in comparison.rows
        }
        for column in table.scales[scale].columns
    }


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_fedcka_has_the_papers_mu_and_scaffold_in_two_forms(scale: str) -> None:
    best = {
        "fedcka-table1": {"CIFAR-10": (0.001, 10, 3), "CIFAR-100": (0.1, 5, 10), "Tiny-ImageNet": (0.1, 0.1, 3)},
        "fedcka-table2": {"α=5": (0.001, 0.1, 5), "α=0.5": (0.1, 10, 3), "α=0.1": (0.001, 10, 3)},
    }
    for name, of_columns in best.items():
        for column, rows in at_scale(name, scale).items():
            mu = tuple(rows[method].settings[method]["mu"] for method in ("fedprox", "moon", "fedcka"))
            assert mu == of_columns[column]
            niid, published = (rows[of].settings["scaffold"] for of in ("scaffold", "scaffold as published"))
            assert (niid["mode"], niid["denom"], niid["weights"]) == ("niid", "steps", "samples")
            assert (published["mode"], published["weights"]) == ("paper", "uniform")


def test_fedcka_trains_as_long_as_the_paper_says() -> None:
    told = {column: rows["fedcka"].rounds for column, rows in at_scale("fedcka-table1", "paper").items()}
    assert told == {"CIFAR-10": 100, "CIFAR-100": 40, "Tiny-ImageNet": 20}


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_fedbabu_fine_tuned_and_fedcrc_per_refitted_cost_no_run_of_their_own(scale: str) -> None:
    table = COMPARED["fedcrc-table1"].at(scale)
    column, *_ = table.scales[scale].columns
    runs = [
        {row.label for row in comparison.rows if row.method == method}
        for comparison in reproduce.comparisons(table, scale, column, {"data": "digits"})
        for method in comparison.config.methods
    ]
    assert {"FedBABU", "FedBABU fine-tuned"} in runs
    assert {"FedCRC", "FedCRC-Per", "FedCRC-Per re-fitted"} in runs
    rows = at_scale("fedcrc-table1", scale)[column]
    assert {label for label, config in rows.items() if config.ft_epochs} == {"FedBABU", "FedBABU fine-tuned"}


def test_clients_of_hetero_ssfl_are_those_of_the_heading() -> None:
    for scale in ("small", "paper"):
        for column, rows in at_scale("hetero-ssfl-table3", scale).items():
            config = rows["fedu"]
            assert column.endswith(f" {config.clients}({round(config.clients * config.participation)})")


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


def test_the_folder_of_a_row_does_not_depend_on_the_choice() -> None:
    table, column = SEVERAL, "digits"
    every = {row.label: c.folder for c in reproduce.comparisons(table, "small", column, {}) for row in c.rows}
    for label, folder in every.items():
        (alone,) = reproduce.comparisons(table, "small", column, {}, [label])
        assert ([row.label for row in alone.rows], alone.folder) == ([label], folder)


def test_seconds_stand_beside_their_ratio_to_the_first_row() -> None:
    table = COMPARED["fedcka-table4"]
    first, *_, last = table.rows
    assert reproduce._printed(table, first) == {
        "7 layers (CIFAR-10)": "54.82", "50 layers (Tiny-ImageNet)": "638.79"
    }  # fmt: skip
    assert reproduce._printed(table, last) == {
        "7 layers (CIFAR-10)": "104.17 (1.90×)", "50 layers (Tiny-ImageNet)": "750.97 (1.18×)"
    }  # fmt: skip
    summaries = [{"rounds": 4, "seconds": {"train": 10.0, "total": 12.0, "evaluate": 2.0}}]
    assert reproduce._read(summaries, SECONDS) == [2.5]


def test_the_cost_counts_what_is_left_at_the_pace_of_each_method(tmp_path: Path) -> None:
    config = Config.checked({"methods": ["fedavg", "local", "fedper"], "rounds": 10, "seeds": 2})
    for run, seconds in (("fedavg-seed0", [2.0] * 10), ("local-seed0", [6.0, 8.0])):
        (tmp_path / run).mkdir()
        lines = [json.dumps({"round": at, "train": s, "save": 0.0}) for at, s in enumerate(seconds, start=1)]
        (tmp_path / run / "seconds.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "fedavg-seed0" / "summary.json").write_text("{}")
    cost = cost_of({tmp_path: config})
    assert (cost.runs, cost.rounds, cost.left_runs, cost.left_rounds) == (6, 60, 5, 48)
    assert cost.seconds == pytest.approx(10 * 2 + 18 * 7 + 20 * 34 / 12)  # fedper has no round: the mean of all
    assert cost_of({tmp_path / "new": config}).seconds is None
    assert cost_of({tmp_path: config}, anew=True) == cost_of({tmp_path / "new": config})


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
    part = kinfed.reproduce("a-table4", out=moved_to, quiet=True, rows="digits").read_text()
    assert f"| Baseline | {shown} |\n| digits | {speed} | 66 (5.03×) |\n" in part  # the first row is the measure
    assert "| by vote" not in part


@pytest.mark.slow
def test_rows_without_a_source_need_none(out: Path) -> None:
    assert (
        "| Baseline | >1 | 332 |"
        in kinfed.reproduce("a-table4", out=out, quiet=True, rows="Baseline", rounds=1, lr=1e-6).read_text()
    )
    assert not (out / "sources").exists()


def test_rounds_that_not_every_seed_has_are_a_bound() -> None:
    base, row, *_ = TO_TARGET.rows
    cell = lambda *seeds: reproduce._of_rounds({base.label: [40, 60], row.label: [*seeds]}, TO_TARGET, row, 60)  # noqa: E731
    assert cell(20, 30) == "25 ± 7.1 (2.00×)"
    assert cell(20, None) == ">40 (<1.25×)"
    assert cell(None, None) == ">60 (<0.83×)"
    lower = reproduce._of_rounds({base.label: [None], row.label: [30]}, TO_TARGET, row, 60)
    assert lower == "30 (>2.00×)"
