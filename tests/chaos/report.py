"""The report of all trials: one table and its numbers."""

import json
import math
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from semspec.training.report.document import Table
from tests.chaos.faults import TABLE, Fault
from tests.chaos.trial import Trial
from tests.stack.support import Json

HEAD = """# Faults

Each is made while requests are being answered, two segments into the first of them. A request is lost without a whole
answer, and differs when its text is not byte for byte that of the same seed undisturbed, with no word of a fallback.
Segments of every request are read back from Redis: each must be there once, and be what the client was told. Recovery
is the time until a short question ({short_s:.1f} s undisturbed) is answered normally: from the end of the fault, or
from its beginning where others serve meanwhile (*). Undisturbed and one at a time, the questions take {long_s:.1f} s;
the slowest answer is the longest that anybody waited for one, the fault and all included. A request fails when it does
not get what is promised: [reliability.md](../../../docs/reliability.md). The latency before and after is that of the
short question just before the fault, and once it is answered normally again (medians), the clients' requests beside it.
`make test-chaos` does it again; `make test-slow` has a short form.
"""
TIMES = ("slowest answer s", "latency s: before", "after", "recovery s: median", "max")


@dataclass(slots=True)
class Row:
    """One fault's trials."""

    fault: Fault
    trials: list[Trial] = field(default_factory=list)
    skipped: str = ""
    """Why there are none."""

    @property
    def complaints(self) -> list[str]:
        return [complaint for trial in self.trials for complaint in trial.complaints]

    @property
    def counts(self) -> dict[str, int]:
        """Of requests, by what became of them."""
        outcomes = [outcome for trial in self.trials for outcome in trial.outcomes]
        return {
            "made": len(self.trials),
            "success": len(outcomes) - (num_failed := sum(trial.num_failed for trial in self.trials)),
            "failed": num_failed,
            "lost": sum(outcome.answer is None for outcome in outcomes),
            "differing": sum(outcome.differs for outcome in outcomes),
            "fell back": sum(outcome.fell_back for outcome in outcomes),
            "degraded": sum(outcome.is_degraded for outcome in outcomes),
            "wrongly stored": sum(outcome.is_wrongly_stored for outcome in outcomes),
        }

    @property
    def times_s(self) -> dict[str, list[float]]:
        return {
            "latency_before_s": [trial.before_s for trial in self.trials],
            "latency_after_s": [trial.after_s for trial in self.trials],
            "latency_s": [outcome.latency_s for trial in self.trials for outcome in trial.outcomes],
            "recovery_s": [trial.recovery_s for trial in self.trials],
        }

    def cells(self) -> list[str]:
        before, after, latency, recovery = self.times_s.values()
        times = (max(latency), median(before), median(after), median(recovery), max(recovery))
        name = f"{self.fault.name}{'*' if self.fault.is_spared else ''}"
        return [name, *map(str, self.counts.values()), *(f"{seconds:.1f}" for seconds in times)]

    def as_json(self) -> Json:
        fault, times = self.fault, {name: _rounded(values) for name, values in self.times_s.items()}
        facts = {"name": fault.name, "how": fault.how, "promise": fault.promise.value, "skipped": self.skipped or None}
        return {**facts, **self.counts, **times, "complaints": self.complaints}


@dataclass(frozen=True, slots=True)
class Report:
    """All rows, in the order of the table."""

    rows: Mapping[str, Row]
    long_s: float
    """Mean undisturbed latency of the questions that are disturbed."""
    short_s: float
    """That of the one that recovery is measured by."""

    @classmethod
    def empty(cls, long_s: float, short_s: float) -> "Report":
        return cls({fault.name: Row(fault) for fault in TABLE}, long_s, short_s)

    @property
    def is_green(self) -> bool:
        """Whether every promise was kept each time."""
        return not any(row.complaints for row in self.rows.values())

    def write(self, folder: Path, duration_s: float) -> None:
        """`README.md` and `faults.json`."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "README.md").write_text(self._page(duration_s))
        body = {
            "duration_s": round(duration_s, 1),
            "machine": f"{platform.machine()}, {platform.system()} {platform.release()}",
            "long_questions_s": round(self.long_s, 3),
            "short_question_s": round(self.short_s, 3),
            "faults": [row.as_json() for row in self.rows.values()],
        }
        (folder / "faults.json").write_text(json.dumps(body, indent=1) + "\n")

    def _page(self, duration_s: float) -> str:
        made = [row for row in self.rows.values() if row.trials]
        totals = [str(sum(column)) for column in zip(*(row.counts.values() for row in made), strict=True)]
        columns = ["fault", *made[0].counts, *TIMES]
        table = Table(columns, [*(row.cells() for row in made), ["all", *totals, *[""] * len(TIMES)]]).as_markdown()
        skipped = [f"- not made: {row.fault.name} ({row.skipped})" for row in self.rows.values() if row.skipped]
        broken = [f"- {row.fault.name}: {line}" for row in made for line in row.complaints]
        verdict = "Every promise was kept." if self.is_green else "Promises were broken:"
        head = HEAD.format(long_s=self.long_s, short_s=self.short_s)
        return "\n".join([head, f"{verdict} {duration_s:.0f} s in all.", *broken, "", table, *skipped]).strip() + "\n"


def _rounded(times_s: Iterable[float]) -> list[float | None]:
    return [round(seconds, 3) if math.isfinite(seconds) else None for seconds in times_s]
