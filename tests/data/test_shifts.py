"""Planted shifts: what is done to the samples of each group, who is in it, and who knows of it."""

from __future__ import annotations

import colorsys
import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import kinfed as package
from kinfed.data import (
    SHIFTS,
    DirichletClients,
    Federation,
    Partition,
    Samples,
    from_arrays,
    load,
    make_federation,
    open_rows,
    save_rows,
    with_shift,
    with_validation,
)
from kinfed.data.samples import labels_of
from kinfed.data.shifts import SATURATION, Shift, parse_shift
from kinfed.errors import InputError
from kinfed.experiment.config import Config
from kinfed.experiment.run import folder_of
from kinfed.report.figures import partition as partition_figure
from kinfed.report.folders import read_runs
from kinfed.report.rows import setting
from tests.builders import build_runtime, dataset, federation, run, same
from tests.test_cli import kinfed  # noqa: F401 - the fixture

Command = Any
SMALL: Any = {"clients": 4, "partition": "iid", "train_images": 200, "ft_epochs": 0, "rounds": 2, "quiet": True}


def parts(fed: Federation, client: int) -> tuple[Samples, Samples, Samples]:
    return fed.train(client), fed.test(client), fed.validate(client)


def both(shift: str, fed: Federation | None = None, seed: int = 0) -> Iterator[tuple[int, Samples, Samples]]:
    """The group, and samples before and after the shift: training, test and validation samples of every client."""
    before = fed or with_validation(federation(new=2), 0.2, seed=0)
    after = with_shift(before, shift, seed)
    assert len(after.groups) == len(before) + len(before.new_clients)
    for client, group in enumerate(after.groups):
        for was, now in zip(parts(before, client), parts(after, client), strict=True):
            yield group, was, now


def permutations(shift: str, fed: Federation, classes: int) -> list[tuple[int, ...]]:
    """The new name of each class in each group; everybody of a group has the same."""
    names: dict[int, dict[int, int]] = {}
    for group, was, now in both(shift, fed):
        assert torch.equal(now.inputs, was.inputs)
        for label, renamed in zip(labels_of(was).tolist(), labels_of(now).tolist(), strict=True):
            assert names.setdefault(group, {}).setdefault(label, renamed) == renamed
    return [tuple(names[group][label] for label in range(classes)) for group in sorted(names)]


def in_colour() -> Federation:
    whole = load("digits", channels=3)
    return federation(data=replace(whole, train=whole.train.take(range(240)), test=whole.test.take(range(120))))


@pytest.mark.parametrize("cut", ["separate", "local"])
def test_each_client_s_images_are_turned_by_its_group(cut: str) -> None:
    fed = None
    if cut == "local":
        made = make_federation(dataset(), DirichletClients(alpha=0.5), clients=5, seed=0, public=20, new_clients=1)
        fed = with_validation(made, 0.2, seed=0)
    seen = set()
    for group, was, now in both("rotate:4", fed):
        assert torch.equal(now.inputs, torch.rot90(was.inputs, group, (2, 3)))
        assert torch.equal(now.labels, was.labels)  # type: ignore[arg-type]
        seen.add(group)
    assert seen == {0, 1, 2, 3}


def test_each_group_has_a_permutation_of_the_labels_of_its_own() -> None:
    found = permutations("permute_labels:4", federation(clients=8), classes=10)
    assert found[0] == (*range(10),)
    assert all(sorted(permutation) == [*range(10)] for permutation in found)
    assert len({*found}) == 4
    # Who labels every image rightly is right in group 0, and elsewhere for the classes that keep their names.
    for group, was, now in both("permute_labels:4", federation(clients=8)):
        kept = np.isin(labels_of(was), [k for k in range(10) if found[group][k] == k])
        assert np.array_equal(labels_of(was) == labels_of(now), kept)
        assert kept.all() == (group == 0 or not len(kept))


