"""The command line: commands that read options, call `kinfed.api`, and turn errors into one line and an exit code."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import json
import re
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args, get_origin

import typer
from pydantic import BaseModel
from typer.core import TyperCommand

from kinfed.errors import InputError, RunFailed, WorkersFailed, nearest, plain
from kinfed.experiment.config import Config, Measure
from kinfed.experiment.config_file import FORMER_NAMES, parse_settings
from kinfed.experiment.keywords import ADVICE_DEFAULTS, TUNING_DEFAULTS
from kinfed.experiment.papers import FIGURES, TABLES
from kinfed.experiment.training import Training
from kinfed.files import NotSaved, new_folder

if TYPE_CHECKING:
    from kinfed.api import Result

__all__ = ["app", "main"]

app = typer.Typer(
    name="kinfed",
    help="Federated learning for clients that differ: in their data, in having labels, in the models they can run.",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
sources = typer.Typer(help="Train or list source models for a vote.")
app.add_typer(sources, name="sources")
site = typer.Typer(help="A site of a federation with Flower: see docs/flower.md.")
app.add_typer(site, name="site")

# Errors of typer's older versions, which Flower needs, are click's.
CommandError: Any = getattr(typer, "TyperException", None) or importlib.import_module("click").ClickException

FAILED = 1
WRONG_INPUT = 2
INTERRUPTED = 130


# Headings of the options in a command's help; a group begins with the option of this field.
GROUPS = {
    "data": "Data",
    "model": "Models",
    "clients": "Clients",
    "rounds": "Training",
    "ft_epochs": "Tests of the models",
    "public": "Public images and seeds",
    "evaluate_every": "Rounds that are tested or saved",
    "workers": "Execution",
}

# Fields without a meaning where every site has data of its own.
NOT_AT_SITES = (
    "methods", "settings", "data", "partition", "clients", "client", "new_clients", "hold_out", "shift", "validation",
    "patience", "classes", "train_images", "workers", "client_timeout", "cpus_per_client", "gpus_per_client",
    "parallel",
)  # fmt: skip


class Grouped(TyperCommand):
    """Command whose help shows its options in groups with headings."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options; an option without a group is under ``Options``."""
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            of = "Arguments" if parameter.param_type_name == "argument" else "Options"
            if record := parameter.get_help_record(ctx):
                groups.setdefault(getattr(parameter, "rich_help_panel", None) or of, []).append(record)
        for heading, records in groups.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def with_options(
    command: Callable[..., None], config: type[BaseModel], but: Sequence[str], usual: Mapping[str, Any] = {}
) -> Callable[..., None]:
    """Give a command one option for each field of a config, collected in its argument ``given``.

    The values are passed on as text, those of flags as bool. The config checks them, so that the message of an error is
    the same everywhere.

    Args:
        command: Command with an argument ``given``, a mapping from the names of the given fields to text.
        config: Class with the fields.
        but: Names of fields that get no option.
        usual: Defaults of fields where they are not those of the config.
    """
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "given"]
    fields = {name: f for name, f in config.model_fields.items() if name not in but}
    options, group = [], None
    for name, field in fields.items():
        group = GROUPS.get(name, group)
        is_flag = field.annotation in (bool, bool | None)
        names = [f"--{of.replace('_', '-')}" for of in (name, FORMER_NAMES.get(name)) if of]
        if is_flag:
            names = [f"{names[0]}/--no-{names[0].removeprefix('--')}"]
        option = typer.Option(
            *names,
            metavar=None if is_flag else _metavar(field.annotation),
            help=f"{field.description}{'' if is_flag else _shown(usual.get(name, field.default))}",
            show_default=False,
            rich_help_panel=group,
        )
        annotation = Annotated[bool | None, option] if is_flag else Annotated[str | None, option]
        options.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))

    def wrapped(**arguments: Any) -> None:
        given = {name: arguments.pop(name) for name in fields}
        command(given={name: value for name, value in given.items() if value is not None}, **arguments)

    wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
    wrapped.__signature__ = inspect.Signature([*own, *options])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in [*own, *options]}
    return wrapped


