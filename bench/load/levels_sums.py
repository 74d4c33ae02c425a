"""Sums and statistics of a load test's replies, with the names of `vllm bench serve`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp, log, sqrt
from statistics import fmean, stdev
from typing import Any

import numpy as np
from scipy.stats import t as student

from semspec.bench.load.contestants import Contestant
from semspec.bench.summary import mean
from semspec.bench.tasks import Question, Task
from semspec.training.report.numbers import Measured

PARAGRAPH = "\n\n"
"""The end of a segment, by which the first segment's time is told for each server alike."""
PERCENTILES = (95, 99)
CONFIDENCE = 0.95

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    question: Question
    body: Json


@dataclass(frozen=True, slots=True)
class Result:
    """A reply as far as it counts."""

    error: str
    """Why it is not whole; empty if it is."""
    is_right: bool
    num_prompt_tokens: int
    num_tokens: int
    ttft_ms: float
    """From the request to the first text: a token of vLLM's own server, a segment of ours."""
    ttfs_ms: float
    """From the request to the end of the first segment, however many events it came in."""
    e2el_ms: float
    """From the request to the whole answer."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A response as it was received."""

    request: Request
    chunks: Sequence[tuple[float, bytes]]
    """Bytes of the stream, with the seconds since the request."""
    latency_s: float
    error: str = ""

    def result(self, task: Task) -> Result:
        """Read the events and grade the answer."""
        text, first_s, segment_s, usage, error, is_done = (
            "",
            None,
            None,
            dict[str, int](),
            self.error,
            False,
        )
        for at_s, data in self._events() if not error else ():
            if data == "[DONE]":
                is_done = True
                break
            event = json.loads(data)
            if "error" in event:
                error = str(event["error"].get("code") or event["error"].get("message"))
            if more := _text(event):
                text += more
                first_s = at_s if first_s is None else first_s
                segment_s = at_s if segment_s is None and PARAGRAPH in text else segment_s
            usage = event.get("usage") or usage
        if not error and not is_done:
            error = "the stream ended before it was done"
        return Result(
            error,
            not error and task.is_right(self.request.question, text),
            usage.get("prompt_tokens", 0),
            usage.get("completion_tokens", 0),
            1e3 * (self.latency_s if first_s is None else first_s),
            1e3 * (self.latency_s if segment_s is None else segment_s),
            1e3 * self.latency_s,
        )

    def _events(self) -> Iterator[tuple[float, str]]:
        """The data of each event, with the time at which it was complete."""
        pending = b""
        for at_s, chunk in self.chunks:
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                name, _, value = line.strip().partition(b":")
                if name == b"data":
                    yield at_s, value.strip().decode()


def _text(event: Json) -> str:
    choices = event.get("choices") or [{}]
    delta = choices[0].get("delta") or {}
    return (delta.get("reasoning_content") or "") + (delta.get("content") or "")


@dataclass(frozen=True, slots=True)
class Turn:
    """One contestant's answers to the problems of one level in one round."""

    label: str
    round_number: int
    streams: int
    duration_s: float
    results: Sequence[Result]
    cpu_s: Mapping[str, float]
    """CPU seconds of each role with its children, and of the client."""

    @property
    def whole(self) -> list[Result]:
        return [one for one in self.results if not one.error]

    @property
    def requests_per_s(self) -> float:
        return len(self.whole) / self.duration_s

    @property
    def requests_per_target_cpu_s(self) -> float:
        """By the CPU time of the target, or of vLLM's own server."""
        cpu_s = self.cpu_s.get("target") or self.cpu_s.get("server") or 0.0
        return len(self.whole) / cpu_s if cpu_s else 0.0

    def describe(self) -> str:
        failed = len(self.results) - len(self.whole)
        told = f"{self.streams} streams, {self.label}: {self.requests_per_s:.2f} requests/s"
        return told + (
            f", {failed} failed: {next(one.error for one in self.results if one.error)}"
            if failed
            else ""
        )


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and its confidence interval; without bounds if it rests on one round."""

    value: float
    low: float | None = None
    high: float | None = None


def ratio(above: Mapping[int, float], below: Mapping[int, float]) -> Interval | None:
    """Geometric mean, over the rounds of both, of the ratios within a round, with Student's interval of the logarithms'
    mean; None without a round of positive values."""
    logs = [
        log(above[key] / below[key])
        for key in sorted(above.keys() & below.keys())
        if above[key] and below[key]
    ]
    if not logs:
        return None
    value = exp(fmean(logs))
    if len(logs) == 1:
        return Interval(value)
    half = float(student.ppf((1 + CONFIDENCE) / 2, len(logs) - 1)) * stdev(logs) / sqrt(len(logs))
    return Interval(value, value * exp(-half), value * exp(half))


@dataclass(frozen=True, slots=True)
class Summary:
    """One contestant at one level, over all rounds."""

    contestant: Contestant
    streams: int
    numbers: Json
    """As `vllm bench serve` names them, and `ttfs_ms`, `pass_at_1`, `cpu_s` (per whole answer, by process)."""
    pass_at_1: Measured
    over_target: Interval | None
    """Requests per second over those of the same engine's target alone in the same round; None for that itself."""
    over_plain: Interval | None
    """The same over vLLM's own server, with the threads that serve most at this level."""
    over_plain_by_cpu: Interval | None
    """Requests per CPU second of the target over those of vLLM's own server."""

    def as_json(self) -> Json:
        names = ("over_target", "over_plain", "over_plain_by_cpu")
        intervals = {name: getattr(self, name) for name in names}
        told = {name: asdict(one) if one else None for name, one in intervals.items()}
        return {"label": self.contestant.label} | self.numbers | told


