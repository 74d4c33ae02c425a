"""Figures with matplotlib, in colours that colour-blind readers can distinguish, on white."""

from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from semspec.training.report.numbers import Measured

BLUE, ORANGE, GREEN, RED, PURPLE, SKY, GREY, BLACK = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#777777", "#1c1e21",
)  # fmt: skip
"""The palette of Okabe and Ito."""
DPI = 144
PERCENT = PercentFormatter(1, decimals=0)


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure of a report."""

    name: str
    """Name of its file, without suffix."""
    title: str
    caption: str
    alt: str
    """Alternative text."""
    png: bytes

    @classmethod
    def drawn(
        cls,
        name: str,
        title: str,
        caption: str,
        alt: str,
        draw: Callable[[Any], Figure],
        numbers: Any,
    ) -> "Picture":
        """The picture of `draw(numbers)`, in the reports' style."""
        with styled():
            return cls(name, title, caption, alt, png(draw(numbers)))

    @property
    def uri(self) -> str:
        return f"data:image/png;base64,{b64encode(self.png).decode()}"


def styled() -> AbstractContextManager[None]:
    """The figures' style, regardless of any matplotlibrc."""
    return mpl.rc_context(
        {
            "font.family": "DejaVu Sans",
            "font.size": 9,
            "axes.titlesize": 9.5,
            "axes.labelsize": 9,
            "legend.fontsize": 8,
            "legend.frameon": False,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": "#e6e6e6",
        }
    )


def png(figure: Figure) -> bytes:
    """The figure as PNG; equal figures give equal bytes."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def panels(
    num_columns: int, size: tuple[float, float], num_rows: int = 1
) -> tuple[Figure, list[Axes]]:
    """A figure outside pyplot's global state, `size` in inches."""
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(num_rows, num_columns, squeeze=False).flat)


def error_line(axes: Axes, x: Sequence[float], y: Sequence[Measured], **style: Any) -> None:
    """Points joined by a line, with bars of one standard error."""
    merged: dict[str, Any] = {"fmt": "o-", "color": BLUE, "capsize": 3} | style
    axes.errorbar(x, [point.value for point in y], errors_of(y), **merged)


def name_points(axes: Axes, points: Iterable[tuple[str, float, float]], line: float) -> None:
    """Write the names of (name, x, y) in a column beside the axes, each with a line to its point. `line`: height of a
    name, as a fraction of the axes' height."""
    low, high = axes.get_ylim()
    points = sorted(points, key=lambda point: (-point[2], -point[1]))
    line, top = min(line, 1 / len(points)), 1.0
    for left, (name, x, y) in zip(range(len(points), 0, -1), points, strict=True):
        place = max(min(top, (y - low) / (high - low)), (left - 0.5) * line)
        top = place - line
        axes.annotate(
            name, (x, y), (1.03, place), textcoords="axes fraction", va="center", fontsize=8,
            arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 0.4},
        )  # fmt: skip


def errors_of(measured: Iterable[Measured]) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """The standard errors; 0 where there is none."""
    return np.nan_to_num(np.array([one.error for one in measured], dtype=np.float64))
