"""The report of an overload run: tables, the two main comparisons, and a picture."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import hypot
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from semspec.bench.summary import mean
from semspec.errors import Overloaded, Unavailable, represent
from semspec.training.report.document import Code, Section, Table, Text
from semspec.training.report.drawing import BLUE, GREY, ORANGE, PERCENT, Picture, panels
from semspec.training.report.numbers import NONE, Measured, measured_decimal
from studies.overload.asking import BROKEN, GREEDY_SHARE, HUNG, OWNERS, Answer, Owner, Stage, Visit

REFUSED, AWAY = (represent(kind("")).code for kind in (Overloaded, Unavailable))

Json = dict[str, Any]
_HEAD = ("load", "requests", "answered", "at first", "429 for good", "503", "hung", "other", "refusals on the way")
_TIMES = {
    "latency": "latency_s",
    "first segment": "first_segment_s",
    "wait": "wait_s",
    "after it": "after_wait_s",
    "first segment after it": "first_segment_after_wait_s",
}
_KEY_HEAD = ("load", "key", "requests", "answered", "of its requests", "of all answers", "wait, p50 / p90 / p99")


@dataclass(frozen=True, slots=True)
class Overload:
    """Results of a whole run."""

    capacities: Sequence[float]
    """Answers per second with as many clients as slots, one value per round; the loads are multiples of it."""
    full: Sequence[Answer]
    """The answers of these clients: all slots busy, empty queue."""
    stages: Sequence[Stage]
    visits: Sequence[Visit]

    def of(self, stage: Stage, owner: Owner | None = None) -> list[Visit]:
        return [visit for visit in self.visits if visit.stage == stage.name and owner in (None, visit.owner)]

    def as_json(self) -> Json:
        rows = {
            stage.name: {owner or "all": facts(self.of(stage, owner)) for owner in (None, *OWNERS)}
            for stage in self.stages
        }
        return {
            "capacities_requests_per_s": list(self.capacities),
            "speed": {name: asdict(measured) for name, measured in speeds(self).items()},
            "stages": rows,
        }

    def as_csv(self) -> str:
        """One line per attempt; those of the capacity measurement come first, without a key."""
        page = io.StringIO()
        names = [field.name for field in fields(Answer)]
        lines = csv.writer(page, lineterminator="\n")
        lines.writerow(["load", "key", "request", "attempt", *names])
        requests = [("full", "", [answer]) for answer in self.full]
        requests += [(visit.stage, visit.owner, list(visit.attempts)) for visit in self.visits]
        for number, (load, owner, attempts) in enumerate(requests):
            for attempt, answer in enumerate(attempts):
                values = [getattr(answer, name) for name in names]
                shown = [f"{value:.4f}" if isinstance(value, float) else value for value in values]
                lines.writerow([load, owner, number, attempt, *shown])
        return page.getvalue()


def facts(visits: Sequence[Visit]) -> Json:
    """Counts and percentiles, in seconds, of answered requests."""
    answers = [visit.last for visit in visits if visit.is_answered]
    codes = [visit.last.code for visit in visits if not visit.is_answered]
    times = {
        "latency_s": [answer.latency_s for answer in answers],
        "first_segment_s": [answer.first_segment_s or 0.0 for answer in answers],
        "wait_s": [answer.wait_s for answer in answers],
        "after_wait_s": [answer.service_s or 0.0 for answer in answers],
        "first_segment_after_wait_s": [answer.first_segment_after_wait_s for answer in answers],
    }
    return {
        "num_requests": len(visits),
        "num_answered": len(answers),
        "num_answered_at_first": sum(visit.is_answered and len(visit.attempts) == 1 for visit in visits),
        "num_refused": codes.count(REFUSED),
        "num_unavailable": codes.count(AWAY),
        "num_hung": codes.count(HUNG),
        "num_broken": codes.count(BROKEN),
        "num_other": sum(code not in (REFUSED, AWAY, HUNG, BROKEN) for code in codes),
        "num_attempts": sum(len(visit.attempts) for visit in visits),
        "num_attempts_refused": sum(answer.code == REFUSED for visit in visits for answer in visit.attempts),
        **{name: percentiles(values) for name, values in times.items()},
    }


def percentiles(values: Sequence[float]) -> dict[str, float] | None:
    """Percentiles in the values' unit; None without values."""
    return {f"p{share}": float(np.percentile(values, share)) for share in (50, 90, 99)} if values else None


def speeds(overload: Overload) -> dict[str, Measured]:
    """Duration of an admitted request's generation at twice the load, relative to other loads."""
    by_name = {stage.name: _service_s([visit.last for visit in overload.of(stage)]) for stage in overload.stages}
    full = _service_s(overload.full)
    pairs = {"2x over 1x": ("2x", by_name.get("1x", [])), "2x over full": ("2x", full)}
    return {
        name: ratio(by_name[above], below)
        for name, (above, below) in pairs.items()
        if min(len(by_name.get(above, [])), len(below)) > 1
    }


def ratio(above: Sequence[float], below: Sequence[float]) -> Measured:
    """Ratio of the means of two independent samples, with its first-order error."""
    a, b = (mean(np.asarray(values, dtype=np.float64)) for values in (above, below))
    quotient = a.value / b.value
    return Measured(quotient, quotient * hypot(a.error / a.value, b.error / b.value))


