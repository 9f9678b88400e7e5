"""What can be given for a data set from Python."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, IterableDataset, Subset, TensorDataset
from torch.utils.data import Dataset as TorchDataset

from kinfed.data import Dataset, as_dataset, from_arrays, load, make_federation, select_classes
from kinfed.errors import InputError
from tests.builders import dataset

X = np.arange(120, dtype=np.uint8).reshape(30, 2, 2)
Y = np.repeat(["cat", "dog", "emu"], [15, 10, 5])
NO_TEST_SET = (
    "data: no test set was given; 6 of the 30 samples, a fifth of each class, are held out as test set, drawn with seed"
)


class Images(TorchDataset[Any]):
    """Images of PIL or whatever is given, and their labels."""

    def __init__(self, inputs: Any, labels: Any) -> None:
        self.inputs, self.labels = inputs, labels

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, i: int) -> Any:
        return self.inputs[i], self.labels[i]


class Named(Images):
    """Samples as mappings from names, as many libraries have them."""

    def __getitem__(self, i: int) -> Any:
        return {"x": self.inputs[i], "y": self.labels[i]}


def given(data: Any, seed: int = 0) -> tuple[Dataset, str]:
    made, kept = as_dataset(data, seed)
    assert isinstance(made, Dataset)
    assert kept is not None
    return made, kept


def same(a: Dataset, b: Dataset) -> bool:
    splits = [(a.train, b.train), (a.test, b.test)]
    equal = [torch.equal(x.inputs, y.inputs) and torch.equal(x.labels, y.labels) for x, y in splits]  # type: ignore[arg-type]
    columns = [
        np.array_equal(x, y) for name in a.columns for x, y in zip(a.columns[name], b.columns[name], strict=True)
    ]
    return (
        all([*equal, *columns])
        and all(x.normalise == y.normalise for x, y in splits)
        and (a.name, a.classes, a.columns.keys()) == (b.name, b.classes, b.columns.keys())
    )


def test_a_name_or_a_path_is_loaded(tmp_path: Path) -> None:
    data, kept = given("digits")
    assert (data.name, kept) == ("digits", "digits")
    np.savez(tmp_path / "mine.npz", x_train=X, y_train=Y, x_test=X, y_test=Y)
    data, kept = given(tmp_path / "mine.npz")
    assert data.name == kept == str(tmp_path / "mine.npz")


def test_a_federation_stays_what_it_is() -> None:
    federation = make_federation(dataset(), "iid", clients=3, seed=0)
    assert as_dataset(federation, 0) == (federation, None)


def test_four_arrays_are_kept_and_found_again() -> None:
    data, kept = given((X, Y, X[:3], Y[:3]))
    assert data.classes == ("cat", "dog", "emu")
    assert len(data.test) == 3
    assert same(data, load(kept))
    assert given((torch.as_tensor(X), list(Y), X[:3], Y[:3]))[1] == kept  # by content


def test_two_arrays_are_split_class_by_class_by_the_seed() -> None:
    with pytest.warns(UserWarning, match=NO_TEST_SET):
        data, kept = given((X, Y))
    assert same(data, load(kept))
    assert (len(data.train), len(data.test)) == (24, 6)
    assert np.bincount(data.test.labels.numpy()).tolist() == [3, 2, 1]  # type: ignore[union-attr]
    rows = torch.cat([data.train.inputs, data.test.inputs]).flatten(1)[:, 0]
    assert sorted(rows.tolist()) == list(range(0, 120, 4))
    with pytest.warns(UserWarning, match="drawn with seed"):
        again = [given((X, Y), seed)[1] for seed in (0, 1)]
    assert again[0] == kept != again[1]


def test_a_dataset_is_kept_with_all_that_is_known_of_it() -> None:
    own = from_arrays(X, Y, X[:3], Y[:3], columns={"ward": (np.arange(30), np.arange(3))})
    for whole in (own, replace(dataset(), columns={"who": (np.array(["a"] * 240), np.array(["b"] * 120))})):
        data, kept = given(whole)
        assert same(replace(data, name=whole.name), whole)
        assert same(data, load(kept))
    zeros_and_ones = select_classes(load("digits"), ["0", "1"])
    assert load(given(zeros_and_ones)[1]).classes == zeros_and_ones.classes  # all ten of them
    with pytest.raises(InputError, match="channels, image_size and on_error would do nothing"):
        load(kept, channels=3)


def test_a_kept_data_set_that_is_damaged_is_not_used() -> None:
    kept = given(dataset())[1]
    (Path(kept) / "train_labels.npy").write_bytes(b"")
    with (
        pytest.raises(InputError, match=r"is damaged; give the data set again$"),
        pytest.warns(UserWarning, match="created again"),
    ):
        load(kept)
    assert given(dataset())[1] == kept
    assert len(load(kept).train) == 240


def test_tensors_of_torch_are_features() -> None:
    pair = tuple(TensorDataset(torch.rand(n, 5), torch.arange(n) % 2) for n in (20, 6))
    data, kept = given(pair)
    assert (data.shape, data.classes, len(data.train), len(data.test)) == ((5,), ("0", "1"), 20, 6)
    assert torch.equal(data.train.inputs, pair[0].tensors[0])
    assert same(data, load(kept))


def test_parts_and_sums_of_torch_datasets_are_data() -> None:
    whole = TensorDataset(torch.arange(20.0)[:, None], torch.arange(20) % 2)
    first, last = Subset(whole, range(12)), Subset(whole, range(12, 20))
    data, _ = given((ConcatDataset([first, first]), last))
    assert data.train.inputs[:, 0].tolist() == [*range(12), *range(12)]
    assert data.test.inputs[:, 0].tolist() == [*range(12, 20)]


def test_images_of_pil_are_pixels_and_grey_ones_among_them_get_three_channels() -> None:
    grey, colour = Image.new("L", (4, 3), 7), Image.new("RGB", (4, 3), (1, 2, 3))
    data, _ = given((Images([grey, colour], ["a", "b"]), Images([grey], ["a"])))
    assert data.shape == (3, 3, 4)
    assert data.train.inputs[:, :, 0, 0].tolist() == [[7, 7, 7], [1, 2, 3]]
    assert data.train.inputs.dtype == torch.uint8


@pytest.mark.usefixtures("global_generators")
def test_one_torch_dataset_is_split_and_its_random_transforms_follow_the_seed() -> None:
    class Noisy(Images):
        def __getitem__(self, i: int) -> Any:
            return torch.rand(3), self.labels[i]

    with pytest.warns(UserWarning, match=NO_TEST_SET):
        kept = [given(Noisy(range(30), list(Y)), seed)[1] for seed in (0, 0, 1)]
    assert kept[0] == kept[1] != kept[2]


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (3, "^data: 3 is not allowed; must be a name, a path, a Dataset, "),
        (None, "^data: None is not allowed; "),
        (X, r"^data: array\(.* is not allowed; "),
        ((X, Y, X), r"^data: \(.* is not allowed; "),
        ((X, None), r"^data: \(.* is not allowed; "),
        (("digits", "digits"), r"^data: \('digits', 'digits'\) is not allowed; "),
        ((X, Y[:7]), "^data: x has 30 samples, but y has 7 labels$"),
        ((X[:1], Y[:1]), "^data: 1 samples cannot be split"),
        ((X, np.linspace(0, 1, 30)), r"^data: y: the label 0\.03\S* is not allowed"),
        ((X, Y, X[:, :1], Y), "different shapes"),
        ((Images(X, Y), X), r"^data: \(.* is not allowed; "),
        (Endless(), "^data: Endless is not allowed; must be a torch Dataset with a length and indexing$"),
        (Images([], []), "^data: Images has no samples$"),
        (
            TensorDataset(torch.rand(3, 2)),
            r"^data: TensorDataset, sample 0: \(tensor.* must be a pair of input and label$",
        ),
        (
            Images(X, [[0, 1]] * 30),
            r"^data: Images, sample 0: the label \[0, 1\] is not allowed; must be one class; sev",
        ),
        (Images(X, torch.ones(30, 3)), r"^data: Images, sample 0: the label tensor\(.* labels per sample are not supp"),
        (Images(X, [[[0], [0, 1]]] * 30), "a label must be one class; several labels per sample are not supported"),
        (
            (X, np.eye(3)[np.arange(30) % 3]),
            "y: the labels have the shape 30×3; must be one class per sample, shape n; several",
        ),
        ((X[:2], [[0], [0, 1]]), "a label must be one class; several labels per sample are not supported"),
        (Named(X, Y), r"^data: Named, sample 0: \{'x': .* is not allowed; must be a pair of input and label$"),
        (
            Images([np.zeros((2, 2)), np.zeros((3, 3))], [0, 1]),
            "has inputs of different sizes, 2×2 and 3×3; use a transform",
        ),
        (
            (Images([object(), object()], [0, 1]), Images([object()], [0])),
            "object of shape 2×1 is not allowed; inputs must be",
        ),
        (
            replace(dataset(), train=dataset().train.without_labels()),
            "^data: 'digits' has samples without labels; all must",
        ),
    ],
)
def test_what_is_no_data_is_told_in_one_line(data: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as told:
        as_dataset(data, 0)
    assert len(str(told.value)) < 400
