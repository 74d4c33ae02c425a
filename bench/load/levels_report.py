"""The report of a load test by numbers of streams: a table a level, and throughput against latency."""

import shlex
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from semspec.bench.load.levels_sums import CONFIDENCE, Interval, Summary
from semspec.training.report.document import Bullets, Code, Section, Table, Text
from semspec.training.report.drawing import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    Picture,
    panels,
)
from semspec.training.report.numbers import NONE, measured_decimal

_HEAD = (
    "contestant", "requests/s", "goodput/s", "output tokens/s", "first segment ms", "latency ms", "pass@1", "requests",
    "over its target", "over vllm serve", "the same a CPU-second",
)  # fmt: skip
_PANELS = {
    "median_e2el_ms": "median latency, s",
    "median_ttfs_ms": "median time to the first segment, s",
}
_MARKERS = {"fast": "o", "vllm": "s", "vllm-both": "D"}

Json = dict[str, Any]


def page(found: Sequence[Summary], facts: Mapping[str, Any]) -> list[Section]:
    """The contents of README.md."""
    levels = sorted({one.streams for one in found})
    picture = Picture.drawn(
        "load", "Throughput against latency", "Each point is a number of streams; up and to the left is better.",
        "requests per second against latency, a line a contestant", pareto, found,
    )  # fmt: skip
    left_out = Bullets(
        tuple(f"`{label}` is left out: {reason}" for label, reason in facts["left_out"].items())
    )
    return [
        Section("", (Text(_conditions(facts)), *([left_out] if left_out.items else []), picture)),
        *(_level(level, [one for one in found if one.streams == level]) for level in levels),
        Section(
            "Again", (Text("All numbers are in `load.json`."), Code((command(facts["settings"]),)))
        ),
    ]


def command(settings: Mapping[str, Any]) -> str:
    """The command line of a run with these settings."""
    parts = ["semspec bench load"]
    for name in (
        "task",
        "streams",
        "problems",
        "rounds",
        "temperature",
        "max_tokens",
        "goodput_e2el_ms",
        "seed",
    ):
        value = settings[name]
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        parts.append(f"--{name.replace('_', '-')} {shlex.quote(text)}")
    parts.append(f"--contestant {shlex.quote(','.join(settings['contestants']))}")
    return " ".join([*parts, "--one-at-a-time"] if settings["one_at_a_time"] else parts)


def _conditions(facts: Mapping[str, Any]) -> str:
    settings, where = facts["settings"], facts["environment"]
    averages = facts["load_average"]
    kept = (
        "started for each round" if settings["one_at_a_time"] else "all up, with one of them loaded"
    )
    return (
        f"`{settings['task']}` on {where['processor']} ({where['num_cores']} cores; load average before the turns "
        f"{min(averages):.1f} to {max(averages):.1f}). As many streams as each section says send requests without "
        f"pause, at temperature {settings['temperature']:g}; the contestants ({kept}) take turns with the same "
        f"problems in each of {settings['rounds']} rounds. Times are the client's, p50 / p95; the first segment ends "
        f"with a blank line, whichever server wrote it. Goodput counts answers within "
        f"{settings['goodput_e2el_ms']:g} ms. Ratios are of requests per second in the same round, with their "
        f"{CONFIDENCE:.0%} interval over the rounds: over the same engine's target alone, and over the best of vLLM's "
        "own servers; the last column is of requests per CPU second of the target's process."
    )


def _level(level: int, found: Sequence[Summary]) -> Section:
    roles = list(dict.fromkeys(role for one in found for role in one.numbers["cpu_s"]))
    cpu = Table(
        ("CPU seconds an answer", *roles),
        [(one.contestant.label, *(_cpu(one, role) for role in roles)) for one in found],
    )
    streams = "1 stream" if level == 1 else f"{level} streams"
    return Section(streams, (Table(_HEAD, [_row(one) for one in found]), cpu))


def _row(one: Summary) -> tuple[str, ...]:
    numbers = one.numbers
    failed = f", {numbers['failed']} failed" if numbers["failed"] else ""
    return (
        one.contestant.label,
        f"{numbers['request_throughput']:.2f}",
        f"{numbers['request_goodput']:.2f}",
        f"{numbers['output_throughput']:.0f}",
        _times(numbers, "ttfs_ms"),
        _times(numbers, "e2el_ms"),
        measured_decimal(one.pass_at_1),
        f"{numbers['completed']}{failed}",
        *map(_interval, (one.over_target, one.over_plain, one.over_plain_by_cpu)),
    )


def _times(numbers: Json, name: str) -> str:
    if f"median_{name}" not in numbers:
        return NONE
    return f"{numbers[f'median_{name}']:.0f} / {numbers[f'p95_{name}']:.0f}"


def _interval(one: Interval | None) -> str:
    if one is None:
        return NONE
    return (
        f"{one.value:.2f}"
        if one.low is None
        else f"{one.value:.2f} ({one.low:.2f} to {one.high:.2f})"
    )


def _cpu(one: Summary, role: str) -> str:
    cpu_s, completed = one.numbers["cpu_s"], one.numbers["completed"]
    return f"{cpu_s[role] / completed:.3f}" if role in cpu_s and completed else NONE


def pareto(found: Sequence[Summary]) -> Figure:
    """Requests per second against latency and against the time to the first segment, a line a contestant."""
    figure, axes = panels(len(_PANELS), (11.0, 4.6))
    colours = cycle((BLACK, BLUE, SKY, RED, ORANGE, PURPLE, GREY, GREEN))
    labels = list(dict.fromkeys(one.contestant.label for one in found))
    for label, colour in zip(labels, colours, strict=False):
        line = [one for one in found if one.contestant.label == label and one.numbers["completed"]]
        for panel, name in zip(axes, _PANELS, strict=True):
            _draw(panel, line, name, colour)
    for panel, title in zip(axes, _PANELS.values(), strict=True):
        panel.set(xlabel=title, xscale="log", ylabel="requests/s")
        panel.set_ylim(bottom=0)
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4)
    return figure


def _draw(axes: Axes, line: Sequence[Summary], name: str, colour: str) -> None:
    if not line:
        return
    x = [one.numbers[name] / 1e3 for one in line]
    y = [one.numbers["request_throughput"] for one in line]
    marker = _MARKERS.get(line[0].contestant.engine, "^")
    axes.plot(
        x, y, f"{marker}-", color=colour, label=line[0].contestant.label, markersize=4, linewidth=1
    )
    for at, height, one in zip(x, y, line, strict=True):
        axes.annotate(
            str(one.streams),
            (at, height),
            (3, 3),
            textcoords="offset points",
            fontsize=7,
            color=colour,
        )
