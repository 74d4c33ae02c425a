"""Times the target alone and replays at the paper's target ratios, and computes speed-ups from their stages."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

import numpy as np
import torch

from semspec.bench.gpu.models import Pair
from semspec.bench.gpu.record import Facts, Record
from semspec.bench.gpu.rounds import RandomProbes, Round, RoundRunner, ahead_ms, verdicts
from semspec.bench.gpu.shapes import Scale
from semspec.bench.gpu.timing import Light, Timer, summarised
from semspec.bench.report.paper import RESULTS, speedup_of

NUM_COMPUTED_ROUNDS = 100

SEGMENT_NOTE = (
    "The paper does not say how long its segments are. Its own rates leave 1.3 to 3.7 ms a token for reading and "
    "judging (1 / tokens per s - 1 / draft's - ratio / target's); at one to three of its decode steps of 25 ms a "
    "round, that is 7 to 65 tokens a segment. Assumed: 40 tokens for the rounds that are measured; other lengths are "
    "computed."
)
NEEDS = ("models", "decode", "read", "judge")
SETTLING_S = 20.0
"""Time for capturing the graphs of every length and for a first round."""
MARGIN = 1.2
"""A replay begins only if this many times its expected time is left."""


@dataclass(frozen=True, slots=True)
class PublishedPoint:
    """One cell of the paper's comparison, for SemanticSpec."""

    target: str
    """The pair's short name."""
    task: str
    target_ratio: float
    """Share of tokens written by the target."""
    speedup: float
    """Latency of the target alone divided by the method's."""


def _published(pair: str, task: str) -> PublishedPoint:
    [row] = [row for row in RESULTS if (row.pair, row.method) == (pair, "SemanticSpec")]
    return PublishedPoint(pair, task, row.cells[task].target_ratio or 0.0, speedup_of(row, task))


PUBLISHED = (
    *(_published("R1-32B", task) for task in ("aime24", "math500", "amc23", "gpqa-diamond")),
    _published("QwQ-32B", "amc23"),
)
"""The replayed points, which cover the paper's range of target ratios."""


@dataclass(frozen=True, slots=True)
class Stages:
    """Costs of a round's stages, assumed equal for all rounds."""

    segment_tokens: int
    draft_ms: float
    read_ms: float
    judge_ms: float
    write_ms: float
    """Time for the target to write a whole segment."""

    def speedup(self, target_ratio: float) -> Facts:
        rounds = [
            Round(self.draft_ms, self.read_ms, self.judge_ms, 0.0 if accepted else self.write_ms)
            for accepted in verdicts(target_ratio, NUM_COMPUTED_ROUNDS)
        ]
        alone_ms = NUM_COMPUTED_ROUNDS * self.write_ms
        in_turn_ms = sum(round_.in_turn_ms for round_ in rounds)
        return {
            "target_ratio": target_ratio,
            "in_turn": alone_ms / in_turn_ms,
            "draft_ahead": alone_ms / ahead_ms(rounds),
        }


def replayed(point: PublishedPoint, rounds: Sequence[Round], segment_tokens: int, alone_ms: float) -> Facts:
    """Results of one replay; the target alone takes `alone_ms` for the same number of tokens."""
    in_turn_ms = sum(round_.in_turn_ms for round_ in rounds)
    stages = {
        stage: summarised(times).as_json()
        for stage in ("draft_ms", "read_ms", "judge_ms", "rewrite_ms")
        if (times := [time for round_ in rounds if (time := getattr(round_, stage)) > 0])
    }
    return {
        "published": asdict(point),
        "target_ratio": sum(round_.rewrite_ms > 0 for round_ in rounds) / len(rounds),
        "num_rounds": len(rounds),
        "segment_tokens": segment_tokens,
        "stages": stages,
        "total_ms": {stage: sum(getattr(round_, stage) for round_ in rounds) for stage in stages},
        "alone_ms": alone_ms,
        "in_turn": {"how": "measured", "ms": in_turn_ms, "speedup": alone_ms / in_turn_ms},
        "draft_ahead": {
            "how": "computed from the measured stage times, the draft on a device of its own",
            "ms": ahead_ms(rounds),
            "speedup": alone_ms / ahead_ms(rounds),
        },
    }


def computed(replays: Sequence[Facts], judge: Facts, reads: Facts) -> Iterator[tuple[str, Stages]]:
    """The measured stages, then computed ones: with the probes on the device, and for other segment lengths."""
    measured = _measured(replays)
    yield "measured stages", measured
    yield "probes on the device", replace(measured, judge_ms=judge["device"]["median_ms"])
    for row in reads["contexts"][0]["reads"]:
        if row["num_tokens"] != measured.segment_tokens:
            yield f"segments of {row['num_tokens']} tokens", _at_length(measured, row["num_tokens"], reads)


def at_floors(pair: Pair, light: Light, segment_tokens: int, context: int) -> Stages:
    """Every stage at the device's lower bound; judging costs nothing."""
    target_token_ms = light.decode_ms(pair.target.shape, context)
    return Stages(
        segment_tokens,
        draft_ms=segment_tokens * light.decode_ms(pair.draft.shape, context),
        read_ms=light.forward_ms(pair.target.shape, segment_tokens, context, segment_tokens),
        judge_ms=0.0,
        write_ms=segment_tokens * target_token_ms,
    )