def test_all_permutations_of_the_labels_can_be_drawn() -> None:
    data = from_arrays(np.zeros((60, 2)), np.arange(60) % 3, np.zeros((60, 2)), np.arange(60) % 3)
    fed = make_federation(data, "iid", clients=6, seed=0, public=0)
    assert {*permutations("permute_labels:6", fed, classes=3)} == {*itertools.permutations(range(3))}
    with pytest.raises(InputError, match="'permute_labels:7' is not allowed; 3 classes have 6 permutations"):
        with_shift(make_federation(data, "iid", clients=7, seed=0, public=0), "permute_labels:7", seed=0)


def test_each_group_but_the_first_has_a_strip_inverted() -> None:
    columns = {0: slice(0, 0), 1: slice(0, 2), 2: slice(2, 5), 3: slice(5, 8)}
    for group, was, now in both("invert:4"):
        expected = was.inputs.numpy().copy()
        expected[..., columns[group]] = 255 - expected[..., columns[group]]
        assert np.array_equal(now.inputs.numpy(), expected)
    whole = {group: torch.equal(now.inputs, 255 - was.inputs) for group, was, now in both("invert:2") if len(was)}
    assert whole == {0: False, 1: True}


def test_float_images_are_inverted_between_their_lowest_and_highest_value() -> None:
    data = dataset()
    halved = (replace(split, inputs=split.inputs / 255 - 0.5) for split in (data.train, data.test))
    fed = federation(data=replace(data, **dict(zip(("train", "test"), halved, strict=True))))
    for group, was, now in both("invert:2", fed):
        assert torch.equal(now.inputs, -was.inputs if group else was.inputs)


def test_each_group_has_a_tint() -> None:
    for group, was, now in both("colour:4", in_colour()):
        tint = np.array(colorsys.hsv_to_rgb(group / 4, SATURATION, 1)).reshape(3, 1, 1)
        assert np.abs(now.inputs.numpy() - was.inputs.numpy() * tint).max(initial=0) <= 0.5 + 1e-4
        assert now.inputs.dtype == torch.uint8


@pytest.mark.parametrize("shift", ["rotate:3", "permute_labels:3", "invert:3", "colour:3"])
def test_what_nobody_holds_stays_and_so_does_what_was_given(shift: str) -> None:
    assert parse_shift(shift).name in SHIFTS
    before = in_colour() if shift == "colour:3" else federation()
    fewer = replace(before, partition=Partition([r[:5] for r in before.partition.train],
                                                [r[:5] for r in before.partition.test]))  # fmt: skip
    data, copies = fewer.dataset, [t.clone() for t in (fewer.dataset.train.inputs, fewer.dataset.test.inputs)]
    after = with_shift(fewer, shift, seed=0)
    assert torch.equal(data.train.inputs, copies[0])
    assert torch.equal(data.test.inputs, copies[1])
    held = np.concatenate([*fewer.partition.train, fewer.public_rows]), np.concatenate(fewer.partition.test)
    for was, now, rows in zip((data.train, data.test), (after.dataset.train, after.dataset.test), held, strict=True):
        rest = np.setdiff1d(np.arange(len(was)), rows)
        assert torch.equal(now.inputs[rest], was.inputs[rest])
        assert torch.equal(now.labels[rest], was.labels[rest])  # type: ignore[index]
        assert now.normalise == was.normalise
    assert after.unused == fewer.unused > 0


def test_public_images_are_of_all_groups_in_equal_parts() -> None:
    plain = federation(clients=10)
    was = plain.public_images
    now = with_shift(plain, "rotate:4:1,2,3,4", seed=0).public_images
    assert was is not None and now is not None  # noqa: PT018
    turned = [[turns for turns in range(4) if torch.equal(b, torch.rot90(a, turns, (1, 2)))]
              for a, b in zip(was.inputs, now.inputs, strict=True)]  # fmt: skip
    assert Counter(turns for (turns,) in turned) == dict.fromkeys(range(4), 6)
    assert sorted(turned) != turned


@pytest.mark.parametrize(
    ("shift", "clients", "allowed"),
    [("rotate:4", 20, {5}), ("rotate:4", 10, {2, 3}), ("invert:7", 7, {1}), ("colour:3", 100, {33, 34})],
)
def test_equal_groups_differ_by_one_client_at_most(shift: str, clients: int, allowed: set[int]) -> None:
    made = parse_shift(shift)
    for seed in range(5):
        sizes = Counter(made.draw(clients, np.random.default_rng(seed)))
        assert {*sizes.values()} == allowed
        assert sizes.total() == clients


