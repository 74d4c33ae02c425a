"""Figures of the runs: quality against speed, speed-ups, gamma."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from semspec.bench.report.ablations import Ablation
from semspec.bench.report.tables import MARGIN, is_peer, setting, without
from semspec.bench.summary import Row, Run
from semspec.training.report.drawing import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    error_line,
    errors_of,
    name_points,
    panels,
)

NEAR = 0.12
"""Maximum loss of pass@1 of a configuration in the detail view."""
LINE = 0.035
"""Height of a name beside the axes, as a fraction of their height."""
_COLOURS = {
    "target": BLACK, "draft": GREY, "semantic": BLUE, "semantic+token-level": SKY, "token-level": GREEN,
    "spec-reason": ORANGE, "spec-thinking": PURPLE, "last-hidden": RED,
}  # fmt: skip
"""Colours of the common methods; all others share one."""
_MARKERS = "os^vD<>Ph*pX8d1234"


@dataclass(frozen=True, slots=True)
class Style:
    colour: str
    marker: str
    is_filled: bool
    """Whether the marker is filled: only for the gateway's runner."""


def styles(rows: Sequence[Row]) -> Iterator[Style]:
    """One style per row: its method's colour, and a marker that is unique within the colour."""
    markers: dict[str, Iterator[str]] = {}
    for row in rows:
        colour = _COLOURS.get(row.configuration.variant, "#8c6d1f")
        marker = next(markers.setdefault(colour, cycle(_MARKERS)))
        yield Style(colour, marker, row.configuration.runner == "gateway")


def pareto(run: Run) -> Figure:
    """pass@1 against speed-up: all configurations, and a detail view of those near the baseline's pass@1."""
    base = run.rows[0].pass_at_1.value
    near = [row for row in run.rows if row.pass_at_1.value >= base - NEAR]
    figure, axes = panels(2 if len(near) < len(run.rows) else 1, (13.0, 5.0 + 0.1 * len(run.rows)))
    for panel, rows in zip(reversed(axes), (near, run.rows), strict=False):
        for line in thresholds_of(rows):
            panel.plot(
                [r.speedup.value for r in line],
                [r.pass_at_1.value for r in line],
                color=BLUE,
                linewidth=0.8,
            )
        for row, style in zip(run.rows, styles(run.rows), strict=True):
            if row in rows:
                _draw(panel, row, style)
        panel.axhline(base, color=GREY, linewidth=0.8, linestyle="--")
        panel.axvline(1, color=GREY, linewidth=0.8, linestyle="--")
        panel.set_xlabel("speed-up over the target alone")
        name_points(
            panel, [(row.label, row.speedup.value, row.pass_at_1.value) for row in rows], LINE
        )
    axes[0].set_ylabel("pass@1")
    if len(axes) > 1:
        axes[0].set_title("all")
        axes[1].set_title(f"near the target's pass@1, within {NEAR:g}")
    return figure


def thresholds_of(rows: Sequence[Row]) -> list[list[Row]]:
    """Groups of rows that differ only in their threshold, in its order."""
    groups: dict[object, list[Row]] = {}
    for row in rows:
        of = row.configuration
        if "threshold" in of.knobs:
            groups.setdefault((of.runner, of.method, without(of.knobs, "threshold")), []).append(
                row
            )
    return [
        sorted(own, key=lambda row: float(row.configuration.knobs["threshold"]))
        for own in groups.values()
    ]


def _draw(axes: Axes, row: Row, style: Style) -> None:
    axes.errorbar(
        [row.speedup.value], [row.pass_at_1.value], errors_of([row.pass_at_1]), errors_of([row.speedup]),
        fmt=style.marker, color=style.colour, elinewidth=0.8, markersize=6, alpha=0.9, label=row.label,
        fillstyle="full" if style.is_filled else "none",
    )  # fmt: skip


def speedups(run: Run) -> Figure:
    """One bar per configuration, in the run's order."""
    figure, (axes,) = panels(1, (9.0, 1.1 + 0.3 * len(run.rows)))
    rows, base = list(reversed(run.rows)), run.rows[0]
    estimates = [row.speedup for row in rows]
    axes.barh(
        [row.label for row in rows], [one.value for one in estimates], xerr=errors_of(estimates),
        color=[_bar_colour(row, base) for row in rows], ecolor=BLACK, error_kw={"elinewidth": 0.8}, height=0.7,
    )  # fmt: skip
    for index, row in enumerate(rows):
        end = row.speedup.value + errors_of([row.speedup])[0]
        axes.annotate(
            f"{row.speedup.value:.2f}x at pass@1 {row.pass_at_1.value:.3f}", (end, index), (4, 0),
            textcoords="offset points", va="center", fontsize=7.5,
        )  # fmt: skip
    axes.axvline(1, color=GREY, linewidth=0.8, linestyle="--")
    axes.set(xlim=(0, 1.28 * max(one.value for one in estimates)), ylim=(-0.6, len(rows) - 0.4))
    axes.set_xlabel("speed-up over the target alone")
    axes.grid(axis="y", visible=False)
    return figure


def quality(rows: Sequence[Row], baseline: str = "target") -> Figure:
    """pass@1 minus that of `baseline` with 95% intervals, a line per configuration, and the margin."""
    rows = list(reversed(rows))
    figure, (axes,) = panels(1, (9.0, 1.3 + 0.3 * len(rows)))
    for index, row in enumerate(rows):
        low, high = 100 * row.difference_95.low, 100 * row.difference_95.high
        value = 100 * row.difference.value
        axes.errorbar(
            [value],
            [index],
            xerr=[[value - low], [high - value]],
            fmt="o",
            color=BLUE,
            elinewidth=1.2,
        )
    axes.axvline(0, color=GREY, linewidth=0.8, linestyle="--")
    axes.axvline(-100 * MARGIN, color=RED, linewidth=0.8)
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    axes.set(ylim=(-0.6, len(rows) - 0.4), xlabel=f"pass@1 minus the {baseline}'s, points")
    axes.grid(axis="y", visible=False)
    return figure


def _bar_colour(row: Row, base: Row) -> str:
    """Orange if pass@1 is lower by more than two standard errors; otherwise by engine."""
    if row is base or row.configuration.method == "target":
        return GREY
    if row.difference.value < -2 * errors_of([row.difference])[0]:
        return ORANGE
    return GREEN if is_peer(row) else BLUE


def gammas(ablations: Sequence[Ablation]) -> Figure:
    """Speed-up and pass@1 by gamma, one line per run."""
    figure, (speed, quality) = panels(2, (9.0, 3.3))
    styles = cycle(((BLUE, "o-"), (ORANGE, "s--"), (GREEN, "^-.")))
    for index, (ablation, (colour, mark)) in enumerate(zip(ablations, styles, strict=False)):
        at = [int(value) + 0.03 * index for value, _ in ablation.rows]  # bars side by side
        style = {"fmt": mark, "color": colour, "label": setting(ablation.run)}
        error_line(speed, at, [row.speedup for _, row in ablation.rows], **style)
        error_line(quality, at, [row.pass_at_1 for _, row in ablation.rows], **style)
    speed.set(ylabel="speed-up over the target alone")
    quality.set(ylabel="pass@1")
    for axes in (speed, quality):
        axes.set_xlabel("gamma: segments drafted a round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.margins(0.15)
        axes.legend()
    return figure
