"""The report's figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, MultipleLocator, NullLocator, StrMethodFormatter
from numpy.typing import NDArray
from sklearn.decomposition import PCA

from semspec.training.evaluation.acceptance import Outcome
from semspec.training.evaluation.comparison import DomainCell, LearningPoint
from semspec.training.evaluation.evaluate import Report
from semspec.training.evaluation.metrics import Floats
from semspec.training.evaluation.verdict import LEAST_AUROC, LEAST_RIGHT_ACCEPTED, MOST_WRONG_ACCEPTED
from semspec.training.evaluation.verification import ProbeUse, Regression, Variant
from semspec.training.report.drawing import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PERCENT,
    PURPLE,
    RED,
    SKY,
    error_line,
    panels,
)  # fmt: skip
from semspec.training.report.numbers import decimal

SERVED = BLUE
OTHERS = ((ORANGE, "-"), (GREEN, "--"), (PURPLE, "-."), (RED, ":"), (SKY, (0, (5, 1, 1, 1, 1, 1))))
RIGHT, WRONG = BLUE, RED

PROBES: dict[ProbeUse, str] = {
    "draft probe": "draft's probe, q",
    "target probe, draft-written": "target's probe, p, of draft segments",
    "target probe, target-written": "target's probe, p, of its own segments",
}


def acceptance(report: Report) -> Figure:
    """Wrong against right segments accepted, for all variants: the whole range and the relevant corner."""
    figure, (whole, corner) = panels(2, (9.0, 4.1))
    served, *others, random = report.variants
    for axes in (whole, corner):
        _curve(axes, random, report, GREY, (0, (1, 1)), 1.4)
        for variant, (colour, style) in zip(others, OTHERS * (len(others) // len(OTHERS) + 1), strict=False):
            _curve(axes, variant, report, colour, style, 1.4)
        _curve(axes, served, report, SERVED, "-", 2.4)
        expected = report.recommendation.expected
        point = ([expected.right_accepted], [expected.wrong_accepted])
        axes.plot(*point, "o", color="black", markersize=10, fillstyle="none", label="recommended rule", zorder=5)
        axes.set_xlabel("right segments accepted")
        axes.xaxis.set_major_formatter(PERCENT)
        axes.yaxis.set_major_formatter(PERCENT)
    bar = (LEAST_RIGHT_ACCEPTED, 0), 1 - LEAST_RIGHT_ACCEPTED, MOST_WRONG_ACCEPTED
    corner.add_patch(Rectangle(*bar, facecolor=GREEN, alpha=0.18, label="the bar: pass through here"))
    whole.set(ylabel="wrong segments accepted", xlim=(0, 1.01), ylim=(-0.01, 1.01), title="whole range")
    corner.set(xlim=(0.8, 1.003), ylim=(-0.004, 0.2), title="the corner that matters")
    corner.xaxis.set_major_locator(MultipleLocator(0.05))
    corner.yaxis.set_major_locator(MultipleLocator(0.05))
    figure.legend(*corner.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def ratios(report: Report) -> Figure:
    """Distribution of p/q for right and for wrong segments."""
    figure, (axes,) = panels(1, (9.0, 3.3))
    histogram = report.ratios
    edges = np.array(histogram.edges)
    edges[0] = edges[1] ** 2 / edges[2]  # a logarithmic axis cannot show zero
    for counts, colour, name, hatch in ((histogram.right, RIGHT, "right", ""), (histogram.wrong, WRONG, "wrong", "//")):
        total = sum(counts)
        shares = np.array(counts) / max(total, 1)
        label = f"{name} (n = {total:,})"
        axes.stairs(shares, edges, color=colour, fill=True, alpha=0.3, hatch=hatch, edgecolor=colour)
        axes.stairs(shares, edges, color=colour, linewidth=1.6, label=label)
    axes.set_xscale("log")
    axes.set(
        xlabel="p/q (first and last bin: and beyond)", ylabel="share of these segments", xlim=(edges[0], edges[-1])
    )
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_major_formatter(PERCENT)
    threshold = report.recommendation.expected.threshold
    at, label = (1.0, "always accepted from here") if threshold is None else (threshold, f"accepted from {threshold:g}")
    axes.axvline(at, color="black", linestyle="--", linewidth=1.2, label=label)
    axes.legend(loc="upper left")
    return figure


def strictness(report: Report) -> Figure:
    """Accepted shares and estimated speed-up by threshold."""
    figure, (shares, speed) = panels(2, (9.0, 3.6))
    curve = [one for one in report.recommendation.curve if one.threshold is not None]
    [sample] = [one for one in report.recommendation.curve if one.threshold is None]
    thresholds = [one.threshold for one in curve if one.threshold is not None]
    for name, colour, style in (("right", RIGHT, "-"), ("all", GREY, "--"), ("wrong", WRONG, "-.")):
        shares.plot(thresholds, [_accepted(one, name) for one in curve], style, color=colour, label=f"{name} segments")
        shares.axhline(_accepted(sample, name), color=colour, linestyle=":", linewidth=1)
    shares.set(xlabel="least p/q accepted", ylabel="segments accepted", ylim=(-0.02, 1.02))
    shares.yaxis.set_major_formatter(PERCENT)
    speed.plot(thresholds, [one.speed_up for one in curve], color=SERVED)
    speed.axhline(sample.speed_up, color=SERVED, linestyle=":", linewidth=1)
    speed.set(xlabel="least p/q accepted", ylabel="estimated speed-up (times the target alone)")
    speed.set_ylim(bottom=0)
    chosen = report.recommendation.expected.threshold
    if chosen is not None:
        shares.axvline(chosen, color="black", linewidth=1, label="recommended")
        speed.axvline(chosen, color="black", linewidth=1)
    figure.legend(*shares.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def reliability(report: Report) -> Figure:
    """Mean label by predicted probability, for both probes."""
    figure, diagrams = panels(3, (9.0, 3.5))
    for axes, (use, name) in zip(diagrams, PROBES.items(), strict=True):
        _diagram(axes, report.served.regressions[use], name)
    diagrams[0].set_ylabel("mean label")
    return figure


def _diagram(axes: Axes, regression: Regression, name: str) -> None:
    axes.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1)
    predicted = [one.predicted for one in regression.bins]
    sizes = np.array([one.num_segments for one in regression.bins])
    axes.plot(predicted, [one.label for one in regression.bins], color=SERVED, linewidth=1.2)
    areas = 10 + 300 * sizes / max(sizes.sum(), 1)
    axes.scatter(predicted, [one.label for one in regression.bins], areas, color=SERVED, alpha=0.7)
    ece = f"ECE {decimal(regression.ece.value)}, n = {regression.num_segments:,}"
    axes.set(title=f"{name}\n{ece}", xlabel="predicted probability", xlim=(0, 1), ylim=(0, 1), aspect="equal")


def learning(points: Sequence[LearningPoint]) -> Figure:
    """AUROC and wrong accepted by number of training contexts, with the verdict's limits."""
    figure, (auroc, wrong) = panels(2, (9.0, 3.3))
    contexts = [point.num_contexts for point in points]
    error_line(auroc, contexts, [point.auroc for point in points])
    auroc.axhline(LEAST_AUROC, color=GREEN, linestyle="--", linewidth=1, label=f"the bar, {LEAST_AUROC}")
    auroc.set_ylabel("AUROC of p/q")
    error_line(wrong, contexts, [point.wrong_accepted for point in points])
    limit = f"the bar, {MOST_WRONG_ACCEPTED:.0%}"
    wrong.axhline(MOST_WRONG_ACCEPTED, color=GREEN, linestyle="--", linewidth=1, label=limit)
    wrong.set_ylabel("wrong segments accepted,\nat 95% of the right ones")
    wrong.yaxis.set_major_formatter(PERCENT)
    wrong.set_ylim(bottom=0)
    for axes in (auroc, wrong):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator(contexts))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.set_xlabel("contexts learned from")
        axes.legend()
    return figure


