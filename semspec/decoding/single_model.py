"""The strategies `target` and `draft`: one of the models alone."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Literal

from semspec.decoding.backends import Backends
from semspec.decoding.generation import Options, Progress, Step, Strategy
from semspec.decoding.steps import backend_failures, write_by_target, write_records
from semspec.types import Writer


def target(options: Options, max_segments: Literal[0, 1] = 0) -> Strategy:
    """The target alone: the baseline."""
    rounds = partial(write_by_target, max_segments=max_segments)
    writers = frozenset({Writer.TARGET})
    return Strategy("target", rounds, options, writers, is_exact=True, supports_grammars=True)


def draft(options: Options) -> Strategy:
    """The draft alone: the lower bound."""
    writers = frozenset({Writer.DRAFT})
    return Strategy("draft", _write_by_draft, options, writers, supports_grammars=True)


async def _write_by_draft(progress: Progress, backends: Backends) -> AsyncGenerator[Step, None]:
    """The rest of the generation as one stream of the draft. Raises: BackendUnavailable."""
    params = progress.params("draft", max_segments=0)
    with backend_failures("draft"):
        async with aclosing(
            write_records(progress, backends.drafter, params, "draft_ms")
        ) as records:
            async for record in records:
                yield record
