"""The registry of strategies, the request to the loop, and the loop that runs a strategy.

When the drafter or the verifier becomes unavailable, the loop continues with the target alone.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, fields
from typing import Any, get_args, get_type_hints

from semspec.decoding import (
    likelihood,
    retrieval,
    semantic,
    single,
    spec_reason,
    spec_thinking,
    token_level,
)
from semspec.decoding.protocols import Backends
from semspec.decoding.steps import BackendUnavailable, Progress, Step, write_on
from semspec.decoding.strategy import Option, Strategy
from semspec.errors import ContextTooLong
from semspec.types import (
    NO_PENALTIES,
    Context,
    Event,
    Finished,
    FinishReason,
    Penalties,
    Piece,
    SamplingParams,
    Segmentation,
)

STRATEGIES: dict[str, Strategy] = {
    "semantic": semantic.STRATEGY,
    "likelihood": likelihood.STRATEGY,
    "semantic+token-level": token_level.WITH_SEMANTIC,
    "token-level": token_level.STRATEGY,
    "semantic+retrieval": retrieval.WITH_SEMANTIC,
    "retrieval": retrieval.STRATEGY,
    "spec-reason": spec_reason.STRATEGY,
    "spec-thinking": spec_thinking.STRATEGY,
    "last-hidden": semantic.LAST_HIDDEN,
    "surprisal": semantic.SURPRISAL,
    "random": semantic.RANDOM,
    "target": single.TARGET,
    "draft": single.DRAFT,
}


@dataclass(frozen=True)
class Generation(semantic.Options, likelihood.Options, token_level.Options, retrieval.Options, spec_reason.Options):
    """What to generate, and how. A strategy reads only its own options and ignores the others."""

    context: Context
    """As the target reads it."""
    sampling: SamplingParams
    max_tokens: int = 1024
    """Budget in tokens, each segment counted with the tokenizer of the model that wrote it."""
    strategy: str = "semantic"
    """A key of `STRATEGIES`."""
    segmentation: Segmentation = Segmentation.PARAGRAPH
    num_logprobs: int | None = None
    """See `GenerationParams`."""
    show_drafts: bool = False
    """Emit a `Drafted` event as soon as segments are drafted."""
    session: str = ""
    draft_prompt: Piece | None = None
    """The prompt as the draft reads it, in its own chat template; None: the prompt in `context`."""
    grammar: str = ""
    """See `GenerationParams`; only for strategies that take one."""
    penalties: Penalties = NO_PENALTIES
    """See `GenerationParams`; only for strategies that take grammars."""
    fallback: str | None = None
    """Why the target writes alone from here on; None: the strategy runs."""


@dataclass(frozen=True, slots=True)
class OptionField:
    """A request option of a strategy."""

    type: Any
    default: object
    """A dataclass's field for an option that is itself an object."""
    option: Option | None
    """Description and limits of an option that is a number, a string or a flag; else None."""


def options() -> dict[str, OptionField]:
    """The request options of all strategies by name."""
    options_by_name = {}
    for base in Generation.__bases__:
        hints = get_type_hints(base, include_extras=True)
        for field in fields(base):
            kind, *metadata = get_args(hints[field.name]) or (hints[field.name],)
            options_by_name[field.name] = OptionField(kind, field.default, next(iter(metadata), None))
    return options_by_name


async def decode(generation: Generation, backends: Backends) -> AsyncGenerator[Event, None]:
    """Run the strategy of `generation`: yield the records of kept segments in order, then `Finished`.

    With `show_drafts`, a `Drafted` event precedes the records that decide on its segments; its segments without a
    record were dropped. A context window that fills up ends a generation with the same reason as the token budget.

    Closing the generator cancels all calls of the generation. The same generation on equivalent backends yields the
    same segments, regardless of caching, retries and resumption. Exceptions: `token-level` and `retrieval`, sampled and
    resumed, yield other segments of the same distribution; so does the soft gate, resumed.

    Raises: what the target raises. When the drafter or the verifier fails, the target writes alone instead.
    """
    progress = Progress(generation, generation.context)
    if generation.fallback is None:
        steps = STRATEGIES[generation.strategy].rounds(progress, backends)
    else:
        steps = _alone(progress, backends, generation.fallback)
    try:
        while True:
            try:
                async with aclosing(steps):
                    async for step in steps:
                        progress = progress.past(step)
                        yield step
                break
            except BackendUnavailable as unavailable:
                steps = _alone(progress, backends, str(unavailable))
    except ContextTooLong:
        if not progress.segments:
            raise
    yield Finished(progress.finish_reason or FinishReason.LENGTH)


def _alone(progress: Progress, backends: Backends, fallback: str) -> AsyncGenerator[Step, None]:
    """The rest of the generation by the target; `fallback`: why it writes alone."""
    params = progress.params("target", max_segments=0)
    return write_on(progress, backends.target, params, "write_ms", fallback)
