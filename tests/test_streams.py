from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import pytest
import torch

from kinfed.streams import numpy_stream, seeded_globals, torch_stream


def test_one_address_gives_one_sequence_and_another_address_another() -> None:
    draw = lambda *address: numpy_stream(0, *address).integers(1 << 60, size=4).tolist()  # noqa: E731
    assert draw("a", 1) == draw("a", 1)
    others = [draw("a", 2), draw("b", 1), draw("a", "1"), draw("a,", 1), draw("a"), draw("a", 1, 1)]
    assert all(draw("a", 1) != other for other in others)
    assert numpy_stream(1, "a", 1).integers(1 << 60) != numpy_stream(0, "a", 1).integers(1 << 60)


def test_streams_do_not_depend_on_the_hash_seed() -> None:
    code = "from kinfed.streams import numpy_stream; print(numpy_stream(3, 'partition').integers(1 << 60))"
    draws = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": hash_seed}, check=True, capture_output=True
        ).stdout
        for hash_seed in ("0", "1")
    }
    assert len(draws) == 1


def test_torch_streams_are_repeatable() -> None:
    first, again = (torch.rand(3, generator=torch_stream(0, "x")) for _ in range(2))
    assert torch.equal(first, again)


def test_global_generators_are_seeded_by_a_stream_and_then_as_they_were(global_generators: None) -> None:  # case 352
    def drawn(*address: str | int) -> list[float]:
        with seeded_globals(torch_stream(0, *address)):
            return [torch.rand(1).item(), np.random.rand(), random.random()]  # noqa: NPY002

    first, again, other = drawn("model"), drawn("model"), drawn("model", 1)
    assert first == again
    assert not {*first} & {*other}

    def fails() -> None:
        with seeded_globals(torch_stream(0, "model")):
            random.random()
            raise KeyError

    with pytest.raises(KeyError):
        fails()


def test_streams_of_neighbouring_addresses_are_unrelated() -> None:
    draws = np.array([numpy_stream(0, "batches", client, 1).standard_normal(2000) for client in range(8)])
    off_diagonal = np.corrcoef(draws)[~np.eye(8, dtype=bool)]
    assert np.abs(off_diagonal).max() < 0.1
