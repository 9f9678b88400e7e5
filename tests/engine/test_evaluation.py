"""What is measured after a round: fine-tuning, and clients that took no part."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from kinfed.data import Dataset, Federation, Partition, Samples
from kinfed.engine import ClientRuntime, RunFolder, SerialExecutor
from kinfed.engine.evaluator import Evaluator
from kinfed.engine.executor import Task
from kinfed.errors import RunFailed
from kinfed.learning import LocalTraining, NotFinite, Phase, correct, scores, train
from kinfed.methods import METHODS, Client, ClientState, Message, Server, ServerState
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.fedper import FedPer
from kinfed.methods.local_ssl import LocalSSL
from kinfed.models import BODY, HEAD, Model, Tensors, build, select
from kinfed.streams import torch_stream
from tests.builders import NOBODY, build_runtime, close, federation, float_samples, run, same

SPREAD = ("acc_weighted", "acc_mean", "acc_std", "acc_worst_tenth")

# -- fine-tuning ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_method_tells_its_primary_accuracy_before_and_after_fine_tuning(name: str, tmp_path: Path) -> None:  # G.2
    tuning = Phase(epochs=5, lr=0.05)
    with_it, without = (
        run(build_runtime(name, fine_tuning=t), tmp_path / n) for t, n in ((tuning, "with"), (None, "without"))
    )
    *before, last = with_it.lines
    assert not any("fine_tuned" in key or "initial" in key for line in before for key in line)
    assert same(with_it.state, without.state)
    if METHODS[name].trains == "pooled" or not METHODS[name].adapts:
        assert with_it.lines == without.lines
        return
    kinds = ("initial", "fine_tuned")
    assert [last[f"initial_{q}"] for q in SPREAD] == [last[f"personal_{q}"] for q in SPREAD]
    assert last["fine_tuned_acc_mean"] != last["initial_acc_mean"]
    accuracies = {key: value for key, value in last["client_acc"].items() if key not in kinds}
    assert without.lines == [*before, {key: value for key, value in last.items() if not key.startswith(kinds)} | {
        "client_acc": accuracies
    }]  # fmt: skip


def test_the_global_model_is_fine_tuned_as_by_hand_and_not_saved(tmp_path: Path) -> None:
    tuning, training = Phase(epochs=2, lr=0.03), LocalTraining(lr=0.05, batch_size=16)
    runtime = build_runtime("fedavg", rounds=2, fine_tuning=tuning, training=training)
    outcome = run(runtime, tmp_path / "out")
    expected = []
    for id in range(4):
        model = runtime.client(id, 1).model
        model.load(outcome.state.tensors)
        train(model, runtime.federation.train(id), tuning, training, torch_stream(0, "fine-tuning", id, 2))
        expected.append(correct(model, runtime.federation.test(id)).double().mean().item())
    assert outcome.lines[-1]["client_acc"]["fine_tuned"] == expected
    assert not [*(tmp_path / "out" / "models").glob("client-*")]


@dataclass(frozen=True, kw_only=True)
class Unlabelled(FedAvg):
    """FedAvg of clients that could not fine-tune."""

    adapts: ClassVar[bool] = False


def test_a_method_whose_clients_have_no_labels_is_not_fine_tuned(tmp_path: Path) -> None:
    last = run(build_runtime(Unlabelled(), federation(new=2)), tmp_path / "out").lines[-1]
    assert last["client_acc"].keys() == {"personal", "own_classes", "new_global"}


# -- what compares like with like: the client's own classes, and a re-fitted head ------------------------------------


@dataclass(frozen=True, kw_only=True)
class Constant(FedAvg):
    """Whatever the input is, its global model prefers class 0 to 1, and 1 to 2."""

    def global_model(self, server: Server, state: ServerState) -> Tensors:
        weights = {"head.weight": torch.zeros(3, 1), "head.bias": torch.tensor([3.0, 2.0, 1.0])}
        return {**state.tensors, **weights}


@dataclass(frozen=True, kw_only=True)
class ConstantAtHome(FedPer):
    """The same as a model of each client."""

    def evaluated(self, client: Client, message: Message, state: ClientState) -> dict[str, Tensors]:
        weights = {"head.weight": torch.zeros(3, 1), "head.bias": torch.tensor([3.0, 2.0, 1.0])}
        return {"stale": {**message.tensors, **weights}}


def of_labels(*of_clients: tuple[list[int], list[int], list[int]]) -> Federation:
    """Clients with samples of the given labels for training, validation and test; an input is its own label."""
    parts = [*zip(*of_clients, strict=True)]
    cuts = [np.split(np.arange(sum(map(len, part))), np.cumsum([*map(len, part)])[:-1]) for part in parts]
    training, validating, testing = ([k for labels in part for k in labels] for part in parts)
    sets = (float_samples(torch.tensor(of)[:, None].float(), of) for of in (training + validating, testing))
    validation = [len(training) + rows for rows in cuts[1]] if validating else []
    return Federation(
        Dataset("x", *sets, ("a", "b", "c")), Partition(cuts[0], cuts[2]), np.arange(0), validation=validation
    )


def three_classes(_: Model) -> Model:
    return Model({"scale": nn.Linear(1, 1)}, nn.Linear(1, 3), [])


@pytest.mark.parametrize("method", [Constant(), ConstantAtHome()])
def test_among_the_clients_own_classes_the_best_of_them_is_the_answer(method: FedAvg, tmp_path: Path) -> None:
    fed = of_labels(
        ([1, 2, 2, 1], [], [1, 1, 2, 0]),  # answers 1, where all would be 0; the sample of class 0 is wrong
        ([2, 0, 0, 2], [], [0, 2, 1, 1, 1]),  # answers 0, as it would
        ([2, 2], [], [2, 2, 2]),  # answers 2
    )
    *before, last = run(build_runtime(method, fed, wrap=three_classes, model="mlp"), tmp_path / "out").lines
    assert last["client_acc"]["personal"] == [0.25, 0.2, 0.0]
    assert last["client_acc"]["own_classes"] == [0.5, 0.2, 1.0]
    assert last["own_classes_acc_weighted"] == pytest.approx((2 + 1 + 3) / 12)
    assert not any("own_classes" in key or "refit" in key for line in before for key in [*line, *line["client_acc"]])


def test_classes_of_validation_samples_are_the_clients_own_and_those_of_test_samples_are_not(tmp_path: Path) -> None:
    fed = of_labels(([2, 2], [1], [1, 1, 1, 0]), ([1, 2], [2, 2], [0, 1, 1]))
    last = run(build_runtime(Constant(), fed, wrap=three_classes, model="mlp"), tmp_path / "out").lines[-1]
    assert last["client_acc"]["own_classes"] == [0.75, 2 / 3]
    assert last["client_acc"]["validation_own_classes"] == [1.0, 0.0]


def test_where_the_test_classes_are_the_clients_own_a_limit_makes_no_answer_wrong(tmp_path: Path) -> None:
    training = LocalTraining(lr=0.1, epochs=3, batch_size=8)
    for name in ("fedavg", "fedper"):
        runtime = build_runtime(name, training=training)
        last, fed = run(runtime, tmp_path / name).lines[-1], runtime.federation
        assert (fed.test_class_counts().astype(bool) <= fed.class_counts().astype(bool)).all()
        told = zip(last["client_acc"]["own_classes"], last["client_acc"]["personal"], strict=True)
        assert all(limited >= free for limited, free in told)


@pytest.mark.parametrize(("name", "told"), [("central", {"own_classes"}), ("fedbyol", set()), ("local_ssl", set())])
def test_no_head_is_refitted_without_labels_or_where_data_are_pooled(name: str, told: set[str], tmp_path: Path) -> None:
    last = run(build_runtime(name, rounds=1, fine_tuning=None), tmp_path / "out").lines[-1]
    assert last["client_acc"].keys() & {"own_classes", "refit"} == told


def refitted(body: Tensors, runtime: ClientRuntime, id: int, round: int) -> float:
    """Accuracy of a head on a body of one linear layer, by plain SGD with momentum from the run's initial head."""
    training, fed = runtime.settings.training, runtime.federation
    z, z_test = (
        (samples.batch(slice(None)).flatten(1) @ body["body.fc.0.weight"].T + body["body.fc.0.bias"]).relu()
        for samples in (fed.train(id), fed.test(id))
    )
    labels, test_labels = fed.train(id).labels, fed.test(id).labels
    assert labels is not None
    weights = [runtime.initial[0][f"head.{name}"].clone().requires_grad_() for name in ("weight", "bias")]
    moving = [torch.zeros_like(w) for w in weights]
    order = torch_stream(0, "refit", id, round)
    for _ in range(10):
        for rows in torch.randperm(len(labels), generator=order).split(training.batch_size):
            loss = nn.functional.cross_entropy(z[rows] @ weights[0].T + weights[1], labels[rows])
            gradients = torch.autograd.grad(loss, weights)
            with torch.no_grad():
                for w, v, g in zip(weights, moving, gradients, strict=True):
                    v.mul_(training.momentum).add_(g)
                    w.sub_(v, alpha=training.lr)  # that of the first round
    return ((z_test @ weights[0].T + weights[1]).argmax(dim=1) == test_labels).double().mean().item()


