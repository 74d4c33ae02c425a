"""`python -m studies.simulate`: the table of ways to use two H100, from step times."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from semspec.reporting.document import Table, write_text
from semspec.reporting.files import write_json
from studies.simulate.engines import Host
from studies.simulate.layouts import HEADER, MIDDLE, RANGE, rows
from studies.simulate.workload import Workload

RESULTS = Path(__file__).parent / "results"


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the table as `layouts.md`, and all numbers with the assumptions as `layouts.json`."""
    parser = argparse.ArgumentParser(prog="python -m studies.simulate", description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    output = parser.parse_args(arguments).output
    acceptance, segment_tokens, _ = MIDDLE
    workload = replace(Workload(), acceptance=acceptance, segment_tokens=segment_tokens)
    host = Host()
    table = Table(HEADER, [row.cells() for row in rows(workload, host, _say)])
    facts = {
        "label": "simulated",
        "workload": asdict(workload),
        "range": RANGE,
        "host": asdict(host),
        "rows": [dict(zip(table.header, row, strict=True)) for row in table.rows],
    }
    write_text(output / "layouts.md", table.as_markdown())
    write_json(output / "layouts.json", facts)
    _say(f"written: {output}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
