"""FedSHIBU and FedAvg + CRSM: reductions, and every similarity and row weighting of specification C.4."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kinfed.data import Federation, Partition
from kinfed.engine import ClientRuntime
from kinfed.engine.checks import upload_error
from kinfed.errors import InputError
from kinfed.experiment.config import Config
from kinfed.learning import LocalTraining, activations, features
from kinfed.methods import ClientState, Message, Method, ServerState, client_similarity
from kinfed.methods.crsm import CRSMMixing
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.fedavg_crsm import FedAvgCRSM
from kinfed.methods.fedbabu import FedBABU
from kinfed.methods.fedshibu import FedSHIBU
from kinfed.methods.local import Local
from kinfed.methods.row_weights import Norm
from kinfed.models import ALL, ARCHITECTURES, BODY, HEAD, Model, Part, Tensors, build, from_module, select
from kinfed.similarity import cka, class_means
from kinfed.streams import torch_stream
from tests.builders import build_runtime, close, dataset, equal_sizes, run, same

MATRICES = ("crsm", "weights")
SOURCES = ("probe", "local_random", "local_sorted", "local_feature_cov", "local_class_mean")


def mixture(state: ServerState, id: int) -> Tensors:
    return {n: rows[id] for n, rows in state.tensors.items() if n not in MATRICES}


def first_round(
    method: CRSMMixing, fed: Federation | None = None
) -> tuple[ClientRuntime, ServerState, dict[int, Message]]:
    runtime = build_runtime(method, fed)
    state = method.init(runtime.server(0))
    clients = range(len(runtime.trained))
    return runtime, state, {id: runtime.update(id, 1, method.download(state, id), ClientState())[0] for id in clients}


def two_groups() -> Federation:
    """Two clients of the digits 0 to 4, two of 5 to 9, and a probe of all."""
    data = dataset(600, 120)
    assert data.train.labels is not None
    high = (data.train.labels >= 5).numpy()
    low_rows, high_rows = (60 + np.flatnonzero(high[60:] == side) for side in (False, True))
    cut = Partition([*np.array_split(low_rows, 2), *np.array_split(high_rows, 2)], np.array_split(np.arange(120), 4))
    return Federation(data, cut, np.arange(60))


def with_similarity(monkeypatch: pytest.MonkeyPatch, matrix: Tensor) -> None:
    monkeypatch.setattr(client_similarity, "similarity_matrix", lambda representations, *_, **__: matrix)


# -- reductions -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.independent("fedshibu", "fedavg_crsm")
@pytest.mark.parametrize("norm", ["distance", "minmax", "sum", "softmax", "power"])
@pytest.mark.parametrize(("mixing", "plain"), [(FedSHIBU, FedBABU), (FedAvgCRSM, FedAvg)])
def test_equal_similarities_give_the_plain_mean(
    norm: Norm,
    mixing: type[CRSMMixing],
    plain: type[Method],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_similarity(monkeypatch, torch.ones(4, 4, dtype=torch.float64))
    fed = equal_sizes()
    mixed, mean = (run(build_runtime(m, fed), tmp_path / n) for m, n in ((mixing(norm=norm), "m"), (plain(), "p")))
    for id in range(4):
        assert close(mixture(mixed.state, id), mean.state.tensors)
    assert mixed.lines[-1]["client_acc"]["personal"] == mean.lines[-1]["client_acc"]["personal"]


@dataclass(frozen=True, kw_only=True)
class LocalBody(FedBABU, Local):
    """Each client trains a body of its own under the initial head, alone."""

    shared: ClassVar[Part] = ()
    private: ClassVar[Part] = BODY


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["minmax", "sum", "power"])
@pytest.mark.parametrize(("mixing", "alone"), [(FedSHIBU, LocalBody), (FedAvgCRSM, Local)])
def test_similarity_to_oneself_alone_is_isolated_training(
    norm: Norm,
    mixing: type[CRSMMixing],
    alone: type[Method],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_similarity(monkeypatch, torch.eye(4, dtype=torch.float64))
    mixed, local = (run(build_runtime(m), tmp_path / n) for m, n in ((mixing(norm=norm), "m"), (alone(), "l")))
    for id in range(4):
        assert same(mixture(mixed.state, id), local.client_states[id].tensors)


def test_permuting_the_clients_permutes_the_mixtures_only() -> None:
    runtime, state, uploads = first_round(FedSHIBU())
    order = [2, 0, 3, 1]
    straight = runtime.method.aggregate(runtime.server(1), state, uploads)
    permuted = runtime.method.aggregate(runtime.server(1), state, {i: uploads[o] for i, o in enumerate(order)})
    for new, old in enumerate(order):
        assert close(mixture(straight, old), mixture(permuted, new))
    for name in MATRICES:
        assert torch.allclose(straight.tensors[name][order][:, order], permuted.tensors[name])


def test_clients_that_took_no_part_keep_their_mixture_and_are_not_compared(tmp_path: Path) -> None:
    runtime = build_runtime("fedshibu", participation=0.5, rounds=1)
    outcome = run(runtime, tmp_path / "out")
    took_part = outcome.lines[0]["clients"]
    initial = build("tiny_cnn", (1, 8, 8), 10, 0).tensors(BODY)
    for id in range(4):
        assert same(runtime.method.download(outcome.state, id).tensors, initial) == (id not in took_part)
    for name in MATRICES:
        known = ~outcome.state.tensors[name].isnan()
        assert known.nonzero().tolist() == [[a, b] for a in took_part for b in took_part]


def test_the_head_of_fedshibu_stays_as_it_was(tmp_path: Path) -> None:
    runtime = build_runtime("fedshibu")
    outcome = run(runtime, tmp_path / "out")
    shown = runtime.method.evaluated(runtime.client(0, 3), runtime.method.download(outcome.state, 0), ClientState())[
        "mixture"
    ]
    assert same(select(shown, HEAD), build("tiny_cnn", (1, 8, 8), 10, 0).tensors(HEAD))
    assert not any(name.startswith(HEAD) for name in outcome.state.tensors)


def test_fedavg_crsm_may_leave_heads_where_they_are() -> None:
    runtime, state, uploads = first_round(FedAvgCRSM(mix_head=False, norm="sum"))
    after = runtime.method.aggregate(runtime.server(1), state, uploads)
    whole = FedAvgCRSM(norm="sum").aggregate(runtime.server(1), state, uploads)
    for id, upload in uploads.items():
        assert same(select(mixture(after, id), HEAD), select(upload.tensors, HEAD))
        assert same(select(mixture(after, id), BODY), select(mixture(whole, id), BODY))
        assert not same(select(mixture(whole, id), HEAD), select(upload.tensors, HEAD))


def test_fedavg_crsm_may_start_from_the_initial_head_as_printed() -> None:
    runtime, state, uploads = first_round(FedAvgCRSM(reset_head=True))
    state = runtime.method.aggregate(runtime.server(1), state, uploads)
    message = runtime.method.download(state, 0)
    reset = runtime.update(0, 2, message, ClientState())[0]
    initial = Message({**message.tensors, **build("tiny_cnn", (1, 8, 8), 10, 0).tensors(HEAD)})
    assert same(FedAvgCRSM().update(runtime.client(0, 2), initial, ClientState())[0], reset)
    assert not same(FedAvgCRSM().update(runtime.client(0, 2), message, ClientState())[0], reset)


# -- which rows are compared ------------------------------------------------------------------------------------------


def gap(method: CRSMMixing, seed: int) -> float:
    """Similarity within the two groups less that across, after three rounds."""
    runtime = build_runtime(method, two_groups(), seed=seed, training=LocalTraining(lr=0.1, batch_size=16, epochs=2))
    state = method.init(runtime.server(0))
    for round in (1, 2, 3):
        uploads = {id: runtime.update(id, round, method.download(state, id), ClientState())[0] for id in range(4)}
        state = method.aggregate(runtime.server(round), state, uploads)
    matrix = state.tensors["crsm"]
    return float((matrix[0, 1] + matrix[2, 3]) / 2 - matrix[:2, 2:].mean())


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"kernel": "rbf"},
        {"debiased": True},
        {"compared": "change"},
        {"compared": "prediction"},
        {"compared": "mean_prediction"},
        {"rep_source": "local_feature_cov"},
        {"rep_source": "local_class_mean"},
    ],
)
def test_the_crsm_tells_two_groups_with_disjoint_classes_apart(fields: dict[str, Any]) -> None:  # specification J.10
    assert all(gap(FedSHIBU(**fields), seed) > 0.01 for seed in (0, 1))


@pytest.mark.slow
def test_the_literal_crsm_does_not() -> None:  # specification J.10, SHIBU-1
    literal = [gap(FedSHIBU(rep_source="local_random"), seed) for seed in range(6)]
    sorted_rows = [gap(FedSHIBU(rep_source="local_sorted"), seed) for seed in range(3)]
    told = [gap(FedSHIBU(), seed) for seed in range(3)]
    assert abs(float(np.mean(literal))) < 0.2 * float(np.mean(told))
    assert abs(float(np.mean(sorted_rows))) < float(np.mean(told))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("samples", [20, 100])  # fewer and more than the clients have
def test_uploads_of_every_source_are_as_announced(source: client_similarity.RepSource, samples: int) -> None:
    runtime, state, uploads = first_round(FedSHIBU(rep_source=source, samples=samples))
    assert all(
        upload_error(u, runtime.method.upload_like(runtime.server(1)), runtime.samples) is None
        for u in uploads.values()
    )
    after = runtime.method.aggregate(runtime.server(1), state, uploads)
    assert torch.allclose(after.tensors["crsm"].diagonal(), torch.ones(4, dtype=torch.float64))
    rows = {"probe": 0, "local_class_mean": 10}.get(source, samples)
    plain = FedBABU().upload_like(runtime.server(1))
    assert uploads[0].nbytes == sum(t.nbytes for t in plain.values()) + 4 * 64 * rows


def test_own_samples_are_the_clients_and_drawn_anew_each_round() -> None:
    runtime, state, uploads = first_round(FedSHIBU(rep_source="local_random", samples=20))
    told = uploads[1].tensors["representation"]
    model = runtime.client(1, 1).model
    model.load(select(uploads[1].tensors, BODY))
    distance = torch.cdist(told, features(model, runtime.trained.train(1)))
    assert distance.amin(dim=1).max() < 1e-2 * distance.median()
    assert len(set(distance.argmin(dim=1).tolist())) == 20  # without replacement
    later = runtime.update(1, 2, runtime.method.download(state, 1), ClientState())[0]
    assert set(distance.argmin(dim=1).tolist()) != set(
        torch.cdist(later.tensors["representation"], features(model, runtime.trained.train(1))).argmin(dim=1).tolist()
    )


def test_sorted_samples_are_the_random_ones_by_label() -> None:
    runtime, _, uploads = first_round(FedSHIBU(rep_source="local_sorted", samples=20))
    _, _, unsorted = first_round(FedSHIBU(rep_source="local_random", samples=20))
    model = runtime.client(1, 1).model
    model.load(select(uploads[1].tensors, BODY))
    own = runtime.trained.train(1)
    assert own.labels is not None
    told = uploads[1].tensors["representation"]
    labels = own.labels[torch.cdist(told, features(model, own)).argmin(dim=1)]
    assert labels.tolist() == sorted(labels.tolist())
    other = unsorted[1].tensors["representation"]
    assert torch.allclose(told.sort(dim=0).values, other.sort(dim=0).values)


def test_class_means_are_of_the_clients_classes() -> None:
    runtime, _, uploads = first_round(FedSHIBU(rep_source="local_class_mean", samples=500), two_groups())
    model = runtime.client(0, 1).model
    model.load(select(uploads[0].tensors, BODY))
    own = runtime.trained.train(0)
    assert own.labels is not None
    told = uploads[0].tensors["representation"]
    assert not told[5:].any()  # classes that the client lacks
    whole = class_means(features(model, own), own.labels, 10)
    assert torch.cosine_similarity(told[:5], whole[:5]).min() > 0.99  # 500 draws of 135 samples weigh them nearly alike


def test_the_change_of_a_representation_is_what_the_round_did() -> None:
    runtime, state, uploads = first_round(FedSHIBU(compared="change"))
    after = runtime.method.aggregate(runtime.server(1), state, uploads).tensors["crsm"]
    assert runtime.federation.public_images is not None
    changes = []
    for id in (0, 1):
        model = runtime.client(id, 1).model
        before = features(model, runtime.federation.public_images)
        model.load(uploads[id].tensors)
        changes.append(features(model, runtime.federation.public_images) - before)
    assert after[0, 1].item() == pytest.approx(float(cka(changes[0], changes[1])), abs=1e-6)


def test_mean_predictions_are_compared_by_their_cosine() -> None:
    runtime, state, uploads = first_round(FedSHIBU(compared="mean_prediction"))
    after = runtime.method.aggregate(runtime.server(1), state, uploads).tensors["crsm"]
    assert runtime.federation.public_images is not None
    mean = []
    for id in (0, 3):
        model = runtime.client(id, 1).model
        model.load(uploads[id].tensors)
        mean.append(model(runtime.federation.public_images.batch(slice(0, 24))).softmax(dim=1).mean(dim=0))
    assert after[0, 3].item() == pytest.approx(torch.cosine_similarity(mean[0], mean[1], dim=0).item(), abs=1e-6)


# -- every stage by its own similarity ------------------------------------------------------------------------------


def similarities(runtime: ClientRuntime, uploads: dict[int, Message], stage: str) -> Tensor:
    """Of client 1 to each of the clients, by hand."""
    probe = runtime.federation.public_images
    assert probe is not None
    seen = []
    for id, upload in uploads.items():
        model = runtime.client(id, 1).model
        model.load(upload.tensors)
        seen.append(activations(model, probe, [stage])[0])
    return torch.stack([cka(seen[1], other) for other in seen]).double()


@pytest.mark.independent("fedshibu")
@pytest.mark.parametrize("norm", ["power", "distance"])
def test_each_stage_is_mixed_by_the_similarity_of_its_own_outputs(norm: Norm) -> None:
    fields: dict[str, Any] = {"norm": norm, "gamma": 8.0, "reach": 0.5}
    method = FedSHIBU(layers="each", **fields)
    runtime, state, uploads = first_round(method)
    after = method.aggregate(runtime.server(1), state, uploads)
    representation = similarities(runtime, uploads, "fc64")
    scale = (1 - representation).sum() / 3  # mean over the three others; of the last stage, whichever is mixed
    for stage in ("conv1", "conv2", "fc64"):
        row = similarities(runtime, uploads, stage)
        row = row**8 if norm == "power" else (-(1 - row) / (0.5 * scale)).exp()
        name = next(name for name in uploads[0].tensors if name.startswith(f"body.{stage}."))
        tensors = torch.stack([upload.tensors[name] for upload in uploads.values()]).double()
        expected = torch.tensordot(row / row.sum(), tensors, dims=1)
        assert torch.allclose(mixture(after, 1)[name].double(), expected, atol=1e-5)
    plain = FedSHIBU(layers="last", **fields).aggregate(runtime.server(1), state, uploads)
    for name in MATRICES:  # the picture is that of the representation
        assert torch.allclose(after.tensors[name], plain.tensors[name])
    assert not close(mixture(after, 1), mixture(plain, 1))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [*ARCHITECTURES])
def test_every_tensor_of_every_architecture_is_mixed_once(architecture: str) -> None:
    model = build(architecture, (3, 32, 32), 10, 0)
    parts = FedAvgCRSM(layers="each").parts(model, ALL)
    covered = [name for part in parts.values() for name in select(model.state_dict(), part)]
    assert sorted(covered) == sorted(model.state_dict())
    assert all(tap in (*model.taps, "body") for tap in parts)
    assert [*parts.values()][-1][-1:] == HEAD


def test_stages_that_are_no_tap_points_are_mixed_by_the_representation() -> None:
    stages = {"first": nn.Linear(4, 4), "seen": nn.Linear(4, 4), "relu": nn.ReLU(), "third": nn.Linear(4, 4)}
    parts = FedSHIBU().parts(Model(stages, nn.Linear(4, 2), ["seen"]), BODY)
    assert parts == {"seen": ("body.seen.",), "body": ("body.first.", "body.third.", *HEAD)}


def test_a_body_of_one_stage_is_mixed_by_the_representation() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    runtime = build_runtime(FedSHIBU(), wrap=lambda _: from_module(module, "3"))
    state = runtime.method.init(runtime.server(0))
    uploads = {id: runtime.update(id, 1, runtime.method.download(state, id), ClientState())[0] for id in range(4)}
    each, last = (FedSHIBU(layers=layers).aggregate(runtime.server(1), state, uploads) for layers in ("each", "last"))  # type: ignore[arg-type]
    assert same(each, last)


def test_settings_that_mean_nothing_are_refused() -> None:
    with pytest.raises(InputError, match="compared: 'change' is not allowed with rep_source 'local_random'"):
        FedSHIBU(rep_source="local_random", compared="change")
    with pytest.raises(InputError, match="kernel, debiased"):
        FedSHIBU(rep_source="local_class_mean", kernel="rbf")
    with pytest.raises(InputError, match=r"^fedshibu\.kernel, debiased"):
        Config.checked(
            {"methods": ("fedshibu",), "settings": {"fedshibu": {"compared": "mean_prediction", "debiased": 1}}}
        )


def test_only_the_probe_needs_images_at_the_server() -> None:
    with pytest.raises(InputError, match="public: 0 is too few"):
        Config.checked({"methods": ("fedshibu",), "public": 0})
    Config.checked(
        {"methods": ("fedshibu",), "public": 0, "settings": {"fedshibu": {"rep_source": "local_class_mean"}}}
    )


# -- from similarities to weights -------------------------------------------------------------------------------------

NORMS = ("distance", "minmax", "sum", "softmax", "power", "topk")
C = torch.tensor([[1.0, 0.5, 0.0], [0.5, 1.0, 0.75], [0.0, 0.75, 1.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("fields", "row", "expected"),
    [
        ({"norm": "sum"}, 0, [2 / 3, 1 / 3, 0]),
        ({"norm": "minmax"}, 1, [0, 2 / 3, 1 / 3]),  # 0, 1, 0.5 before the division
        ({"norm": "power", "gamma": 2.0}, 0, [0.8, 0.2, 0]),
        ({"norm": "softmax", "temperature": 0.5}, 0, [0.66524096, 0.24472847, 0.09003057]),  # softmax of 2, 1, 0
        ({"norm": "distance", "reach": 0.5}, 0, [0.75014, 0.19774, 0.05212]),  # of 0, 0.5, 1 with the mean 0.75
        ({"norm": "topk", "k": 1}, 0, [0.5, 0.5, 0]),
        ({"norm": "topk", "k": 1}, 1, [0, 0.5, 0.5]),
        ({"norm": "topk", "k": 9}, 0, [1 / 3, 1 / 3, 1 / 3]),
        ({"norm": "own", "own": 0.4}, 1, [0.3, 0.4, 0.3]),
        ({"norm": "sum", "include_self": False}, 1, [0.4, 0, 0.6]),
        ({"norm": "minmax", "include_self": False}, 1, [0, 0, 1]),
        ({"norm": "topk", "k": 1, "include_self": False}, 0, [0, 1, 0]),
        ({"norm": "sum", "size_weights": True}, 1, [0.5 / 4.75, 2 / 4.75, 2.25 / 4.75]),
    ],
)  # fmt: skip
def test_rows_become_weights(fields: dict[str, Any], row: int, expected: list[float]) -> None:
    counts = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    weights = FedSHIBU(**fields).row_weights(C, counts, C)
    assert torch.allclose(weights[row], torch.tensor(expected, dtype=torch.float64), atol=1e-5)
    assert torch.allclose(weights.sum(dim=1), torch.ones(3, dtype=torch.float64))


def test_a_control_without_a_similarity_would_do_nothing() -> None:
    assert FedSHIBU(norm="own").idle["control"] == "a norm that has a similarity"
    assert "control" not in FedSHIBU().idle


def test_controls_keep_own_weights_and_take_the_similarity_away() -> None:
    stream = torch_stream(0, "test")
    weights = torch.rand(6, 6, generator=stream, dtype=torch.float64)
    weights /= weights.sum(dim=1, keepdim=True)
    erased = FedSHIBU(control="erased").controlled(weights, stream)
    permuted = FedSHIBU(control="permuted").controlled(weights, stream)
    for matrix in (erased, permuted):
        assert torch.equal(matrix.diagonal(), weights.diagonal())
        assert torch.allclose(matrix.sum(dim=1), torch.ones(6, dtype=torch.float64))
    others = ~torch.eye(6, dtype=torch.bool)
    assert torch.allclose(erased[others].view(6, 5), ((1 - weights.diagonal()) / 5)[:, None])
    assert torch.equal(permuted[others].view(6, 5).sort(dim=1).values, weights[others].view(6, 5).sort(dim=1).values)
    assert not torch.equal(permuted, weights)
    assert FedSHIBU().controlled(weights, stream) is weights


@pytest.mark.independent("fedshibu")
def test_the_erased_control_of_equal_weights_is_a_mean(tmp_path: Path) -> None:
    """Without any similarity, equal weights are FedBABU's mean."""
    fed = equal_sizes()
    own = run(build_runtime(FedSHIBU(norm="own", own=0.25), fed), tmp_path / "own")
    mean = run(build_runtime(FedBABU(), fed), tmp_path / "mean")
    assert close(mixture(own.state, 2), mean.state.tensors)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("include_self", [True, False])
