"""The self-contained HTML page of a run or a comparison, which needs no network."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from kinfed.experiment.targets import targets
from kinfed.files import output, write_whole
from kinfed.learning.representation import NEIGHBOURS, TEMPERATURE
from kinfed.report import figures
from kinfed.report.advice import Advised, read_advice
from kinfed.report.ballots import ballot_figure, outcomes, save_ballots, vote_table, voted, votes
from kinfed.report.clients import MOST, client_table
from kinfed.report.confusion import CONFUSION, confusion_figure
from kinfed.report.differences import DIFFERENCES, difference_table
from kinfed.report.document import Panel, document, escaped, section, shown
from kinfed.report.folders import Run, read_runs
from kinfed.report.formats import FORMATS, as_csv
from kinfed.report.frame import frame
from kinfed.report.kinship import kinship, save_kinship
from kinfed.report.matrices import last_round, matrix_figure, shows_kinship
from kinfed.report.measures import WORDS
from kinfed.report.notes import notes
from kinfed.report.reached import target_table
from kinfed.report.round_notes import note_curves, note_table
from kinfed.report.rows import in_rows, setting
from kinfed.report.table import NEW_CLIENTS, Cell, Table, table
from kinfed.report.tuning import TUNED, Tuned, read_tuning, tuning_figure, tuning_notes, tuning_table
from kinfed.report.verdict import verdict

__all__ = ["as_html", "write_report"]

BEST_IN_NOTEBOOK = (
    r'<style>td.best { font-weight: 700 } td.best::before { content: "\2605 "; font-size: .75em }</style>'
)
LARGEST = 500_000  # characters of the numbers that a page holds for downloads


def write_report(paths: Sequence[Path], out: Path, measure: str | None = None) -> Path:
    """Write the page, and PNG pictures beside it.

    The picture of all runs has the page's name with ``.png``. The pictures of one run, of kinship and of the vote, end
    with the name of the run folder.

    Args:
        paths: Folders of runs or comparisons.
        out: File of the page.
        measure: Measure by which the runs are compared (see `read_runs`).

    Returns:
        ``out``.

    Raises:
        InputError: If a folder holds no run with results, or the page cannot be written.
    """
    runs = read_runs(paths, measure)
    with output(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        tuned = [of for path in paths if (of := read_tuning(path))]
        advised = [advice for path in paths if (advice := read_advice(path))]
        write_whole(out, _page(runs, tuned, advised))
        figures.save_report_picture(runs, out.with_suffix(".png"))
        for run in runs:
            kin = [name for name, picture in run.pictures.items() if shows_kinship(run, picture)]
            for name in kin[:1]:  # the picture of all runs has the other matrices
                save_kinship(run, name, out.with_name(f"{out.stem}-kinship-{run.path.name}.png"))
            if voted(run):
                save_ballots(run, out.with_name(f"{out.stem}-vote-{run.path.name}.png"))
    return out


def as_html(runs: Sequence[Run]) -> str:
    """Return HTML for a notebook: the description of the experiment, the conclusion, the table and the notes."""
    said = "".join(f"<p>{escaped(line)}</p>" for line in (setting(runs), verdict(runs)) if line)
    return f"{BEST_IN_NOTEBOOK}{said}{shown(table(runs))}{_notes(runs)}"


def _page(runs: Sequence[Run], tuned: Sequence[Tuned] = (), advised: Sequence[Advised] = ()) -> str:
    title = f"kinfed: {', '.join(in_rows(runs))} on {runs[0].summary['data']['name']}"
    of_rows = [
        part for row, group in in_rows(runs).items() for part in (*_pictures(row, group[0]), *_round_notes(row, group))
    ]
    what = "Round by round" if runs[0].untested else f"{_capital(WORDS[runs[0].measure])} by round"
    parts = [
        *map(_advice, advised),
        f'<p class="setting">{escaped(setting(runs))}</p>',
        f'<p class="verdict">{escaped(verdict(runs))}</p>',
        shown(table(runs)),
        _download(runs),
        _differences(runs),
        *map(_tuning, tuned),
        _new_clients(runs),
        *(_target(runs, target) for target in targets([run.summary for run in runs])),
        *(_vote(row, group) for row, group in votes(runs).items()),
        _notes(runs),
        section(
            what, f"Click a name to hide it; hover for values.{_band(runs)}{_neighbours(runs)}", figures.curves(runs)
        ),
        _clients(runs),
        _confusion(runs),
        *of_rows,
        section("Data of the clients", _held(runs[0]), [Panel(figures.partition(runs[0]))]),
        section("Cost", "Payload of all messages, and seconds by task.", figures.cost(runs)),
        _configs(runs),
        _made(runs),
    ]
    return document(title, "\n".join(parts))


def _download(runs: Sequence[Run]) -> str:
    """Return links to the numbers of the page, which are in the page itself."""
    content = {"table.csv": FORMATS["csv"](table(runs)), "clients.csv": as_csv(frame(runs))}
    if sum(map(len, content.values())) > LARGEST:
        del content["clients.csv"]
    links = ", ".join(
        f'<a download="{name}" href="data:text/csv;base64,{base64.b64encode(text.encode()).decode()}">{name}</a>'
        for name, text in content.items()
    )
    return f'<p class="caption">To download: {links}.</p>'


def _band(runs: Sequence[Run]) -> str:
    """Explain the bands around the curves; empty with one seed."""
    several = any(len(group) > 1 for group in in_rows(runs).values())
    return " A line is the mean over the seeds, and its band is as wide as their range." if several else ""


def _clients(runs: Sequence[Run]) -> str:
    """Return the section with a figure and a table of all clients; empty if no model of theirs has a measure."""
    if runs[0].unlabelled:
        return ""
    seeds, clients = len({run.summary["seed"] for run in runs}), len(runs[0].samples)
    points = f": {clients} clients and {seeds} seeds, {clients * seeds} points a method" if seeds > 1 else ""
    told = f"Each point is one client{points}. Look at the lowest clients as well as at the middle."
    content = client_table(runs)
    few = f" These are the first {MOST:,} of {clients * seeds:,}." if clients * seeds > MOST else ""
    lines = f'<h3>Clients</h3><p class="caption">Click a heading to sort.{few}</p>{shown(content, sortable=True)}'
    return section("Every client", told, [Panel(figures.clients(runs))]) + (lines if content.rows else "")


def _configs(runs: Sequence[Run]) -> str:
    """Return the section with the configs: the fields in which they differ, and each config to unfold."""
    flat = {run.path.name: {name: str(value) for name, value in _flat(run.config)} for run in runs}
    differ = {
        name: [own.get(name, "") for own in flat.values()]
        for name in dict.fromkeys(name for own in flat.values() for name in own)
        if len({own.get(name) for own in flat.values()}) > 1
    }
    rows = tuple((Cell(name), *map(Cell, of_runs)) for name, of_runs in differ.items() if name != "methods")
    headings = ("field", *flat)
    differences = shown(Table(headings, ("",) * len(headings), rows)) if rows else ""
    told = "Fields in which the runs differ" if rows else "The runs do not differ but in the method"
    folded = "".join(
        f"<details><summary>{escaped(run.path.name)}</summary><pre>{html.escape(tomli_w.dumps(run.config))}</pre></details>"
        for run in runs
    )
    first = f'<p class="caption">{told}:</p>{differences}' if len(runs) > 1 else ""
    return f'<h2>Configuration</h2>{first}<p class="caption">The complete configs, defaults included:</p>{folded}'


def _flat(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a config, those of methods as ``method.field``."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{field}", of) for field, of in value.items())
        else:
            yield name, value


def _made(runs: Sequence[Run]) -> str:
    """Return the section on the circumstances of the runs; those that differ are told for each run."""
    known = {run.path.name: run.summary.get("made", {}) for run in runs}
    names = dict.fromkeys(name for made in known.values() for name in made)
    if not names:
        return ""
    lines = []
    for name in names:
        values = dict.fromkeys(made.get(name, "n/a") for made in known.values())
        told = f"{min(values)} to {max(values)}" if name == "date" and len(values) > 1 else "; ".join(values)
        lines.append(f"<dt>{escaped(name)}</dt><dd>{escaped(told)}</dd>")
    return f"<h2>How it was made</h2><dl>{''.join(lines)}</dl>"


def _capital(words: str) -> str:
    return words[0].upper() + words[1:]


def _held(run: Run) -> str:
    """Explain the figure of the clients' data, and the groups of a planted shift."""
    if run.unlabelled:
        return "Training images of each client; they have no labels."
    if "groups" not in run.federation:
        return "Training samples of each client and class."
    return (
        "Training samples of each client and class, and the group of each client under the planted shift "
        f"{run.summary['data'].get('shift', '')} (seed {run.summary['seed']}). No method is told the groups."
    )