def page(overload: Overload, run: Mapping[str, Any]) -> list[Section]:
    """The contents of README.md."""
    found = {stage.name: facts(overload.of(stage)) for stage in overload.stages}
    times = [(name, *(_cell(one[key]) for key in _TIMES.values())) for name, one in found.items()]
    keys = [_key_row(overload, stage, owner) for stage in overload.stages for owner in OWNERS]
    picture = Picture.drawn(
        "overload", "Where the time goes, and who is answered", "By load.", "latency and shares by load", draw, overload
    )
    return [
        Section("", (_conditions(overload, run), Table(_HEAD, [_outcome(name, one) for name, one in found.items()]))),
        Section(
            "Times of answered requests, of the attempt that was answered",
            (
                Text("In seconds, p50 / p90 / p99. `wait`: all before the generation begins: queue, tokenizing, wire."),
                Table(("load", *_TIMES), times),
                Text(_speed(overload)),
            ),
        ),
        Section("By key", (Table(_KEY_HEAD, keys), picture)),
        Section("Again", (Text("Each attempt is in `attempts.csv`."), Code(("python -m studies.overload",)))),
    ]


def _conditions(overload: Overload, run: Mapping[str, Any]) -> Text:
    plan, where = run["plan"], run["environment"]
    capacities = ", ".join(f"{capacity:.2f}" for capacity in overload.capacities)
    return Text(
        f"The bundled pair on {where['processor']} ({where['num_cores']} cores), the machine's load before it "
        f"{run['load_average']:.1f}. There is room for {plan['max_concurrent']} generations, and for "
        f"{plan['max_queued']} requests to wait, {plan['queue_timeout_s']:g} s at most. As many clients as there is "
        f"room for, each asking without a pause, get {capacities} answers a second, measured anew in each round: that "
        f"is its 1x. Each load lasted {plan['stage_s']:g} s, in {plan['num_rounds']} pieces that took turns. Arrivals "
        f"are Poisson, {GREEDY_SHARE:.0%} of them of one key. A refused client comes back when `Retry-After` says so, "
        "twice at most; an impatient one at once."
    )


def _outcome(name: str, one: Json) -> list[str]:
    counts = ("num_requests", "num_answered", "num_answered_at_first", "num_refused", "num_unavailable", "num_hung")
    others = one["num_broken"] + one["num_other"]
    return [name, *(str(one[count]) for count in counts), str(others), str(one["num_attempts_refused"])]


def _cell(times: Json | None) -> str:
    return " / ".join(f"{one:.2f}" for one in times.values()) if times else NONE


def _key_row(overload: Overload, stage: Stage, owner: Owner) -> list[str]:
    own, all_ = facts(overload.of(stage, owner)), facts(overload.of(stage))
    shares = (own["num_answered"] / max(one, 1) for one in (own["num_requests"], all_["num_answered"]))
    counts = (str(own["num_requests"]), str(own["num_answered"]))
    return [stage.name, owner, *counts, *(f"{share:.0%}" for share in shares), _cell(own["wait_s"])]


def _speed(overload: Overload) -> str:
    found = speeds(overload)
    if not found:
        return f"How admitted requests keep their speed: {NONE}, too few answers."
    told = " and ".join(f"{measured_decimal(measured, 2)} ({name})" for name, measured in found.items())
    return (
        f"What admission is for: from its start to its end, a generation takes {told} times as long. `full`: as many "
        "clients as there is room for and no queue, in turns with the loads."
    )


def _service_s(answers: Sequence[Answer]) -> list[float]:
    return [answer.service_s for answer in answers if answer.is_whole and answer.service_s is not None]


def draw(overload: Overload) -> Figure:
    """Latency components and shares of answered requests by load."""
    names = [stage.name for stage in overload.stages]
    found = [facts(overload.of(stage)) for stage in overload.stages]
    figure, (left, right) = panels(2, (9.0, 3.6))
    bottoms = [0.0] * len(names)
    for key, label, colour in (("wait_s", "wait", ORANGE), ("after_wait_s", "generation", BLUE)):
        medians = [one[key]["p50"] if one[key] else 0.0 for one in found]
        left.bar(names, medians, bottom=bottoms, color=colour, label=f"{label}, median")
        bottoms = [bottom + median for bottom, median in zip(bottoms, medians, strict=True)]
    left.plot(
        names, [one["latency_s"]["p90"] if one["latency_s"] else 0.0 for one in found], "k_", label="latency, p90"
    )
    left.set(ylabel="seconds", title="answered requests")
    for offset, owner, colour in ((-0.2, "greedy", GREY), (0.2, "modest", BLUE)):
        rows = [facts([visit for visit in overload.of(stage) if visit.owner == owner]) for stage in overload.stages]
        shares = [row["num_answered"] / max(row["num_requests"], 1) for row in rows]
        right.bar([index + offset for index in range(len(names))], shares, 0.4, color=colour, label=owner)
    right.set_xticks(range(len(names)), names)
    right.yaxis.set_major_formatter(PERCENT)
    right.set(title="requests answered, by key")
    handles = [handle for axes in (left, right) for handle in axes.get_legend_handles_labels()[0]]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure
