"""Parts of request bodies that several APIs share. Unsupported fields are refused, unless their value has no effect."""

import json
import secrets
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    Tag,
    model_validator,
)
from pydantic_core import CoreSchema

from semspec.errors import InvalidValue, is_utf8
from semspec.types import LEAST_REPETITION, SamplingParams
from semspec_gateway.api.shared.json_size import JsonSize, size_of
from semspec_gateway.options import (
    AcceptanceOptions,
    Defaults,
    RequestModel,
    StrategyOptions,
    Temperature,
    TopP,
    or_default,
)
from semspec_gateway.settings import MAX_STOP_LENGTH, MAX_STOPS

MAX_BIASES = 300
MAX_ITEMS = 2048
"""Maximum number of messages, of parts of a message and of prompts."""
MAX_JSON = JsonSize(strings=32_768, containers=16_384, values=50_000)
"""Limits of JSON that is sent as a text."""
SESSION_NAME = r"^[A-Za-z0-9_.-]{1,128}$"

Neutral = dict[str, tuple[object, ...]]
"""Unsupported fields of an API, with the values that have no effect and so are accepted; null always is."""


def _neutral(names: str, *values: object) -> Neutral:
    return dict.fromkeys(names.split(), values)


NO_DEFAULTS: Neutral = {}
SERVICE_TIERS = ("auto", "default", "fast", "flex", "priority", "scale")
"""OpenAI's tiers, which change the price and the wait, not the answer."""

OPENAI_DEFAULTS: Neutral = {
    **_neutral("audio prediction reasoning_effort thinking_token_budget web_search_options"),
    **_neutral("best_of", 1),
    **_neutral("echo", False),
    **_neutral("function_call", "none"),
    **_neutral("functions tools", []),
    **_neutral("modalities", ["text"]),
    **_neutral("parallel_tool_calls", True, False),
    **_neutral("response_format", {"type": "text"}),
    **_neutral("service_tier", *SERVICE_TIERS),
    **_neutral("suffix", ""),
    **_neutral("tool_choice", "none", "auto"),
    **_neutral("verbosity", "medium"),
    # Fields that vLLM and TGI add.
    **_neutral(
        "chat_template prompt_logprobs structured_outputs tool_prompt truncate_prompt_tokens"
    ),
    **_neutral("add_generation_prompt skip_special_tokens spaces_between_special_tokens", True),
    **_neutral("continue_final_message include_stop_str_in_output use_beam_search", False),
    **_neutral("bad_words stop_token_ids", []),
    **_neutral("chat_template_kwargs", {}),
    **_neutral("length_penalty typical_p", 1),
    **_neutral("priority", 0),
}
"""Unsupported fields of OpenAI's API and of its extensions in vLLM and TGI."""

MESSAGE_DEFAULTS: Neutral = {
    **_neutral("audio"),
    **_neutral("images", []),
    **_neutral("prefix", False),
}
"""Fields of an assistant's message that clients send back without a value."""

CACHE_LABELS = frozenset({"cache_control", "prompt_cache_breakpoint"})
"""Hints where to cache a prompt, which happens anyway."""
MESSAGE_LABELS = CACHE_LABELS | {
    "annotations",
    "id",
    "parsed",
    "phase",
    "provider_specific_fields",
    "reasoning_details",
    "thinking_blocks",
}
"""Fields of earlier answers that add no text to the prompt; they are accepted and ignored."""

TGI_DEFAULTS: Neutral = {
    **_neutral("adapter_id truncate"),
    **_neutral("best_of typical_p", 1),
    **_neutral("decoder_input_details watermark", False),
    **_neutral("frequency_penalty", 0),
}
"""Unsupported fields of TGI's `parameters`."""

RESPONSES_DEFAULTS: Neutral = {
    **_neutral("context_management conversation prompt"),
    **_neutral("background", False),
    **_neutral("service_tier", *SERVICE_TIERS),
    **_neutral("top_logprobs", 0),
    **_neutral("truncation", "disabled", "auto"),  # an input that does not fit is refused
}
"""Unsupported fields of the Responses API."""

REASONING_DEFAULTS: Neutral = {
    **_neutral("generate_summary"),
    **_neutral("context summary", "auto"),  # a summary: the reasoning itself is sent
    **_neutral("mode", "standard"),
}
"""Unsupported fields of `reasoning` in the Responses API."""

