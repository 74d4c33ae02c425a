"""The registry of strategies, one request to the loop, and the loop around every strategy: its steps, the target alone
once a backend is lost, and the end.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, fields
from typing import Any, get_args, get_type_hints

from semspec.decoding import auto, semantic, single, spec_reason, spec_thinking, token_level
from semspec.decoding.protocols import Backends
from semspec.decoding.steps import BackendUnavailable, Progress, write_on
from semspec.decoding.strategy import Option, Strategy
from semspec.errors import ContextTooLong
from semspec.types import Context, Event, Finished, FinishReason, SamplingParams, Segmentation

STRATEGIES: dict[str, Strategy] = {
    "semantic": semantic.STRATEGY,
    "auto": auto.STRATEGY,
    "semantic+token-level": token_level.WITH_SEMANTIC,
    "token-level": token_level.STRATEGY,
    "spec-reason": spec_reason.STRATEGY,
    "spec-thinking": spec_thinking.STRATEGY,
    "last-hidden": semantic.LAST_HIDDEN,
    "surprisal": semantic.SURPRISAL,
    "random": semantic.RANDOM,
    "target": single.TARGET,
    "draft": single.DRAFT,
}


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


@dataclass(frozen=True, slots=True)
class OptionField:
    """A request option of a strategy."""

    type: Any
    default: object
    """A dataclass's field for an option that is itself an object."""
    option: Option | None
    """Of an option that is a number, a text or a flag."""


def options() -> dict[str, OptionField]:
    """The request options of all strategies, by their names."""
    found = {}
    for base in Generation.__bases__:
        hints = get_type_hints(base, include_extras=True)
        for field in fields(base):
            kind, *metadata = get_args(hints[field.name]) or (hints[field.name],)
            found[field.name] = OptionField(kind, field.default, next(iter(metadata), None))
    return found


async def decode(generation: Generation, backends: Backends) -> AsyncGenerator[Event, None]:
    """Run `generation` by its strategy: records of kept segments in order, then `Finished`.

    With `show_drafts`, `Drafted` goes before the records that decide on what it holds; segments of it that no record
    mentions were dropped. A window that fills up on the way ends a generation as its budget does.

    Closing the generator cancels whatever the models do for it. The same generation on equivalent roles yields the same
    segments, whatever was cached, retried or resumed; but `token-level`, when sampled and resumed, yields others of
    the same distribution, and `auto` goes by the time things take.

    Raises: what the target raises; the loss of the drafter or the verifier only makes the target write alone.
    """
    progress = Progress(generation, generation.context)
    steps = STRATEGIES[generation.strategy].rounds(progress, backends)
    try:
        while True:
            try:
                async with aclosing(steps):
                    async for step in steps:
                        progress = progress.past(step)
                        yield step
                break
            except BackendUnavailable as lost:
                params = progress.params("target", max_segments=0)
                steps = write_on(progress, backends.target, params, "write_ms", fallback=str(lost))
    except ContextTooLong:
        if not progress.segments:
            raise
    yield Finished(progress.finish_reason or FinishReason.LENGTH)
