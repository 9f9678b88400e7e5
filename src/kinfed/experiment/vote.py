"""A vote for a source model by the clients of a run, with the scores that a server would not see (specification E).

A source (model) is a pre-trained model; a pool is a folder of them. A client's score for a source is the similarity of
their activations on the client's images; its ballot names the sources with the highest scores.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from kinfed.engine import ClientRuntime, RunFolder
from kinfed.errors import InputError
from kinfed.experiment.assemble import check_unchanged, open_sources, runtime_of
from kinfed.experiment.config import Config
from kinfed.experiment.folders import CONFIG
from kinfed.experiment.run import MakeCallback, nobody
from kinfed.experiment.run import run as run_config
from kinfed.files import claimed, write_whole
from kinfed.methods import ClientId
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.fedvote import Vote
from kinfed.methods.voting import Count, ballot, count, scores
from kinfed.models import saved_models
from kinfed.settings import own_settings
from kinfed.similarity import MEASURES

__all__ = ["VOTE", "Ballots", "Debiased", "Electorate", "hold", "train_and_vote", "vote"]

VOTE = "vote.json"


@dataclass(frozen=True)
class Electorate:
    """The clients that can vote: those of a run, each with the model that it trained in the last round.

    Attributes:
        config: Config of the run.
        runtime: Runtime of the run's clients, with the source models.
        folder: Folder of the run.
        ids: Numbers of the clients whose models were saved.
    """

    config: Config
    runtime: ClientRuntime
    folder: RunFolder
    ids: list[ClientId]

    @classmethod
    def of(cls, run: Path, pool: Path) -> Electorate:
        """Read the voters of a run folder.

        Args:
            run: Folder of the run.
            pool: Folder of the source models.

        Raises:
            InputError: If the folder holds no finished run that saved its clients' models, the data have changed, or a
                source takes inputs of another shape.
        """
        if not (run / CONFIG).is_file():
            raise InputError(f"run: {str(run)!r} is not a run folder")
        config = Config.read(run / CONFIG)
        saved = [name for name in saved_models(run / "models") if name.endswith("-local")]
        if not saved:
            raise InputError(
                f"run: {str(run)!r} has no saved client models of the last round; run it with --save-local and a "
                "method that sends whole models, such as fedavg"
            )
        runtime = runtime_of(config)
        check_unchanged(runtime, run)
        sources = open_sources(pool, runtime.federation.dataset.shape, config.device)
        ids = [int(name.split("-")[1]) for name in saved]
        # A method with a vote would check that the sources fit the model, which is not needed without a transfer.
        method = FedAvg() if isinstance(runtime.method, Vote) else runtime.method
        return cls(config, replace(runtime, method=method, sources=sources), RunFolder(run), ids)

    @property
    def names(self) -> list[str]:
        """The names of the voters: those that the data give, or else their numbers."""
        return [self.runtime.federation.name(id) for id in self.ids]

    def scores(self, rule: Vote, measures: Sequence[str]) -> dict[str, list[Tensor]]:
        """Compute the similarity of every voter's model to each of the P sources.

        Every model sees a voter's images once, whatever the number of measures.

        Args:
            rule: Rules of the vote: layers and images.
            measures: Names of the measures.

        Returns:
            For each measure, a tensor (P) per voter.

        Raises:
            InputError: If a measure cannot compare the models.
        """
        for model in self.runtime.models:
            rule.check_comparable(model, self.runtime.sources)
        told: dict[str, list[Tensor]] = {measure: [] for measure in measures}
        for id in self.ids:
            client = self.runtime.client(id, self.config.rounds)
            client.model.load(self.folder.model(f"client-{id:05d}-local"))
            seen = rule.seen(client)
            for measure, rows in told.items():
                try:
                    rows.append(scores(seen, measure))
                except ValueError as error:
                    name = self.runtime.federation.name(id)
                    raise InputError(f"measure: {measure} cannot compare client {name}: {error}") from error
        return told

    def about(self) -> dict[str, Any]:
        """Return the method and the main fields of the run that trained the voters' models."""
        fields = ("data", "partition", "rounds", "local_epochs", "seed")
        return {"method": self.config.methods[0]} | {name: getattr(self.config, name) for name in fields}


@dataclass(frozen=True)
class Debiased:
    """The result of the same vote by a measure without bias.

    Attributes:
        measure: Name of the unbiased measure.
        scores: Scores, clients × sources; None where the measure is not defined.
        ranking: Names of the sources, the winner first.
        images: Number of images of each client.
        features: Largest number of features among the compared layers.
    """

    measure: str
    scores: list[list[float | None]]
    ranking: list[str]
    images: list[int]
    features: int


