"""A vote for a source model among the clients of a run, with the scores that no server would see (METHODS.md E)."""

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
from kinfed.experiment.config import Config
from kinfed.experiment.config_file import read_toml
from kinfed.experiment.folders import CONFIG
from kinfed.experiment.run import Watcher, check_unchanged, nobody, open_sources, runtime_of
from kinfed.experiment.run import run as run_config
from kinfed.files import claimed, write_whole
from kinfed.methods import ClientId
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.fedvote import Vote
from kinfed.methods.voting import Count, ballot, count, scores
from kinfed.settings import own_settings
from kinfed.similarity import MEASURES

__all__ = ["VOTE", "Ballots", "Debiased", "Electorate", "hold", "train_and_vote", "vote"]

VOTE = "vote.json"


@dataclass(frozen=True)
class Electorate:
    """Who can vote: the clients of a run, each with the model that it trained in the last round.

    Attributes:
        config: Of the run.
        runtime: With the source models.
        folder: Of the run.
        ids: Those whose models were saved.
    """

    config: Config
    runtime: ClientRuntime
    folder: RunFolder
    ids: list[ClientId]

    @classmethod
    def of(cls, run: Path, pool: Path) -> Electorate:
        """That of a run folder.

        Raises:
            InputError: If it is no finished run that saved its clients' models, the data have changed, or a source does
                not take them.
        """
        if not (run / CONFIG).is_file():
            raise InputError(f"run: {str(run)!r} is no run folder")
        config = Config.checked(read_toml(run / CONFIG))
        saved = sorted((run / "models").glob("client-*-local.safetensors"))
        if not saved:
            raise InputError(
                f"run: {str(run)!r} has not saved what its clients trained in the last round; run it with "
                "--save-local true and a method that sends whole models, such as fedavg"
            )
        runtime = runtime_of(config)
        check_unchanged(runtime, run)
        sources = open_sources(pool, runtime.federation.dataset.shape, config.device)
        ids = [int(path.stem.split("-")[1]) for path in saved]
        # A run that had a vote needed its own sources to fit; here any will do.
        method = FedAvg() if isinstance(runtime.method, Vote) else runtime.method
        return cls(config, replace(runtime, method=method, sources=sources), RunFolder(run), ids)

    @property
    def names(self) -> list[str]:
        """What the voters are called."""
        names = self.runtime.federation.partition.names
        return [names[id] if names else str(id) for id in self.ids]

    def scores(self, rule: Vote, measures: Sequence[str]) -> dict[str, list[Tensor]]:
        """Measure → P numbers a voter; every model sees a voter's images once, however many measures there are.

        Raises:
            InputError: If a measure cannot compare them.
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
                    raise InputError(f"measure: {measure} cannot compare client {id}: {error}") from error
        return told

    def about(self) -> dict[str, Any]:
        """Where the voters' models come from."""
        fields = ("data", "partition", "rounds", "local_epochs", "seed")
        return {"method": self.config.methods[0]} | {name: getattr(self.config, name) for name in fields}


@dataclass(frozen=True)
class Debiased:
    """What a vote would come to without the bias of its measure.

    Attributes:
        measure: Which has none.
        scores: By it, clients × sources; None where it is not defined.
        ranking: Names of the sources, who would win first.
        images: How many each client looked at.
        features: The most that were compared with these few images.
    """

    measure: str
    scores: list[list[float | None]]
    ranking: list[str]
    images: list[int]
    features: int


@dataclass(frozen=True)
class Ballots:
    """A vote: what clients would send, what it comes to, and the scores behind it.

    Attributes:
        sources: Names of the P source models.
        clients: Who voted.
        scores: Clients × sources, larger is more alike; None where a measure is not defined.
        ballots: Indices of sources, a client's best choice first.
        votes: How many ballots name each source.
        points: Of Borda.
        ranking: Names of the sources, the winner first.
        measure: One of `kinfed.similarity.MEASURES`.
        taps: Tap points that were compared.
        images: At most so many of each client were looked at.
        about: Where the clients' models come from.
        debiased: If the measure is biased, the same vote by one that is not.
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
    """Let the clients of a run vote after its last round, by the rules of `Vote`, and write ``vote.json``.

    Args:
        run: Folder of a run that saved its clients' models.
        pool: Folder of source models.
        rule: Measure, tap points, images, and how many sources a ballot names.
        out: Folder for the file.

    Raises:
        InputError: See `Electorate`; and if nobody can vote.
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
    config: Config, pool: Path, rule: Vote, out: Path, watcher: Watcher = nobody, *, overwrite: bool = False
) -> Ballots:
    """Run FedAvg into a new folder, and then vote there; see `vote`.

    Raises:
        InputError: Before anything is trained, if the config does not fit the data or a source does not fit the config.
    """
    runtime = runtime_of(config)
    sources = open_sources(pool, runtime.federation.dataset.shape, config.device)
    rule.check_comparable(runtime.models[0], sources)
    run_config(config, out, watcher, overwrite=overwrite)
    return vote(out, pool, rule, out)


def hold(voters: Electorate, rule: Vote, told: Mapping[str, Sequence[Tensor]]) -> Ballots:
    """Ballots from scores, counted.

    Args:
        voters: Who votes.
        rule: By which measure, and how many sources a ballot names.
        told: Scores by that measure and, if it is biased, by the one that is not; see `Electorate.scores`.

    Raises:
        InputError: If no client has a score.
    """
    names = [source.name for source in voters.runtime.sources]
    unbiased = MEASURES[rule.measure].counterpart
    cast, counted = _counted(told[rule.measure], rule)
    if not any(cast):
        raise InputError(f"measure: by {rule.measure} no client's model is like any source, so that nobody can vote")
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
    """A ballot a client, and what they come to."""
    cast = [ballot(row, rule.ballot) for row in scores]
    return cast, count(dict(enumerate(cast)), len(scores[0]), rule.ballot)


def _plain(scores: Sequence[Tensor]) -> list[list[float | None]]:
    """As JSON has it; None where a score is not defined."""
    return [[None if math.isnan(score) else score for score in row.tolist()] for row in scores]
