"""One model alone: the target as the baseline, the draft as the lower bound."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from semspec.decoding.protocols import Backends
from semspec.decoding.steps import Progress, backend_failures, write_on
from semspec.decoding.strategy import Strategy
from semspec.types import SegmentRecord, Writer


def by_target(progress: Progress, backends: Backends) -> AsyncGenerator[SegmentRecord, None]:
    """The rest of the generation as one stream of the target."""
    return write_on(progress, backends.target, progress.params("target", max_segments=0), "write_ms")


async def by_draft(progress: Progress, backends: Backends) -> AsyncGenerator[SegmentRecord, None]:
    """The rest of the generation as one stream of the draft. Raises: BackendUnavailable."""
    params = progress.params("draft", max_segments=0)
    with backend_failures("draft"):
        async with aclosing(write_on(progress, backends.drafter, params, "draft_ms")) as records:
            async for record in records:
                yield record


TARGET = Strategy(by_target, writers=frozenset({Writer.TARGET}), takes_grammars=True)
DRAFT = Strategy(by_draft, writers=frozenset({Writer.DRAFT}), takes_grammars=True)
