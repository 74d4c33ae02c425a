"""Quality against speed of this study's strategies, as docs/images/natural.svg: `python -m studies.natural.figure`."""

from base64 import b64decode
from pathlib import Path

import numpy as np

from semspec.reporting.drawing import Panel, draw
from semspec.reporting.files import replacing
from semspec_bench.intervals import interval_of_share
from semspec_bench.record import read_records
from studies.natural.report import QWEN_TIMES, RESULTS
from studies.natural.served import by_strategy, computed_speed

FIGURE = Path(__file__).parents[2] / "docs" / "images" / "natural.svg"


def figure() -> bytes:
    """Return the figure as SVG. A point has the 95% interval of its pass@1."""
    points = {}
    for label, rows in by_strategy(read_records(RESULTS / "answers.jsonl.gz")).items():
        if (speed := computed_speed(label, rows, QWEN_TIMES)) is None:
            continue
        right = np.array([row.is_right for row in rows], dtype=np.float64)
        share, interval = right.mean(), interval_of_share(right)
        below_and_above = [[share - interval.low], [interval.high - share]]
        points[label] = {"x": [speed], "y": [share], "yerr": below_and_above}
    panel = Panel(
        "times the speed of the target alone (computed)",
        "pass@1",
        points,
        {"xlim": (0, None), "ylim": (0, None)},
        "y",
    )
    return b64decode(draw(panel).partition(",")[2])


if __name__ == "__main__":
    with replacing(FIGURE) as file:
        file.write_bytes(figure())
