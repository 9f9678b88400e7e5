from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

import kinfed as package
from kinfed.data import IID, Federation, Partition, Samples, make_federation
from kinfed.data.heterogeneity import effective_classes, total_variation
from kinfed.data.samples import AS_THEY_ARE
from kinfed.experiment.assemble import federation_of
from kinfed.experiment.config import Config
from kinfed.report.folders import read_runs
from kinfed.report.partition import Holdings, client_table, save_holdings, summary_table
from kinfed.report.samples import BLANK, _row, has_images, save_samples
from tests.builders import dataset
from tests.test_cli import kinfed  # noqa: F401 - the fixture

Command = Any
MNIST = Path("/work/shared/data/mnist")


def told(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "partition.json").read_text()))


def test_skew_of_hand_made_clients() -> None:
    counts = np.array([[2, 2], [4, 0], [1, 3], [0, 0]])
    assert total_variation(counts, np.array([1, 1])) == pytest.approx([0, 0.5, 0.25, np.nan], nan_ok=True)
    entropy = 0.25 * np.log(4) + 0.75 * np.log(4 / 3)
    assert effective_classes(counts) == pytest.approx([2, 1, np.exp(entropy), np.nan], nan_ok=True)


def test_it_shows_who_gets_what_and_writes_it_down(kinfed: Command, tmp_path: Path) -> None:  # noqa: F811
    code, out, err = kinfed("partition", "--clients", "10", "--batch-size", "200", "--out", "o")
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    numbers = told(tmp_path / "o")
    federation = federation_of(Config.checked({"methods": ("local",), "clients": 10}))
    assert [client["counts"] for client in numbers["clients"]] == federation.class_counts().tolist()
    assert [client["test_samples"] for client in numbers["clients"]] == list(map(len, federation.partition.test))
    first = numbers["clients"][0]
    for shown in (
        "digits, partition shards (shards 2), seed 0: 1,272 training and 397 test samples",
        "128 set aside",
        f"{first['training_samples']}  ",
        "effective classes",
        "total variation",
        "warning: clients with fewer training samples than the batch size 200; they train on smaller batches: all 10",
    ):
        assert shown in " ".join(out.split()) or shown in out
    assert numbers["spread"]["classes"]["max"] == 2
    assert numbers["unused"] == 0
    with Image.open(tmp_path / "o" / "partition.png") as picture:
        assert picture.size[0] > 600
    assert out.rstrip().endswith("rows.json")


def test_new_clients_are_marked_and_more_than_forty_are_left_to_the_files(kinfed: Command, tmp_path: Path) -> None:  # noqa: F811
    arguments = ("--partition", "dirichlet_clients", "--alpha", "0.1", "--clients", "50", "--new-clients", "20")
    code, out, _ = kinfed("partition", *arguments, "--out", "o")
    assert code == 0
    assert "20 of them new clients, which do not train" in " ".join(out.split())
    assert "client  train" not in out
    clients = told(tmp_path / "o")["clients"]
    assert sum(client["new"] for client in clients) == 20
    assert clients[-1]["name"] == "new 19"


@pytest.mark.slow
def test_what_was_shown_is_what_is_run(kinfed: Command, tmp_path: Path) -> None:  # noqa: F811
    arguments = ("--partition", "dirichlet_clients", "--clients", "8", "--new-clients", "2", "--seed", "3")
    assert kinfed("partition", *arguments, "--out", "o")[0] == 0
    saved = ("--partition", "file:o/rows.json", "--clients", "8", "--new-clients", "2")
    for name, options in (("made", arguments), ("saved", (*saved, "--seed", "3"))):
        code, _, err = kinfed("run", "fedavg", *options, "--rounds", "2", "--out", name)
        assert code == 0, err
    made, again = (read_runs([tmp_path / name])[0] for name in ("made", "saved"))
    assert made.lines == again.lines
    assert made.federation == again.federation
    assert made.federation["new_clients"] == 2
    assert made.federation["unused"] == 0
    assert made.summary["data"]["clients"] == 6
    assert made.summary["data"]["new_clients"] == 2
    assert made.summary["data"]["alpha"] == 0.5
    # Samples were split locally: the one model is tested on what the clients are tested on, and on nothing else.
    metrics = made.summary["metrics"]
    assert metrics["global_acc"] == pytest.approx(metrics["personal_acc_weighted"])


def test_a_saved_partition_says_how_many_clients_there_are(kinfed: Command, tmp_path: Path) -> None:  # noqa: F811
    assert kinfed("partition", "--partition", "iid", "--clients", "7", "--out", "o")[0] == 0
    assert kinfed("partition", "--partition", "file:o/rows.json", "--out", "again")[0] == 0
    assert told(tmp_path / "o")["clients"] == told(tmp_path / "again")["clients"]
    assert len(told(tmp_path / "o")["clients"]) == 7


