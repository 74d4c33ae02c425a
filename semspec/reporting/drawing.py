"""Charts with matplotlib, as SVG, in colours that colour-blind readers can tell apart."""

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

from cycler import cycler
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#777777")
"""The palette of Okabe and Ito, with grey for yellow and black."""
_STYLE: Any = {
    "axes.axisbelow": True, "axes.grid": True, "axes.prop_cycle": cycler(marker="osD^") * cycler(color=COLOURS),
    "axes.spines.right": False, "axes.spines.top": False, "errorbar.capsize": 2,
    "font.family": "sans-serif", "font.size": 9, "grid.color": "#e6e6e6",
    "legend.frameon": False, "lines.markersize": 4.5, "svg.fonttype": "none", "svg.hashsalt": "semspec",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Panel:
    """Named points with error bars, joined by lines if there are several."""

    x_label: str
    y_label: str
    points: Mapping[str, Mapping[str, Any]]
    """Arguments of matplotlib's `errorbar` by name: `x` and `y`, possibly `xerr` and `yerr`."""
    axes: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `Axes.set`, such as `xlim`."""
    percent: str = ""
    """The axes that are in percent: `x`, `y` or `xy`."""


def draw(*panels: Panel) -> str:
    """Return panels side by side, with one legend, as a data URI. Equal charts give equal bytes."""
    buffer = BytesIO()
    with rc_context(_STYLE):
        figure = Figure(figsize=(11, 3.8), layout="constrained")
        for axes, panel in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
        ):
            for name, points in panel.points.items():
                axes.errorbar(label=name, elinewidth=0.8, **points)
            axes.set(xlabel=panel.x_label, ylabel=panel.y_label, **panel.axes)
            for name in panel.percent:
                getattr(axes, f"{name}axis").set_major_formatter(PercentFormatter(1))
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center")
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return f"data:image/svg+xml;base64,{b64encode(buffer.getvalue()).decode()}"
