"""The long form of `test_faults.py`: every fault several times, and a report.

`python -m tests.chaos [--output FOLDER] [--trials N] [--only WORDS]` ends with 1 if a promise was broken. A part of the
table is written nowhere unless FOLDER says where. `--load MINUTES` kills processes under 32 streams instead.
"""

import argparse
import asyncio
import random
import sys
from pathlib import Path
from time import monotonic

from tests.chaos import load
from tests.chaos.faults import TABLE
from tests.chaos.report import Report, Row
from tests.chaos.site import built
from tests.chaos.trial import Bench

NUM_TRIALS = 4
RESULTS = Path("benchmarks/results/chaos")


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--output", type=Path, help="folder for README.md")
    parser.add_argument(
        "--trials", type=int, default=NUM_TRIALS, help="how often each fault is made"
    )
    parser.add_argument("--only", default="", help="only faults in whose name this occurs")
    parser.add_argument("--load", type=float, help="minutes of kills under streams, see load.py")
    parser.add_argument("--streams", type=int, default=32, help="their number")
    options = parser.parse_args()
    if options.load is not None:
        print(load.page(kills := asyncio.run(load.run(options.streams, options.load))), flush=True)
        return int(any(outcome.complaint for kill in kills for outcome in kill.outcomes))
    begin = monotonic()
    report = asyncio.run(_run(options.trials, options.only))
    if (folder := options.output or (None if options.only else RESULTS)) is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "README.md").write_text(report.page(monotonic() - begin))
    return 0 if report.is_green else 1


async def _run(num_trials: int, only: str) -> Report:
    """Round by round, so that every fault follows upon others."""
    chance = random.Random(0)
    async with built() as site:
        bench = await Bench.of(site)
        report = Report(
            {fault.name: Row(fault) for fault in TABLE}, bench.long_s, await bench.short_s()
        )
        rows = [report.rows[fault.name] for fault in TABLE if only in fault.name]
        for _ in range(num_trials):
            for row in chance.sample(rows, len(rows)):
                await _try(bench, row, chance)
    return report


async def _try(bench: Bench, row: Row, chance: random.Random) -> None:
    row.skipped = row.fault.why_not() or ""
    if not row.skipped:
        print(f"{row.fault.name}: ", end="", flush=True)
        row.trials.append(trial := await bench.tried(row.fault, chance))
        verdict = "; ".join(trial.complaints) or "kept"
        print(
            f"{len(trial.outcomes)} requests, recovered in {trial.recovery_s:.1f} s, {verdict}",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
