"""What a paced run emulates, how well the host kept the pace, and what the host costs."""

from collections.abc import Iterator
from statistics import fmean

from semspec.bench.pace.counts import TOLERANCE
from semspec.bench.record import STAGES, Record
from semspec.bench.report.tables import paced_label
from semspec.bench.summary import Run
from semspec.training.report.document import Block, Table, Text

_EMULATED = (
    "{label}. Emulated: the time of each engine step, by the tables of {tables}. Real: the models that decide what is "
    "written (the pair, not those of the table), batching, caches, probes, gRPC, gateway and client, on this host. "
    "Engines send 256 numbers a segment to the verifier, as they would with the tables' models. Times are emulated "
    "seconds{divided}."
)
_DIVIDED = (
    ": measured ones divided by {dilation:g}, so that what the host does counts only 1/{dilation:g} in them; the table "
    "below states it in full"
)
_STEPS = (
    "steps",
    "engine",
    "number",
    f"late by over {TOLERANCE:.0%}",
    "emulated s",
    "late by s",
    "computed s",
)
_HOST = ("host", "latency s", "of it host ms", "latency s, host in full")


def blocks(run: Run) -> Iterator[Block]:
    """Nothing unless the run is paced."""
    settings = run.settings.get("paced")
    if not settings:
        return
    tables = ", ".join(
        f"{one['device']} ({one['name']}: {one['how']})" for one in settings["tables"].values()
    )
    divided = _DIVIDED.format(dilation=settings["dilation"]) if settings["dilation"] != 1 else ""
    yield Text(
        _EMULATED.format(label=paced_label(run).capitalize(), tables=tables, divided=divided)
    )
    yield Table(_STEPS, tuple(_steps(run)))
    if run.settings["sessions"] == 1:
        yield Table(_HOST, tuple(_host(run, settings["dilation"])))
        yield Text(
            "Host: judging, the wire and everything outside the stages, in undilated milliseconds an answer. "
            "Draft-ahead hides a part of the wire, which is then missing here."
        )


def _steps(run: Run) -> Iterator[tuple[str, ...]]:
    for label, roles in run.steps.items():
        for role, counts in roles.items():
            times = (counts.emulated_s, counts.late_s, counts.computed_s)
            late = f"{counts.late_share:.2%}"
            yield (
                label,
                role,
                f"{counts.num_steps:,.0f}",
                late,
                *(f"{time_s:.1f}" for time_s in times),
            )


def _host(run: Run, dilation: float) -> Iterator[tuple[str, ...]]:
    for row in run.rows:
        records = [
            record for record in run.records if record.label == row.label and record.stages_ms
        ]
        if not records:
            continue
        latency_s, host_s = row.latency_s.value, fmean(host_s_of(record) for record in records)
        whole_s = latency_s + (dilation - 1) * host_s
        yield row.label, f"{latency_s:.3f}", f"{1e3 * dilation * host_s:.1f}", f"{whole_s:.3f}"


def host_s_of(record: Record) -> float:
    """The part of an answer's latency in which no engine worked for it: with one session, what the host costs."""
    stages = record.stages_ms
    engine_ms = (
        sum(stages[name] for name in STAGES) - stages["wire_ms"]
    )  # the wire's part includes the verifier
    return record.latency_s - engine_ms / 1e3
