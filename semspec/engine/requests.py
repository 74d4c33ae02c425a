"""Requests of calls to a model, apart from the token ids that they read, and their results."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from semspec.engine.logits import token_logprob
from semspec.engine.segmentation import TokenSegmenter, stops_after
from semspec.engine.tokenization import ModelTokenizer
from semspec.stops import StopSearch
from semspec.types import (
    Distribution,
    GeneratedSegment,
    GenerationParams,
    OpenText,
    SamplingParams,
    Segment,
    TokenLogprob,
    Writer,
)


@dataclass(frozen=True, slots=True)
class Generate:
    """Generate segments after the tokens. Results: `GeneratedSegment`s, and `OpenText`s if `streams_text`."""

    params: GenerationParams
    is_after_end: bool
    """Whether the context is `ended_by_look_ahead`."""
    written: tuple[int, ...] = ()
    """The tokens of the context that grammar and penalties count as part of the output."""
    prompt: str = ""
    """The end of the prompt's text, which shows whether the output starts as reasoning; for the search for stops."""
    output: str = ""
    """The text of the context's segments, for the search for stops."""
    streams_text: bool = False
    """Whether the text of segments is wanted before they are complete."""
    kind: Literal["generate"] = "generate"

    @property
    def stops(self) -> StopSearch | None:
        """A search for stop sequences in the generated text; None if there are none."""
        return stops_after(self.prompt, self.output, self.params)

    @property
    def changes_logits(self) -> bool:
        """Whether a `LogitsProcessor` is needed."""
        params = self.params
        return bool(params.grammar) or params.min_tokens > 0 or not params.penalties.is_neutral

    @property
    def projection(self) -> str:
        return self.params.projection


@dataclass(frozen=True, slots=True)
class Propose:
    """Draft up to `num_tokens` tokens after the tokens. Result: a `Proposal`."""

    sampling: SamplingParams
    num_tokens: int
    kind: Literal["propose"] = "propose"


@dataclass(frozen=True, slots=True)
class Score:
    """Score the segments that the tokens end with. Result: a list of `SegmentScore`s."""

    lengths: tuple[int, ...]
    """Number of tokens of each segment."""
    projection: str = ""
    """Digest of the projection to apply to the states; empty: none."""
    kind: Literal["score"] = "score"


@dataclass(frozen=True, slots=True)
class Verify:
    """Verify `drafted` by speculative sampling; the tokens end with the first `num_fed` of them. Result: `Verified`."""

    drafted: tuple[int, ...]
    num_fed: int
    distributions: tuple[Distribution, ...]
    sampling: SamplingParams
    is_after_end: bool
    state_layer: int | None = None
    kind: Literal["verify"] = "verify"


@dataclass(frozen=True, slots=True)
class Verified:
    """The tokens of a verification, not yet split into segments."""

    token_ids: tuple[int, ...]
    """The accepted tokens and one recovered or bonus token."""
    states: tuple[bytes, ...] = ()
    """`VerifiedTokens.state` if the token at the same index is the last one; empty if not available."""


Request = Generate | Propose | Score | Verify


def num_following(request: Request) -> int:
    """Return how many of the tokens that a request reads follow its context."""
    match request:
        case Score(lengths=lengths):
            return sum(lengths)
        case Verify(num_fed=num_fed):
            return num_fed
    return 0


@dataclass(frozen=True, slots=True)
class Result:
    """One result of a request."""

    value: Any
    duration_ms: float
    num_cached_tokens: int | None
    """Tokens in the engine's cache when the request began; None: not known."""

    def measured(self, part: Any) -> Any:
        """Return a part of `value` with the duration and the number of cached tokens of this result."""
        return replace(part, duration_ms=self.duration_ms, num_cached_tokens=self.num_cached_tokens)

    def joined(self, other: "Result") -> "Result | None":
        """Return one result in place of this one and the next; None unless both are texts of one segment."""
        if not (isinstance(self.value, OpenText) and isinstance(other.value, OpenText)):
            return None
        value = replace(
            self.value,
            text=self.value.text + other.value.text,
            logprobs=self.value.logprobs + other.value.logprobs,
            token_id=other.value.token_id,
        )
        return replace(self, value=value)


class GenerationState:
    """Turns the tokens of a `Generate` into segments.

    Without states, a segment is complete with its last token; with states, once that token is fed.
    """

    def __init__(
        self, tokenizer: ModelTokenizer, writer: Writer, request: Generate, context: Sequence[int]
    ) -> None:
        self._tokenizer, self._params = tokenizer, request.params
        self._segmenter = TokenSegmenter(
            tokenizer,
            writer,
            request.params,
            context,
            stops=request.stops,
            follows_text=request.streams_text,
        )
        self._num_sent = self._num_logprobs_sent = 0
        """Characters and logprobs of the open segment that `open_text` has returned."""
        self._closed: Segment | None = None
        """A segment whose last token is not fed yet."""
        self._next_logprob: TokenLogprob | None = None
        self._logprobs: list[TokenLogprob] = []
        self.is_done = False

    def note(self, logits: Tensor, token: int) -> None:
        """Record the logprobs of `token`, which was drawn from `logits` `[vocab_size]`, before `take`."""
        if self._params.num_logprobs is not None:
            self._next_logprob = token_logprob(
                self._tokenizer, logits, token, self._params.num_logprobs
            )

    def take(self, token: int) -> list[GeneratedSegment]:
        """Add the next token, once all tokens before it are fed. Return the segments that are complete.

        They have no states; if states are wanted, there is at most one. Unless `is_done`, `token` must be fed next.
        """
        segmenter, complete = self._segmenter, [self._closed] if self._closed else []
        self._closed = None
        if not segmenter.is_done and (segment := segmenter.end_before(token)):
            complete.append(segment)
        generated = [self._generated(segment) for segment in complete]
        if not segmenter.is_done:
            if self._next_logprob:
                self._logprobs.append(self._next_logprob)
            segment = segmenter.append(token)
            if segment and self._params.want_states:
                self._closed = segment
            elif segment:
                generated.append(self._generated(segment))
        self.is_done = segmenter.is_done and self._closed is None
        return generated

    def open_text(self) -> OpenText | None:
        """Return the text of the open segment since the last call; None if there is none."""
        text = self._segmenter.open_text
        if len(text) <= self._num_sent:
            return None
        start, first = self._num_sent, self._num_logprobs_sent
        self._num_sent, self._num_logprobs_sent = len(text), len(self._logprobs)
        token_id, logprobs = self._segmenter.open_ids[-1], tuple(self._logprobs[first:])
        return OpenText(text[start:], start, token_id, logprobs, first)

    def _generated(self, segment: Segment) -> GeneratedSegment:
        logprobs = None if self._params.num_logprobs is None else tuple(self._logprobs)
        self._logprobs = []
        self._num_sent = self._num_logprobs_sent = 0
        return GeneratedSegment(segment, None, 0.0, logprobs)