def one_layer(_: Model) -> Model:
    torch.manual_seed(3)
    return Model({"flatten": nn.Flatten(), "fc": nn.Sequential(nn.Linear(64, 16), nn.ReLU())}, nn.Linear(16, 10), [])


def test_the_body_of_fedbabu_under_a_refitted_head_is_as_by_hand(tmp_path: Path) -> None:
    training = LocalTraining(lr=0.1, batch_size=16, epochs=2)
    runtime = build_runtime("fedbabu", training=training, wrap=one_layer, model="mlp", lr_schedule="step:0.4:100")
    outcome = run(runtime, tmp_path / "out")
    last = outcome.lines[-1]
    assert last["lr"] == pytest.approx(0.001)
    expected = [refitted(outcome.state.tensors, runtime, id, 3) for id in range(4)]
    assert last["client_acc"]["refit"] == pytest.approx(expected)
    assert last["refit_acc_mean"] > last["personal_acc_mean"] + 0.1
    assert not [*(tmp_path / "out" / "models").glob("*refit*")]


def test_a_personal_head_has_no_part_in_the_refitted_one_and_augmentation_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trained: list[Tensors] = []

    def recorded(model: Model, *given: Any) -> None:
        train(model, *given)
        trained.append(model.tensors())

    monkeypatch.setattr("kinfed.engine.evaluator.train", recorded)
    given = build("tiny_cnn", (1, 8, 8), 10, 7).tensors()
    other = {**given, **select(build("tiny_cnn", (1, 8, 8), 10, 8).tensors(), HEAD)}
    augmented = LocalTraining(lr=0.05, batch_size=16, augment="crop_flip")
    for tensors, training in ((given, None), (other, None), (given, augmented)):
        runtime = build_runtime("fedper", training=training)
        Evaluator(runtime).refit(2, 3, tensors)
    assert same(trained[0], trained[1])
    assert same(trained[0], trained[2])
    assert same(select(trained[0], BODY), select(given, BODY))
    for head in (given, runtime.initial[0]):
        assert not same(select(trained[0], HEAD), select(head, HEAD))


