"""The same from Python: ``run``, ``compare``, ``resume``, ``reproduce``, ``vote``, ``train_sources`` and ``load``."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinfed.cli.display import Display
from kinfed.errors import InputError
from kinfed.experiment.config import Config, is_text, read_toml, short
from kinfed.files import own_folder
from kinfed.settings import untouched

if TYPE_CHECKING:
    from torch import nn

    from kinfed.experiment.predictor import Predictor
    from kinfed.experiment.run import Watcher
    from kinfed.experiment.vote import Ballots

__all__ = [
    "Result",
    "compare",
    "load",
    "open_result",
    "reproduce",
    "result_folder",
    "resume",
    "run",
    "train_sources",
    "vote",
]


@dataclass(frozen=True)
class Result:
    """A run folder or a comparison folder on disk."""

    path: Path

    @property
    def summaries(self) -> list[dict[str, Any]]:
        """The ``summary.json`` of every run."""
        from kinfed.report.folders import read_runs

        return [run.summary for run in read_runs([self.path])]

    def table(self) -> None:
        """Print the table, what its numbers stand for, and what must be known of them."""
        from kinfed.report.terminal import show

        show([self.path])

    def report(self, out: str | Path | None = None) -> Path:
        """Write the self-contained HTML page and the picture beside it; returns the page's path."""
        from kinfed.report.page import write_report

        return write_report([self.path], self.path / "report.html" if out is None else _path("out", out))


@untouched()
def run(
    method: str, *, out: str | Path | None = None, overwrite: bool = False, quiet: bool = False, **fields: Any
) -> Result:
    """Run one method; the fields are those of `Config`, and ``data`` and ``config`` may be as for `compare`.

    >>> kinfed.run("fedavg", data="digits", clients=20, rounds=30)  # doctest: +SKIP
    """
    from kinfed.experiment.run import run as run_config

    _truths(overwrite=overwrite, quiet=quiet)
    if "methods" in fields:
        raise InputError("methods: run takes one method, the first argument; compare takes several")
    config = _config({**fields, "methods": (method,)})
    with result_folder(out, method) as path, _watching(quiet) as watcher:
        run_config(config, path, watcher, overwrite=overwrite)
    return Result(path)


@untouched()
def compare(
    methods: str | Sequence[str] | None = None,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    **fields: Any,
) -> Result:
    """Run several methods, and ``seeds`` seeds, on the same clients; the fields are those of `Config`.

    ``data`` may also be four arrays, ``(x_train, y_train, x_test, y_test)`` as `kinfed.data.from_arrays` takes them;
    they are kept in the cache folder, where a resumed run finds them again. ``config`` may name a TOML file with any of
    the fields, ``methods`` among them; those that are given here overrule it. A field that would do nothing is refused.

    `local` joins a comparison that has a personalised method, since training alone is what such a method must beat;
    `local_ssl` one that has a method without labels.

    >>> result = kinfed.compare(["fedavg", "fedshibu"], data="digits", partition="shards", shards=2)  # doctest: +SKIP
    >>> result.table(); result.report("report.html")  # doctest: +SKIP
    """
    from kinfed.experiment.run import compare as compare_config

    _truths(overwrite=overwrite, quiet=quiet)
    config = _config(fields if methods is None else {**fields, "methods": methods}, alone=True)
    with result_folder(out, "compare") as path, _watching(quiet) as watcher:
        compare_config(config, path, watcher, overwrite=overwrite)
    return Result(path)


@untouched()
def resume(path: str | Path, *, rounds: int | None = None, device: str | None = None, quiet: bool = False) -> Result:
    """Go on with a run or a comparison where it stopped.

    Args:
        path: Its folder.
        rounds: How many rounds each run shall have, if more than it was begun with. It ends with the bits of a run that
            had so many from the start, and is refused if its learning rate follows from their number.
        device: Where to go on, if not where it began; last bits then differ, which a warning says.
        quiet: Show no progress.

    Raises:
        InputError: If the folder is none of a run, is in use by another process, or was changed.
    """
    from kinfed.experiment.extend import extend
    from kinfed.experiment.run import resume as resume_folder

    _truths(quiet=quiet)
    folder = _path("run", path)
    if rounds is not None:
        extend(folder, rounds, device=device)
    with _watching(quiet) as watcher:
        resume_folder(folder, watcher, device=device)
    return Result(folder)


