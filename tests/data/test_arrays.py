from __future__ import annotations

import numpy as np
import pytest
import torch

from kinfed.data import Dataset, from_arrays
from kinfed.errors import InputError

RNG = np.random.default_rng(0)


def data(x: object, y: object = (0, 1, 0, 1), **more: object) -> Dataset:
    return from_arrays(x, y, x, y, **more)  # type: ignore[arg-type]


def images(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((4, 5, 6), None),
        ((4, 1, 5, 6), (0, 1, 2, 3)),
        ((4, 3, 5, 6), (0, 1, 2, 3)),
        ((4, 5, 6, 3), (0, 3, 1, 2)),
        ((4, 5, 6, 1), (0, 3, 1, 2)),
        ((4, 3, 5, 3), (0, 1, 2, 3)),  # both could be channels: the second dimension is
    ],
)
def test_where_the_channels_of_uint8_images_are(shape: tuple[int, ...], axes: tuple[int, ...] | None) -> None:
    x = images(*shape)
    expected = x[:, None] if axes is None else x.transpose(axes)
    for given in (x, torch.from_numpy(x)):
        inputs = data(given).train.inputs
        assert inputs.dtype == torch.uint8
        assert np.array_equal(inputs.numpy(), expected)


@pytest.mark.parametrize("shape", [(4, 5, 6), (4, 1, 5, 6)])
def test_images_are_standardised_by_the_training_set_and_copied(shape: tuple[int, ...]) -> None:  # case 52
    x = images(*shape)
    loaded = from_arrays(x, [0, 1, 0, 1], x[:2], [0, 1])
    expected = ((x[:2] - x.mean()) / x.std()).reshape(2, 1, 5, 6)
    x[:] = 0
    assert np.allclose(loaded.test.batch(slice(None)).numpy(), expected, atol=1e-5)


def test_a_constant_image_is_normalised_alike_in_both_splits() -> None:  # case 52
    x = np.concatenate([np.full((1, 2, 2), v, dtype=np.uint8) for v in (64, 192)])  # mean 128, deviation 64
    loaded = from_arrays(x, [0, 1], x[1:], [1])
    assert loaded.train.batch(slice(1, 2)).unique().tolist() == [1.0]
    assert loaded.test.batch(slice(None)).unique().tolist() == [1.0]


@pytest.mark.parametrize(
    "x",
    [
        RNG.normal(size=(4, 7)),  # a table
        RNG.normal(size=(4, 2, 50)).astype(np.float16),  # signals
        RNG.normal(size=(4, 2, 3, 4, 5)),
        RNG.integers(-900, 900, (4, 3)),
        images(4, 7),  # uint8 of two dimensions is a table, no image
    ],
    ids=["table", "signals", "volumes", "whole numbers", "bytes"],
)
def test_features_are_kept_as_they_are_in_float32(x: np.ndarray) -> None:
    loaded = data(x)
    assert loaded.train.inputs.dtype == torch.float32
    assert np.array_equal(loaded.train.inputs.numpy(), x.astype(np.float32))
    if x.ndim > 2:  # features n×p are standardised in batches
        assert np.array_equal(loaded.train.batch(slice(None)).numpy(), x.astype(np.float32))
    assert loaded.shape == x.shape[1:]


def test_features_may_be_torch_tensors_of_half_precision() -> None:
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
    assert torch.equal(data(x).train.inputs, x.detach().float())


@pytest.mark.parametrize(
    "labels",
    [
        [30, 10, 20, 10],
        (30, 10, 20, 10),
        np.array([30, 10, 20, 10], dtype=np.uint8),
        torch.tensor([30, 10, 20, 10]),
        np.array([[30], [10], [20], [10]]),  # as MedMNIST has them
        np.array([30.0, 10.0, 20.0, 10.0]),
    ],
    ids=["list", "tuple", "uint8", "torch", "n×1", "whole floats"],
)
def test_labels_of_any_container_are_numbered_in_sorted_order(labels: object) -> None:  # cases 44, 49
    loaded = data(images(4, 2, 2), labels)
    assert loaded.classes == ("10", "20", "30")
    assert loaded.train.labels.tolist() == [2, 0, 1, 0]  # type: ignore[union-attr]
    assert loaded.train.labels.dtype == torch.int64  # type: ignore[union-attr]


