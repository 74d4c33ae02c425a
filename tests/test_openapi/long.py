"""The long form of `test_conformance.py`: thousands of requests, and a report of what was sent and answered.

`python -m tests.test_openapi.long REPORT` writes a table in Markdown, and ends with 1 if an answer is not as described.
"""

import asyncio
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

from tests.gateway.support import make_settings, redis_server, running_gateway
from tests.test_openapi.support import Outcome, able_fakes, sent

PHASES = "coverage,fuzzing,stateful"
MAX_EXAMPLES = 200
MIN_CASES = 5000
METHOD_NOT_ALLOWED = 405

_HEAD = """# Every answer is as described

Requests made up by schemathesis from `/openapi.json`, right and wrong ones, are sent to a gateway on a socket over fake
models and a real Redis. Every answer is held to the document: its status, content type, headers and body, and each
event of a stream. `python -m tests.test_openapi.long bench/results/schemathesis.md` does it again; a short form is
part of `make test-slow`.
"""


async def _outcome() -> Outcome:
    with tempfile.TemporaryDirectory() as folder, redis_server(Path(folder)) as redis:
        settings = make_settings(redis_url=redis.url)
        async with running_gateway(settings, able_fakes()) as gateway:
            return await sent(gateway.base_url, Path(folder) / "events.ndjson", PHASES, MAX_EXAMPLES)


def _report(outcome: Outcome) -> str:
    statuses = sorted({status for _, status in outcome.statuses})
    rows = [["operation", "requests", *map(str, statuses)], ["---", *["---:"] * (len(statuses) + 1)]]
    for name, counted in _by_name(outcome).items():
        rows.append([name, str(counted.total()), *(str(counted[status] or "") for status in statuses)])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    num_server_errors = sum(count for (_, status), count in outcome.statuses.items() if status >= 500)
    facts = f"{outcome.num_cases} requests in {outcome.duration_s:.0f} s, {len(outcome.failures)} failed checks, "
    failures = "".join(f"\n- {failure[:2000]}" for failure in outcome.failures)
    return f"{_HEAD}\n{facts}{num_server_errors} server errors.\n\n```\n{outcome.command}\n```\n\n{table}\n{failures}"


def _by_name(outcome: Outcome) -> dict[str, Counter[int]]:
    """Counts by status; methods that a path has not under one name, and the sum at the end."""
    by_operation, rest, total = defaultdict[str, Counter[int]](Counter), Counter[int](), Counter[int]()
    for (operation, status), count in sorted(outcome.statuses.items()):
        (rest if status == METHOD_NOT_ALLOWED else by_operation[f"`{operation}`"])[status] += count
        total[status] += count
    return {**by_operation, "other methods": rest, "all": total}


def main() -> int:
    """The exit status."""
    outcome = asyncio.run(_outcome())
    Path(sys.argv[1]).write_text(_report(outcome))
    sys.stdout.write(outcome.output)
    return 1 if outcome.failures or outcome.num_cases < MIN_CASES else 0


if __name__ == "__main__":
    sys.exit(main())
