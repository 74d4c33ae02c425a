"""Tables of step times: how long a stated GPU takes for a step of so many sequences and tokens.

A table is a CSV file: lines `# key: value` with what is emulated and how the times were obtained, then a row for each
number of sequences and of tokens in a step, all of its calls together.
"""

import csv
import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path

from semspec.engine.worker import MAX_CALLS, STEP_TOKENS
from semspec.errors import InvalidRequest

FOLDER = Path(__file__).parent / "tables"
HEADER = ["num_sequences", "num_tokens", "step_ms"]
KEYS = ("device", "num_gpus", "how")

Row = tuple[int, int, float]
Points = list[tuple[float, float]]
"""Ascending (x, y)."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Step times of one model on stated GPUs."""

    name: str
    facts: Mapping[str, str]
    """What is emulated and how the times were obtained."""
    num_gpus: int
    by_sequences: Mapping[int, Points] = field(repr=False)
    """Number of sequences -> ascending (tokens beyond one a sequence, ms)."""
    path: Path
    digest: str
    """Of the file."""

    def step_ms(self, num_sequences: int, num_tokens: int) -> float:
        """Time of a step in ms, linear between rows; beyond the last row of tokens, that row's.

        Between two numbers of sequences, steps with equally many tokens beyond one a sequence are compared.
        """
        extra = num_tokens - num_sequences
        known = sorted(self.by_sequences)
        right = min(bisect_right(known, num_sequences), len(known) - 1)
        pair = [known[max(0, right - 1)], known[right]]
        return _linear([(n, _linear(self.by_sequences[n], extra)) for n in pair], num_sequences)


def _linear(points: Sequence[tuple[float, float]], x: float) -> float:
    """Linear interpolation between `points`; the nearest point's value outside them."""
    right = bisect_right([point[0] for point in points], x)
    if right in (0, len(points)):
        return points[min(right, len(points) - 1)][1]
    (x0, y0), (x1, y1) = points[right - 1 : right + 1]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def load_times(path: Path) -> StepTimes:
    """Read a table. Raises: InvalidRequest naming the first malformed row."""
    try:
        text = path.read_text()
    except OSError as error:
        raise InvalidRequest(
            f"cannot read {path}: {error.strerror}", remedy="name a table of step times"
        ) from error
    lines = text.splitlines()
    facts = dict(_facts(line) for line in lines if line.startswith("#"))
    if missing := [key for key in KEYS if not facts.get(key)]:
        raise InvalidRequest(
            f"{path} has no line `# {missing[0]}: ...`", remedy="say what the times are of"
        )
    if not facts["num_gpus"].isdecimal() or int(facts["num_gpus"]) < 1:
        raise InvalidRequest(
            f"{path}: num_gpus is {facts['num_gpus']!r}", remedy="give a number of at least 1"
        )
    rows = _rows(path, lines)
    by_sequences: dict[int, Points] = {}
    for num_sequences, num_tokens, step_ms in rows:
        by_sequences.setdefault(num_sequences, []).append((num_tokens - num_sequences, step_ms))
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return StepTimes(path.stem, facts, int(facts["num_gpus"]), by_sequences, path, digest)


def _facts(line: str) -> tuple[str, str]:
    key, _, value = line.removeprefix("#").partition(":")
    return key.strip(), value.strip()


def _rows(path: Path, lines: Sequence[str]) -> list[Row]:
    table = [
        (number, line)
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.startswith("#")
    ]
    if not table or table[0][1].split(",") != HEADER:
        raise InvalidRequest(f"{path}: the first row must be {','.join(HEADER)}")
    rows: list[Row] = []
    for number, line in table[1:]:
        if problem := next(_problems(rows, line), None):
            raise InvalidRequest(f"{path}, line {number}, row {line!r}: {problem}")
        rows.append(_parsed(line))
    if problem := _incomplete(rows):
        raise InvalidRequest(f"{path}: {problem}")
    return rows