def summaries(
    turns: Sequence[Turn], contestants: Sequence[Contestant], limit_ms: float
) -> list[Summary]:
    """A summary for each level and contestant with turns, in their order."""
    levels = sorted({turn.streams for turn in turns})
    return [one for level in levels for one in _level(turns, contestants, level, limit_ms)]


def _level(
    turns: Sequence[Turn], contestants: Sequence[Contestant], level: int, limit_ms: float
) -> Iterator[Summary]:
    own = {
        one.label: [turn for turn in turns if (turn.label, turn.streams) == (one.label, level)]
        for one in contestants
    }
    present = [one for one in contestants if own[one.label]]
    speeds = {
        label: {turn.round_number: turn.requests_per_s for turn in of} for label, of in own.items()
    }
    by_cpu = {
        label: {turn.round_number: turn.requests_per_target_cpu_s for turn in of}
        for label, of in own.items()
    }

    def best(candidates: Sequence[Contestant]) -> str | None:
        return max(
            (one.label for one in candidates),
            key=lambda label: fmean(speeds[label].values()),
            default=None,
        )

    plain = best([one for one in present if one.is_plain])
    for one in present:
        mates = [other for other in present if other.engine == one.engine and other.is_target_alone]
        target = None if one.is_plain or one in mates else best(mates)
        against = plain if plain != one.label else None
        right = np.array(
            [result.is_right for turn in own[one.label] for result in turn.whole], dtype=np.float64
        )
        yield Summary(
            one,
            level,
            numbers(own[one.label], limit_ms),
            mean(right) if len(right) else Measured(float("nan")),
            ratio(speeds[one.label], speeds[target]) if target else None,
            ratio(speeds[one.label], speeds[against]) if against else None,
            ratio(by_cpu[one.label], by_cpu[against]) if against else None,
        )


def numbers(turns: Sequence[Turn], limit_ms: float) -> Json:
    """Totals, rates and times of the turns of one contestant at one level; `limit_ms` bounds goodput's latency."""
    results = [result for turn in turns for result in turn.results]
    whole = [result for result in results if not result.error]
    duration_s = sum(turn.duration_s for turn in turns)
    total_input, total_output = (
        sum(one.num_prompt_tokens for one in whole),
        sum(one.num_tokens for one in whole),
    )
    found: Json = {
        "max_concurrency": turns[0].streams,
        "num_prompts": len(results),
        "duration": duration_s,
        "completed": len(whole),
        "failed": len(results) - len(whole),
        "total_input_tokens": total_input,
        "total_output_tokens": total_output,
        "request_throughput": len(whole) / duration_s,
        "request_goodput": sum(one.e2el_ms <= limit_ms for one in whole) / duration_s,
        "output_throughput": total_output / duration_s,
        "total_token_throughput": (total_input + total_output) / duration_s,
    }
    for name in ("ttft_ms", "ttfs_ms", "e2el_ms"):
        found |= _times(name, np.array([getattr(one, name) for one in whole], dtype=np.float64))
    cpu_s = {name: sum(turn.cpu_s[name] for turn in turns) for name in turns[0].cpu_s}
    return found | {
        "pass_at_1": fmean(one.is_right for one in whole) if whole else None,
        "cpu_s": cpu_s,
        "rounds": [
            {
                "round": turn.round_number,
                "duration": turn.duration_s,
                "request_throughput": turn.requests_per_s,
            }
            for turn in turns
        ],
    }


def _times(name: str, values: "np.ndarray[Any, np.dtype[np.float64]]") -> Json:
    if not len(values):
        return {}
    found = {
        f"mean_{name}": values.mean(),
        f"median_{name}": np.median(values),
        f"std_{name}": values.std(),
    }
    found |= {f"p{share}_{name}": np.percentile(values, share) for share in PERCENTILES}
    return {key: float(value) for key, value in found.items()}
