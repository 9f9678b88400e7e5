"""Partitions by name, with their fields, and those that come from elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kinfed.data
from kinfed.data import (
    IID,
    PARTITIONS,
    ByColumn,
    Dirichlet,
    Disjoint,
    Folders,
    Partitioner,
    Quantity,
    Saved,
    Shards,
    load,
    make_federation,
    make_partition,
    partition_fields,
    save_rows,
)
from kinfed.data.partitions import as_partition, partition_options
from kinfed.errors import InputError
from kinfed.experiment.config import Config
from kinfed.experiment.configure import configure
from tests.builders import dataset, installed_package
from tests.data.test_partition import assert_cover, balanced, rng
from tests.data.test_partition_recipes import digest
from tests.test_cli import kinfed as command  # noqa: F401 - the fixture

SIZES = '''
"""One file outside of the package: sizes drawn from a log-normal distribution."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Gt
from kinfed.data import Partitioner


def log_normal(labels, clients, rng, sigma=1.0):
    shares = rng.lognormal(0.0, sigma, clients)
    ends = np.round(shares.cumsum() / shares.sum() * len(labels)).astype(int)
    return np.split(rng.permutation(len(labels)), ends[:-1])


@dataclass(frozen=True)
class LogNormal(Partitioner):
    """Sizes from a log-normal distribution.

    Attributes:
        sigma: Standard deviation of their logarithms.
    """

    options: ClassVar = {"alpha": "sigma"}

    sigma: Annotated[float, Gt(0)] = 1.0

    def rows(self, labels, clients, rng):
        return log_normal(labels, clients, rng, self.sigma)


