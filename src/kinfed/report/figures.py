"""Interactive figures of the report, and a PNG with the main ones.

Letters: ``N`` clients, ``K`` classes.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from kinfed.experiment.targets import as_text, targets
from kinfed.report.document import Panel
from kinfed.report.folders import Run
from kinfed.report.kinship import client_order
from kinfed.report.matrices import LABELLED, draw_matrix
from kinfed.report.measures import WORDS
from kinfed.report.names import hypertext, labels
from kinfed.report.picture import picture
from kinfed.report.rows import in_rows
from kinfed.report.style import REFERENCES, colours, steps, styled, translucent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["clients", "cost", "curves", "partition", "save_report_picture"]

ROW = 60  # longest name of a row, in characters: more than other names, since it has the fields that tell rows apart
LINE = 34  # longest line of it on a page


def mean_series(group: Sequence[Run], name: str) -> tuple[list[int], NDArray[np.float64], NDArray[np.float64]]:
    """Compute the mean of a quantity over the seeds of one row, by round.

    Args:
        group: Runs of the row, one per seed.
        name: Name of the quantity in ``metrics.jsonl``.

    Returns:
        The R rounds in which every seed has the quantity, its means (R), and half its ranges over the seeds (R).
    """
    series = [dict(zip(*run.series(name), strict=True)) for run in group]
    rounds = sorted(set.intersection(*map(set, series)))
    values = np.array([[of_run[round] for round in rounds] for of_run in series])
    return rounds, values.mean(axis=0), (values.max(axis=0) - values.min(axis=0)) / 2


def _curve(group: Sequence[Run]) -> str:
    """Return the name of the curve by round.

    It is the measure on own test samples; for methods that learn without labels, the accuracy of nearest neighbours;
    without any labels, the comparison of views.
    """
    if any(run.untested for run in group):
        return "views_acc_mean"
    if group[0].measure != "accuracy":
        return f"personal_{group[0].measure}_weighted"
    unlabelled = all(not run.summary.get("supervised", True) for run in group)
    told = unlabelled and all(run.series("knn_acc_mean")[0] for run in group)
    return "knn_acc_mean" if told else "personal_acc_weighted"


def _curve_title(grouped: Mapping[str, Sequence[Run]]) -> str:
    kinds = {_curve(group) for group in grouped.values()}
    if "views_acc_mean" in kinds:
        return "How often an image's other view is nearer (0.5: chance)"
    if (by := next(iter(grouped.values()))[0].measure) != "accuracy":
        return f"{WORDS[by][0].upper()}{WORDS[by][1:]} on own test samples"
    if len(kinds) > 1:
        return "Accuracy (methods without labels: nearest neighbours)"
    return "Accuracy on own test samples" if "personal_acc_weighted" in kinds else "Accuracy of nearest neighbours"


def _names(grouped: Iterable[str]) -> dict[str, str]:
    """Return the name of each row for plotly, in lines that fit a narrow screen."""
    rows = [*grouped]
    return {
        row: "<br>".join(map(hypertext, textwrap.wrap(label, LINE)))
        for row, label in zip(rows, labels(rows, ROW), strict=True)
    }


def curves(runs: Sequence[Run]) -> list[Panel]:
    """Draw own-test accuracy and training loss by round, with the range over the seeds around the mean."""
    grouped = in_rows(runs)
    accuracy = _curves(grouped, {row: _curve(group) for row, group in grouped.items()})
    for target in targets([run.summary for run in runs]):
        accuracy.add_hline(
            target,
            line={"color": "#888", "width": 1, "dash": "dash"},
            annotation={
                "text": f"target on the pooled test set: {as_text(target)}",
                "font": {"size": 11, "color": "#888"},
            },
            annotation_position="bottom right",
        )
    accuracy.update_yaxes(range=[0, 1.02])
    loss = _curves(grouped, dict.fromkeys(grouped, "train_loss"))
    loss.update_yaxes(rangemode="tozero")
    return [Panel(accuracy, _curve_title(grouped)), Panel(loss, "Training loss")]


def _curves(grouped: Mapping[str, Sequence[Run]], quantity: Mapping[str, str]) -> go.Figure:
    """Draw a quantity of each row by round: the mean over the seeds, and a band as wide as their range."""
    colour, names = colours([*grouped]), _names(grouped)
    figure = go.Figure()
    for row, group in grouped.items():
        rounds, mean, half = mean_series(group, quantity[row])
        if len(group) > 1 and len(rounds) > 1:
            figure.add_scatter(
                x=[*rounds, *reversed(rounds)],
                y=[*(mean + half), *reversed(mean - half)],
                mode="lines",
                legendgroup=row,
                showlegend=False,
                line={"width": 0},
                fill="toself",
                fillcolor=translucent(colour[row], 0.15),
                hoverinfo="skip",
            )
        figure.add_scatter(
            x=rounds,
            y=mean,
            name=names[row],
            mode="lines" if len(rounds) > 1 else "markers",
            legendgroup=row,
            line={"color": colour[row], "width": 2, "dash": "dot" if row in REFERENCES else "solid"},
            hovertemplate="%{y:.3f}",
        )
    figure.update_xaxes(title_text="round")
    return styled(figure, height=360 + 22 * len(grouped), hovermode="x unified")


def partition(run: Run) -> go.Figure:
    """Draw the number of training samples of each client (rows) and class (columns), and groups of a planted shift."""
    if run.unlabelled:
        return _sizes(run)
    order = client_order(run)
    counts = np.array(run.federation["train"])[order]
    figure = go.Figure(
        go.Heatmap(
            z=counts,
            x=[*map(hypertext, labels(run.federation["classes"]))],
            y=[hypertext(run.client_labels[i]) for i in order],
            colorscale="Blues",
            colorbar={"title": "samples"},
            hovertemplate="client %{y}, class %{x}: %{z} samples<extra></extra>",
            xgap=1,
            ygap=1 if len(counts) <= 60 else 0,
        )
    )
    figure.update_xaxes(title_text="class", type="category", side="bottom")
    figure.update_yaxes(title_text="client", type="category", autorange="reversed")
    if groups := run.federation.get("groups"):
        _add_groups(figure, [groups[i] for i in order])
    return styled(figure, height=min(900, 180 + 18 * len(counts)))


def _sizes(run: Run) -> go.Figure:
    """Draw the number of training images of each client, for data without labels."""
    figure = go.Figure(
        go.Bar(
            x=run.samples,
            y=[*map(hypertext, run.client_labels)],
            orientation="h",
            marker={"color": "#0072B2"},
            hovertemplate="client %{y}: %{x} images<extra></extra>",
        )
    )
    figure.update_xaxes(title_text="images")
    figure.update_yaxes(title_text="client", type="category", autorange="reversed")
    return styled(figure, height=min(900, 180 + 18 * len(run.samples)))


def _add_groups(figure: go.Figure, groups: Sequence[int]) -> None:
    """Add a column with the number and the colour of each client's group to the left of a figure with a client a row.

    Args:
        figure: Figure, which is changed.
        groups: Group of the client of each row.
    """
    figure.add_heatmap(
        z=[[group] for group in groups],
        x=["group"],
        y=figure.data[0].y,
        xaxis="x2",
        colorscale=steps(max(groups) + 1),
        zmin=-0.5,
        zmax=max(groups) + 0.5,
        showscale=False,
        texttemplate="%{z}" if len(groups) <= 40 else None,
        hovertemplate="client %{y}: group %{z}<extra></extra>",
        ygap=figure.data[0].ygap,
    )
    figure.update_layout(
        xaxis={"domain": [0.09, 1]},
        xaxis2={"domain": [0, 0.07], "title": {"text": "group"}, "type": "category", "showticklabels": False},
        yaxis={"anchor": "x2"},
    )


def clients(runs: Sequence[Run]) -> go.Figure:
    """Draw the measure of every client on its own test samples; a point is a client, the box holds the middle half."""
    grouped = in_rows(runs)
    colour, names = colours([*grouped]), _names(grouped)
    figure = go.Figure()
    for method, group in grouped.items():
        values = np.concatenate([run.client_values() for run in group])
        points = [
            f"client {hypertext(label)}, seed {run.summary['seed']}"
            for run in group
            for label, _ in zip(run.client_labels, run.client_values(), strict=False)
        ]
        figure.add_box(
            y=values,
            name=names[method],
            text=points,
            boxpoints="all",
            jitter=0.5,
            pointpos=0,
            fillcolor="rgba(0,0,0,0.04)",
            line={"color": colour[method], "width": 1.5},
            marker={"color": colour[method], "size": 6, "opacity": 0.7},
            hovertemplate="%{text}: %{y:.3f}<extra>%{fullData.name}</extra>",
            showlegend=False,
        )
    figure.update_yaxes(title_text=f"{WORDS[runs[0].measure]} on own test samples", range=[-0.02, 1.04])
    return styled(figure, height=420)


def cost(runs: Sequence[Run]) -> list[Panel]:
    """Draw the megabytes sent and the seconds taken by each method, as means over the seeds."""
    grouped = in_rows(runs)

    def bars(parts: Mapping[str, tuple[str, Callable[[dict[str, Any]], float]]], unit: str) -> go.Figure:
        figure, names = go.Figure(), _names(grouped)
        for part, (colour, read) in parts.items():
            figure.add_bar(
                y=[names[row] for row in grouped],
                x=[float(np.mean([read(run.summary) for run in group])) for group in grouped.values()],
                name=part,
                orientation="h",
                marker={"color": colour},
                hovertemplate=f"%{{y}}: %{{x:.2f}} {unit} {part}<extra></extra>",
            )
        figure.update_layout(barmode="stack", legend_traceorder="normal")
        figure.update_yaxes(autorange="reversed")
        return styled(figure, height=160 + 34 * len(grouped))

    sent = {
        "down": ("#56B4E9", lambda s: s["communication"]["down_bytes"] / 1e6),
        "up": ("#0072B2", lambda s: s["communication"]["up_bytes"] / 1e6),
    }
    taken: dict[str, tuple[str, Callable[[dict[str, Any]], float]]] = {
        "training": ("#009E73", lambda s: s["seconds"]["train"]),
        "aggregation": ("#CC79A7", lambda s: s["seconds"].get("aggregate", 0.0)),
        "tests in the rounds": ("#F0E442", lambda s: s["seconds"]["evaluate"] - _last_evaluation(s)),
        "last evaluation": ("#E69F00", _last_evaluation),
        "saving": ("#56B4E9", lambda s: s["seconds"].get("save", 0.0)),
        "other": ("#AAAAAA", _undivided),
    }
    taken = {part: of for part, of in taken.items() if any(of[1](run.summary) for run in runs)}
    return [
        Panel(bars(sent, "MB"), "Megabytes sent in all rounds"),
        Panel(bars(taken, "s"), "Seconds by part of the run"),
    ]


def _undivided(summary: Mapping[str, Any]) -> float:
    """Return the seconds that a summary of an older version tells of no part; 0 for others."""
    seconds: Mapping[str, float] = summary["seconds"]
    return 0.0 if "save" in seconds else seconds["total"] - seconds["train"] - seconds["evaluate"]


def _last_evaluation(summary: Mapping[str, Any]) -> float:
    """Return the seconds of the evaluation after the last round: of all models, of fine-tuned ones, and so on.

    They are 0 for an unfinished run, and for one of a version that did not tell them.
    """
    unfinished = summary.get("planned") is not None
    return 0.0 if unfinished else float(summary["seconds"].get("last_evaluation", 0.0))


def save_report_picture(runs: Sequence[Run], path: Path) -> None:
    """Write one PNG: curves, accuracy of every client, who holds what, and the pictures of every method."""
    pictures = [(row, group[0], name) for row, group in in_rows(runs).items() for name in group[0].pictures]
    down = 1 + math.ceil((1 + max(len(pictures), 1)) / 2)
    with picture(path, 11, 4 * down) as figure:
        left, right, below_left, *others = figure.subplots(down, 2).flat
        _draw(runs, figure, (left, right, below_left))
        for axes, (row, run, name) in zip(others, pictures, strict=False):
            draw_matrix(run, name, labels([row], ROW)[0], figure, axes)
        for axes in others[len(pictures) :]:
            axes.axis("off")


def _draw(runs: Sequence[Run], figure: Figure, panels: Sequence[Axes]) -> None:
    left, right, below_left = panels
    grouped = in_rows(runs)
    _draw_curves(grouped, left, _curve_title(grouped))
    for target in targets([run.summary for run in runs]):
        left.axhline(target, color="#555555", linewidth=0.8, linestyle="--")
    left.set(ylim=(0, 1.02))
    left.legend(frameon=False)
    if runs[0].unlabelled:
        _draw_curves(grouped, right, "Training loss", "train_loss")
    else:
        _draw_clients(grouped, right)
    _draw_held(runs[0], figure, below_left)


def _draw_curves(grouped: Mapping[str, Sequence[Run]], axes: Axes, title: str, name: str | None = None) -> None:
    """Draw a quantity of each row by round: that of `_curve`, or another one by its name in ``metrics.jsonl``."""
    colour = colours([*grouped])
    shown_as = dict(zip(grouped, labels(grouped, ROW), strict=True))
    for method, group in grouped.items():
        rounds, mean, spread = mean_series(group, name or _curve(group))
        style = ":" if method in REFERENCES else "-"
        axes.plot(
            rounds,
            mean,
            style,
            color=colour[method],
            label=shown_as[method],
            marker="" if len(rounds) > 1 else "o",
            markersize=4,
        )
        axes.fill_between(rounds, mean - spread, mean + spread, color=colour[method], alpha=0.15, linewidth=0)
    axes.set(title=title, xlabel="round")
    axes.grid(alpha=0.25)


def _draw_clients(grouped: Mapping[str, Sequence[Run]], axes: Axes) -> None:
    """Draw the own test accuracy of every client by row."""
    colour, rng = colours([*grouped]), np.random.default_rng(0)
    for i, (method, group) in enumerate(grouped.items()):
        values = np.concatenate([run.client_values() for run in group])
        axes.scatter(
            i + rng.uniform(-0.18, 0.18, len(values)),
            values,
            s=18,
            color=colour[method],
            alpha=0.7,
            linewidth=0,
        )
        if not np.isnan(values).all():
            axes.hlines(np.nanmean(values), i - 0.3, i + 0.3, color=colour[method], linewidth=2)
    what = WORDS[next(iter(grouped.values()))[0].measure]
    axes.set(title=f"Own test {what} of each client\nafter the last round (line: mean)", ylim=(-0.02, 1.04))
    axes.set_xticks(range(len(grouped)), labels(grouped, ROW), rotation=20)
    axes.grid(alpha=0.25, axis="y")


def _draw_held(run: Run, figure: Figure, axes: Axes) -> None:
    """Draw the training samples of each client, by class if there are labels, in the order of all matrices."""
    order = client_order(run)
    shown = order if len(order) <= LABELLED else []
    axes.set_yticks(range(len(shown)), [run.client_labels[i] for i in shown], fontsize=8)
    if run.unlabelled:
        axes.barh(range(len(order)), [run.samples[i] for i in order], color="#0072B2")
        axes.set(title="Training images of each client", xlabel="images", ylabel="client")
        axes.invert_yaxis()
        return
    counts = np.array(run.federation["train"])[order]
    image = axes.imshow(counts, aspect="auto", cmap="Blues", interpolation="nearest")
    axes.set(title="Training samples of each client and class", xlabel="class", ylabel="client")
    if counts.shape[1] <= LABELLED:
        axes.set_xticks(range(counts.shape[1]), labels(run.federation["classes"]), rotation=_slope(run))
    figure.colorbar(image, ax=axes)


def _slope(run: Run) -> int:
    """Return the rotation of the class names in degrees: 90 if a name is long, else 0."""
    return 0 if max(map(len, run.federation["classes"])) <= 2 else 90