# -- clients that took no part ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_new_clients_are_tested_after_the_last_round_of_every_method(name: str, tmp_path: Path) -> None:  # CRC-T2
    fed = federation(new=2)
    *before, last = run(build_runtime(name, fed), tmp_path / "out").lines
    assert not any("new_" in key for line in before for key in line)
    assert not last["untested"]
    if name in ("hetero_ssfl", "local_ssl"):  # a head that was fitted to one encoder suits no mean of several
        assert last["client_acc"]["new_global"] == [None, None]
        return
    for kind in ("new_global", "new_head", "new_fine_tuned") if METHODS[name].adapts else ("new_global",):
        accuracies, sizes = last["client_acc"][kind], [len(rows) for rows in fed.new_clients.test]
        assert len(accuracies) == 2
        assert last[f"{kind}_acc_mean"] == pytest.approx(np.mean(accuracies))
        assert last[f"{kind}_acc_weighted"] == pytest.approx(np.average(accuracies, weights=sizes))


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_new_clients_change_nothing_for_the_others(name: str, tmp_path: Path) -> None:
    fed = federation(new=2)
    with_them, without = (
        run(build_runtime(name, f), tmp_path / n) for f, n in ((fed, "a"), (replace(fed, new_clients=NOBODY), "b"))
    )
    assert same(with_them.state, without.state)
    kept = {key: value for key, value in with_them.lines[-1]["client_acc"].items() if not key.startswith("new_")}
    assert kept == without.lines[-1]["client_acc"]


