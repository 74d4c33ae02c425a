"""`python -m studies.simulate.load`: load-adaptive drafting on two H100, from 1 to 64 sessions, from step times.

Target alone, semantic and load-adaptive semantic run on the same engines. Each run begins without measurements, so the
adaptive one includes what it costs to learn. Sessions begin in the middle of their first answers: otherwise, the target
alone would write all answers in step, and prefill them together, as no users do.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random

from semspec.reporting.document import Table, write_text
from semspec.reporting.files import write_json
from studies.simulate.layouts import CONTEXTS, MEASURED, MEASURED_SESSIONS, MIDDLE, setup_of
from studies.simulate.simulator import Result, Setup, simulate
from studies.simulate.workload import Workload

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "load-adaptive"
LAYOUTS = (MEASURED, "separate", "colocated")
SESSIONS = (1, 2, 4, 8, 16, 32, 64)
LEAST_ANSWERS, ANSWERS_PER_SESSION = 160, 16
HEADER = (
    "simulated: 2 x H100", "sessions", "target, tokens/s", "semantic", "load-adaptive", "of the better", "undrafted",
    "seconds",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One layout at one load, with the three ways to serve."""

    layout: str
    target: Result
    semantic: Result
    adaptive: Result

    @property
    def share(self) -> float:
        """Tokens/s of load-adaptive drafting as a share of the better of the other two."""
        better = max(self.target.tokens_per_s, self.semantic.tokens_per_s)
        return self.adaptive.tokens_per_s / better

    def cells(self) -> tuple[str, ...]:
        adaptive = self.adaptive
        return (
            self.layout,
            str(adaptive.setup.num_sessions),
            *(
                f"{result.tokens_per_s:,.0f}"
                for result in (self.target, self.semantic, self.adaptive)
            ),
            f"{self.share:.3f}",
            f"{adaptive.num_undrafted / adaptive.num_segments:.0%}",
            f"{adaptive.wall_s:,.0f}",
        )


def compare(setup: Setup, workload: Workload, seed: int, num_answers: int | None) -> Row:
    """Simulate the three ways to serve the same answers on the engines of `setup`.

    `seed` determines the answers, but not where the first ones begin. `num_answers` None: by the number of sessions.
    """
    num_sessions = setup.num_sessions
    if num_answers is None:
        num_answers = max(LEAST_ANSWERS, ANSWERS_PER_SESSION * num_sessions)
    answers, random = workload.answers(num_answers, seed), Random(0)
    for number, answer in enumerate(answers[:num_sessions]):
        first = random.randrange(len(answer.segments))
        answers[number] = replace(answer, segments=answer.segments[first:])
    return Row(
        setup.layout.name,
        simulate(replace(setup, strategy="target"), answers),
        simulate(setup, answers),
        simulate(replace(setup, is_load_adaptive=True), answers),
    )


def rows(
    workload: Workload,
    layouts: Sequence[str],
    sessions: Sequence[int],
    seed: int,
    num_answers: int | None,
) -> Iterator[Row]:
    """Each layout at each load at which its steps are known."""
    for layout in layouts:
        setup = setup_of(layout, CONTEXTS[0], MIDDLE[2])
        for num_sessions in sessions:
            if layout != MEASURED or num_sessions <= MEASURED_SESSIONS:
                setup = replace(setup, num_sessions=num_sessions)
                row = compare(setup, workload, seed, num_answers)
                print(" | ".join(row.cells()), file=sys.stderr, flush=True)
                yield row


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the table as `loads.md`, and the numbers with the assumptions as `loads.json`.

    Other runs than those of the committed table need `--output`, so that they do not replace it.
    """
    parser = argparse.ArgumentParser(prog="python -m studies.simulate.load", description=__doc__)
    parser.add_argument("--output", type=Path, help="folder of the results")
    parser.add_argument("--layout", nargs="+", choices=LAYOUTS, default=LAYOUTS)
    parser.add_argument("--sessions", nargs="+", type=int, default=SESSIONS)
    parser.add_argument("--seed", type=int, default=0, help="seed of the answers")
    parser.add_argument("--answers", type=int, help="number of answers; default: by the sessions")
    options = parser.parse_args(arguments)
    chosen = (tuple(options.layout), tuple(options.sessions), options.seed, options.answers)
    if options.output is None and chosen != (LAYOUTS, SESSIONS, 0, None):
        parser.error("--layout, --sessions, --seed and --answers need --output")
    output: Path = options.output or RESULTS
    acceptance, segment_tokens, _ = MIDDLE
    workload = replace(Workload(), acceptance=acceptance, segment_tokens=segment_tokens)
    found = list(rows(workload, *chosen))
    table = Table(HEADER, [row.cells() for row in found])
    facts = {
        "label": "simulated",
        "workload": asdict(workload),
        "seed": options.seed,
        "answers": options.answers,
        "least_share": min(row.share for row in found),
        "rows": [dict(zip(table.header, row, strict=True)) for row in table.rows],
    }
    write_text(output / "loads.md", table.as_markdown())
    write_json(output / "loads.json", facts)


if __name__ == "__main__":
    main()
