"""Privacy loss of a run whose rounds publish clipped means with Gaussian noise; computed by Google's dp-accounting.

Two federations are neighbours if one client of the first is replaced by another in the second, so that the sum of the
clipped updates differs by at most twice the clipping norm. The loss is composed over the rounds by Rényi differential
privacy. Rounds with a part of the clients are amplified by sampling without replacement: Wang, Balle and
Kasiviswanathan 2019, Subsampled Rényi Differential Privacy and Analytical Moments Accountant,
https://arxiv.org/abs/1808.00087, theorem 27. Letters: N clients, m of them in each of T rounds, noise multiplier z.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

from kinfed.errors import InputError

__all__ = ["check_installed", "epsilon", "noise_for"]

ORDERS = (*range(2, 20), 22, 25, 28, 32, 40, 48, 64, 96, 128, 256, 512)  # of Rényi's divergence; any are valid
PRECISION = 1e-3  # of the noise multiplier that is searched for


def check_installed() -> None:
    """Refuse to go on without dp-accounting.

    Raises:
        InputError: If it is not installed; the message says how to install it.
    """
    if importlib.util.find_spec("dp_accounting") is None:
        raise InputError("dp: dp-accounting is not installed: pip install 'kinfed[privacy]'")


def epsilon(noise: float, delta: float, rounds: int, clients: int, cohort: int) -> float:
    """Compute the ε of (ε, δ)-differential privacy that holds after some rounds; 0 before the first one.

    >>> round(epsilon(noise=10.0, delta=1e-5, rounds=1, clients=20, cohort=20), 3)
    0.795

    Args:
        noise: Noise multiplier z > 0: the standard deviation of the noise of the sum is z times the clipping norm.
        delta: Probability δ in (0, 1).
        rounds: Number T of rounds, ≥ 0.
        clients: Number N of clients.
        cohort: Number m of clients in a round, 1 to N, drawn without replacement.
    """
    if not rounds:
        return 0.0
    from dp_accounting.rdp import compute_epsilon

    found, _ = compute_epsilon(ORDERS, rounds * _of_a_round(noise, clients, cohort), delta)
    return float(found)


def noise_for(epsilon: float, delta: float, rounds: int, clients: int, cohort: int) -> float:
    """Find the smallest noise multiplier with which ε holds after all rounds, to a thousandth.

    Args:
        epsilon: Value ε > 0 that must hold.
        delta: Probability δ in (0, 1).
        rounds: Number T of rounds, ≥ 1.
        clients: Number N of clients.
        cohort: Number m of clients in a round.
    """
    from dp_accounting import LowerEndpointAndGuess, SelfComposedDpEvent, calibrate_dp_mechanism

    def event(noise: float) -> Any:
        return SelfComposedDpEvent(_event(noise, clients, cohort), rounds)

    start = LowerEndpointAndGuess(PRECISION, 1.0)
    return float(calibrate_dp_mechanism(_accountant, event, epsilon, delta, start, tol=PRECISION))


@functools.lru_cache(maxsize=64)
def _of_a_round(noise: float, clients: int, cohort: int) -> Any:
    """Return the Rényi divergence of one round, for each of the orders."""
    return _accountant().compose(_event(noise, clients, cohort)).rdp


def _accountant() -> Any:
    from dp_accounting import NeighboringRelation
    from dp_accounting.rdp import RdpAccountant

    return RdpAccountant(ORDERS, neighboring_relation=NeighboringRelation.REPLACE_ONE)


def _event(noise: float, clients: int, cohort: int) -> Any:
    from dp_accounting import GaussianDpEvent, SampledWithoutReplacementDpEvent

    event = GaussianDpEvent(noise / 2)  # the sensitivity is twice the clipping norm
    return event if cohort == clients else SampledWithoutReplacementDpEvent(clients, cohort, event)