def _neighbours(runs: Sequence[Run]) -> str:
    """Explain the curves of methods that read no labels; empty if there are none."""
    if runs[0].untested:
        return (
            " There are no labels, and no accuracy. The first curve shows how often another random view of a training "
            "image is nearer to it than a view of another image, by cosine of the representations; 0.5 is chance."
        )
    if all(run.summary.get("supervised", True) for run in runs):
        return ""
    if runs[0].measure != "accuracy":
        return " Methods without labels are measured after the last round only, with a linear probe."
    return (
        " Methods without labels have no accuracy before a linear probe is fitted after the last round; until then, "
        f"the curve shows that of the {NEIGHBOURS} nearest neighbours by cosine of the representation, whose votes "
        f"weigh e^(cosine / {TEMPERATURE}), on the whole test set."
    )


def _differences(runs: Sequence[Run]) -> str:
    """Return the section with the differences to the best row; empty if there are none."""
    content = difference_table(runs)
    if not content.rows:
        return ""
    return f'<h2>Differences</h2><p class="caption">{escaped(DIFFERENCES)}</p>{shown(content)}'


def _confusion(runs: Sequence[Run]) -> str:
    """Return the section with the confusion matrices; empty if there are none."""
    figure = confusion_figure(runs)
    return "" if figure is None else section("Confusion matrix", CONFUSION, [Panel(figure)])


