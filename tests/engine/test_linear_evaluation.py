"""Linear probes and nearest neighbours: what a representation is worth (specification D.7, G.2, G.3; CASES 80, 84)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from kinfed.data import Federation, Partition
from kinfed.engine import ClientRuntime, ProcessExecutor
from kinfed.engine.evaluator import Evaluator
from kinfed.learning import correct, features, linear_probe, unnormalised
from kinfed.methods import METHODS, Client, ClientState, Message
from kinfed.methods.hetero_ssfl import HeteroSSFL
from kinfed.models import BODY, build, select
from kinfed.streams import torch_stream
from tests.builders import NOBODY, build_runtime, dataset, federation, run, same

UNLABELLED = [name for name, method in METHODS.items() if not method.supervised]


def by_classes(*held: tuple[int, ...], probe: int = 24) -> Federation:
    """Client k has all samples of its classes but those of the server; no two share a class."""
    data = dataset()
    rows = lambda samples, first, own: first + np.flatnonzero(np.isin(samples.labels[first:], own))  # noqa: E731
    cut = Partition([rows(data.train, probe, own) for own in held], [rows(data.test, 0, own) for own in held])
    return Federation(data, cut, np.arange(probe))


PAIRS = ((0, 1), (2, 3, 4), (5, 6), (7, 8, 9))


def share(right: torch.Tensor) -> float:
    return right.double().mean().item()


@pytest.mark.slow
@pytest.mark.parametrize("name", UNLABELLED)
def test_what_reads_no_labels_has_accuracies_by_a_probe_after_the_last_round_alone(name: str, tmp_path: Path) -> None:
    *before, last = run(build_runtime(name, by_classes(*PAIRS)), tmp_path / "out").lines
    assert all(line["client_acc"] == {} and line["global_acc"] is None for line in before)
    told = last["client_acc"]
    assert told.keys() == {"personal", "linear_global", "linear_local", "knn"}
    assert all(0.1 < accuracy <= 1 for kind in ("linear_global", "linear_local", "knn") for accuracy in told[kind])
    assert np.mean(told["linear_local"]) > np.mean(told["linear_global"])  # of two or three classes, not of ten
    if METHODS[name].serves != "global":
        assert last["global_acc"] is None
        assert len({*told["linear_global"]}) > 1
    else:
        assert told["linear_global"] == [last["global_acc"]] * 4


def test_a_global_encoder_is_probed_as_by_hand(tmp_path: Path) -> None:
    fed = by_classes(*PAIRS)
    runtime = build_runtime("fedbyol", fed)
    outcome = run(runtime, tmp_path / "out")
    model = build("tiny_cnn", (1, 8, 8), 10, 0)
    model.load(select(outcome.state.tensors, BODY))
    train, test = (unnormalised(samples) for samples in (fed.dataset.train, fed.dataset.test))  # somebody has each
    assert train.labels is not None and test.labels is not None  # noqa: PT018
    x, x_test = features(model, train), features(model, test)
    head = linear_probe(x, train.labels, classes=10, stream=torch_stream(0, "linear probe"))
    right = head(x_test).argmax(dim=1) == test.labels
    last = outcome.lines[-1]
    assert last["global_acc"] == share(right)
    assert last["client_acc"]["personal"] == [share(right[rows]) for rows in fed.partition.test]

    own, own_test = train.labels.gt(1) & train.labels.lt(5), test.labels.gt(1) & test.labels.lt(5)
    stream = torch_stream(0, "linear probe")
    local = linear_probe(x[own], train.labels[own] - 2, classes=3, stream=stream)
    expected = local(x_test[own_test]).argmax(dim=1) == test.labels[own_test] - 2
    assert last["client_acc"]["linear_local"][1] == share(expected)

    saved = load_file(tmp_path / "out" / "models" / "global.safetensors")
    assert torch.allclose(saved["head.weight"], head.weight, atol=1e-5)
    assert same(select(saved, BODY), select(outcome.state.tensors, BODY))  # case 84


def test_every_client_s_own_encoder_is_probed_and_saved_under_its_head(tmp_path: Path) -> None:
    fed = by_classes(*PAIRS)
    runtime = build_runtime("hetero_ssfl", fed)
    outcome = run(runtime, tmp_path / "out")
    told = outcome.lines[-1]["client_acc"]
    for id in range(4):
        model = build("tiny_cnn", (1, 8, 8), 10, 0)
        saved = load_file(tmp_path / "out" / "models" / f"client-{id:05d}-personal.safetensors")
        model.load(saved)
        assert told["linear_global"][id] == share(correct(model, unnormalised(fed.dataset.test)))
        assert told["personal"][id] == share(correct(model, unnormalised(fed.test(id))))
        assert same(select(saved, BODY), select(outcome.client_states[id].tensors, BODY))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedbyol", "hetero_ssfl"])
def test_probes_are_the_same_bit_for_bit_in_worker_processes(name: str, tmp_path: Path) -> None:
    runtime = build_runtime(name, by_classes(*PAIRS), knn_every=2)
    here = run(runtime, tmp_path / "here")
    workers = ProcessExecutor(2)
    try:
        elsewhere = run(runtime, tmp_path / "there", workers, Again(name))
    finally:
        workers.close()
    assert elsewhere.lines == here.lines
    models = [{p.name: p.read_bytes() for p in (tmp_path / n / "models").iterdir()} for n in ("here", "there")]
    assert models[0] == models[1]


@dataclass(frozen=True)
class Again:
    """Builds the workshop in a worker process."""

    name: str

    def __call__(self) -> ClientRuntime:
        return build_runtime(self.name, by_classes(*PAIRS), knn_every=2)


@pytest.mark.slow
def test_neighbours_vote_every_few_rounds_and_take_the_place_of_the_evaluation(tmp_path: Path) -> None:
    fed = by_classes(*PAIRS)
    told = {
        every: [line.get("knn_acc_mean") for line in run(build_runtime("fedu", fed, rounds=5, knn_every=every),
                tmp_path / str(every)).lines]
        for every in (2, 0)
    }  # fmt: skip
    assert [value is not None for value in told[2]] == [False, True, False, True, True]
    assert told[0] == [None] * 5


@pytest.mark.slow
def test_probes_change_no_training_and_can_be_left_out(tmp_path: Path) -> None:
    fed = by_classes(*PAIRS)
    with_it = run(build_runtime("local_ssl", fed), tmp_path / "with")
    without = run(build_runtime("local_ssl", fed, linear_probe=False, knn_every=0), tmp_path / "without")
    assert all(same(with_it.client_states[id].tensors, without.client_states[id].tensors) for id in range(4))
    last = without.lines[-1]
    assert last["personal_acc_mean"] is None
    assert "linear_global_acc_mean" not in last
    saved = load_file(tmp_path / "without" / "models" / "client-00000-personal.safetensors")
    assert saved.keys() == {name for name in saved if name.startswith("body.")}  # its head was never trained


@pytest.mark.parametrize("name", ["fedavg", "fedper"])
def test_a_supervised_method_can_be_probed_too_and_reads_its_images_as_it_does(name: str, tmp_path: Path) -> None:
    fed = by_classes(*PAIRS)
    outcome = run(build_runtime(name, fed, linear_probe=True), tmp_path / "out")
    plain = run(build_runtime(name, fed), tmp_path / "plain").lines[-1]
    last = outcome.lines[-1]
    alike = plain.keys() - {"client_acc", "client_measures"}
    assert {key: last[key] for key in alike} == {key: plain[key] for key in alike}
    model = build("tiny_cnn", (1, 8, 8), 10, 0)
    which = "global" if name == "fedavg" else "client-00003-stale"
    path = tmp_path / "out" / "models" / f"{which}.safetensors"
    model.load(load_file(path if path.is_file() else path.with_name("client-00003-personal.safetensors")))
    x, x_test = features(model, fed.dataset.train), features(model, fed.dataset.test)
    assert fed.dataset.train.labels is not None
    head = linear_probe(x, fed.dataset.train.labels, classes=10, stream=torch_stream(0, "linear probe"))
    expected = share(head(x_test).argmax(dim=1) == fed.dataset.test.labels)
    if name == "fedavg":
        assert last["client_acc"]["linear_global"] == [expected] * 4
    else:
        assert last["client_acc"]["linear_global"][3] == expected


def test_images_of_the_probe_can_be_limited_with_the_classes_alike(tmp_path: Path) -> None:
    runtime = build_runtime("fedbyol", by_classes(*PAIRS), probed=50)
    labels = Evaluator(runtime)._probed.labels
    assert labels is not None
    assert torch.bincount(labels).tolist() == [5] * 10
    assert run(runtime, tmp_path / "out").lines[-1]["client_acc"]["linear_global"][0] > 0.1


def test_of_one_class_there_is_no_local_probe(tmp_path: Path) -> None:
    fed = by_classes((0,), (1, 2), (3, 4))
    last = run(build_runtime("local_ssl", fed), tmp_path / "out").lines[-1]
    none, *others = last["client_acc"]["linear_local"]
    assert none is None
    assert None not in others
    assert last["linear_local_acc_mean"] == pytest.approx(np.mean(others))


def test_a_probe_that_fails_is_told_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> None:
        raise MemoryError("too much")

    monkeypatch.setattr("kinfed.engine.evaluator.linear_probe", failing)
    for name, whose in (("fedbyol", ["global"]), ("local_ssl", ["0", "1", "2", "3"])):
        last = run(build_runtime(name, by_classes(*PAIRS)), tmp_path / name).lines[-1]
        assert last["untested"] == dict.fromkeys(whose, "MemoryError: too much")
        assert last["global_acc"] is None
        assert "personal" not in last["client_acc"]


def test_a_new_client_gets_the_global_encoder_under_its_probe(tmp_path: Path) -> None:
    fed = federation(new=2)
    last = run(build_runtime("fedema", fed), tmp_path / "with").lines[-1]
    assert last["client_acc"].keys() == {"personal", "linear_global", "linear_local", "knn", "new_global"}
    model = build("tiny_cnn", (1, 8, 8), 10, 0)
    model.load(load_file(tmp_path / "with" / "models" / "global.safetensors"))
    assert last["client_acc"]["new_global"] == [share(correct(model, unnormalised(fed.test(id)))) for id in (4, 5)]
    without = run(build_runtime("fedema", replace(fed, new_clients=NOBODY)), tmp_path / "without").lines[-1]
    assert last["global_acc"] == without["global_acc"]


# -- collapse, and images sent once ------------------------------------------------------------------------------------


def test_the_spread_of_every_client_s_outputs_is_told_each_round(tmp_path: Path) -> None:  # case 80
    lines = run(build_runtime("fedsimsiam", participation=0.5), tmp_path / "out").lines
    assert all([*line["spread"]] == [str(id) for id in line["clients"]] for line in lines)
    assert all(0.1 < value <= 1 for line in lines for value in line["spread"].values())
    assert "spread" not in run(build_runtime("fedavg"), tmp_path / "labelled").lines[0]


@pytest.mark.slow
def test_the_server_s_images_are_counted_once_a_client_also_after_a_kill(tmp_path: Path) -> None:
    class Stops(HeteroSSFL):
        def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
            if client.round == 4:
                raise KeyboardInterrupt
            return super().update(client, message, state)

    own = {"hidden": 32, "out": 16}
    straight = run(build_runtime(HeteroSSFL(**own), rounds=6, participation=0.5), tmp_path / "a").lines
    probe = federation().public_images
    assert probe is not None
    a_set = probe.inputs.nbytes
    message = min(line["down_bytes"] for line in straight)
    extra = [(line["down_bytes"] - message) // a_set for line in straight]
    seen: set[int] = set()
    for line, sets in zip(straight, extra, strict=True):
        assert sets == len({*line["clients"]} - seen)
        seen |= {*line["clients"]}
    assert len(seen) > 2

    plan = {"rounds": 6, "participation": 0.5, "checkpoint_every": 1}
    with pytest.raises(KeyboardInterrupt):
        run(build_runtime(Stops(**own), **plan), tmp_path / "c")
    resumed = run(build_runtime(HeteroSSFL(**own), **plan), tmp_path / "c").lines
    assert [line["down_bytes"] for line in resumed] == [line["down_bytes"] for line in straight]


def test_where_clients_split_their_samples_themselves_no_test_sample_is_learned_from() -> None:
    data = dataset()
    rows = np.random.default_rng(0).permutation(np.arange(24, 360))
    cut = Partition([rows[:100], rows[150:260]], [rows[100:150], rows[260:]], pooled=True)
    runtime = build_runtime("fedbyol", Federation(data, cut, np.arange(24)))
    learned = {image.numpy().tobytes() for image in Evaluator(runtime)._probed.inputs}
    tested = {image.numpy().tobytes() for image in runtime.federation.tested.samples.inputs}
    assert (len(Evaluator(runtime)._probed), len(tested)) == (24 + 210, 126)
    assert not learned & tested
