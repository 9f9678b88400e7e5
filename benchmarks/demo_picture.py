"""README's first picture, from the runs of ``make demo``: the groups that fedkin finds, and what every client gains.

``python benchmarks/demo_picture.py [--runs runs/demo] [--out docs/demo.png]``
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from kinfed.report.differences import compared
from kinfed.report.folders import read_runs
from kinfed.report.picture import picture
from kinfed.report.rows import in_rows
from kinfed.report.statistics import client_differences
from kinfed.report.style import PALETTE


def main() -> None:
    """Draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/demo"), help="folder of the comparison")
    parser.add_argument("--out", type=Path, default=Path("docs/demo.png"), help="picture")
    asked = parser.parse_args()
    runs = read_runs([asked.runs])
    told, found = compared(runs), in_rows(runs)["fedkin"]
    methods = [row for row in told if row != "local"]
    with picture(asked.out, 11, 4 + 4.2) as figure:
        upper, lower = np.asarray(figure.subfigures(2, 1, height_ratios=(1, 1.15)))
        for run, axes in zip(found, upper.subplots(1, len(found)), strict=True):
            groups, planted = np.array(run.lines[-1]["groups"]), np.array(run.federation["groups"])
            order = np.lexsort((groups, planted))
            axes.imshow(groups[order][:, None] == groups[order], cmap="Blues", vmin=0, vmax=1.4)
            ends = np.flatnonzero(np.diff(planted[order])) + 0.5
            axes.hlines(ends, -0.5, len(groups) - 0.5, PALETTE[1], linewidth=1)
            axes.vlines(ends, -0.5, len(groups) - 0.5, PALETTE[1], linewidth=1)
            axes.set(title=f"seed {run.summary['seed']}", xticks=[], yticks=[], xlabel="client", ylabel="client")
        upper.suptitle("Groups that fedkin finds (blue), and the true ones (between the lines), which it is not told")
        for method, axes in zip(methods, lower.subplots(1, len(methods), sharey=True), strict=True):
            gains = np.sort(np.concatenate([*client_differences(told[method], told["local"]).values()]))
            axes.bar(range(len(gains)), gains, width=1, color=np.where(gains < 0, PALETTE[1], PALETTE[0]))
            axes.axhline(0, color="black", linewidth=0.8)
            axes.set(title=f"{method}: {gains.mean():+.2f}", xticks=[], xlabel="client")
            axes.grid(axis="y", alpha=0.3)
        lower.axes[0].set_ylabel("accuracy less that of training alone")
        lower.suptitle("What every client gains (three seeds, the worst first)")


if __name__ == "__main__":
    main()
