"""An audit of differential privacy in one run: what canary clients show must be less than the ε that is told.

``python benchmarks/dp_audit.py [--epsilon E]... [--canaries N] [--rounds T]``

Steinke, Nasr and Jagielski 2023, Privacy Auditing with One (1) Training Run, https://arxiv.org/abs/2305.08846. Each of
N canary clients has a random direction in the space of the parameters. A coin decides whether it takes part; if so, it
moves by the clipping norm along its direction in every round. Twenty real clients train beside them. After the run, a
canary is guessed to have taken part if the model has moved along its direction. From the number of right guesses
follows a lower bound on ε that holds with probability 0.95. It must lie below the ε that is told; and with the noise
silently switched off, it must lie above it, or the audit could not find a fault.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import numpy as np
import torch
from scipy import optimize, stats

from kinfed.methods import ClientState, Message
from kinfed.methods.dp import CLIP, DP
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.privacy_loss import epsilon as told_epsilon
from kinfed.streams import numpy_stream
from kinfed.testing import small_federation, small_runtime

REAL = 20  # clients that train
SURE = 0.05  # probability with which the lower bound may be too high


def audited(method: DP, canaries: int, rounds: int, *, silent: bool) -> tuple[float, float, int]:
    """Return the ε that is told, its lower bound, and the number of right guesses.

    Args:
        method: Method with differential privacy.
        canaries: Number of canary clients.
        rounds: Number of rounds.
        silent: True to switch off the noise, while the method tells the same ε.
    """
    runtime = small_runtime(method, small_federation(REAL), rounds=rounds, model="mlp")
    everybody = REAL + canaries
    servers = [replace(runtime.server(r), clients=everybody, cohort=everybody) for r in range(rounds + 1)]
    state = method.init(servers[0])
    names = FedAvg().parameters(servers[0])
    shapes = [state.tensors[name].shape for name in names]
    stream = numpy_stream(0, "canaries")
    size = sum(shape.numel() for shape in shapes)
    directions = stream.standard_normal((canaries, size)).astype(np.float32)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    takes_part = stream.random(canaries) < 0.5
    before = flat(state.tensors, names)
    noiseless = mock.patch("kinfed.methods.dp.secret_stream", return_value=SimpleNamespace(standard_normal=np.zeros))
    for round in range(1, rounds + 1):
        uploads = {}
        for id in range(REAL):
            uploads[id], _ = runtime.update(id, round, method.download(state, id), ClientState())
        here, clip = flat(state.tensors, names), state.numbers[CLIP]
        for at in np.flatnonzero(takes_part):
            moved = (here + clip * torch.from_numpy(directions[at])).split([shape.numel() for shape in shapes])
            parts = {n: part.view(shape) for n, part, shape in zip(names, moved, shapes, strict=True)}
            uploads[REAL + int(at)] = Message({**state.tensors, **parts}, {"samples": 1})
        if silent:
            with noiseless:
                state = method.aggregate(servers[round], state, uploads)
        else:
            state = method.aggregate(servers[round], state, uploads)
    scores = directions @ (flat(state.tensors, names) - before).numpy()
    half_way = rounds * method.clip / (2 * everybody)
    right = int(((scores > half_way) == takes_part).sum())
    z = state.numbers["dp.noise"]
    return (
        told_epsilon(z, method.delta, rounds, everybody, everybody),
        lower_bound(canaries, right, method.delta),
        right,
    )


def flat(tensors: dict[str, torch.Tensor], names: list[str]) -> torch.Tensor:
    """Return the named tensors as one vector."""
    return torch.cat([tensors[name].flatten() for name in names])


def lower_bound(guesses: int, right: int, delta: float) -> float:
    """Return the largest ε that so many right guesses refute, by theorem 5.2 of Steinke et al.; else 0."""

    def plausible(eps: float) -> float:
        q = 1 / (1 + np.exp(-eps))
        at_least = stats.binom.sf(right - 1, guesses, q)
        below = np.cumsum(stats.binom.pmf(np.arange(right - 1, -1, -1), guesses, q))
        alpha = float((below / np.arange(1, right + 1)).max()) if right else 0.0
        return float(min(at_least + 2 * guesses * delta * alpha, 1.0)) - SURE

    return 0.0 if plausible(0.0) > 0 else float(optimize.brentq(plausible, 0.0, 50.0))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, action="append", help="privacy loss to tell; repeatable [2, 8, 32]")
    parser.add_argument("--canaries", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=10)
    asked = parser.parse_args()
    print("| noise | ε that is told | right guesses | lower bound of ε | fault found |\n|---|---|---|---|---|")
    for silent in (False, True):
        for eps in asked.epsilon or [2.0, 8.0, 32.0]:
            told, least, right = audited(
                DP(FedAvg(), epsilon=eps, clip=0.1), asked.canaries, asked.rounds, silent=silent
            )
            found = "**yes**" if least > told else "no"
            how = "silently off" if silent else "as told"
            print(f"| {how} | {told:.2f} | {right} of {asked.canaries} | {least:.2f} | {found} |", flush=True)


if __name__ == "__main__":
    main()
