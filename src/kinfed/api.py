"""The Python interface: run, compare, resume and reproduce experiments, vote for source models, load trained models."""

from __future__ import annotations

import contextlib
import datetime as dt
import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Unpack

from kinfed.errors import InputError
from kinfed.experiment.config import Config, Measure, refuse_mistyped
from kinfed.experiment.config_file import read_toml
from kinfed.experiment.executors import refuse_executor, refuse_unknown
from kinfed.experiment.keywords import ADVICE_DEFAULTS, TUNING_DEFAULTS, Fields, JudgedFields, with_fields
from kinfed.fields import is_text, parse_duration, short
from kinfed.files import own_folder
from kinfed.fork_server import start_ahead
from kinfed.interrupt import held_back
from kinfed.labels import slug
from kinfed.settings import untouched

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from kinfed.advice import Advice
    from kinfed.data import Federation
    from kinfed.display import Display
    from kinfed.engine import Executor
    from kinfed.experiment.evaluate import Evaluation
    from kinfed.experiment.export import Exported, Form
    from kinfed.experiment.predictor import Predictor
    from kinfed.experiment.vote import Ballots
    from kinfed.methods import Method
    from kinfed.tuning import Unseen

__all__ = [
    "Result",
    "advise",
    "compare",
    "evaluate",
    "export",
    "load",
    "open_result",
    "reproduce",
    "result_folder",
    "resume",
    "run",
    "train_sources",
    "tune",
    "vote",
]


@dataclass(frozen=True)
class Result:
    """The results of a run or a comparison, which are files in its folder.

    Attributes:
        path: Folder of the run or the comparison.

    >>> result = kinfed.open_result("runs/mine")  # doctest: +SKIP
    >>> result.table(); result.report()  # doctest: +SKIP
    """

    path: Path

    @property
    def summaries(self) -> list[dict[str, Any]]:
        """The contents of ``summary.json`` of every run, in the order of the comparison."""
        from kinfed.report.folders import read_runs

        return [run.summary for run in read_runs([self.path])]

    def frame(self) -> pd.DataFrame:
        """Return the accuracies as a pandas DataFrame: one row for each method, seed, evaluated round and client.

        Accuracies are fractions of 1, and NaN where there is none. The columns are ``method``, ``seed``, ``round``,
        ``client`` (its number), ``name`` (of the client), ``train`` and ``test`` (the client's numbers of samples),
        ``accuracy`` (of the client's primary model on its own test samples) and ``global_acc`` (of the global model on
        the pooled test set). Every other accuracy of a client is a column with its name in ``metrics.jsonl``, such as
        ``fine_tuned``, or ``new_global`` for the new clients, which never train; ``group`` is the client's group, where
        the method divides the clients. ``balanced_accuracy``, ``macro_f1`` and ``auroc`` are other measures of the
        primary model on the client's own test samples, ``global_macro_f1`` and so on those of the global model on the
        pooled test set; the AUROC is measured after the last round only, unless ``measure`` is it.

        >>> result.frame().groupby("method")["accuracy"].mean()  # doctest: +SKIP
        """
        from kinfed.report.folders import read_runs
        from kinfed.report.frame import frame

        return frame(read_runs([self.path]))

    def confusion(self) -> pd.DataFrame:
        """Return the confusion matrices of the clients' primary models on their own test samples, after the last round.

        The DataFrame has a row for each cell that is not zero, with the columns ``method``, ``seed``, ``client`` (its
        number), ``name`` (of the client), ``truth`` and ``answer`` (names of classes) and ``samples``.

        >>> cells = result.confusion().query("method == 'fedavg'")  # doctest: +SKIP
        >>> cells.pivot_table("samples", "truth", "answer", "sum", fill_value=0)  # doctest: +SKIP
        """
        from kinfed.report.confusion import confusion_frame
        from kinfed.report.folders import read_runs

        return confusion_frame(read_runs([self.path]))

    def differences(self, against: str | None = None, *, measure: Measure | None = None) -> pd.DataFrame:
        """Return the differences of the rows to one of them as a pandas DataFrame, over the same seeds and clients.

        The columns are ``method``, ``against``, ``difference`` (mean less that of ``against``), ``low`` and ``high``
        (its 95 % interval), ``p`` and ``wilcoxon`` (p-values by Student's t and over the clients, with Holm's
        correction), ``over`` (the draws that the interval allows for), ``seeds``, ``clients`` and ``samples`` (numbers
        of them). Values are NaN without a common seed. Ceilings are left out.

        Args:
            against: Name of a row; the best one that is no ceiling if not given.
            measure: Measure by which the rows are compared; that of the run if not given.

        Raises:
            InputError: If there is no such row, or it has no accuracy.

        >>> result.differences("local")  # doctest: +SKIP
        """
        from kinfed.report.differences import difference_frame
        from kinfed.report.folders import read_runs

        return difference_frame(read_runs([self.path], measure), against)

    def _repr_html_(self) -> str:
        """Return the table as HTML, which notebooks show."""
        from kinfed.report.folders import read_runs
        from kinfed.report.page import as_html

        return as_html(read_runs([self.path]))

    def table(self, *, measure: Measure | None = None) -> None:
        """Print the setting, the table of results, the best method, and notes on how to read the numbers.

        Args:
            measure: Measure by which the methods are compared; that of the run if not given.
        """
        from kinfed.report.terminal import show

        show([self.path], measure=measure)

    def report(self, out: str | Path | None = None, *, measure: Measure | None = None) -> Path:
        """Write the report: a self-contained HTML page, and PNG pictures beside it.

        Args:
            out: Path of the page; ``report.html`` in the result's folder if not given.
            measure: Measure by which the methods are compared; that of the run if not given.

        Returns:
            Path of the page.
        """
        from kinfed.report.page import write_report

        return write_report([self.path], self.path / "report.html" if out is None else _path("out", out), measure)


