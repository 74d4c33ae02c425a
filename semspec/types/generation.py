"""Types of a generation: text, sampling, acceptance rules, and the events of the decoding loop."""

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from enum import StrEnum
from math import inf
from typing import Any, Literal

MIN_CONTEXT_TOKENS = 128
"""The smallest context window that a model is served with: a short prompt and one segment."""


class Writer(StrEnum):
    """Who wrote a piece of a context."""

    USER = "user"
    DRAFT = "draft"
    TARGET = "target"


class Segmentation(StrEnum):
    """Where a segment ends."""

    PARAGRAPH = "paragraph"
    """After `\\n\\n`."""
    SENTENCE = "sentence"
    """After sentence-ending `.`, `?` or `!`."""


class SegmentEnd(StrEnum):
    """Why a segment ended."""

    BOUNDARY = "boundary"
    EOS = "eos"
    LENGTH = "length"
    STOP = "stop"
    """At a stop sequence of the request, after the token that completes it."""

    @property
    def is_last(self) -> bool:
        """Return whether nothing follows a segment with this end."""
        return self in (SegmentEnd.EOS, SegmentEnd.STOP)


class FinishReason(StrEnum):
    """Why a generation ended, in OpenAI's terms."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Piece:
    """Text with its writer's token ids.

    A model with the same tokenizer, or ordinary tokens if all ids are, uses the ids. Any other tokenizes the text.
    """

    text: str
    token_ids: tuple[int, ...]
    tokenizer: str
    """Fingerprint of the tokenizer the ids belong to."""

    @property
    def num_bytes(self) -> int:
        """Approximate bytes of memory: a number in a tuple takes 8 bytes, and 32 for itself."""
        return 200 + 40 * len(self.token_ids) + 4 * len(self.text)


def shares_ordinary_tokens(tokenizer: str, other: str) -> bool:
    """Return whether tokenizers with these fingerprints have the same ordinary tokens with the same ids.

    A fingerprint is `ORDINARY.ADDED`: added tokens, such as special tokens, may differ.
    """
    return tokenizer.partition(".")[0] == other.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Segment(Piece):
    """A piece written by a model, up to a boundary, end-of-sequence or a token budget."""

    writer: Writer
    end: SegmentEnd


@dataclass(frozen=True, slots=True)
class Context:
    """Everything before the next segment: the rendered prompt, then the segments kept so far."""

    pieces: tuple[Piece, ...]

    def extended(self, *segments: Segment) -> "Context":
        return Context(self.pieces + segments)


Role = Literal["system", "developer", "user", "assistant", "tool"]


JsonObject = Mapping[str, Any]
"""A JSON object, parsed."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a function in an assistant's turn."""

    id: str
    """Empty: not given."""
    name: str
    arguments: str
    """JSON text as a model wrote it, which may be malformed."""

    @property
    def openai(self) -> dict[str, Any]:
        """The call in OpenAI's format."""
        function = {"name": self.name, "arguments": self.arguments}
        return {**({"id": self.id} if self.id else {}), "type": "function", "function": function}


def json_text(value: object) -> str:
    """Write tools, calls or variables as the wire and the store hold them: JSON, or nothing for an empty value."""
    return json.dumps(value, ensure_ascii=False) if value else ""


def calls_json(calls: Sequence[ToolCall]) -> str:
    """Write calls as a JSON list in OpenAI's format; empty: none."""
    return json_text([call.openai for call in calls])


def read_calls(text: str) -> tuple[ToolCall, ...]:
    """Read what `calls_json` wrote. Raises: ValueError."""
    calls = list[ToolCall]()
    try:
        parsed = json.loads(text or "[]")
        if not isinstance(parsed, list):
            raise TypeError
        for call in parsed:
            function = call["function"]
            calls.append(ToolCall(call.get("id", ""), function["name"], function["arguments"]))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise ValueError("not a JSON list of calls in OpenAI's format") from None
    if not all(isinstance(text, str) for call in calls for text in astuple(call)):
        raise ValueError("a call's id, name and arguments are texts")
    return tuple(calls)


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls in an assistant's turn."""
    tool_call_id: str = ""
    """The call that a tool's message answers; empty: not given."""
    name: str = ""
    """Name of the participant or tool, which the chat template may show; empty: not given."""

    @property
    def num_characters(self) -> int:
        """Characters of the content, and of the calls as JSON."""
        return len(self.content) + len(calls_json(self.tool_calls))


