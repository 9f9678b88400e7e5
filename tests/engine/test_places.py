from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch

from kinfed.engine import Inline, Workers, Workshop, one_thread
from kinfed.learning import SGD
from tests.engine.test_loop import Faulty
from tests.worlds import run, same, workshop


def faulty() -> Workshop:
    return workshop(Faulty(who=(2,), when=(2,)))


AUGMENTED = functools.partial(workshop, "fedavg", rounds=2, sgd=SGD(lr=0.05, batch_size=16, augment="crop_flip"))


@pytest.mark.parametrize(
    "build", [functools.partial(workshop, "fedshibu", participation=0.75), faulty, AUGMENTED]
)  # cases 53, 55
def test_worker_processes_give_the_same_bits_as_this_one(build: functools.partial[Workshop], tmp_path: Path) -> None:
    workers = Workers(2, build)
    try:
        outside = run(build(), tmp_path / "workers", workers)
    finally:
        workers.close()
    inside = run(build(), tmp_path / "inline", Inline(build()))
    assert outside.lines == inside.lines
    assert same(outside.state, inside.state)
    assert all(same(outside.memories[id], inside.memories[id]) for id in inside.memories)
    for kind in ("models", "pictures"):
        saved = {p.name: p.read_bytes() for p in (tmp_path / "inline" / kind).glob("*")}
        assert saved == {p.name: p.read_bytes() for p in (tmp_path / "workers" / kind).glob("*")}


def test_the_number_of_threads_is_one_inside_and_restored_after() -> None:
    torch.set_num_threads(2)
    with one_thread():
        inside = torch.get_num_threads()
    assert (inside, torch.get_num_threads()) == (1, 2)
    torch.set_num_threads(1)