def _parsed(line: str) -> Row:
    num_sequences, num_tokens, step_ms = next(csv.reader([line]))
    return int(num_sequences), int(num_tokens), float(step_ms)


def _problems(before: Sequence[Row], line: str) -> Iterator[str]:
    """What is wrong with a row, given those before it."""
    try:
        num_sequences, num_tokens, step_ms = _parsed(line)
    except ValueError:
        yield f"write {','.join(HEADER)}: two whole numbers and a number"
        return
    if num_sequences < 1:
        yield "num_sequences must be at least 1"
    if num_tokens < num_sequences:
        yield "num_tokens must be at least num_sequences, since each sequence has a token in a step"
    if not (isfinite(step_ms) and step_ms > 0):
        yield "step_ms must be a finite number above 0"
    last = before[-1] if before else (0, 0, 0.0)
    if (num_sequences, num_tokens) <= last[:2]:
        yield "rows must ascend by num_sequences, then num_tokens, each pair once"
    if num_sequences > last[0]:
        if num_tokens != num_sequences:
            yield f"the first row of {num_sequences} sequences must have {num_sequences} tokens, a token of each"
        if before and last[1] < STEP_TOKENS:
            yield f"the rows of {last[0]} sequences before it must reach {STEP_TOKENS} tokens, the largest step"
    if not before and num_sequences != 1:
        yield "the first row must be of 1 sequence"


def _incomplete(rows: Sequence[Row]) -> str:
    """What is missing at the end of the table; empty if nothing is."""
    if not rows:
        return "it has no rows; give step times"
    num_sequences, num_tokens, _ = rows[-1]
    if num_tokens < STEP_TOKENS:
        return f"the rows of {num_sequences} sequences must reach {STEP_TOKENS} tokens, the largest step"
    if num_sequences < MAX_CALLS:
        return f"the last row is of {num_sequences} sequences; add rows of up to {MAX_CALLS}, the most calls of a step"
    return ""


@dataclass(frozen=True, slots=True)
class Pace:
    """What a paced run emulates: the step times of both models, the number of target replicas, who shares a GPU."""

    name: str
    draft: StepTimes
    target: StepTimes
    num_targets: int = 1
    is_colocated: bool = False
    """Whether the draft is on the first GPU of the target instead of one of its own."""

    def num_gpus(self, with_draft: bool) -> int:
        """GPUs of the emulated layout."""
        return (
            self.num_targets * self.target.num_gpus
            + (with_draft and not self.is_colocated) * self.draft.num_gpus
        )


PACES: Mapping[str, tuple[str, str, int, bool]] = {
    "h100-1.5b-32b": ("h100-1.5b", "h100-32b", 1, False),
    "h100-1.5b-32b-colocated": ("h100-1.5b", "h100-32b-tp2", 1, True),
    "h100-plain-tp2": ("h100-1.5b", "h100-32b-plain-tp2", 1, False),
    "h100-plain-2-targets": ("h100-1.5b", "h100-32b-plain", 2, False),
}
"""Name -> tables of draft and target in `tables/`, number of target replicas, whether the draft shares their GPU."""


def load_pace(name: str) -> Pace:
    """One of `PACES`, or two tables of yours: `DRAFT.csv,TARGET.csv`. Raises: InvalidRequest."""
    if name in PACES:
        draft, target, num_targets, is_colocated = PACES[name]
        tables = [load_times(FOLDER / f"{one}.csv") for one in (draft, target)]
        return Pace(name, tables[0], tables[1], num_targets, is_colocated)
    paths = [Path(part) for part in name.split(",")]
    if len(paths) != 2 or any(path.suffix != ".csv" for path in paths):
        raise InvalidRequest(
            f"unknown pace {name!r}",
            remedy=f"choose from {', '.join(PACES)}, or DRAFT.csv,TARGET.csv",
        )
    draft_times, target_times = map(load_times, paths)
    return Pace(f"{draft_times.name}-{target_times.name}", draft_times, target_times)
