"""The self-contained HTML page of a run or a comparison, which needs no network."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from pathlib import Path

import plotly.graph_objects as go
import tomli_w
from plotly.offline import get_plotlyjs

from kinfed.errors import plain
from kinfed.experiment.targets import targets
from kinfed.files import output, write_whole
from kinfed.report import figures
from kinfed.report.advice import Advised, read_advice
from kinfed.report.ballots import ballot_figure, outcomes, save_ballots, vote_table, voted, votes
from kinfed.report.confusion import CONFUSION, confusion_figure
from kinfed.report.differences import DIFFERENCES, difference_table
from kinfed.report.folders import Run, read_runs
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

__all__ = ["as_html", "document", "drawn", "write_report"]

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; color: #222; background: #fff;
       max-width: 1100px; margin: 2.5rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .2rem; }
p { margin: .3rem 0 .8rem; }
.setting, .caption { color: #555; }
.verdict { font-size: 1.1rem; font-weight: 600; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .93rem; }
th, td { padding: .4rem .6rem; text-align: right; border-bottom: 1px solid #e4e4e4; white-space: nowrap; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
th { border-bottom: 2px solid #999; cursor: help; white-space: normal; vertical-align: bottom; }
small { color: #777; font-weight: 400; }
td.best { font-weight: 700; color: #00664a; }
td::before { content: "\\2605 "; font-size: .75em; visibility: hidden; }
td.best::before { visibility: visible; }
td:nth-child(-n+2)::before { content: none; }
.notes { background: #fff6e0; border-left: 4px solid #e69f00; padding: .6rem 1rem; margin: 1rem 0; }
.notes p { margin: .2rem 0; }
pre { background: #f6f6f6; padding: 1rem; overflow-x: auto; font-size: .85rem; }
summary { cursor: pointer; }
"""


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
    said = "".join(f"<p>{_text(line)}</p>" for line in (setting(runs), verdict(runs)) if line)
    return f"{said}{_table(table(runs))}{_notes(runs)}"


def _page(runs: Sequence[Run], tuned: Sequence[Tuned] = (), advised: Sequence[Advised] = ()) -> str:
    title = f"kinfed: {', '.join(in_rows(runs))} on {runs[0].summary['data']['name']}"
    sections = [
        _section("Round by round" if runs[0].untested else f"{_capital(WORDS[runs[0].measure])} by round",
                 f"Click a name to hide it; hover for values.{_neighbours(runs)}", figures.curves(runs)),
        "" if runs[0].unlabelled else
        _section("Every client", "Each point is one client. Look at the lowest clients as well as at the middle.",
                 figures.clients(runs)),
        _confusion(runs),
        _section("Data of the clients", _held(runs[0]), figures.partition(runs[0])),
        _section("Cost", "Payload of all messages, and seconds by task.", figures.cost(runs)),
    ]  # fmt: skip
    sections[3:3] = [
        section
        for row, group in in_rows(runs).items()
        for section in (*_pictures(row, group[0]), *_round_notes(row, group))
    ]
    configs = "".join(
        f"<details><summary>{_text(run.path.name)}</summary><pre>{html.escape(tomli_w.dumps(run.config))}</pre></details>"
        for run in runs
    )
    body = f"""
{"".join(map(_advice, advised))}
<p class="setting">{_text(setting(runs))}</p>
<p class="verdict">{_text(verdict(runs))}</p>
{_table(table(runs))}
{_differences(runs)}
{"".join(map(_tuning, tuned))}
{_new_clients(runs)}
{"".join(_target(runs, target) for target in targets([run.summary for run in runs]))}
{"".join(_vote(row, group) for row, group in votes(runs).items())}
{_notes(runs)}
{"".join(sections)}
<h2>Configuration</h2>
<p class="caption">The complete config, defaults included.</p>
{configs}"""
    return document(title, body)


