"""What every method must keep (docs/design.md); a new one joins by being registered."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinfed.methods import METHODS, Method
from kinfed.methods.fedkin import FedKin
from kinfed.methods.grouped import Grouped
from kinfed.testing import CHECKS, Check, check_learns, check_uneven_clients, uneven_round
from tests.builders import small

STEPS = {"init", "update", "aggregate", "evaluated"}


def is_quick(kind: type[Method]) -> bool:
    """Return True for methods with labels that have several steps of their own; others take long or change little."""
    only_groups = issubclass(kind, Grouped) and kind is not FedKin
    return kind.supervised and not only_groups and len(STEPS & vars(kind).keys()) > 1


NAMES = [name if is_quick(kind) else pytest.param(name, marks=pytest.mark.slow) for name, kind in METHODS.items()]
SHORT = [check for check in CHECKS if check not in (check_uneven_clients, check_learns)]
pytestmark = [pytest.mark.parametrize("name", NAMES), pytest.mark.usefixtures("global_generators")]


@pytest.mark.parametrize(
    "check", [*SHORT, pytest.param(check_learns, marks=pytest.mark.slow)], ids=lambda check: check.__name__
)
def test_contract(name: str, check: Check, tmp_path: Path) -> None:
    if reason := check(small(name), tmp_path):
        pytest.skip(reason)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["tiny_cnn", "cnn4"])
def test_uneven_clients_skip_only_what_batchnorm_cannot_train_on(name: str, model: str, tmp_path: Path) -> None:
    method = small(name)
    last = uneven_round(method, tmp_path, model)
    pooled = method.trains == "pooled"
    if method.supervised:
        alone_in_a_batch = not pooled and model == "cnn4" and not method.requires.fixed_statistics
        # 1 sample, and 33 in batches of 16; the pooled client has 216, no batch of one
        expected = (2, 0 if method.trains_head_alone else 1) if alone_in_a_batch else (0, 0)
    else:  # BatchNorm whatever the model, and whole batches only: 2 are one, of 33 and 180 there are 1 and 4 left
        expected = (8, 0) if pooled else (6, 1)
    assert (last["skipped_samples"], last["zero_step_clients"]) == expected
