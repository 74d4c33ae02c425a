"""The target alone, then a replay at each of the paper's target ratios: the same number of tokens every time."""

import asyncio

import numpy as np
import torch

from bench.gpu.judge import RandomProbes
from bench.gpu.models import Pair
from bench.gpu.record import Facts, Record
from bench.gpu.rounds import Stand, verdicts
from bench.gpu.shapes import Scale
from bench.gpu.speedup import PUBLISHED, PublishedPoint, Stages, replayed
from bench.gpu.timing import Timer, summarised

NEEDS = ("models", "decode", "read", "judge")
SETTLING_S = 20.0
"""For the graphs of every length and a first round."""
MARGIN = 1.2
"""A replay begins only if this many times its expected time is left."""


class Replays:
    """Stages `target alone` and `replay RATIO`."""

    def __init__(self, record: Record, timer: Timer, scale: Scale, pair: Pair) -> None:
        self._record, self._scale = record, scale
        self._costs = _expected(record, scale)
        self._num_rounds = self._affordable_rounds()
        # Judged on the host: the verifier service has no device.
        probes = RandomProbes(pair, torch.device("cpu"))
        self._stand = Stand(timer, pair, probes, scale.contexts[0], scale.segment_tokens)

    def run(self) -> None:
        with asyncio.Runner() as runner:
            self._record.stage(
                "target alone", SETTLING_S + self._alone_s(self._num_rounds), lambda: self._alone(runner)
            )
            for point in PUBLISHED:
                self._replay_stage(runner, point)
            runner.run(self._stand.aclose())

    def _alone(self, runner: asyncio.Runner) -> Facts:
        self._stand.capture_graphs(self._scale.window)
        runner.run(self._stand.warm_up())
        total_ms, segments_ms = runner.run(self._stand.alone(self._num_rounds))
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
            rounds = runner.run(self._stand.replay(accepted, f"replay {point.target_ratio}"))
            return replayed(point, rounds, self._scale.segment_tokens, self._record.needed("target alone")["ms"])

        least_s = self._replay_s(point, self._num_rounds)
        self._record.stage(f"replay {point.target_ratio}", least_s, replay, ("target alone",))

    def _affordable_rounds(self) -> int:
        """The most rounds for which everything fits into the time; the fewest if none do."""
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
    """A round's costs as the stages before suggest them, behind the longest context."""
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