@with_fields(JudgedFields)
@untouched()
def run(
    method: str | Method | type[Method],
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    allow_code: bool = False,
    executor: Executor | str | None = None,
    **fields: Unpack[JudgedFields],
) -> Result:
    """Run one method with one seed, and write a run folder.

    Args:
        method: The method: a name (see ``kinfed methods``), a name with fields (``"fedprox:mu=0.1"``), an import path
            ``package.module:Name``, or an object or a class derived from `kinfed.methods.Method`.
        out: Folder of the run; a new one in ``runs`` if not given.
        overwrite: Replace a run or comparison that the folder holds.
        quiet: Show no progress.
        allow_code: Let a ``config`` file name code (``package.module:Name``), which is then imported and run.
        executor: Executor that does the clients' work, such as ``ProcessExecutor(2)``, which stays open for other runs;
            ``workers=2`` is its short form. ``"flower"`` is a rehearsal: a Flower node for each client on this machine.
            ``"ray"`` has the ``workers`` as actors of Ray on this machine, ``"ray:HOST:PORT"`` on a cluster.
        **fields: Fields of the experiment, as in `compare`.

    Returns:
        The results of the run.

    Raises:
        InputError: If a field is wrong or would do nothing, the data do not allow the partition, or the folder cannot
            be used. The message is one line that names the field, the value and what is allowed.
        RunFailed: If the run cannot go on: the training diverges, or no client's work can be used in several rounds in
            a row. What was saved stays.

    >>> kinfed.run("fedprox:mu=0.1", data="digits", clients=20, rounds=30)  # doctest: +SKIP
    """
    _truths(overwrite=overwrite, quiet=quiet, allow_code=allow_code)
    if "methods" in fields:
        raise InputError("methods: run takes one method, the first argument; compare takes several")
    config = _config({**fields, "methods": method}, allow_code=allow_code, executor=executor)
    if config.parallel > 1:
        raise InputError(f"parallel: {config.parallel} would do nothing; it is of several runs, as of compare")
    refuse_executor(config, executor)
    from kinfed.experiment.run import run as run_config

    with result_folder(out, config.methods[0]) as path, _spectator(quiet) as spectator:
        if executor == "flower":
            _rehearsal(overwrite=overwrite).rehearse(config, path, spectator.run)
        else:
            run_config(config, path, spectator.run, overwrite=overwrite, executor=executor)
    return Result(path)


