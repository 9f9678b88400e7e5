"""What goes wrong at a site or on the way is told by name, and the round goes on with the other sites."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # otherwise the first step of an optimiser imports it, which takes seconds

pytest.importorskip("flwr")

import httpx
from flwr.app import Context, Error, Message, RecordDict
from safetensors.torch import save_file

from kinfed.data import Federation
from kinfed.engine import NoCallback
from kinfed.errors import InputError, RunFailed
from kinfed.experiment.config import Config
from kinfed.experiment.provenance import provenance
from kinfed.flower import executor, server_app
from kinfed.flower.executor import nodes_of
from kinfed.flower.federation import Introduction, agreed, refuse_impossible
from kinfed.flower.journal import journal_of, watch
from kinfed.flower.letters import Letter
from kinfed.flower.policy import Policy
from kinfed.flower.site import processor
from kinfed.models import build
from tests.flower.loop_grid import LoopGrid
from tests.flower.sites import at_sites, config_of, named_federation, run_at_sites


@pytest.fixture
def fed() -> Federation:
    return named_federation()


class Faulty(LoopGrid):
    """Grid on which something happens to the updates of node 102 (site-2) in round 2."""

    def fault(self, message: Message) -> Message:
        raise NotImplementedError

    def answered(self, message: Message) -> Message:
        about = Letter.of_record(message.content).about
        if (message.metadata.dst_node_id, about["kind"], about.get("round")) == (102, "update", 2):
            return self.fault(message)
        return super().answered(message)

    def changed(self, message: Message, **tensors: torch.Tensor) -> Message:
        letter = Letter.of_record(super().answered(message).content)
        return Message(Letter(letter.about, letter.tensors | tensors).record(), reply_to=message)


class Killed(Faulty):
    def fault(self, message: Message) -> Message:
        return Message(Error(8, "ClientApp stopped responding\nTraceback"), reply_to=message)


class NotANumber(Faulty):
    def fault(self, message: Message) -> Message:
        return self.changed(message, **{"head.bias": torch.full((10,), torch.nan)})


class WrongShape(Faulty):
    def fault(self, message: Message) -> Message:
        return self.changed(message, **{"head.bias": torch.zeros(3)})


class Garbage(Faulty):
    def fault(self, message: Message) -> Message:
        return Message(Letter({"numbers": 3}).record(), reply_to=message)


class Late(Faulty):
    """The answer comes when a later round has begun; and every other answer comes twice."""

    late: Message | None = None

    def fault(self, message: Message) -> Message:
        self.late = super(Faulty, self).answered(message)
        raise TimeoutError

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        given = [*messages]
        try:
            return super().push_messages(given)
        except TimeoutError:
            return [given[0].metadata.message_id]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        asked = [*message_ids]
        found = super().pull_messages(asked)
        late = self.late is not None and self.late.metadata.reply_to_message_id not in asked
        return [*found, *found, *([self.late] if late and self.late is not None else [])]


class Raising(Faulty):
    def fault(self, message: Message) -> Message:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("kinfed.methods.fedavg.train", failing)
            return super(Faulty, self).answered(message)


def failing(*_: Any, **__: Any) -> None:
    raise OSError("patient-0815.png is broken")


class Hanging(Faulty):
    def fault(self, message: Message) -> Message:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("kinfed.methods.fedavg.train", lambda *_, **__: time.sleep(60))
            return super(Faulty, self).answered(message)


REASONS = [
    (Killed, "its process ended without an answer"),
    (NotANumber, "head.bias is not finite"),
    (WrongShape, "head.bias has the shape (3,), not (10,)"),
    (Garbage, "its answer cannot be read: TypeError"),
    (Raising, "OSError; the file errors.log at the site says more"),
    pytest.param(Hanging, "no answer within 6 s", marks=pytest.mark.slow),
    pytest.param(Late, "no answer within 6 s", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("kind", "reason"), REASONS)
def test_a_fault_of_a_site_costs_its_work_in_one_round(
    kind: type[Faulty], reason: str, fed: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "GRACE", 0.0)
    config = config_of("fedavg", fed, participation=1.0)
    folder = run_at_sites(at_sites(fed, tmp_path, kind), config, fed, tmp_path / "out", timeout=6)
    first, second, third = folder.lines("metrics.jsonl")
    assert [line["refused"] for line in (first, second, third)] == [{}, {"2": reason}, {}]
    assert second["refused_names"] == {"2": "site-2"}
    assert not any(line["untested"] for line in (first, second, third))
    logs = [path.read_text() for path in tmp_path.rglob("errors.log")]
    assert any("patient-0815.png" in log for log in logs) == (kind is Raising)


def test_a_site_without_its_state_is_told_and_comes_back(fed: Federation, tmp_path: Path) -> None:
    class Forgetting(Faulty):
        def fault(self, message: Message) -> Message:
            for path in tmp_path.glob("site-2/state/runs/*/memories/*/*"):
                path.unlink()
            return super(Faulty, self).answered(message)

    config = config_of("fedper", fed, participation=1.0)
    folder = run_at_sites(at_sites(fed, tmp_path, Forgetting), config, fed, tmp_path / "out")
    lines = folder.lines("metrics.jsonl")
    reason = "its state after round 1 is missing or damaged"
    assert [line["refused"] for line in lines] == [{}, {"2": reason}, {"2": reason}]
    assert lines[-1]["untested"]["2"] == reason


def test_a_site_says_no_to_what_its_policy_does_not_allow(fed: Federation, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    for text, reason in (
        ('methods = ["fedavg"]', "method fedper is not allowed here; allowed: fedavg"),
        ("least_samples = 1000", "there are fewer than 1000 training samples here"),
    ):
        policy.write_text(text)
        assert not Policy.read(policy).refusal(["fedavg"], samples=2000)
        told = "; ".join(rf"node \d+ takes no part: site-{id}: {reason}" for id in range(4))
        with pytest.raises(InputError, match=f"^sites: {told}$"):
            run_at_sites(at_sites(fed, tmp_path, policy=str(policy)), config_of("fedper", fed), fed, tmp_path / "out")


def test_whoever_waits_for_nodes_is_told_how_many_are_there() -> None:
    class Coming(LoopGrid):
        looks = 0

        def get_node_ids(self) -> list[int]:
            self.looks += 1
            return super().get_node_ids()[: self.looks // 2]

    said: list[str] = []
    assert nodes_of(Coming([{}, {}]), 2, wait=60, say=said.append) == [100, 101]
    waits = "waits for the nodes of the sites: {} of 2 connected"
    assert said == [waits.format(0), waits.format(1)]


def test_a_run_that_is_stopped_at_the_superlink_says_so(tmp_path: Path) -> None:
    class Stopping(LoopGrid):
        def get_node_ids(self) -> list[int]:
            request = httpx.Request("POST", "https://127.0.0.1")
            raise httpx.HTTPStatusError("401", request=request, response=httpx.Response(401, request=request))

    config = Config.checked({"methods": ("fedavg",), "data": "<sites>", "clients": 2}, {"<sites>": None})
    out = tmp_path / "out"
    job = {"config": config.toml(), "out": str(out), "sites": 2, "timeout": 9.0, "images": "", "secret": ""}
    context = Context(1, 0, {}, RecordDict(), {**job, "journal": str(journal_of(out))})
    with pytest.raises(httpx.HTTPStatusError):
        server_app.main(Stopping([]), context)
    with pytest.raises(RunFailed, match="somebody has stopped it, or the SuperLink has lost its database"):
        watch(out, lambda *_: NoCallback())


def test_the_server_cannot_name_a_file_of_a_site(fed: Federation, tmp_path: Path) -> None:
    private = tmp_path / "private.safetensors"
    save_file(build("tiny_cnn", (1, 8, 8), 10, 7).tensors(), private)

    class Naming(LoopGrid):
        def answered(self, message: Message) -> Message:
            letter = Letter.of_record(message.content)
            named = letter.about["config"].replace("model = ", f'weights = "{private}"\nmodel = ')
            assert str(private) in named
            for name, record in Letter({**letter.about, "config": named}, letter.tensors).record().items():
                message.content[name] = record
            return super().answered(message)

    config = config_of("fedper", fed, rounds=1)  # the heads start from the initial weights
    lines = [
        run_at_sites(
            at_sites(fed, tmp_path / kind.__name__, kind), config, fed, tmp_path / f"of-{kind.__name__}"
        ).lines("metrics.jsonl")
        for kind in (LoopGrid, Naming)
    ]
    assert lines[0] == lines[1]


def test_a_method_that_sends_class_counts_is_refused_where_they_may_not_be_told() -> None:
    reason = "method fedproto sends class counts, which may not be told here"
    assert Policy(class_counts=False).refusal(["fedavg", "fedproto"], samples=10) == reason
    assert Policy().refusal(["fedavg", "fedproto"], samples=10) is None


def test_a_site_answers_as_often_as_its_policy_allows(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("most_per_hour = 3")
    asked = tmp_path / "asked.json"
    read = Policy.read(policy)
    assert [read.asked_too_often(asked) for _ in range(4)] == [None] * 3 + ["it answers at most 3 messages in an hour"]


def test_code_of_others_runs_at_a_site_only_if_its_policy_names_it(fed: Federation, tmp_path: Path) -> None:
    config = config_of("fedavg", fed, model="tests.flower.test_faults:model", rounds=1)
    reason = "tests.flower.test_faults:model is code of others, which is not allowed here"
    with pytest.raises(InputError, match=reason):
        run_at_sites(at_sites(fed, tmp_path), config, fed, tmp_path / "no")
    (tmp_path / "policy.toml").write_text('code = ["tests.flower.test_faults:model"]')
    grid = at_sites(fed, tmp_path / "yes", policy=str(tmp_path / "policy.toml"))
    assert run_at_sites(grid, config, fed, tmp_path / "out").lines("metrics.jsonl")[0]["refused"] == {}


def model(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(shape[1] * shape[2], classes))


VERSION = provenance("cpu").get("kinfed", "")
TOLD = Introduction(
    name="north", kinfed=VERSION, torch=torch.__version__, processor=processor(), shape=(1, 8, 8), type="uint8",
    classes=("0", "1"), train=2, test=1, counts=((1, 1), (1, 0)), mean=(1.0,), std=(1.0,), sums=None,
)  # fmt: skip


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({}, "sites: 2 nodes have the name 'north'; each must have its own"),
        ({"name": "south", "shape": (3, 8, 8)}, "sites: south has inputs of shape 3×8×8, but north has 1×8×8"),
        ({"name": "south", "kinfed": "0.0.9"}, "sites: south has kinfed 0.0.9, but the server"),
        ({"name": "south", "classes": (), "counts": None}, "has labels, and the other has none"),
        ({"name": "south", "mean": (2.0,)}, "sites: their features are standardised differently"),
    ],
)
def test_sites_that_do_not_fit_are_told_by_name(other: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        agreed([TOLD, TOLD.model_copy(update=other)])


def test_classes_of_all_sites_are_joined_in_their_order() -> None:
    south = TOLD.model_copy(update={"name": "south", "classes": ("1", "10"), "counts": ((2, 0), (0, 1))})
    federation = agreed([TOLD, south])
    assert federation.classes == ("0", "1", "10")
    assert federation.class_counts().tolist() == [[1, 1, 0], [0, 2, 0]]
    assert federation.test_class_counts().tolist() == [[1, 0, 0], [0, 0, 1]]


@pytest.mark.parametrize(
    ("method", "fields", "message"),
    [
        ("central", {}, "methods: central trains on all samples at one place"),
        ("fedavg", {"new_clients": 1, "clients": 4}, "new_clients: needs samples of all clients at one place"),
        ("fedbyol", {"linear_probe": None}, "methods: fedbyol reads no labels"),
    ],
)
def test_what_needs_all_samples_at_one_place_is_refused(
    method: str, fields: dict[str, Any], message: str, fed: Federation
) -> None:
    with pytest.raises(InputError, match=message):
        refuse_impossible(config_of(method, fed, **fields))