def domains(cells: Sequence[DomainCell]) -> Figure:
    """AUROC and R2 of probes of each domain on each domain."""
    rows = list(dict.fromkeys(cell.trained_on for cell in cells))
    columns = list(dict.fromkeys(cell.tested_on for cell in cells))
    figure, (axes,) = panels(1, (2.4 + 1.5 * len(columns), 1.3 + 0.75 * len(rows)))
    values = np.array([cell.auroc.value for cell in cells]).reshape(len(rows), len(columns))
    axes.imshow(values, cmap="cividis", vmin=0.5, vmax=1, aspect="auto")
    for index, cell in enumerate(cells):
        row, column = divmod(index, len(columns))
        colour = "black" if cell.auroc.value > 0.75 else "white"
        axes.text(column, row, _entry(cell), ha="center", va="center", color=colour, fontsize=8)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.set(xlabel="tested on", ylabel="learned from")
    axes.grid(False)
    axes.spines[:].set_visible(False)
    return figure


def _entry(cell: DomainCell) -> str:
    return f"AUROC {decimal(cell.auroc.value)}\nR² {decimal(cell.r2.value, 2)}, n = {cell.num_segments:,}"


@dataclass(frozen=True, slots=True)
class StatesPicture:
    """States of test segments, for a scatter plot."""

    vectors: NDArray[np.float32]
    """`[num_segments, size]`."""
    probability: NDArray[np.float32]
    """Semantic probability of each under the target."""
    by_draft: NDArray[np.bool_]
    title: str
    """Model, layer and pooling of the states."""


