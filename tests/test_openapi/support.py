"""Requests made up from `/openapi.json` and sent to a gateway that runs, with every answer held to that document."""

import asyncio
import base64
import json
import os
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gateway.support import API_KEY, bearer

HERE = Path(__file__).parent
SEED = 9
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of all requests that were sent."""

    statuses: Counter[tuple[str, int]]
    """Of answers, by operation and status."""
    failures: list[str]
    """One line each: the request and the check that its answer failed, or what the tool could not do."""
    output: str


async def sent(base_url: str, report: Path, max_examples: int) -> Outcome:
    """Run schemathesis in a process of its own against the gateway at `base_url`. `report` is overwritten."""
    options = [
        "--phases=fuzzing,stateful",
        f"--checks={','.join(CHECKS)}",
        f"--max-examples={max_examples}",
        f"--seed={SEED}",
        "--continue-on-failure",
        "--generation-database=none",
        "--output-sanitize=false",
        "--no-color",
    ]
    key = f"--header=authorization: {bearer(API_KEY)['authorization']}"
    configured = [f"--config-file={HERE / 'schemathesis.toml'}", "run", f"{base_url}/openapi.json", key]
    reported = ["--report=ndjson", f"--report-ndjson-path={report}"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "schemathesis.cli", *configured, *options, *reported),
        env={**os.environ, "SCHEMATHESIS_HOOKS": str(HERE / "hooks.py")},
        cwd=report.parent,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output = (await process.communicate())[0].decode()
    statuses, failures = _read(report)
    if process.returncode != 0 and not failures:
        failures.append(f"schemathesis ended with {process.returncode}")
    return Outcome(statuses, failures, output)


def _read(report: Path) -> tuple[Counter[tuple[str, int]], list[str]]:
    statuses, failures = Counter[tuple[str, int]](), list[str]()
    events = (event for line in report.read_text().splitlines() for event in json.loads(line).values())
    for recorder in (event["recorder"] for event in events if "recorder" in event):
        for case_id, exchange in recorder.get("interactions", {}).items():
            case = recorder["cases"][case_id]["value"]
            operation = f"{case['method']} {case['path']}"
            if (response := exchange["response"]) is None:
                failures.append(f"{operation}: no answer to {_request(exchange)}")
                continue
            statuses[operation, response["status_code"]] += 1
            for check in recorder.get("checks", {}).get(case_id, []):
                if check["status"] != "success":
                    failures.append(f"{operation}: {check['name']} on {_request(exchange)}: {check['failure_info']}")
    return statuses, failures


def _request(exchange: dict[str, Any]) -> str:
    """What was sent, for people."""
    request = exchange["request"]
    body = base64.b64decode((request.get("body") or {}).get("$base64", "")).decode(errors="replace")
    return f"{request['uri']} {request['headers']} {body}"
