"""Show how the code differs from the golden traces and the REST contract: `python -m tests.golden [NAME...]`.

A name is that of a strategy, `answers` or `contract`. `--write` writes the traces first, the contract only if it is
named. `--list-changes` lists the differences of the contract in `openapi-changes.txt` as intended ones.
"""

import argparse
import asyncio
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.golden.cases import ANSWERS, STRATEGIES
from tests.golden.frozen import (
    CHANGES,
    CONTRACT,
    contract,
    contract_changes,
    differences,
    read_trace,
    write_trace,
)
from tests.golden.traces import answer, is_served, runs, stream, trace_strategy


def main() -> int:
    """Return the exit status: 1 if there are differences that are not listed."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--list-changes", action="store_true")
    options = parser.parse_args()
    known = [*STRATEGIES, "answers", "contract"]
    if unknown := {*options.names} - {*known}:
        parser.error(f"unknown: {', '.join(unknown)}; give some of {', '.join(known)}")
    if options.list_changes:
        CHANGES.write_text("".join(f"{line}\n" for line in contract_changes()))
        return 0
    if options.write and "contract" in options.names:
        CONTRACT.write_text(json.dumps(contract(), separators=(",", ":")) + "\n")
        CHANGES.write_text("")
    names = options.names or known
    found = list[str]()
    if "contract" in names:
        listed = CHANGES.read_text().splitlines()
        found += [line for line in contract_changes() if line not in listed]
    if traces := [name for name in names if name != "contract"]:
        found += asyncio.run(compare(traces, options.write))
    print("\n".join(found) or "no differences")
    return int(bool(found))


async def compare(names: Sequence[str], is_written: bool) -> list[str]:
    """Return how all runs differ from these traces. `is_written`: write the traces first, from the runs in process."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        async with runs(Path(folder)) as (ways, running):
            for name in names:
                current: dict[str, dict[str, Any]]
                if name == "answers":
                    answers = {one: await answer(running, one) for one in ANSWERS}
                    current = {"HTTP": {**answers, "stream": await stream(running)}}
                else:
                    current = {
                        way: {**await trace_strategy(name, run)}
                        for way, run in ways.items()
                        if way != "HTTP" or is_served(name)
                    }
                if is_written:
                    write_trace(name, next(iter(current.values())))
                for way, cases in current.items():
                    found += [
                        f"{name}, {way}{line}" for line in differences(read_trace(name), cases)
                    ]
    return found


if __name__ == "__main__":
    raise SystemExit(main())
