"""One model alone: the target as the baseline, the draft as the lower bound."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Literal

from semspec.decoding.generation import Generation, Progress, Strategy
from semspec.decoding.protocols import Backends
from semspec.decoding.steps import backend_failures, write_on
from semspec.types import SegmentRecord, Writer


def written_by_target(
    progress: Progress, backends: Backends, max_segments: Literal[0, 1] = 0, fallback: str | None = None
) -> AsyncGenerator[SegmentRecord, None]:
    """The next segment, or with `max_segments` 0 the rest of the generation, by plain decoding of the target.

    `fallback`: why it takes over, if it does.
    """
    return write_on(progress, backends.target, progress.params("target", max_segments), "write_ms", fallback)


async def _written_by_draft(progress: Progress, backends: Backends) -> AsyncGenerator[SegmentRecord, None]:
    """The rest of the generation as one stream of the draft. Raises: BackendUnavailable."""
    params = progress.params("draft", max_segments=0)
    with backend_failures("draft"):
        async with aclosing(write_on(progress, backends.drafter, params, "draft_ms")) as records:
            async for record in records:
                yield record


def target(generation: Generation, max_segments: Literal[0, 1] = 0) -> Strategy:
    rounds = partial(written_by_target, max_segments=max_segments)
    return Strategy("target", rounds, generation.options, frozenset({Writer.TARGET}), supports_grammars=True)


def draft(generation: Generation) -> Strategy:
    writers = frozenset({Writer.DRAFT})
    return Strategy("draft", _written_by_draft, generation.options, writers, supports_grammars=True)
