"""Attacks from outside, drawn from a seed: `python -m tests.attacks --seed N`, also as `make attack SEED=N`.

Ends with 1 if a promise was broken. `--only FAMILY --case K` tries one case again. A part is written nowhere unless
`--output` says where. Each result is written as soon as it is known.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.attacks import files, malformed_services, odd_http
from tests.attacks.case import Family, Result, Verdict, tried
from tests.attacks.fixtures import CONFIG, Victim
from tests.attacks.report import line, write
from tests.served import stack_of

FAMILIES: tuple[Family, ...] = (odd_http.FAMILY, malformed_services.FAMILY, files.FAMILY)
RESULTS = Path("bench/results/attacks")


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.attacks")
    parser.add_argument("--seed", type=int, default=1, help="the cases are drawn from it")
    parser.add_argument("--only", default="", help="only families in whose name one of these occurs, with commas")
    parser.add_argument("--case", type=int, help="only the case of this number")
    parser.add_argument("--share", type=float, default=1.0, help="share of each family's cases")
    parser.add_argument("--output", type=Path, help="folder for README.md and cases.jsonl")
    options = parser.parse_args()
    families = [family for family in FAMILIES if any(word in family.name for word in options.only.split(","))]
    is_part = options.only or options.case is not None or options.share < 1
    folder = options.output or (None if is_part else RESULTS)
    results = asyncio.run(_run(families, options.seed, options.share, options.case, folder))
    return 0 if results and all(result.verdict is Verdict.KEPT for result in results) else 1


async def _run(families: list[Family], seed: int, share: float, case: int | None, output: Path | None) -> list[Result]:
    """All results, which are also written into the folder if there is one."""
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="attacks-") as folder:
        async with stack_of(CONFIG) as stack, Victim.of(stack) as victim:
            for family in families:
                numbers = range(max(1, round(family.num_cases * share))) if case is None else [case]
                async with family.opened(victim, Path(folder)) as draw:
                    for number in numbers:
                        results.append(result := await tried(family.name, seed, number, draw))
                        if output is not None:
                            write(output, results)
                        if result.verdict is not Verdict.KEPT:
                            print(line(result), flush=True)
                print(f"{family.name}: {len(numbers)} cases", flush=True)
    return results


if __name__ == "__main__":
    sys.exit(main())