@dataclass(frozen=True)
class Ballots:
    """The result of a vote: the ballots, their count, and all scores.

    Attributes:
        sources: Names of the P source models.
        clients: Names of the clients.
        scores: Scores, clients × sources; larger is more similar, None where the measure is not defined.
        ballots: Indices of the sources that each client names, its first choice first; empty without a score.
        votes: Number of ballots that name each source (P).
        points: Borda points of each source (P).
        ranking: Names of the sources, the winner first.
        measure: Name of the measure, one of `kinfed.similarity.MEASURES`, or ``package.module:function``.
        taps: Names of the layers that were compared.
        images: Largest number of training images per client.
        about: Method and main fields of the run that trained the clients' models.
        debiased: Result of the same vote by an unbiased measure; None if ``measure`` has no such counterpart.
    """

    sources: list[str]
    clients: list[str]
    scores: list[list[float | None]]
    ballots: list[list[int]]
    votes: list[int]
    points: list[int]
    ranking: list[str]
    measure: str
    taps: str
    images: int
    about: Mapping[str, Any]
    debiased: Debiased | None = None


@own_settings()
def vote(run: Path, pool: Path, rule: Vote, out: Path) -> Ballots:
    """Let the clients of a run vote after its last round, and write ``vote.json``.

    Args:
        run: Folder of a run that saved its clients' models.
        pool: Folder of the source models.
        rule: Rules of the vote: measure, layers, images, and sources per ballot.
        out: Folder for the file.

    Raises:
        InputError: If the clients cannot be read (see `Electorate.of`) or compared, or no client has a score.
    """
    voters = Electorate.of(run, pool)
    unbiased = MEASURES[rule.measure].counterpart
    measures = [rule.measure] if unbiased is None else [rule.measure, unbiased]
    held = hold(voters, rule, voters.scores(rule, measures))
    with claimed(out):
        write_whole(out / VOTE, json.dumps(asdict(held), indent=1) + "\n")
    return held


@own_settings()
def train_and_vote(
    config: Config, pool: Path, rule: Vote, out: Path, make_callback: MakeCallback = nobody, *, overwrite: bool = False
) -> Ballots:
    """Run FedAvg in a new folder, and then let its clients vote; see `vote`.

    Args:
        config: Config of the run; must save the clients' models.
        pool: Folder of the source models.
        rule: Rules of the vote.
        out: Folder for the run and the vote.
        make_callback: Observer of the run.
        overwrite: Replace a run or comparison that the folder holds.

    Raises:
        InputError: If the config does not fit the data, or a source does not fit the config; before anything is
            trained.
    """
    runtime = runtime_of(config)
    sources = open_sources(pool, runtime.federation.dataset.shape, config.device)
    rule.check_comparable(runtime.models[0], sources)
    run_config(config, out, make_callback, overwrite=overwrite)
    return vote(out, pool, rule, out)


def hold(voters: Electorate, rule: Vote, told: Mapping[str, Sequence[Tensor]]) -> Ballots:
    """Cast the ballots that follow from scores, and count them.

    Args:
        voters: Clients that vote.
        rule: Rules of the vote: measure, and sources per ballot.
        told: Scores by the measure and, if it is biased, by its unbiased counterpart; see `Electorate.scores`.

    Raises:
        InputError: If no client has a score.
    """
    names = [source.name for source in voters.runtime.sources]
    unbiased = MEASURES[rule.measure].counterpart
    cast, counted = _counted(told[rule.measure], rule)
    if not any(cast):
        raise InputError(
            f"measure: {rule.measure} is not defined between any client's model and any source, so that "
            "no client can vote"
        )
    return Ballots(
        sources=names,
        clients=voters.names,
        scores=_plain(told[rule.measure]),
        ballots=cast,
        votes=counted.votes,
        points=counted.points,
        ranking=[names[i] for i in counted.ranking],
        measure=rule.measure,
        taps=rule.taps,
        images=rule.images,
        about=voters.about(),
        debiased=None if unbiased is None else _debiased(voters, rule, unbiased, told),
    )


def _debiased(voters: Electorate, rule: Vote, measure: str, told: Mapping[str, Sequence[Tensor]]) -> Debiased:
    runtime = voters.runtime
    rows = runtime.federation.partition.train
    return Debiased(
        measure=measure,
        scores=_plain(told[measure]),
        ranking=[runtime.sources[i].name for i in _counted(told[measure], rule)[1].ranking],
        images=[min(len(rows[id]), rule.images) for id in voters.ids],
        features=max(rule.most_features(model, runtime.sources) for model in runtime.models),
    )


def _counted(scores: Sequence[Tensor], rule: Vote) -> tuple[list[list[int]], Count]:
    """Cast one ballot per client, and count them."""
    cast = [ballot(row, rule.ballot) for row in scores]
    return cast, count(dict(enumerate(cast)), len(scores[0]), rule.ballot)


def _plain(scores: Sequence[Tensor]) -> list[list[float | None]]:
    """Turn scores into lists for JSON; None where a score is not defined."""
    return [[None if math.isnan(score) else score for score in row.tolist()] for row in scores]
