"""Simulated engines and verifier: the backends of the decoding loop, in virtual time.

A step has a token of each call that writes, and chunks of tokens that others have yet to feed, as in
`semspec.engine.worker`: calls begin and end between two steps, and tokens of a step are shared equally.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import islice

from semspec.engine.steps import equal_shares
from semspec.engine.worker import REGROUP_S, STEP_TOKENS
from semspec.rpc.replica import Health
from semspec.rpc.selection import best
from semspec.types import (
    SURPRISAL_FEATURES,
    Context,
    GeneratedSegment,
    GenerationParams,
    Judgement,
    Piece,
    Segment,
    SegmentEnd,
    SegmentScore,
    States,
    Writer,
)
from studies.simulate.gpu import Gpu, slices
from studies.simulate.times import StepTimes
from studies.simulate.workload import Answer


@dataclass(frozen=True, slots=True)
class Host:
    """Times outside the engines, in ms; they do not depend on load."""

    call_ms: float = 2.0
    """Round trip of each call of an engine."""
    judge_ms: float = 2.0
    """Judging a round and keeping its segments."""
    answer_ms: float = 10.0
    """HTTP and tokenization of each answer."""


@dataclass(slots=True, eq=False)
class _Call:
    """A call under way: tokens to feed, then segments to write a token a step."""

    num_to_feed: int
    lengths: Sequence[int] = ()
    results: asyncio.Queue[None] = field(default_factory=asyncio.Queue)
    """An item for each segment written; without any to write, one when all tokens are fed."""
    is_cancelled: bool = False
    _num_segments: int = 0
    _num_written: int = 0

    @property
    def num_left(self) -> int:
        """Return the tokens for the next step, if it had room for them."""
        return self.num_to_feed or 1

    def advance(self, num_tokens: int) -> bool:
        """Note a step with this many tokens of the call; return whether the call goes on."""
        if self.num_to_feed:
            self.num_to_feed -= num_tokens
            if self.num_to_feed or self.lengths:
                return True
            self.results.put_nowait(None)
            return False
        self._num_written += 1
        if self._num_written == self.lengths[self._num_segments]:
            self._num_segments, self._num_written = self._num_segments + 1, 0
            self.results.put_nowait(None)
        return self._num_segments < len(self.lengths)


class Replica:
    """The steps of one engine. `health`, `num_in_flight` and the like: what `semspec.rpc.selection` chooses by."""

    health, is_overloaded = Health.SERVING, False

    def __init__(self, address: str, times: StepTimes, gpu: Gpu, idle_s: float) -> None:
        """`idle_s`: time of each step in which it leaves `gpu` to others."""
        self.address, self.num_in_flight = address, 0
        self.busy_s, self.num_steps = 0.0, 0
        """Time of all steps, and their number."""
        self.cached: dict[str, tuple[Piece, ...]] = {}
        """Pieces of each session's context that are fed."""
        self._times, self._gpu, self._idle_s = times, gpu, idle_s
        self._known_ms: dict[tuple[int, int], float] = {}
        self._waiting: list[_Call] = []
        self._arrived = asyncio.Event()

    async def run(self) -> None:
        """Make steps, until cancelled."""
        running: list[_Call] = []
        num_ended = 0
        while True:
            if not running and not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
                if len(self._waiting) < num_ended:
                    await asyncio.sleep(REGROUP_S)
            running = [call for call in [*running, *self._waiting] if not call.is_cancelled]
            self._waiting.clear()
            shares = equal_shares([call.num_left for call in running], STEP_TOKENS)
            if running:
                await self._step(len(running), sum(shares))
            num_before = len(running)
            running = [
                call for call, share in zip(running, shares, strict=True) if call.advance(share)
            ]
            num_ended = num_before - len(running)

    async def _step(self, num_sequences: int, num_tokens: int) -> None:
        key = num_sequences, num_tokens
        if key not in self._known_ms:
            self._known_ms[key] = self._times.step_ms(num_sequences, num_tokens)
        step_s = self._known_ms[key] / 1e3
        self.busy_s += step_s
        self.num_steps += 1
        loop = asyncio.get_running_loop()
        for part in slices(step_s - self._idle_s, self._gpu.slice_s):
            await asyncio.sleep(self._gpu.take(loop.time(), part) - loop.time())
        await asyncio.sleep(self._idle_s)

    async def results(self, call: _Call, num_results: int) -> AsyncGenerator[None, None]:
        """Yield when each result of `call` is there; closing this cancels the call after the current step."""
        self._waiting.append(call)
        self._arrived.set()
        self.num_in_flight += 1
        try:
            for _ in range(num_results):
                await call.results.get()
                yield
        finally:
            call.is_cancelled = True
            self.num_in_flight -= 1


