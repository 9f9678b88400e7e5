"""What every method must keep; a new one joins by being registered (ARCHITECTURE.md, what keeps it true)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from kinfed.data import Federation, Partition, Samples
from kinfed.engine import ClientRuntime, SerialExecutor
from kinfed.engine.checks import fault
from kinfed.engine.evaluator import Evaluator
from kinfed.engine.executor import Task
from kinfed.engine.loop import sampled
from kinfed.learning import SGD
from kinfed.methods import METHODS, Memory, Message, Method
from kinfed.methods.fedavg import FedAvg
from kinfed.models import HEAD, Model
from tests.worlds import dataset, federation, parabolas, run, same, small, workshop

pytestmark = [pytest.mark.parametrize("name", METHODS), pytest.mark.usefixtures("global_generators")]

PARTIAL = 0.5  # of four clients


def test_the_same_config_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    first, again = (run(workshop(name, participation=PARTIAL), tmp_path / which) for which in "ab")
    assert first.lines == again.lines
    assert same(first.state, again.state)
    assert all(same(first.memories[id], again.memories[id]) for id in first.memories)
    assert first.memories.keys() == again.memories.keys()


def test_another_seed_gives_other_numbers(name: str, tmp_path: Path) -> None:
    first, other = (run(workshop(name, seed=seed), tmp_path / str(seed)) for seed in (0, 1))
    assert first.lines[-1]["train_loss"] != other.lines[-1]["train_loss"]


class Backwards(SerialExecutor):
    """Does the clients' work in the opposite order, as processes may finish it."""

    def update(self, tasks: Iterable[Task]):  # type: ignore[no-untyped-def]
        return super().update(reversed(list(tasks)))

    def evaluate(self, tasks: Iterable[Task]):  # type: ignore[no-untyped-def]
        return super().evaluate(reversed(list(tasks)))


def test_the_order_in_which_clients_finish_changes_nothing(name: str, tmp_path: Path) -> None:
    shop = workshop(name)
    forwards = run(shop, tmp_path / "a")
    backwards = run(shop, tmp_path / "b", Backwards())
    assert (tmp_path / "a" / "metrics.jsonl").read_bytes() == (tmp_path / "b" / "metrics.jsonl").read_bytes()
    assert same(forwards.state, backwards.state)


def test_resuming_equals_never_having_stopped(name: str, tmp_path: Path) -> None:  # case 106
    fields = {"rounds": 6, "participation": PARTIAL, "seed": 1, "lr_schedule": "step:0.5"}
    straight = run(workshop(name, **fields), tmp_path / "a")

    class Stopped(Exception):
        pass

    class Stops(SerialExecutor):
        def update(self, tasks: Iterable[Task]):  # type: ignore[no-untyped-def]
            yield from super().update(tasks)
            if len((tmp_path / "b" / "metrics.jsonl").read_text().splitlines()) == 4:
                raise Stopped

    shop = workshop(name, **fields, checkpoint_every=3)
    with pytest.raises(Stopped):  # in round 5; round 4 is done, but only round 3 is saved
        run(shop, tmp_path / "b", Stops())
    resumed = run(shop, tmp_path / "b")
    assert resumed.lines == straight.lines
    assert same(resumed.state, straight.state)
    assert all(same(resumed.memories[id], straight.memories[id]) for id in straight.memories)


def test_partial_participation_leaves_the_others_memories_alone(name: str, tmp_path: Path) -> None:  # cases 75, 78
    shop = workshop(name, rounds=3, participation=0.25)
    if METHODS[name].trains != "sampled":
        pytest.skip("everybody trains in every round")
    outcomes = {
        rounds: run(workshop(name, rounds=rounds, participation=0.25), tmp_path / str(rounds)) for rounds in (1, 2, 3)
    }
    for rounds in (2, 3):
        (took_part,) = sampled(len(shop.trained), 0.25, 0, rounds)
        before, after = outcomes[rounds - 1].memories, outcomes[rounds].memories
        assert all(same(before[id], after[id]) for id in before if id != took_part)
        assert after.keys() <= before.keys() | {took_part}
    assert all(not line["refused"] for line in outcomes[3].lines)


