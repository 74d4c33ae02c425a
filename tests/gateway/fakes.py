"""Fake models with one token per character and a fixed number of segments, which tests can make fail or wait."""

import asyncio
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from semspec.decoding import Backends
from semspec.errors import ContextTooLong, InvalidRequest, SemspecError, Unavailable
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
    ModelInfo,
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
from tests.calibrations import calibration

TOKENIZER = "characters"
NUM_SEGMENTS = 6
WINDOW = 2000
NUM_TOKEN_IDS = 500


class FakeModel:
    """Writes `NUM_SEGMENTS` segments that depend on the seed alone."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.model_info = ModelInfo(
            model=f"fake-{writer}",
            fingerprint=f"fingerprint-of-{writer}",
            tokenizer=TOKENIZER,
            num_layers=1,
            hidden_size=2,
            max_context_tokens=WINDOW,
            supports_choices=True,
            supports_grammars=True,
            supports_min_p=True,
            supports_penalties=True,
            num_token_ids=NUM_TOKEN_IDS,
        )
        if writer is Writer.DRAFT:
            own_target = f"fingerprint-of-{Writer.TARGET}"
            self.model_info = replace(self.model_info, datastore="fake", datastore_model=own_target)
        self.lost: SemspecError | None = None
        """Raised by every call from now on."""
        self.lost_at: int | None = None
        """Raised instead of writing this segment."""
        self.pause_at: int | None = None
        """Waits for `resume` before this segment."""
        self.num_writing = 0
        self.paused = asyncio.Event()
        self.resume = asyncio.Event()
        self.prompts: list[str] = []
        """Encoded texts."""
        self.says: str | Callable[[str, str], str | None] | None = None
        """Written instead of the segments, as one that ends; or what says so of a prompt and a grammar."""
        self.asked: list[GenerationParams] = []
        """Of the calls of `generate`."""
        self.read: list[str] = []
        """The prompts of the contexts it wrote after."""
        self.refusal: Exception | None = None
        """Raised by `encode`."""
        self.before_encode: Callable[[], Awaitable[object]] | None = None
        """What `encode` waits for."""

    @property
    def grammars(self) -> list[str]:
        """Of the calls of `generate`."""
        return [params.grammar for params in self.asked]

    async def info(self) -> ModelInfo:
        self._answer()
        return self.model_info

    async def encode(self, prompt: Prompt) -> Piece:
        self._answer()
        if self.before_encode is not None:
            await self.before_encode()
        if self.refusal is not None:
            raise self.refusal
        own = self.model_info.chat_template
        if isinstance(prompt, TokenIds):
            if max(prompt.ids, default=0) >= NUM_TOKEN_IDS:
                raise InvalidRequest(f"a token id is outside the vocabulary of {NUM_TOKEN_IDS} tokens", "prompt")
            prompt = "".join(map(chr, prompt.ids))
        if isinstance(prompt, str):
            text = prompt
        else:
            given = prompt if isinstance(prompt, Conversation) else Conversation(tuple(prompt))
            prompt = given.messages
            turns = "".join(f"{own}<{turn.role}>{turn.content}{turn.tool_calls}" for turn in prompt)
            text = f"{given.tools}{given.variables}{turns}"
        if not text.strip() or (not isinstance(prompt, str) and not prompt[-1].content.strip()):
            raise InvalidRequest("the prompt is empty")
        if len(text) >= WINDOW:
            raise ContextTooLong(f"the prompt has {len(text)} tokens, the window is {WINDOW}")
        self.prompts.append(text)
        return Piece(text, tuple(map(ord, text)), TOKENIZER)

    async def generate(self, context: Context, params: GenerationParams) -> AsyncGenerator[GeneratedSegment, None]:
        self.num_writing += 1
        self.read.append(context.pieces[0].text)
        self.asked.append(params)
        try:
            first, room = len(context.pieces) - 1, params.max_tokens
            last = min(NUM_SEGMENTS, first + params.max_segments) if params.max_segments else NUM_SEGMENTS
            for index in range(first, last):
                await self._hurdles(index)
                segment = self._segment(index, params, room)
                room -= len(segment.token_ids)
                yield GeneratedSegment(segment, self._states(), 1.0, self._logprobs(segment, params))
                if segment.end is not SegmentEnd.BOUNDARY:
                    return
        finally:
            self.num_writing -= 1

    async def tokenize(self, text: str) -> list[Token]:
        return [Token(ord(character), character, i, i + 1) for i, character in enumerate(text)]

    async def score(
        self, context: Context, segments: Sequence[Segment], session: str = "", projection: str = ""
    ) -> list[SegmentScore]:
        self._answer()
        nothing = (0.0,) * (len(SURPRISAL_FEATURES) - 1)
        return [
            SegmentScore(self._states(), (float(index), *nothing), len(segment.token_ids), 1.0)
            for index, segment in enumerate(segments, len(context.pieces) - 1)
        ]

    async def propose(
        self, context: Context, open_ids: Sequence[int], params: GenerationParams, num_tokens: int
    ) -> Proposal:
        """Prefix of the target's segments, so that some proposed tokens are accepted and some are not."""
        self._answer()
        text = f"{Writer.TARGET} {len(context.pieces) - 1} says nothing."[len(open_ids) :] or "?"
        token_ids = tuple(map(ord, text[:num_tokens]))
        certain = [Distribution(struct.pack("<I", token), struct.pack("<f", 1)) for token in token_ids]
        return Proposal(token_ids, tuple(certain), TOKENIZER, 0.0)

    async def verify_tokens(
        self, context: Context, open_ids: Sequence[int], proposal: Proposal, params: GenerationParams
    ) -> VerifiedTokens:
        """Accepts the tokens that it would have written itself, and adds one."""
        self._answer()
        whole = [self._segment(i, params, WINDOW) for i in range(len(context.pieces) - 1, NUM_SEGMENTS)]
        own = [token for segment in whole for token in segment.token_ids][: params.max_tokens]
        wanted = own[len(open_ids) :]
        pairs = zip(proposal.token_ids, wanted, strict=False)
        kept = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        written, segments = own[: len(open_ids) + kept + 1], list[Segment]()
        while whole and len(written) >= len(whole[0].token_ids):
            segments.append(whole.pop(0))
            written = written[len(segments[-1].token_ids) :]
            if len(segments) == params.max_segments:
                return VerifiedTokens(tuple(segments), (), kept, 1.0)
        if written and len(open_ids) + kept + 1 >= len(own):  # the budget
            text = "".join(map(chr, written))
            segments.append(Segment(text, tuple(written), TOKENIZER, self.writer, SegmentEnd.LENGTH))
            written = []
        return VerifiedTokens(tuple(segments), tuple(written), kept, 1.0)

    async def score_choices(
        self, context: Context, question: str, prefill: str, options: Sequence[str], session: str = ""
    ) -> ChoiceScores:
        """The likeliest digit says how many segments there are."""
        self._answer()
        likeliest = str(len(context.pieces) - 1)
        return ChoiceScores(tuple(float(option == likeliest) for option in options), likeliest, 1.0)

    def _segment(self, index: int, params: GenerationParams, room: int) -> Segment:
        says = self.says(self.read[-1], params.grammar) if callable(self.says) else self.says
        if says is not None:
            text, end = says[:room], SegmentEnd.EOS if len(says) <= room else SegmentEnd.LENGTH
            return Segment(text, tuple(map(ord, text)), TOKENIZER, self.writer, end)
        word = int(uniform(params.sampling.seed, "token", index) * 1e6)
        text = f"{self.writer} {index} says {word}."
        end = SegmentEnd.EOS if index == NUM_SEGMENTS - 1 else SegmentEnd.BOUNDARY
        text += "" if end is SegmentEnd.EOS else "\n\n"
        if len(text) >= room:
            text, end = text[:room], SegmentEnd.LENGTH
        return Segment(text, tuple(map(ord, text)), TOKENIZER, self.writer, end)

    def _logprobs(self, segment: Segment, params: GenerationParams) -> tuple[TokenLogprob, ...] | None:
        if params.num_logprobs is None:
            return None
        tokens = [TokenLogprob(token, chr(token).encode(), -0.5) for token in segment.token_ids]
        return tuple(replace(token, alternatives=(token,) * params.num_logprobs) for token in tokens)

    def _states(self) -> States:
        return States(bytes(16), (2, 2), self.model_info.fingerprint)

    async def _hurdles(self, index: int) -> None:
        await asyncio.sleep(0)
        self._answer()
        if index == self.lost_at:
            raise Unavailable(f"the {self.writer} went away")
        if index == self.pause_at:
            self.paused.set()
            await self.resume.wait()

    def _answer(self) -> None:
        raise_anew(self.lost)


