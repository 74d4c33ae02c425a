"""The report of a soak test: failures and growth of resources."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isnan, nan
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from semspec.training.report.document import Code, Section, Table, Text
from semspec.training.report.drawing import BLUE, GREEN, GREY, ORANGE, PURPLE, Picture, panels
from semspec.training.report.numbers import Measured, measured_decimal
from studies.soak.processes import MEBIBYTE, Sample, series

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, GREY)
NUM_BATCHES = 20
"""Successive samples of a process are correlated; means over batches hardly are."""

Json = dict[str, Any]
_MEMORY_HEAD = ("process", "RSS before", "at half", "after", "slope of RSS", "own memory (USS) after", "slope of USS")
_HANDLES = {"file descriptors": "num_fds", "threads": "num_threads", "TCP connections": "num_connections"}
_HANDLES_HEAD = ("process", *_HANDLES)


@dataclass(frozen=True, slots=True)
class Soak:
    """Results of a whole run."""

    duration_s: float
    samples: Sequence[Sample]
    """In order; the first one before the first request, the last one after the last request."""
    endings: Mapping[str, int]
    """Numbers of requests that went as expected."""
    errors: Mapping[str, int]
    quiet: Mapping[str, float]
    """The gateway's gauges when no request was left."""

    @property
    def num_requests(self) -> int:
        return sum(self.endings.values()) + sum(self.errors.values())

    @property
    def processes(self) -> list[str]:
        return list(self.samples[0].held)

    @property
    def second_half(self) -> list[Sample]:
        """Samples of the second half of the load: caches are full, allocators have reached their size."""
        return [sample for sample in self.samples[1:-1] if sample.num_requests >= self.num_requests / 2]

    def growth(self, process: str, field: str) -> Measured:
        """MiB per 1,000 requests in the second half."""
        return _growth(self.second_half, series(self.second_half, process, field))

    def as_json(self) -> Json:
        growth = {
            name: {field: asdict(self.growth(name, field)) for field in ("rss_bytes", "uss_bytes")}
            for name in self.processes
        }
        return {
            "duration_s": self.duration_s,
            "num_requests": self.num_requests,
            "endings": dict(self.endings),
            "errors": dict(self.errors),
            "quiet": dict(self.quiet),
            "growth_mebibytes_per_1000_requests": growth,
            "samples": [asdict(sample) for sample in self.samples],
        }


def page(soak: Soak, run: Mapping[str, Any]) -> list[Section]:
    """The contents of README.md."""
    endings = [(name, f"{number:,}") for name, number in sorted(soak.endings.items())]
    left_over = f"Errors: {_counts(soak.errors)}. Left over when no request was left: {_counts(soak.quiet)}."
    caches = (
        f"Each engine may keep {run['cache_bytes'] / MEBIBYTE:.1f} MiB of keys and values, part of the memory above; "
        f"the most it had: {_caches(soak)}."
    )
    picture = Picture.drawn(
        "soak", "Memory and file descriptors", "By the number of requests ended.", "memory by request", draw, soak
    )
    slopes = "Memory in MiB; its slope in MiB per 1,000 requests, by least squares over the second half of the run:"
    return [
        Section("", (_conditions(soak, run), Table(("how it ended", "requests"), endings), Text(left_over))),
        Section(
            "Memory",
            (
                Text(slopes),
                Table(_MEMORY_HEAD, [_memory_row(soak, name) for name in soak.processes]),
                Text(_redis(soak, run["ttl_s"])),
                Text(caches),
                picture,
            ),
        ),
        Section(
            "What else is held, before / at most / after",
            (Table(_HANDLES_HEAD, [_handles_row(soak, name) for name in soak.processes]),),
        ),
        Section("Again", (Code(("python -m studies.soak",)),)),
    ]