@with_fields(JudgedFields)
@untouched()
def compare(
    methods: str | Method | type[Method] | Sequence[str | Method | type[Method]] | None = None,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    allow_code: bool = False,
    executor: Executor | str | None = None,
    **fields: Unpack[JudgedFields],
) -> Result:
    """Run several methods, with one or more seeds, on the same clients, and write a comparison folder.

    Args:
        methods: The methods: names, import paths ``package.module:Name``, objects or classes, in any mixture. A method
            may appear several times with different fields: ``FedProx(mu=0.1), FedProx(mu=1)``, or
            ``"fedprox:mu=0.1", "fedprox:mu=1"``. The baseline ``local`` (every client trains alone) is added if a
            method is personalised, and ``local_ssl`` if one learns without labels.
        out: Folder of the comparison; a new one in ``runs`` if not given.
        overwrite: Replace a run or comparison that the folder holds.
        quiet: Show no progress.
        allow_code: Let a ``config`` file name code (``package.module:Name``), which is then imported and run.
        executor: Executor that does the clients' work, such as ``ProcessExecutor(2)``, which stays open for other runs;
            ``workers=2`` is its short form. ``"flower"`` is a rehearsal: a Flower node for each client on this machine.
            ``"ray"`` has the ``workers`` as actors of Ray on this machine, ``"ray:HOST:PORT"`` on a cluster.
        **fields: Fields of the experiment. The signature lists them with their defaults, and ``kinfed compare --help``
            describes them. ``data`` may be a name, a path, arrays ``(x_train, y_train, x_test, y_test)``, or a pandas
            DataFrame; these are stored in the cache folder, where a resumed run finds them. ``training`` is a
            `LocalTraining`, in place of ``lr``, ``local_epochs`` and so on. ``config`` is the path of a TOML file with
            any of the fields and ``methods``; arguments overrule the file. A field that would do nothing is refused.

    Returns:
        The results of all runs.

    Raises:
        InputError: If a field is wrong or would do nothing, the data do not allow the partition, or the folder cannot
            be used. The message is one line that names the field, the value and what is allowed.
        RunFailed: If a run cannot go on, as in `run`; the other runs are done first.

    >>> result = kinfed.compare(["fedavg", FedProx(mu=0.1)], data="digits", partition="shards")  # doctest: +SKIP
    >>> result.table(); result.report("report.html")  # doctest: +SKIP
    """
    _truths(overwrite=overwrite, quiet=quiet, allow_code=allow_code)
    asked = {**fields} if methods is None else {**fields, "methods": methods}
    config = _config(asked, alone=True, allow_code=allow_code, executor=executor)
    refuse_executor(config, executor)
    from kinfed.experiment.cost import cost_of
    from kinfed.experiment.run import compare as compare_config

    with result_folder(out, "compare") as path, _spectator(quiet) as spectator:
        spectator.runs(cost_of({path: config}, anew=True))
        if executor == "flower":
            _rehearsal(overwrite=overwrite).rehearse(config, path, spectator.run)
        else:
            compare_config(config, path, spectator.run, overwrite=overwrite, executor=executor)
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
    executor: Executor | str | None = None,
) -> Result:
    """Continue a run or a comparison where it stopped, with the same result as without the interruption.

    Args:
        path: Folder of the run or the comparison.
        methods: Methods of the run that have no import path, such as classes defined in a notebook; given as classes,
            or as objects with the fields that they had.
        data: Federation that the run was given.
        partition: Partition of the run that has no import path: a function or a class.
        model: Model of the run that has no import path: a function, a class or a module.
        rounds: Total number of rounds, to extend the run. The result is the same, bit by bit, as with so many rounds
            from the start. Refused if it is less than before, or if the learning rate depends on it.
        device: Device to continue on; the run's own if not given. On another device the results differ in their last
            bits, and a warning says so.
        quiet: Show no progress.
        allow_code: Let the run's files name code (``package.module:Name``), which is then imported and run.
        executor: Executor that does the clients' work, such as ``ProcessExecutor(2)``, which stays open for other runs;
            ``workers=2`` is its short form. ``"flower"`` is a rehearsal: a Flower node for each client on this machine.
            ``"ray"`` has the ``workers`` as actors of Ray on this machine, ``"ray:HOST:PORT"`` on a cluster.

    Returns:
        The results of the run or the comparison.

    Raises:
        InputError: If the folder holds no run, is in use by another process, or was changed; or if its files name code
            that is neither given nor allowed here.
        RunFailed: If a run cannot go on, as in `run`.

    >>> kinfed.resume("runs/mine", rounds=60)  # doctest: +SKIP
    """
    from kinfed.experiment.cost import cost_of
    from kinfed.experiment.extend import extend
    from kinfed.experiment.folders import COMPARISON, is_ours
    from kinfed.experiment.objects import of_folder
    from kinfed.experiment.run import resume as resume_folder
    from kinfed.registry import nothing_from_files
    from kinfed.tuning import go_on_tuning, is_tuning

    _truths(quiet=quiet, allow_code=allow_code)
    folder = _path("run", path)
    refuse_unknown(executor)
    if executor == "flower":
        for name, value in {"rounds": rounds, "device": device}.items():
            if value is not None:
                raise InputError(f"{name}: is not possible with executor={executor}")
        with _spectator(quiet) as spectator:
            _rehearsal().resume_rehearsal(folder, spectator.run)
        return Result(folder)
    objects, names = of_folder(folder, methods=methods, data=data, partition=partition, model=model)
    with nothing_from_files(names, folder, allow=allow_code):
        if rounds is not None:
            extend(folder, rounds, device=device, objects=objects)
        with _spectator(quiet) as spectator:
            if is_tuning(folder) and not (folder / COMPARISON).is_file():
                go_on_tuning(folder, spectator, spectator.run, objects, executor)
            elif is_ours(folder) and (folder / COMPARISON).is_file():
                other = {} if device is None else {"device": device}
                spectator.runs(cost_of({folder: Config.read(folder / COMPARISON, objects, **other)}))
            resume_folder(folder, spectator.run, device=device, objects=objects, executor=executor)
    return Result(folder)