def snapshot(message: Message) -> Message:
    return Message({n: t.clone() for n, t in message.tensors.items()}, dict(message.numbers))


def after_one_round(shop: ClientRuntime):  # type: ignore[no-untyped-def]
    """State, then every client's message, upload and memory of the next round."""
    method = shop.method
    state, memories = method.init(shop.server(0)), {}
    for round in (1, 2):
        ids = range(len(shop.trained))
        messages = {id: method.download(state, id) for id in ids}
        answers = {id: shop.update(id, round, messages[id], memories.get(id, Memory())) for id in ids}
        uploads = {id: upload for id, (upload, _) in answers.items()}
        if round == 2:
            return state, messages, uploads, memories
        state = method.aggregate(shop.server(round), state, uploads)
        memories = {id: memory for id, (_, memory) in answers.items()}
    raise AssertionError


def test_nothing_changes_its_arguments(name: str) -> None:
    shop = workshop(name)
    state, messages, uploads, memories = after_one_round(shop)
    before = [snapshot(m) for m in (state, *messages.values(), *uploads.values(), *memories.values())]
    for id in messages:
        shop.update(id, 2, messages[id], memories[id])
        Evaluator(shop).evaluate(id, 3, messages[id], memories[id])  # the last round: with what is costly
    shop.method.aggregate(shop.server(2), state, uploads)
    shop.method.global_model(shop.server(2), state)
    shop.method.pictures(state)
    after = [state, *messages.values(), *uploads.values(), *memories.values()]
    assert all(same(a, b) for a, b in zip(before, after, strict=True))


def test_messages_hold_tensors_on_the_cpu_and_numbers_only(name: str) -> None:
    state, messages, uploads, memories = after_one_round(workshop(name))
    for message in (state, *messages.values(), *uploads.values(), *memories.values()):
        assert type(message) is Message
        for key, tensor in message.tensors.items():
            assert type(key) is str
            assert type(tensor) is torch.Tensor
            assert tensor.device.type == "cpu"
            assert not tensor.requires_grad
        assert all(type(k) is str and type(v) in (int, float) for k, v in message.numbers.items())


def test_uploads_are_as_the_method_says_they_are(name: str) -> None:
    shop = workshop(name)
    _, _, uploads, _ = after_one_round(shop)
    for id, upload in uploads.items():
        assert fault(upload, shop.method.upload_like(shop.server(2)), shop.samples) is None
        assert upload.numbers["samples"] == len(shop.trained.partition.train[id])
        assert upload.numbers["steps"] >= 1


def test_a_loss_is_told_in_its_parts(name: str, tmp_path: Path) -> None:  # case 332
    shop = workshop(name)
    _, _, uploads, _ = after_one_round(shop)
    for numbers in (upload.numbers for upload in uploads.values()):
        assert ("cross_entropy" in numbers) == shop.method.supervised
        if shop.method.supervised:
            assert numbers["loss"] == pytest.approx(numbers["cross_entropy"] + numbers.get("term", 0), rel=1e-6)
    line = run(shop, tmp_path / "out").lines[1]
    samples = [upload.numbers["samples"] for upload in uploads.values()]
    for told, number in (("train_loss", "loss"), ("train_cross_entropy", "cross_entropy"), ("train_term", "term")):
        values = [upload.numbers.get(number) for upload in uploads.values()]
        if None in values:
            assert line.get(told) is None
        else:
            assert line[told] == pytest.approx(np.average(values, weights=samples), rel=1e-9)  # type: ignore[arg-type]
    assert "train_cross_entropy" in line


def test_one_client_is_a_federation_too(name: str, tmp_path: Path) -> None:
    lines = run(workshop(name, federation(clients=1)), tmp_path / "out").lines
    assert len(lines) == 3
    assert not any(line["refused"] for line in lines)


def larger(fed: Federation) -> Federation:
    """The digits at 16×16, for models with BatchNorm."""
    grow = lambda s: replace(s, inputs=s.inputs.repeat_interleave(2, 2).repeat_interleave(2, 3))  # noqa: E731
    data = replace(fed.dataset, train=grow(fed.dataset.train), test=grow(fed.dataset.test))
    return replace(fed, dataset=data)


