"""Drafts of segments: the next ones, or alternatives of the next one, optionally ahead of the request for them."""

import asyncio
from dataclasses import replace

from semspec.decoding.generation import Progress
from semspec.decoding.protocols import Drafter
from semspec.decoding.steps import cancel_task, together, write_all
from semspec.types import GeneratedSegment, GenerationParams, derive_seed


class Draft:
    """Drafts segments, optionally ahead of the request for them."""

    def __init__(self, drafter: Drafter, projection: str, want_states: bool) -> None:
        self._drafter, self._projection, self._want_states = drafter, projection, want_states
        self._task: asyncio.Task[list[GeneratedSegment]] | None = None

    @property
    def is_ahead(self) -> bool:
        return self._task is not None

    def begin(self, progress: Progress) -> None:
        """Start drafting after `progress`, which assumes acceptance; the loop cancels it after a rejection."""
        self._task = asyncio.create_task(self._write(progress, is_ahead=True))

    async def segments(self, progress: Progress) -> list[GeneratedSegment]:
        """The segments drafted after `progress`: those drafted ahead if there are any, else new ones."""
        if self._task is None:
            return await self._write(progress)
        task, self._task = self._task, None
        return await task

    async def cancel(self) -> None:
        """Cancel the task of draft-ahead, if any."""
        task, self._task = self._task, None
        await cancel_task(task)

    async def _write(self, progress: Progress, is_ahead: bool = False) -> list[GeneratedSegment]:
        """The next `gamma` segments, or the alternatives of the next one."""
        num_candidates = num_alternatives(progress)
        gamma = progress.generation.options.gamma if num_candidates == 1 else 1
        params = progress.params("draft", gamma, self._want_states)
        params = replace(params, projection=self._projection, is_ahead=is_ahead)
        if num_candidates == 1:
            return await write_all(self._drafter, progress.draft_context, params)
        drafted = await together(
            write_all(self._drafter, progress.draft_context, _of_alternative(params, len(progress.segments), number))
            for number in range(num_candidates)
        )
        return [generated for segments in drafted for generated in segments]


def num_alternatives(progress: Progress) -> int:
    """Alternatives of a segment to draft: one at temperature 0, where all would be equal."""
    generation = progress.generation
    return generation.options.num_candidates if generation.sampling.temperature else 1


def alternative(name: str, number: int) -> str:
    """The name of a session or a random stream for the alternative `number` of a segment."""
    return f"{name} {number}" if name and number else name


def _of_alternative(params: GenerationParams, index: int, number: int) -> GenerationParams:
    """`params` for an alternative of segment `index`. Each has a random stream of its own, since the choice among
    alternatives depends on all of their draws, and a session of its own, since engines cache a prefix a session."""
    seed = derive_seed(params.sampling.seed, alternative("alternative", number), index)
    session = alternative(params.session, number)
    return replace(params, sampling=replace(params.sampling, seed=seed), session=session)
