"""Deterministic stand-ins for the three roles: real randomness contract, no weights."""

import asyncio
import struct
from collections.abc import AsyncGenerator, Sequence

from semspec.core import (
    STATE_CONVENTION,
    SURPRISAL_FEATURES,
    Context,
    Judgement,
    Message,
    ModelInfo,
    Piece,
    Reading,
    Segment,
    Segmentation,
    SegmentEnd,
    States,
    VerifierInfo,
    WriteOrder,
    Writer,
    Written,
    uniform,
)
from semspec.errors import ContextTooLong, InvalidRequest

TOKENIZER = "bytes"
WINDOW = 4096


class FakeModel:
    """A "model" over bytes: each segment is a word and a number that depend on context and seed alone.

    `errors` are raised, one a call, by the next writes or reads. `delay_s` passes before each segment.
    """

    def __init__(self, writer: Writer, num_segments: int = 6, delay_s: float = 0.0) -> None:
        self.writer, self.num_segments, self.delay_s = writer, num_segments, delay_s
        self.fingerprint = f"fake-{writer}"
        self.errors: list[Exception] = []
        self.num_written = self.num_read = self.num_cancelled = 0

    async def info(self) -> ModelInfo:
        return ModelInfo(f"fake-{self.writer}", self.fingerprint, TOKENIZER, 1, 2, WINDOW)

    async def encode(self, prompt: str | Sequence[Message]) -> Piece:
        text = prompt if isinstance(prompt, str) else "\n".join(message.content for message in prompt)
        if not text.strip():
            raise InvalidRequest("the prompt is empty; send some text", "prompt")
        if len(text.encode()) >= WINDOW:
            raise ContextTooLong(f"{len(text)} tokens do not fit into {WINDOW}", "prompt")
        return Piece(text, tuple(text.encode()), TOKENIZER)

    async def write(self, context: Context, order: WriteOrder) -> AsyncGenerator[Written, None]:
        budget, count = order.max_tokens, 0
        try:
            while budget > 0 and (order.max_segments == 0 or count < order.max_segments):
                self._fail()
                await asyncio.sleep(self.delay_s)
                segment = self._segment(context, order, budget)
                states = self._states(context, segment) if order.want_states else None
                self.num_written += 1
                yield Written(segment, states, 1.0)
                context, budget, count = context.extended(segment), budget - len(segment.token_ids), count + 1
                if segment.end is SegmentEnd.EOS:
                    return
        except (asyncio.CancelledError, GeneratorExit):
            self.num_cancelled += 1
            raise

    async def read(self, context: Context, segments: Sequence[Segment], session: str = "") -> list[Reading]:
        self._fail()
        await asyncio.sleep(self.delay_s)
        readings = []
        for segment in segments:
            features = tuple(float(i) for i in range(len(SURPRISAL_FEATURES)))
            readings.append(Reading(self._states(context, segment), features, len(segment.token_ids), 1.0))
            context = context.extended(segment)
        self.num_read += len(segments)
        return readings

    async def aclose(self) -> None:
        """Nothing to free."""

    def _fail(self) -> None:
        if self.errors:
            raise self.errors.pop(0)

    def _segment(self, context: Context, order: WriteOrder, budget: int) -> Segment:
        index = sum(isinstance(piece, Segment) for piece in context.pieces)
        position = sum(len(piece.token_ids) for piece in context.pieces)
        number = int(1000 * uniform(order.sampling.seed, "token", position))
        is_last = index + 1 >= self.num_segments
        text = f"{self.writer} says {number}." + ("" if is_last else "\n\n")
        end = SegmentEnd.EOS if is_last else SegmentEnd.BOUNDARY
        limit = min(budget, order.max_segment_tokens)
        if len(text) > limit:
            text, end = text[:limit], SegmentEnd.LENGTH
        return Segment(text, tuple(text.encode()), TOKENIZER, self.writer, end)

    def _states(self, context: Context, segment: Segment) -> States:
        position = sum(len(piece.token_ids) for piece in context.pieces)
        values = [uniform(sum(segment.token_ids), self.fingerprint, position + i) for i in range(4)]
        return States(struct.pack("<4f", *values), (2, 2), self.fingerprint)


class FakeVerifier:
    """Probabilities read off the first number of the states, as a real one would: a pure function."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self.num_judged = 0

    async def info(self) -> VerifierInfo:
        return VerifierInfo("fake-draft", "fake-target", STATE_CONVENTION, tuple(Segmentation))

    async def judge(self, draft_states: Sequence[States], readings: Sequence[Reading]) -> list[Judgement]:
        if self.errors:
            raise self.errors.pop(0)
        self.num_judged += len(readings)
        return [
            Judgement(_first(draft), _first(reading.states))
            for draft, reading in zip(draft_states, readings, strict=True)
        ]


def _first(states: States) -> float:
    return float(struct.unpack_from("<f", states.data)[0])
