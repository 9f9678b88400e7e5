"""The same from Python: ``run``, ``compare``, ``resume``, ``reproduce``, ``vote``, ``train_sources`` and ``load``."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from kinfed.display import Display
from kinfed.errors import InputError
from kinfed.experiment.config import Config
from kinfed.experiment.config_file import read_toml
from kinfed.experiment.keywords import Fields, with_fields
from kinfed.fields import is_text, short
from kinfed.files import own_folder
from kinfed.labels import slug
from kinfed.settings import untouched

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from kinfed.data import Federation
    from kinfed.experiment.predictor import Predictor
    from kinfed.experiment.run import Watcher
    from kinfed.experiment.vote import Ballots
    from kinfed.methods import Method

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

    def frame(self) -> pd.DataFrame:
        """Accuracies as a pandas DataFrame: a row for each method, seed, round with a test, and client.

        Columns are ``method``, ``seed``, ``round``, ``client``, ``name`` of the client, its samples ``train`` and
        ``test``, ``accuracy`` (of the model that serves the client, on its own test samples), whatever else was tested
        under its name in ``metrics.jsonl`` (``fine_tuned``, ``new_global`` of clients that took no part, …), and
        ``global_acc`` of the one global model on the pooled test set. NaN where there is none.

        >>> result.frame().groupby("method")["accuracy"].mean()  # doctest: +SKIP
        """
        from kinfed.report.folders import read_runs
        from kinfed.report.frame import frame

        return frame(read_runs([self.path]))

    def _repr_html_(self) -> str:
        """The table, as notebooks show it."""
        from kinfed.report.folders import read_runs
        from kinfed.report.page import as_html

        return as_html(read_runs([self.path]))

    def table(self) -> None:
        """Print the table, what its numbers stand for, and what must be known of them."""
        from kinfed.report.terminal import show

        show([self.path])

    def report(self, out: str | Path | None = None) -> Path:
        """Write the self-contained HTML page and the picture beside it; returns the page's path."""
        from kinfed.report.page import write_report

        return write_report([self.path], self.path / "report.html" if out is None else _path("out", out))


@with_fields
@untouched()
def run(
    method: str | Method | type[Method],
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    allow_code: bool = False,
    **fields: Unpack[Fields],
) -> Result:
    """Run one method.

    Args:
        method: A name, ``package.module:Name``, an object or a class.
        out: Folder for the run; a new one in ``runs`` if not given.
        overwrite: Whether a run that is there is replaced.
        quiet: Whether no progress is shown.
        allow_code: Whether a ``config`` file may name code of its own (``package.module:Name``) that is then imported.
        **fields: Those of the experiment, as for `compare`.

    Returns:
        The run on disk.

    Raises:
        InputError: One line that names the field, the value and what is allowed.

    >>> kinfed.run("fedprox:mu=0.1", data="digits", clients=20, rounds=30)  # doctest: +SKIP
    """
    from kinfed.experiment.run import run as run_config

    _truths(overwrite=overwrite, quiet=quiet, allow_code=allow_code)
    if "methods" in fields:
        raise InputError("methods: run takes one method, the first argument; compare takes several")
    config = _config({**fields, "methods": method}, allow_code=allow_code)
    with result_folder(out, config.methods[0]) as path, _watching(quiet) as watcher:
        run_config(config, path, watcher, overwrite=overwrite)
    return Result(path)


