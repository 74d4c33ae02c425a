"""The table of requests per second, from rows written by hand, and what a request asks."""

import json
from pathlib import Path
from typing import Any

import httpx

from studies.streams import System, measure, report

RATES = {"semantic": (4.0, 8.0), "target": (2.0, 2.0), "adaptive": (3.9, 7.9), "vLLM": (2.0, 8.0)}


def write(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in [{"dtype": "float32"}, *rows]))
    return file


def test_ratios_are_of_the_same_block(tmp_path: Path) -> None:
    rows = [
        {"block": block, "streams": 8, "system": system, "requests_per_s": rate}
        for system, rates in RATES.items()
        for block, rate in enumerate(rates)
    ]
    # A block that was killed before it had all systems does not count.
    rows.append({"block": 2, "streams": 8, "system": "semantic", "requests_per_s": 99.0})
    rows.append({"block": 0, "streams": 64, "system": "semantic", "requests_per_s": 99.0})
    head, _, line = report(write(tmp_path / "rows.jsonl", rows)).splitlines()
    columns = [cell.strip() for cell in head.strip("|").split("|")]
    cells = dict(zip(columns, (cell.strip() for cell in line.strip("|").split("|")), strict=True))
    assert cells["semantic"] == "6.00" and cells["target"] == "2.00"
    assert cells["semantic / vLLM"] == "1.41 (1.00 to 2.00)"  # of 2 and 1, not of 6 and 5
    assert cells["semantic / target"] == "2.83 (2.00 to 4.00)"
    assert cells["adaptive / the better"] == "0.98 (0.97 to 0.99)"


async def test_requests_have_no_seed_and_answers_after_the_last_start_do_not_count() -> None:
    bodies = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        usage = {"completion_tokens": 10}
        return httpx.Response(200, json={"usage": usage, "semspec": {"num_undrafted": 2}})

    async with httpx.AsyncClient(
        base_url="http://semspec", transport=httpx.MockTransport(answer)
    ) as http:
        found = await measure(System(http, "semspec-demo"), 4, range(20))
    assert len(bodies) == 20 and not any("seed" in body for body in bodies)
    assert len({body["messages"][0]["content"] for body in bodies}) == 20
    assert found["undrafted"] == 40
    assert found["tokens_per_s"] / found["requests_per_s"] == 10
