"""Settings of the rounds of one run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from kinfed.learning import LocalTraining, Phase
from kinfed.learning.schedule import lr_factor
from kinfed.methods import Method

__all__ = ["RoundSettings", "cohort"]


def cohort(clients: int, participation: float) -> int:
    """Return the number of clients that are drawn for a round, max(⌊C·N⌋, 1).

    >>> cohort(clients=10, participation=0.3)
    3

    Args:
        clients: Number N of clients.
        participation: Fraction C of the clients, in (0, 1].
    """
    return max(math.floor(participation * clients + 1e-9), 1)


@dataclass(frozen=True, kw_only=True)
class RoundSettings:
    """Settings of a run's rounds: local training, participation, evaluation and checkpoints.

    >>> settings = RoundSettings(rounds=10, training=LocalTraining(lr=0.1), lr_schedule="step:0.5", participation=1.0,
    ...                          seed=0, checkpoint_every=5)
    >>> settings.training_in(1).lr, round(settings.training_in(10).lr, 3)
    (0.1, 0.01)

    Attributes:
        rounds: Number T of rounds.
        training: Local training; its ``lr`` is that of the first round.
        lr_schedule: Schedule of the learning rate; see `kinfed.learning.schedule.lr_factor`.
        participation: Fraction C of the clients that train in a round, in (0, 1].
        seed: Seed of the run.
        checkpoint_every: Rounds between two checkpoints.
        evaluate_every: Rounds between two evaluations; there is always one after the last round.
        patience: Rounds without a better validation accuracy after which a run ends early; None for no early end.
        stop_acc: Accuracy of the global model on the pooled test set at which a run ends early; likewise.
        save_local: True to save the whole models that clients upload in the last round.
        save_models: Models to save after the last round: ``none``, ``global``, or ``all``, also those of the clients.
        further_clients: Number of clients, drawn at random, whose primary models are tested in further ways after the
            last round: by fine-tuning, re-fitted heads, and among their own classes; None for all.
        fine_tuning: Phase in which each client fine-tunes a copy of its primary model in the last evaluation; None for
            no fine-tuning.
        refitting: Settings with which heads are re-fitted in the last evaluation, the same for all methods of a
            comparison; None for those of ``training``.
        linear_probe: True to fit linear probes to the representations after the last round; None to fit them for
            methods without labels, which have no accuracy without them.
        knn_every: Rounds between two evaluations by nearest neighbours for methods without labels, the only ones before
            the last round; 0 for none.
        probed: Number of training images for linear probes and nearest neighbours; None for all.
        measure: Measure by which the run is judged. ``"auroc"`` is computed in every evaluation if it is this one, else
            only after the last round.
    """

    rounds: int
    training: LocalTraining
    lr_schedule: str
    participation: float
    seed: int
    checkpoint_every: int
    evaluate_every: int = 1
    patience: int | None = None
    stop_acc: float | None = None
    save_local: bool = False
    save_models: str = "all"
    further_clients: int | None = None
    fine_tuning: Phase | None = None
    refitting: LocalTraining | None = None
    linear_probe: bool | None = None
    knn_every: int = 10
    probed: int | None = None
    measure: str = "accuracy"

    def share(self, method: Method) -> float:
        """Fraction of the clients that train in a round of a method: C, or 1 for methods that train all of them."""
        return self.participation if method.trains == "sampled" else 1.0

    def training_in(self, round: int) -> LocalTraining:
        """Settings of local training in one round, with its learning rate."""
        return replace(self.training, lr=self.training.lr * lr_factor(self.lr_schedule, round, self.rounds))

    def evaluates(self, round: int, method: Method) -> bool:
        """Return True if the models are tested after a round."""
        every = self.evaluate_every if method.supervised else self.knn_every
        return round == self.rounds or (every > 0 and round % every == 0)

    def saves(self, round: int) -> bool:
        """Return True if a checkpoint is planned after a round."""
        return round == self.rounds or round % self.checkpoint_every == 0

    def fits_probes(self, method: Method) -> bool:
        """Return True if linear probes are fitted after the last round."""
        return not method.supervised if self.linear_probe is None else self.linear_probe

    def asks_auroc(self, *, final: bool) -> bool:
        """Return True if the AUROC is computed, which takes much longer than the other measures."""
        return final or self.measure == "auroc"

    def asks_neighbours(self, round: int, method: Method) -> bool:
        """Return True if representations are tested by nearest neighbours after a round."""
        return not method.supervised and self.knn_every > 0 and self.evaluates(round, method)