@untouched()
def reproduce(
    table: str, *, scale: str = "small", out: str | Path | None = None, quiet: bool = False, **fields: Any
) -> Path:
    """Run a table of one of the papers, or go on with it; the fields overrule those of the table.

    Returns:
        A Markdown file that has the paper's numbers beside ours.
    """
    from kinfed.experiment.reproduce import reproduce as reproduce_table

    _truths(quiet=quiet)
    path = Path("runs") / f"{table}-{scale}" if out is None else _path("out", out)
    with _watching(quiet) as watcher:
        return reproduce_table(table, scale, path, fields, watcher)


def open_result(path: str | Path) -> Result:
    """A run or comparison that is on disk."""
    return Result(_path("run", path))


@untouched()
def load(path: str | Path, *, client: int | None = None, module: nn.Module | None = None) -> Predictor:
    """A trained model, ready for use; it takes uint8 images, and normalises them as in training.

    Args:
        path: A run folder, whose global model is meant; or one of the files in its ``models``.
        client: In a run folder: whose personal model instead.
        module: For a model of your own architecture, what your function makes: no file may import it.

    >>> kinfed.load("runs/mine", client=3).predict(images)  # doctest: +SKIP
    ['cat', 'dog']

    Raises:
        InputError: If there is no such model, a file is damaged, or the module does not fit.
    """
    from kinfed.experiment.predictor import load as load_model

    return load_model(_path("load", path), client, module)


@untouched()
def train_sources(
    data: str | Sequence[str], *, out: str | Path, overwrite: bool = False, quiet: bool = False, **fields: Any
) -> Path:
    """Train one source model a data set into a pool, a folder that `kinfed.models.open_pool` opens.

    Args:
        data: Names or paths of data sets; each source is called as its data set.
        out: The pool; sources that it has are kept, and those missing are trained.
        overwrite: Train anew what is there under these names.
        quiet: Show no progress.
        **fields: Those of `kinfed.experiment.training.Training`: ``like``, ``epochs``, ``lr`` and so on.

    >>> kinfed.train_sources(["mnist", "kmnist"], out="pool", like="usps", image_size=28)  # doctest: +SKIP

    Returns:
        The pool.

    Raises:
        InputError: If a field is wrong, or a source of one of the names was trained with other settings.
    """
    from kinfed.experiment.sources import train_sources as train_all
    from kinfed.experiment.training import Training

    _truths(overwrite=overwrite, quiet=quiet)
    training, pool = Training.checked({**fields, "data": data}), _path("out", out)
    if quiet:
        train_all(training, pool, overwrite=overwrite)
    else:
        with Display() as display:
            train_all(training, pool, display.source, overwrite=overwrite)
    return pool


