"""The table of strategies, and the loop that runs one of them.

When the drafter or the verifier becomes unavailable, the loop continues with the target alone.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from semspec.decoding import semantic, single, spec_reason, spec_thinking, token_level
from semspec.decoding.generation import Generation, Progress, Step, Strategies
from semspec.decoding.likelihood import strategy as likelihood
from semspec.decoding.protocols import Backends
from semspec.decoding.retrieval import strategy as retrieval
from semspec.decoding.single import written_by_target
from semspec.decoding.steps import BackendUnavailable
from semspec.errors import ContextTooLong
from semspec.types import Event, Finished, FinishReason

STRATEGIES: Strategies = {
    "semantic": semantic.strategy,
    "likelihood": likelihood.strategy,
    "token-level": token_level.strategy,
    "retrieval": retrieval.strategy,
    "spec-reason": spec_reason.strategy,
    "spec-thinking": spec_thinking.strategy,
    "target": single.target,
    "draft": single.draft,
}


async def decode(
    generation: Generation, backends: Backends, strategies: Strategies = STRATEGIES
) -> AsyncGenerator[Event, None]:
    """Run the strategy of `generation`: yield the records of kept segments in order, then `Finished`.

    With `show_drafts`, a `Drafted` event precedes the records that decide on its segments; its segments without a
    record were dropped. A context window that fills up ends a generation with the same reason as the token budget.

    Closing the generator cancels all calls of the generation. The same generation on equivalent backends yields the
    same segments, regardless of caching, retries and resumption. Exceptions: `token-level` and `retrieval`, sampled and
    resumed, yield other segments of the same distribution; so does the soft gate, resumed.

    Raises: InvalidRequest when options contradict the strategy; what the target raises.
    When the drafter or the verifier fails, the target writes alone instead.
    """
    strategy = strategies[generation.strategy](generation)
    progress = Progress(generation, generation.context)
    steps: AsyncGenerator[Step, None]
    if generation.fallback is None:
        steps = strategy.rounds(progress, backends)
    else:
        steps = written_by_target(progress, backends, fallback=generation.fallback)
    try:
        while True:
            try:
                async with aclosing(steps):
                    async for step in steps:
                        progress = progress.past(step)
                        yield step
                break
            except BackendUnavailable as unavailable:
                steps = written_by_target(progress, backends, fallback=str(unavailable))
    except ContextTooLong:
        if not progress.segments:
            raise
    yield Finished(progress.finish_reason or FinishReason.LENGTH)
