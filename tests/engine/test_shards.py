"""Few files for many clients: shards of models and of client states, and what reads them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import kinfed
from kinfed.engine import client_store, folder
from kinfed.engine.client_store import ClientStore, StateLedger
from kinfed.errors import InputError, plain
from kinfed.methods import ClientState
from kinfed.models import open_pool, read_tensors, save_shard, save_tensors, saved_models, tensor_files
from kinfed.report.folders import read_runs
from kinfed.report.notes import notes

FIELDS: dict[str, Any] = {
    "data": "digits", "train_images": 200, "model": "mlp", "clients": 10, "partition": "iid", "rounds": 2, "public": 0,
    "participation": 0.5, "checkpoint_every": 1, "ft_epochs": 1, "lr_schedule": "constant", "quiet": True,
}  # fmt: skip


@pytest.fixture
def few_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of more than four clients have shards, of four clients each."""
    monkeypatch.setattr(folder, "SHARDED", 4)
    monkeypatch.setattr(client_store, "ALONE", 4)


def test_many_clients_have_few_files_and_one_is_read_without_the_others(tmp_path: Path, few_alone: None) -> None:
    run = kinfed.run("fedper", out=tmp_path / "run", **FIELDS).path
    models = sorted(path.name for path in (run / "models").iterdir())
    ranges = ("00000-00003", "00004-00007", "00008-00009")
    assert models == [f"clients-{own}-own.{suffix}" for own in ranges for suffix in ("json", "safetensors")]
    assert {path.parent.name for path in (run / "memories").rglob("*.safetensors")} == {"shards"}
    accuracies = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["client_acc"]["personal"]
    for id in (3, 8):
        assert kinfed.load(run, client=id).card.accuracy == accuracies[id]


def test_a_model_in_a_shard_goes_wherever_a_path_is_asked_for(tmp_path: Path, few_alone: None) -> None:
    run = kinfed.run("fedper", out=tmp_path / "run", **FIELDS).path
    own = run / "models" / "client-00003-personal.safetensors"
    assert not own.exists()
    loaded = kinfed.load(own)
    inputs = torch.zeros(2, 1, 8, 8, dtype=torch.uint8).numpy()
    assert (loaded.predict_proba(inputs) == kinfed.load(run, client=3).predict_proba(inputs)).all()
    started = kinfed.run("fedavg", out=tmp_path / "started", weights=own, **FIELDS | {"rounds": 1, "lr": 1e-9}).path
    first, head = (read_tensors(path)[0]["head.weight"] for path in (started / "models" / "global.safetensors", own))
    torch.testing.assert_close(first, head, atol=1e-6, rtol=0)
    exported = kinfed.export(run, "state_dict", client=3)
    assert exported.path.name == "client-00003-personal.safetensors"


def test_shards_hold_what_files_of_their_own_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = kinfed.run("fedper", out=tmp_path / "alone", **FIELDS).path
    monkeypatch.setattr(folder, "SHARDED", 4)
    monkeypatch.setattr(client_store, "ALONE", 4)
    sharded = kinfed.run("fedper", out=tmp_path / "sharded", workers=2, **FIELDS).path
    assert (alone / "metrics.jsonl").read_bytes() == (sharded / "metrics.jsonl").read_bytes()
    names = saved_models(alone / "models")
    assert saved_models(sharded / "models") == names
    for name in names:
        of = [read_tensors(run / "models" / f"{name}.safetensors") for run in (alone, sharded)]
        assert of[0][1] == of[1][1]
        assert all(torch.equal(tensor, of[1][0][key]) for key, tensor in of[0][0].items())
    assert [source.card for source in open_pool(alone / "models")] == [
        source.card for source in open_pool(sharded / "models")
    ]


def test_a_run_with_shards_goes_on_with_the_same_bits(tmp_path: Path, few_alone: None) -> None:
    whole = kinfed.run("fedper", out=tmp_path / "whole", **FIELDS | {"rounds": 4}).path
    begun = kinfed.run("fedper", out=tmp_path / "begun", **FIELDS).path
    kinfed.resume(begun, rounds=4, quiet=True)
    assert (whole / "metrics.jsonl").read_bytes() == (begun / "metrics.jsonl").read_bytes()
    for name in saved_models(whole / "models"):
        of = [read_tensors(run / "models" / f"{name}.safetensors")[0] for run in (whole, begun)]
        assert all(torch.equal(tensor, of[1][key]) for key, tensor in of[0].items())