@untouched()
def vote(
    run: str | Path | None = None,
    *,
    sources: str | Path | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    measure: str = "sketched_cka",
    ballot: int = 3,
    taps: str = "body",
    images: int = 1000,
    **fields: Any,
) -> Ballots:
    """Ask the clients which source model is most like what they have trained: `FedVote`'s vote, without a transfer.

    Args:
        run: Folder of a run with ``save_local``, whose clients vote with what they trained in its last round. If it is
            not given, FedAvg is run before, for 5 rounds if ``fields`` do not say otherwise.
        sources: The pool; only a ``config`` may name it instead.
        out: Folder for ``vote.json`` and ``vote.png``: that of the run if not given; of a new run, its folder.
        overwrite: Whether a new run may replace one that is there.
        quiet: Show no progress.
        measure: One of `kinfed.methods.voting.MEASURES`.
        ballot: How many sources each client names.
        taps: What is compared; see `Vote`.
        images: At most so many training images of each client are looked at.
        **fields: Of the new run, those of `Config`, and ``config`` (see `compare`).

    >>> kinfed.vote(sources="pool", data="usps", image_size=28, clients=20).ranking  # doctest: +SKIP
    ['mnist', 'kmnist']

    Raises:
        InputError: If a field is wrong, a source does not fit, or no client can vote.
    """
    from kinfed.experiment.uses import OF_CLIENTS, OF_METHODS
    from kinfed.experiment.vote import train_and_vote
    from kinfed.experiment.vote import vote as hold_vote
    from kinfed.methods.fedvote import Vote
    from kinfed.report.vote import save_picture

    _truths(overwrite=overwrite, quiet=quiet)
    file = _file(fields)
    there = {} if file is None else read_toml(file)
    pool = there.pop("sources", None) if sources is None else sources
    if pool is None:
        raise InputError("sources: must be given, a folder of source models; kinfed sources train makes one")
    own = {"measure": measure, "ballot": ballot, "taps": taps, "images": images}
    voting = Config.checked({"methods": "fedvote", "sources": pool, "settings": {"fedvote": own}})
    rule, sources = voting.method("fedvote"), Path(str(voting.sources))
    assert isinstance(rule, Vote)
    if run is not None:
        of_new_run = next(iter([*fields.keys() - {"config"}, *there, *(["overwrite"] if overwrite else [])]), None)
        if of_new_run is not None:
            raise InputError(f"{of_new_run}: is of a new run, and {str(run)!r} is there; leave one of them out")
        folder = _path("run", run if out is None else out)
        held = hold_vote(_path("run", run), sources, rule, folder)
    else:
        uses = {name: use for name, use in (OF_CLIENTS | OF_METHODS).items() if name != "sources"}
        usual = {name: value for name, value in {"rounds": 5, "ft_epochs": 0}.items() if name not in there}
        config = _config({**usual, **fields, "methods": "fedavg", "save_local": True}, uses=uses)
        with result_folder(out, "vote") as folder, _watching(quiet) as watcher:
            held = train_and_vote(config, sources, rule, folder, watcher, overwrite=overwrite)
    save_picture(held, folder / "vote.png")
    return held


def _config(fields: Mapping[str, Any], **how: Any) -> Config:
    """What is asked for; arrays are kept only once all else is right."""
    file, data = _file(fields), fields.get("data")
    given = {name: value for name, value in fields.items() if name != "config"}
    if data is None or isinstance(data, str | Path):
        return Config.asked(given, file, **how)
    if not isinstance(data, Sequence) or len(data) != 4:
        raise InputError(f"data: {short(data)} is not allowed; a name, a path, or x_train, y_train, x_test and y_test")
    from kinfed.data.formats.arrays import keep_arrays
    from kinfed.data.loading import EMBEDDED

    Config.asked(given | {"data": EMBEDDED}, file, **how)
    return Config.asked(given | {"data": str(keep_arrays(*data))}, file, **how)


def _file(fields: Mapping[str, Any]) -> Path | None:
    """The TOML file that some fields are to come from."""
    return None if fields.get("config") is None else _path("config", fields["config"])


def _path(name: str, value: Any) -> Path:
    if not isinstance(value, str | os.PathLike) or "\0" in str(value) or not is_text(str(value)):
        raise InputError(f"{name}: {short(value)} is not allowed; must be a path, in UTF-8")
    return Path(value)


def _truths(**flags: Any) -> None:
    """Refuse what is neither true nor false: "False" would count as true."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise InputError(f"{name}: {short(value)} is not allowed; must be true or false")


@contextlib.contextmanager
def result_folder(out: str | Path | None, name: str) -> Iterator[Path]:
    """The folder for results: the one that is named, or a new one of this process's own, ``runs/TIME-NAME``."""
    if out is not None:
        yield _path("out", out)
        return
    stem = Path("runs") / f"{dt.datetime.now():%Y%m%d-%H%M%S}-{name}"
    with own_folder(stem) as path:
        yield path


@contextlib.contextmanager
def _watching(quiet: bool) -> Iterator[Watcher]:
    from kinfed.experiment.run import nobody

    if quiet:
        yield nobody
        return
    with Display() as display:
        yield display.run