def test_sizes_are_in_proportion_to_the_given_numbers_and_their_rounding_is_drawn() -> None:
    made = Shift("rotate", 4, (1, 2, 3, 4))
    assert Counter(made.draw(20, np.random.default_rng(0))) == {0: 2, 1: 4, 2: 6, 3: 8}
    drawn = [Counter(made.draw(12, np.random.default_rng(seed))) for seed in range(400)]
    for group, exact in enumerate((1.2, 2.4, 3.6, 4.8)):
        assert {sizes[group] for sizes in drawn} == {int(exact), int(exact) + 1}
        assert abs(np.mean([sizes[group] for sizes in drawn]) - exact) < 0.1  # four standard errors
    assert {made.draw(1, np.random.default_rng(seed))[0] for seed in range(100)} == {0, 1, 2, 3}


def test_who_is_in_a_group_is_drawn_from_the_seed_alone() -> None:
    fed = federation(clients=12)
    drawn = [with_shift(fed, "rotate:4", seed).groups for seed in range(20)]
    assert len({*drawn}) == 20
    assert {groups[0] for groups in drawn} == {0, 1, 2, 3}
    assert with_shift(federation(clients=12, new=3), "permute_labels:4", 3).groups[:12] == drawn[3]


def test_a_saved_partition_has_the_same_groups(tmp_path: Path) -> None:
    fed = federation(new=2)
    save_rows(fed, tmp_path / "rows.json")
    one, other = (with_shift(f, "rotate:4", seed=1) for f in (fed, open_rows(dataset(), tmp_path / "rows.json")))
    assert one.groups == other.groups
    assert torch.equal(one.dataset.train.inputs, other.dataset.train.inputs)


def test_the_pooled_test_set_is_what_the_clients_are_tested_on(tmp_path: Path) -> None:
    plain = federation(new=2)
    fed = with_shift(replace(plain, partition=replace(plain.partition, test=[r[1:] for r in plain.partition.test])),
                     "rotate:4", seed=0)  # fmt: skip
    tested = fed.tested
    assert tested.size == sum(len(rows) for rows in fed.partition.test) < len(fed.dataset.test)
    for client in range(len(fed)):
        assert torch.equal(tested.samples.inputs[torch.from_numpy(tested.test[client])], fed.test(client).inputs)
    last = run(build_runtime("fedavg", fed, rounds=2), tmp_path / "out").lines[-1]
    assert last["global_acc"] == pytest.approx(last["personal_acc_weighted"])


def reached(thing: Any, seen: dict[int, Any]) -> dict[int, Any]:
    """All objects to which a thing leads by attributes, keys and entries."""
    if id(thing) not in seen:
        seen[id(thing)] = thing
        inside: list[Any] = []
        if isinstance(thing, Mapping):
            inside = [*thing.keys(), *thing.values()]
        elif isinstance(thing, list | tuple | set | frozenset):
            inside = [*thing]
        elif isinstance(thing, Tensor):
            inside = [thing.untyped_storage(), thing._base]
        inside += [getattr(thing, f.name) for f in dataclasses.fields(thing)] if dataclasses.is_dataclass(thing) else []
        inside += [*vars(thing).values()] if hasattr(thing, "__dict__") and not isinstance(thing, type) else []
        for part in inside:
            reached(part, seen)
    return seen