@with_fields(JudgedFields, **TUNING_DEFAULTS)
@untouched()
def tune(
    methods: str | Method | type[Method] | Sequence[str | Method | type[Method]] | None = None,
    *,
    over: Sequence[str] = (),
    budget: str | float | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    allow_code: bool = False,
    executor: str | None = None,
    **fields: Unpack[JudgedFields],
) -> Result:
    """Tune methods on validation samples, and compare the best setting of each on fresh seeds.

    The settings of a method race by successive halving with the first seed: all run for some rounds, and the best third
    goes on from its checkpoints. Test samples play no part in it. The training alone is tuned and compared as well.

    Args:
        methods: The methods, as in `compare`.
        over: Fields to tune with their values: ``lr=0.01,0.1`` for all methods, ``fedprox.mu=log:0.001:1`` or
            ``fedprox.mu=uniform:0:1`` for one. If it is empty, the learning rate and each method's `Method.space`.
            Choices make a grid; with a range, 20 settings are drawn.
        budget: Seconds, or text such as ``30m`` or ``2h``, for tuning and comparison together. Fewer settings race if
            all would take longer; None for no limit.
        out: Folder of the comparison, with the tuning in its folder ``tuning``; a new one in ``runs`` if not given. In
            the folder of the same tuning, it continues.
        quiet: Show no progress.
        allow_code: Let a ``config`` file name code (``package.module:Name``), which is then imported and run.
        executor: ``"ray"`` or ``"ray:HOST:PORT"``, as in `run`.
        **fields: Fields of the experiment, as in `compare`; ``seeds`` is the number of fresh seeds.

    Returns:
        The results of the comparison.

    Raises:
        InputError: If a field is wrong or would do nothing, Optuna is not installed, or the folder holds something
            else.
        RunFailed: If every setting of a method failed, or a run of the comparison did.

    >>> result = kinfed.tune(["fedavg", "fedprox"], over=["lr=0.03,0.1"], data="digits")  # doctest: +SKIP
    """
    _truths(quiet=quiet, allow_code=allow_code)
    asked = {**fields} if methods is None else {**fields, "methods": methods}
    file = _file(fields)
    there = {} if file is None else read_toml(file)
    usual = {name: value for name, value in TUNING_DEFAULTS.items() if name not in there}
    config = _config({**usual, **asked}, alone=True, allow_code=allow_code, executor=executor)
    if executor == "flower":
        raise InputError("executor: flower is of run and compare; tune has ray")
    refuse_executor(config, executor)
    seconds = None if budget is None else parse_duration("budget", budget)
    from kinfed.tuning import tune as tune_config

    with result_folder(out, "tune") as path, _spectator(quiet) as spectator:
        tune_config(config, over, path, spectator, spectator.run, seconds, executor=executor)
    return Result(path)