@dataclass(frozen=True, slots=True)
class TokenIds:
    """A prompt as token ids of the model that encodes it."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages, the tools that the assistant may call, and variables of the chat template."""

    messages: tuple[Message, ...]
    tools: tuple[JsonObject, ...] = ()
    """In OpenAI's format."""
    variables: JsonObject = field(default_factory=dict)
    """Scalars by name."""

    @property
    def num_characters(self) -> int:
        """Characters of all messages, and of tools and variables as JSON."""
        num_of_messages = sum(message.num_characters for message in self.messages)
        return num_of_messages + len(json_text(self.tools)) + len(json_text(self.variables))

    def with_known(self, names: Sequence[str]) -> "Conversation":
        """The conversation with only those of its variables that are among `names`."""
        known = {name: value for name, value in self.variables.items() if name in names}
        return replace(self, variables=known)


Prompt = str | TokenIds | Sequence[Message] | Conversation
"""A text to tokenize unchanged, its token ids, or a conversation to render with the chat template."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a text with its character offsets."""

    id: int
    text: str
    start: int
    """Offset of its first character, in characters."""
    stop: int
    """Offset after its last character."""


LEAST_POSITIVE = 1e-6
"""Least temperature above 0, and least `top_p`.

Logits divided by a lower temperature can overflow. A lower `top_p` would change nothing: in a vocabulary of up to a
million tokens, this one already keeps the most probable token alone.
"""
LEAST_REPETITION, MOST_REPETITION = 0.01, 100.0
"""Bounds of `Penalties.repetition`."""
MOST_PENALTY = 1000.0
"""Bound of the other penalties and of biases, of either sign."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters by which tokens are drawn.

    `temperature` 0 is greedy; `min_p` 0, `top_k` 0 and `top_p` 1 disable these filters, which apply in this order.
    """

    temperature: float = 0.6
    top_p: float = 0.95
    top_k: int = 0
    seed: int = 0
    """Selects the random stream: token t of a context is drawn with `uniform(seed, "token", t)`."""
    min_p: float = 0.0
    """Least probability of a token, as a share of that of the most probable one."""


SAMPLING_BOUNDS = {"temperature": (0.0, inf), "top_p": (LEAST_POSITIVE, 1.0), "min_p": (0.0, 1.0)}
"""Range, ends included, of each parameter that is not an integer, as services check it.

Temperatures between 0 and `LEAST_POSITIVE` are refused as well. The gateway's API has narrower ranges.
"""