with_config_options = functools.partial(with_options, config=Config, but=("methods", "settings"))
with_unjudged_options = functools.partial(with_options, config=Config, but=("methods", "settings", "measure"))
with_tuning_options = functools.partial(
    with_options, config=Config, but=("methods", "settings", "log"), usual=TUNING_DEFAULTS
)
with_advice_options = functools.partial(
    with_options, config=Config, but=("methods", "settings", "log"), usual=ADVICE_DEFAULTS
)
with_deployed_options = functools.partial(with_options, config=Config, but=NOT_AT_SITES)
with_training_options = functools.partial(with_options, config=Training, but=("data",))


def _tell_version(asked: bool) -> None:
    if asked:
        typer.echo(f"kinfed {sys.modules['kinfed'].__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="show the version and exit")
    ] = False,
) -> None:
    """Read the options before the command."""
    del version


def _shown(default: Any) -> str:
    return "" if default is None else f" [{default}]"


def _metavar(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return "|".join(get_args(annotation))
    return {int: "INT", int | None: "INT", float: "FLOAT", float | None: "FLOAT"}.get(annotation, "TEXT")


Budget = Annotated[
    str | None,
    typer.Option("--budget", metavar="TIME", help="time for all of it, as in 30m or 2h; by default no limit"),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="TOML file with fields of the experiment; options overrule it"),
]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="folder for the results [runs/TIME-NAME]")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="replace what a former run wrote into the folder")]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="METHOD.FIELD=VALUE",
        help="set a field of a method, or its own lr, optimizer, momentum, weight_decay, local_epochs or batch_size; "
        "repeatable",
    ),
]
Protection = Annotated[
    str | None,
    typer.Option(
        "--dp",
        metavar="FIELD=VALUE,...",
        help="differential privacy for each client, for all methods that send something: noise=1.0,clip=0.5 or "
        "epsilon=8; see: kinfed methods dp",
    ),
]
AllowCode = Annotated[
    bool, typer.Option("--allow-code", help="allow the import of code that a file names as package.module:Name")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="show no progress")]
AsJson = Annotated[
    bool, typer.Option("--json", help="print the summaries of the runs as JSON instead of the table, and no progress")
]
ExecutorName = Annotated[
    str | None,
    typer.Option(
        "--executor",
        metavar="flower|ray[:ADDRESS]",
        help="where the clients work: flower is a rehearsal, with a Flower node for each on this machine; ray has the "
        "workers on the cluster at HOST:PORT, or without an address on this machine",
    ),
]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="folder of a run or comparison")]
ModelPath = Annotated[Path, typer.Argument(metavar="RUN", help="folder of a run, or a file in its folder models")]
ModelClient = Annotated[
    str | None,
    typer.Option(
        "--client", metavar="NAME", help="client whose own model is used, by its name, or number without names"
    ),
]


def _asked(
    config: Path | None, assignments: list[str] | None, given: Mapping[str, str], dp: str | None = None
) -> dict[str, Any]:
    """Collect the fields of the command line. The config file is passed on by its path and read later."""
    more = {"settings": parse_settings(assignments or []), "config": config, "dp": dp}
    return {**given, **{name: value for name, value in more.items() if value}}


@app.command(cls=Grouped)
@with_config_options
def run(
    method: Annotated[
        str,
        typer.Argument(
            metavar="METHOD", help="method: NAME, NAME:FIELD=VALUE or package.module:Name; see: kinfed methods"
        ),
    ],
    config: ConfigFile = None,
    out: Out = None,
    overwrite: Overwrite = False,
    executor: ExecutorName = None,
    assignments: Assignments = None,
    dp: Protection = None,
    allow_code: AllowCode = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    given: Mapping[str, str] = {},
) -> None:
    """Run one method.

    A display shows the progress; a run folder, a table and an HTML page hold the results.
    """
    from kinfed import api

    asked = _asked(config, assignments, given, dp)
    with api.result_folder(out, method) as folder, _resumable(f"kinfed resume {folder}{_with(executor)}", folder):
        how: dict[str, Any] = {"overwrite": overwrite, "allow_code": allow_code, "executor": executor}
        _show(api.run(method, out=folder, quiet=quiet or as_json, **how, **asked), as_json)