@with_fields(JudgedFields, **ADVICE_DEFAULTS)
@untouched()
def advise(
    *,
    budget: str | float | None = None,
    unlabelled: bool = False,
    out: str | Path | None = None,
    quiet: bool = False,
    allow_code: bool = False,
    **fields: Unpack[JudgedFields],
) -> Advice:
    """Say which method to use on a federation: look at its data, and race the methods that suit it.

    The methods that suit the traits of the federation are tuned on validation samples and compared on fresh seeds, as
    in `tune`, always with training alone and with pooled data. The traits are read from the data of all clients
    together, which only a simulation can.

    Args:
        budget: Seconds, or text such as ``20m`` or ``2h``, for race and comparison together. Fewer settings race if
            all would take longer; None for no limit.
        unlabelled: True if the clients have no labels: methods that read labels are left out. Labels then serve only to
            test representations.
        out: Folder of the comparison, which gets ``advice.json`` and ``advice.md``; a new one in ``runs`` if not given.
            In the folder of the same advice, it continues.
        quiet: Show no progress.
        allow_code: Let a ``config`` file name code (``package.module:Name``), which is then imported and run.
        **fields: Fields of the experiment without methods, as in `compare`; ``seeds`` is the number of fresh seeds.

    Returns:
        The method to use with its settings, the paragraph that says why, and the command that runs it.

    Raises:
        InputError: If a field is wrong or would do nothing, Optuna is not installed, or the folder holds something
            else.
        RunFailed: If every setting of a method failed, or a run of the comparison did.

    >>> kinfed.advise(data="digits", partition="shards", budget="20m").use  # doctest: +SKIP
    'fedper:lr=0.03'
    """
    _truths(unlabelled=unlabelled, quiet=quiet, allow_code=allow_code)
    if "methods" in fields:
        raise InputError("methods: advise takes none; it races those that suit the federation")
    file = _file(fields)
    there = {} if file is None else read_toml(file)
    asked = {**{name: value for name, value in ADVICE_DEFAULTS.items() if name not in there}, **fields}
    seconds = None if budget is None else parse_duration("budget", budget)
    config = _config({**asked, "methods": "local_ssl" if unlabelled else "local"}, uses={}, allow_code=allow_code)
    from kinfed.advice import able
    from kinfed.advice import advise as advise_config
    from kinfed.display import Display

    names = able(config.model_dump(exclude={"methods", "settings"}), config.objects, labelled=not unlabelled)
    config = _config({**asked, "methods": names}, allow_code=allow_code)
    with result_folder(out, "advise") as path, _spectator(quiet) as spectator:
        announce = spectator.say if isinstance(spectator, Display) else lambda _: None
        return advise_config(config, path, announce, spectator, spectator.run, labelled=not unlabelled, budget=seconds)


@with_fields()
@untouched()
def reproduce(
    table: str,
    *,
    scale: str = "small",
    columns: str | Sequence[str] | None = None,
    rows: str | Sequence[str] | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    **fields: Unpack[Fields],
) -> Path:
    """Run the experiments of a paper's table or figure, or those that are still missing.

    Args:
        table: Name of the table or figure, such as ``fedcka-table2`` or ``fedcka-figure5``; ``kinfed reproduce --help``
            lists all.
        scale: ``small``, or ``paper`` for as much as the paper ran.
        columns: Labels of the columns to run, as in the table, with commas between them or as a list; all if not given.
            A figure is drawn whole.
        rows: Labels of the rows to run, likewise.
        out: Folder for the results; ``runs/TABLE-SCALE`` if not given. Finished runs in it are kept.
        quiet: Show no progress.
        **fields: Fields of the experiment that overrule those of the table, such as ``seeds`` or ``workers``.

    Returns:
        Path of a Markdown file with the paper's numbers beside those of the runs. A figure also has its numbers in
        ``figure.json``, and its pictures in ``figure.html`` and ``figure.png`` beside it.

    Raises:
        InputError: If there is no such table, scale, column or row, or a field is wrong, would do nothing, or is one
            in which the columns or rows of the table differ.
        RunFailed: If a run cannot go on, as in `run`.

    >>> kinfed.reproduce("fedcka-table2", seeds=3)  # doctest: +SKIP
    """
    from kinfed.experiment.papers import FIGURES
    from kinfed.experiment.papers.figures import reproduce_figure
    from kinfed.experiment.papers.reproduce import reproduce as reproduce_table
    from kinfed.experiment.papers.table import refuse_choice
    from kinfed.report.paper_figure import write_pictures

    _truths(quiet=quiet)
    path = Path("runs") / f"{table}-{scale}" if out is None else _path("out", out)
    with _spectator(quiet) as spectator:
        if table not in [*FIGURES]:  # a list, since the name may be anything
            return reproduce_table(table, scale, path, fields, spectator, columns, rows)
        refuse_choice(columns, rows, "a figure is drawn whole")
        told = reproduce_figure(table, scale, path, fields, spectator)
    write_pictures(path)
    return told


