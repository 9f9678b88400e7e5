"""The journal of a server: what its observer is told is told again elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kinfed.engine import Callback, NoCallback
from kinfed.errors import InputError, RunFailed
from kinfed.flower.journal import Journal, journal_of, watch
from kinfed.interrupt import Stopped


class Told(NoCallback):
    def __init__(self, told: list[Any]) -> None:
        self._told = told

    def round(self, line: dict[str, Any]) -> None:
        self._told.append(line["round"])


def test_what_a_server_is_told_is_told_to_its_own_observer_and_to_whoever_watches(tmp_path: Path) -> None:
    own: list[Any] = []
    seen: list[Any] = []

    def watching(method: str, seed: int, rounds: int) -> Callback:
        seen.append((method, seed, rounds))
        return Told(seen)

    out = tmp_path / "new" / "out"
    Journal(journal_of(out)).note("run", "of an earlier start", 0, 9)
    journal = Journal(journal_of(out), lambda *_: Told(own))
    observer = journal.observer("fedavg", 3, 2)
    observer.round({"round": 1})
    observer.round({"round": 2})
    journal.note("done")
    watch(out, watching)
    assert own == [1, 2]
    assert seen == [("fedavg", 3, 2), 1, 2]


@pytest.mark.parametrize(
    ("what", "told", "error", "text"),
    [
        ("failed", ["InputError", "sites: no"], InputError, "sites: no"),
        ("failed", ["OSError", "a text"], RunFailed, "OSError: a text"),
        ("stopped", [143], Stopped, None),
    ],
)
def test_who_watches_a_run_that_ends_otherwise_is_told_so(
    what: str, told: list[Any], error: type[BaseException], text: str | None, tmp_path: Path
) -> None:
    Journal(journal_of(tmp_path / "out")).note(what, *told)
    with pytest.raises(error, match=text):
        watch(tmp_path / "out", lambda *_: NoCallback())


def test_who_watches_is_told_if_nothing_has_begun_or_the_server_is_gone(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no journal in 'out\.journal\.jsonl'"):
        watch(tmp_path / "out", lambda *_: NoCallback())
    journal_of(tmp_path / "out").write_text('["process", [4194305]]\n')  # no process has such a number
    with pytest.raises(RunFailed, match="the server's process has ended"):
        watch(tmp_path / "out", lambda *_: NoCallback())