def speedups(stages: Iterable[tuple[str, Stages]]) -> Facts:
    """Speed-ups of each set of stages at the paper's target ratios."""
    return {
        "how": "computed, every round alike",
        "segment_note": SEGMENT_NOTE,
        "rows": [
            {"what": what, **asdict(one), "speedups": [one.speedup(point.target_ratio) for point in PUBLISHED]}
            for what, one in stages
        ],
    }


def _measured(replays: Sequence[Facts]) -> Stages:
    """Medians over the replays; the target's writing is that of the target alone."""
    first = replays[0]
    stages = {
        stage: median(replay["stages"][stage]["median_ms"] for replay in replays)
        for stage in ("draft_ms", "read_ms", "judge_ms")
    }
    return Stages(first["segment_tokens"], write_ms=first["alone_ms"] / first["num_rounds"], **stages)


def _at_length(measured: Stages, segment_tokens: int, reads: Facts) -> Stages:
    """Stages for another segment length: writing scales with the tokens, scoring is interpolated."""
    share = segment_tokens / measured.segment_tokens
    lengths, times_ms = zip(
        *((row["num_tokens"], row["samples"]["all"]["median_ms"]) for row in reads["contexts"][0]["reads"]), strict=True
    )
    own_ms, other_ms = np.interp([measured.segment_tokens, segment_tokens], lengths, times_ms)
    return Stages(
        segment_tokens,
        draft_ms=measured.draft_ms * share,
        read_ms=measured.read_ms * float(other_ms / own_ms),
        judge_ms=measured.judge_ms,
        write_ms=measured.write_ms * share,
    )


class Replays:
    """Runs the stages `target alone` and `replay RATIO`."""

    def __init__(self, record: Record, timer: Timer, scale: Scale, pair: Pair) -> None:
        self._record, self._scale = record, scale
        self._costs = _expected(record, scale)
        self._num_rounds = self._affordable_rounds()
        # The probes run on the host, as in the verifier service.
        probes = RandomProbes(pair, torch.device("cpu"))
        self._runner = RoundRunner(timer, pair, probes, scale.contexts[0], scale.segment_tokens)

    def run(self) -> None:
        with asyncio.Runner() as runner:
            self._record.stage(
                "target alone", SETTLING_S + self._alone_s(self._num_rounds), lambda: self._alone(runner)
            )
            for point in PUBLISHED:
                self._replay_stage(runner, point)
            runner.run(self._runner.aclose())

    def _alone(self, runner: asyncio.Runner) -> Facts:
        self._runner.capture_graphs(self._scale.window)
        runner.run(self._runner.warm_up())
        total_ms, segments_ms = runner.run(self._runner.alone(self._num_rounds))
        return {
            "num_segments": self._num_rounds,
            "segment_tokens": self._scale.segment_tokens,
            "context": self._scale.contexts[0],
            "ms": total_ms,
            "segment": summarised(segments_ms).as_json(),
        }

    def _replay_stage(self, runner: asyncio.Runner, point: PublishedPoint) -> None:
        def replay() -> Facts:
            accepted = verdicts(point.target_ratio, self._num_rounds)
            rounds = runner.run(self._runner.replay(accepted, f"replay {point.target_ratio}"))
            return replayed(point, rounds, self._scale.segment_tokens, self._record.needed("target alone")["ms"])

        least_s = self._replay_s(point, self._num_rounds)
        self._record.stage(f"replay {point.target_ratio}", least_s, replay, ("target alone",))

    def _affordable_rounds(self) -> int:
        """The largest number of rounds that fits into the time, or the smallest one if none does."""
        for num_rounds in self._scale.num_rounds:
            replays_s = sum(self._replay_s(point, num_rounds) for point in PUBLISHED)
            if SETTLING_S + self._alone_s(num_rounds) + replays_s < self._record.left_s:
                return num_rounds
        return self._scale.num_rounds[-1]

    def _alone_s(self, num_rounds: int) -> float:
        return MARGIN * num_rounds * self._costs.write_ms / 1e3

    def _replay_s(self, point: PublishedPoint, num_rounds: int) -> float:
        costs = self._costs
        round_ms = costs.draft_ms + costs.read_ms + costs.judge_ms + point.target_ratio * costs.write_ms
        return MARGIN * num_rounds * round_ms / 1e3


def _expected(record: Record, scale: Scale) -> Stages:
    """Expected costs of a round after the longest context, from the previous stages."""
    decode, reads, judge = (record.needed(name) for name in ("decode", "read", "judge"))
    lengths, times_ms = zip(
        *((row["num_tokens"], row["samples"]["all"]["median_ms"]) for row in reads["contexts"][-1]["reads"]),
        strict=True,
    )
    return Stages(
        scale.segment_tokens,
        draft_ms=scale.segment_tokens * decode["draft"]["ways"]["engine"]["median_ms"],
        read_ms=float(np.interp(scale.segment_tokens, lengths, times_ms)),
        judge_ms=judge["host"]["median_ms"],
        write_ms=scale.segment_tokens * decode["target"]["ways"]["engine"]["median_ms"],
    )
