"""Sessions that ask one answer after another, decoded by the served loop on simulated engines."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import quantiles
from typing import cast

from semspec.decoding import STRATEGIES as DECODING
from semspec.decoding import Backends, Generation, Options, decode
from semspec.protocols import Drafter, Target, Verifier
from semspec.types import Acceptance, Context, Piece, SamplingParams, SegmentRecord, Writer
from semspec_gateway.generation.load import LoadControl
from semspec_gateway.metrics import Metrics
from studies.simulate.clock import run
from studies.simulate.engines import Host, Replica, SimulatedModel, SimulatedVerifier
from studies.simulate.gpu import SLICE_S, Gpu
from studies.simulate.times import Layout, StepTimes
from studies.simulate.workload import Answer


@dataclass(frozen=True, slots=True)
class Setup:
    """The system to simulate."""

    layout: Layout
    strategy: str = "semantic"
    """`target`, `draft` or `semantic`, whose time follows from segments and verdicts."""
    num_sessions: int = 1
    draft_ahead: bool = True
    is_load_adaptive: bool = False
    """Whether the gateway's load control decides which segments are drafted."""
    host: Host = field(default_factory=Host)
    num_fitting: int = 1 << 30
    """Answers whose keys and values fit on the target's GPUs; further ones wait."""
    idle_ms: float = 0.0
    """Time of each step in which the host works and leaves a shared GPU to the other model."""

    @property
    def num_gpus(self) -> int:
        """GPUs of the engines that the strategy uses; the target is always one of them."""
        has_own = self.strategy != "target" and not self.layout.is_colocated
        drafts = has_own * self.layout.draft.num_gpus
        return drafts + self.layout.num_targets * self.layout.target.num_gpus


@dataclass(frozen=True, slots=True)
class Result:
    """Times in seconds, of the emulated machine."""

    setup: Setup
    latencies_s: Sequence[float]
    num_tokens: int
    """Output tokens of all answers."""
    wall_s: float
    utilisation: dict[Writer, float]
    """Share of the time in which a replica made steps, mean over replicas."""
    num_steps: dict[Writer, int]
    num_segments: int
    num_undrafted: int
    """Segments that the target wrote alone because of load."""

    @property
    def tokens_per_s(self) -> float:
        """Return the rate of all sessions together while all of them are busy."""
        return self.setup.num_sessions * self.num_tokens / sum(self.latencies_s)

    def percentile_s(self, percent: int) -> float:
        if len(self.latencies_s) == 1:
            return self.latencies_s[0]
        return quantiles(self.latencies_s, n=100, method="inclusive")[percent - 1]


def simulate(setup: Setup, answers: Sequence[Answer]) -> Result:
    """Have the sessions write all of `answers`; each takes the next one when it is done."""
    return run(_Simulation(setup, answers).run())


class _Simulation:
    def __init__(self, setup: Setup, answers: Sequence[Answer]) -> None:
        self._setup = setup
        self._fitting = asyncio.Semaphore(setup.num_fitting)
        shared = Gpu(SLICE_S) if setup.layout.is_colocated else None

        def replicas(writer: Writer, times: StepTimes, number: int) -> list[Replica]:
            return [
                Replica(f"{writer}-{n}", times, shared or Gpu(), setup.idle_ms / 1e3)
                for n in range(number)
            ]

        self._replicas = {
            Writer.DRAFT: replicas(Writer.DRAFT, setup.layout.draft, 1),
            Writer.TARGET: replicas(Writer.TARGET, setup.layout.target, setup.layout.num_targets),
        }
        self._answers = {f"answer-{number}": answer for number, answer in enumerate(answers)}
        models = {
            writer: SimulatedModel(writer, replicas, self._answers, setup.host.call_ms / 1e3)
            for writer, replicas in self._replicas.items()
        }
        self._backends = Backends(
            cast(Drafter, models[Writer.DRAFT]),
            cast(Target, models[Writer.TARGET]),
            cast(Verifier, SimulatedVerifier(setup.host.judge_ms / 1e3)),
        )
        self._latencies_s: list[float] = []
        self._num_tokens = self._num_segments = self._num_undrafted = 0
        self._metrics = Metrics()

    async def run(self) -> Result:
        loop = asyncio.get_running_loop()
        self._load = LoadControl(self._metrics.load, loop.time)
        engines = [
            asyncio.create_task(replica.run())
            for replicas in self._replicas.values()
            for replica in replicas
        ]
        left = iter(self._answers)
        await asyncio.gather(*(self._session(left) for _ in range(self._setup.num_sessions)))
        for task in engines:
            task.cancel()
        return Result(
            self._setup,
            tuple(self._latencies_s),
            self._num_tokens,
            loop.time(),
            {
                writer: sum(replica.busy_s for replica in replicas) / len(replicas) / loop.time()
                for writer, replicas in self._replicas.items()
            },
            {
                writer: sum(replica.num_steps for replica in replicas)
                for writer, replicas in self._replicas.items()
            },
            self._num_segments,
            self._num_undrafted,
        )

    async def _session(self, left: Iterator[str]) -> None:
        loop = asyncio.get_running_loop()
        for name in left:
            start = loop.time()
            async with self._fitting:
                await asyncio.sleep(self._setup.host.answer_ms / 1e3)
                await self._answer(name)
            self._latencies_s.append(loop.time() - start)

    async def _answer(self, name: str) -> None:
        """Write one answer, as the gateway's runner does."""
        with self._load.running() as pace:
            should_draft = pace.should_draft if self._setup.is_load_adaptive else None
            async for event in decode(self._generation(name), self._backends, should_draft):
                if isinstance(event, SegmentRecord):
                    self._num_tokens += len(event.segment.token_ids)
                    self._num_segments += 1
                    self._num_undrafted += event.undrafted
                    pace.keep(event)

    def _generation(self, name: str) -> Generation:
        prompt = Piece("", (0,) * self._answers[name].prompt_tokens, "")
        return Generation(
            Context((prompt,)),
            SamplingParams(),
            max_tokens=1 << 30,
            strategy=DECODING[self._setup.strategy](
                Options(
                    acceptance=Acceptance("threshold", 0.5), draft_ahead=self._setup.draft_ahead
                )
            ),
            session=name,
            accepts_repeats=True,  # its segments are numbers of tokens, all without text
        )
