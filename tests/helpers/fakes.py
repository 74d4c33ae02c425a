"""Deterministic fakes of the three services: they follow the randomness contract without weights."""

import asyncio
import struct
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from semspec.clustering.equivalence import Alternatives, in_order_of_appearance
from semspec.errors import ContextTooLong, InvalidRequest, Mismatch
from semspec.probes.projection import Projection
from semspec.types import (
    STATE_CONVENTION,
    SURPRISAL_FEATURES,
    Context,
    Conversation,
    Distribution,
    GeneratedSegment,
    GenerationParams,
    Judgement,
    ModelInfo,
    OpenText,
    Piece,
    Prompt,
    Proposal,
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
    uniform,
)

_IS_LIKELIEST = SURPRISAL_FEATURES.index("argmax_share")
TOKENIZER = "bytes"
WINDOW = 4096


class FakeModel:
    """A "model" over bytes: each segment is a remark, a word and a number that depend on context and seed alone.

    `errors` are raised, one a call, by the next calls that write, read, propose, verify or answer. `delay_s` passes
    before each segment or answer.
    """

    def __init__(
        self,
        writer: Writer,
        num_segments: int = 6,
        delay_s: float = 0.0,
        remarks: Sequence[str] = ("",),
    ) -> None:
        self.writer = writer
        self.num_segments = num_segments
        self.delay_s = delay_s
        self.remarks = remarks
        self.model_info = ModelInfo(f"fake-{writer}", f"fake-{writer}", TOKENIZER, 1, 2, WINDOW)
        if writer is Writer.DRAFT:
            self.model_info = replace(
                self.model_info, datastore="fake", datastore_model="fake-target"
            )
        self.errors: list[Exception] = []
        self.num_written = self.num_read = self.num_cancelled = self.num_writing = 0
        self.closed = asyncio.Event()
        """Set when a generator of `generate` has been closed, by whatever means."""
        self.agreement = 0.5
        """Probability of every proposed token; the proposals are certain of theirs."""
        self.proposed: list[int] = []
        """Number of tokens requested in each proposal."""

    async def info(self) -> ModelInfo:
        self._fail()
        return self.model_info

    async def encode(self, prompt: Prompt) -> Piece:
        self._fail()
        if isinstance(prompt, TokenIds):
            return Piece(bytes(prompt.ids).decode(), prompt.ids, TOKENIZER)
        turns = prompt.messages if isinstance(prompt, Conversation) else prompt
        text = turns if isinstance(turns, str) else "\n".join(message.content for message in turns)
        if not text.strip():
            raise InvalidRequest("the prompt is empty; send some text", "prompt")
        if len(text.encode()) >= WINDOW:
            raise ContextTooLong(f"{len(text)} tokens do not fit into {WINDOW}", "prompt")
        return Piece(text, tuple(text.encode()), TOKENIZER)

    async def tokenize(self, text: str) -> list[Token]:
        self._fail()
        return [
            Token(byte, character, place, place + 1)
            for place, character in enumerate(text)
            for byte in character.encode()
        ]

    async def generate(
        self, context: Context, params: GenerationParams
    ) -> AsyncGenerator[GeneratedSegment, None]:
        budget, count = params.max_tokens, 0
        self.num_writing += 1
        try:
            while budget > 0 and (params.max_segments == 0 or count < params.max_segments):
                await self._before_segment(context)
                segment = self._segment(context, params, budget)
                states = self._states(context, segment) if params.want_states else None
                self.num_written += 1
                yield GeneratedSegment(segment, states, 1.0, self._logprobs(segment, params))
                context, budget, count = (
                    context.extended(segment),
                    budget - len(segment.token_ids),
                    count + 1,
                )
                if segment.end is SegmentEnd.EOS:
                    return
        except (asyncio.CancelledError, GeneratorExit):
            self.num_cancelled += 1
            raise
        finally:
            self.num_writing -= 1
            self.closed.set()

    async def stream(
        self, context: Context, params: GenerationParams
    ) -> AsyncGenerator[GeneratedSegment | OpenText, None]:
        """Show each segment in three parts: the first, the next without the last characters, then all of it."""
        async with aclosing(self.generate(context, params)) as written:
            async for one in written:
                text, ids, start = one.segment.text, one.segment.token_ids, 0
                for stop in (len(text) // 3, len(text) - 2):
                    if start < stop:
                        logprobs = (one.logprobs or ())[start:stop]
                        yield OpenText(text[start:stop], start, ids[stop - 1], logprobs, start)
                        start = stop
                yield one

    async def score(
        self, context: Context, segments: Sequence[Segment], session: str = "", projection: str = ""
    ) -> list[SegmentScore]:
        await self._work()
        scores = []
        for segment in segments:
            states = self._states(context, segment)
            features = [_value(states, 0), *map(float, range(1, len(SURPRISAL_FEATURES)))]
            features[_IS_LIKELIEST] = float(segment.text == self._likeliest_digit(context))
            scores.append(SegmentScore(states, tuple(features), len(segment.token_ids), 1.0))
            context = context.extended(segment)
        self.num_read += len(segments)
        return scores

    async def propose(
        self, context: Context, open_ids: Sequence[int], params: GenerationParams, num_tokens: int
    ) -> Proposal:
        self.proposed.append(num_tokens)
        await self._work()
        begun = tuple[int, ...]()
        token_ids = list(open_ids)  # may hold whole segments, as tokens do not say where one ends
        for place in range(len(open_ids) + num_tokens):
            if place == len(token_ids):
                token_ids.append(self._next(context, begun, params))
            begun = (*begun, token_ids[place])
            if segment := self._whole(context, begun, params, params.max_segment_tokens):
                if segment.end is SegmentEnd.EOS:
                    break
                context, begun = context.extended(segment), ()
        proposed = tuple(token_ids[len(open_ids) :])
        return Proposal(proposed, tuple(map(Distribution.certain, proposed)), TOKENIZER, 1.0)

    async def verify_tokens(
        self,
        context: Context,
        open_ids: Sequence[int],
        proposal: Proposal,
        params: GenerationParams,
    ) -> VerifiedTokens:
        await self._work()
        if proposal.token_ids and proposal.tokenizer != TOKENIZER:
            raise Mismatch("the drafter has another tokenizer")
        begun, budget, num_accepted = tuple(open_ids), params.max_tokens, 0
        segments: list[Segment] = []
        for token in (*proposal.token_ids, None):
            own, place = self._next(context, begun, params), _length(context) + len(begun)
            is_kept = token is not None and self._accepts(
                token, own, uniform(params.sampling.seed, "token-accept", place)
            )
            begun = (*begun, token if token is not None and is_kept else own)
            num_accepted += is_kept
            if segment := self._whole(
                context, begun, params, min(params.max_segment_tokens, budget)
            ):
                segments.append(segment)
                context, begun, budget = (
                    context.extended(segment),
                    (),
                    budget - len(segment.token_ids),
                )
                if (
                    segment.end is SegmentEnd.EOS
                    or budget <= 0
                    or len(segments) == params.max_segments
                ):
                    break
            if not is_kept:
                break
        return VerifiedTokens(
            tuple(segments), begun, num_accepted, 1.0, open_text="".join(map(chr, begun))
        )

    async def aclose(self) -> None:
        """Nothing to free."""

    async def _before_segment(self, context: Context) -> None:
        await self._work()

    def _likeliest_digit(self, context: Context) -> str:
        """Return the most probable of the digits after `context`."""
        said = "".join(piece.text for piece in context.pieces[-2:])
        seed = sum(said.encode())
        return str(int(10 * uniform(seed, self.model_info.fingerprint, _length(context))))

    def _accepts(self, token: int, own: int, draw: float) -> bool:
        """Whether it keeps a proposed token where it would write its own."""
        return draw < self.agreement

    def _logprobs(
        self, segment: Segment, params: GenerationParams
    ) -> tuple[TokenLogprob, ...] | None:
        """It tells none."""
        return None

    def _fail(self) -> None:
        """Raises what every call is to raise: nothing."""

    async def _work(self) -> None:
        self._fail()
        if self.errors:
            raise self.errors.pop(0)
        await asyncio.sleep(self.delay_s)

    def _segment(self, context: Context, params: GenerationParams, budget: int) -> Segment:
        begun: tuple[int, ...] = ()
        while True:
            begun = (*begun, self._next(context, begun, params))
            if segment := self._whole(
                context, begun, params, min(params.max_segment_tokens, budget)
            ):
                return segment

    def _next(self, context: Context, begun: tuple[int, ...], params: GenerationParams) -> int:
        """Return the character code that this model writes after `begun`, which any model may have written."""
        text = self._text(context, params)
        tail = "." if self._is_last(context, params) else "\n"
        return ord(text[len(begun)] if len(begun) < len(text) else tail)

    def _text(self, context: Context, params: GenerationParams) -> str:
        """What the next segment says."""
        number = int(1000 * uniform(params.sampling.seed, "token", _length(context)))
        return f"{self.remarks[number % len(self.remarks)]}{self.writer} says {number}."

    def _whole(
        self, context: Context, begun: tuple[int, ...], params: GenerationParams, limit: int
    ) -> Segment | None:
        """The segment of the tokens begun, if it ends with them."""
        text = "".join(map(chr, begun))
        end = SegmentEnd.LENGTH if len(begun) >= limit else None
        if self._is_last(context, params):
            end = SegmentEnd.EOS if self._is_over(text, context, params) else end
        elif text.strip() and text.endswith("\n\n"):
            end = SegmentEnd.BOUNDARY
        return Segment(text, begun, TOKENIZER, self.writer, end) if end else None

    def _is_over(self, text: str, context: Context, params: GenerationParams) -> bool:
        """Whether the last segment ends with this text."""
        return text.endswith(".")

    def _is_last(self, context: Context, params: GenerationParams) -> bool:
        return num_written(context) + 1 >= self.num_segments

    def _states(self, context: Context, segment: Segment) -> States:
        values = [
            uniform(sum(segment.token_ids), self.model_info.fingerprint, _length(context) + i)
            for i in range(4)
        ]
        return States(struct.pack("<4f", *values), (2, 2), self.model_info.fingerprint)


class FakeVerifier:
    """A verifier whose probabilities are a pure function of one number of the states."""

    ALTERNATIVES = ("last-hidden", "surprisal")

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self.num_judged = 0
        self.verifier_info = VerifierInfo(
            "fake-draft",
            "fake-target",
            STATE_CONVENTION,
            tuple(Segmentation),
            alternatives=self.ALTERNATIVES,
        )

    async def info(self) -> VerifierInfo:
        return self.verifier_info

    async def judge(
        self, draft_states: Sequence[States], scores: Sequence[SegmentScore], probes: str = ""
    ) -> list[Judgement]:
        if self.errors:
            raise self.errors.pop(0)
        if probes not in ("", *self.ALTERNATIVES):
            raise InvalidRequest(
                f"no probes {probes!r}; there are {', '.join(self.ALTERNATIVES)}", "probes"
            )
        place = ("", *self.ALTERNATIVES).index(probes)
        self.num_judged += len(scores)
        return [
            Judgement(_value(draft, place), _value(score.states, place))
            for draft, score in zip(draft_states, scores, strict=True)
        ]

    async def cluster(self, group: Alternatives, ends: Sequence[SegmentEnd]) -> list[int | None]:
        """Equal texts mean the same; a cut segment has no meaning."""
        places = [
            None if end is SegmentEnd.LENGTH else text
            for text, end in zip(group.segments, ends, strict=True)
        ]
        return in_order_of_appearance(places)

    def projection(self, digest: str) -> Projection:
        raise InvalidRequest("a fake has no probes", "digest")


async def collected(stream: AsyncGenerator[GeneratedSegment, None]) -> list[GeneratedSegment]:
    """All of a stream, which is then closed."""
    async with aclosing(stream) as segments:
        return [written async for written in segments]


def num_written(context: Context) -> int:
    """Segments."""
    return sum(isinstance(piece, Segment) for piece in context.pieces)


def _length(context: Context) -> int:
    """In tokens; a piece of no tokenizer is tokenized by its reader."""
    return sum(len(piece.text.encode()) for piece in context.pieces)


def _value(states: States, place: int) -> float:
    return float(struct.unpack_from("<f", states.data, 4 * place)[0])
