"""The report of all trials: one table."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from semspec.reporting.document import Table
from tests.chaos.faults import Fault
from tests.chaos.trial import Trial

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
COUNTS = (
    "made",
    "success",
    "failed",
    "lost",
    "differing",
    "fell back",
    "degraded",
    "wrongly stored",
)
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
    def counts(self) -> list[int]:
        """The numbers of `COUNTS`, in its order."""
        outcomes = [outcome for trial in self.trials for outcome in trial.outcomes]
        failed = sum(trial.breaks(outcome) for trial in self.trials for outcome in trial.outcomes)
        lost = sum(outcome.answer is None for outcome in outcomes)
        differing = sum(outcome.differs for outcome in outcomes)
        fell_back = sum(outcome.fell_back for outcome in outcomes)
        degraded = sum(outcome.is_degraded for outcome in outcomes)
        wrong = sum(outcome.is_wrongly_stored for outcome in outcomes)
        return [
            len(self.trials),
            len(outcomes) - failed,
            failed,
            lost,
            differing,
            fell_back,
            degraded,
            wrong,
        ]

    def cells(self) -> list[str]:
        before, after = (
            median(getattr(one, name) for one in self.trials) for name in ("before_s", "after_s")
        )
        slowest = max(outcome.latency_s for trial in self.trials for outcome in trial.outcomes)
        recovery = [trial.recovery_s for trial in self.trials]
        times = (slowest, before, after, median(recovery), max(recovery))
        name = f"{self.fault.name}{'*' if self.fault.is_spared else ''}"
        return [name, *map(str, self.counts), *(f"{seconds:.1f}" for seconds in times)]


@dataclass(frozen=True, slots=True)
class Report:
    """All rows, in the order of the table."""

    rows: Mapping[str, Row]
    long_s: float
    """Mean undisturbed latency of the questions that are disturbed."""
    short_s: float
    """That of the one that recovery is measured by."""

    @property
    def is_green(self) -> bool:
        """Whether every promise was kept each time."""
        return not any(row.complaints for row in self.rows.values())

    def page(self, duration_s: float) -> str:
        made = [row for row in self.rows.values() if row.trials]
        totals = [str(sum(column)) for column in zip(*(row.counts for row in made), strict=True)]
        rows = [*(row.cells() for row in made), ["all", *totals, *[""] * len(TIMES)]]
        table = Table(["fault", *COUNTS, *TIMES], rows).as_markdown()
        skipped = [
            f"- not made: {row.fault.name} ({row.skipped})"
            for row in self.rows.values()
            if row.skipped
        ]
        broken = [f"- {row.fault.name}: {line}" for row in made for line in row.complaints]
        head = HEAD.format(long_s=self.long_s, short_s=self.short_s)
        verdict = "Every promise was kept." if self.is_green else "Promises were broken:"
        told = f"{verdict} {duration_s:.0f} s in all, {platform.machine()}, {platform.system()} {platform.release()}."
        return "\n".join([head, told, *broken, "", table, *skipped]).strip() + "\n"
