"""Differential privacy: the arithmetic of the noisy mean, its reductions, the loss that is told, what is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from kinfed.errors import InputError
from kinfed.experiment.configure import configure
from kinfed.methods import METHODS, Message, Server, ServerState, make_method
from kinfed.methods.dp import CLIP, DP, NOISE
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.fedprox import FedProx
from kinfed.methods.privacy_loss import epsilon, noise_for
from kinfed.models import build
from kinfed.streams import numpy_stream, with_secret
from kinfed.testing import complete_run, small_runtime, trial_fields

WEIGHT = "head.weight"


def server(cohort: int, round: int = 1) -> Server:
    model = build("mlp", (4,), 2, 0)
    return Server(model=model, seed=0, round=round, rounds=10, clients=cohort, cohort=cohort, public_images=None)


def begun(method: DP, at: Server) -> ServerState:
    return method.init(at)


def moved(state: ServerState, by: dict[str, float], samples: int = 1) -> Message:
    """An upload that moves one entry of some tensors."""
    tensors = {name: tensor.clone() for name, tensor in state.tensors.items()}
    for name, step in by.items():
        tensors[name].view(-1)[0] += step
    return Message(tensors, {"samples": samples})


def first(state: ServerState) -> float:
    return float(state.tensors[WEIGHT].view(-1)[0])


@pytest.mark.independent("dp")
def test_a_long_update_is_shortened_to_the_clipping_norm_and_a_short_one_is_not() -> None:
    at = server(2)
    method = DP(FedAvg(), noise=1e-9, clip=0.5)
    state = begun(method, at)
    after = method.aggregate(at, state, {0: moved(state, {WEIGHT: 3.0}), 1: moved(state, {WEIGHT: -0.25})})
    assert first(after) - first(state) == pytest.approx((0.5 - 0.25) / 2, abs=1e-6)


def test_clients_have_the_same_weight_whatever_their_samples() -> None:
    at = server(2)
    method = DP(FedAvg(), noise=1e-9, clip=10.0)
    state = begun(method, at)
    uploads = {0: moved(state, {WEIGHT: 1.0}, samples=1), 1: moved(state, {WEIGHT: 0.0}, samples=99)}
    assert first(method.aggregate(at, state, uploads)) - first(state) == pytest.approx(0.5, abs=1e-6)


def test_the_sum_is_divided_by_the_clients_that_were_drawn_even_if_one_sent_nothing() -> None:
    at = server(4)
    method = DP(FedAvg(), noise=1e-9, clip=10.0)
    state = begun(method, at)
    after = method.aggregate(at, state, {0: moved(state, {WEIGHT: 1.0})})
    assert first(after) - first(state) == pytest.approx(0.25, abs=1e-6)


def test_the_noise_has_the_standard_deviation_of_multiplier_and_clip_over_clients() -> None:
    at = server(5)
    method = DP(FedAvg(), noise=2.0, clip=0.5)
    state = begun(method, at)
    after = method.aggregate(at, state, {0: moved(state, {})})
    noise = torch.cat([(after.tensors[n] - t).flatten() for n, t in state.tensors.items()])
    assert float(noise.std()) == pytest.approx(2.0 * 0.5 / 5, rel=0.05)  # 41,402 draws: 0.35 % standard error
    drawn = numpy_stream(0, "dp noise", repr(method), 1).standard_normal(len(noise)) * 0.2
    named = torch.cat([state.tensors[n].flatten() for n in FedAvg().parameters(at)])
    got = torch.cat([after.tensors[n].flatten() for n in FedAvg().parameters(at)])
    torch.testing.assert_close(got.double() - named.double(), torch.from_numpy(drawn), atol=1e-6, rtol=0)


def test_every_round_has_noise_of_its_own() -> None:
    method = DP(FedAvg(), noise=1.0)
    state = begun(method, server(2))
    one, other = (method.aggregate(server(2, round), state, {0: moved(state, {})}) for round in (1, 2))
    assert not torch.equal(one.tensors[WEIGHT], other.tensors[WEIGHT])


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if DP.wraps(kind)])
def test_what_can_be_protected_uses_nothing_of_the_uploads_but_their_mean(name: str) -> None:
    method = make_method(name, trial_fields(METHODS[name]))
    runtime = small_runtime(method)
    state = method.init(runtime.server(0))
    like = method.upload_like(runtime.server(1))
    stream = torch.Generator().manual_seed(0)
    uploads = {
        id: Message({n: t + torch.randn(t.shape, generator=stream) if t.is_floating_point() else t
                     for n, t in like.items()}, {"samples": 10 + id})
        for id in range(3)
    }  # fmt: skip
    shares = [(10 + id) / 33 for id in range(3)]
    mean = {n: sum(s * u.tensors[n].double() for s, u in zip(shares, uploads.values(), strict=True)).to(t.dtype)
            if t.is_floating_point() else t for n, t in like.items()}  # fmt: skip
    several = method.aggregate(runtime.server(1), state, uploads)
    alone = method.aggregate(runtime.server(1), state, {0: Message(mean, {"samples": 1})})
    assert several.tensors.keys() == alone.tensors.keys()
    for n, tensor in several.tensors.items():
        torch.testing.assert_close(tensor, alone.tensors[n], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["fedshibu", "fedproto", "hetero_ssfl", "fedkin", "scaffold", "central", "local"])
def test_a_method_whose_server_uses_more_than_the_mean_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(InputError, match=r"noise protects a method whose server uses nothing .* but the mean"):
        make_method(f"dp+{name}")


def test_a_class_with_an_own_aggregation_is_not_protected_unless_it_says_so() -> None:
    class Own(FedAvg):
        aggregate = lambda self, server, state, uploads: state  # type: ignore[assignment]  # noqa: E731

    class Says(Own):
        aggregate = lambda self, server, state, uploads: state  # type: ignore[assignment]  # noqa: E731
        uses_only_means = True

    assert (DP.wraps(Own), DP.wraps(Says)) == (False, True)


def test_running_statistics_of_batchnorm_are_refused() -> None:
    runtime = small_runtime(FedAvg())
    shape = runtime.federation.dataset.shape
    with pytest.raises(InputError, match=r"bn: 'track' is not allowed with dp; .*; allowed: group, frozen, batch"):
        DP(FedAvg()).check([build("cnn4", (3, 32, 32), 10, 0)], [], shape)
    for bn in ("group", "frozen", "batch"):
        DP(FedAvg()).check([build("cnn4", (3, 32, 32), 10, 0, bn=bn)], [], shape)


def test_without_sampling_the_loss_is_that_of_gaussian_noise() -> None:
    """RDP of T Gaussians with z/2 is 2 T a / z² at order a, which Balle et al. 2020 turn into ε."""
    z, delta, rounds = 8.0, 1e-5, 20
    orders = [*range(2, 20), 22, 25, 28, 32, 40, 48, 64, 96, 128, 256, 512]
    of_orders = [
        2 * rounds * a / z**2 + math.log1p(-1 / a) - math.log(delta * a) / (a - 1) for a in orders
    ]  # theorem 21 of arXiv:1905.09982
    assert epsilon(z, delta, rounds, 10, 10) == pytest.approx(min(of_orders), rel=1e-9)


def test_the_loss_grows_with_rounds_and_falls_with_noise_and_smaller_cohorts() -> None:
    assert epsilon(4.0, 1e-5, 0, 100, 10) == 0
    assert epsilon(4.0, 1e-5, 5, 100, 10) < epsilon(4.0, 1e-5, 50, 100, 10) < epsilon(2.0, 1e-5, 50, 100, 10)
    assert epsilon(4.0, 1e-5, 50, 100, 10) < epsilon(4.0, 1e-5, 50, 100, 50) <= epsilon(4.0, 1e-5, 50, 100, 100)


def test_noise_is_found_for_a_loss() -> None:
    z = noise_for(8.0, 1e-5, 30, 20, 20)
    assert 7.98 < epsilon(z, 1e-5, 30, 20, 20) <= 8.0


def test_a_moving_clip_follows_the_quantile_and_costs_no_more_privacy() -> None:
    at = server(10)
    method = DP(FedAvg(), noise=0.5, clip=1.0, quantile=0.5)
    state = begun(method, at)
    long = {id: moved(state, {WEIGHT: 100.0}) for id in range(10)}
    longer = method.aggregate(at, state, long)
    assert longer.numbers[CLIP] > 1.0
    assert longer.numbers[NOISE] == 0.5
    shorter = method.aggregate(at, state, {id: moved(state, {WEIGHT: 0.01}) for id in range(10)})
    assert shorter.numbers[CLIP] < 1.0
    z, _ = method._adapted(0.5, 1.0, 5, 10, numpy_stream(0, "x"))
    sigma = max(0.05 * 10, 0.5)
    assert z**-2 + (2 * sigma) ** -2 == pytest.approx(0.5**-2)


def test_the_loss_is_told_for_every_round_and_in_the_end(tmp_path) -> None:  # type: ignore[no-untyped-def]
    runtime = small_runtime(DP(FedAvg(), noise=3.0), rounds=3, participation=0.5)
    lines = complete_run(runtime, tmp_path).lines
    told = [line["epsilon"] for line in lines]
    assert told == [epsilon(3.0, 1e-5, round, 4, 2) for round in (1, 2, 3)]
    assert runtime.method.outcome(runtime.server(3), lines, runtime.class_counts)["epsilon"] == told[-1]


def test_noise_beside_an_epsilon_is_refused() -> None:
    with pytest.raises(InputError, match="noise"):
        configure({"methods": ("dp+fedavg:epsilon=8,noise=1",)})


def test_uploads_of_an_optimiser_at_the_server_are_protected() -> None:
    at = server(2)
    method = make_method("dp+fedavgm", {"noise": 1e-9, "clip": 10.0, "server_lr": 1.0, "server_momentum": 0.0})
    plain = DP(FedAvg(), noise=1e-9, clip=10.0)
    state = method.init(at)
    uploads = {id: moved(state, {WEIGHT: 0.5 * id}) for id in range(2)}
    there = {n: t for n, t in method.aggregate(at, state, uploads).tensors.items() if n in plain.init(at).tensors}
    here = plain.aggregate(at, plain.init(at), {id: replace(u) for id, u in uploads.items()}).tensors
    for n, tensor in here.items():
        torch.testing.assert_close(tensor, there[n], atol=1e-6, rtol=0)


@pytest.mark.parametrize("secret", [None, 7])
def test_methods_and_seeds_have_noise_of_their_own(secret: int | None) -> None:
    """The same noise in two published models would be their difference, and protect nothing."""

    def noise(method: DP, seed: int) -> torch.Tensor:
        at = replace(server(2), seed=seed)
        state = begun(method, at)
        with with_secret(secret):
            after = method.aggregate(at, state, {0: moved(state, {})})
        found = (after.tensors[WEIGHT] - state.tensors[WEIGHT]).flatten()
        return found / found.norm()

    plain, other = DP(FedAvg(), noise=1.0), DP(FedAvg(), noise=2.0)
    assert float(noise(plain, 0) @ noise(plain, 0)) == pytest.approx(1.0)
    for of in (noise(other, 0), noise(plain, 1), noise(DP(FedProx(mu=1.0), noise=1.0), 0)):
        assert abs(float(noise(plain, 0) @ of)) < 0.3  # 400 draws: 0.05 is one standard deviation


def test_the_noise_of_a_real_federation_comes_from_a_number_that_no_site_is_told() -> None:
    at = server(2)
    method = DP(FedAvg(), noise=1.0)
    state = begun(method, at)

    def noisy(secret: int | None) -> torch.Tensor:
        with with_secret(secret):
            return method.aggregate(at, state, {0: moved(state, {})}).tensors[WEIGHT]

    assert torch.equal(noisy(None), noisy(None))
    assert torch.equal(noisy(7), noisy(7))
    assert not torch.equal(noisy(7), noisy(None))
    assert not torch.equal(noisy(7), noisy(8))
