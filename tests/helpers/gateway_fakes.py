"""Fake models with a fixed number of segments, which tests can make fail or wait."""

import asyncio
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from semspec.decoding import Backends
from semspec.errors import ContextTooLong, InvalidRequest, SemspecError, Unavailable
from semspec.types import (
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
    SegmentScore,
    States,
    TokenIds,
    TokenLogprob,
    VerifierInfo,
    Writer,
    calls_json,
    json_text,
    uniform,
)
from tests.helpers import fakes
from tests.helpers.calibrations import calibration

NUM_SEGMENTS = 6
WINDOW = 2000
NUM_TOKEN_IDS = 500


class FakeModel(fakes.FakeModel):
    """Writes `NUM_SEGMENTS` segments that depend on the seed alone."""

    def __init__(self, writer: Writer) -> None:
        super().__init__(writer, NUM_SEGMENTS)
        self.model_info = replace(
            self.model_info,
            max_context_tokens=WINDOW,
            supports_grammars=True,
            supports_min_p=True,
            supports_penalties=True,
            num_token_ids=NUM_TOKEN_IDS,
        )
        self.lost: SemspecError | None = None
        """Raised by every call from now on."""
        self.lost_at: int | None = None
        """Raised instead of writing this segment."""
        self.pause_at: int | None = None
        """Waits for `resume` before this segment."""
        self.paused = asyncio.Event()
        self.resume = asyncio.Event()
        self.prompts: list[str] = []
        """Encoded texts."""
        self.says: str | Callable[[str, str], str | None] | None = None
        """Text written as the only segment, instead of `NUM_SEGMENTS`; or a function from prompt and grammar to it."""
        self.asked: list[GenerationParams] = []
        """Parameters of each call of `generate`."""
        self.read: list[str] = []
        """The prompts of the contexts it wrote after."""
        self.refusal: Exception | None = None
        """Raised by `encode`."""
        self.before_encode: Callable[[], Awaitable[object]] | None = None
        """What `encode` waits for."""

    @property
    def grammars(self) -> list[str]:
        """Grammar of each call of `generate`."""
        return [params.grammar for params in self.asked]

    async def info(self) -> ModelInfo:
        await self._work()
        return self.model_info

    async def encode(self, prompt: Prompt) -> Piece:
        await self._work()
        if self.before_encode is not None:
            await self.before_encode()
        if self.refusal is not None:
            raise self.refusal
        own = self.model_info.chat_template
        if isinstance(prompt, TokenIds):
            if max(prompt.ids, default=0) >= NUM_TOKEN_IDS:
                raise InvalidRequest(
                    f"a token id is outside the vocabulary of {NUM_TOKEN_IDS} tokens", "prompt"
                )
            prompt = "".join(map(chr, prompt.ids))
        if isinstance(prompt, str):
            text = prompt
        else:
            given = prompt if isinstance(prompt, Conversation) else Conversation(tuple(prompt))
            prompt = given.messages
            roles = (
                f"{own}<{' '.join(filter(None, (turn.role, turn.name, turn.tool_call_id)))}>"
                for turn in prompt
            )
            turns = "".join(
                role + turn.content + calls_json(turn.tool_calls)
                for role, turn in zip(roles, prompt, strict=True)
            )
            text = f"{json_text(given.tools)}{json_text(given.variables)}{turns}"
        if not text.strip() or (not isinstance(prompt, str) and not prompt[-1].content.strip()):
            raise InvalidRequest("the prompt is empty")
        if len(text) >= WINDOW:
            raise ContextTooLong(f"the prompt has {len(text)} tokens, the window is {WINDOW}")
        self.prompts.append(text)
        return Piece(text, tuple(map(ord, text)), fakes.TOKENIZER)

    def generate(
        self, context: Context, params: GenerationParams
    ) -> AsyncGenerator[GeneratedSegment, None]:
        self.read.append(context.pieces[0].text)
        self.asked.append(params)
        return super().generate(context, params)

    async def propose(
        self, context: Context, open_ids: Sequence[int], params: GenerationParams, num_tokens: int
    ) -> Proposal:
        """Prefix of the target's segments, so that some proposed tokens are accepted and some are not."""
        await self._work()
        text = f"{Writer.TARGET} {fakes.num_written(context)} says nothing."[len(open_ids) :] or "?"
        token_ids = tuple(map(ord, text[:num_tokens]))
        return Proposal(
            token_ids, tuple(map(Distribution.certain, token_ids)), fakes.TOKENIZER, 0.0
        )

    def _states(self, context: Context, segment: Segment) -> States:
        """The first number, and a score's first, is the segment's index."""
        numbers = struct.pack("<4f", fakes.num_written(context), 0, 0, 0)
        return States(numbers, (2, 2), self.model_info.fingerprint)

    def _said(self, context: Context, params: GenerationParams) -> str | None:
        return (
            self.says(context.pieces[0].text, params.grammar) if callable(self.says) else self.says
        )

    def _text(self, context: Context, params: GenerationParams) -> str:
        index = fakes.num_written(context)
        word = int(uniform(params.sampling.seed, "token", index) * 1e6)
        said = self._said(context, params)
        return f"{self.writer} {index} says {word}." if said is None else said

    def _is_last(self, context: Context, params: GenerationParams) -> bool:
        return super()._is_last(context, params) or self._said(context, params) is not None

    def _is_over(self, text: str, context: Context, params: GenerationParams) -> bool:
        return text == self._text(context, params)

    def _accepts(self, token: int, own: int, draw: float) -> bool:
        return token == own

    def _logprobs(
        self, segment: Segment, params: GenerationParams
    ) -> tuple[TokenLogprob, ...] | None:
        if params.num_logprobs is None:
            return None
        tokens = [TokenLogprob(token, chr(token).encode(), -0.5) for token in segment.token_ids]
        return tuple(
            replace(token, alternatives=(token,) * params.num_logprobs) for token in tokens
        )

    async def _before_segment(self, context: Context) -> None:
        await self._work()
        index = fakes.num_written(context)
        if index == self.lost_at:
            raise Unavailable(f"the {self.writer} went away")
        if index == self.pause_at:
            self.paused.set()
            await self.resume.wait()

    async def _work(self) -> None:
        raise_anew(self.lost)
        await super()._work()