def open_result(path: str | Path) -> Result:
    """Return the results in a run folder or a comparison folder; nothing is read yet.

    >>> kinfed.open_result("runs/mine").table()  # doctest: +SKIP
    """
    return Result(_path("run", path))


@untouched()
def load(
    path: str | Path, *, client: int | str | None = None, module: nn.Module | None = None, allow_code: bool = False
) -> Predictor:
    """Load a trained model, ready for use.

    Args:
        path: A run folder, for its global model; or a safetensors file in its folder ``models``.
        client: Number (int) or name (text) of the client whose personal model is loaded from a run folder instead of
            the global one. The text ``"3"`` is a name as well.
        module: For an architecture of your own, a module as your function makes it.
        allow_code: Import the function that the model's file names, and call it to make the module.

    Returns:
        The model, on the CPU and in evaluation mode. It takes image files, pictures of PIL, arrays and DataFrames, and
        prepares them as in training.

    Raises:
        InputError: If there is no such model, a file is damaged, or the module does not fit.

    >>> kinfed.load("runs/mine", client=3).predict(["cat.jpg", "dog.jpg"])  # doctest: +SKIP
    ['cat', 'dog']
    """
    from kinfed.experiment.predictor import load as load_model

    return load_model(_path("load", path), client, module, allow_code=allow_code)


@untouched()
def evaluate(
    path: str | Path,
    data: str | Path,
    *,
    client: int | str | None = None,
    label: str | None = None,
    measure: Measure | None = None,
    allow_code: bool = False,
) -> Evaluation:
    """Test the trained models of a run on other labelled data; classes are matched by name.

    Args:
        path: Run folder, for its global model and those of its clients; or a safetensors file in its folder ``models``.
        data: Name or path of the data. Their test set is used, or all samples if they have no split.
        client: Number (int) or name (text) of the client whose model is tested alone.
        label: Name of the column that is the label, where the data do not say it.
        measure: The only measure to compute; all four if not given.
        allow_code: Import the function that the models' files name as their architecture.

    Returns:
        The measures of each model, and the classes that only the data or only the models have.

    Raises:
        InputError: If there is no such model or data, the data do not fit the models, or have none of their classes.

    >>> kinfed.evaluate("runs/mine", "other", measure="macro_f1").models  # doctest: +SKIP
    {'global model': {'macro_f1': 0.71}, 'client north': {'macro_f1': 0.83}}
    """
    from kinfed.experiment.evaluate import evaluate as evaluate_models

    _truths(allow_code=allow_code)
    folder, name = _path("run", path), str(_path("data", data))
    return evaluate_models(folder, name, client=client, label=label, measure=measure, allow_code=allow_code)


@untouched()
def export(
    path: str | Path,
    to: Form = "onnx",
    *,
    client: int | str | None = None,
    out: str | Path | None = None,
    allow_code: bool = False,
) -> Exported:
    """Export a trained model to a file that other programs run, with a description and an example beside it.

    The file is checked by running it: on a few inputs it must have the outputs of the model.

    Args:
        path: Run folder, for its global model; or a safetensors file in its folder ``models``.
        to: ``onnx`` (needs ``pip install 'kinfed[onnx]'``), ``torchscript``, or ``state_dict`` for the weights alone.
        client: Number (int) or name (text) of the client whose model is exported instead of the global one.
        out: Folder for the new files; ``exported`` in the run's folder if not given, where a former export of the same
            model is replaced.
        allow_code: Import the function that the model's file names as its architecture.

    Returns:
        The two files, and the largest difference to the outputs of the model.

    Raises:
        InputError: If there is no such model, a package is missing, a file exists, or the form cannot express the
            model.

    >>> kinfed.export("runs/mine", "torchscript").difference  # doctest: +SKIP
    0.0
    """
    from kinfed.experiment.export import export as export_model

    _truths(allow_code=allow_code)
    folder = None if out is None else _path("out", out)
    return export_model(_path("run", path), to, client=client, out=folder, allow_code=allow_code)


