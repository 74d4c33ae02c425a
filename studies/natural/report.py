"""All tables of this study from its committed files: `python -m studies.natural.report`."""

import json
from collections.abc import Iterator
from pathlib import Path

from semspec_bench.record import read_records
from studies.natural import agreement, beginnings, labels, separation, served
from studies.natural.files import read_compressed

QWEN_TIMES = served.TokenTimes(draft=40, read=18, write=88)
"""Times of Qwen2.5-Coder 0.5B and 1.5B with packed weights, from benchmarks/results/natural-text."""
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "natural-meaning"


def report() -> Iterator[str]:
    """Yield the lines of all tables, Markdown."""
    yield "## Labels\n"
    yield from labels.report(read_compressed(RESULTS / "labels.jsonl.gz"))
    yield "\n## Agreement\n"
    pairs = (RESULTS / "pairs.jsonl").read_text().splitlines()
    yield from agreement.report([json.loads(pair) for pair in pairs])
    yield "\n## Right and wrong\n"
    truths, scores, question = separation.read_kept(read_compressed(RESULTS / "scores.jsonl.gz"))
    for truth in truths:
        fixed = {key: score for key, score in scores.items() if key[1] is None}
        yield from separation.table(truth, fixed, question)
        yield ""
        yield from beginnings.table(truth, scores, question)
    yield "\n## Answers\n"
    answers = read_records(RESULTS / "answers.jsonl.gz")
    yield from served.report(answers, is_timed=False, times=QWEN_TIMES)


if __name__ == "__main__":
    print("\n".join(report()))