@with_fields
@untouched()
def compare(
    methods: str | Method | type[Method] | Sequence[str | Method | type[Method]] | None = None,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    allow_code: bool = False,
    **fields: Unpack[Fields],
) -> Result:
    """Run several methods, with one or more seeds, on the same clients.

    Args:
        methods: Names, ``package.module:Name``, objects or classes, in any mixture. A method may stand there several
            times with different fields: ``FedProx(mu=0.1), FedProx(mu=1)``, or ``"fedprox:mu=0.1", "fedprox:mu=1"``.
            ``local`` joins where a method is personalised, since training alone is what it must beat; ``local_ssl``
            where one learns without labels.
        out: Folder for the comparison; a new one in ``runs`` if not given.
        overwrite: Whether a comparison that is there is replaced.
        quiet: Whether no progress is shown.
        allow_code: Whether a ``config`` file may name code of its own (``package.module:Name``) that is then imported.
        **fields: Those of the experiment; `Config` says what they are. ``data`` may be a name, a path, arrays
            ``(x_train, y_train, x_test, y_test)``, which are kept in the cache folder, where a resumed run finds them.
            ``training`` is a `LocalTraining`, in place of ``lr``, ``local_epochs`` and so on. ``config`` names a TOML
            file with any of the fields, ``methods`` among them; those that are given here overrule it. A field that
            would do nothing is refused.

    Returns:
        The comparison on disk.

    Raises:
        InputError: One line that names the field, the value and what is allowed.

    >>> result = kinfed.compare(["fedavg", FedProx(mu=0.1)], data="digits", partition="shards")  # doctest: +SKIP
    >>> result.table(); result.report("report.html")  # doctest: +SKIP
    """
    from kinfed.experiment.run import compare as compare_config

    _truths(overwrite=overwrite, quiet=quiet, allow_code=allow_code)
    asked = {**fields} if methods is None else {**fields, "methods": methods}
    config = _config(asked, alone=True, allow_code=allow_code)
    with result_folder(out, "compare") as path, _watching(quiet) as watcher:
        compare_config(config, path, watcher, overwrite=overwrite)
    return Result(path)


@untouched()
def resume(
    path: str | Path,
    *,
    methods: Method | type[Method] | Sequence[Method | type[Method]] = (),
    data: Federation | None = None,
    partition: Callable[..., Any] | None = None,
    model: Callable[..., Any] | None = None,
    rounds: int | None = None,
    device: str | None = None,
    quiet: bool = False,
    allow_code: bool = False,
) -> Result:
    """Go on with a run or a comparison where it stopped.

    Args:
        path: Its folder.
        methods: The methods that the run had as Python classes which no import path leads to, such as those of a
            notebook: classes, or objects with the same fields.
        data: Likewise the federation that the run was given.
        partition: Likewise its partition, a function or a class.
        model: Likewise what makes its model: a function, a class or a module.
        rounds: How many rounds each run shall have, if more than it was begun with. It ends with the bits of a run that
            had so many from the start, and is refused if its learning rate follows from their number.
        device: Where to go on, if not where it began; last bits then differ, which a warning says.
        quiet: Whether no progress is shown.
        allow_code: Whether code that the run's files name (``package.module:Name``) is imported.

    Raises:
        InputError: If the folder is none of a run, is in use by another process, or was changed; or if its files name
            code that is not given or allowed here.
    """
    from kinfed.experiment.extend import extend
    from kinfed.experiment.objects import of_folder
    from kinfed.experiment.run import resume as resume_folder
    from kinfed.registry import nothing_from_files

    _truths(quiet=quiet, allow_code=allow_code)
    folder = _path("run", path)
    objects, names = of_folder(folder, methods=methods, data=data, partition=partition, model=model)
    with nothing_from_files(names, folder, allow=allow_code):
        if rounds is not None:
            extend(folder, rounds, device=device, objects=objects)
        with _watching(quiet) as watcher:
            resume_folder(folder, watcher, device=device, objects=objects)
    return Result(folder)


