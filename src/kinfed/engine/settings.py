"""Settings of the rounds of one run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kinfed.learning import LocalTraining, Phase
from kinfed.learning.schedule import lr_factor
from kinfed.methods import Method

__all__ = ["RoundSettings"]


@dataclass(frozen=True, kw_only=True)
class RoundSettings:
    """How many rounds a run has, how clients train in them, and what is tested and saved after them.

    Attributes:
        rounds: T, the number of rounds.
        sgd: Local training; its ``lr`` is that of the first round.
        lr_schedule: Schedule of the learning rate; see `kinfed.learning.schedule.lr_factor`.
        participation: Fraction C of the clients that train in a round.
        seed: Seed of the run.
        checkpoint_every: Rounds between two checkpoints.
        evaluate_every: Rounds between two evaluations; there is always one after the last round.
        save_local: Save the whole models that clients send in the last round.
        fine_tuning: Phase in which each client fine-tunes a copy of its primary model in the last evaluation; None
            leaves it out.
        linear_probe: Fit linear probes to the representations after the last round; None fits them where a method reads
            no labels, which has no accuracy without one.
        knn_every: Rounds between two votes of nearest neighbours, of methods that read no labels: these have no other
            evaluation before the last round. 0 leaves them out.
        probed: Number of training images that both are taken from; None takes all.
    """

    rounds: int
    sgd: LocalTraining
    lr_schedule: str
    participation: float
    seed: int
    checkpoint_every: int
    evaluate_every: int = 1
    save_local: bool = False
    fine_tuning: Phase | None = None
    linear_probe: bool | None = None
    knn_every: int = 10
    probed: int | None = None

    def sgd_in(self, round: int) -> LocalTraining:
        """Local training in one round."""
        return replace(self.sgd, lr=self.sgd.lr * lr_factor(self.lr_schedule, round, self.rounds))

    def evaluates(self, round: int, method: Method) -> bool:
        """Tell whether there is an evaluation after a round."""
        every = self.evaluate_every if method.supervised else self.knn_every
        return round == self.rounds or (every > 0 and round % every == 0)

    def fits_probes(self, round: int, method: Method) -> bool:
        """Tell whether that evaluation fits linear probes."""
        wanted = not method.supervised if self.linear_probe is None else self.linear_probe
        return wanted and round == self.rounds

    def asks_neighbours(self, round: int, method: Method) -> bool:
        """Tell whether that evaluation asks nearest neighbours."""
        return not method.supervised and self.knn_every > 0 and self.evaluates(round, method)
