"""Data sets of Hugging Face's package ``datasets``, given as objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from kinfed.data import Dataset as KinfedDataset
from kinfed.data import as_dataset, load
from kinfed.errors import InputError
from tests.data.test_loading import encoded, grey


class Dataset:
    """As much of ``datasets.Dataset`` as is used: rows in the format of arrow."""

    __module__ = "datasets.arrow_dataset"

    def __init__(self, **columns: list[Any]) -> None:
        self.columns = columns

    def with_format(self, kind: str) -> Dataset:
        assert kind == "arrow"
        return self

    def __getitem__(self, rows: slice) -> pa.Table:
        return pa.table(self.columns)[rows]


class DatasetDict(dict[str, Dataset]):
    __module__ = "datasets.dataset_dict"

    def with_format(self, kind: str) -> None: ...


class IterableDataset(Dataset):
    __module__ = "datasets.iterable_dataset"


def rows(count: int, kind: type[Dataset] = Dataset) -> Dataset:
    images = [{"bytes": encoded(grey(i)), "path": None} for i in range(count)]
    return kind(image=images, label=[i % 2 for i in range(count)], site=["ab"[i % 2] for i in range(count)])


def given(data: Any) -> tuple[KinfedDataset, str]:
    dataset, path = as_dataset(data, 0)
    assert isinstance(dataset, KinfedDataset)
    assert path is not None
    return dataset, path


@pytest.mark.parametrize("test", ["test", "validation"])
def test_a_pair_and_a_dict_are_training_and_test_set(test: str) -> None:
    data, path = given((rows(6), rows(4)))
    assert (len(data.train), len(data.test), data.shape, data.classes) == (6, 4, (1, 8, 8), ("0", "1"))
    assert data.columns["site"][0].tolist() == [*"ababab"]
    assert given(DatasetDict({"train": rows(6), test: rows(4)}))[1] == path  # by content
    assert load(path).train.inputs.equal(data.train.inputs)  # as a resumed run finds it


def test_of_one_dataset_a_fifth_is_held_out() -> None:
    with pytest.warns(UserWarning, match="2 of the 10 samples, a fifth of each class, are held out as test set"):
        data, _ = given(rows(10))
    assert data.train.labels is not None
    assert (np.bincount(data.train.labels).tolist(), len(data.test)) == ([4, 4], 2)
    both = [*data.train.inputs[:, 0, 0, 0].tolist(), *data.test.inputs[:, 0, 0, 0].tolist()]
    assert sorted(both) == [*range(10)]


def test_images_that_are_only_named_are_read(tmp_path: Path) -> None:
    Image.fromarray(np.full((8, 8), 7, np.uint8)).save(tmp_path / "a.png")
    named = Dataset(image=[{"bytes": None, "path": str(tmp_path / "a.png")}] * 2, label=[0, 1])
    assert given((named, named))[0].train.inputs.unique().tolist() == [7]
    named.columns["image"][1] = {"bytes": None, "path": str(tmp_path / "b.png")}
    with pytest.raises(InputError, match="the Dataset cannot be read as a table"):
        given((named, named))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (DatasetDict(all=rows(2)), "^data: the DatasetDict has the splits all; must have train and test$"),
        (rows(2, IterableDataset), "^data: IterableDataset of datasets is not allowed; must be a Dataset or a Data"),
        ((Dataset(text=["a"]), Dataset(text=["b"])), "^label: must name the column of .* that has the labels; its col"),
    ],
)
def test_other_objects_are_refused_in_one_line(data: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        given(data)


def test_the_package_itself() -> None:
    datasets = pytest.importorskip("datasets")
    images = [Image.fromarray(np.full((8, 8), i, np.uint8)) for i in range(6)]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    made = datasets.Dataset.from_dict({"image": images, "label": [0, 1] * 3}, features=features)
    data, _ = given(datasets.DatasetDict(train=made, test=made))
    assert data.train.inputs[:, 0, 0, 0].tolist() == [*range(6)]