@pytest.mark.parametrize("model", ["tiny_cnn", "cnn4"])
def test_clients_of_very_different_sizes(name: str, model: str, tmp_path: Path) -> None:
    """One sample, two, thirty-three and many; one client without test samples."""
    data = dataset()
    ends = [24, 25, 27, 60, 240]
    cut = Partition(
        [np.arange(a, b) for a, b in itertools.pairwise(ends)],
        [np.arange(0), np.arange(0, 1), np.arange(1, 20), np.arange(20, 120)],
    )
    fed = Federation(data, cut, np.arange(24))
    last = run(workshop(name, larger(fed) if model == "cnn4" else fed, model=model), tmp_path / "out").lines[-1]
    assert not last["refused"]
    accuracies = last["client_acc"]["personal"]
    assert accuracies[0] is None
    assert all(0 <= a <= 1 for a in accuracies[1:])
    pooled = METHODS[name].trains == "pooled"
    if METHODS[name].supervised:
        alone_in_a_batch = not pooled and model == "cnn4"
        heads_alone = name in ("fedrep", "fedcrc")  # where BatchNorm is frozen, one sample will do
        # 1 sample, and 33 in batches of 16; the pooled client has 216, no batch of one
        expected = (2, 0 if heads_alone else 1) if alone_in_a_batch else (0, 0)
    else:  # BatchNorm whatever the model, and whole batches only: 2 are one, of 33 and 180 there are 1 and 4 left
        expected = (8, 0) if pooled else (6, 1)
    assert (last["skipped_samples"], last["zero_step_clients"]) == expected


class Forbidden(Samples):
    """Test samples that may not be looked at."""

    def take(self, rows: object) -> Samples:
        raise AssertionError("test data were read outside evaluation")

    def batch(self, rows: object) -> torch.Tensor:
        raise AssertionError("test data were read outside evaluation")


def test_no_method_reads_test_data_outside_evaluation(name: str) -> None:  # METHODS.md J.13
    fed = federation()
    test = fed.dataset.test
    hidden = replace(fed.dataset, test=Forbidden(test.inputs, test.labels, test.normalise))
    state, messages, uploads, memories = after_one_round(workshop(name, replace(fed, dataset=hidden)))
    shop = workshop(name, replace(fed, dataset=hidden))
    shop.method.aggregate(shop.server(2), state, uploads)
    for id in messages:
        shop.method.evaluated(shop.client(id, 3), messages[id], memories[id])


def test_test_data_change_no_model(name: str, tmp_path: Path) -> None:  # case 117
    fed = federation()
    flipped = replace(fed.dataset.test, labels=fed.dataset.test.labels.flip(0))  # type: ignore[union-attr]
    other = replace(fed, dataset=replace(fed.dataset, test=flipped))
    first, second = run(workshop(name, fed), tmp_path / "a"), run(workshop(name, other), tmp_path / "b")
    assert first.lines[-1]["personal_acc_mean"] != second.lines[-1]["personal_acc_mean"]
    assert same(first.state, second.state)
    for line, other in zip(first.lines, second.lines, strict=True):  # only what is called an accuracy is of test data
        assert {n: v for n, v in line.items() if "acc" not in n} == {n: v for n, v in other.items() if "acc" not in n}


def test_hyper_parameters_are_all_there_is_to_a_method(name: str) -> None:
    method = small(name)
    with pytest.raises(AttributeError):
        method.anything = 1  # type: ignore[attr-defined]
    before = vars(method).copy()
    after_one_round(workshop(method))
    assert vars(method) == before


def test_a_method_learns(name: str, tmp_path: Path) -> None:
    sgd = SGD(lr=0.1, momentum=0.5, batch_size=8, epochs=6)
    if METHODS[name].supervised:
        lines = run(workshop(name, rounds=12, sgd=sgd), tmp_path / "out").lines
        assert lines[-1]["train_loss"] < 0.8 * lines[0]["train_loss"]
        assert lines[-1]["personal_acc_weighted"] > 2 * 0.1  # twice that of guessing
    else:  # two views are soon alike; averaging online networks, with a target that lags behind, sets that back
        lines = run(workshop(name, rounds=8, sgd=sgd), tmp_path / "out").lines
        untrained = run(workshop(name, rounds=1, sgd=replace(sgd, lr=1e-9)), tmp_path / "untrained").lines[0]
        assert lines[-1]["train_loss"] < min(0.5 * untrained["train_loss"], untrained["train_loss"] - 0.5)


