"""A short run of `benchmarks/fuzz.py`: whatever the bytes, a reader gives a value or one line."""

from __future__ import annotations

import pytest
from benchmarks.fuzz import READERS, fuzz


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_any_bytes_give_a_value_or_one_line(name: str) -> None:
    assert fuzz(READERS[name], examples=25, number=1) >= 25


@pytest.mark.slow
def test_a_reader_that_raises_anything_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinfed.data.partitions.saved._read", lambda path: {}["none"])
    with pytest.raises(KeyError):
        fuzz(READERS["partition"], examples=5, number=1)
