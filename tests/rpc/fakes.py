"""A fake model and a fake verifier behind real servers on real sockets."""

import asyncio
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from google.protobuf.message import Message as Wire

from semspec.clustering.equivalence import Alternatives, in_order_of_appearance
from semspec.errors import InvalidRequest
from semspec.rpc.codec.messages import message_of
from semspec.rpc.contexts import put_context
from semspec.rpc.server import ServiceServer
from semspec.rpc.servicers import Servicer
from semspec.settings import ServiceSettings
from semspec.types import (
    STATE_CONVENTION,
    SURPRISAL_FEATURES,
    ChoiceScores,
    Context,
    Conversation,
    Distribution,
    GeneratedSegment,
    GenerationParams,
    Judgement,
    Message,
    ModelInfo,
    Piece,
    Prompt,
    Proposal,
    SamplingParams,
    Segment,
    Segmentation,
    SegmentEnd,
    SegmentScore,
    States,
    Token,
    TokenIds,
    TokenLogprob,
    VerifiedTokens,
    VerifierInfo,
    Writer,
)

STATES = States(data=bytes(range(24)), shape=(3, 2), model="weights-1")
SURPRISAL = tuple(float(i) / 4 for i in range(len(SURPRISAL_FEATURES)))
CONTEXT = Context((Piece("How many?", (1, 2, 3), "tokens-1"),))
SEGMENT = Segment("Two.\n\n", (4, 5), "tokens-1", Writer.DRAFT, SegmentEnd.BOUNDARY)
LOGPROBS = (TokenLogprob(4, b"Two", -0.1, (TokenLogprob(4, b"Two", -0.1),)), TokenLogprob(5, b".\n\n", -1e-300))
ORDER = GenerationParams(SamplingParams(seed=2**64 - 1), max_segments=3, want_states=True)
HALVES = Distribution(struct.pack("<2I", 5, 2**32 - 1), struct.pack("<2f", 0.5, 0.5))
PROPOSAL = Proposal((5, 2**32 - 1), (HALVES, HALVES), "tokens-1", 0.5)


M = TypeVar("M", bound=Wire)


def request_about(kind: type[M], context: Context, *values: object, **others: object) -> M:
    """A request of this kind with its whole context."""
    message = message_of(kind, *values, **others)
    put_context(message, context)
    return message


def _shown(turn: Message) -> str:
    calls = f"+{turn.tool_calls}" if turn.tool_calls else ""
    return f"{turn.role}={turn.content}{calls}" + (f"@{turn.tool_call_id}" if turn.tool_call_id else "")


