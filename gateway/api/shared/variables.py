"""Request schemas of the chat template's variables, and of the reasoning effort, which is one of them."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from semspec.gateway.api.shared.fields import REASONING_DEFAULTS, CompatibleRequestModel, encodable

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

    neutral = REASONING_DEFAULTS
    labels = frozenset()

    effort: Effort | None = None