def _advice(advised: Advised) -> str:
    """Return the section with the advice that rests on a comparison."""
    command = "" if advised.command is None else f"<pre>{escaped(advised.command)}</pre>"
    return f"<h2>Advice</h2><p>{escaped(advised.paragraph)}</p>{command}"


def _tuning(tuned: Tuned) -> str:
    """Return the section with the tuning of a comparison."""
    notes = "".join(f"<p>{escaped(note)}</p>" for note in tuning_notes(tuned) if "edge" in note)
    told = f"{shown(tuning_table(tuned))}{f'<div class=notes>{notes}</div>' if notes else ''}"
    figure = tuning_figure(tuned)
    drawn = section("", "", [Panel(figure)]) if figure.data else ""
    return f'<h2>Tuning</h2><p class="caption">{escaped(TUNED)}</p>{told}{drawn}'


def _new_clients(runs: Sequence[Run]) -> str:
    """Return the section with the table of the new clients; empty if there are no results."""
    content = table(runs, new_clients=True)
    if not content.rows:
        return ""
    return f'<h2>New clients</h2><p class="caption">{escaped(NEW_CLIENTS)}</p>{shown(content)}'


def _target(runs: Sequence[Run], target: float) -> str:
    """Return the section with the table of a target accuracy."""
    content = target_table(runs, target)
    heading, caption = (escaped(text.capitalize()) for text in (content.headings[2], content.meanings[2]))
    return f'<h2>{heading}</h2><p class="caption">{caption}.</p>{shown(content)}'


def _vote(row: str, group: Sequence[Run]) -> str:
    """Return the section with the results of the votes, and the ballots of the first seed."""
    told = f"<h2>The vote: {escaped(row)}</h2>" + "".join(f"<p>{escaped(line)}</p>" for line in outcomes(group))
    first = group[0]
    if not voted(first):
        return told
    caption = f"The sources on each client's ballot (seed {first.summary['seed']}); similar ballots are adjacent."
    return f"{told}{shown(vote_table(first))}{section('', caption, [Panel(ballot_figure(first))])}"


def _pictures(row: str, run: Run) -> Iterator[str]:
    """Yield one section for each picture of a method."""
    seed = run.summary["seed"]
    for name, picture in run.pictures.items():
        if shows_kinship(run, picture):
            grouped = "groups" in run.lines[-1] or "groups" in run.federation
            other = "their groups" if grouped else "their shared classes (cosine of their class counts)"
            caption = (
                f"The similarity of the clients as the method measures it (seed {seed}), beside {other}. "
                f"Clients {'of one group' if grouped else 'with shared classes'} are adjacent."
            )
            yield section(f"Similarity of the clients: {row}", caption, kinship(run, name))
        else:
            caption = f"After round {last_round(run, name)} (seed {seed})."
            yield section(f"{picture.title}: {row}", caption, [Panel(matrix_figure(run, name))])


def _round_notes(row: str, group: Sequence[Run]) -> Iterator[str]:
    """Yield the sections with a method's notes on its rounds: curves and a table."""
    curves, others = note_curves(group), note_table(group)
    if curves:
        yield section(
            f"Round by round: {row}", "Numbers that the method reports for each round, one line per seed.", curves
        )
    if others.rows:
        yield f"<h2>Notes: {escaped(row)}</h2>{shown(others)}"


def _notes(runs: Sequence[Run]) -> str:
    said = "".join(f"<p>{escaped(note)}</p>" for note in notes(runs))
    return f'<div class="notes">{said}</div>' if said else ""
