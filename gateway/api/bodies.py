"""Request schemas of OpenAI's and TGI's APIs. Unsupported fields are rejected by name."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    create_model,
    model_validator,
)

from semspec.gateway.settings import MAX_LOGPROBS, MAX_STOP_LENGTH, MAX_STOPS, PLAIN_OPTIONS, StrategyName
from semspec.types import MAX_SCORE, AcceptanceRule, ScoreMethod

NEUTRAL: dict[str, tuple[object, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    # Fields of an assistant's message as the openai client sends it back.
    "annotations": ([],),
    "refusal": (),
    "tool_calls": ([],),
}
"""Unsupported fields of OpenAI's API, with the values (beside null) that have no effect and are therefore accepted."""

LABELS = frozenset({"metadata", "prompt_cache_key", "safety_identifier", "user"})
"""Fields that only label a request; they are accepted and ignored."""


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("the text contains a lone surrogate, which is not valid Unicode") from None
    return text


Text = Annotated[str, AfterValidator(_encodable)]
SESSION_NAME = r"^[A-Za-z0-9_.-]{1,128}$"


Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH), AfterValidator(_encodable)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Tolerant(Strict):
    """Accepts an API's unsupported fields if their value has no effect."""

    neutral: ClassVar[Mapping[str, Sequence[object]]] = NEUTRAL
    labels: ClassVar[frozenset[str]] = LABELS

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {name: value for name, value in values.items() if not cls._has_no_effect(name, value)}

    @classmethod
    def _has_no_effect(cls, name: str, value: object) -> bool:
        if name in cls.neutral:
            return value is None or _is_one_of(value, cls.neutral[name])
        return name in cls.labels


def _strictly_bool(value: object) -> object:
    if not isinstance(value, bool):
        raise ValueError("Input should be false")  # Literal[False] accepts 0
    return value


False_ = Annotated[Literal[False], BeforeValidator(_strictly_bool)]


def _is_one_of(value: object, others: Sequence[object]) -> bool:
    """Whether a JSON value equals one of `others`; in JSON, unlike in Python, false is not 0."""
    return any(value == other and isinstance(value, bool) is isinstance(other, bool) for other in others)


def is_known_field(name: str) -> bool:
    """Whether OpenAI's API has this field, so that only its value is unsupported."""
    return name in NEUTRAL


class TextPart(Strict):
    """A text part of a message's content."""

    type: Literal["text"]
    text: Text


def _text_or_list(value: object) -> str:
    return "<list>" if isinstance(value, list) else "<text>"


Content = Annotated[
    Annotated[Text, Tag("<text>")] | Annotated[list[TextPart], Tag("<list>")], Discriminator(_text_or_list)
]
"""Discriminator tags are in angle brackets so that error messages can leave them out of a field's path."""

Stops = Annotated[
    Annotated[Stop, Tag("<text>")] | Annotated[list[Stop], Field(max_length=MAX_STOPS), Tag("<list>")],
    Discriminator(_text_or_list),
]


class ChatMessage(Tolerant):
    """One text message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    name: None = None
    reasoning: Text | None = None
    reasoning_content: Text | None = None
    """Past reasoning is accepted and dropped from the prompt, as in the chat templates of reasoning models."""

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class AcceptanceOptions(Strict):
    """When a drafted segment is accepted: with probability min(1, ratio), or iff the ratio reaches `threshold`."""

    rule: AcceptanceRule | None = None
    threshold: float | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _threshold_is_used(self) -> Self:
        if self.rule == "sample" and self.threshold is not None:
            raise ValueError("the rule 'sample' takes no threshold; leave it out or set rule to 'threshold'")
        return self


class ScoringOptions(Strict):
    """`spec-reason` keeps a step iff the target's score of it reaches `threshold`."""

    method: ScoreMethod | None = None
    threshold: float | None = Field(default=None, ge=0, le=MAX_SCORE)


_FIELDS: dict[str, Any] = {
    name: (found.type | None, Field(default=None, ge=option.ge, le=option.le))
    for name, (found, option) in PLAIN_OPTIONS.items()
}
_Options: Any = create_model("_Options", __base__=Strict, **_FIELDS)


class Extension(_Options):
    """The request's `semspec` object: options beyond OpenAI's API. None selects the gateway's default."""

    strategy: StrategyName | None = None
    segmentation: Literal["paragraph", "sentence"] | None = None
    acceptance: AcceptanceOptions = AcceptanceOptions()
    strictness: float | None = Field(default=None, ge=0, le=1)
    scoring: ScoringOptions = ScoringOptions()
    session: str | None = Field(default=None, pattern=SESSION_NAME)
    trace: bool = False

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        if self.strictness is not None and self.acceptance != AcceptanceOptions():
            raise ValueError("strictness chooses the acceptance rule; give one of strictness and acceptance")
        return self


class StreamOptions(Strict):
    """OpenAI's `stream_options`."""

    include_usage: bool = False
    include_obfuscation: False_ | None = None


class GenerationRequest(Tolerant):
    """Fields that chat and plain completions share."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(default=None, ge=1)
    seed: int | None = Field(default=None, ge=-(1 << 63), lt=1 << 63)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, lt=1 << 31)
    """0 and -1 keep every token."""
    stop: Stops | None = None
    max_tokens: int | None = Field(default=None, ge=1, lt=1 << 31)
    semspec: Extension = Extension()


class ChatRequest(GenerationRequest):
    """Body of `POST /v1/chat/completions`."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1, lt=1 << 31)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)


class CompletionRequest(GenerationRequest):
    """Body of `POST /v1/completions`."""

    prompt: Text
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)


TGI_NEUTRAL: dict[str, tuple[object, ...]] = {
    "adapter_id": (),
    "best_of": (1,),
    "decoder_input_details": (False,),
    "frequency_penalty": (0,),
    "grammar": (),
    "repetition_penalty": (1,),
    "truncate": (),
    "typical_p": (1,),
    "watermark": (False,),
}
"""Unsupported parameters of TGI, with the values (beside null) that have no effect and are therefore accepted."""


def is_known_parameter(name: str) -> bool:
    """Whether TGI has this parameter, so that only its value is unsupported."""
    return name in TGI_NEUTRAL


class TgiParameters(Tolerant):
    """TGI's `parameters`."""

    neutral = TGI_NEUTRAL
    labels = frozenset()

    do_sample: bool | None = None
    max_new_tokens: int | None = Field(default=None, ge=1, lt=1 << 31)
    return_full_text: bool | None = None
    stop: list[Stop] | None = Field(default=None, max_length=MAX_STOPS)
    seed: int | None = Field(default=None, ge=0, lt=1 << 63)
    temperature: float | None = Field(default=None, gt=0, le=2)
    top_k: int | None = Field(default=None, ge=1, lt=1 << 31)
    top_p: float | None = Field(default=None, gt=0, le=1)
    details: bool | None = None
    top_n_tokens: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)

    @property
    def is_greedy(self) -> bool:
        """TGI samples if `do_sample` is set or if any sampling parameter is."""
        filters = self.top_k is not None or self.top_p not in (None, 1)
        return not (self.do_sample or filters or self.temperature not in (None, 1))


class TgiRequest(Strict):
    """Body of `POST /`, `/generate` and `/generate_stream`."""

    inputs: Text = Field(min_length=1)
    parameters: Annotated[TgiParameters, BeforeValidator(lambda given: {} if given is None else given)] = (
        TgiParameters()
    )
    stream: bool | None = None
    semspec: Extension = Extension()


class TokenizeRequest(Strict):
    """Body of `POST /tokenize`."""

    inputs: Text
    add_special_tokens: False_ | None = None