def test_a_damaged_shard_costs_the_rounds_after_the_checkpoint_before(tmp_path: Path, few_alone: None) -> None:
    fields = FIELDS | {"participation": 1.0}
    whole = kinfed.run("fedper", out=tmp_path / "whole", **fields | {"rounds": 3}).path
    begun = kinfed.run("fedper", out=tmp_path / "begun", **fields).path
    latest = max((begun / "memories" / "shards").iterdir())
    latest.write_bytes(latest.read_bytes()[:50])
    with pytest.warns(UserWarning, match="round-000002.safetensors cannot be used: the state of client"):
        kinfed.resume(begun, rounds=3, quiet=True)
    assert (whole / "metrics.jsonl").read_bytes() == (begun / "metrics.jsonl").read_bytes()


def test_a_damaged_state_stops_no_round_in_which_others_are_put_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_store, "ALONE", 3)
    store = ClientStore(tmp_path / "memories")
    ledger = StateLedger(store, {}, {})
    for id in range(5):
        store.write(id, 1, ClientState({"x": torch.tensor([id])}))
        ledger.accept(id, 1, keeps=True)
    (store.folder / "000" / "client-00004-round-000001.safetensors").write_bytes(b"cut")
    ledger.sync()
    ledger.saved(1, [1])
    assert store.read(3, 1).tensors["x"].tolist() == [3]
    with pytest.raises(ValueError, match="the state of client 4 after round 1 cannot be used"):
        store.read(4, 1)


@pytest.mark.parametrize(("saved", "there"), [("none", []), ("global", ["global"])])
def test_only_the_models_that_are_asked_for_are_saved(tmp_path: Path, saved: str, there: list[str]) -> None:
    run = kinfed.run("fedavg", out=tmp_path / "run", save_models=saved, **FIELDS).path
    assert saved_models(run / "models") == there
    if not there:
        with pytest.raises(InputError, match="it has none, since a run saves models when it ends, unless save_models"):
            kinfed.load(run)


def test_new_clients_need_the_saved_models(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="save_models: 'global' is not allowed; new clients are given the mean"):
        kinfed.run("fedper", out=tmp_path / "run", save_models="global", new_clients=2, **FIELDS)


def test_a_sample_of_the_clients_is_tested_further(tmp_path: Path) -> None:
    """The others have no such accuracy, and all else is as without the sample."""
    lines = {}
    for wanted in (3, None):
        result = kinfed.run("fedper", out=tmp_path / f"{wanted}", further_clients=wanted, **FIELDS)
        told = "fine-tuned models were tested at 3 of 10 clients, drawn at random (--further-clients)."
        assert any(note.endswith(told) for note in notes(read_runs([result.path]))) == (wanted == 3)
        run = result.path
        lines[wanted] = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["client_acc"]
    for kind, accuracies in lines[None].items():
        sample = lines[3][kind]
        if kind in ("fine_tuned", "refit", "refreshed", "own_classes"):
            assert sum(accuracy is not None for accuracy in sample) == 3
            assert all(own in (None, other) for own, other in zip(sample, accuracies, strict=True))
        else:
            assert sample == accuracies


def test_states_that_nothing_needs_leave_with_their_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_store, "ALONE", 3)
    store = ClientStore(tmp_path / "memories")
    ledger = StateLedger(store, {}, {})
    for round in (1, 2, 3):
        for id in range(5):
            store.write(id, round, ClientState({"x": torch.tensor([id, round])}))
            ledger.accept(id, round, keeps=True)
        ledger.sync()
        ledger.saved(round, [round])
    assert [path.relative_to(store.folder).as_posix() for path in store.folder.rglob("*.*")] == [
        "shards/000002.safetensors"
    ]
    assert store.read(4, 3).tensors["x"].tolist() == [4, 3]
    with pytest.raises(ValueError, match="the state of client 4 after round 2 cannot be used"):
        store.read(4, 2)