def one_weight(body: float, head: float) -> Model:
    model = Model({"scale": nn.Linear(1, 1, bias=False)}, nn.Linear(1, 2, bias=False), [])
    nn.init.constant_(model.body.scale.weight, body)
    model.head.weight.data = torch.tensor([[head], [-head]])
    return model


@dataclass(frozen=True, kw_only=True)
class Given(FedPer):
    """Client i ends with body 2 and the i-th head, whatever its data are."""

    heads: tuple[float, ...]

    def evaluated(self, client: Client, message: Message, state: ClientState) -> dict[str, Tensors]:
        return {"stale": one_weight(2.0, self.heads[client.id]).tensors()}


def welcomed(runtime: ClientRuntime, path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Tensors]:
    """The models that the new clients of a run were given."""
    given: list[Tensors] = []
    welcome = Evaluator.evaluate_new_client

    def noting(self: Evaluator, id: int, round: int, tensors: Tensors):  # type: ignore[no-untyped-def]
        given.append({n: t.clone() for n, t in tensors.items()})
        return welcome(self, id, round, tensors)

    monkeypatch.setattr(Evaluator, "evaluate_new_client", noting)
    run(runtime, path)
    return given


def test_where_heads_are_personal_new_clients_get_the_body_and_the_mean_of_the_heads(  # CRC-9
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = float_samples(torch.linspace(-1, 1, 16)[:, None], [0, 1] * 8)
    rows = lambda *sizes: [np.arange(a - n, a) for n, a in zip(sizes, np.cumsum(sizes), strict=True)]  # noqa: E731
    cut = Partition(rows(3, 1, 4), rows(2, 2, 2))
    fed = Federation(Dataset("x", samples, samples, ("0", "1")), cut.of([0, 1]), np.arange(0), cut.of([2]))
    runtime = build_runtime(Given(heads=(10.0, 30.0)), fed, rounds=1, wrap=lambda _: one_weight(2.0, 1.0), model="mlp")
    (given,) = welcomed(runtime, tmp_path / "out", monkeypatch)
    assert given["body.scale.weight"].tolist() == [[2.0]]
    assert given["head.weight"].tolist() == [[15.0], [-15.0]]  # (3·10 + 1·30) / 4


def test_the_mean_is_of_the_saved_models_by_training_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = build_runtime("fedper", federation(new=1))
    (given,) = welcomed(runtime, tmp_path / "out", monkeypatch)
    counts = [len(rows) for rows in runtime.federation.partition.train]
    saved = [load_file(path) for path in sorted((tmp_path / "out" / "models").glob("*-personal.safetensors"))]
    by_hand = {n: sum(c * s[n].double() for c, s in zip(counts, saved, strict=True)) / sum(counts) for n in saved[0]}
    assert close(given, by_hand)  # type: ignore[arg-type]


def test_the_head_of_a_new_client_is_fitted_on_a_frozen_body_from_the_initial_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trained: list[Tensors] = []

    def recorded(model: Model, *given: Any) -> None:
        train(model, *given)
        trained.append(model.tensors())

    monkeypatch.setattr("kinfed.engine.evaluator.train", recorded)
    training = LocalTraining(lr=0.05, batch_size=8)
    runtime = build_runtime("fedavg", federation(new=2), training=training, lr_schedule="step:0.5")
    given = build("tiny_cnn", (1, 8, 8), 10, 7).tensors()
    results = {result.name: result for result in Evaluator(runtime).evaluate_new_client(5, 3, given)}
    model, own = runtime.client(0, 3).model, runtime.federation.train(5)
    model.load(select(given, BODY))  # under the run's initial head
    order = torch_stream(0, "new head", 5, 3)
    train(model, own, Phase(train=HEAD, epochs=10, lr=0.05), training, order)  # at the rate of the first round
    assert same(model.tensors(BODY), select(given, BODY))
    assert same(trained[0], model.tensors())
    assert results["new_head"].test.correct == correct(model, runtime.federation.test(5)).sum()
    model.load(given)
    assert results["new_global"].test.correct == correct(model, runtime.federation.test(5)).sum()


def test_a_new_client_without_test_samples_has_no_accuracy(tmp_path: Path) -> None:
    fed = federation(new=2)
    nothing = replace(fed.new_clients, test=[np.arange(0), fed.new_clients.test[1]])
    last = run(build_runtime("fedper", replace(fed, new_clients=nothing)), tmp_path / "out").lines[-1]
    for kind in ("new_global", "new_head", "new_fine_tuned"):
        none, some = last["client_acc"][kind]
        assert none is None
        assert last[f"{kind}_acc_mean"] == some


def test_there_is_no_global_model_of_different_architectures(tmp_path: Path) -> None:
    fed = federation(new=2)
    models = tuple(build(name, fed.dataset.shape, 10, 0) for name in ("tiny_cnn", "mlp"))
    runtime = replace(build_runtime("local", fed), models=models, architectures=(0, 0, 1, 1))
    last = run(runtime, tmp_path / "out").lines[-1]
    assert last["client_acc"]["new_global"] == [None, None]
    assert last["new_global_acc_weighted"] is None
    for kind in ("own_classes", "refit", "fine_tuned"):
        assert None not in last["client_acc"][kind]


@dataclass(frozen=True, kw_only=True)
class Forgetful(FedPer):
    """The own model of client 1 cannot be had."""

    def evaluated(self, client: Client, message: Message, state: ClientState) -> dict[str, Tensors]:
        if client.id == 1:
            raise ValueError("no model")
        return super().evaluated(client, message, state)


def test_a_client_without_a_model_is_not_fine_tuned_and_not_in_the_mean(tmp_path: Path) -> None:
    last = run(build_runtime(Forgetful(), federation(new=1)), tmp_path / "out").lines[-1]
    assert last["untested"] == {"1": "ValueError: no model"}
    for kind in ("own_classes", "refit", "fine_tuned"):
        assert [a is None for a in last["client_acc"][kind]] == [False, True, False, False]
    assert None not in last["client_acc"]["new_global"]


def test_a_test_that_fails_is_told_and_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise MemoryError("too much")

    whole = run(build_runtime("fedavg", federation(new=1)), tmp_path / "whole").lines[-1]
    for test in ("test_own_classes", "refit", "fine_tune", "evaluate_new_client"):
        monkeypatch.setattr(Evaluator, test, failing)
    last = run(build_runtime("fedavg", federation(new=1)), tmp_path / "out").lines[-1]
    reason = "MemoryError: too much"
    further = {f"{id}, {test}": reason for id in range(4) for test in ("own classes", "re-fitting", "fine-tuning")}
    assert last["untested"] == {**further, "4, new client": reason}
    assert last["client_acc"] == {"personal": whole["client_acc"]["personal"], "new_global": [None]}


def test_test_samples_change_no_model_in_the_last_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # specification J.13
    fed = federation(new=2)
    flipped = replace(fed.dataset.test, labels=(fed.dataset.test.labels + 1) % 10)  # type: ignore[operator]
    other = replace(fed, dataset=replace(fed.dataset, test=flipped))
    tested: list[list[Tensors]] = []

    def noting(model: Model, samples: Samples, among: torch.Tensor | None) -> torch.Tensor:
        if len(samples):  # nobody has validation samples
            tested[-1].append(model.tensors() | ({} if among is None else {"among": among}))
        return scores(model, samples, among)

    monkeypatch.setattr("kinfed.engine.evaluator.scores", noting)
    for name, f in (("a", fed), ("b", other)):
        tested.append([])
        run(build_runtime("fedper", f), tmp_path / name)
    # own, refreshed, among the own classes, re-fitted, fine-tuned, and of the new clients
    assert [len(models) for models in tested] == [3 * 4 + 4 + 4 + 4 + 4 + 2 * 3] * 2
    assert all(same(a, b) for a, b in zip(*tested, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedper"])
def test_a_run_stopped_in_its_last_evaluation_ends_as_if_it_had_not_been(name: str, tmp_path: Path) -> None:
    straight = run(build_runtime(name, federation(new=2)), tmp_path / "a")

    class Stops(SerialExecutor):
        def evaluate(self, tasks: Iterable[Task]):  # type: ignore[no-untyped-def]
            for task in tasks:
                if task.test == "new client":
                    raise InterruptedError
                yield from super().evaluate([task])

    runtime = build_runtime(name, federation(new=2), checkpoint_every=2)
    with pytest.raises(InterruptedError):
        run(runtime, tmp_path / "b", Stops())
    assert len((tmp_path / "b" / "metrics.jsonl").read_text().splitlines()) == 2
    resumed = run(runtime, tmp_path / "b")
    assert resumed.lines == straight.lines
    models = [{p.name: p.read_bytes() for p in (tmp_path / n / "models").iterdir()} for n in "ab"]
    assert models[0] == models[1]


@pytest.mark.parametrize("pooled", [False, True])  # there is an official test set, or none
@pytest.mark.parametrize("name", ["fedavg", "fedper", "fedproto", "fedbyol", "local_ssl", "central"])
def test_where_nobody_has_test_samples_there_is_no_accuracy_of_ones_own(
    name: str, pooled: bool, tmp_path: Path
) -> None:  # case 337
    fed = federation(new=1)
    nobody = [Partition(cut.train, [np.arange(0)] * len(cut), pooled) for cut in (fed.partition, fed.new_clients)]
    runtime = build_runtime(name, Federation(fed.dataset, nobody[0], fed.public_rows, nobody[1]), linear_probe=True)
    last = run(runtime, tmp_path / "out").lines[-1]
    assert last["untested"] == {"all": "no client has test samples"}
    assert all(accuracy is None for accuracy in last["client_acc"].get("personal", []))
    assert last.get("personal_acc_weighted") is None
    assert (last["global_acc"] is None) == (pooled or name in ("fedper", "fedproto", "local_ssl"))
    assert ("linear_global_acc_mean" in last) == (not pooled)


# -- what is not finite -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Spoilt(FedPer):
    """The heads of some clients hold nothing but a number when they are tested."""

    number: float
    who: tuple[int, ...] = (1,)

    def evaluated(self, client: Client, message: Message, state: ClientState) -> dict[str, Tensors]:
        tested = super().evaluated(client, message, state)
        if client.id in self.who:
            tested["stale"]["head.weight"].fill_(self.number)
        return tested


NOT_FINITE = [(float("nan"), "head.weight is not finite"), (3e38, "its outputs are not finite")]


@pytest.mark.parametrize(("number", "reason"), NOT_FINITE)
def test_a_model_that_is_not_finite_has_no_accuracy_and_is_not_saved(
    number: float, reason: str, tmp_path: Path
) -> None:  # case 306
    outcome, whole = (
        run(build_runtime(Spoilt(number=number)), tmp_path / "a"),
        run(build_runtime(FedPer()), tmp_path / "b"),
    )
    assert [line["untested"] for line in outcome.lines] == [{"1": reason}] * 3
    for kind in ("personal", "fine_tuned"):
        told, expected = (o.lines[-1]["client_acc"][kind] for o in (outcome, whole))
        assert told == [expected[0], None, *expected[2:]]
    assert outcome.lines[-1]["client_acc"]["refreshed"] == whole.lines[-1]["client_acc"]["refreshed"]
    saved = {path.name for path in (tmp_path / "a" / "models").glob("*.safetensors")}
    assert not {name for name in saved if name.startswith(("client-00001-personal", "client-00001-fine_tuned"))}
    assert len(saved) == 4 + 3 + 3  # refreshed, personal and fine-tuned


def test_a_run_fails_if_no_client_has_a_model_that_can_be_tested(tmp_path: Path) -> None:
    runtime = build_runtime(Spoilt(number=3e38, who=(0, 1, 2, 3)), training=LocalTraining(lr=0.05, batch_size=16))
    for _ in range(2):  # and when it is resumed
        with pytest.raises(
            RunFailed, match=r"^no model can be tested; .*: its outputs are not finite; try .* lr \(0\.05"
        ):
            run(runtime, tmp_path / "out")


@dataclass(frozen=True, kw_only=True)
class Blown(FedAvg):
    """Its global model is of finite numbers, but says nothing that is one."""

    def global_model(self, server: Server, state: ServerState) -> Tensors:
        return {**state.tensors, "head.weight": torch.full_like(state.tensors["head.weight"], 3e38)}


def test_a_run_fails_if_its_global_model_cannot_be_tested(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"^no model can be tested; the first reason: its outputs are not finite"):
        run(build_runtime(Blown()), tmp_path / "out")
    assert RunFolder(tmp_path / "out").lines("metrics.jsonl")[0]["untested"] == {"global": "its outputs are not finite"}


@pytest.mark.parametrize("name", ["fedavg", "fedper"])
def test_a_fine_tuned_copy_that_diverged_has_no_accuracy_and_is_not_saved(name: str, tmp_path: Path) -> None:
    tuning = Phase(epochs=2, lr=1e30)
    last = run(build_runtime(name, federation(new=1), fine_tuning=tuning), tmp_path / "out").lines[-1]
    whole = run(build_runtime(name, federation(new=1), fine_tuning=None), tmp_path / "whole").lines[-1]
    names = {*(f"{id}, fine_tuned" for id in range(4)), "4, new_fine_tuned"}
    assert last["untested"] == dict.fromkeys(sorted(names), "body.conv1.0.weight is not finite")
    assert last["client_acc"]["fine_tuned"] == [None] * 4
    assert last["client_acc"]["new_fine_tuned"] == [None]
    assert last["fine_tuned_acc_mean"] is None
    for kind in ("personal", "new_global", "new_head"):
        assert last["client_acc"][kind] == whole["client_acc"][kind]
    assert not [*(tmp_path / "out" / "models").glob("*fine_tuned*")]


@dataclass(frozen=True, kw_only=True)
class SpoiltBody(LocalSSL):
    """The own network of client 1 cannot be tested."""

    def evaluated(self, client: Client, message: Message, state: ClientState) -> dict[str, Tensors]:
        return {name: {n: t * (torch.inf if client.id == 1 else 1) for n, t in tensors.items()}
                for name, tensors in super().evaluated(client, message, state).items()}  # fmt: skip


def test_no_linear_probe_is_fitted_to_what_is_not_finite(tmp_path: Path) -> None:
    last = run(build_runtime(SpoiltBody(hidden=32, out=16), rounds=1), tmp_path / "out").lines[-1]
    assert last["untested"] == {"1": "body.conv1.0.weight is not finite"}
    for kind in ("personal", "linear_global", "knn"):
        assert [accuracy is None for accuracy in last["client_acc"][kind]] == [False, True, False, False]
    assert not [*(tmp_path / "out" / "models").glob("client-00001-*")]


def test_a_linear_probe_of_representations_that_are_not_finite_is_told(tmp_path: Path) -> None:
    runtime = build_runtime("local", rounds=1, linear_probe=True)
    loud = {n: t.fill_(3e38) if n == "body.fc64.0.weight" else t for n, t in runtime.models[0].tensors().items()}
    with pytest.raises(NotFinite, match=r"^its representations are not finite$"):
        Evaluator(runtime).evaluate_representation(1, loud, final=True)