def test_numbers_are_sorted_by_value_and_text_alphabetically() -> None:
    x = images(3, 2, 2)
    assert data(x, [10, 9, -1]).classes == ("-1", "9", "10")
    assert data(x, ["10", "9", "b"]).classes == ("10", "9", "b")
    assert data(x, np.array(["ü", "a", "b"], dtype=object)).classes == ("a", "b", "ü")


def test_labels_1_to_10_are_remapped_and_never_out_of_range() -> None:  # case 49
    loaded = data(images(10, 2, 2), range(1, 11))
    assert loaded.train.labels.tolist() == list(range(10))  # type: ignore[union-attr]
    assert loaded.classes == tuple(str(k) for k in range(1, 11))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0.5, 1, 0, 1], "x_train: the label 0.5 is not allowed"),
        ([0, np.nan, 0, 1], "the label nan is not allowed"),
        ([0, np.inf, 0, 1], "the label inf is not allowed"),
        (np.zeros((4, 2), int), "the labels have the shape 4×2"),
        ([0, 1, 0], "has 4 inputs, but 3 labels"),
        (np.array([0, None, "a", 1], dtype=object), "labels of type object are not allowed"),
        (np.array([1j, 0, 0, 0]), "labels of type complex128"),
        (3, "has 4 inputs, but 1 labels"),
    ],
)
def test_labels_that_are_no_classes_are_refused(labels: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        data(images(4, 2, 2), labels)


def test_a_class_that_only_the_test_set_has_is_named() -> None:  # table of choices
    x = images(2, 2, 2)
    with pytest.raises(InputError, match=r"'mine'.* that the training set lacks: \[7\]; the training set has \[0, 1\]"):
        from_arrays(x, [0, 1], x, [1, 7], name="mine")
    with pytest.raises(InputError, match="numbers in both splits or text in both"):
        from_arrays(x, [0, 1], x, ["0", "1"])
    assert from_arrays(x, [0, 1], x[:1], [1]).classes == ("0", "1")  # the other way round is no error


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.array([[0.0], [1], [np.nan], [2]]), "x_train, row 2: a feature is not finite"),
        (np.array([[0.0], [1e300], [1], [2]]), "x_train, row 1: a feature is not finite"),
        (np.zeros(4), "float64 of shape 4 is not allowed; inputs must be numbers with two or more dimensions"),
        (np.array([["a"]] * 4), "inputs must be numbers"),
        (images(4, 5, 6, 4), "uint8 of shape 4×5×6×4 is not allowed; must be images"),
        (images(4, 5, 6, 7), "uint8 of shape 4×5×6×7 is not allowed; must be images"),
        ([[1.0], [1.0, 2.0], [1.0], [1.0]], "must all have the same shape"),
        (np.zeros((0, 3)), "has no images|has 0 inputs"),
    ],
)
def test_inputs_that_are_neither_images_nor_features_are_refused(x: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        data(x)


def test_train_and_test_must_have_one_form() -> None:
    y = [0, 1]
    with pytest.raises(InputError, match="different shapes: 3×4×4 and 3×4×5"):
        from_arrays(images(2, 3, 4, 4), y, images(2, 3, 4, 5), y)
    with pytest.raises(InputError, match="different shapes: 1×4×4 and 1×4×4 features"):
        from_arrays(images(2, 1, 4, 4), y, np.zeros((2, 1, 4, 4)), y)


def test_columns_come_along_and_must_fit() -> None:
    x = images(4, 2, 2)
    loaded = data(x, columns={"ward": (["a", "b", "a", "b"], np.array(["c", "b", "a", "a"]))})
    assert loaded.columns["ward"][0].tolist() == ["a", "b", "a", "b"]
    assert loaded.columns["ward"][1].tolist() == ["c", "b", "a", "a"]
    with pytest.raises(InputError, match="column 'ward' has 3 values for 4 test samples"):
        data(x, columns={"ward": (range(4), range(3))})
    with pytest.raises(InputError, match="column 'ward' must be numbers in both splits or text in both"):
        data(x, columns={"ward": (range(4), ["a", "b", "a", "b"])})


@pytest.mark.parametrize("kind", ["<u2", ">u2"])
@pytest.mark.parametrize("shape", [(6, 2, 2), (6, 1, 2, 2), (6, 2, 2, 3)])
def test_uint16_images_are_scaled_as_image_files_of_16_bits_are(kind: str, shape: tuple[int, ...]) -> None:  # case 339
    values = np.array([0, 128, 129, 257, 32768, 65535], dtype=kind).reshape(6, *[1] * (len(shape) - 1))
    loaded = data(np.broadcast_to(values, shape), [0, 1] * 3)
    assert loaded.train.inputs.dtype == torch.uint8
    assert loaded.train.inputs[:, 0, 0, 0].tolist() == [0, 0, 1, 1, 128, 255]
    assert loaded.shape == ((3 if shape[-1] == 3 else 1), 2, 2)
    assert loaded.train.batch(slice(None)).mean().item() == pytest.approx(0, abs=1e-6)


def test_uint16_images_of_12_bits_are_warned_of() -> None:
    x = np.array([0, 4095, 4095, 0], dtype=np.uint16).reshape(4, 1, 1)
    with pytest.warns(UserWarning, match="uint16 images have only values below 4096"):
        assert data(x).train.inputs.flatten().tolist() == [0, 16, 16, 0]


@pytest.mark.parametrize(
    "x",
    [
        images(4, 3, 5, 5).astype(np.float32),
        images(4, 5, 5, 1).astype(np.int64),
        images(4, 5, 5).astype(float),
        images(4, 5, 5).tolist(),
        RNG.normal(size=(4, 3, 5, 5)),
        np.full((4, 1, 2, 2), 1.5),
    ],
    ids=["bytes", "integers", "grey bytes", "lists", "standardised", "a little more"],
)
def test_images_as_floats_beyond_0_to_1_are_warned_of(x: object) -> None:  # case 339
    with pytest.warns(UserWarning, match=r"'arrays' has images with values from .* are used unchanged"):
        loaded = data(x)
    assert np.array_equal(loaded.train.inputs.numpy(), np.asarray(x, dtype=np.float32))


@pytest.mark.parametrize(
    "x", [RNG.random((4, 1, 5, 5)), RNG.random((4, 5, 5)), images(4, 5, 5) > 9, 300 * RNG.random((4, 9))]
)
def test_floats_between_0_and_1_and_tables_are_not_warned_of(x: np.ndarray) -> None:
    assert data(x).train.inputs.dtype == torch.float32


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array([2**63, 0, 0, 0], dtype=np.uint64), "the label 9223372036854775808 is not allowed"),
        ([1e300, 0, 0, 0], r"the label 1e\+300 is not allowed"),
        ([b"\xff", b"a", b"a", b"a"], "a label is not text"),
        (np.ma.array([0, 1, 0, 1], mask=[0, 0, 0, 1]), "an array has masked values"),
        (torch.zeros(4, device="meta"), "cannot be converted to an array"),
        (torch.eye(4).to_sparse(), "cannot be converted to an array"),
    ],
    ids=["unsigned", "large", "bytes", "masked", "meta", "sparse"],
)
def test_labels_of_odd_kinds_are_refused(labels: object, message: str) -> None:  # cases 339, 342
    with pytest.raises(InputError, match=message):
        data(images(4, 2, 2), labels)


def test_the_largest_label_is_one() -> None:
    assert data(images(2, 2, 2), np.array([2**63 - 1, 0], dtype=np.uint64)).classes == ("0", str(2**63 - 1))
    assert data(images(2, 2, 2), [b"a", b"\xc3\xbc"]).classes == ("a", "ü")


@pytest.mark.parametrize("shape", [(4, 0), (4, 3, 0, 5), (4, 0, 2)])
@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_samples_without_a_value_are_refused(shape: tuple[int, ...], kind: type) -> None:
    with pytest.raises(InputError, match="is not allowed; samples must have at least one value"):
        data(np.zeros(shape, dtype=kind))
