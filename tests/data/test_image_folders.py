"""Images in folders as they lie: without a split, one folder per client, with a table beside them, without labels."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kinfed.data import Dataset, as_dataset, load, make_federation
from kinfed.errors import InputError
from kinfed.experiment.config import Config


def draw(folder: Path, *names: str) -> None:
    """Write a grey image of 4×4 for each name; its first pixel is the number in the file's name."""
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.zeros((4, 4), dtype=np.uint8)
        pixels[0, 0] = int("".join(filter(str.isdigit, file.stem)))
        Image.fromarray(pixels).save(file)


def numbers(data: Dataset) -> tuple[list[int], list[int]]:
    """The numbers of the training and of the test images."""
    first, second = (sorted(split.inputs[:, 0, 0, 0].tolist()) for split in (data.train, data.test))
    return first, second


@pytest.fixture
def classes(tmp_path: Path) -> Path:
    """Ten cats and ten dogs, without a split."""
    draw(tmp_path, *(f"{'cat' if i < 10 else 'dog'}/{i}.png" for i in range(20)))
    return tmp_path


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    """Two sites with ten cats and five dogs each."""
    draw(tmp_path, *(f"{'north' if i < 15 else 'south'}/{'cat' if i % 3 else 'dog'}/{i}.png" for i in range(30)))
    return tmp_path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Twenty images in one folder, of five patients in two wards, and a table of them."""
    draw(tmp_path, *(f"{i}.png" for i in range(20)))
    rows = [f"{i}.png,{'cat' if i % 2 else 'dog'},{i // 10},p{i // 4}" for i in range(20)]
    (tmp_path / "metadata.csv").write_text("\n".join(["file_name,label,ward,patient", *rows]))
    return tmp_path


def test_a_fifth_of_each_class_is_held_out(classes: Path) -> None:
    data = load(classes, test_fraction=0.2)
    assert data.classes == ("cat", "dog")
    assert [np.bincount(split.labels).tolist() for split in (data.train, data.test)] == [[8, 8], [2, 2]]
    train, test = numbers(data)
    assert sorted(train + test) == [*range(20)]


def test_class_folders_without_a_split_need_a_test_fraction(classes: Path) -> None:
    with pytest.raises(
        InputError, match=r"has no test set; hold out .* test_fraction=0.2; or, .*: unlabelled:"
    ) as told:
        load(classes)
    assert "\n" not in str(told.value)


def test_a_fifth_of_each_class_of_each_client_is_held_out(sites: Path) -> None:
    data = load(sites, test_fraction=0.2)
    train, test = data.columns["client"]
    assert data.classes == ("cat", "dog")
    assert {name: (train == name).sum() for name in ("north", "south")} == {"north": 12, "south": 12}
    assert {name: (test == name).sum() for name in ("north", "south")} == {"north": 3, "south": 3}
    assert Config.checked({"methods": "fedavg", "data": str(sites), "test_fraction": 0.2}).partition == "folders"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            ["bird/eagle/40.png"],
            r"images at different depths, such as cat/\d+.png and bird/eagle/40.png; all must be NAME",
        ),
        (
            ["40.png"],
            r"images at different depths, such as 40.png and cat/\d+.png; all must be NAME, CLASS/NAME or CLIENT",
        ),
    ],
)
def test_a_mixture_of_depths_is_refused(classes: Path, more: list[str], message: str) -> None:
    draw(classes, *more)
    with pytest.raises(InputError, match=message):
        load(classes, test_fraction=0.2)


def test_a_client_without_a_split_beside_one_with_a_split_is_refused(tmp_path: Path) -> None:
    draw(tmp_path, "north/cat/1.png", "north/dog/2.png", "south/train/cat/3.png", "south/test/dog/4.png")
    with pytest.raises(InputError, match="the client 'south' has a test split, but 'north' has none"):
        load(tmp_path, test_fraction=0.2)


def test_a_table_gives_labels_clients_and_groups_to_images_in_one_folder(table: Path) -> None:
    data = load(table, client="ward", group="patient", test_fraction=0.3)
    assert data.classes == ("cat", "dog")
    assert data.train.labels.tolist() == [pixel % 2 == 0 for pixel in data.train.inputs[:, 0, 0, 0]]
    for split, samples in enumerate((data.train, data.test)):
        first = samples.inputs[:, 0, 0, 0].numpy()
        assert data.columns["client"][split].tolist() == (first // 10).tolist()
        assert data.columns["group"][split].tolist() == [f"p{of // 4}" for of in first]
    assert not {*data.columns["group"][0]} & {*data.columns["group"][1]}
    federation = make_federation(data, "by:client", clients=9, seed=0, public=0)
    assert federation.partition.names == ("0", "1")


def test_another_column_can_be_the_label(table: Path) -> None:
    data = load(table, label="patient", test_fraction=0.25)
    assert data.classes == ("p0", "p1", "p2", "p3", "p4")
    with pytest.raises(InputError, match=r"label.*'diagnosis' is not allowed; must be a column of"):
        load(table, label="diagnosis", test_fraction=0.25)


def test_the_folder_is_the_label_unless_a_column_is(sites: Path) -> None:
    rows = [f"{'north' if i < 15 else 'south'}/{'cat' if i % 3 else 'dog'}/{i}.png,p{i // 2}" for i in range(30)]
    (sites / "metadata.csv").write_text("\n".join(["file_name,patient", *rows]))
    data = load(sites, group="patient", test_fraction=0.2)
    assert data.classes == ("cat", "dog")
    assert data.left_out == ()
    assert not {*data.columns["group"][0]} & {*data.columns["group"][1]}
    rows = [f"{row},{'old' if i % 2 else 'young'}" for i, row in enumerate(rows)]
    (sites / "metadata.csv").write_text("\n".join(["file_name,patient,label", *rows]))
    assert load(sites, test_fraction=0.2).classes == ("old", "young")


def test_each_split_can_have_its_own_table(tmp_path: Path) -> None:
    draw(tmp_path, "train/1.png", "train/2.png", "test/images/3.png")
    (tmp_path / "train" / "metadata.csv").write_text("file_name,label,age\n1.png,cat,7\n2.png,dog,8\n")
    (tmp_path / "test" / "metadata.csv").write_text("file_name,label,age\nimages/3.png,dog,9\n")
    data = load(tmp_path)
    assert (data.classes, data.test.labels.tolist()) == (("cat", "dog"), [1])
    assert [values.tolist() for values in data.columns["age"]] == [[7, 8], [9]]
    assert data.left_out == ()


def test_rows_without_an_image_and_images_without_a_row_are_told(table: Path) -> None:
    draw(table, "20.png", "21.png")
    with (table / "metadata.csv").open("a") as file:
        file.write("\n30.png,cat,1,p9\n")
    data = load(table, test_fraction=0.2)
    assert len(data.train) + len(data.test) == 20
    assert data.left_out == (
        "20.png (no row in metadata.csv)",
        "21.png (no row in metadata.csv)",
        "30.png (no image, a row of metadata.csv)",
    )


@pytest.mark.parametrize("path", ["../secret.png", "a/../../secret.png", "/etc/secret.png", ".", ""])
def test_a_table_names_no_file_outside_of_its_folder(tmp_path: Path, path: str) -> None:
    draw(tmp_path / "data", "1.png", "2.png")
    draw(tmp_path, "secret3.png")
    (tmp_path / "data" / "metadata.csv").write_text(f"file_name,label\n1.png,cat\n{path},dog\n")
    with pytest.raises(InputError, match=r"metadata.csv, row 1: .* is not allowed; must be the path of a file from"):
        load(tmp_path / "data", test_fraction=0.5)


def test_a_link_out_of_the_folder_is_no_image_of_a_row(tmp_path: Path) -> None:
    draw(tmp_path, "secret3.png")
    draw(tmp_path / "data", *(f"{i}.png" for i in range(8)))
    os.symlink(tmp_path / "secret3.png", tmp_path / "data" / "link.png")
    rows = [*(f"{i}.png,{'cat' if i % 2 else 'dog'}" for i in range(8)), "link.png,cat"]
    (tmp_path / "data" / "metadata.csv").write_text("\n".join(["file_name,label", *rows]))
    data = load(tmp_path / "data", test_fraction=0.25)
    assert len(data.train) + len(data.test) == 8
    assert data.left_out == (
        "link.png (a link out, upwards, or to what is there already)",
        "link.png (no image, a row of metadata.csv)",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,label\n1.png,cat\n", "has no column 'file_name'; it has 'name, label'"),
        ("file_name,label\n1.png,cat\n1.png,dog\n", "row 1: '1.png' is also in row 0"),
        ("file_name,label,label\n1.png,cat,dog\n", "has two columns 'label'"),
        ("file_name,label\n1.png,1,1\n", "has rows with more values than the first line has names"),
        ("file_name,label\n1.png\n", "label: column 'label' of .* has 1 missing values"),
        ("file_name,label\n1.png,1\n2.png,\n", "label: column 'label' of .* has 1 missing values"),
        ("file_name,label\n1.png,cat\n2.png,NA\n", "label: column 'label' of .* has 1 missing values"),
        ("", "cannot be read as a table"),
    ],
)
def test_a_broken_table_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    draw(tmp_path, "1.png", "2.png")
    (tmp_path / "metadata.csv").write_text(text)
    with pytest.raises(InputError, match=message) as told:
        load(tmp_path, test_fraction=0.5)
    assert "\n" not in str(told.value)


def test_images_in_one_folder_have_no_labels_and_are_dealt_at_random(tmp_path: Path) -> None:
    draw(tmp_path, *(f"{i}.png" for i in range(12)))
    data = load(tmp_path)
    assert (data.labelled, data.classes, len(data.train), len(data.test)) == (False, (), 12, 0)
    assert Config.checked({"methods": "fedsimsiam", "data": str(tmp_path)}).partition == "iid"
    federation = make_federation(data, "iid", clients=3, seed=0, public=3)
    assert [len(rows) for rows in federation.partition.train] == [3, 3, 3]
    assert federation.class_counts().shape == (3, 0)
    assert numbers(load(tmp_path)) == ([*range(12)], [])  # from the cache


def test_folders_of_images_without_labels_are_clients_if_one_says_so(tmp_path: Path) -> None:
    draw(tmp_path, "north/1.png", "north/deep/2.png", "south/3.png", "south/notes4.png")
    (tmp_path / "south" / "notes.txt").write_text("seen")
    data = load(f"unlabelled:{tmp_path}")
    assert data.columns["client"][0].tolist() == ["north", "north", "south", "south"]
    assert data.left_out == ("south/notes.txt",)
    assert Config.checked({"methods": "fedsimsiam", "data": f"unlabelled:{tmp_path}"}).partition == "folders"
    federation = make_federation(data, "folders", clients=9, seed=0, public=0)
    assert (federation.partition.names, federation.partition.pooled) == (("north", "south"), False)
    assert [len(rows) for rows in federation.partition.test] == [0, 0]


def test_both_readings_of_the_same_files_are_cached_apart(classes: Path) -> None:
    assert not load(f"unlabelled:{classes}").labelled
    assert load(classes, test_fraction=0.5).labelled
    assert not load(f"unlabelled:{classes}").labelled


def test_a_data_set_without_labels_can_be_given_from_python(tmp_path: Path) -> None:
    draw(tmp_path, *(f"{i}.png" for i in range(4)))
    _, path = as_dataset(load(tmp_path), seed=0)
    assert path is not None
    again = load(path)
    assert (again.labelled, numbers(again)) == (False, ([0, 1, 2, 3], []))
    assert Config.checked({"methods": "fedsimsiam", "data": path}).partition == "iid"


def test_images_without_labels_keep_the_columns_of_a_table(tmp_path: Path) -> None:
    draw(tmp_path, "1.png", "2.png", "3.png")
    (tmp_path / "metadata.csv").write_text("file_name,ward\n1.png,a\n2.png,b\n3.png,a\n")
    data = load(tmp_path, client="ward")
    assert data.columns["client"][0].tolist() == ["a", "b", "a"]
    assert make_federation(data, "by:ward", clients=9, seed=0, public=0).partition.names == ("a", "b")


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        (["1.png"], {"test_fraction": 0.2}, "test_fraction: 0.2 would do nothing; .* has no labels"),
        (["a/1.png", "2.png"], {}, "2.png lies beside folders of images; all images must be in folders, or none"),
        (["train/a/1.png", "test/a/2.png"], {}, "has a folder train, but images without labels have no splits; give"),
        ([], {}, "has no data in the format unlabelled"),
    ],
)
def test_what_images_without_labels_cannot_be(
    tmp_path: Path, files: list[str], options: dict[str, float], message: str
) -> None:
    draw(tmp_path, *files)
    with pytest.raises(InputError, match=message):
        load(f"unlabelled:{tmp_path}", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("partition", ["shards", "dirichlet", "disjoint", "sort"])
def test_partitions_that_read_labels_are_refused_without_them(tmp_path: Path, partition: str) -> None:
    draw(tmp_path, *(f"{i}.png" for i in range(12)))
    with pytest.raises(
        InputError, match=r"^partition: \w+ reads labels, and .* has none; iid, quantity, folders and by"
    ):
        make_federation(load(tmp_path), partition, clients=3, seed=0)


def test_named_clients_are_held_out(sites: Path) -> None:
    data = load(sites, test_fraction=0.2)
    federation = make_federation(data, "folders", clients=9, seed=0, public=0, hold_out=["south"])
    assert (federation.partition.names, federation.new_clients.names) == (("north",), ("south",))
    assert sorted(federation.train(1).inputs[:, 0, 0, 0].tolist())[0] >= 15


def test_further_clients_can_be_drawn_beside_named_ones(tmp_path: Path) -> None:
    draw(tmp_path, *(f"site{i % 5}/{'cat' if i < 20 else 'dog'}/{i}.png" for i in range(40)))
    data = load(tmp_path, test_fraction=0.2)
    for seed in range(3):
        made = make_federation(data, "folders", clients=9, seed=seed, public=0, new_clients=2, hold_out=["site3"])
        assert (len(made), len(made.new_clients)) == (2, 3)
        assert "site3" in made.new_clients.names


def test_clients_are_drawn_from_those_that_are_not_held_out(tmp_path: Path) -> None:
    draw(tmp_path, *(f"site{i % 5}/{'cat' if i < 20 else 'dog'}/{i}.png" for i in range(40)))
    data, drawn = load(tmp_path, test_fraction=0.2), set()
    for seed in range(8):
        made = make_federation(data, "by:client", clients=2, seed=seed, public=0, hold_out=["site3"])
        assert made.new_clients.names == ("site3",)
        assert len(made) == 2
        drawn |= {*made.partition.names}
    assert drawn == {"site0", "site1", "site2", "site4"}


@pytest.mark.parametrize(
    ("partition", "names", "message"),
    [
        ("folders", ["east"], "hold_out: 'east' is not allowed; the names of the clients are north, south"),
        ("by:client", ["north", "south"], "hold_out: north, south is not allowed; no client is left that trains"),
        ("iid", ["north"], "hold_out: 'north' is not allowed; the names of the clients are none, only numbers"),
    ],
)
def test_clients_that_cannot_be_held_out(sites: Path, partition: str, names: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_federation(load(sites, test_fraction=0.2), partition, clients=2, seed=0, public=0, hold_out=names)


def test_numbers_with_a_point_name_groups_in_a_table(table: Path) -> None:
    rows = [f"{i}.png,{'cat' if i % 2 else 'dog'},{i // 4}.0" for i in range(20)]
    (table / "metadata.csv").write_text("\n".join(["file_name,label,patient", *rows]))
    train, test = load(table, group="patient", test_fraction=0.2).columns["group"]
    assert {*train} | {*test} == {0, 1, 2, 3, 4}
    assert not {*train} & {*test}


def test_a_column_with_missing_values_is_no_group(table: Path) -> None:
    rows = [f"{i}.png,{'cat' if i % 2 else 'dog'},{f'p{i // 4}' if i else ''}" for i in range(20)]
    (table / "metadata.csv").write_text("\n".join(["file_name,label,patient", *rows]))
    with pytest.raises(InputError, match=r"group: 'patient' is not allowed; must be a column of .* missing values"):
        load(table, group="patient", test_fraction=0.2)
