"""Pictures of the runs: quality against speed, speed alone, gamma."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bench.report.ablations import Ablation
from bench.report.look import BLACK, Mark, label_marks, look_of, panels
from bench.report.wording import is_peer, setting, without
from bench.summary import Estimate, Row, Run
from training.evaluation.plots import BLUE, GREEN, GREY, ORANGE

NEAR = 0.12
"""Loss of pass@1 up to which a configuration is in the close-up."""


@dataclass(frozen=True, slots=True)
class Series:
    """Configurations that differ in their acceptance rule only."""

    name: str
    """Of the method, for the legend: several series may share it."""
    rows: Sequence[Row]

    @property
    def thresholds(self) -> list[Row]:
        """Those with a threshold, in its order: the line through them."""
        chosen = [row for row in self.rows if "threshold" in row.configuration.knobs]
        return sorted(chosen, key=lambda row: float(row.configuration.knobs["threshold"]))


def pareto(run: Run) -> Figure:
    """pass@1 against speed-up: everything, and beside it what comes near the baseline's pass@1."""
    base = run.rows[0].pass_at_1.value
    near = [row for row in run.rows if row.pass_at_1.value >= base - NEAR]
    far = [row for row in run.rows if row not in near]
    figure, axes = panels(2 if far else 1, (9.0, 5.0))
    for panel, rows in zip(axes, (run.rows, near), strict=False):
        for series in series_of(rows):
            _draw(panel, series)
        panel.axhline(base, color=GREY, linewidth=0.8, linestyle="--")
        panel.axvline(1, color=GREY, linewidth=0.8, linestyle="--")
        panel.set_xlabel("speed-up over the target alone")
        _frame(panel, rows)
    axes[0].set_ylabel("pass@1")
    handles = dict(zip(*reversed(axes[0].get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(4, len(handles)))
    if far:
        axes[0].set_title("all")
        axes[1].set_title(f"near the target's pass@1, within {NEAR:g}")
        label_marks(axes[0], [*_marks(far, True), *_marks(near, False)])
    label_marks(axes[-1], _marks(near, True))
    return figure


def series_of(rows: Sequence[Row]) -> list[Series]:
    groups: dict[object, list[Row]] = {}
    for row in rows:
        one = row.configuration
        groups.setdefault((one.runner, one.method, without(one.knobs, "rule", "threshold")), []).append(row)
    return [Series(own[0].label.split(":")[0], own) for own in groups.values()]


def _draw(axes: Axes, series: Series) -> None:
    line, look = series.thresholds, look_of(series.rows[0].configuration)
    axes.plot([r.speedup.value for r in line], [r.pass_at_1.value for r in line], color=look.colour, linewidth=1)
    axes.errorbar(
        [row.speedup.value for row in series.rows], [row.pass_at_1.value for row in series.rows],
        _errors([row.pass_at_1 for row in series.rows]), _errors([row.speedup for row in series.rows]),
        fmt=look.marker, color=look.colour, elinewidth=0.8, markersize=6, alpha=0.9, label=series.name,
        fillstyle="none" if "/" in series.name and not is_peer(series.rows[0]) else "full",
    )  # fmt: skip


def _frame(axes: Axes, rows: Sequence[Row]) -> None:
    """Limits that hold all of these with their error bars, and some air for labels."""
    for estimates, least, set_limits in (
        ([row.speedup for row in rows], 0.2, axes.set_xlim),
        ([row.pass_at_1 for row in rows], 0.01, axes.set_ylim),
    ):
        values, errors = np.array([one.value for one in estimates]), _errors(estimates)
        low, high = float((values - errors).min()), float((values + errors).max())
        air = max(0.15 * (high - low), least)
        set_limits(low - air, high + air)


def _marks(rows: Sequence[Row], with_text: bool) -> list[Mark]:
    return [
        Mark(
            x=row.speedup.value,
            y=row.pass_at_1.value,
            x_error=float(np.nan_to_num(row.speedup.error)),
            y_error=float(np.nan_to_num(row.pass_at_1.error)),
            text=_told_apart(row) if with_text else "",
        )
        for row in rows
    ]


def _told_apart(row: Row) -> str:
    """What tells a row from others of its method: its knobs."""
    wordings = {"threshold": "p/q ≥ {}", "rule": "rule {}", "segmentation": "{}s"}
    return ", ".join(wordings.get(name, name + " {}").format(value) for name, value in row.configuration.knobs.items())


def _errors(estimates: Sequence[Estimate]) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    return np.nan_to_num(np.array([one.error for one in estimates], dtype=np.float64))


def speedups(run: Run) -> Figure:
    """A bar a configuration, in the order they were asked for."""
    figure, (axes,) = panels(1, (9.0, 1.1 + 0.3 * len(run.rows)))
    rows, base = list(reversed(run.rows)), run.rows[0]
    estimates = [row.speedup for row in rows]
    axes.barh(
        [row.label for row in rows], [one.value for one in estimates], xerr=_errors(estimates),
        color=[_bar_colour(row, base) for row in rows], ecolor=BLACK, error_kw={"elinewidth": 0.8}, height=0.7,
    )  # fmt: skip
    for index, row in enumerate(rows):
        end = row.speedup.value + _errors([row.speedup])[0]
        axes.annotate(
            f"{row.speedup.value:.2f}x at pass@1 {row.pass_at_1.value:.3f}", (end, index), (4, 0),
            textcoords="offset points", va="center", fontsize=7.5,
        )  # fmt: skip
    axes.axvline(1, color=GREY, linewidth=0.8, linestyle="--")
    axes.set(xlim=(0, 1.28 * max(one.value for one in estimates)), ylim=(-0.6, len(rows) - 0.4))
    axes.set_xlabel("speed-up over the target alone")
    axes.grid(axis="y", visible=False)
    return figure


def _bar_colour(row: Row, base: Row) -> str:
    """Orange where pass@1 is lower by more than two standard errors; the rest by whose it is."""
    if row is base or row.configuration.method == "target":
        return GREY
    if row.difference.value < -2 * np.nan_to_num(row.difference.error):
        return ORANGE
    return GREEN if is_peer(row) else BLUE


def gammas(ablations: Sequence[Ablation]) -> Figure:
    """Speed-up and pass@1 by gamma, a line a run."""
    figure, (speed, quality) = panels(2, (9.0, 3.3))
    looks = cycle(((BLUE, "o-"), (ORANGE, "s--"), (GREEN, "^-.")))
    for index, (ablation, (colour, mark)) in enumerate(zip(ablations, looks, strict=False)):
        at = [int(value) + 0.03 * index for value, _ in ablation.rows]  # bars side by side
        name = setting(ablation.run)
        for axes, chosen in (
            (speed, [row.speedup for _, row in ablation.rows]),
            (quality, [row.pass_at_1 for _, row in ablation.rows]),
        ):
            values = [one.value for one in chosen]
            axes.errorbar(at, values, _errors(chosen), fmt=mark, color=colour, capsize=3, label=name)
    speed.set(ylabel="speed-up over the target alone")
    quality.set(ylabel="pass@1")
    for axes in (speed, quality):
        axes.set_xlabel("gamma: segments drafted a round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.margins(0.15)
        axes.legend()
    return figure