class SimulatedModel:
    """The drafter or the target of the decoding loop, served by `replicas`."""

    def __init__(
        self,
        writer: Writer,
        replicas: Sequence[Replica],
        answers: Mapping[str, Answer],
        call_s: float,
    ) -> None:
        """`answers`: what is to be written in each session."""
        self._writer, self._replicas, self._answers, self._call_s = (
            writer,
            replicas,
            answers,
            call_s,
        )

    def stream(
        self, context: Context, params: GenerationParams
    ) -> AsyncGenerator[GeneratedSegment, None]:
        """See `Model.stream`; simulated text is not shown before its segment."""
        return self.generate(context, params)

    async def generate(
        self, context: Context, params: GenerationParams
    ) -> AsyncGenerator[GeneratedSegment, None]:
        """See `semspec.protocols.Drafter`."""
        await asyncio.sleep(self._call_s)
        segments = self._next(context, params)
        replica = best(self._replicas, params.session)
        num_to_feed = _fed(replica, params.session, context.pieces)
        call = _Call(num_to_feed, [len(generated.segment.token_ids) for generated in segments])
        async with aclosing(replica.results(call, len(segments))) as results:
            for generated in segments:
                await anext(results)
                replica.cached[params.session] += (generated.segment,)
                yield generated

    async def score(
        self, context: Context, segments: Sequence[Segment], session: str = "", projection: str = ""
    ) -> list[SegmentScore]:
        """See `semspec.protocols.Target`."""
        await asyncio.sleep(self._call_s)
        replica = best(self._replicas, session)
        call = _Call(_fed(replica, session, (*context.pieces, *segments)))
        async with aclosing(replica.results(call, 1)) as results:
            await anext(results)
        surprisal = (0.0,) * len(SURPRISAL_FEATURES)
        return [
            SegmentScore(States(b"", (0, 0), ""), surprisal, len(segment.token_ids), 0.0)
            for segment in segments
        ]

    def _next(self, context: Context, params: GenerationParams) -> list[GeneratedSegment]:
        """The segments that follow `context`, each with the verdict on it as its states."""
        planned, index = self._answers[params.session].segments, len(context.pieces) - 1
        chosen = islice(
            enumerate(planned), index, index + params.max_segments if params.max_segments else None
        )
        is_draft = self._writer is Writer.DRAFT
        return [
            GeneratedSegment(
                Segment(
                    "",
                    (0,) * (segment.draft_tokens if is_draft else segment.target_tokens),
                    "",
                    self._writer,
                    SegmentEnd.EOS if number == len(planned) - 1 else SegmentEnd.BOUNDARY,
                ),
                States(bytes([segment.is_accepted]), (1, 1), ""),
                0.0,
            )
            for number, segment in chosen
        ]


def _fed(replica: Replica, session: str, pieces: tuple[Piece, ...]) -> int:
    """Return the number of tokens of `pieces` that the replica has yet to feed, and note that it has all of them."""
    cached = replica.cached.get(session, ())
    num_known = next(
        (i for i, (a, b) in enumerate(zip(cached, pieces, strict=False)) if a is not b), len(cached)
    )
    replica.cached[session] = pieces
    return sum(len(piece.token_ids) for piece in pieces[num_known:])


class SimulatedVerifier:
    """Accepts the segments that the planned answers accept."""

    def __init__(self, judge_s: float) -> None:
        self._judge_s = judge_s

    async def judge(
        self, draft_states: Sequence[States], scores: Sequence[SegmentScore], probes: str = ""
    ) -> list[Judgement]:
        await asyncio.sleep(self._judge_s)
        return [Judgement(1.0, float(states.data[0])) for states in draft_states]
