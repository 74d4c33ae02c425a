"""One request to the loop."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

from semspec.decoding import semantic, spec_reason, token_level
from semspec.types import Context, SamplingParams, Segmentation


@dataclass(frozen=True)
class Generation(semantic.Options, token_level.Options, spec_reason.Options):
    """What to generate, and how. Of the strategies' options, those of other strategies are not read."""

    context: Context
    sampling: SamplingParams
    max_tokens: int = 1024
    """Counted in the tokens of each segment's writer."""
    strategy: str = "semantic"
    """A key of `STRATEGIES`."""
    segmentation: Segmentation = Segmentation.PARAGRAPH
    num_logprobs: int | None = None
    """See `GenerationParams`."""
    show_drafts: bool = False
    """Tell of drafted segments as soon as there are any, by `Drafted` events."""
    session: str = ""


def option_types() -> dict[str, Any]:
    """The annotated type of each option of a strategy, by its name."""
    bases = reversed(Generation.__bases__)
    return {name: kind for options in bases for name, kind in get_type_hints(options, include_extras=True).items()}


def plain_options() -> Iterator[tuple[str, Any, Any]]:
    """(name, annotated type, default) of each option of a strategy that is a number, a text or a flag."""
    defaults = {field.name: field.default for field in fields(Generation)}
    for name, kind in option_types().items():
        if isinstance(defaults[name], int | float | str):
            yield name, kind, defaults[name]