@untouched()
def train_sources(
    data: str | Sequence[str], *, out: str | Path, overwrite: bool = False, quiet: bool = False, **fields: Any
) -> Path:
    """Train a source model on each of several data sets, and write them to a pool.

    A source model is a trained model from which `Vote` can transfer the body to the clients. A pool is a folder of
    source models, which `kinfed.models.open_pool` opens.

    Args:
        data: Names or paths of data sets. Each source gets the name of its data set.
        out: Folder of the pool. Sources that it holds are kept; only the missing ones are trained.
        overwrite: Train and replace sources of these names that the pool holds.
        quiet: Show no progress.
        **fields: Further fields of `kinfed.experiment.training.Training`: ``like``, ``epochs``, ``lr`` and so on;
            ``kinfed sources train --help`` describes them.

    Returns:
        Folder of the pool.

    Raises:
        InputError: If a field is wrong, the training diverges, or the pool holds a source of one of the names that was
            trained with other settings.

    >>> kinfed.train_sources(["mnist", "kmnist"], out="pool", like="usps", image_size=28)  # doctest: +SKIP
    """
    from kinfed.experiment.sources import train_sources as train_all
    from kinfed.experiment.training import Training

    _truths(overwrite=overwrite, quiet=quiet)
    training, pool = Training.checked({**fields, "data": data}), _path("out", out)
    with _spectator(quiet) as spectator:
        train_all(training, pool, spectator.source, overwrite=overwrite)
    return pool


@with_fields(rounds=5, ft_epochs=0)
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
    """Let the clients of a run vote for a source model, as in `Vote` but without a transfer.

    A source (model) is a pre-trained model in the folder ``sources``. Each client compares the model that it trained in
    the last round with every source, and names the most similar ones.

    Args:
        run: Folder of a run with ``save_local=True``. If it is not given, FedAvg is run first, for 5 rounds unless
            ``rounds`` says otherwise.
        out: Folder for ``vote.json`` and ``vote.png``. If it is not given: the folder of ``run``, or, for a new run, a
            new folder in ``runs``, which then holds the run as well.
        overwrite: Let the new run replace a run or comparison that the folder holds.
        quiet: Show no progress.
        measure: Similarity measure: one of `kinfed.similarity.MEASURES` that needs no labels, or
            ``package.module:function``.
        ballot: Number of sources that each client names.
        taps: Layers that are compared, such as ``body`` (the representation) or ``conv1,conv2``; see `Vote`.
        images: Largest number of training images that each client compares on.
        allow_code: Let the run's files or a ``config`` file name code (``package.module:Name``), which is then imported
            and run.
        **fields: ``sources``, the folder of the pool, which a ``config`` file may name instead. For a new run also the
            other fields of the experiment, as in `compare`.

    Returns:
        The ballots, their count, the ranking of the sources, and all scores.

    Raises:
        InputError: If a field is wrong, a source does not fit, or no client can vote.
        RunFailed: If the new run cannot go on, as in `run`.

    >>> kinfed.vote(sources="pool", data="usps", image_size=28, clients=20).ranking  # doctest: +SKIP
    ['mnist', 'kmnist']
    """
    from kinfed.experiment.uses import OF_CLIENTS, OF_METHODS, OF_VERDICTS
    from kinfed.experiment.vote import train_and_vote
    from kinfed.experiment.vote import vote as hold_vote
    from kinfed.methods.fedvote import Vote
    from kinfed.registry import nothing_from_files
    from kinfed.report.vote import save_vote_picture

    _truths(overwrite=overwrite, quiet=quiet, allow_code=allow_code)
    file = _file(fields)
    there = {} if file is None else read_toml(file)
    pool, of_file = fields.pop("sources", None), there.pop("sources", None)
    pool = of_file if pool is None else pool
    if pool is None:
        raise InputError("sources: must be given, a folder of source models; kinfed sources train creates one")
    own = {"measure": measure, "ballot": ballot, "taps": taps, "images": images}
    voting = Config.checked({"methods": "fedvote", "sources": pool, "settings": {"fedvote": own}})
    rule, sources = voting.method("fedvote"), Path(str(voting.sources))
    assert isinstance(rule, Vote)
    if run is not None:
        of_new_run = next(iter([*fields.keys() - {"config"}, *there, *(["overwrite"] if overwrite else [])]), None)
        if of_new_run is not None:
            raise InputError(
                f"{of_new_run}: is for a new run, but {str(run)!r} is an existing one; leave one of them out"
            )
        folder = _path("run", run if out is None else out)
        with nothing_from_files({measure}, run, allow=allow_code):
            held = hold_vote(_path("run", run), sources, rule, folder)
    else:
        uses = {name: use for name, use in (OF_CLIENTS | OF_METHODS | OF_VERDICTS).items() if name != "sources"}
        usual = {name: value for name, value in {"rounds": 5, "ft_epochs": 0}.items() if name not in there}
        new = {**usual, **fields, "methods": "fedavg", "save_local": True}
        config = _config(new, uses=uses, allow_code=allow_code)
        with result_folder(out, "vote") as folder, _spectator(quiet) as spectator:
            held = train_and_vote(config, sources, rule, folder, spectator.run, overwrite=overwrite)
    save_vote_picture(held, folder / "vote.png")
    return held


