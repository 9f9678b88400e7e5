"""The test set of data without a split, and the clients that data define."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfed.data import as_dataset, from_arrays
from kinfed.data.holdout import draw_public_groups, draw_test_set, groups_by_client
from kinfed.errors import InputError
from kinfed.experiment.assemble import federation_of
from kinfed.experiment.config import Config
from tests.data.test_tables import ROLES, patients, written


def config(**given: Any) -> Config:
    return Config.checked({"methods": ("fedavg",), **given})


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 9)), min_size=2), st.floats(0.05, 0.6))
def test_no_group_is_on_both_sides_and_every_class_is_trained_on(samples: list[Any], share: float) -> None:
    labels, clients, groups = np.array(samples).T
    mask = groups_by_client(clients, labels, groups, 5, 2, np.random.default_rng(0))
    with contextlib.suppress(InputError):  # of too few groups
        mask = draw_test_set(labels, share, clients, groups)
        assert {*labels[mask]} <= {*labels[~mask]}
    assert not np.intersect1d(groups[mask], groups[~mask]).size
    assert {*clients} == {*clients[~mask]}


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=2), st.floats(0.05, 0.6))
def test_without_groups_the_share_is_that_of_each_client(samples: list[Any], share: float) -> None:
    labels, clients = np.array(samples).T
    own = np.bincount(clients)
    expected = np.clip(np.round(share * own), own > 1, np.maximum(own - 1, 0))
    mask = np.zeros(len(labels), dtype=bool)
    with contextlib.suppress(InputError):  # of too few samples
        mask = draw_test_set(labels, share, clients)
    drawn = np.bincount(clients[mask], minlength=len(own))
    assert {*labels[mask]} <= {*labels[~mask]}
    assert (drawn <= expected).all()
    if np.bincount(labels[mask], minlength=4)[np.unique(labels)].all():  # no class had to be kept for training
        assert (drawn == expected).all()


def test_classes_are_in_proportion_and_a_single_sample_is_trained_on() -> None:
    labels = np.repeat([0, 1, 2], [100, 50, 1])
    assert np.bincount(labels[draw_test_set(labels, 0.2)]).tolist() == [20, 10]
    mask = draw_test_set(labels, 0.3, groups=np.arange(151))
    assert np.bincount(labels[mask], minlength=3).tolist() == pytest.approx([30, 15, 0], abs=2)


def test_the_seed_of_a_run_does_not_change_the_test_set() -> None:
    x, y = np.arange(40.0)[:, None], np.arange(40) % 2
    sets = [as_dataset((x, y), seed, test_fraction=0.25)[0] for seed in (0, 1)]
    assert sets[0].test.inputs.tolist() == sets[1].test.inputs.tolist()  # type: ignore[union-attr]
    assert len(sets[0].test) == 10  # type: ignore[arg-type]


def test_the_clients_are_those_of_the_column_or_of_the_folders(tmp_path: Path) -> None:
    of_column = config(data=written(tmp_path, patients()), **ROLES, test_fraction=0.2)
    assert (of_column.partition, of_column.clients) == ("by:client", None)
    federation = federation_of(of_column)
    assert federation.partition.names == ("north", "south", "west")
    assert all(len(rows) for rows in federation.partition.test)
    few = federation_of(of_column.model_copy(update={"clients": 2}))
    assert len(few) == 2  # the largest number
    folder = tmp_path / "wards"
    for i in range(25):
        (folder / f"ward{i:02}").mkdir(parents=True)
        written(folder / f"ward{i:02}", patients(10), "train.csv")
    of_folders = config(data=str(folder), label="ill", group="patient", test_fraction=0.2, public=0)
    assert (of_folders.partition, of_folders.clients) == ("folders", None)
    assert len(federation_of(of_folders)) == 25
    assert (config(data=str(folder), partition="iid").clients, config().clients) == (20, 20)
    assert Config.checked(of_folders.model_dump()) == of_folders


def test_groups_on_both_sides_of_a_given_split_are_refused(tmp_path: Path) -> None:
    frame = patients()
    written(tmp_path, frame, "train.csv")
    written(tmp_path, frame[:4].assign(patient=[0, 1, 998, 999]), "test.csv")
    with pytest.raises(InputError, match=r"group: 2 groups are in the training set and in the test set, such as '0';"):
        federation_of(config(data=str(tmp_path), **ROLES))
    file = written(tmp_path, frame)
    with pytest.raises(InputError, match=r"group: \d+ groups are in the training set and in the test set"):
        federation_of(
            config(data=file, label="ill", group="patient", test_fraction=0.2, partition="dirichlet_clients", clients=3)
        )


def test_validation_takes_whole_groups_of_the_named_column(tmp_path: Path) -> None:
    asked = config(data=written(tmp_path, patients()), **ROLES, test_fraction=0.2, validation=0.25, public=0)
    federation = federation_of(asked)
    groups = federation.dataset.columns["group"][0]
    cuts = (np.concatenate(federation.partition.train), np.concatenate(federation.validation))
    assert not np.intersect1d(*(groups[rows] for rows in cuts)).size


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 9)), min_size=2),
    st.integers(0, 20),
    st.integers(0, 2**32 - 1),
)
def test_public_images_are_whole_groups(samples: list[Any], count: int, seed: int) -> None:
    labels, clients, groups = np.array(samples).T

    def drawn(count: int) -> Any:
        return draw_public_groups(labels, count, groups, clients, np.random.default_rng(seed))

    rows = drawn(count)
    rest = np.setdiff1d(np.arange(len(labels)), rows)
    assert len(rows) <= count
    assert not np.intersect1d(groups[rows], groups[rest]).size
    for values in (labels, clients):
        assert {*values[rest]} == {*values}
    assert drawn(len(rows)).tolist() == rows.tolist()  # the number that a run's config then has
    there, sizes = np.unique(groups[rest], return_counts=True)
    staying = {group for of in (labels, clients) for value in {*of} for group in groups[of == value]}
    assert all(size > count - len(rows) or group in staying for group, size in zip(there, sizes, strict=True))


def test_public_groups_are_as_balanced_as_single_samples_if_groups_have_one_class() -> None:
    labels = np.repeat([0, 1, 2], [300, 60, 60])
    rows = draw_public_groups(labels, 60, np.arange(420) // 2, np.zeros(420), np.random.default_rng(0))
    assert np.bincount(labels[rows]).tolist() == [20, 20, 20]


def test_images_of_a_patient_are_all_public_or_all_of_clients(tmp_path: Path) -> None:
    frame = patients().assign(patient=np.arange(120) // 7)
    federation = federation_of(config(data=written(tmp_path, frame), **ROLES, test_fraction=0.2, public=20))
    groups = federation.dataset.columns["group"][0]
    public, own = groups[federation.public_rows], groups[np.concatenate(federation.partition.train)]
    assert 7 <= len(public) <= 20
    assert not np.intersect1d(public, own).size
    with pytest.raises(InputError, match="public: 3 is not allowed; no group is small enough that may be public as a"):
        federation_of(config(data=written(tmp_path, frame), **ROLES, test_fraction=0.2, public=3))


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"label": "kind"}, "label: 'kind' would do nothing; 'digits' has a test set, and no columns"),
        ({"test_fraction": 0.2}, "test_fraction: 0.2 would do nothing; 'digits' has a test set"),
        ({"drop": "a,b"}, r"drop: \('a', 'b'\) would do nothing; 'digits'"),
        ({"standardise": False}, "standardise: False would do nothing; 'digits'"),
    ],
)
def test_options_that_would_do_nothing_are_refused(asked: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        federation_of(config(**asked))


def test_columns_of_a_dataset_can_be_named() -> None:
    x, y, ward = np.arange(12.0)[:, None], np.arange(12) % 2, np.repeat(["a", "b"], 6)
    made = from_arrays(x, y, x, y, columns={"ward": (ward, ward)})
    data, _ = as_dataset(made, 0, client="ward")
    assert data.columns["client"][0].tolist() == ward.tolist()  # type: ignore[union-attr]
    with pytest.raises(InputError, match=r"client: 'city' is not allowed; must be a column of .*: ward"):
        as_dataset(made, 0, client="city")
    with pytest.raises(InputError, match=r"label: 'ward' would do nothing; .* was given as a complete data set"):
        as_dataset(made, 0, label="ward")
    with pytest.raises(InputError, match=r"standardise: False would do nothing; .* was given as a complete data set"):
        as_dataset(made, 0, standardise=False)


def test_arrays_without_a_split_in_a_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x=np.arange(40.0)[:, None], y=np.arange(40) % 2)
    data, _ = as_dataset(tmp_path / "mine.npz", 0, test_fraction=0.25)
    assert (len(data.train), len(data.test)) == (30, 10)  # type: ignore[union-attr]
    with pytest.raises(InputError, match=r"drop: .* would do nothing; .* has no columns that are features"):
        as_dataset(tmp_path / "mine.npz", 0, test_fraction=0.25, drop=["x"])


def test_a_frame_is_no_pair_of_inputs_and_labels() -> None:
    frame = patients()[["pressure"]]
    with pytest.warns(UserWarning, match="a fifth of each class, are held out"):
        data, _ = as_dataset((frame, pd.DataFrame({"ill": np.arange(120) % 2})), 0)
    assert data.classes == ("0", "1")  # type: ignore[union-attr]
