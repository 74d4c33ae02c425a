"""What a call asks of the steps of a model, beside the token ids that they read, and what comes back."""

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
    """Segments after the tokens, as `GeneratedSegment`s."""

    params: GenerationParams
    is_after_end: bool
    """The context is `ended_by_look_ahead`."""
    written: tuple[int, ...] = ()
    """The tokens of the context that grammar and penalties count as written."""
    prompt: str = ""
    """The end of the prompt's text, by which reasoning is told apart where stops are looked for."""
    output: str = ""
    """The text of the context's segments, where stops are looked for."""
    streams_text: bool = False
    """Whether `OpenText`s are wanted, too."""
    kind: Literal["generate"] = "generate"

    @property
    def stops(self) -> StopSearch | None:
        """A search for the stops in what is written."""
        return stops_after(self.prompt, self.output, self.params)

    @property
    def is_shaped(self) -> bool:
        """Whether logits are changed before a draw."""
        params = self.params
        return bool(params.grammar) or params.min_tokens > 0 or not params.penalties.is_neutral

    @property
    def projection(self) -> str:
        return self.params.projection


@dataclass(frozen=True, slots=True)
class Propose:
    """A `Proposal` of up to `num_tokens` tokens after the tokens."""

    sampling: SamplingParams
    num_tokens: int
    kind: Literal["propose"] = "propose"


@dataclass(frozen=True, slots=True)
class Score:
    """The `SegmentScore`s of the segments, of these lengths, that the tokens end with."""

    lengths: tuple[int, ...]
    projection: str = ""
    """Digest of the projection to apply to the states."""
    kind: Literal["score"] = "score"


@dataclass(frozen=True, slots=True)
class Verify:
    """Speculative sampling of `drafted`, of which the first `num_fed` are the last of the tokens, as `Verified`."""

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
    """`VerifiedTokens.state` for each of the tokens as the last; empty if not at hand."""


Request = Generate | Propose | Score | Verify


def num_following(request: Request) -> int:
    """Number of the last tokens, after the context, that a request reads."""
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
    """Tokens that the engine had cached when the request began; None: not known."""

    def joined(self, other: "Result") -> "Result | None":
        """Return this result and the next one as one, if both are texts of one segment."""
        if not (isinstance(self.value, OpenText) and isinstance(other.value, OpenText)):
            return None
        text, logprobs = (
            self.value.text + other.value.text,
            self.value.logprobs + other.value.logprobs,
        )
        value = replace(self.value, text=text, logprobs=logprobs, token_id=other.value.token_id)
        return replace(self, value=value)


class Writing:
    """The segments of a `Generate`, from its tokens. Without states, a segment is complete with its last token; with
    states, when that token is fed."""

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
        self._noted: TokenLogprob | None = None
        self._logprobs: list[TokenLogprob] = []
        self.is_done = False

    def note(self, logits: Tensor, token: int) -> None:
        """`token`, which `take` takes next, was drawn after `logits` `[vocab_size]`."""
        if self._params.num_logprobs is not None:
            self._noted = token_logprob(self._tokenizer, logits, token, self._params.num_logprobs)

    def take(self, token: int) -> list[GeneratedSegment]:
        """Go on with the next token, all before it being fed. Returns the segments that are complete, without states:
        one at most if states are wanted. If it is not done, `token` is to be fed."""
        segmenter, complete = self._segmenter, [self._closed] if self._closed else []
        self._closed = None
        if not segmenter.is_done and (segment := segmenter.end_before(token)):
            complete.append(segment)
        generated = [self._generated(one) for one in complete]
        if not segmenter.is_done:
            if self._noted:
                self._logprobs.append(self._noted)
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
        told = None if self._params.num_logprobs is None else tuple(self._logprobs)
        self._logprobs = []
        self._num_sent = self._num_logprobs_sent = 0
        return GeneratedSegment(segment, None, 0.0, told)