def embedded(vectors: Floats) -> tuple[NDArray[np.float64], str]:
    """`[num_segments, 2]` and the method's name: UMAP if umap-learn is installed, else principal components.

    Each dimension is scaled to a deviation of 1 first, since in large models a few are a thousand times the others.
    """
    deviation = vectors.std(0, dtype=np.float64)
    scaled = (vectors - vectors.mean(0, dtype=np.float64)) / np.where(deviation > 0, deviation, 1)
    if find_spec("umap") and len(scaled) > 15:
        return np.asarray(_umap(scaled), dtype=np.float64), "UMAP"
    return np.asarray(PCA(2, svd_solver="randomized", random_state=0).fit_transform(scaled)), "principal component"


def _umap(vectors: Floats) -> Floats:
    from umap import UMAP

    points: Floats = UMAP(random_state=0, n_jobs=1).fit_transform(vectors)
    return points


def states(picture: StatesPicture) -> Figure:
    """Scatter plot of segments by their states, coloured by semantic probability."""
    figure, (axes,) = panels(1, (7.2, 5.0))
    points, method = embedded(picture.vectors)
    handles = []
    kinds: tuple[tuple[bool, Literal["o", "^"], str], ...] = (
        (False, "o", "target-written"),
        (True, "^", "draft-written"),
    )
    for by_draft, marker, name in kinds:
        chosen = picture.by_draft == by_draft
        x, y = points[chosen].T
        colours = picture.probability[chosen]
        dots = axes.scatter(x, y, 16, colours, marker=marker, cmap="viridis", vmin=0, vmax=1, linewidths=0, alpha=0.8)
        label = f"{name} (n = {len(x):,})"
        handles.append(Line2D([], [], color=GREY, linestyle="", marker=marker, markersize=4, label=label))
    figure.colorbar(dots, ax=axes, label="semantic probability under the target")
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.07), ncols=2)
    axes.set(xlabel=f"{method} 1", ylabel=f"{method} 2", xticks=[], yticks=[])
    axes.set_title(picture.title)
    return figure


def _curve(
    axes: Axes, variant: Variant, report: Report, colour: str, style: "str | tuple[int, tuple[int, ...]]", width: float
) -> None:
    outcomes = variant.verifications[report.criterion].thresholds
    right, wrong = [one.right_accepted for one in outcomes], [one.wrong_accepted for one in outcomes]
    axes.plot(right, wrong, color=colour, linestyle=style, linewidth=width, label=variant.name)
    sample = variant.verifications[report.criterion].sample
    axes.plot(sample.right_accepted, sample.wrong_accepted, "s", color=colour, markersize=5)


def _accepted(one: Outcome, of: str) -> float:
    return {"right": one.right_accepted, "all": one.acceptance, "wrong": one.wrong_accepted}[of]
