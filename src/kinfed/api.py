"""The same from Python: ``run``, ``compare``, ``resume``, ``reproduce``, ``vote``, ``train_sources`` and ``load``."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinfed.cli.display import Display
from kinfed.errors import InputError
from kinfed.experiment.config import Config
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
    "new_folder",
    "open_result",
    "reproduce",
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

        return write_report([self.path], Path(out) if out is not None else self.path / "report.html")


@untouched()
def run(
    method: str, *, out: str | Path | None = None, overwrite: bool = False, quiet: bool = False, **fields: Any
) -> Result:
    """Run one method; the fields are those of `Config`, and ``data`` may be arrays (see `compare`).

    >>> kinfed.run("fedavg", data="digits", clients=20, rounds=30)  # doctest: +SKIP
    """
    from kinfed.experiment.run import run as run_config

    config = _config((method,), fields)
    path = Path(out) if out is not None else new_folder(method)
    with _watching(quiet) as watcher:
        run_config(config, path, watcher, overwrite=overwrite)
    return Result(path)


@untouched()
def compare(
    methods: Sequence[str],
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    **fields: Any,
) -> Result:
    """Run several methods, and ``seeds`` seeds, on the same clients; the fields are those of `Config`.

    ``data`` may also be four arrays, ``(x_train, y_train, x_test, y_test)`` as `kinfed.data.from_arrays` takes them;
    they are kept in the cache folder, where a resumed run finds them again.

    `local` joins a comparison that has a personalised method, since training alone is what such a method must beat;
    `local_ssl` one that has a method without labels.

    >>> result = kinfed.compare(["fedavg", "fedshibu"], data="digits", partition="shards", shards=2)  # doctest: +SKIP
    >>> result.table(); result.report("report.html")  # doctest: +SKIP
    """
    from kinfed.experiment.run import compare as compare_config

    config = _config(methods, fields).with_local()
    path = Path(out) if out is not None else new_folder("compare")
    with _watching(quiet) as watcher:
        compare_config(config, path, watcher, overwrite=overwrite)
    return Result(path)


@untouched()
def resume(path: str | Path, *, quiet: bool = False) -> Result:
    """Go on with a run or a comparison where it stopped."""
    from kinfed.experiment.run import resume as resume_folder

    with _watching(quiet) as watcher:
        resume_folder(Path(path), watcher)
    return Result(Path(path))


@untouched()
def reproduce(
    table: str, *, scale: str = "small", out: str | Path | None = None, quiet: bool = False, **fields: Any
) -> Path:
    """Run a table of one of the papers, or go on with it; the fields overrule those of the table.

    Returns:
        A Markdown file that has the paper's numbers beside ours.
    """
    from kinfed.experiment.reproduce import reproduce as reproduce_table

    path = Path(out) if out is not None else Path("runs") / f"{table}-{scale}"
    with _watching(quiet) as watcher:
        return reproduce_table(table, scale, path, fields, watcher)


def open_result(path: str | Path) -> Result:
    """A run or comparison that is on disk."""
    return Result(Path(path))


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

    return load_model(Path(path), client, module)


@untouched()
def train_sources(
    data: Sequence[str], *, out: str | Path, overwrite: bool = False, quiet: bool = False, **fields: Any
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

    training = Training.checked({"data": tuple(data), **fields})
    if quiet:
        train_all(training, Path(out), overwrite=overwrite)
    else:
        with Display() as display:
            train_all(training, Path(out), display.source, overwrite=overwrite)
    return Path(out)


@untouched()
def vote(
    run: str | Path | None = None,
    *,
    sources: str | Path,
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
        sources: The pool.
        out: Folder for ``vote.json`` and ``vote.png``: that of the run if not given; of a new run, its folder.
        overwrite: Whether a new run may replace one that is there.
        quiet: Show no progress.
        measure: One of `kinfed.methods.voting.MEASURES`.
        ballot: How many sources each client names.
        taps: What is compared; see `Vote`.
        images: At most so many training images of each client are looked at.
        **fields: Of the new run, those of `Config`.

    >>> kinfed.vote(sources="pool", data="usps", image_size=28, clients=20).ranking  # doctest: +SKIP
    ['mnist', 'kmnist']

    Raises:
        InputError: If a field is wrong, a source does not fit, or no client can vote.
    """
    from kinfed.experiment.vote import train_and_vote
    from kinfed.experiment.vote import vote as hold_vote
    from kinfed.methods.fedvote import Vote
    from kinfed.report.vote import save_picture

    own = {"measure": measure, "ballot": ballot, "taps": taps, "images": images}
    rule = _config(("fedvote",), {"sources": str(sources), "settings": {"fedvote": own}}).method("fedvote")
    assert isinstance(rule, Vote)
    if run is not None:
        if fields:
            raise InputError(f"{next(iter(fields))}: is of a new run, and {str(run)!r} is there; leave one of them out")
        folder = Path(out) if out is not None else Path(run)
        held = hold_vote(Path(run), Path(sources), rule, folder)
    else:
        config = _config(("fedavg",), {"rounds": 5, "ft_epochs": 0, **fields, "save_local": True})
        folder = Path(out) if out is not None else new_folder("vote")
        with _watching(quiet) as watcher:
            held = train_and_vote(config, Path(sources), rule, folder, watcher, overwrite=overwrite)
    save_picture(held, folder / "vote.png")
    return held


def _config(methods: Sequence[str], fields: Mapping[str, Any]) -> Config:
    if isinstance(fields.get("data"), tuple):
        from kinfed.data.arrays import keep_arrays

        fields = {**fields, "data": str(keep_arrays(*fields["data"]))}
    return Config.checked({"methods": tuple(methods), **fields})


def new_folder(name: str) -> Path:
    """Where results go if no folder is named: ``runs/TIME-NAME``."""
    return Path("runs") / f"{dt.datetime.now():%Y%m%d-%H%M%S}-{name}"


@contextlib.contextmanager
def _watching(quiet: bool) -> Iterator[Watcher]:
    from kinfed.experiment.run import nobody

    if quiet:
        yield nobody
        return
    with Display() as display:
        yield display.run