def test_shards_are_merged_when_they_are_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five clients a round of 100, each state in a shard of its round until there are too many shards."""
    monkeypatch.setattr(client_store, "ALONE", 3)
    monkeypatch.setattr(client_store, "SHARDS", 6)
    store = ClientStore(tmp_path / "memories")
    ledger = StateLedger(store, {}, {})
    for round in range(1, 41):
        for id in range(5 * round % 100, 5 * round % 100 + 5):
            store.write(id, round, ClientState({"x": torch.tensor([id, round])}))
            ledger.accept(id, round, keeps=True)
        ledger.sync()
        ledger.saved(round, [round])
        assert len([*store.folder.rglob("*.safetensors")]) <= 7
    for id, round in ledger.now.items():
        assert store.read(id, round).tensors["x"].tolist() == [id, round]
    assert len(ledger.now) == 100


def test_equal_tensors_of_members_are_stored_once_with_every_bit(tmp_path: Path) -> None:
    body, bias = torch.arange(10_000.0).reshape(500, 20), torch.tensor([0.0, torch.nan])
    nearly = body.clone()
    nearly[0, 1] = 5  # in bytes that are not probed
    assert tensor_files._probed(nearly) == tensor_files._probed(body)
    given = {
        "a": {"body": body, "bias": bias, "one": torch.tensor(1.0)},
        "b": {"body": body.clone(), "bias": bias * -1, "one": torch.tensor(1)},  # -0.0 and another type
        "c": {"body": body.T.contiguous().T, "bias": bias * -1, "one": torch.tensor(1.0)},
        "d": {"body": nearly},
        "e": {"body": body[:250], "none": torch.zeros(0)},
        "f": {"none": torch.zeros(0), "body": body[:250]},
    }
    path = tmp_path / "shard.safetensors"
    save_shard(path, {name: (tensors, {"name": name}) for name, tensors in given.items()})
    assert path.stat().st_size < 3 * body.nbytes
    for name, tensors in given.items():
        found, about = read_tensors(path, name)
        assert about == {"name": name}
        assert found.keys() == tensors.keys()
        for of, tensor in tensors.items():
            assert found[of].dtype == tensor.dtype
            assert found[of].shape == tensor.shape
            assert found[of].numpy().tobytes() == tensor.contiguous().numpy().tobytes()


def test_a_shard_of_an_older_version_is_read(tmp_path: Path) -> None:
    file, shard = tmp_path / "file.safetensors", tmp_path / "shard.safetensors"
    save_tensors(file, {"x": torch.ones(2)}, {"round": 3})
    with safe_open(file, framework="pt") as alone:
        entry = json.loads(alone.metadata()["about"])
    save_file({"b/x": torch.ones(2)}, shard, {"about": json.dumps({"members": {"b": entry}})})
    assert read_tensors(shard, "b")[1] == {"round": 3}
    save_file({"b/x": torch.zeros(2)}, shard, {"about": json.dumps({"members": {"b": entry}})})
    with pytest.raises(ValueError, match="do not match its checksum"):
        read_tensors(shard, "b")


@pytest.mark.parametrize(
    "elsewhere",
    ["x", 3, {"b": "x"}, {"b": ["y"]}, {"b": 3}, {"b": [["x"]]}, {"b": [3]}, {"b": [None]}, {"nobody": ["x"]},
     {"b": ["x\ny\x1b[31m"]}],
)  # fmt: skip
def test_a_member_whose_tensors_are_said_to_be_where_they_are_not_is_refused(elsewhere: Any, tmp_path: Path) -> None:
    path, tensor = tmp_path / "shard.safetensors", torch.ones(2)
    names = ["x", 3, None] if isinstance(elsewhere, dict) else ["x"]  # whichever is read has the right seal
    for name in names:
        seal = tensor_files._seal("{}", {name: tensor_files._checksum(tensor)})  # type: ignore[dict-item]
        told = {"members": {"a": ["{}", seal, elsewhere], "b": ["{}", 0, {}]}}
        save_file({f"b/{of}": tensor.clone() for of in ("x", 3, None)}, path, {"about": json.dumps(told)})
        with pytest.raises(ValueError, match=r"^it (cannot be read as safetensors|is damaged): ") as refused:
            read_tensors(path, "a")
        assert plain(refused.value) == str(refused.value)  # one printable line


def test_clients_with_a_common_body_store_it_once(tmp_path: Path, few_alone: None) -> None:
    run = kinfed.run("fedper", out=tmp_path / "run", **FIELDS).path
    with safe_open(run / "models" / "clients-00000-00003-own.safetensors", framework="pt") as shard:
        stored = [name.partition("/")[2] for name in shard.keys()]  # noqa: SIM118
    times = Counter(stored)  # of four clients: the own model, the one with the refreshed head, the fine-tuned one
    assert {times[name] for name in stored if name.startswith("body.")} == {1 + 4}
    assert {times[name] for name in stored if name.startswith("head.")} == {3 * 4}


def test_a_member_that_was_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "shard.safetensors"
    save_shard(path, {name: ({"x": torch.full((4,), value)}, {}) for name, value in (("a", 1.0), ("b", 2.0))})
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert read_tensors(path, "a")[0]["x"].tolist() == [1.0] * 4
    with pytest.raises(ValueError, match="do not match its checksum"):
        read_tensors(path, "b")
    with pytest.raises(ValueError, match="it has no c"):
        read_tensors(path, "c")