@dataclass
class FakeEngine:
    """Writes `max_segments` numbered segments of one token a step, or raises `error`."""

    error: Exception | None = None
    step_s: float = 0.0
    num_steps_per_segment: int = 1
    num_steps: int = 0
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a `write` generator has been closed, by whatever means."""
    freed: bool = False
    num_readings: int = 0
    """Of the probes' folder."""

    async def info(self) -> ModelInfo:
        self._fail()
        return ModelInfo("fake", "weights-1", "tokens-1", 2, 2, 4096, build="test")

    async def generate(self, context: Context, params: GenerationParams) -> AsyncGenerator[GeneratedSegment, None]:
        self._fail()
        try:
            for index in range(params.max_segments):
                for _ in range(self.num_steps_per_segment):
                    self.num_steps += 1
                    await asyncio.sleep(self.step_s)
                    self._fail()
                text = f"{len(context.pieces)}:{index}:{params.sampling.temperature}\n\n"
                segment = Segment(text, (7, index), "tokens-1", Writer.DRAFT, SegmentEnd.BOUNDARY)
                logprobs = None if params.num_logprobs is None else LOGPROBS
                yield GeneratedSegment(segment, STATES if params.want_states else None, 1.5, logprobs)
        finally:
            self.closed.set()

    async def encode(self, prompt: Prompt) -> Piece:
        self._fail()
        if isinstance(prompt, TokenIds):
            return Piece("".join(map(chr, prompt.ids)), prompt.ids, "tokens-1")
        turns = prompt.messages if isinstance(prompt, Conversation) else prompt
        text = turns if isinstance(turns, str) else "|".join(_shown(turn) for turn in turns)
        return Piece(text, tuple(range(len(text))), "tokens-1")

    async def tokenize(self, text: str) -> list[Token]:
        """A token a character."""
        self._fail()
        return [Token(ord(character), character, place, place + 1) for place, character in enumerate(text)]

    async def score(
        self, context: Context, segments: Sequence[Segment], session: str = "", projection: str = ""
    ) -> list[SegmentScore]:
        self._fail()
        await asyncio.sleep(self.step_s)
        return [SegmentScore(STATES, SURPRISAL, len(segment.token_ids), 2.5) for segment in segments]

    async def propose(
        self, context: Context, open_ids: Sequence[int], params: GenerationParams, num_tokens: int
    ) -> Proposal:
        """`num_tokens` times the last open token."""
        self._fail()
        await asyncio.sleep(self.step_s)
        token = open_ids[-1] if open_ids else len(params.session)
        one = Distribution(struct.pack("<I", token), struct.pack("<f", 1.0))
        return Proposal((token,) * num_tokens, (one,) * num_tokens, "tokens-1", 0.5)

    async def verify_tokens(
        self, context: Context, open_ids: Sequence[int], proposal: Proposal, params: GenerationParams
    ) -> VerifiedTokens:
        """Keeps every proposed token but the last, and ends a segment after the first."""
        self._fail()
        await asyncio.sleep(self.step_s)
        kept = (*open_ids, *proposal.token_ids[:-1])
        text = f"{params.segmentation} {params.max_tokens} {params.max_segment_tokens} {params.max_segments}"
        segment = Segment(text, kept[:1], "tokens-1", Writer.TARGET, SegmentEnd.BOUNDARY)
        return VerifiedTokens((segment,), kept[1:], max(len(proposal.token_ids) - 1, 0), 0.25)

    async def score_choices(
        self, context: Context, question: str, prefill: str, options: Sequence[str], session: str = ""
    ) -> ChoiceScores:
        """Equal shares, and all it was asked."""
        self._fail()
        await asyncio.sleep(self.step_s)
        return ChoiceScores((1 / len(options),) * len(options), f"{question}|{prefill}|{session}", 0.75)

    async def read_probes(self) -> None:
        self.num_readings += 1

    async def aclose(self) -> None:
        self.freed = True

    def _fail(self) -> None:
        if self.error:
            raise self.error
        if self.freed:
            raise RuntimeError("used after it was freed")


class FakeVerifier:
    """Judges by the number of tokens the target counted."""

    async def info(self) -> VerifierInfo:
        segmentations = (Segmentation.PARAGRAPH,)
        digests = "probe-1", "probe-2"
        return VerifierInfo("weights-1", "weights-2", STATE_CONVENTION, segmentations, *digests, "test", ("other",))

    async def judge(
        self, draft_states: Sequence[States], scores: Sequence[SegmentScore], probes: str = ""
    ) -> list[Judgement]:
        if probes not in ("", "other"):
            raise InvalidRequest(f"no probes {probes!r}", "probes")
        return [Judgement(0.2 if probes else 0.1, 1 / (1 + score.num_tokens)) for score in scores]

    async def cluster(self, group: Alternatives, ends: Sequence[SegmentEnd]) -> list[int | None]:
        """Equal texts mean the same; a cut segment has no meaning."""
        places = [None if end is SegmentEnd.LENGTH else text for text, end in zip(group.segments, ends, strict=True)]
        return in_order_of_appearance(places)


def settings(**changes: object) -> ServiceSettings:
    """A service on a free port that drains without waiting."""
    return ServiceSettings.model_validate({"settle_s": 0, "grace_s": 0, **changes})


@asynccontextmanager
async def serving(servicer: Servicer[Any], options: ServiceSettings | None = None) -> AsyncIterator[ServiceServer]:
    """A started and loaded server, stopped in the end."""
    server = ServiceServer(servicer, options or settings())
    await server.start()
    await server.load()
    try:
        yield server
    finally:
        await server.stop()
