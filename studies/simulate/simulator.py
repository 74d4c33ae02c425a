"""Sessions that ask one answer after another, decoded by the served loop on simulated engines."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean, quantiles
from typing import cast

from semspec.decoding import STRATEGIES as DECODING
from semspec.decoding import Backends, Generation, Options, decode
from semspec.errors import InvalidRequest
from semspec.protocols import Drafter, Target, Verifier
from semspec.types import Acceptance, Context, Piece, SamplingParams, SegmentRecord, Writer
from semspec_bench.pace.gpu import SLICE_S, Gpu
from semspec_bench.pace.table import Pace, StepTimes
from studies.simulate.clock import run
from studies.simulate.engines import REUNION_S, Host, Replica, SimulatedModel, SimulatedVerifier
from studies.simulate.workload import Answer

STRATEGIES = ("target", "draft", "semantic")
"""Strategies that can be simulated: those whose time follows from segments and verdicts."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The system to simulate."""

    pace: Pace
    strategy: str = "semantic"
    num_sessions: int = 1
    gamma: int = 1
    draft_ahead: bool = True
    num_drafts: int = 1
    host: Host = field(default_factory=Host)
    num_fitting: int = 1 << 30
    """Answers whose keys and values fit on the target's GPUs; further ones wait."""
    idle_ms: float = 0.0
    """Of each step in which a GPU that draft and target share is free for the other: the host works."""
    dilation: float = 1.0
    """Of a paced run that is to be predicted: host times count as much less."""

    @property
    def num_gpus(self) -> int:
        """GPUs of the engines that the strategy uses."""
        has_own = self.strategy == "draft" or (
            self.strategy != "target" and not self.pace.is_colocated
        )
        drafts = has_own * self.num_drafts * self.pace.draft.num_gpus
        targets = (
            0 if self.strategy == "draft" else self.pace.num_targets * self.pace.target.num_gpus
        )
        return drafts + targets


@dataclass(frozen=True, slots=True)
class Result:
    """Times in seconds, of the emulated machine."""

    setup: Setup
    latencies_s: Sequence[float]
    num_tokens: int
    """Output tokens of all answers."""
    num_target_tokens: int
    wall_s: float
    utilisation: dict[Writer, float]
    """Share of the time in which a replica made steps, mean over replicas."""
    num_steps: dict[Writer, int]

    @property
    def tokens_per_s(self) -> float:
        """Of all sessions together, while all of them are busy."""
        return self.setup.num_sessions * self.num_tokens / sum(self.latencies_s)

    @property
    def mean_latency_s(self) -> float:
        return fmean(self.latencies_s)

    def percentile_s(self, percent: int) -> float:
        if len(self.latencies_s) == 1:
            return self.latencies_s[0]
        return quantiles(self.latencies_s, n=100, method="inclusive")[percent - 1]

    @property
    def target_ratio(self) -> float:
        """Share of the output tokens that the target wrote."""
        return self.num_target_tokens / self.num_tokens

    def cost_per_million(self, gpu_hour: float) -> float:
        """Price of a million output tokens, at `gpu_hour` a GPU and hour."""
        return self.setup.num_gpus * gpu_hour / 3600 / self.tokens_per_s * 1e6


def simulate(setup: Setup, answers: Sequence[Answer]) -> Result:
    """Have the sessions write all of `answers`, each the next one when it is done. Raises: InvalidRequest."""
    if setup.strategy not in STRATEGIES:
        raise InvalidRequest(
            f"{setup.strategy} is not simulated; choose from {', '.join(STRATEGIES)}"
        )
    if not answers:
        raise InvalidRequest("there is nothing to simulate; give at least one answer")
    for name in ("num_sessions", "gamma", "num_drafts"):
        if getattr(setup, name) < 1:
            raise InvalidRequest(f"{name} must be at least 1")
    return run(_Simulation(setup, answers).run())


class _Simulation:
    def __init__(self, setup: Setup, answers: Sequence[Answer]) -> None:
        self._setup, self._host = setup, setup.host.divided(setup.dilation)
        self._fitting = asyncio.Semaphore(setup.num_fitting)
        shared = Gpu(SLICE_S) if setup.pace.is_colocated else None

        def replicas(writer: Writer, times: StepTimes, number: int) -> list[Replica]:
            reunion_s = REUNION_S / setup.dilation
            idle_s = setup.idle_ms / 1e3 / setup.dilation
            return [
                Replica(f"{writer}-{n}", times, shared or Gpu(), reunion_s, idle_s)
                for n in range(number)
            ]

        self._replicas = {
            Writer.DRAFT: replicas(Writer.DRAFT, setup.pace.draft, setup.num_drafts),
            Writer.TARGET: replicas(Writer.TARGET, setup.pace.target, setup.pace.num_targets),
        }
        self._answers = {f"answer-{number}": answer for number, answer in enumerate(answers)}
        models = {
            writer: SimulatedModel(writer, replicas, self._answers, self._host.call_ms / 1e3)
            for writer, replicas in self._replicas.items()
        }
        self._backends = Backends(
            cast(Drafter, models[Writer.DRAFT]),
            cast(Target, models[Writer.TARGET]),
            cast(Verifier, SimulatedVerifier(self._host.judge_ms / 1e3)),
        )
        self._latencies_s: list[float] = []
        self._num_tokens = {Writer.DRAFT: 0, Writer.TARGET: 0}

    async def run(self) -> Result:
        loop = asyncio.get_running_loop()
        engines = [
            asyncio.create_task(one.run())
            for replicas in self._replicas.values()
            for one in replicas
        ]
        left = iter(self._answers)
        await asyncio.gather(*(self._session(left) for _ in range(self._setup.num_sessions)))
        for task in engines:
            task.cancel()
        return Result(
            self._setup,
            tuple(self._latencies_s),
            sum(self._num_tokens.values()),
            self._num_tokens[Writer.TARGET],
            loop.time(),
            {
                writer: sum(one.busy_s for one in replicas) / len(replicas) / loop.time()
                for writer, replicas in self._replicas.items()
            },
            {
                writer: sum(one.num_steps for one in replicas)
                for writer, replicas in self._replicas.items()
            },
        )

    async def _session(self, left: Iterator[str]) -> None:
        loop = asyncio.get_running_loop()
        for name in left:
            start = loop.time()
            async with self._fitting:
                await asyncio.sleep(self._host.answer_ms / 1e3)
                async for event in decode(self._generation(name), self._backends):
                    if isinstance(event, SegmentRecord):
                        self._num_tokens[Writer(event.segment.writer)] += len(
                            event.segment.token_ids
                        )
            self._latencies_s.append(loop.time() - start)

    def _generation(self, name: str) -> Generation:
        prompt = Piece("", (0,) * self._answers[name].prompt_tokens, "")
        return Generation(
            Context((prompt,)),
            SamplingParams(),
            max_tokens=1 << 30,
            strategy=DECODING[self._setup.strategy](
                Options(
                    gamma=self._setup.gamma,
                    acceptance=Acceptance("threshold", 0.5),
                    draft_ahead=self._setup.draft_ahead,
                )
            ),
            session=name,
            accepts_repeats=True,  # its segments are numbers of tokens, all without text
        )