def document(title: str, body: str) -> str:
    """Return a self-contained HTML page in the report's style, with plotly.

    Args:
        title: Title and heading, plain text.
        body: HTML under the heading.
    """
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{_text(title)}</title>
<style>{STYLE}</style>
<script>{get_plotlyjs()}</script>
</head>
<body>
<h1>{_text(title)}</h1>{body}
</body>
</html>
"""


def _capital(words: str) -> str:
    return words[0].upper() + words[1:]


def _text(text: str) -> str:
    """Escape text for HTML, including control characters."""
    return html.escape(plain(text))


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
        "the curve shows that of a nearest-neighbour classifier on the representation, on the whole test set."
    )


def _differences(runs: Sequence[Run]) -> str:
    """Return the section with the differences to the best row; empty if there are none."""
    content = difference_table(runs)
    if not content.rows:
        return ""
    return f'<h2>Differences</h2><p class="caption">{_text(DIFFERENCES)}</p>{_table(content)}'


def _confusion(runs: Sequence[Run]) -> str:
    """Return the section with the confusion matrices; empty if there are none."""
    figure = confusion_figure(runs)
    return "" if figure is None else _section("Confusion matrix", CONFUSION, figure)


def _advice(advised: Advised) -> str:
    """Return the section with the advice that rests on a comparison."""
    command = "" if advised.command is None else f"<pre>{_text(advised.command)}</pre>"
    return f"<h2>Advice</h2><p>{_text(advised.paragraph)}</p>{command}"


def _tuning(tuned: Tuned) -> str:
    """Return the section with the tuning of a comparison."""
    notes = "".join(f"<p>{_text(note)}</p>" for note in tuning_notes(tuned) if "edge" in note)
    told = f"{_table(tuning_table(tuned))}{f'<div class=notes>{notes}</div>' if notes else ''}"
    figure = tuning_figure(tuned)
    return f'<h2>Tuning</h2><p class="caption">{_text(TUNED)}</p>{told}{drawn(figure) if figure.data else ""}'


def _new_clients(runs: Sequence[Run]) -> str:
    """Return the section with the table of the new clients; empty if there are no results."""
    content = table(runs, new_clients=True)
    if not content.rows:
        return ""
    return f'<h2>New clients</h2><p class="caption">{_text(NEW_CLIENTS)}</p>{_table(content)}'


def _target(runs: Sequence[Run], target: float) -> str:
    """Return the section with the table of a target accuracy."""
    content = target_table(runs, target)
    heading, caption = (_text(text.capitalize()) for text in (content.headings[2], content.meanings[2]))
    return f'<h2>{heading}</h2><p class="caption">{caption}.</p>{_table(content)}'


def _vote(row: str, group: Sequence[Run]) -> str:
    """Return the section with the results of the votes, and the ballots of the first seed."""
    told = f"<h2>The vote: {_text(row)}</h2>" + "".join(f"<p>{_text(line)}</p>" for line in outcomes(group))
    first = group[0]
    if not voted(first):
        return told
    caption = f"The sources on each client's ballot (seed {first.summary['seed']}); similar ballots are adjacent."
    return f'{told}{_table(vote_table(first))}<p class="caption">{_text(caption)}</p>{drawn(ballot_figure(first))}'


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
            yield _section(f"Similarity of the clients: {row}", caption, kinship(run, name))
        else:
            caption = f"After round {last_round(run, name)} (seed {seed})."
            yield _section(f"{picture.title}: {row}", caption, matrix_figure(run, name))


def _round_notes(row: str, group: Sequence[Run]) -> Iterator[str]:
    """Yield the sections with a method's notes on its rounds: curves and a table."""
    curves, others = note_curves(group), note_table(group)
    if curves is not None:
        yield _section(
            f"Round by round: {row}", "Numbers that the method reports for each round, one line per seed.", curves
        )
    if others.rows:
        yield f"<h2>Notes: {_text(row)}</h2>{_table(others)}"


def _table(content: Table) -> str:
    head = "".join(
        f'<th title="{_text(meaning)}">{_text(heading)}</th>'
        for heading, meaning in zip(content.headings, content.meanings, strict=True)
    )
    rows = "".join("<tr>" + "".join(_cell(cell) for cell in row) + "</tr>" for row in content.rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _cell(cell: Cell) -> str:
    spread = f" <small>{_text(cell.spread)}</small>" if cell.spread else ""
    return f"<td{' class=best' if cell.best else ''}>{_text(cell.text)}{spread}</td>"


def _notes(runs: Sequence[Run]) -> str:
    said = "".join(f"<p>{_text(note)}</p>" for note in notes(runs))
    return f'<div class="notes">{said}</div>' if said else ""


def _section(heading: str, caption: str, figure: go.Figure) -> str:
    return f'<h2>{_text(heading)}</h2><p class="caption">{_text(caption)}</p>{drawn(figure)}'


def drawn(figure: go.Figure) -> str:
    """Return the HTML of a figure, for a page that has plotly."""
    looks = {"displaylogo": False, "responsive": True}
    return str(figure.to_html(full_html=False, include_plotlyjs=False, config=looks))
