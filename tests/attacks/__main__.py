"""Attacks from outside, drawn from a seed, while a neighbour is watched: `python -m tests.attacks`, or `make attack`.

The seed is the hash of the commit, unless `--seed` names another. Each finding is kept as a file, which `--replay FILE`
tries again. `tests/attacks/case.py` says how bad a finding is. Ends with 1 if there is one.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import httpx

from semspec.reporting.document import Table
from tests.attacks import case as case_module
from tests.attacks import (
    files,
    floods,
    malformed_services,
    messages,
    odd_http,
    rest,
    sound_floods,
)
from tests.attacks.case import (
    HIGH,
    KEPT,
    MEDIUM,
    Case,
    Family,
    Found,
    Result,
    Run,
    Severity,
    seed_of_commit,
)
from tests.attacks.victim import Victim, victim_of

MODULES: tuple[Any, ...] = (
    rest,
    odd_http,
    floods,
    sound_floods,
    messages,
    files,
    malformed_services,
)
FAMILIES: dict[str, Family] = {module.FAMILY.name: module.FAMILY for module in MODULES}
RESULTS, FINDINGS = Path("benchmarks/results/attacks"), Path(".work/attacks")
END_S = 600.0  # of a case


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description=__doc__)
    parser.add_argument("--seed", default="", help="the cases are drawn from it")
    parser.add_argument("--share", type=float, default=1.0, help="share of each family's cases")
    parser.add_argument(
        "--only", default="", help="only families in whose name one of these occurs, with commas"
    )
    parser.add_argument(
        "--replay", type=Path, nargs="*", default=[], help="files of findings, to try only those"
    )
    options = parser.parse_args()
    seed = options.seed or seed_of_commit()
    given: dict[str, list[Case]] = {}
    for kept in (json.loads(path.read_text()) for path in options.replay):
        given.setdefault(kept["family"], []).append(kept["case"])
    chosen = [
        one
        for one in FAMILIES.values()
        if any(word in one.name for word in options.only.split(","))
    ]
    numbers = {one.name: max(1, round(one.num_cases * options.share)) for one in chosen}
    results, megabytes = asyncio.run(attacked(seed, dict.fromkeys(given, 0) or numbers, given))
    said = page(seed, results, megabytes)
    if not given and not options.only and options.share == 1:
        (RESULTS / "README.md").write_text(said)
    print(said, flush=True)
    return int(not results or any(result.severity is not KEPT for result in results))


async def attacked(
    seed: str, numbers: Mapping[str, int], given: Mapping[str, list[Case]]
) -> tuple[list[Result], dict[str, int]]:
    """The results of given cases of each family and of so many more, and the most memory of each process in MB."""
    print(f"seed {seed}", flush=True)
    results = list[Result]()
    with tempfile.TemporaryDirectory(prefix="attacks-") as folder:
        async with victim_of(Path(folder)) as victim:
            before: Mapping[str, int] = {}
            for family in (FAMILIES[name] for name in numbers):
                (place := Path(folder) / family.name).mkdir()
                begin = monotonic()
                async with family.opened(victim, place) as (draw, run):
                    own = f"{seed}/{family.name}", numbers[family.name]
                    drawn = [*given.get(family.name, ()), *await asyncio.to_thread(draw, *own)]
                    for at in range(0, len(drawn), family.at_once):
                        found = await tried(victim, family, drawn[at : at + family.at_once], run)
                        for result in (one for one in found if one.severity is not KEPT):
                            kept = result.keep(FINDINGS)
                            print(
                                f"{result.line()}\n  again: python -m tests.attacks --replay {kept}",
                                flush=True,
                            )
                        results += found
                        if not before:
                            before = {"gateway": victim.memory()["gateway"]}
                        elif len(before) == 1 and 3 * len(results) > sum(
                            numbers.values()
                        ):  # caches are full
                            before = {**victim.memory(), **before}
                told = {name: now // 10**6 for name, now in victim.memory().items()}
                print(
                    f"{family.name}: {len(drawn)} cases in {monotonic() - begin:.0f} s, MB: {told}",
                    flush=True,
                )
            try:
                await victim.check_memory(before)
            except Found as found:
                results.append(Result("whole run", {"seed": seed}, found.severity, found.why))
            return results, {name: most // 10**6 for name, most in victim.resident.items()}


async def tried(
    victim: Victim, family: Family, cases: list[Case], run: Run, is_again: bool = False
) -> list[Result]:
    """What cases at once find. What the neighbour or the processes tell of is looked for again in ever fewer cases."""
    results, together = await _once(victim, family, cases, run)
    is_logged = (
        together is not None
        and together.severity is MEDIUM
        and any(r.severity is MEDIUM for r in results)
    )
    is_vague = any(result.is_of_load for result in results) or (
        together is not None and not is_logged
    )
    if is_vague and (len(cases) > 1 or not is_again):
        await victim.quieten()
        half, results = (len(cases) + 1) // 2, list[Result]()
        for part in (cases[:half], cases[half:]):
            results += await tried(victim, family, part, run, is_again=True) if part else []
        is_vague = together is not None and not together.is_of_load
    order = list(Severity).index
    if (
        together is not None
        and is_vague
        and order(together.severity) > max(order(one.severity) for one in results)
    ):
        results[0] = replace(
            results[0], severity=together.severity, why=f"{len(cases)} at once: {together.why}"
        )
    return results


async def _once(
    victim: Victim, family: Family, cases: list[Case], run: Run
) -> tuple[list[Result], Found | None]:
    """What each found, and what the neighbour, the processes and the logs tell of all."""

    async def one(case: Case) -> Result:
        try:
            async with asyncio.timeout(END_S):
                await run(case)
        except Found as found:
            return Result(family.name, case, found.severity, found.why, found.is_of_load)
        except (TimeoutError, httpx.TransportError) as error:
            return Result(family.name, case, HIGH, f"no end: {error!r}", is_of_load=True)
        except Exception as error:
            return Result(family.name, case, MEDIUM, repr(error))
        return Result(family.name, case)

    results = list[Result]()
    try:
        async with victim.watched():
            results = await asyncio.gather(*map(one, cases))
    except Found as found:
        return results, found
    return results, None


def page(seed: str, results: Sequence[Result], megabytes: Mapping[str, int]) -> str:
    """The report: counts of each family by severity, and the findings."""
    rows = []
    for name in (*dict.fromkeys(result.family for result in results), "all"):
        own = [result for result in results if name in (result.family, "all")]
        counts = Counter(result.severity for result in own)
        rows.append([name, str(len(own)), *(str(counts[one]) for one in Severity)])
    severities = (case_module.__doc__ or "").partition("\n\n")[2]
    memory = ", ".join(f"{name} {most} MB" for name, most in megabytes.items())
    head = f"# Attacks\n\n{severities}\n{len(results)} cases of the seed {seed}. Most memory: {memory}.\n"
    lines = [f"- {result.line()}" for result in results if result.severity is not KEPT]
    table = Table(["family", "cases", *Severity], rows).as_markdown()
    return "\n".join([head, table, "", *lines]).strip() + "\n"


if __name__ == "__main__":
    sys.exit(main())
