"""The record of a tuning: the trials of every method, in a file of Optuna's.

The file is a journal of JSON lines; other programs that know Optuna can show it.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinfed.errors import InputError
from kinfed.files import sync
from kinfed.streams import numpy_stream
from kinfed.tuning.space import Space

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import BaseStorage

__all__ = ["Record", "check_installed", "quiet", "recorded"]


def check_installed() -> None:
    """Refuse to tune without Optuna.

    Raises:
        InputError: If Optuna is not installed.
    """
    if importlib.util.find_spec("optuna") is None:
        raise InputError("tune: optuna is not installed: pip install 'kinfed[tune]'")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Context manager in which Optuna logs nothing below a warning."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


class _NoLock:
    """Lock of the journal that locks nothing: the folder belongs to this process already (`kinfed.files.claimed`)."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


@dataclass(frozen=True)
class Record:
    """The trials of one method.

    Attributes:
        study: Study of Optuna.
        storage: File of the study.
    """

    study: Study
    storage: BaseStorage

    def settings(self, space: Space, count: int, seed: int, usual: Mapping[str, Any] = {}) -> list[dict[str, Any]]:
        """Return the first settings to try, the same ones in every call.

        Args:
            space: Search space. If it has choices only, its settings come in a random order, ``usual`` first if it is
                one of them; else they are drawn.
            count: Number of settings.
            seed: Seed of the run.
            usual: The setting that a run has without tuning.
        """
        import optuna

        distributions = space.distributions()
        grid, name = [] if space.size is None else space.grid(), self.study.study_name
        order = sorted(numpy_stream(seed, "grid", name).permutation(len(grid)), key=lambda at: grid[at] != usual)
        for number in range(len(self.study.trials), count):
            if grid:
                self.study.enqueue_trial(grid[order[number]])
            draw = numpy_stream(seed, "tuning", name, number).integers(2**31)
            self.study.sampler = optuna.samplers.RandomSampler(seed=int(draw))
            self.study.ask(distributions)
        return [dict(trial.params) for trial in self.study.trials[:count]]

    def report(self, number: int, round: int, score: float) -> None:
        """Record the validation accuracy of a trial after a round, once."""
        import optuna

        trial = self.study.trials[number]
        if trial.state == optuna.trial.TrialState.RUNNING and round not in trial.intermediate_values:
            self.storage.set_trial_intermediate_value(self._id(number), round, score)

    def end(self, number: int, state: str, score: float | None = None, reason: str = "") -> None:
        """Record how a trial ended, once.

        Args:
            number: Number of the trial.
            state: ``COMPLETE``, ``PRUNED`` (it did not go on) or ``FAIL``.
            score: Validation accuracy of a complete trial.
            reason: Reason why it failed.
        """
        import optuna

        if self.study.trials[number].state == optuna.trial.TrialState.RUNNING:
            if reason:
                self.storage.set_trial_user_attr(self._id(number), "reason", reason)
            self.study.tell(number, score, state=optuna.trial.TrialState[state])

    def reason(self, number: int) -> str:
        """Return the reason why a trial failed; empty if it did not."""
        return str(self.study.trials[number].user_attrs.get("reason", ""))

    def _id(self, number: int) -> int:
        study = self.storage.get_study_id_from_name(self.study.study_name)
        return self.storage.get_trial_id_from_study_id_trial_number(study, number)

    def failed(self, number: int) -> bool:
        """Return True if a trial failed."""
        return self.study.trials[number].state.name == "FAIL"


def recorded(file: Path, method: str) -> Record:
    """Open the record of a method's trials in a file, or begin it."""
    import optuna
    from optuna.storages.journal import JournalFileBackend

    _drop_cut_line(file)
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(file), lock_obj=_NoLock()))  # type: ignore[arg-type]
    study = optuna.create_study(storage=storage, study_name=method, direction="maximize", load_if_exists=True)
    return Record(study, storage)


def _drop_cut_line(file: Path) -> None:
    """Cut off a last line that a killed process did not finish."""
    text = file.read_bytes() if file.is_file() else b""
    if text and not text.endswith(b"\n"):
        with file.open("r+b") as opened:
            opened.truncate(text.rfind(b"\n") + 1)
        sync(file)