class Thinker(FakeModel):
    """Ends its reasoning in the fourth segment."""

    def _segment(self, index: int, params: GenerationParams, room: int) -> Segment:
        segment = super()._segment(index, params, room)
        text = segment.text.replace(" says", "</think> says") if index == 3 else segment.text
        return replace(segment, text=text, token_ids=tuple(map(ord, text)))


class FakeVerifier:
    """Judges by position: every third segment is rejected under any rule."""

    def __init__(self) -> None:
        self.verifier_info = VerifierInfo(
            draft_model=f"fingerprint-of-{Writer.DRAFT}",
            target_model=f"fingerprint-of-{Writer.TARGET}",
            state_convention=STATE_CONVENTION,
            segmentations=tuple(Segmentation),
            alternatives=("last-hidden", "surprisal"),
        )
        self.lost: SemspecError | None = None
        """Raised by every call from now on."""
        self.num_judged = 0
        self.asked_for: list[str] = []
        """Names of probes."""

    async def info(self) -> VerifierInfo:
        raise_anew(self.lost)
        return self.verifier_info

    async def judge(
        self, draft_states: Sequence[States], scores: Sequence[SegmentScore], probes: str = ""
    ) -> list[Judgement]:
        self.asked_for.append(probes)
        raise_anew(self.lost)
        self.num_judged += len(scores)
        return [Judgement(0.5, 0.0 if score.surprisal[0] % 3 == 2 else 0.9) for score in scores]