@dataclass(frozen=True, slots=True)
class Penalties:
    """Changes to the logits before a token is drawn, by earlier tokens; logprobs and scores are computed from logits
    without them. In this order: `logit_bias` is added, `repetition` divides positive logits of tokens in prompt or
    output and multiplies negative ones, `frequency` and `presence` are subtracted, for each occurrence in the output
    and once."""

    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Token ids with what is added to their logits."""

    @property
    def is_neutral(self) -> bool:
        """Return whether nothing changes."""
        return self == NO_PENALTIES


NO_PENALTIES = Penalties()


def derive_seed(seed: int, purpose: str, position: int) -> int:
    """Return a 64-bit seed for the random stream `purpose` at `position`."""
    stream = struct.pack("<Qq", seed, position) + purpose.encode()
    return int.from_bytes(hashlib.blake2b(stream, digest_size=8).digest(), "little")


def uniform(seed: int, purpose: str, position: int) -> float:
    """Return the random number in [0, 1) for these arguments; the same on every machine and every retry."""
    return (derive_seed(seed, purpose, position) >> 11) / (1 << 53)


AcceptanceRule = Literal["sample", "threshold"]


@dataclass(frozen=True, slots=True)
class Acceptance:
    """When a drafted segment is kept, given `ratio` = target_probability / draft_probability. `sample` accepts with
    probability min(1, ratio) (SemanticSpec, Algorithm 1), `threshold` iff ratio >= threshold."""

    rule: AcceptanceRule = "sample"
    threshold: float | None = None
    """None: the strategy's own. `likelihood` keeps a segment iff its probability reaches it, whatever the rule."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Wall time the loop waited for each stage of one segment, in milliseconds, rounded to microseconds."""

    draft_ms: float = 0.0
    read_ms: float = 0.0
    judge_ms: float = 0.0
    write_ms: float = 0.0
    wire_ms: float = 0.0
    """The part of the other four outside engines: transport, queueing and the verifier's computation."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Semantic probabilities of one segment under each model, in [0, 1]."""

    draft_probability: float
    target_probability: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token and the log-probability its writer assigned to it."""

    token_id: int
    data: bytes
    """Its text in UTF-8, empty for end-of-sequence; may be part of a character."""
    logprob: float
    """Natural logarithm of its probability, at temperature 1 over the whole vocabulary."""
    alternatives: tuple["TokenLogprob", ...] = ()
    """The most probable tokens at its position, most probable first; may include the token itself."""


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """One entry of a generation's trace: a kept segment and the decisions on it."""

    index: int
    segment: Segment
    accepted: bool | None
    """True: drafted and accepted. False: rewritten by the target. None: not judged."""
    judgement: Judgement | None = None
    draw: float | None = None
    """The uniform random number that the acceptance rule `sample` compares with the ratio."""
    rejected: Segment | None = None
    """The drafted segment that this segment replaces."""
    num_proposed_tokens: int = 0
    """Tokens proposed to the target in token-level speculation for this segment."""
    num_accepted_tokens: int = 0
    """Number of proposed tokens that the target kept."""
    times: StageTimes = StageTimes()
    fallback: str | None = None
    """Why the target wrote this segment alone, if a backend was unavailable."""
    undrafted: bool = False
    """Whether the target wrote it alone because of load, instead of the strategy's own way."""
    logprobs: tuple[TokenLogprob, ...] | None = None
    """Logprobs of its writer, one per token, if requested."""
    repeats: int | None = None
    """Index of the segment that the drafted one repeats, the record's own if it is a loop in itself, so that the target
    rewrote it, whatever the judgement; None: it repeats nothing. See `semspec.decoding.repeats`."""
    num_cached_tokens: int | None = field(default=None, compare=False)
    """Tokens of the context that the target had cached at its first call for this segment; None: not known."""
    open_piece: Piece | None = None
    """The beginning of the next segment, if the same verification wrote it; the text is empty where the draft reads the
    ids. A generation that is resumed after this segment goes on from there, so that it has the same text."""


@dataclass(frozen=True, slots=True)
class Drafted:
    """Drafted segments before the target scores them."""

    index: int
    """Index of the first segment."""
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a generation."""

    reason: FinishReason


@dataclass(frozen=True, slots=True)
class OpenText:
    """The next text of a segment that its writer has not completed. The record of the segment follows later, and its
    text begins with all that was sent of it: whole characters, and nothing that a later token changes.

    After a retry the text is sent again from the beginning of the segment; `start` shows what is known already.
    """

    text: str
    start: int = 0
    """Position of the text in the segment, in characters."""
    token_id: int = 0
    """The last token of the text."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Logprobs of the segment's next tokens, if requested."""
    first_logprob: int = 0
    """Index in the segment of the first of `logprobs`."""
    fallback: str | None = None
    """See `SegmentRecord.fallback`."""


Event = SegmentRecord | OpenText | Drafted | Finished
