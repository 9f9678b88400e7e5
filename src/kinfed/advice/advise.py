"""Advice on a federation: its traits, the methods that suit it, their race, and what to use."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kinfed.advice.candidates import Candidate, candidates, reasons
from kinfed.advice.conclusion import best_first, command, conclusion, with_settings
from kinfed.advice.traits import Excess, Traits, traits
from kinfed.errors import InputError
from kinfed.experiment.assemble import runtime_of
from kinfed.experiment.config import Config
from kinfed.experiment.folders import ADVICE, COMPARISON, check_room
from kinfed.experiment.run import MakeCallback
from kinfed.files import write_whole
from kinfed.methods import METHODS
from kinfed.report.folders import read_runs
from kinfed.report.rows import ALONE, learns_alone
from kinfed.settings import own_settings
from kinfed.tuning import Finalists, Spectator, check_tunable, is_tuning, tune

__all__ = ["Advice", "advise", "in_words"]

TEXT = "advice.md"  # in the folder of the comparison
VERSION = 1
FINALISTS = 4  # methods, the best on validation, that are compared on fresh seeds beside training alone and pooled data


@dataclass(frozen=True)
class Advice:
    """What to use on a federation.

    Attributes:
        path: Folder of the comparison on which the advice rests.
        use: Label of the method to use, with its settings: ``fedper:lr=0.03``.
        paragraph: What to use and why, in one paragraph.
        command: Command that runs it; None if it needs Python objects.
        traits: Traits of the federation.
        candidates: Every registered method, with the reason why it was raced or left out.
    """

    path: Path
    use: str
    paragraph: str
    command: str | None
    traits: Traits
    candidates: tuple[Candidate, ...]


@own_settings()
def advise(
    config: Config,
    out: Path,
    announce: Callable[[str], None],
    spectator: Spectator,
    make_callback: MakeCallback,
    *,
    labelled: bool = True,
    budget: float | None = None,
) -> Advice:
    """Look at a federation, race the methods that suit it, and say which one to use.

    The same call continues what was stopped. The folder is that of a tuning, with ``advice.json`` and ``advice.md``.

    Args:
        config: Config of all methods that may be raced (`able`), with its validation share and number of fresh seeds.
        out: Folder of the comparison.
        announce: Function that is told the traits and the candidates before the race, line by line.
        spectator: Observer of the race.
        make_callback: Function that makes the observer of each run of the comparison.
        labelled: False if the clients have no labels, so that only methods that read none are raced.
        budget: Seconds for race and comparison together; fewer settings race if all would take longer.

    Raises:
        InputError: If a field does not fit the data, or the folder holds something else.
        RunFailed: If all settings of all methods failed, or a run of the comparison did.
    """
    check_tunable(config)
    if labelled and config.lacks_labels:
        raise InputError(f"unlabelled: must be true; {config.data} has no labels")
    if not is_tuning(out):
        check_room(out, overwrite=False)
    runtime = runtime_of(config.of(ALONE[not labelled], config.seed))
    found = traits(runtime.federation, config.seed, labelled=labelled)
    judged = candidates(found, config, runtime)
    for line in [*in_words(found), *_judgements(judged)]:
        announce(line)
    raced = [of.label for of in judged if of.raced]
    settings = {name: config.settings[name] for name in raced}
    tune(
        Config.checked(config.model_dump() | {"methods": raced, "settings": settings}, config.objects),
        (),
        out,
        spectator,
        make_callback,
        budget,
        Finalists(FINALISTS, [name for name in raced if learns_alone(name) or METHODS[name].ceiling]),
    )
    advice = _concluded(out, Config.read(out / COMPARISON, config.objects), found, judged)
    told = {name: value for name, value in dataclasses.asdict(advice).items() if name != "path"}
    write_whole(out / ADVICE, json.dumps({"version": VERSION, **told}, indent=1) + "\n")
    write_whole(out / TEXT, _markdown(advice))
    return advice


def _concluded(out: Path, config: Config, found: Traits, judged: Sequence[Candidate]) -> Advice:
    """Return the advice that follows from the comparison of the tuned methods.

    Args:
        out: Folder of the comparison.
        config: Config of the comparison.
        found: Traits of the federation.
        judged: The candidates.
    """
    runs, named = read_runs([out]), {name: with_settings(config, name) for name in config.methods}
    use = best_first(runs)[0]
    return Advice(out, named[use], conclusion(runs, named), command(config, use), found, tuple(judged))


def in_words(found: Traits) -> list[str]:
    """Return the traits of a federation as lines of text."""
    said = [
        f"{found.clients} clients with {found.samples:,} training samples, {found.least:,} or more each, "
        f"{found.median:,.0f} in the median; {found.classes} classes"
    ]
    if found.label_skew is None or found.conflict is None:
        said.append("the clients are taken to have no labels")
    else:
        said.append(f"effective classes of a client: {found.own_classes:.1f} in the median")
        said.append(f"label skew: {_told(found.label_skew)} of the samples would have to be exchanged")
    said.append(f"feature skew: {_told(found.feature_skew)} of nearest neighbours are at a sample's own client")
    if found.conflict is not None:
        said.append(
            f"conflict: {_told(found.conflict)} more of the own neighbours than of others have a sample's label"
        )
    return said


def _told(of: Excess) -> str:
    return f"{of.value:.2f} (by chance {of.chance:.2f}, at most {of.most:.2f})"


def _judgements(judged: Sequence[Candidate]) -> list[str]:
    """Return the candidates as lines of text, those that are raced first."""
    told = {"raced": reasons(judged, raced=True), "left out": reasons(judged, raced=False)}
    return [f"{what}: {line}" for what, lines in told.items() for line in lines]


def _markdown(advice: Advice) -> str:
    """Return the advice as Markdown."""
    run = [] if advice.command is None else ["", "```", advice.command, "```"]
    about = [*in_words(advice.traits), *_judgements(advice.candidates)]
    return "\n".join(["# Advice", "", advice.paragraph, *run, "", *(f"* {line}" for line in about)]) + "\n"