def test_a_shell_file_of_fields_can_be_looked_at(kinfed: Command, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "e.toml").write_text("methods = ['fedper']\npartition = 'disjoint'\nclients = 5\n[fedper]\n")
    code, out, _ = kinfed("partition", "--config", "e.toml", "--out", "o")
    assert code == 0
    assert "partition disjoint, seed 0" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--partition", "foo"], "partition: 'foo' is not allowed; must be 'iid', 'shards', 'dirichlet', "),
        (["--partition", "by:"], "partition: 'by:' is not allowed; must be"),
        (["--partition", "iid:3"], "partition: 'iid:3' is not allowed; must be"),
        (["--partition", "file:nowhere"], "partition: 'nowhere' is no file; kinfed partition writes one"),
        (["--partition", "by:writer_id"], "partition: 'by:writer_id' names no column of digits; it has none"),
        (["--partition", "folders"], "partition: 'folders' is not allowed; digits does not have a folder a client"),
        (["--partition", "dirichlet", "--alpha", "0"], "alpha: '0' is not allowed; must be greater than 0"),
        (
            ["--partition", "disjoint", "--classes-per-client", "11"],
            "20 clients share 10 classes equally if each has 1 to",
        ),
        (["--partition", "quantity", "--clients", "200"], "samples suffice for 127 clients, not for 200"),
        (["--clients", "5000"], "clients: 5000 is more than the 1272 training samples"),
        (["--new-clients", "20"], "new_clients: 20 is not allowed; must be less than the 20 clients"),
        (["--partition", "file:rows.json", "--clients", "20"], "clients: 20 is not allowed; 'rows.json' has 1"),
        (
            ["--partition", "file:rows.json", "--clients", "1", "--public", "9"],
            "public: 9 is not allowed; 'rows.json' has 0",
        ),
        (["--out", "."], "out: '.' exists; choose another folder"),
    ],
)
def test_wrong_input_gets_one_line(
    kinfed: Command,  # noqa: F811
    tmp_path: Path,
    arguments: list[str],
    message: str,
) -> None:
    rows = {"train_samples": 1400, "test_samples": 397, "clients": [{"train": [1], "test": [1]}]}
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    code, out, err = kinfed("partition", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert [path.name for path in tmp_path.iterdir()] == ["rows.json"]


@pytest.mark.parametrize("out", ["afile/x", "afile", "x" * 300, "dangling", "/proc/x", "dangling/x"])
def test_a_place_that_cannot_be_written_is_told(kinfed: Command, tmp_path: Path, out: str) -> None:  # noqa: F811 - case 314
    (tmp_path / "afile").write_text("mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    code, told, err = kinfed("partition", "--out", out)
    assert (code, told, err.count("\n")) == (2, "", 1)
    assert err.startswith("kinfed: out: ")
    assert {path.name for path in tmp_path.iterdir()} == {"afile", "dangling"}


def test_names_that_are_no_markup_and_no_formula_are_shown_as_they_are(tmp_path: Path) -> None:  # case 312
    names = (r"$\foo$", "[/b]", "from $5{ to $10", "\x1b[31m", "\udcff", "", "a\nb", "[bold]", "x", "y")
    data = replace(dataset(), classes=names, left_out=("train/\x1b[2J",))
    cut = Partition([np.arange(100), np.arange(100, 240)], [np.arange(60), np.arange(60, 120)], names=names[:2])
    federation = Federation(data, cut, np.arange(0))
    holdings = Holdings.of(federation, r"about $\bar$")
    console = Console(file=io.StringIO(), width=80)
    console.print(summary_table(holdings), client_table(holdings, terminal=False))
    assert r"classes $\foo$ … y" in console.file.getvalue()  # type: ignore[attr-defined]
    assert r"files left out of the data: 1 (train/\x1b[2J)" in holdings.warnings(1)
    paths = [*save_holdings(holdings, federation, tmp_path, 1)]
    assert [path.name for path in paths] == ["partition.json", "partition.png", "samples.png", "rows.json"]
    assert told(tmp_path)["classes"][:5] == [r"$\foo$", "[/b]", "from $5{ to $10", r"\x1b[31m", r"\udcff"]


def test_test_samples_of_classes_that_a_client_never_trains_on_are_counted(tmp_path: Path) -> None:  # case 329
    data = dataset()
    labels, test = (split.labels.numpy() for split in (data.train, data.test))  # type: ignore[union-attr]
    cut = Partition([np.flatnonzero(labels < 5), np.flatnonzero(labels >= 5)], [np.arange(60), np.arange(60, 120)])
    federation = Federation(data, cut, np.arange(0))
    holdings = Holdings.of(federation, "hand-made")
    expected = [int((test[:60] >= 5).sum()), int((test[60:] < 5).sum())]
    assert holdings.untrained().tolist() == expected
    assert holdings.warnings(1) == [
        f"clients with test samples of classes they never train on ({sum(expected)} of 120 test samples): all 2"
    ]
    assert [client["untrained_test_samples"] for client in holdings.json(1)["clients"]] == expected


def test_warnings_name_who_will_be_hurt() -> None:
    data = dataset()
    labels = data.train.labels.numpy()  # type: ignore[union-attr]
    zeros, rest = np.flatnonzero(labels == 0), np.flatnonzero(labels != 0)
    cut = Partition([zeros[:8], rest[:100], rest[100:150]], [np.arange(0), np.arange(60), np.arange(60, 120)])
    holdings = Holdings.of(Federation(data, cut, np.arange(0)), "hand-made")
    assert holdings.warnings(16) == [
        "clients without test samples; their accuracy is n/a: 1 of 3 (0)",
        "clients with samples of one class only; they learn nothing about the others: 1 of 3 (0)",
        "clients with fewer training samples than the batch size 16; they train on smaller batches: 1 of 3 (0)",
        "clients with test samples of classes they never train on (11 of 120 test samples): 2 of 3 (1, 2)",
        "samples that no client gets: 82",
    ]
    assert Holdings.of(make_federation(data, IID(), clients=3, public=0, seed=0), "").warnings(16) == []


@pytest.mark.slow
@pytest.mark.parametrize("partition", ["dirichlet_clients", "disjoint", "sort", "groups", "quantity"])
def test_methods_run_on_every_partition(partition: str, tmp_path: Path) -> None:
    result = package.compare(
        ["fedper", "central"],
        out=tmp_path / "out",
        clients=10,
        new_clients=2,
        rounds=1,
        partition=partition,
        quiet=True,
    )
    summaries = {summary["method"]: summary for summary in result.summaries}
    assert {summary["data"]["clients"] for summary in summaries.values()} == {8}
    assert all(0 < summary["metrics"]["personal_acc_weighted"] <= 1 for summary in summaries.values())
    assert f"({partition})" in " ".join(result.report().read_text().split())


@pytest.mark.skipif(not MNIST.is_dir(), reason="needs the data in /work/shared")
def test_the_writers_of_mnist() -> None:
    import pyarrow.parquet as pq

    from kinfed.data import ByColumn

    read = lambda split: pq.read_table(MNIST / f"{split}.parquet", columns=["writer_id"])["writer_id"].to_numpy()  # noqa: E731
    cut = ByColumn("writer_id")(read("train"), read("test"), 1000, np.random.default_rng(0))
    assert len(cut) == 539
    assert cut.pooled  # the 297 test writers are others
    assert sum(map(len, cut.train)) + sum(map(len, cut.test)) == 60_000
    assert min(map(len, cut.test)) >= 1


def test_images_of_each_client_and_class_are_shown(tmp_path: Path) -> None:
    grey = [np.full((2, 8, 8), value, np.uint8) for value in (40, 80, 120, 160)]
    images = np.concatenate(grey)  # two images of each of two classes, for each of two clients
    federation = Federation(
        package.data.from_arrays(images, [0, 0, 1, 1] * 2, images, [0, 0, 1, 1] * 2),
        Partition([np.arange(4), np.arange(4, 7)], [np.arange(4), np.arange(4, 8)], names=("north", "<b>$x^2$")),
        np.arange(0),
    )
    row = _row(federation.train(1), np.array([0, 1]), 3)
    middle = row[len(row) // 2, :, 0].tolist()
    runs = [value for value, before in zip(middle, [0, *middle], strict=False) if value != before]
    assert runs == [255, 120, BLANK, 255, 160, BLANK, 255]
    assert middle.count(120) == 2 * middle.count(160) == 64
    assert (_row(federation.train(1).without_labels(), np.array([0]), 4)[18, 2:-2, 0] != BLANK).sum() == 3 * 32
    save_samples(federation, ["north", "<b>$x^2$"], "two\nclients", tmp_path / "s.png")
    with Image.open(tmp_path / "s.png") as picture:
        assert {40, 80, 120, 160} < {*np.unique(np.asarray(picture.convert("L")))}


def test_features_have_no_picture_of_samples(kinfed: Command, tmp_path: Path) -> None:  # noqa: F811
    x, y = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 2
    np.savez(tmp_path / "table.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    assert kinfed("partition", "--data", "table.npz", "--partition", "iid", "--clients", "2", "--out", "o")[0] == 0
    assert not (tmp_path / "o" / "samples.png").exists()
    assert kinfed("partition", "--clients", "20", "--out", "p")[0] == 0
    with Image.open(tmp_path / "p" / "samples.png") as picture:
        assert picture.size[0] < 2000  # twelve clients and ten classes


@pytest.mark.parametrize(
    ("inputs", "images"),
    [
        (torch.zeros(2, 1, 8, 8, dtype=torch.uint8), True),
        (torch.rand(2, 3, 8, 8), True),
        (torch.rand(2, 3, 8, 8) + 1, False),
        (torch.rand(2, 2, 8, 8), False),
        (torch.rand(2, 8, 8), False),
    ],
)
def test_images_are_told_from_features(inputs: torch.Tensor, images: bool) -> None:
    assert has_images(Samples(inputs, None, AS_THEY_ARE)) == images