@pytest.mark.parametrize("method", ["fedavg", "fedshibu", "hetero_ssfl", "fedvote"])
def test_nothing_leads_from_a_client_or_the_server_to_the_groups(method: str) -> None:
    fed = with_shift(federation(new=1), "rotate:4", seed=0)
    runtime = build_runtime(method, fed, rounds=3)
    clients = [runtime.client(id, 1) for id in range(4)]
    assert any(thing is fed for thing in reached(runtime, {}).values())  # the search does find a federation
    whole = {split.inputs.untyped_storage().data_ptr() for split in fed.splits}
    for holder in (runtime.server(1), *clients, runtime.new_client(4, 1), runtime.method):
        found = reached(holder, {}).values()
        assert not [thing for thing in found if isinstance(thing, Federation)]
        assert not [thing for thing in found if thing is fed.groups or isinstance(thing, Shift)]
        assert not [
            thing for thing in found if isinstance(thing, Tensor) and thing.untyped_storage().data_ptr() in whole
        ]
        assert any(isinstance(thing, Tensor | nn.Module) for thing in found) or holder is runtime.method


@pytest.mark.parametrize("method", ["fedavg", "fedshibu", "central", "fedbyol"])
def test_without_the_truth_every_method_trains_the_same(method: str, tmp_path: Path) -> None:
    fed = with_shift(federation(), "rotate:4", seed=0)
    one, other = (run(build_runtime(method, f, rounds=2), tmp_path / n)
                  for n, f in (("a", fed), ("b", replace(fed, groups=()))))  # fmt: skip
    assert same(one.state, other.state)
    for line, without in zip(one.lines, other.lines, strict=True):
        assert line["train_loss"] == without["train_loss"]
        assert line["client_acc"].get("personal") == without["client_acc"].get("personal")


def test_a_federation_has_one_shift_and_a_group_for_each_client() -> None:
    fed = with_shift(federation(), "rotate:4", seed=0)
    assert with_shift(fed, None, seed=0) is fed
    assert fed.pooled().groups == ()
    with pytest.raises(InputError, match="'rotate:2' is not allowed; the federation already has a shift"):
        with_shift(fed, "rotate:2", seed=0)
    with pytest.raises(ValueError, match="there are 3 groups, but not one of each client and new client"):
        replace(fed, groups=fed.groups[:3])


