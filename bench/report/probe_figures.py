"""Pictures of the offline side, from the probes' report."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter, StrMethodFormatter

from bench.report.look import panels
from bench.report.probes import Cell, Point
from bench.summary import Estimate
from training.evaluation.plots import BLUE


def learning(points: Sequence[Point]) -> Figure:
    """AUROC and wrong segments accepted, by number of contexts learned from."""
    figure, (params, wrong) = panels(2, (9.0, 3.3))
    _curve(params, points, [point.auroc for point in points])
    params.set_ylabel("AUROC of p/q")
    _curve(wrong, points, [point.wrong_accepted for point in points])
    wrong.set_ylabel("wrong segments accepted,\nat 95% of the right ones")
    wrong.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    wrong.set_ylim(bottom=-0.01)
    return figure


def _curve(axes: Axes, points: Sequence[Point], measured: Sequence[Estimate]) -> None:
    contexts = [point.num_contexts or 0 for point in points]
    errors = np.nan_to_num(np.array([one.error for one in measured]))
    axes.errorbar(contexts, [one.value for one in measured], errors, fmt="o-", color=BLUE, capsize=3)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(contexts))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_xlabel("contexts learned from")


def domains(cells: Sequence[Cell]) -> Figure:
    """AUROC of p/q by domain learned from and domain tested on."""
    rows = list(dict.fromkeys(cell.trained_on for cell in cells))
    columns = list(dict.fromkeys(cell.tested_on for cell in cells))
    figure, (axes,) = panels(1, (2.6 + 1.6 * len(columns), 1.3 + 0.75 * len(rows)))
    values = np.full((len(rows), len(columns)), np.nan)
    for cell in cells:
        at = rows.index(cell.trained_on), columns.index(cell.tested_on)
        values[at] = cell.auroc.value
        colour = "black" if cell.auroc.value > 0.75 else "white"
        text = f"{cell.auroc.value:.3f}\nn = {cell.num_segments:,}"
        axes.text(at[1], at[0], text, ha="center", va="center", color=colour, fontsize=8)
    axes.imshow(values, cmap="cividis", vmin=0.5, vmax=1, aspect="auto")
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.set(xlabel="tested on", ylabel="learned from")
    axes.grid(False)
    axes.spines[:].set_visible(False)
    return figure
