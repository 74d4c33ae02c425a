"""What all of the report's pictures share: panels, colours and marks, and labels that keep out of each other's way."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from bench.configuration import PEER_METHODS, Configuration
from training.evaluation.plots import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY

BLACK, BROWN = "#1c1e21", "#8c6d1f"


@dataclass(frozen=True, slots=True)
class Look:
    colour: str
    marker: str


_STRATEGIES = {
    "target": Look(BLACK, "s"),
    "draft": Look(GREY, "s"),
    "semantic": Look(BLUE, "o"),
    "auto": Look(BLUE, "8"),
    "semantic+token-level": Look(SKY, "D"),
    "token-level": Look(GREEN, "^"),
    "spec-reason": Look(ORANGE, "v"),
    "spec-thinking": Look(PURPLE, "<"),
    "last-hidden": Look(RED, ">"),
    "surprisal": Look(BROWN, "h"),
    "random": Look(GREY, "x"),
}
_PEERS = dict(
    zip(
        ((runner, method) for runner, methods in PEER_METHODS.items() for method in methods),
        (Look(colour, marker) for colour, marker in product((BLACK, RED), "*PX")),
        strict=False,
    )
)


def look_of(configuration: Configuration) -> Look:
    """One a method; peers have marks of their own."""
    peer = _PEERS.get((configuration.runner, configuration.method))
    return peer or _STRATEGIES.get(configuration.method, Look(GREY, "p"))


def panels(num_columns: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """A figure of its own, out of reach of pyplot's global state."""
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(1, num_columns, squeeze=False).flat)


@dataclass(frozen=True, slots=True)
class Mark:
    """A point with its error bars, in the axes' units, and what is to be written beside it; empty: nothing."""

    x: float
    y: float
    x_error: float
    y_error: float
    text: str = ""


_UP, _ASIDE = (0, 8, 16, 28, 42, 60), (0, 9, 24, 44, 66)
_OFFSETS = sorted(
    {(sign * up, side * aside) for up, aside in product(_UP, _ASIDE) for sign, side in product((1, -1), (1, -1))},
    key=lambda at: (np.hypot(*at), at),
)
"""Where a label may go, in points above and beside its mark: near ones first."""


def label_marks(axes: Axes, marks: Sequence[Mark]) -> None:
    """Write each mark's text beside it, where it covers no mark and no other text, nor an error bar if that can be.

    The axes must have their final limits. Where there is no free place the text is left out: the tables have it all.
    """
    axes.figure.draw_without_rendering()  # type: ignore[union-attr]  # a figure's own axes, not a sub-figure's
    points = [_box(axes, mark.x, mark.y, radius=5) for mark in marks]
    bars = [box for mark in marks for box in _bars(axes, mark)]
    taken: list[Bbox] = []
    for mark in marks:
        if mark.text and (
            placed := _placed(axes, mark, points + taken, bars) or _placed(axes, mark, points + taken, [])
        ):
            taken.append(placed)


def _bars(axes: Axes, mark: Mark) -> Iterator[Bbox]:
    yield _box(axes, mark.x, mark.y, x_error=mark.x_error)
    yield _box(axes, mark.x, mark.y, y_error=mark.y_error)


def _box(axes: Axes, x: float, y: float, x_error: float = 0.0, y_error: float = 0.0, radius: float = 1.0) -> Bbox:
    corners = axes.transData.transform([(x - x_error, y - y_error), (x + x_error, y + y_error)])
    return Bbox(corners).padded(radius)


def _placed(axes: Axes, mark: Mark, taken: Sequence[Bbox], bars: Sequence[Bbox]) -> Bbox | None:
    for up, aside in _OFFSETS:
        trial = _annotation(axes, mark, (aside, up))
        box = trial.get_window_extent().padded(1)
        trial.remove()
        inside = axes.bbox.contains(box.x0, box.y0) and axes.bbox.contains(box.x1, box.y1)
        if inside and not any(box.overlaps(other) for other in (*taken, *bars)):
            _annotation(axes, mark, (aside, up), _LINE if np.hypot(up, aside) > 12 else None)
            return box
    return None


_LINE = {"arrowstyle": "-", "color": "#999999", "linewidth": 0.6}


def _annotation(axes: Axes, mark: Mark, offset: tuple[int, int], line: dict[str, Any] | None = None) -> Annotation:
    note = axes.annotate(
        mark.text, (mark.x, mark.y), offset, textcoords="offset points", fontsize=7, va="center",
        ha=("left", "center", "right")[1 - int(np.sign(offset[0]))], arrowprops=line,
    )  # fmt: skip
    note.set_in_layout(False)
    note.set_path_effects([withStroke(linewidth=2, foreground="white")])
    return note