@pytest.mark.parametrize(
    ("shift", "message"),
    [
        ("rotat:4", "shift: 'rotat' is not known; allowed: rotate, permute_labels, invert, colour; did you mean"),
        ("rotate", "shift: 'rotate' is not allowed; must have the form NAME:GROUPS or NAME:GROUPS:SIZES"),
        ("rotate:x", "must have the form NAME:GROUPS"),
        ("rotate:4:", "must have the form NAME:GROUPS"),
        ("rotate:-4", "must have the form NAME:GROUPS"),
        (f"rotate:{'9' * 5000}", "must have the form NAME:GROUPS"),
        ("rotate:1", "shift: 'rotate:1' is not allowed; must have 2 to 4 groups"),
        ("rotate:5", "shift: 'rotate:5' is not allowed; must have 2 to 4 groups"),
        ("invert:0", "shift: 'invert:0' is not allowed; must have 2 groups or more"),
        ("rotate:4:1,2,3", "shift: 'rotate:4:1,2,3' is not allowed; must have 4 sizes of 1 or more, one for each"),
        ("rotate:2:0,1", "must have 2 sizes of 1 or more"),
        ("colour:21", "its groups need 21 clients that train, or more, and there are 18"),
        ("rotate:2:1,40", "shift: 'rotate:2:1,40' is not allowed; its groups need 41 clients that train, or more"),
        ("permute_labels:999999999", "its groups need 999999999 clients"),
    ],
)  # fmt: skip
def test_a_shift_that_cannot_be_is_refused_before_anything_is_loaded(shift: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        Config.checked({"methods": ("fedavg",), "clients": 20, "new_clients": 2, "shift": shift})
    assert message in str(refused.value)


def test_what_does_not_suit_the_data_is_refused() -> None:
    wide, vectors = (
        federation(data=replace(dataset(), **{
            name: replace(split, inputs=change(split.inputs))
            for name, split in (("train", dataset().train), ("test", dataset().test))
        })) for change in (lambda images: images[:, :, 1:], lambda images: images.flatten(1).float())
    )  # fmt: skip
    for fed, shift, message in (
        (wide, "rotate:2", "'rotate:2' is not allowed; it needs square images, but the inputs have the shape 1×7×8"),
        (vectors, "rotate:2", "it needs square images, but the inputs have the shape 64"),
        (vectors, "invert:2", "it needs images of 1 columns or more, but the inputs have the shape 64"),
        (vectors, "colour:2", "it needs images of 3 channels"),
        (wide, "colour:2", "it needs images of 3 channels"),
        (wide, "rotate:4:1,1,1,2", "its groups need 5 clients that train, or more, and there are 4"),
    ):
        with pytest.raises(InputError, match=message):
            with_shift(fed, shift, seed=0)
    assert {*with_shift(vectors, "permute_labels:2", seed=0).groups} == {0, 1}
    with pytest.raises(InputError, match="it needs images of 9 columns or more"):
        with_shift(federation(clients=10), "invert:10", seed=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shift", "rotate:5"], "shift: 'rotate:5' is not allowed"),
        (["--shift", "colour:2"], "shift: 'colour:2' is not allowed; it needs images of 3 channels"),
    ],
)
def test_the_command_line_gets_one_line(kinfed: Command, arguments: list[str], message: str) -> None:  # noqa: F811
    code, out, err = kinfed("run", "fedavg", *arguments, "--out", "o")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_a_run_and_its_page_tell_the_groups(tmp_path: Path) -> None:
    fields = SMALL | {"clients": 6, "new_clients": 2, "validation": 0.2, "shift": "invert:3:1,1,2"}
    result = package.compare(["fedavg"], **fields, out=tmp_path / "out")
    path = result.path / "fedavg-seed0"
    about = json.loads((path / "federation.json").read_text())
    assert Counter(about["groups"]) == {0: 1, 1: 1, 2: 2}
    assert len(about["new_groups"]) == 2
    assert json.loads((path / "summary.json").read_text())["data"]["shift"] == "invert:3:1,1,2"
    (told, *_) = read_runs([result.path])
    assert "over 4 clients (IID, shift invert:3:1,1,2), 2 new clients held out" in setting([told])
    samples, groups = partition_figure(told).data
    assert [row[0] for row in groups.z] == [about["groups"][int(client)] for client in groups.y]
    assert list(groups.y) == list(samples.y)
    assert "the group of each client under the planted shift invert:3:1,1,2 (seed 0)" in result.report().read_text()
    (path / "federation.json").write_text(json.dumps(about | {"groups": about["groups"][:3]}))
    with pytest.raises(InputError, match="must list the 4 clients of the run"):
        read_runs([path])


def test_the_partition_command_shows_the_groups(kinfed: Command, tmp_path: Path) -> None:  # noqa: F811
    arguments = ("--clients", "10", "--new-clients", "2", "--shift", "rotate:4", "--out", "o")
    code, out, _ = kinfed("partition", *arguments)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "digits, partition shards (shards 2), shift rotate:4, seed 0" in " ".join(out.split())
    clients = json.loads((tmp_path / "o" / "partition.json").read_text())["clients"]
    groups = [client["group"] for client in clients]
    assert Counter(groups[:8]) == dict.fromkeys(range(4), 2)
    start = next(i for i, line in enumerate(out.splitlines()) if line.startswith("client  group  train"))
    shown = [line.split() for line in out.splitlines()[start + 1 : start + 11]]
    assert [int(words[2 if words[0] == "new" else 1]) for words in shown] == groups


def test_runs_from_before_there_were_shifts_go_on(tmp_path: Path) -> None:
    plain, own = (Config.checked({"methods": ("fedavg",), "shift": shift}) for shift in (None, "rotate:4"))
    assert "shift" not in folder_of(plain, tmp_path).identity
    assert folder_of(own, tmp_path).identity["shift"] == "rotate:4"


@pytest.mark.slow
def test_worker_processes_plant_the_same_shift(tmp_path: Path) -> None:
    fields = SMALL | {"shift": "permute_labels:4", "validation": 0.2}
    serial, workers = (package.run("fedper", **fields, workers=n, out=tmp_path / f"{n}").path for n in (0, 2))
    for name in ("metrics.jsonl", "federation.json"):
        assert (serial / name).read_bytes() == (workers / name).read_bytes()
