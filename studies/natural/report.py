"""All tables of this study from its committed files: `python -m studies.natural.report`."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from semspec_bench.record import read_records
from studies.natural import agreement, beginnings, labels, separation, served

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "natural-meaning"


def read(name: str) -> list[Any]:
    """Read a file of JSON lines, compressed if its name says so."""
    content = (RESULTS / name).read_bytes()
    lines = gzip.decompress(content) if name.endswith(".gz") else content
    return [json.loads(line) for line in lines.decode().splitlines()]


def report() -> Iterator[str]:
    """Yield the lines of all tables, Markdown."""
    yield "## Labels\n"
    yield from labels.report(read("labels.jsonl.gz"))
    yield "\n## Agreement\n"
    yield from agreement.report(read("pairs.jsonl"))
    yield "\n## Right and wrong\n"
    truths, scores, question = separation.read_kept(read("scores.jsonl.gz"))
    for truth in truths:
        fixed = {key: score for key, score in scores.items() if key[1] is None}
        yield from separation.table(truth, fixed, question)
        yield ""
        yield from beginnings.table(truth, scores, question)
    yield "\n## Answers\n"
    yield from served.report(read_records(RESULTS / "answers.jsonl.gz"), is_timed=False)


if __name__ == "__main__":
    print("\n".join(report()))