def _config(
    fields: Mapping[str, Any], *, allow_code: bool = False, executor: Executor | str | None = None, **how: Any
) -> Config:
    """Make the config of some fields. Arrays are stored last, after all other fields have been checked.

    What trains imports what needs torch after this call, so that a mistyped name is refused at once. The server of
    worker processes imports it at the same time, if the given fields ask for some.
    """
    asked = refuse_mistyped(fields)
    if asked.parallel > 1 or (asked.workers and executor is None):
        start_ahead()
    with held_back():  # an interrupt in the middle of it can end the process with an error of its native code
        importlib.import_module("torch")
    from kinfed.experiment.configure import configure
    from kinfed.experiment.objects import as_fields, names_in
    from kinfed.registry import nothing_from_files

    file = _file(fields)
    given, objects = as_fields({name: value for name, value in fields.items() if name != "config"})
    data = given.get("data")
    with nothing_from_files(names_in(given), file, allow=allow_code or file is None):
        if data is None or isinstance(data, str | Path):
            return configure(given, file, objects=objects, **how)
        from kinfed.data.names import EMBEDDED
        from kinfed.data.objects import as_dataset

        config = configure(given | {"data": EMBEDDED}, file, objects=objects, **how)
        options = {name: value for name, value in config.reading.items() if value != Config.model_fields[name].default}
        _, kept = as_dataset(data, config.seed, **options)
        return configure(given | {"data": kept}, file, objects=objects, **how)


def _file(fields: Mapping[str, Any]) -> Path | None:
    """Return the path in the field ``config``, or None if it is not given."""
    return None if fields.get("config") is None else _path("config", fields["config"])


def _path(name: str, value: Any) -> Path:
    if not isinstance(value, str | os.PathLike) or "\0" in str(value) or not is_text(str(value)):
        raise InputError(f"{name}: {short(value)} is not allowed; must be a path that can be encoded in UTF-8")
    return Path(value)


def _truths(**flags: Any) -> None:
    """Refuse a flag that is no bool; the text "False" would count as true."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise InputError(f"{name}: {short(value)} is not allowed; must be true or false")


@contextlib.contextmanager
def result_folder(out: str | Path | None, name: str) -> Iterator[Path]:
    """Context manager that gives a folder for results: ``out``, or a new folder ``runs/TIME-NAME`` of this process."""
    if out is not None:
        yield _path("out", out)
        return
    stem = Path("runs") / f"{dt.datetime.now():%Y%m%d-%H%M%S}-{slug(name)}"
    with own_folder(stem) as path:
        yield path


def _rehearsal(*, overwrite: bool = False) -> ModuleType:
    """Import the rehearsal of a federation.

    Args:
        overwrite: True if a run may be replaced, which is refused: what its sites keep would not fit the new one.

    Raises:
        InputError: If a run may be replaced, or Flower is not installed.
    """
    if overwrite:
        raise InputError("overwrite: is not possible with executor=flower; choose another folder")
    if importlib.util.find_spec("flwr") is None:
        raise InputError("executor: flower is not installed: pip install 'kinfed[flower]'")
    return importlib.import_module("kinfed.flower.rehearsal")


@contextlib.contextmanager
def _spectator(quiet: bool) -> Iterator[Display | Unseen]:
    """Context manager that gives the display of the progress, or an observer that does nothing if it shall be quiet."""
    if quiet:
        from kinfed.tuning import Unseen

        yield Unseen()
        return
    from kinfed.display import Display

    with Display() as spectator:
        yield spectator