def raise_anew(error: SemspecError | None) -> None:
    """An error that is raised twice would keep the first traceback."""
    if error is not None:
        raise type(error)(error.message, error.parameter)


@dataclass(frozen=True)
class Fakes:
    """The three fake backends."""

    drafter: FakeModel
    target: FakeModel
    verifier: FakeVerifier
    is_calibrated: bool = True

    @classmethod
    def make(cls, target: FakeModel | None = None, verifier: "FakeVerifier | None" = None) -> "Fakes":
        return cls(FakeModel(Writer.DRAFT), target or FakeModel(Writer.TARGET), verifier or FakeVerifier())

    def with_other_target(self, fingerprint: str) -> "Fakes":
        """The same models with a target of this fingerprint, and all that belongs to it."""
        self.target.model_info = replace(self.target.model_info, fingerprint=fingerprint)
        self.drafter.model_info = replace(self.drafter.model_info, datastore_model=fingerprint)
        self.verifier.verifier_info = replace(self.verifier.verifier_info, target_model=fingerprint)
        return self

    @property
    def backends(self) -> Backends:
        probes, likelihood = self.verifier.verifier_info, None
        if self.is_calibrated:  # for the models that the probes are for
            draft = replace(self.drafter.model_info, fingerprint=probes.draft_model)
            target = replace(self.target.model_info, fingerprint=probes.target_model)
            likelihood = calibration(draft, target, middle=2.5)
        return Backends(self.drafter, self.target, self.verifier, likelihood=likelihood)

    @property
    def num_writing(self) -> int:
        return self.drafter.num_writing + self.target.num_writing
