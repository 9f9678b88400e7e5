"""Tables of plain features, against scikit-learn's pieces."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_breast_cancer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import kinfed
from kinfed.data import Dataset, as_dataset, from_arrays, load
from kinfed.data.cache import cache_folder
from kinfed.errors import InputError
from tests.test_cli import kinfed as command  # noqa: F401 - the fixture

ROLES: dict[str, Any] = {"label": "ill", "client": "ward", "group": "patient"}


def patients(rows: int = 120) -> pd.DataFrame:
    """A table with numbers, categories, booleans, missing values, and a number that says who is ill."""
    rng = np.random.default_rng(0)
    ill = rng.random(rows) < 0.4
    frame = pd.DataFrame({
        "ward": rng.choice(["north", "south", "west"], rows),
        "patient": np.arange(rows) // 2,
        "pressure": rng.normal(120, 20, rows) + 60 * ill,
        "age": rng.integers(20, 90, rows).astype(float),
        "blood": rng.choice(["A", "B", "AB", "0"], rows),
        "smoker": rng.random(rows) < 0.3,
        "ill": np.where(ill, "yes", "no"),
    })  # fmt: skip
    frame.loc[[3, 5, 8], "age"] = np.nan
    frame.loc[[1, 4], "blood"] = None
    return frame


def written(folder: Path, frame: pd.DataFrame, name: str = "patients.csv") -> str:
    frame.to_csv(folder / name, index=False, sep="\t" if name.endswith("tsv") else ",")
    return str(folder / name)


def rows_of(data: Dataset) -> tuple[np.ndarray, np.ndarray]:
    return tuple(split.batch(slice(None)).numpy() for split in (data.train, data.test))  # type: ignore[return-value]


def test_features_are_those_of_scikit_learn(tmp_path: Path) -> None:
    train, test = patients(), patients(60).iloc[::-1]
    written(tmp_path, train, "train.csv")
    written(tmp_path, test, "test.csv")
    data = load(tmp_path, **ROLES)
    numbers, categories = ["pressure", "age"], ["blood", "smoker"]
    theirs = ColumnTransformer([
        ("numbers", make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numbers),
        ("categories", make_pipeline(
            SimpleImputer(strategy="most_frequent", missing_values=None), OneHotEncoder(sparse_output=False)
        ), categories),
    ])  # fmt: skip
    text = [frame.astype(dict.fromkeys(categories, object)).replace({np.nan: None}) for frame in (train, test)]
    for frame, numeric in zip(text, (train, test), strict=True):
        frame[numbers] = numeric[numbers]
    expected = theirs.fit_transform(text[0]), theirs.transform(text[1])
    for own, other in zip(rows_of(data), expected, strict=True):
        assert np.allclose(own, other, atol=1e-5)
    assert data.encoding is not None
    assert data.encoding.names[:3] == ("pressure", "age", "blood=0")
    assert data.classes == ("no", "yes")
    assert data.features == {"numbers": 2, "categories": 2, "one_hot": 6}
    assert data.columns["client"][0].tolist() == train["ward"].tolist()
    assert data.columns["group"][1].tolist() == test["patient"].tolist()


def test_what_was_filled_in_left_out_or_unknown_is_said_by_column(tmp_path: Path) -> None:
    train, test = patients(), patients(20)
    train["nothing"], test["nothing"] = np.nan, 1.0
    train["constant"] = test["constant"] = 7
    test.loc[:2, "blood"] = "Bombay"
    written(tmp_path, train, "train.csv")
    written(tmp_path, test, "test.csv")
    usual = train["blood"].mode()[0]
    for _ in range(2):  # the second time from the cache
        data = load(tmp_path, **ROLES)
        assert data.remarks == (
            f"column 'age': 6 missing values became {train['age'].median():g}, the median of the training rows",
            f"column 'blood': 3 missing values became {usual!r}, the most frequent value of the training rows",
            "column 'blood': 3 test rows have a category that no training row has, such as 'Bombay'; it is 0 in all "
            "features",
            "column 'nothing' has no value in the training rows and is left out",
        )
        assert data.encoding is not None
        blood = [name.startswith("blood=") for name in data.encoding.names]
        assert rows_of(data)[1][:4, blood].sum(axis=1).tolist() == [0, 0, 0, 1]
        assert not rows_of(data)[0][:, data.encoding.names.index("constant")].any()


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.parquet"])
def test_a_file_without_a_split_is_cut_within_each_client(name: str, tmp_path: Path) -> None:
    frame = patients()
    path = written(tmp_path, frame, name)
    if name == "t.parquet":
        frame.to_parquet(path, index=False)
    data = load(path, **ROLES, test_fraction=0.25)
    assert len(data.train) + len(data.test) == len(frame)
    assert {*data.columns["client"][1]} == {"north", "south", "west"}
    assert not np.intersect1d(*data.columns["group"]).size
    assert data.shape == (8,)


def test_semicolons_separate_columns_too(tmp_path: Path) -> None:
    patients()[["pressure", "ill"]].to_csv(tmp_path / "t.csv", sep=";", index=False)
    assert load(tmp_path / "t.csv", label="ill", test_fraction=0.2).shape == (1,)


@pytest.mark.parametrize(
    ("column", "told"),
    [
        (
            [f"note {i}" for i in range(120)],
            r"'new' is free text, with (..) different values in \1 rows; leave it",
        ),
        (["2024-01-05"] * 120, "column 'new' has dates; leave it out with drop"),
        (["5.1.2024"] * 120, "column 'new' has dates"),
        (pd.date_range("2024-01-01", periods=120), "column 'new' has dates"),
        ([[1, 2]] * 120, r"column 'new' has neither numbers nor text \(mixed\)"),
        ([1e300, *range(119)], "column 'new' has a value that is not finite in float32"),
        ([np.inf, *range(119)], "column 'new' has a value that is not finite in float32"),
    ],
)
def test_columns_that_are_no_features_are_refused_by_name_and_can_be_dropped(column: Any, told: str) -> None:
    frame = patients().assign(new=column)
    with pytest.raises(InputError, match=told):
        as_dataset(frame, 0, **ROLES, test_fraction=0.2)
    data, _ = as_dataset(frame, 0, **ROLES, test_fraction=0.2, drop=["new"])
    assert isinstance(data, Dataset)
    assert data.shape == (8,)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "label: must name the column of .* that has the labels; its columns are ward, patient, pressure, age"),
        ({"label": "il"}, "label: 'il' is not known; allowed: ward, .*; did you mean ill?"),
        ({"label": "ill", "client": "city"}, "client: 'city' is not known"),
        ({"label": "ill", "drop": ["city"]}, "drop: 'city' is not known"),
        ({"label": "ill", "drop": ["ill"]}, "drop: 'ill' would do nothing; it has a role"),
        ({"label": "age"}, "label: column 'age' of .* has 3 missing values"),
        ({"label": "pressure"}, "the label 1.* is not allowed; must be a whole number or text"),
        ({"label": "ill", "client": "blood"}, "client: column 'blood' of .* has 2 missing values"),
        ({"label": "ill", "group": "pressure"}, "group: column 'pressure' of .* must have whole numbers, or text"),
        ({"label": "ill", "channels": 3}, "channels: 3 is not allowed; .* has features, not images"),
        ({"label": "ill", "test_fraction": 2}, "test_fraction: 2 is not allowed; must be between 0 and 1"),
        ({"label": "ill", "drop": [*patients().columns[:-1]]}, "has no column that is a feature"),
    ],
)
def test_wrong_roles_are_refused_in_one_line(given: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=told):
        load(written(tmp_path, patients()), **{"test_fraction": 0.2, **given})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"", "cannot be read as a table: No columns"),
        (b"a,label\n", "has no rows"),
        (b"a,b,label\n1,2,x\n1,2,3,4,5\n", "cannot be read as a table: .* Expected 3 fields in line 3, saw 5"),
        (b"a,label\n1,x,9\n2,y,9\n", "has rows with more values than the first line has names"),
        (b"a,label\n1,\xe9\n", "cannot be read as a table: 'utf-8' codec"),
        (b"a,b\n1,2\n", "label: must name the column"),
        (b"<b>\x1b[2J" + b"x" * 2000 + b",b\n1,2\n", r"label: must name the column of .*<b>\\x1b\[2J.* … "),
    ],
)
def test_broken_files_are_one_line(text: bytes, told: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(text)
    with pytest.raises(InputError, match=told) as error:
        load(tmp_path / "t.csv", test_fraction=0.2)
    assert str(error.value).isprintable()


def test_classes_may_be_whole_numbers_text_or_booleans() -> None:
    frame = patients()[["pressure", "ill"]]
    for labels, classes in (
        (frame["ill"] == "yes", ("False", "True")),
        ((frame["ill"] == "yes") + 1, ("1", "2")),
        ((frame["ill"] == "yes") * 1.0, ("0", "1")),
        (frame["ill"].astype("category"), ("no", "yes")),
        (frame["ill"].replace("no", "None"), ("None", "yes")),
    ):
        data, _ = as_dataset(frame.assign(ill=labels), 0, label="ill", test_fraction=0.2)
        assert isinstance(data, Dataset)
        assert data.classes == classes


def test_frames_are_read_as_the_same_table_in_a_file(tmp_path: Path) -> None:
    frame = patients()
    data, kept = as_dataset(frame, 0, **ROLES, test_fraction=0.2)
    assert isinstance(data, Dataset)
    assert all(map(np.array_equal, rows_of(data), rows_of(load(written(tmp_path, frame), **ROLES, test_fraction=0.2))))
    pair, both = as_dataset((frame, frame[:30]), 0, **ROLES)
    assert isinstance(pair, Dataset)
    assert (len(pair.train), len(pair.test)) == (120, 30)
    assert kept is not None
    assert Path(kept).parent == cache_folder() / "tables"
    assert as_dataset(frame.copy(), 0, **ROLES, test_fraction=0.2)[1] == kept != both
    Path(kept, "train.parquet").write_bytes(b"damaged")
    again, _ = as_dataset(frame, 0, **ROLES, test_fraction=0.2)
    assert isinstance(again, Dataset)
    assert all(map(np.array_equal, rows_of(data), rows_of(again)))
    with pytest.raises(InputError, match=r"test_fraction: 0.2 would do nothing; .* has a test set"):
        as_dataset((frame, frame[:30]), 0, **ROLES, test_fraction=0.2)


def test_one_table_per_client_is_a_federation(tmp_path: Path) -> None:
    for ward, rows in patients().drop(columns="patient").groupby("ward"):
        (tmp_path / str(ward)).mkdir()
        written(tmp_path / str(ward), rows.drop(columns="ward"), "train.csv")
    data = load(tmp_path, label="ill", test_fraction=0.2)
    assert {*data.columns["client"][0]} == {"north", "south", "west"}
    written(tmp_path / "north", patients().drop(columns=["ward", "patient"]), "test.csv")
    with pytest.raises(InputError, match="the client 'north' has a test split, but 'west' has none"):
        load(tmp_path, label="ill", test_fraction=0.2)


def test_features_from_arrays_are_standardised_unless_they_are_already() -> None:
    x, y = np.random.default_rng(0).normal(5, [1, 100, 0], (50, 3)), np.arange(50) % 2
    data = from_arrays(x, y, x[:10], y[:10])
    assert np.allclose(rows_of(data)[1], StandardScaler().fit(x).transform(x[:10]), atol=1e-5)
    raw = from_arrays(x, y, x[:10], y[:10], standardise=False)
    assert np.array_equal(rows_of(raw)[0], x.astype(np.float32))
    images = np.random.default_rng(0).random((50, 1, 4, 4))
    assert np.array_equal(rows_of(from_arrays(images, y, images, y))[0], images.astype(np.float32))
    with pytest.raises(InputError, match=r"standardise: False would do nothing; .* of shape 1×4×4, not features"):
        from_arrays(images, y, images, y, standardise=False)


def test_breast_cancer_is_learned_from_raw_features(tmp_path: Path) -> None:
    x, y = load_breast_cancer(return_X_y=True)
    given: dict[str, Any] = {"data": (x, y), "test_fraction": 0.25, "partition": "iid", "clients": 3, "rounds": 5}
    how: dict[str, Any] = {**given, "quiet": True, "ft_epochs": 0}
    result = kinfed.run("fedavg", out=tmp_path / "run", **how)
    raw = kinfed.run("fedavg", out=tmp_path / "raw", standardise=False, **how)
    accuracy, unscaled = (of.summaries[0]["metrics"]["global_acc"] for of in (result, raw))
    assert accuracy > 0.94
    assert unscaled < 0.85
    model = kinfed.load(tmp_path / "run")
    assert np.mean(np.array(model.predict(x)) == y.astype(str)) > 0.94


def test_a_table_from_beginning_to_end(tmp_path: Path) -> None:
    frame, path = patients(), written(tmp_path, patients())
    how: dict[str, Any] = {
        **ROLES,
        "data": path,
        "test_fraction": 0.2,
        "rounds": 8,
        "lr_schedule": "constant",
        "quiet": True,
    }
    result = kinfed.run("fedavg", out=tmp_path / "run", **how)
    assert {*result.frame()["name"]} == {"north", "south", "west"}
    assert result.summaries[0]["metrics"]["global_acc"] > 0.8
    model = kinfed.load(tmp_path / "run")
    assert np.mean(np.array(model.predict(frame)) == frame["ill"]) > 0.8
    shuffled = frame[["blood", "smoker", "age", "pressure"]]
    assert model.predict(shuffled) == model.predict(frame)
    with pytest.raises(InputError, match="the table has no column 'age'"):
        model.predict(frame.drop(columns="age"))
    kinfed.resume(tmp_path / "run", rounds=9, quiet=True)
    assert "column 'age': 3 missing values became" in html.unescape(result.report().read_text())
    kinfed.run("fedavg", out=tmp_path / "frame", **{**how, "data": frame})
    names = "metrics.jsonl", "federation.json"
    first, second = ([(tmp_path / run / name).read_text() for name in names] for run in ("run", "frame"))
    assert first[0].splitlines()[:7] == second[0].splitlines()[:7]
    assert first[1] == second[1]


def test_the_command_says_what_was_found(command: Any, tmp_path: Path) -> None:  # noqa: F811
    path = written(tmp_path, patients())
    roles = ("--label", "ill", "--client", "ward", "--group", "patient", "--test-fraction", "0.2")
    code, out, _ = command("partition", "--data", path, *roles, "--public", "0", "--out", str(tmp_path / "out"))
    told = " ".join(out.split()).replace("- ", "-")
    assert code == 0
    assert "patients.csv,partitionby:client,seed0:" in "".join(out.split())
    features = "8 features (2 numbers and 6 one-hot features of 2 columns)"
    assert f"found: 120 samples, {features}, 2 classes, 3 clients, 60 groups" in told
    assert "over 3 clients" in told
    assert "warning: column 'age': 3 missing values became" in told
    code, _, error = command("run", "fedavg", "--data", path, *roles, "--partition", "iid")
    assert (code, error) == (
        2,
        "kinfed: client: 'ward' would do nothing; it is of partition by:client, which is the default with it\n",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,label,label\n1,0,0\n2,1,1\n", "has two columns 'label'"),
        ("a,b,a,label\n1,2,1,0\n2,2,1,1\n", "has two columns 'a'"),
        (",a,label\n" + "0,1,0\n1,2,1\n" * 4, "column 'Unnamed: 0' had no name in the file"),
        ("a;b;label\n" + "1;2,5;0\n1;3;1\n" * 4, "column 'b' has numbers with a decimal comma; must be a point"),
        (f"a,label\n{'x' * 300},0\n" + "y,0\nz,1\n" * 4, "column 'a' has a text of more than 256 characters"),
        ("a,label\n" + "1,0\n" * 8, "has one class in the training set, '0'; must have two or more"),
    ],
)
def test_what_would_be_read_wrongly_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "mine.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        load(tmp_path / "mine.csv", test_fraction=0.25)


def test_numbers_with_text_among_them_are_told(tmp_path: Path) -> None:
    rows = [f"{'?' if i % 7 == 0 else i % 5},{i},{i % 2}" for i in range(40)]
    (tmp_path / "mine.csv").write_text("\n".join(["stage,a,label", *rows]))
    told = load(tmp_path / "mine.csv", test_fraction=0.2).remarks
    assert told == ("column 'stage' has numbers, but also text such as '?', so that its values are categories",)


def test_groups_are_kept_if_only_some_files_have_numbers(tmp_path: Path) -> None:
    for client, start in (("north", ""), ("south", "P")):
        rows = [f"{i},{start}{i // 4},{i % 2}" for i in range(40)]
        (tmp_path / client).mkdir()
        (tmp_path / client / "train.csv").write_text("\n".join(["a,patient,label", *rows]))
    train, test = load(tmp_path, group="patient", test_fraction=0.2).columns["group"]
    assert {*train} | {*test} == {f"{start}{i}" for start in ("", "P") for i in range(10)}
    assert not {*train} & {*test}


def test_a_test_table_that_lacks_a_column_is_told(tmp_path: Path) -> None:
    written(tmp_path, patients(), "train.csv")
    written(tmp_path, patients(60).drop(columns="age"), "test.csv")
    with pytest.raises(InputError, match="the table has no column 'age', which the training rows have"):
        load(tmp_path, **ROLES)
    with pytest.raises(InputError, match="the table has no column 'age', which the training rows have"):
        as_dataset((patients(), patients(60).drop(columns="age")), 0, **ROLES)