number = 3
'''


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with a file ``own_sizes.py``, which is forgotten afterwards."""
    (tmp_path / "own_sizes.py").write_text(SIZES)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("own_sizes", None)


@pytest.fixture
def installed(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The same, as a package with an entry point."""
    points = "[kinfed.partitions]\nlog_normal = own_sizes:LogNormal\n"
    with installed_package(elsewhere, "own-sizes", "1.2", points, monkeypatch):
        yield


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("iid", IID()),
        ("shards", Shards(per_client=2)),
        ("dirichlet", Dirichlet(alpha=0.5)),
        ("disjoint", Disjoint(classes_per_client=None)),
        ("by:site", ByColumn("site")),
        ("by:a:b", ByColumn("a:b")),
        ("folders", Folders()),
    ],
)
def test_a_name_makes_an_object(name: str, made: Partitioner) -> None:
    assert make_partition(name) == as_partition(name) == as_partition(made) == made


def test_fields_are_given_by_name() -> None:
    assert make_partition("shards", {"per_client": 5}) == Shards(5)
    assert make_partition("quantity", {"alpha": "0.25"}) == Quantity(0.25)
    assert partition_fields("disjoint")["classes_per_client"][1] is None
    assert partition_fields("by:site") == {}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dirichlet(alpha=0), r"^Dirichlet\.alpha: 0 is not allowed; must be greater than 0$"),
        (lambda: Quantity(alpha=float("inf")), r"^Quantity\.alpha: inf is not allowed; must be a finite number$"),
        (lambda: Dirichlet(alpha=True), r"^Dirichlet\.alpha: True is not allowed; must not be true or false$"),
        (lambda: Shards(0), r"^Shards\.per_client: 0 is not allowed; must be greater than or equal to 1$"),
        (lambda: Disjoint(0), r"^Disjoint\.classes_per_client: 0 is not allowed; must be greater than or equal to 1$"),
        (lambda: Disjoint("some"), r"^Disjoint\.classes_per_client: 'some' is not allowed; must be a valid integer"),
        (lambda: Saved(Path("nowhere")), "^partition: 'nowhere' is no file; kinfed partition writes one$"),
        (
            lambda: make_partition("shards", {"alpha": 1}),
            "^partition: 'shards' has no field 'alpha'; it has per_client",
        ),
        (lambda: make_partition("shard"), r"^partition: 'shard' is not allowed; must be 'iid', .* or 'file:PATH'"),
        (lambda: make_partition("by"), r"^partition: 'by' is not allowed"),
        (lambda: make_partition("iid:"), r"^partition: 'iid:' is not allowed"),
        (lambda: make_partition("no.such:Thing"), r"^partition: 'no\.such:Thing' cannot be imported: No module"),
        (lambda: as_partition(3), "^partition: 3 is not allowed; a name, a Partitioner or a function is$"),
        (lambda: as_partition(lambda labels: []), "^partition: .* a function takes labels, clients and rng$"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_numbers_of_numpy_are_numbers() -> None:
    assert Shards(np.int64(3)) == Shards(3)  # type: ignore[arg-type]
    assert Dirichlet(np.float32(0.5)) == Dirichlet(0.5)  # type: ignore[arg-type]


def test_options_fill_fields_and_have_their_defaults() -> None:
    for name in PARTITIONS:
        own = {field.name: field.default for field in fields(PARTITIONS[name])}
        for option, field in PARTITIONS[name].options.items():
            assert Config.model_fields[option].default == own[field]
        assert kinfed.data.__getattr__(PARTITIONS[name].__name__) is PARTITIONS[name]


def test_the_help_names_every_partition() -> None:
    description = Config.model_fields["partition"].description or ""
    assert ", ".join(PARTITIONS) in description
    assert len(PARTITIONS) == 11


def test_names_of_the_package_and_its_modules_agree() -> None:
    named = [name for names in kinfed.data._MODULES.values() for name in names]
    assert sorted(named) == sorted(kinfed.data.__all__)
    assert all(hasattr(kinfed.data, name) for name in named)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        kinfed.data.__getattr__("nothing")


def test_the_probe_set_has_128_images_or_a_tenth() -> None:
    assert len(make_federation(load("digits"), "iid", clients=5, seed=0).public_rows) == 128
    assert len(make_federation(dataset(), IID(), clients=5, seed=0).public_rows) == 24


def test_saved_clients_must_be_those_that_are_asked_for(tmp_path: Path) -> None:
    fed = make_federation(dataset(), "dirichlet_clients", clients=6, public=24, seed=0, new_clients=2)
    save_rows(fed, tmp_path / "rows.json")
    saved = Saved(tmp_path / "rows.json")
    for name in (saved, f"file:{saved.path}"):
        again = make_federation(dataset(), name, clients=6, new_clients=2, seed=9)
        assert digest(again.partition) == digest(fed.partition)
    with pytest.raises(InputError, match=r"^clients: 5 is not allowed; '.*rows\.json' has 6$"):
        make_federation(dataset(), saved, clients=5, new_clients=2, seed=9)


# -- partitions of one's own ------------------------------------------------------------------------------------------


def halves(labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """The second client gets every class but the first one, and the first client some of the first class."""
    return [np.flatnonzero(labels == 0)[:5], np.flatnonzero(labels > 0)]


def test_a_function_shares_out_the_training_set_and_the_test_set_follows() -> None:
    train, test = balanced(4, 10), balanced(4, 6, 1)
    cut = as_partition(halves)(train, test, 2, rng())  # type: ignore[operator]
    assert [len(rows) for rows in cut.train] == [5, 30]
    assert np.bincount(test[cut.test[0]], minlength=4).tolist() == [6, 0, 0, 0]
    assert np.bincount(test[cut.test[1]], minlength=4).tolist() == [0, 6, 6, 6]
    fed = make_federation(dataset(), halves, clients=2, public=24, seed=0)
    assert set(fed.train(0).labels.tolist()) == {0}  # type: ignore[union-attr]
    assert not set(fed.public_rows) & set(np.concatenate(fed.partition.train))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[0]], "returns rows of 1 clients; there are 2$"),
        ([[0], [0]], "client 1 has a row twice, or one of another client's$"),
        ([[0, 0], [1]], "client 0 has a row twice"),
        ([[0], [99]], r"client 1 has rows beyond 0\.\.39$"),
        ([[0.5], [1]], "the rows of client 0 are no whole numbers$"),
        ([[0], [[1], [2]]], "the rows of client 1 are no whole numbers$"),
        (3, "must return the rows of each client"),
    ],
)
def test_rows_that_cannot_be_are_told(rows: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"^partition: .*{message}"):
        as_partition(lambda labels, clients, rng: rows)(balanced(4, 10), [0], 2, rng())  # type: ignore[operator]


def test_a_class_that_overrides_nothing_says_what_it_lacks() -> None:
    with pytest.raises(NotImplementedError, match="has none of the methods rows, __call__ and of_dataset"):
        Partitioner()(balanced(4, 10), [0], 2, rng())


@pytest.mark.parametrize("name", ["own_sizes:LogNormal", "own_sizes:log_normal"])
def test_a_partition_of_ones_own_file_goes_by_its_import_path(elsewhere: Path, name: str) -> None:
    labels = balanced(10, 100)
    cut = make_partition(name)(labels, balanced(10, 20, 1), 8, rng())  # type: ignore[operator]
    assert_cover(cut.train, 1000)
    assert_cover(cut.test, 200)
    sizes = np.array([len(rows) for rows in cut.train])
    assert sizes.max() > 2 * sizes.min()
    assert np.abs(np.array([len(rows) for rows in cut.test]) - sizes / 5).max() <= 10  # rounded class by class


def test_its_fields_are_checked_and_filled_from_options(elsewhere: Path) -> None:
    assert partition_options("own_sizes:LogNormal") == {"alpha": "sigma"}
    assert make_partition("own_sizes:LogNormal", {"sigma": 0.1}).sigma == 0.1  # type: ignore[union-attr]
    with pytest.raises(InputError, match=r"^LogNormal\.sigma: -1 is not allowed; must be greater than 0"):
        make_partition("own_sizes:LogNormal", {"sigma": -1})
    with pytest.raises(InputError, match="partition: 'own_sizes:log_normal' has no field 'sigma'; it has none"):
        make_partition("own_sizes:log_normal", {"sigma": 1})
    with pytest.raises(InputError, match="'own_sizes:number' is neither a class nor a function"):
        make_partition("own_sizes:number")
    config = configure({"methods": "local", "partition": "own_sizes:LogNormal", "alpha": 0.3})
    assert config.alpha == 0.3
    with pytest.raises(InputError, match=r"^alpha: 0\.3 would do nothing"):
        configure({"methods": "local", "partition": "own_sizes:log_normal", "alpha": 0.3})


def test_the_command_takes_it(command: Any, elsewhere: Path) -> None:  # noqa: F811
    code, out, err = command("partition", "--partition", "own_sizes:LogNormal", "--alpha", "0.3", "--out", "o")
    assert (code, err) == (0, "")
    assert "partition own_sizes:LogNormal (alpha 0.3), seed 0" in " ".join(out.split())


def test_an_installed_package_adds_a_name(installed: None) -> None:
    assert [*PARTITIONS][-1] == "log_normal"
    assert "own_sizes" not in sys.modules  # until it is used
    assert type(make_partition("log_normal", {"sigma": 2})).__name__ == "LogNormal"
    assert PARTITIONS.origin("log_normal") == "own-sizes 1.2"
    with pytest.raises(InputError, match="'log_normal:3' is not allowed"):
        make_partition("log_normal:3")


def test_a_class_may_read_columns() -> None:
    class BySiteAndClass(Partitioner):
        def of_dataset(self, dataset: Any, rows: Any, clients: int, rng: Any) -> Any:
            train, test = dataset.columns["site"]
            return ByColumn("site")(train[rows] % 2, test % 2, clients, rng)

    data = replace(dataset(), columns={"site": (np.arange(240), np.arange(120))})
    assert len(make_federation(data, BySiteAndClass(), clients=4, public=0, seed=0)) == 2
