"""The table of requests per second, from rows written by hand."""

import json
from pathlib import Path

from studies.streams import report

RATES = {"semantic": (4.0, 8.0), "target": (2.0, 2.0), "adaptive": (3.9, 7.9), "vLLM": (2.0, 8.0)}


def test_ratios_are_of_the_same_block(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [
        {"block": block, "streams": 8, "system": system, "requests_per_s": rate}
        for system, rates in RATES.items()
        for block, rate in enumerate(rates)
    ]
    # A block that was killed before it had all systems does not count.
    rows.append({"block": 2, "streams": 8, "system": "semantic", "requests_per_s": 99.0})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    head, _, line = report(file).splitlines()
    columns = [cell.strip() for cell in head.strip("|").split("|")]
    cells = dict(zip(columns, (cell.strip() for cell in line.strip("|").split("|")), strict=True))
    assert cells["semantic"] == "6.00" and cells["target"] == "2.00"
    assert cells["semantic / vLLM"] == "1.41 (1.00 to 2.00)"  # of 2 and 1, not of 6 and 5
    assert cells["semantic / target"].startswith("2.83 ")
    assert cells["adaptive / the better"] == "0.98 (0.97 to 0.99)"