def test_an_undefined_similarity_weighs_nothing_and_shifts_nobody(norm: Norm, include_self: bool) -> None:
    undefined = torch.full((4, 4), torch.nan, dtype=torch.float64)  # case 72
    undefined[:3, :3] = C
    method, counts = FedSHIBU(norm=norm, include_self=include_self, k=1), torch.ones(4, dtype=torch.float64)
    weights = method.row_weights(undefined, counts, undefined)
    assert torch.allclose(weights[:3, :3], method.row_weights(C, counts[:3], C))
    assert not weights[:3, 3].any()
    assert weights[3].tolist() == [0, 0, 0, 1]  # whom nothing is known of keeps its own


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("include_self", [True, False])
def test_one_client_alone_keeps_its_body(norm: Norm, include_self: bool) -> None:
    alone = torch.ones(1, 1, dtype=torch.float64)
    assert FedSHIBU(norm=norm, include_self=include_self).row_weights(alone, alone[0], alone).tolist() == [[1.0]]


@pytest.mark.parametrize("norm", ["minmax", "sum"])
@pytest.mark.filterwarnings("ignore:.*constant")
def test_a_body_of_zeros_cannot_be_compared_and_stays_alone(norm: Norm) -> None:  # case 72
    runtime, state, uploads = first_round(FedSHIBU(norm=norm))
    zeros = {n: torch.zeros_like(t) for n, t in uploads[0].tensors.items()}
    after = runtime.method.aggregate(runtime.server(1), state, {**uploads, 0: Message(zeros, uploads[0].numbers)})
    for id in range(4):
        for tensor in mixture(after, id).values():
            assert tensor.isfinite().all()
            assert tensor.any() == (id != 0)
