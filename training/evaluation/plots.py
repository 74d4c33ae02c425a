"""The report's picture: right and wrong segments accepted."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MultipleLocator

from semspec.training.evaluation.evaluate import Report
from semspec.training.evaluation.verdict import LEAST_RIGHT_ACCEPTED, MOST_WRONG_ACCEPTED
from semspec.training.evaluation.verification import Variant
from semspec.training.report.drawing import BLUE, GREEN, ORANGE, PERCENT, PURPLE, RED, SKY, panels

OTHERS = ((ORANGE, "-"), (GREEN, "--"), (PURPLE, "-."), (RED, ":"), (SKY, (0, (5, 1, 1, 1, 1, 1))))


def acceptance(report: Report) -> Figure:
    """Wrong against right segments accepted, for all variants: the whole range and the relevant corner."""
    figure, (whole, corner) = panels(2, (9.0, 4.1))
    served, *others = report.variants
    for axes in (whole, corner):
        for variant, (colour, style) in zip(others, OTHERS * (len(others) // len(OTHERS) + 1), strict=False):
            _curve(axes, variant, report, colour, style, 1.4)
        _curve(axes, served, report, BLUE, "-", 2.4)
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


def _curve(
    axes: Axes, variant: Variant, report: Report, colour: str, style: "str | tuple[int, tuple[int, ...]]", width: float
) -> None:
    found = variant.verifications[report.criterion]
    right, wrong = zip(*((one.right_accepted, one.wrong_accepted) for one in found.thresholds), strict=True)
    axes.plot(right, wrong, color=colour, linestyle=style, linewidth=width, label=variant.name)
    axes.plot(found.sample.right_accepted, found.sample.wrong_accepted, "s", color=colour, markersize=5)
