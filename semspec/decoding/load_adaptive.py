"""Load-adaptive drafting: under load, the target writes segments alone instead of drafting them.

may the next segment be drafted? -> the strategy goes on; else the target writes until drafting is allowed again.

A change cancels the calls under way after a kept segment, and goes on from the context alone, as a resumed generation
does. The target's own text is what each strategy falls back to: for an exact strategy the distribution of the output
stays the same; for a lossy one it moves towards the target's. Which segments are drafted depends on the load, so a seed
no longer determines the output.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace

from semspec.decoding.backends import Backends
from semspec.decoding.generation import Progress, Rounds, Step
from semspec.decoding.steps import write_by_target
from semspec.types import SegmentRecord

ShouldDraft = Callable[[], bool]
"""Whether the next segment may be drafted. It may be asked more than once for a segment, with the same answer until the
segment's record was yielded."""


async def rounds(
    progress: Progress, backends: Backends, drafted: Rounds, should_draft: ShouldDraft
) -> AsyncGenerator[Step, None]:
    """Run `drafted` while segments may be drafted; meanwhile the target writes, and its records are `undrafted`.

    A generation that is resumed in the middle of a round of tokens goes on there, whatever the load.
    Raises: BackendUnavailable, and what the target raises.
    """
    while progress.finish_reason is None:
        drafts = should_draft() or progress.generation.open_piece is not None
        write: Rounds = drafted if drafts else write_by_target
        async with aclosing(write(progress, backends)) as steps:
            async for step in steps:
                if not isinstance(step, SegmentRecord):
                    yield step
                    continue
                progress = progress.after(step.segment)
                yield step if drafts else replace(step, undrafted=True)
                if should_draft() is not drafts:
                    break
            else:
                return
        progress = replace(progress, generation=replace(progress.generation, open_piece=None))