class Thinker(FakeModel):
    """Ends its reasoning in the fourth segment."""

    def _text(self, context: Context, params: GenerationParams) -> str:
        text = super()._text(context, params)
        return text.replace(" says", "</think> says") if fakes.num_written(context) == 3 else text


class FakeVerifier(fakes.FakeVerifier):
    """Judges by position: every third segment is rejected under any rule."""

    def __init__(self) -> None:
        super().__init__()
        self.lost: SemspecError | None = None
        """Raised by every call from now on."""
        self.asked_for: list[str] = []
        """Names of probes."""

    async def info(self) -> VerifierInfo:
        raise_anew(self.lost)
        return await super().info()

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
        raise copy(error)


@dataclass(frozen=True)
class Fakes:
    """The three fake backends."""

    drafter: FakeModel
    target: FakeModel
    verifier: FakeVerifier
    is_calibrated: bool = True

    @classmethod
    def make(
        cls, target: FakeModel | None = None, verifier: "FakeVerifier | None" = None
    ) -> "Fakes":
        return cls(
            FakeModel(Writer.DRAFT), target or FakeModel(Writer.TARGET), verifier or FakeVerifier()
        )

    def with_other_target(self, fingerprint: str) -> "Fakes":
        """The same models with a target of this fingerprint, and all that belongs to it."""
        own, probes = {"datastore_model": fingerprint}, {"target_model": fingerprint}
        return self.told(target={"fingerprint": fingerprint}, drafter=own, verifier=probes)

    def told(self, **changes: dict[str, Any]) -> "Fakes":
        """The same models, by role with other fields of what they tell of themselves."""
        for role, fields in changes.items():
            fake = getattr(self, role)
            name = "verifier_info" if role == "verifier" else "model_info"
            setattr(fake, name, replace(getattr(fake, name), **fields))
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