@app.command(cls=Grouped)
@with_config_options
def compare(
    methods: Annotated[
        list[str] | None, typer.Argument(metavar="METHOD...", help="methods, in the form of kinfed run")
    ] = None,
    config: ConfigFile = None,
    out: Out = None,
    overwrite: Overwrite = False,
    executor: ExecutorName = None,
    assignments: Assignments = None,
    dp: Protection = None,
    allow_code: AllowCode = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    given: Mapping[str, str] = {},
) -> None:
    """Compare several methods on the same clients.

    The results are one table and one HTML page. The baseline that trains alone is added where it is missing.
    """
    from kinfed import api

    asked = _asked(config, assignments, given, dp)
    with api.result_folder(out, "compare") as folder, _resumable(f"kinfed resume {folder}{_with(executor)}", folder):
        how: dict[str, Any] = {"overwrite": overwrite, "allow_code": allow_code, "executor": executor}
        _show(api.compare(methods, out=folder, quiet=quiet or as_json, **how, **asked), as_json)


@app.command()
def resume(
    path: RunPath,
    rounds: Annotated[
        int | None, typer.Option("--rounds", metavar="INT", help="new number of rounds, larger than the former one")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="TEXT", help="device to go on with; on another one the last bits differ"),
    ] = None,
    executor: ExecutorName = None,
    allow_code: AllowCode = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Continue a run or a comparison that was stopped."""
    from kinfed import api

    with _resumable(f"kinfed resume {path}{_with(executor)}"):
        still = quiet or as_json
        held = api.resume(path, rounds=rounds, device=device, allow_code=allow_code, quiet=still, executor=executor)
        _show(held, as_json)


@app.command(cls=Grouped)
@with_tuning_options
def tune(
    methods: Annotated[
        list[str] | None, typer.Argument(metavar="METHOD...", help="methods, in the form of kinfed run")
    ] = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over",
            metavar="[METHOD.]FIELD=VALUES",
            help="field to tune and its values: lr=0.01,0.1 or fedprox.mu=log:0.001:1; repeatable [each method's own]",
        ),
    ] = None,
    budget: Budget = None,
    config: ConfigFile = None,
    out: Out = None,
    executor: ExecutorName = None,
    assignments: Assignments = None,
    dp: Protection = None,
    allow_code: AllowCode = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    given: Mapping[str, str] = {},
) -> None:
    """Tune methods on validation samples, and compare the best setting of each.

    Settings race by successive halving; the comparison has fresh seeds. The same command continues what was stopped.
    """
    from kinfed import api

    asked = _asked(config, assignments, given, dp)
    with api.result_folder(out, "tune") as folder, _resumable(f"kinfed resume {folder}{_with(executor)}", folder):
        asked |= {"over": over or (), "budget": budget, "out": folder, "allow_code": allow_code, "executor": executor}
        _show(api.tune(methods, quiet=quiet or as_json, **asked), as_json)


@app.command(cls=Grouped)
@with_advice_options
def advise(
    budget: Budget = None,
    unlabelled: Annotated[
        bool, typer.Option("--unlabelled", help="the clients have no labels: race only methods that read none")
    ] = False,
    config: ConfigFile = None,
    out: Out = None,
    allow_code: AllowCode = False,
    given: Mapping[str, str] = {},
) -> None:
    """Say which method to use on a federation, with which settings, and what it gains.

    The methods that suit the clients' data race on validation samples, and the best setting of each is compared on
    fresh seeds. The same command continues what was stopped.
    """
    from kinfed import api

    asked = _asked(config, None, given)
    with api.result_folder(out, "advise") as folder, _resumable(f"the same command and --out {folder}", folder):
        told = api.advise(budget=budget, unlabelled=unlabelled, out=folder, allow_code=allow_code, **asked)
        _show(api.open_result(folder))
        typer.echo(f"\n{plain(told.paragraph)}")
        if told.command is not None:
            typer.echo(f"\n{plain(told.command)}")


@app.command(cls=Grouped)
@with_unjudged_options
def reproduce(
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help=f"name of the table or figure: {', '.join([*TABLES, *FIGURES])}")
    ],
    scale: Annotated[str, typer.Option("--scale", help="small, or paper for the scale of the paper")] = "small",
    columns: Annotated[
        str | None, typer.Option("--columns", metavar="NAME,NAME", help="run only these columns of the table")
    ] = None,
    rows: Annotated[
        str | None, typer.Option("--rows", metavar="NAME,NAME", help="run only these rows of the table")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="folder for the results [runs/TABLE-SCALE]")
    ] = None,
    given: Mapping[str, str] = {},
) -> None:
    """Reproduce a table or a figure of one of the papers.

    The paper's numbers and ours are written side by side; a figure is drawn to figure.html and figure.png. The same
    command continues what was stopped. Options overrule the settings of the table, except those in which its columns or
    rows differ.
    """
    from kinfed import api

    out = out or Path("runs") / f"{table}-{scale}"
    with _resumable("the same command"):
        path = api.reproduce(table, scale=scale, columns=columns, rows=rows, out=out, **cast(dict[str, Any], given))
        typer.echo(path.read_text())


@app.command()
def report(
    paths: Annotated[list[Path], typer.Argument(metavar="RUN...", help="folders of runs or comparisons")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="file name of the page [RUN/report.html]")
    ] = None,
    form: Annotated[
        Literal["html", "csv", "json", "markdown", "latex"],
        typer.Option("--format", help="html for the page; the others print the table alone, or write it to --out"),
    ] = "html",
    measure: Annotated[
        Measure | None,
        typer.Option("--measure", help="measure by which the table and the verdict compare methods [that of the run]"),
    ] = None,
) -> None:
    """Write the HTML page and the picture of runs, or their table in another format."""
    from kinfed.report.formats import formatted, write_formatted
    from kinfed.report.page import write_report
    from kinfed.report.terminal import show

    if form != "html":
        if out is None:
            typer.echo(formatted(paths, form, measure), nl=False)
        else:
            write_formatted(paths, form, out, measure)
        return
    show(paths, measure=measure)
    typer.echo(f"\n{plain(write_report(paths, out or paths[0] / 'report.html', measure))}")


@app.command()
def predict(
    run: ModelPath,
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILES...", help="images, folders of images, or one table (CSV, TSV or parquet)"),
    ],
    client: ModelClient = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.csv", help="new CSV file for the answers, instead of a table")
    ] = None,
    allow_code: AllowCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the answers as JSON instead of a table")] = False,
) -> None:
    """Classify images, or the rows of a table, by a trained model.

    Images get the channels, the size and the normalisation of the training, and tables its features. Each answer has
    the probability that the model gives it.
    """
    from kinfed import api
    from kinfed.cli.predict import answers, described
    from kinfed.experiment.predictor import client_number
    from kinfed.files import output, write_whole
    from kinfed.report.formats import as_csv

    if out is not None and (out.suffix != ".csv" or out.exists()):
        told = "exists; choose another file" if out.suffix == ".csv" else "is not allowed; must be a new file .csv"
        raise InputError(f"out: {str(out)!r} {told}")
    model = api.load(run, client=client_number(run, client), allow_code=allow_code)
    found = answers(model, files)
    about = described(model, run, client)
    if out is not None:
        with output(out):
            write_whole(out, as_csv(found))
    if as_json:
        typer.echo(json.dumps({"model": about, "answers": found.to_dict("records")}))
        return
    typer.echo(f"{about}\n")
    if out is not None:
        typer.echo(plain(out))
    else:
        found["probability"] = found["probability"].map("{:.3f}".format)
        _columns([[*found.columns], *found.astype(str).to_numpy().tolist()])


@app.command()
def evaluate(
    run: ModelPath,
    data: Annotated[str, typer.Option("--data", metavar="TEXT", help="labelled data, in any form of kinfed run")],
    client: ModelClient = None,
    label: Annotated[
        str | None, typer.Option("--label", metavar="TEXT", help="name of the column that is the label")
    ] = None,
    measure: Annotated[
        Measure | None, typer.Option("--measure", help="the only measure to compute [all of them]")
    ] = None,
    allow_code: AllowCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the measures as JSON instead of a table")] = False,
) -> None:
    """Test the trained models of a run on other labelled data.

    The test set of the data is used, or all samples if they have no split. The global model and those of the clients
    are side by side. Classes are matched by name.
    """
    from kinfed import api
    from kinfed.experiment.predictor import client_number
    from kinfed.report.measures import WORDS

    of = client_number(run, client)
    found = api.evaluate(run, data, client=of, label=label, measure=measure, allow_code=allow_code)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(found)))
        return
    typer.echo(plain(f"{found.which}: {found.samples:,} samples"))
    if found.unknown:
        told = ", ".join(f"{name} ({samples:,})" for name, samples in found.unknown.items())
        typer.echo(plain(f"left out, since the model does not know their classes: {told}"))
    if found.missing:
        typer.echo(plain(f"classes of the model without a sample: {', '.join(found.missing)}"))
    typer.echo()
    wanted = [measure] if measure else [*WORDS]
    rows = [
        [name, *("–" if own[of] is None else f"{own[of]:.3f}" for of in wanted)] for name, own in found.models.items()
    ]
    _columns([["model", *(WORDS[of] for of in wanted)], *rows])


@app.command()
def export(
    run: ModelPath,
    to: Annotated[
        Literal["onnx", "torchscript", "state_dict"],
        typer.Option("--to", help="form of the file; onnx needs pip install 'kinfed[onnx]'"),
    ] = "onnx",
    client: ModelClient = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="folder for the new files [RUN/exported]")
    ] = None,
    allow_code: AllowCode = False,
) -> None:
    """Export a trained model to a file that other programs run.

    The normalisation of the inputs is part of an ONNX or TorchScript file. A JSON file beside it has the names of the
    classes and an example. The file is checked by running it.
    """
    from kinfed import api
    from kinfed.experiment.predictor import client_number

    made = api.export(run, to, client=client_number(run, client), out=out, allow_code=allow_code)
    typer.echo(f"largest difference to the model: {made.difference:.2g}, by {made.runner} on a few inputs")
    typer.echo(f"{plain(made.path)}\n{plain(made.about)}")


@app.command()
def similarity(
    a: Annotated[Path, typer.Argument(metavar="A", help="activations (.npy, .npz, .safetensors) or a saved model")],
    b: Annotated[
        Path, typer.Argument(metavar="B", help="the same of a second model, for the same examples in the same order")
    ],
    data: Annotated[
        str | None, typer.Option("--data", metavar="TEXT", help="data set whose test images the models are given")
    ] = None,
    samples: Annotated[int | None, typer.Option("--samples", metavar="INT", help="number of test images [256]")] = None,
    layers: Annotated[
        list[str] | None,
        typer.Option("--layer", metavar="NAME", help="name of a layer; may be given several times [all layers]"),
    ] = None,
    measure: Annotated[
        str, typer.Option("--measure", metavar="NAME", help="similarity measure: a name or package.module:function")
    ] = "cka",
    kernel: Annotated[Literal["linear", "rbf"], typer.Option("--kernel", help="kernel of CKA")] = "linear",
    bandwidth: Annotated[
        float | None,
        typer.Option(
            "--bandwidth",
            metavar="FLOAT",
            help="bandwidth of the rbf kernel, as a fraction of the median distance [0.5]",
        ),
    ] = None,
    out: Out = None,
    allow_code: AllowCode = False,
) -> None:
    """Compare the layers of two models.

    The similarities of all pairs of layers are written as a table, a picture and JSON.
    """
    from rich.console import Console

    from kinfed import api
    from kinfed.cli.similarity import compare_files
    from kinfed.report.layers import layer_table, provenance, save_layers

    if bandwidth is not None and kernel == "linear":
        raise InputError(f"bandwidth: {bandwidth} would do nothing; it is of kernel rbf")
    if samples is not None and data is None:
        raise InputError(f"samples: {samples} would do nothing; it is of the images that models see, with --data")
    samples, bandwidth = 256 if samples is None else samples, 0.5 if bandwidth is None else bandwidth
    with api.result_folder(out, "similarity") as folder, new_folder(folder):
        result = compare_files(
            a,
            b,
            data=data,
            samples=samples,
            layers=layers,
            measure=measure,
            kernel=kernel,
            bandwidth=bandwidth,
            allow_code=allow_code,
        )
        console = Console()
        console.print(f"{plain(provenance(result))}\n", highlight=False, markup=False, emoji=False)
        for heading in result.matrices:
            console.print(layer_table(result, heading))
            console.print()
        for path in save_layers(result, folder):
            typer.echo(plain(path))


@app.command(cls=Grouped)
@with_config_options
def partition(config: ConfigFile = None, out: Out = None, given: Mapping[str, str] = {}) -> None:
    """Show the data of each client before training.

    The numbers of samples per client and class are written as a table, a picture and JSON, with a picture of some
    images.
    """
    from kinfed import api
    from kinfed.cli.partition import show_partition

    with api.result_folder(out, "partition") as folder, new_folder(folder):
        show_partition(given, config, folder)


@app.command(cls=Grouped)
@with_unjudged_options
def vote(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="[RUN]", help="run with --save-local; without one, FedAvg is run first"),
    ] = None,
    measure: Annotated[str, typer.Option("--measure", metavar="NAME", help="similarity measure")] = "sketched_cka",
    ballot: Annotated[
        int, typer.Option("--ballot", metavar="INT", help="number of source models that each client votes for")
    ] = 3,
    taps: Annotated[
        str, typer.Option("--taps", metavar="TEXT", help="layers that are compared, as in body or conv1,conv2")
    ] = "body",
    images: Annotated[int, typer.Option("--images", metavar="INT", help="largest number of images per client")] = 1000,
    config: ConfigFile = None,
    out: Out = None,
    overwrite: Overwrite = False,
    allow_code: AllowCode = False,
    given: Mapping[str, str] = {},
) -> None:
    """Let the clients vote for a source model.

    Each client votes by the similarity of its model to the source models. The ranking, all scores and their picture are
    written.
    """
    from rich.console import Console

    from kinfed import api
    from kinfed.report.vote import provenance, ranking_table

    with api.result_folder(out or run, "vote") as folder:
        later = f"kinfed resume {folder}, then kinfed vote {folder} --sources {given.get('sources', '…')}"
        with _resumable("the same command" if run else later):
            held = api.vote(
                run,
                out=folder,
                overwrite=overwrite,
                measure=measure,
                ballot=ballot,
                taps=taps,
                images=images,
                allow_code=allow_code,
                **_asked(config, None, given),
            )
        console = Console()
        console.print(f"\n{plain(provenance(held))}\n", highlight=False, markup=False, emoji=False)
        console.print(ranking_table(held))
        typer.echo(f"\n{plain(folder / 'vote.json')}\n{plain(folder / 'vote.png')}")


@app.command(cls=Grouped)
@with_deployed_options
def deploy(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="new folder of the app")],
    methods: Annotated[list[str], typer.Argument(metavar="METHOD...", help="methods, in the form of kinfed run")],
    sites: Annotated[int, typer.Option("--sites", metavar="INT", min=1, help="number of sites")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="folder for the results at the server")],
    images: Annotated[
        str | None, typer.Option("--images", metavar="TEXT", help="data with the public images of the server")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="FLOAT", min=1, help="seconds that a site may work on a task [3600]")
    ] = 3600.0,
    assignments: Assignments = None,
    dp: Protection = None,
    given: Mapping[str, str] = {},
) -> None:
    """Write an app for Flower that runs methods at sites, each with data of its own."""
    _need_flower()
    from kinfed.experiment.configure import configure
    from kinfed.flower.deploy import SITES
    from kinfed.flower.deploy import deploy as write

    of_sites = {"methods": tuple(methods), "data": SITES, "partition": SITES, "clients": sites}
    config = configure({**_asked(None, assignments, given, dp), **of_sites}, objects={SITES: None})
    write(folder, config, sites=sites, out=out, timeout=timeout, images=images)
    typer.echo(f"app      {plain(folder)}\nstart    flwr run {plain(folder)} CONNECTION --stream")


@app.command()
def watch(out: Annotated[Path, typer.Argument(metavar="DIR", help="folder of the results at the server")]) -> None:
    """Show the progress of a run at sites that flwr run has started; Ctrl-C ends the display, not the run."""
    from kinfed.display import Display
    from kinfed.flower.journal import watch as follow
    from kinfed.interrupt import Stopped

    with _resumable("flwr run, as before"), Display() as display:
        try:
            follow(out, display.run)
        except KeyboardInterrupt as error:
            if isinstance(error, Stopped):  # the run, and not only its display
                raise
            raise typer.Exit(INTERRUPTED) from None


@sources.command("train")
@with_training_options
def train_sources(
    data: Annotated[list[str], typer.Option("--data", metavar="TEXT", help="data set; may be given several times")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="folder of the pool; its source models are kept")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace source models of the same names")] = False,
    given: Mapping[str, str] = {},
) -> None:
    """Train a source model on each data set.

    The models are written to a pool. The same command continues what was stopped.
    """
    from kinfed import api

    with _resumable("the same command"):
        api.train_sources(data, out=out, overwrite=overwrite, **cast(dict[str, Any], given))
    list_sources(out)


def _need_flower() -> None:
    """Refuse a command that needs Flower if it is not installed."""
    if importlib.util.find_spec("flwr") is None:
        raise InputError("flower is not installed: pip install 'kinfed[flower]'")


@sources.command("list")
def list_sources(pool: Annotated[Path, typer.Argument(metavar="DIR", help="folder of a pool, or RUN/models")]) -> None:
    """List the source models of a pool.

    Each line has name, architecture, input shape, number of classes, training data and test accuracy.
    """
    from kinfed.models import open_pool

    rows = [
        (
            source.name,
            source.card.architecture,
            "×".join(map(str, source.card.shape)),
            f"{len(source.card.classes)} classes",
            source.card.data or "–",
            "–" if source.card.accuracy is None else f"{source.card.accuracy:.3f}",
        )
        for source in open_pool(pool)
    ]
    _columns(rows)


@site.command("check")
def check_site(
    data: Annotated[str, typer.Option("--data", metavar="TEXT", help="data of the site: a name or a path")],
    state: Annotated[Path, typer.Option("--state", metavar="DIR", help="folder in which the site keeps its own")],
    name: Annotated[str, typer.Option("--name", metavar="TEXT", help="name of the site")] = "this site",
    policy: Annotated[
        Path | None, typer.Option("--policy", metavar="FILE", help="policy of the site [DIR/policy.toml, if it exists]")
    ] = None,
) -> None:
    """Say what a site would tell a server, and do for it.

    Nothing is sent or changed. The name, the data and the folder are those of the node's configuration.
    """
    _need_flower()
    from kinfed.flower.check import about_site
    from kinfed.flower.site import Site

    entries = {"name": name, "data": data, "state": str(state)} | ({"policy": str(policy)} if policy else {})
    told = about_site(Site.of_node(entries))
    width = max(len(heading) for heading, _ in told)
    for heading, text in told:
        typer.echo(f"{heading:<{width}}  {plain(text)}")


@app.command()
def methods(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[METHOD]", help="method whose fields are described; by default all are listed"),
    ] = None,
    travels: Annotated[
        bool, typer.Option("--travels", help="say what clients send and receive, and what it tells about labels")
    ] = False,
) -> None:
    """List the methods, or describe the fields of one.

    Methods of other packages are marked with the name of the package; they are imported only when they are used.
    """
    from kinfed.methods import METHODS

    if travels:
        for of in METHODS if name is None else [name]:
            try:
                _tell_travels(of)
            except InputError as error:  # a method of another package
                if name is not None:
                    raise
                typer.echo(plain(f"{of}: {error}"))
        return
    if name is not None:
        _describe(name)
        return
    _list([(name, METHODS.summary(name) or f"[{METHODS.origin(name)}]") for name in METHODS])


def _tell_travels(name: str) -> None:
    """Print what the messages of a method carry, and what it tells about labels."""
    from kinfed.methods import make_method

    method = make_method(name)
    typer.echo(plain(name))
    for way, sent in (("sends", method.carries_up), ("receives", method.carries_down)):
        for one in sent:
            when = f", {one.when}" if one.when else ""
            typer.echo(f"  {way:<9} {plain(f'{one.what} ({one.size}){when}')}")
            typer.echo(f"            labels: {plain(one.labels)}")
        if not sent:
            typer.echo(f"  {way:<9} nothing")


def _describe(name: str) -> None:
    """Print what a method does, and its fields with types, defaults and meanings."""
    from kinfed.methods import METHODS, method_fields
    from kinfed.methods.fields_of import described_fields

    method_fields(name)  # refuses what cannot be joined
    wrapper, _, base = name.partition("+")
    for part in filter(None, (wrapper, base)):
        kind = METHODS.find(part)
        about, *_ = (inspect.getdoc(kind) or "").splitlines() or [""]
        typer.echo(plain(f"{part}: {about}"))
        described = described_fields(kind)
        if not described:
            typer.echo("\n  It has no fields of its own.")
        for field in described:
            typer.echo(f"\n  {field.name}: {field.type}{f' [{field.default}]' if field.default else ''}")
            if field.meaning:
                typer.echo(textwrap.fill(plain(field.meaning), 80, initial_indent="    ", subsequent_indent="    "))


@app.command()
def datasets() -> None:
    """List the data sets that have a name."""
    from kinfed.data.names import PATHS, known

    _list([*known().items(), *PATHS])


@app.command()
def example(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="folder for the data; must be new or empty")],
) -> None:
    """Write example data: images of four sites, a table of wards, images with a table, and images without labels.

    README.md in the folder has the commands to try.
    """
    from kinfed.data.example import write_example

    write_example(folder)
    typer.echo(f"{plain(folder / 'README.md')} has the commands to try")


@app.command()
def models() -> None:
    """List the architectures.

    Those of other packages are marked with the name of the package; they are imported only when they are used.
    """
    from kinfed.models import ARCHITECTURES

    origins = {name: ARCHITECTURES.origin(name) for name in ARCHITECTURES}
    _list([(name, ARCHITECTURES[name].summary if of == "kinfed" else f"[{of}]") for name, of in origins.items()])


def _list(told: Sequence[tuple[str, str]]) -> None:
    """Print names and their descriptions in two columns."""
    lines = [(plain(name), plain(what)) for name, what in told]
    width = max((len(name) for name, _ in lines), default=0) + 2
    for name, what in lines:
        typer.echo(f"{name:<{width}}{what}")


def _columns(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of texts in columns."""
    lines = [[*map(plain, row)] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        typer.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())