def _conditions(soak: Soak, run: Mapping[str, Any]) -> Text:
    where, num_given_up = (
        run["environment"],
        soak.num_requests - soak.endings.get("read", 0) - sum(soak.errors.values()),
    )
    return Text(
        f"{soak.num_requests:,} requests of {run['num_clients']} clients in {soak.duration_s / 60:.1f} minutes, to the "
        f"bundled pair on {where['processor']} ({where['num_cores']} cores), the machine's load before it "
        f"{run['load_average']:.1f}. Strategies, lengths, streams, sessions, traces and numbers of choices are mixed; "
        f"{num_given_up / max(soak.num_requests, 1):.0%} of the requests were given up by their clients."
    )


def _memory_row(soak: Soak, name: str) -> list[str]:
    rss, uss = (series(soak.samples, name, field) for field in ("rss_bytes", "uss_bytes"))
    half = series(soak.second_half or soak.samples, name, "rss_bytes")[0]
    sizes = [f"{one / MEBIBYTE:,.1f}" for one in (rss[0], half, rss[-1], uss[-1])]
    slopes = [_slope(soak.growth(name, field)) for field in ("rss_bytes", "uss_bytes")]
    return [name, *sizes[:3], slopes[0], sizes[3], slopes[1]]


def _handles_row(soak: Soak, name: str) -> list[str]:
    found = [series(soak.samples, name, field) for field in _HANDLES.values()]
    return [name, *(f"{one[0]:.0f} / {max(one):.0f} / {one[-1]:.0f}" for one in found)]


def _redis(soak: Soak, ttl_s: int) -> str:
    half = soak.second_half
    memory = _slope(_growth(half, [float(sample.redis_bytes) for sample in half]))
    keys = slope([sample.num_requests for sample in half], [float(sample.num_redis_keys) for sample in half])
    most, last = max(sample.num_redis_keys for sample in soak.samples), soak.samples[-1].num_redis_keys
    per_request = "too few samples" if isnan(keys.value) else measured_decimal(keys, 3)
    return (
        f"Redis keeps what was generated for {ttl_s} s here: {most:,} keys at most, {last:,} after. Its memory, as it "
        f"counts it, has a slope of {memory} MiB per 1,000 requests; its keys, {per_request} a request."
    )


def _caches(soak: Soak) -> str:
    names = soak.samples[-1].cache_bytes
    most = {name: max(sample.cache_bytes.get(name, 0) for sample in soak.samples) for name in names}
    return ", ".join(f"{name} {num_bytes / MEBIBYTE:.1f} MiB" for name, num_bytes in most.items())


def _growth(samples: Sequence[Sample], num_bytes: Sequence[float]) -> Measured:
    return slope([sample.num_requests / 1e3 for sample in samples], [one / MEBIBYTE for one in num_bytes])


def _slope(measured: Measured) -> str:
    return "too few samples" if isnan(measured.value) else measured_decimal(measured, 2)


def _counts(counted: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {number:g}" for name, number in counted.items()) or "none"


def slope(x: ArrayLike, y: ArrayLike) -> Measured:
    """Slope of the least-squares line through (x, y), over means of batches; nan with fewer than three points."""
    xs, ys = (_batched(np.asarray(values, dtype=np.float64)) for values in (x, y))
    if len(xs) < 3 or xs.min() == xs.max():
        return Measured(nan)
    (value, _), covariance = np.polyfit(xs, ys, 1, cov=True)
    return Measured(float(value), float(np.sqrt(covariance[0, 0])))


def _batched(values: np.ndarray) -> np.ndarray:
    return np.array(
        [batch.mean() for batch in np.array_split(values, min(NUM_BATCHES, len(values)) or 1) if len(batch)]
    )


def draw(soak: Soak) -> Figure:
    """Memory and file descriptors by request."""
    at = [sample.num_requests for sample in soak.samples]
    figure, (left, right) = panels(2, (9.0, 3.6))
    for name, colour in zip(soak.processes, COLOURS, strict=False):
        rss = [one / MEBIBYTE for one in series(soak.samples, name, "rss_bytes")]
        left.plot(at, rss, color=colour, label=name)
        right.plot(at, series(soak.samples, name, "num_fds"), color=colour, label=name)
    left.set(xlabel="requests", ylabel="RSS, MiB", ylim=(0, None))
    right.set(xlabel="requests", ylabel="file descriptors", ylim=(0, None))
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=len(soak.processes))
    return figure