LABELS = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "user",
    }
)
"""Fields that only label a request, or hint how long to cache its prompt; they are accepted and ignored."""
RESPONSES_LABELS = LABELS | {"client_metadata", "max_tool_calls"}
"""Labels of the Responses API. `max_tool_calls` limits calls of tools that a server runs, and none are served."""


def encodable(text: str) -> str:
    """Raises: ValueError for a text that has no UTF-8."""
    if not is_utf8(text):
        raise ValueError("the text contains a lone surrogate, which is not valid Unicode")
    return text


def at_most(limit: int) -> BeforeValidator:
    """Refuse an object of more members before any of them is validated, since each may be an error."""

    def check(value: object) -> object:
        if isinstance(value, dict) and len(value) > limit:
            raise ValueError(f"it should have at most {limit} members, not {len(value)}")
        return value

    return BeforeValidator(check)


def items(max_length: int | None = MAX_ITEMS) -> Any:
    """Return the type of a list of at most this many items, of which only the first wrong one is reported."""
    return Field(max_length=max_length, fail_fast=True)


Text = Annotated[str, AfterValidator(encodable)]
Repetition = Annotated[float, Field(ge=LEAST_REPETITION, le=10)]
MaxTokens = Annotated[int, Field(ge=1, lt=1 << 31)]


def parsed_json(text: str) -> Any:
    """Parse a JSON text.

    Raises: ValueError when the text is not JSON, is too large, is nested too deep, or has strings without UTF-8.
    """
    if kind := size_of(text, MAX_JSON.strings).excess(MAX_JSON):
        raise ValueError(f"it holds more than {getattr(MAX_JSON, kind)} {kind}")
    try:
        parsed = json.loads(text)
        encodable(json.dumps(parsed, ensure_ascii=False))
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    return parsed