@with_fields
@untouched()
def reproduce(
    table: str,
    *,
    scale: str = "small",
    out: str | Path | None = None,
    quiet: bool = False,
    **fields: Unpack[Fields],
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
def load(
    path: str | Path, *, client: int | None = None, module: nn.Module | None = None, allow_code: bool = False
) -> Predictor:
    """A trained model, ready for use; it takes uint8 images, and normalises them as in training.

    Args:
        path: A run folder, whose global model is meant; or one of the files in its ``models``.
        client: In a run folder: whose personal model instead.
        module: For a model of your own architecture, what your function makes.
        allow_code: Whether your function, which the model's file names, is imported to make it.

    >>> kinfed.load("runs/mine", client=3).predict(images)  # doctest: +SKIP
    ['cat', 'dog']

    Raises:
        InputError: If there is no such model, a file is damaged, or the module does not fit.
    """
    from kinfed.experiment.predictor import load as load_model

    return load_model(_path("load", path), client, module, allow_code=allow_code)


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


@with_fields
@untouched()
def vote(
    run: str | Path | None = None,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    measure: str = "sketched_cka",
    ballot: int = 3,
    taps: str = "body",
    images: int = 1000,
    allow_code: bool = False,
    **fields: Unpack[Fields],
) -> Ballots:
    """Ask the clients which source model is most like what they have trained: `FedVote`'s vote, without a transfer.

    Args:
        run: Folder of a run with ``save_local``, whose clients vote with what they trained in its last round. If it is
            not given, FedAvg is run before, for 5 rounds if ``fields`` do not say otherwise.
        out: Folder for ``vote.json`` and ``vote.png``: that of the run if not given; of a new run, its folder.
        overwrite: Whether a new run may replace one that is there.
        quiet: Show no progress.
        measure: One of `kinfed.methods.voting.MEASURES`.
        ballot: How many sources each client names.
        taps: What is compared; see `Vote`.
        images: At most so many training images of each client are looked at.
        allow_code: Whether code that the run's files name (``package.module:Name``) is imported.
        **fields: ``sources``, the pool, which only a ``config`` may name instead; of a new run also the others, as for
            `compare`.

    >>> kinfed.vote(sources="pool", data="usps", image_size=28, clients=20).ranking  # doctest: +SKIP
    ['mnist', 'kmnist']

    Raises:
        InputError: If a field is wrong, a source does not fit, or no client can vote.
    """
    from kinfed.experiment.uses import OF_CLIENTS, OF_METHODS
    from kinfed.experiment.vote import train_and_vote
    from kinfed.experiment.vote import vote as hold_vote
    from kinfed.methods.fedvote import Vote
    from kinfed.registry import nothing_from_files
    from kinfed.report.vote import save_picture

    _truths(overwrite=overwrite, quiet=quiet, allow_code=allow_code)
    file = _file(fields)
    there = {} if file is None else read_toml(file)
    pool, of_file = fields.pop("sources", None), there.pop("sources", None)
    pool = of_file if pool is None else pool
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
        with nothing_from_files((), run, allow=allow_code):
            held = hold_vote(_path("run", run), sources, rule, folder)
    else:
        uses = {name: use for name, use in (OF_CLIENTS | OF_METHODS).items() if name != "sources"}
        usual = {name: value for name, value in {"rounds": 5, "ft_epochs": 0}.items() if name not in there}
        new = {**usual, **fields, "methods": "fedavg", "save_local": True}
        config = _config(new, uses=uses, allow_code=allow_code)
        with result_folder(out, "vote") as folder, _watching(quiet) as watcher:
            held = train_and_vote(config, sources, rule, folder, watcher, overwrite=overwrite)
    save_picture(held, folder / "vote.png")
    return held


def _config(fields: Mapping[str, Any], *, allow_code: bool = False, **how: Any) -> Config:
    """What is asked for; arrays are kept only once all else is right."""
    from kinfed.experiment.configure import configure
    from kinfed.experiment.objects import as_fields, names_in
    from kinfed.registry import nothing_from_files

    file = _file(fields)
    given, objects = as_fields({name: value for name, value in fields.items() if name != "config"})
    data = given.get("data")
    with nothing_from_files(names_in(given), file, allow=allow_code or file is None):
        if data is None or isinstance(data, str | Path):
            return configure(given, file, objects=objects, **how)
        from kinfed.data.loading import EMBEDDED
        from kinfed.data.objects import as_dataset

        config = configure(given | {"data": EMBEDDED}, file, objects=objects, **how)
        _, kept = as_dataset(data, config.seed)
        return configure(given | {"data": kept}, file, objects=objects, **how)


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
    stem = Path("runs") / f"{dt.datetime.now():%Y%m%d-%H%M%S}-{slug(name)}"
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
