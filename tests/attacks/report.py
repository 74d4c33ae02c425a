"""The report of an attack: a table by family, and a line for each case."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from semspec.training.report.document import Table
from tests.attacks.case import Result, Verdict

HEAD = """# Attacks

{num} cases drawn from the seed{plural} {seeds}: what is asked, spoilt, killed or said, and when. After each case the
log may hold no traceback, every process still runs, and a question must have the answer that it has undisturbed.
*medium*: a promise of the documentation was broken; *lost*: a request without an end, or a process that is gone;
*differing*: another answer than the undisturbed one, with no word of it. The families are described in `tests/attacks`;
`make attack SEED=N` tries cases of another seed. `cases.jsonl` has a line for each case.
"""
CASES = "cases.jsonl"


def write(folder: Path, results: Sequence[Result]) -> None:
    """`README.md` and `cases.jsonl`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text(page(results))
    (folder / CASES).write_text("".join(f"{json.dumps(asdict(result))}\n" for result in results))


def page(results: Sequence[Result]) -> str:
    """The report."""
    families = dict.fromkeys(result.family for result in results)
    rows = [_row(family, [result for result in results if result.family == family]) for family in families]
    columns = ["family", "cases", *Verdict, "minutes", "kinds"]
    table = Table(columns, [*rows, [*_row("all", results)[:-1], ""]]).as_markdown()
    broken = [f"- {line(result)}" for result in results if result.verdict is not Verdict.KEPT]
    seeds = sorted({result.seed for result in results})
    plural = "s" if len(seeds) > 1 else ""
    head = HEAD.format(num=len(results), plural=plural, seeds=", ".join(map(str, seeds)))
    return "\n".join([head, table, "", *broken]).strip() + "\n"


def line(result: Result) -> str:
    """One case."""
    why = f": {result.why}" if result.why else ""
    return f"{result.family} {result.number}, {result.verdict} ({result.kind}: {result.what}){why}"


def _row(name: str, results: Sequence[Result]) -> list[str]:
    counts = Counter(result.verdict for result in results)
    kinds = Counter(result.kind for result in results)
    told = ", ".join(f"{kind} {number}" for kind, number in sorted(kinds.items()))
    minutes = f"{sum(result.duration_s for result in results) / 60:.1f}"
    return [name, str(len(results)), *(str(counts[verdict]) for verdict in Verdict), minutes, told]
