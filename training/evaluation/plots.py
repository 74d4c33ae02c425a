"""The report's figures."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MultipleLocator

from semspec.training.evaluation.evaluate import Report
from semspec.training.evaluation.verdict import LEAST_RIGHT_ACCEPTED, MOST_WRONG_ACCEPTED
from semspec.training.evaluation.verification import ProbeUse, Regression, Variant
from semspec.training.report.drawing import BLUE, GREEN, GREY, ORANGE, PERCENT, PURPLE, RED, SKY, panels
from semspec.training.report.numbers import decimal

SERVED = BLUE
OTHERS = ((ORANGE, "-"), (GREEN, "--"), (PURPLE, "-."), (RED, ":"), (SKY, (0, (5, 1, 1, 1, 1, 1))))

PROBES: dict[ProbeUse, str] = {
    "draft probe": "draft's probe, q",
    "target probe, draft-written": "target's probe, p, of draft segments",
    "target probe, target-written": "target's probe, p, of its own segments",
}


def acceptance(report: Report) -> Figure:
    """Wrong against right segments accepted, for all variants: the whole range and the relevant corner."""
    figure, (whole, corner) = panels(2, (9.0, 4.1))
    served, *others = report.variants
    for axes in (whole, corner):
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


def _curve(
    axes: Axes, variant: Variant, report: Report, colour: str, style: "str | tuple[int, tuple[int, ...]]", width: float
) -> None:
    outcomes = variant.verifications[report.criterion].thresholds
    right, wrong = [one.right_accepted for one in outcomes], [one.wrong_accepted for one in outcomes]
    axes.plot(right, wrong, color=colour, linestyle=style, linewidth=width, label=variant.name)
    sample = variant.verifications[report.criterion].sample
    axes.plot(sample.right_accepted, sample.wrong_accepted, "s", color=colour, markersize=5)