WANTED = np.linspace(-3.0, 7.0, 16).tolist()  # by sixteen clients of one weight, whose start is 0


def path_of_one_weight(method: Method, monkeypatch: pytest.MonkeyPatch, rounds: int) -> np.ndarray:
    """The global weight after each round, of which one client of the sixteen takes part.

    Skips where there is no global weight, or it is not what clients train.
    """
    if not (method.supervised and isinstance(method, FedAvg) and set(HEAD) <= {*method.shared}):
        pytest.skip("no head is learned and averaged")
    images, heads = method.requires.public_images, [set(HEAD) <= {*phase.train} for phase in method.phases()]
    if images or not all(heads):
        pytest.skip("needs more than one weight")
    sgd = SGD(lr=0.5, epochs=3, momentum=0.0)
    shop = parabolas(method, WANTED, monkeypatch, sgd=sgd, rounds=rounds, participation=1 / len(WANTED))
    state, memories, path = method.init(shop.server(0)), {}, []
    for round in range(1, rounds + 1):
        uploads = {}
        for id in sampled(len(shop.trained), 1 if method.trains == "pooled" else 1 / len(WANTED), 0, round):
            message = method.download(state, id)
            uploads[id], memories[id] = shop.update(id, round, message, memories.get(id, Memory()))
        state = method.aggregate(shop.server(round), state, uploads)
        served = method.global_model(shop.server(round), state)
        if served is None:
            pytest.skip("there is no global model")
        path.append(served["head.weight"].item())
    return np.array(path)


def assert_one_weight_is_learned(path: np.ndarray) -> None:
    """It comes to the mean of what the clients want, and is never more than the one that wants most, or less than any.

    A server that divides what came from few clients by their number, where it should by that of all, goes too far.
    """
    assert path[len(path) // 2 :].mean() == pytest.approx(np.mean(WANTED), abs=1)
    assert min(WANTED) <= path.min() <= path.max() <= max(WANTED)


def test_a_method_learns_one_weight_from_clients_that_seldom_take_part(  # case 354
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_one_weight_is_learned(path_of_one_weight(small(name), monkeypatch, rounds=240))


def test_a_method_says_whom_its_models_serve(name: str) -> None:
    shop = workshop(name)
    state, messages, _, memories = after_one_round(shop)
    method = shop.method
    assert (method.global_model(shop.server(2), state) is not None) == (method.serves != "private")
    clients = [method.evaluated(shop.client(id, 3), messages[id], memories[id]) for id in messages]
    if method.serves == "private":
        assert all(method.primary in own for own in clients)
    elif method.serves == "both":  # where clients have no models of their own, they fine-tune the global one
        assert all(clients) or (method.adapts and not any(clients))
    else:
        assert not any(clients)


def test_models_are_saved_after_the_last_round(name: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    shop = workshop(name)
    outcome = run(shop, tmp_path / "out")
    saved = {path.stem: load_file(path) for path in (tmp_path / "out" / "models").glob("*.safetensors")}
    names = set(shop.models[0].state_dict())
    assert saved
    assert all(tensors.keys() == names for tensors in saved.values())
    assert ("global" in saved) == (outcome.lines[-1]["global_acc"] is not None)
    for kind, accuracies in outcome.lines[-1]["client_acc"].items():
        if f"client-00000-{kind}" not in saved:
            continue
        for id, accuracy in enumerate(accuracies):
            model: Model = shop.client(id, 3).model
            model.load(saved[f"client-{id:05d}-{kind}"])
            test = shop.federation.test(id)
            right = model.eval()(test.batch(slice(None))).argmax(1) == test.labels
            assert right.double().mean().item() == pytest.approx(accuracy)
