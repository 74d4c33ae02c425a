"""Parts of request bodies that several APIs share, and unsupported fields that are accepted with values without
effect."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema, model_validator

from semspec.text import is_utf8
from semspec.types import LEAST_REPETITION

OPENAI_DEFAULTS: dict[str, tuple[object, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "logit_bias": ({}, []),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "presence_penalty": (0,),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
    # Fields of an assistant's message as the openai client sends it back.
    "annotations": ([],),
    "refusal": (),
    # Fields that vLLM and TGI add.
    "add_generation_prompt": (True,),
    "bad_words": ([],),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "priority": (0,),
    "prompt_logprobs": (),
    "repetition_penalty": (1,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "stop_token_ids": ([],),
    "structured_outputs": (),
    "tool_prompt": (),
    "truncate_prompt_tokens": (),
    "typical_p": (1,),
    "use_beam_search": (False,),
}
"""Unsupported fields of OpenAI's API and of its extensions in vLLM and TGI, with the values (beside null) that have no
effect and are therefore accepted."""

SUPPORTED_IN_CHATS = frozenset({"parallel_tool_calls", "response_format", "tool_choice", "tools"})
"""Fields of `OPENAI_DEFAULTS` that a chat serves with any value."""

TGI_DEFAULTS: dict[str, tuple[object, ...]] = {
    "adapter_id": (),
    "best_of": (1,),
    "decoder_input_details": (False,),
    "frequency_penalty": (0,),
    "truncate": (),
    "typical_p": (1,),
    "watermark": (False,),
}
"""Unsupported parameters of TGI, with the values (beside null) that have no effect and are therefore accepted."""

RESPONSES_DEFAULTS: dict[str, tuple[object, ...]] = {
    "background": (False,),
    "context_management": (),
    "conversation": (),
    "include": ([],),
    "max_tool_calls": (),
    "prompt": (),
    "service_tier": ("auto", "default"),
    "store": (True,),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
"""Unsupported fields of the Responses API, with the values (beside null) that have no effect and are accepted."""

REASONING_DEFAULTS: dict[str, tuple[object, ...]] = {
    "context": ("auto",),
    "generate_summary": (),
    "mode": ("standard",),
    "summary": ("auto",),  # the reasoning itself is sent
}
"""Unsupported fields of the Responses API's `reasoning`, with the values (beside null) that have no effect."""

LABELS = frozenset({"metadata", "prompt_cache_key", "safety_identifier", "user"})
"""Fields that only label a request; they are accepted and ignored."""


def encodable(text: str) -> str:
    """Raises: ValueError for a text that has no UTF-8."""
    if not is_utf8(text):
        raise ValueError("the text contains a lone surrogate, which is not valid Unicode")
    return text


Text = Annotated[str, AfterValidator(encodable)]


Repetition = Annotated[float, Field(ge=LEAST_REPETITION, le=10)]


def parsed_json(text: str) -> Any:
    """Raises: ValueError when the text is no JSON, is nested too deep, or has strings without UTF-8."""
    try:
        parsed = json.loads(text)
        encodable(json.dumps(parsed, ensure_ascii=False))
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    return parsed


class RequestModel(BaseModel):
    """A part of a request's body. Unknown fields and other types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class CompatibleRequestModel(RequestModel):
    """Accepts an API's unsupported fields if their value has no effect."""

    noop_fields: ClassVar[Mapping[str, Sequence[object]]] = OPENAI_DEFAULTS
    labels: ClassVar[frozenset[str]] = LABELS

    @model_validator(mode="before")
    @classmethod
    def _drop_noops(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {name: value for name, value in values.items() if not cls._has_no_effect(name, value)}

    @classmethod
    def _has_no_effect(cls, name: str, value: object) -> bool:
        if name in cls.noop_fields:
            return value is None or _is_one_of(value, cls.noop_fields[name])
        return name in cls.labels


def is_known(name: str) -> bool:
    """Whether one of the APIs has this field, so that only its value is unsupported."""
    return any(name in fields for fields in (OPENAI_DEFAULTS, RESPONSES_DEFAULTS, REASONING_DEFAULTS, TGI_DEFAULTS))


def _is_one_of(value: object, others: Sequence[object]) -> bool:
    """Whether a JSON value equals one of `others`; in JSON, unlike in Python, false is not 0."""
    return any(value == other and isinstance(value, bool) is isinstance(other, bool) for other in others)


MAX_VARIABLES, MAX_VARIABLE_LENGTH, MAX_VARIABLE = 32, 1000, 1 << 31
"""Their number, the length of a text and the largest number."""

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
        Annotated[
            Any,
            AfterValidator(_scalar),
            WithJsonSchema(
                {
                    "anyOf": [
                        {"type": "string", "maxLength": MAX_VARIABLE_LENGTH},
                        {"type": "number", "minimum": -MAX_VARIABLE, "maximum": MAX_VARIABLE},
                        {"type": "boolean"},
                        {"type": "null"},
                    ]
                }
            ),
        ],
    ],
    Field(max_length=MAX_VARIABLES, description="variables of the chat template, by name"),
]


class ReasoningOptions(CompatibleRequestModel):
    """The Responses API's `reasoning`."""

    noop_fields = REASONING_DEFAULTS
    labels = frozenset()

    effort: Effort | None = None
