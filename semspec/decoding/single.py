"""One model alone: the target as the baseline, the draft as the lower bound."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from semspec.decoding.protocols import Backends
from semspec.decoding.steps import Progress, backend_failures, write_on
from semspec.decoding.strategy import Strategy
from semspec.types import SegmentRecord, Writer


def target_rounds(progress: Progress, backends: Backends) -> AsyncGenerator[SegmentRecord, None]:
    """The rest of the generation as one stream of the target."""
    return write_on(progress, backends.target, progress.params("target", max_segments=0), "write_ms")


async def draft_rounds(progress: Progress, backends: Backends) -> AsyncGenerator[SegmentRecord, None]:
    """The rest of the generation as one stream of the draft. Raises: BackendUnavailable."""
    params = progress.params("draft", max_segments=0)
    with backend_failures("draft"):
        async with aclosing(write_on(progress, backends.drafter, params, "draft_ms")) as records:
            async for record in records:
                yield record


TARGET = Strategy(target_rounds, writers=frozenset({Writer.TARGET}), supports_grammars=True)
DRAFT = Strategy(draft_rounds, writers=frozenset({Writer.DRAFT}), supports_grammars=True)