def _with(executor: str | None) -> str:
    """Return the option of an executor, for the command that continues a run."""
    return "" if executor is None else f" --executor {executor}"


@contextlib.contextmanager
def _resumable(command: str, folder: Path | None = None) -> Iterator[None]:
    """Print the command that continues a run if it ends early, and set the exit code.

    Args:
        command: The command.
        folder: Folder of the results; without a config in it there is nothing to continue. None if it is not known.
    """

    def end(why: str) -> None:
        nothing = folder is not None and not [*folder.glob("*.toml"), *folder.glob("*/*.toml")]
        _complain(f"{why}; nothing was saved" if nothing else f"{why}; what was saved stays, go on with: {command}")

    try:
        yield
    except KeyboardInterrupt as error:
        end("stopped")
        raise typer.Exit(getattr(error, "exit_code", INTERRUPTED)) from None
    except (RunFailed, WorkersFailed, NotSaved) as error:
        end(str(error))
        raise typer.Exit(FAILED) from error


def _show(result: Result, as_json: bool = False) -> None:
    if as_json:
        typer.echo(json.dumps({"path": str(result.path), "report": str(result.report()), "runs": result.summaries}))
        return
    result.table()
    typer.echo(f"\nresults  {plain(result.path)}\nreport   {plain(result.report())}")


def main() -> None:
    """Run the ``kinfed`` command: parse the arguments, and exit with code 0, 1, 2 or 130."""
    arguments = sys.argv[1:]
    warnings.showwarning = lambda message, *_: _complain(f"warning: {message}")
    try:
        code = app(arguments or ["--help"], standalone_mode=False)
    except (InputError, CommandError) as error:
        _complain(_told(error))
        code = WRONG_INPUT
    sys.exit(code if arguments else WRONG_INPUT)


def _told(error: Exception) -> str:
    """Return the message of an error in the arguments, which suggests the nearest name once."""
    message = str(getattr(error, "message", ""))
    choices = [*getattr(getattr(getattr(error, "param", None), "type", None), "choices", ())]
    wrong = re.match("'(.*)' is not one of", message)
    # The message of typer's errors is better than their str(), but names a Python class.
    told = message if "Did you mean" in message else getattr(error, "format_message", error.__str__)()
    told = told.replace("Value error, ", "")
    return told.removesuffix(".") + nearest(wrong[1], map(str, choices)) if wrong else told


def _complain(text: str) -> None:
    sys.stderr.write(f"kinfed: {plain(text)}\n")