class CompatibleRequestModel(RequestModel):
    """Accepts an API's unsupported fields if their value has no effect."""

    noop_fields: ClassVar[Mapping[str, Sequence[object]]] = OPENAI_DEFAULTS
    labels: ClassVar[frozenset[str]] = LABELS

    @model_validator(mode="before")
    @classmethod
    def _drop_noops(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {
            name: value for name, value in values.items() if not cls._has_no_effect(name, value)
        }

    @classmethod
    def _has_no_effect(cls, name: str, value: object) -> bool:
        if name in cls.model_fields:
            return False
        return name in cls.labels or (
            name in cls.noop_fields and _is_one_of(value, (None, *cls.noop_fields[name]))
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        described = handler(schema)
        fields = handler.resolve_ref_schema(described)["properties"]
        for name, values in cls.noop_fields.items():
            fields.setdefault(
                name, {"enum": [*values, None], "description": "not supported: only without effect"}
            )
        for name in sorted(cls.labels):
            fields.setdefault(name, {"description": "accepted and ignored"})
        return described


def is_known(name: str) -> bool:
    """Whether one of the APIs has this field, so that only its value is unsupported."""
    known = (
        OPENAI_DEFAULTS,
        MESSAGE_DEFAULTS,
        RESPONSES_DEFAULTS,
        REASONING_DEFAULTS,
        TGI_DEFAULTS,
    )
    return any(name in fields for fields in known)


def _is_one_of(value: object, others: Sequence[object]) -> bool:
    """Whether a JSON value equals one of `others`; in JSON, unlike in Python, false is not 0."""
    return any(
        value == other and isinstance(value, bool) is isinstance(other, bool) for other in others
    )


MAX_VARIABLES, MAX_VARIABLE_LENGTH, MAX_VARIABLE = 32, 1000, 1 << 31
"""Limits of a template's variables: their number, the length of a text, and the largest number."""

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


def _scalar(value: object) -> object:
    if isinstance(value, str) and len(value) <= MAX_VARIABLE_LENGTH:
        return encodable(value)
    is_number = isinstance(value, int | float) and -MAX_VARIABLE <= value <= MAX_VARIABLE
    if not (value is None or is_number):
        raise ValueError(
            f"Input should be a text of at most {MAX_VARIABLE_LENGTH} characters, a number up to 2^31, "
            "true, false or null"
        )
    return value


TemplateVariables = Annotated[
    dict[
        Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")],
        Annotated[Any, AfterValidator(_scalar)],
    ],
    Field(
        max_length=MAX_VARIABLES,
        description="variables of the chat template, by name: a text, a number or a bool",
    ),
    at_most(MAX_VARIABLES),
]


def _strictly_bool(value: object) -> object:
    if value is not False:
        raise ValueError("Input should be false")  # Literal[False] accepts 0
    return value


False_ = Annotated[Literal[False], BeforeValidator(_strictly_bool)]

Stop = Annotated[Text, Field(min_length=1, max_length=MAX_STOP_LENGTH)]


def text_or_list(value: object) -> str:
    """The tag of a text or a list, in angle brackets, so that errors can leave it out of a field's path."""
    return "<list>" if isinstance(value, list) else "<text>"


def type_of(value: object) -> object:
    """Return the `type` of an object in a body, or of its model, which pydantic passes when it serializes it."""
    return value.get("type") if isinstance(value, dict) else getattr(value, "type", None)


def require_type(name: str, expected: str, remedy: str) -> BeforeValidator:
    """Accept only this type of tools or items; `expected`: the types for the error."""

    def check(kind: object) -> object:
        if kind != name:
            raise InvalidValue(f"Input should be {expected}", remedy=remedy)
        return kind

    return BeforeValidator(check)


Stops = Annotated[
    Annotated[Stop, Tag("<text>")] | Annotated[list[Stop], items(MAX_STOPS), Tag("<list>")],
    Discriminator(text_or_list),
]


class SemspecOptions(StrategyOptions):
    """The request's `semspec` object: options beyond OpenAI's API. None selects the gateway's default."""

    strategy: str | None = None
    """One of those that the gateway has."""
    segmentation: Literal["paragraph", "sentence"] | None = None
    strictness: float | None = Field(default=None, ge=0, le=1)
    exact_answer: bool | None = Field(
        default=None,
        description="the target itself writes all text but the reasoning, in every strategy",
    )
    session: str | None = Field(default=None, pattern=SESSION_NAME)
    trace: bool | None = None

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        if self.strictness is not None and self.acceptance != AcceptanceOptions():
            raise InvalidValue(
                "strictness chooses the acceptance rule",
                remedy="give one of strictness and acceptance",
            )
        return self


class StreamOptions(RequestModel):
    """OpenAI's `stream_options`."""

    include_usage: bool | None = None
    include_obfuscation: False_ | None = None
    continuous_usage_stats: bool | None = None
    """vLLM's: accepted, and the counts come once, at the end."""


LogitBias = Annotated[
    dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Annotated[float, Field(ge=-100, le=100)]],
    Field(max_length=MAX_BIASES, description="by token id: what is added to its logit"),
    at_most(MAX_BIASES),
]


class GenerationBody(RequestModel):
    """Body of a request for a text, in any API."""

    stream: bool | None = None
    semspec: Annotated[SemspecOptions, or_default(SemspecOptions)] = SemspecOptions()

    @abstractmethod
    def sampling(self, defaults: Defaults) -> SamplingParams:
        """Return how to draw tokens; `defaults`: the operator's, for fields that the request leaves unset."""


def seed_or_random(seed: int | None) -> int:
    """The client's seed, or a random one."""
    return secrets.randbits(53) if seed is None else seed


class TextRequest(CompatibleRequestModel, GenerationBody):
    """Fields of every request for a text but TGI's, by OpenAI's names."""

    model: str | None = None
    """Null, `tgi` and `dummy` stand for the pair: some clients send them if they are given no name."""
    seed: int | None = Field(default=None, ge=-(1 << 63), lt=1 << 63)
    temperature: Temperature | None = None
    top_p: TopP | None = None

    def sampling(self, defaults: Defaults) -> SamplingParams:
        return SamplingParams(
            temperature=defaults.temperature if self.temperature is None else self.temperature,
            top_p=defaults.top_p if self.top_p is None else self.top_p,
            seed=seed_or_random(self.seed),
        )


class CompletionBody(TextRequest):
    """Fields that chats and plain completions share, but responses do not have."""

    stream_options: StreamOptions | None = None
    n: int | None = Field(default=None, ge=1)
    top_k: int | None = Field(default=None, ge=-1, lt=1 << 31)
    """0 and -1 keep every token."""
    min_p: float | None = Field(default=None, ge=0, le=1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: Repetition | None = None
    logit_bias: LogitBias | None = None
    stop: Stops | None = None
    max_tokens: MaxTokens | None = None
    min_tokens: int | None = Field(default=None, ge=0, lt=1 << 31)
    ignore_eos: bool | None = None
    """True: as `min_tokens` without end."""
    store: False_ | None = None
    """False has no effect in a chat or a plain completion: answers are stored until they expire, to be resumed."""

    def sampling(self, defaults: Defaults) -> SamplingParams:
        plain = super().sampling(defaults)
        return replace(plain, top_k=max(0, self.top_k or 0), min_p=self.min_p or 0.0)
