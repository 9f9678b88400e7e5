from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from kinfed.data import load, loading, names
from kinfed.data.formats.hub import HUB
from kinfed.errors import InputError
from tests.data.test_loading import encoded, grey, write


class Table:
    """As much of ``datasets.Dataset`` as is used: rows in the format of arrow."""

    def __init__(self, **columns: list[Any]) -> None:
        self.columns, self._fingerprint = columns, str(columns)

    def with_format(self, kind: str) -> Table:
        assert kind == "arrow"
        return self

    def __getitem__(self, rows: slice) -> pa.Table:
        return pa.table(self.columns)[rows]


def split(*values: int, **names: str) -> Table:
    images = [{"bytes": encoded(grey(value)), "path": None} for value in values]
    return Table(**{names.get("image", "image"): images, names.get("label", "label"): [v % 2 for v in values]})


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str | None], Any]:
    """What the hub has, by data set and configuration; asking for anything else fails, and what was asked is noted."""
    content: dict[Any, Any] = {"asked": []}

    def load_dataset(repository: str, config: str | None) -> Any:
        content["asked"].append((repository, config))
        if (repository, config) not in content:
            raise ConnectionError(f"Couldn't reach '{repository}'\non the Hub")
        return content[repository, config]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset, __spec__=True))
    return content


def test_a_known_name_is_fetched_from_the_hub_once(hub: Any) -> None:
    hub["ufldl-stanford/svhn", "cropped_digits"] = {"train": split(1, 2, 3), "test": split(4, 5), "extra": split(9)}
    for _ in range(2):  # the second time from the cache
        data = load("svhn")
        assert data.name == "svhn"
        assert data.train.inputs[:, 0, 0, 0].tolist() == [1, 2, 3]
        assert data.test.inputs[:, 0, 0, 0].tolist() == [4, 5]
        assert data.train.labels.tolist() == [1, 0, 1]  # type: ignore[union-attr]
    assert hub["asked"] == [("ufldl-stanford/svhn", "cropped_digits")]
    assert load("svhn", channels=3).shape == (3, 8, 8)
    assert load("hub:ufldl-stanford/svhn/cropped_digits").name == "hub:ufldl-stanford/svhn/cropped_digits"


@pytest.mark.parametrize("test", ["test", "val", "valid", "validation"])
def test_the_test_split_may_have_another_name(hub: Any, test: str) -> None:
    hub["me/mine", None] = {"train": split(1, 2), test: split(3)}
    assert load("hub:me/mine").test.inputs[:, 0, 0, 0].tolist() == [3]


@pytest.mark.parametrize("names", [{"image": "img"}, {"label": "fine_label"}, {"label": "labels"}])
def test_columns_may_have_the_other_names_of_the_hub(hub: Any, names: dict[str, str]) -> None:
    hub["me/mine", None] = {"train": split(1, 2, **names), "test": split(3, **names)}
    assert len(load("hub:me/mine").train) == 2


def test_kinfed_data_comes_before_the_hub(hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("train", "test"):
        write(tmp_path / "mnist", name, [grey(1), grey(2)], [0, 1])
    monkeypatch.setenv("KINFED_DATA", str(tmp_path))
    assert len(load("mnist").train) == 2
    assert hub["asked"] == []
    assert names.known()["mnist"] == str(tmp_path / "mnist")
    assert names.known()["cifar10"].startswith("hub:uoft-cs/cifar10")


def test_a_folder_that_happens_to_have_a_known_name_is_not_taken_for_it(
    hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mnist").mkdir()  # results of somebody's experiment, say
    monkeypatch.chdir(tmp_path)
    hub["ylecun/mnist", None] = {"train": split(1, 2), "test": split(3)}
    assert len(load("mnist").train) == 2


def test_a_hub_that_does_not_answer_and_missing_splits_are_told_in_one_line(hub: Any) -> None:
    with pytest.raises(
        InputError, match=r"hub:ylecun/mnist cannot be loaded from the Hugging Face hub: Couldn't.*"
    ) as told:
        load("mnist")
    assert "\n" not in str(told.value)
    hub["me/mine", None] = {"train": split(1), "extra": split(2)}
    with pytest.raises(InputError, match="hub:me/mine has the splits train, extra; must have train and test"):
        load("hub:me/mine")


def test_images_of_the_hub_may_lie_where_it_puts_them_and_nowhere_else(
    hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # case 311
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    for file in (tmp_path / "hub" / "a.png", tmp_path / "outside.png"):
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(encoded(grey(7)))
        named = Table(image=[{"bytes": None, "path": str(file)}] * 2, label=[0, 1])
        hub["me/mine", file.stem] = {"train": named, "test": named}
    assert load("hub:me/mine/a").train.inputs.unique().tolist() == [7]
    with pytest.raises(InputError, match=r"hub:me/mine/outside, train, row 0 names the image .* which is outside"):
        load("hub:me/mine/outside")


def test_a_table_of_the_hub_that_cannot_be_read_is_told(hub: Any) -> None:
    broken = Table(image=[encoded(grey(1))], label=pa.array([b"\xff"]).view(pa.string()))  # type: ignore[arg-type]
    hub["me/mine", None] = {"train": broken, "test": broken}
    with pytest.raises(InputError, match=r"hub:me/mine cannot be read as a table: .*utf-8"):
        load("hub:me/mine")


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"needs the package datasets: pip install 'kinfed\[hub\]'"):
        load("mnist")


@pytest.mark.parametrize("name", ["hub:", "hub:mnist", "hub:a/b/c/d", "hub:a/b c", "hub:/b"])
def test_the_form_of_a_hub_name_is_checked(name: str) -> None:
    with pytest.raises(InputError, match="must have the form hub:OWNER/NAME or hub:OWNER/NAME/CONFIG"):
        loading.find(name)


def test_all_names_of_the_table_are_well_formed() -> None:
    names = "mnist, fashion_mnist, kmnist, emnist, usps, svhn, stl10, cifar10, cifar100, tiny_imagenet"
    assert ", ".join(HUB) == names
    for hub in HUB.values():
        assert type(hub).parse(str(hub)) == hub


def test_the_real_package_reads_what_it_would_download(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="the extra hub is not installed")
    for name in ("train", "test"):
        write(tmp_path / "mine", name, [grey(1), grey(2)], ["a", "b"])
    from kinfed.data.formats.hub import HubSet
    from kinfed.data.images import Decoding
    from kinfed.data.splits import assemble

    hub = HubSet(str(tmp_path / "mine"))  # a folder is to `datasets` what a repository is
    fetched = hub.fetch()
    assert assemble("mine", *fetched.read(), Decoding()).train.inputs[:, 0, 0, 0].tolist() == [1, 2]
    assert fetched.fingerprints() == hub.fetch().fingerprints()
    assert len({*fetched.fingerprints()}) == 2
