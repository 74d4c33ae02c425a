"""`python -m studies.simulate.bounds`: what two H100 would gain if the slow steps that one was measured to take were
faster. Prints a Markdown table.

A step near the bound takes 1 / `SHARE` of the least time that the GPU's measured rates allow, as the target's steps of
decoding do. Each row replaces some of the measured times: all steps of the draft, or the target's scores.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from semspec.reporting.document import Table
from studies.simulate.engines import Host
from studies.simulate.layouts import (
    CONTEXTS,
    LAYOUTS,
    MEASURED,
    MEASURED_CONTEXTS,
    MEASUREMENTS,
    MIDDLE,
    measured_times,
    setup_of,
)
from studies.simulate.simulator import Setup, simulate
from studies.simulate.times import StepTimes
from studies.simulate.workload import Workload

SESSIONS = (1, 8, 32)
SHARE = 0.7
"""Least possible time of a step near the bound, as a share of its time: .69 to .75 for the target's decoding."""
SCORE_MS = 3.0
"""Assumed: by how much a score takes longer than a step of decoding, at least."""
VARIANTS: Mapping[str, tuple[bool, bool]] = {
    "as measured": (False, False),
    "scores near the bound": (False, True),
    "draft near the bound": (True, False),
    "both": (True, True),
}
"""Whether all steps of the draft are replaced, and the target's scores."""


def floors(role: str) -> dict[tuple[int, int], float]:
    """Lower bounds in ms of the measured steps, by sequences and tokens beyond one each."""
    return {
        (row["streams"], row["streams"] * (row["tokens"] - 1)): row["floor_ms"]
        for row in json.loads(MEASUREMENTS.read_text())["stages"][role]["facts"]["rows"]
        if row["what"] in MEASURED_CONTEXTS and row["context"] == MEASURED_CONTEXTS[row["what"]]
    }


def faster(role: str, decodes: bool, scores: bool) -> StepTimes:
    """The measured steps of a model, some of them near the bound."""
    measured, bound = measured_times(role), floors(role)
    by_sequences = {}
    for number, points in measured.by_sequences.items():
        step_ms = bound[number, 0] / SHARE if decodes else points[0][1]
        by_sequences[number] = [(0.0, step_ms)]
        for extra, measured_ms in points[1:]:
            score_ms = max(step_ms + SCORE_MS, bound[number, int(extra)] / SHARE)
            by_sequences[number].append((extra, score_ms if scores else measured_ms))
    return replace(measured, by_sequences=by_sequences)


def gains(num_sessions: int) -> Iterator[float]:
    """Yield tokens/s as multiples of those of the target with tensor parallel 2, for each of `VARIANTS`."""
    acceptance, segment_tokens, draft_ms = MIDDLE
    answers = replace(Workload(), acceptance=acceptance, segment_tokens=segment_tokens).answers(
        max(16, 2 * num_sessions)
    )

    def rate(setup: Setup) -> float:
        setup = replace(setup, num_sessions=num_sessions, host=Host())
        return simulate(setup, answers).tokens_per_s

    tp2 = rate(setup_of(LAYOUTS[0], CONTEXTS[0], draft_ms))
    setup = setup_of(MEASURED, CONTEXTS[0], draft_ms)
    for is_fast_draft, is_fast_score in VARIANTS.values():
        layout = replace(
            setup.layout,
            draft=faster("draft", is_fast_draft, is_fast_draft),
            target=faster("target", False, is_fast_score),
        )
        yield rate(replace(setup, layout=layout)) / tp2


def table(sessions: Sequence[int] = SESSIONS) -> Table:
    columns = [list(gains(number)) for number in sessions]
    rows = [
        (name, *(f"{column[index]:.2f}" for column in columns))
        for index, name in enumerate(VARIANTS)
    ]
    return Table(("separate, of TP 2", *(f"{number} sessions" for number in sessions)), rows)


if __name__ == "__main__":
    print(table().as_markdown())
