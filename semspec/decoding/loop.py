"""The decoding loop: it renders the prompt in each model's chat template, and runs a strategy of the table.

When the drafter or the verifier becomes unavailable, the loop continues with the target alone.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from semspec.decoding import exact_answer, load_adaptive, semantic, single_model, token_level
from semspec.decoding.backends import Backends
from semspec.decoding.generation import (
    Generation,
    Progress,
    Rounds,
    Step,
    Strategies,
    Strategy,
)
from semspec.decoding.likelihood import strategy as likelihood
from semspec.decoding.load_adaptive import ShouldDraft
from semspec.decoding.retrieval import strategy as retrieval
from semspec.decoding.steps import BackendUnavailable, call_backend, cancel_task, write_by_target
from semspec.errors import ContextTooLong, DeadlineExceeded
from semspec.protocols import Drafter
from semspec.reasoning import FORMS
from semspec.types import (
    Conversation,
    Event,
    Finished,
    FinishReason,
    ModelInfo,
    Piece,
    Prompt,
    SegmentRecord,
    TokenIds,
)

STRATEGIES: Strategies = {
    "semantic": semantic.strategy,
    "likelihood": likelihood.strategy,
    "token-level": token_level.strategy,
    "retrieval": retrieval.strategy,
    "target": single_model.target,
    "draft": single_model.draft,
}
PREFERRED = ("semantic", "likelihood", "token-level", "retrieval", "target")
"""A request that names no strategy gets the first of these that the pair supports."""


async def decode(
    generation: Generation, backends: Backends, should_draft: ShouldDraft | None = None
) -> AsyncGenerator[Event, None]:
    """Run the strategy of `generation`: yield the records of kept segments in order, then `Finished`.

    With `show_drafts`, a `Drafted` event precedes the records that decide on its segments; its segments without a
    record were dropped. A context window that fills up ends a generation with the same reason as the token budget.
    `should_draft` is asked before each segment; None: all are drafted that the strategy drafts.

    Closing the generator cancels all calls of the generation. The same generation on equivalent backends yields the
    same segments, regardless of caching, retries and resumption, if `should_draft` gives the same answers. A generation
    that is resumed goes on after `open_piece`.

    Raises: what the target raises.
    When the drafter or the verifier fails, the target writes alone instead.
    """
    rounds = _rounds(generation.strategy, should_draft)
    if generation.answer_strategy is not None:
        answer = _rounds(generation.answer_strategy, should_draft)
        rounds = partial(exact_answer.rounds, reason=rounds, answer=answer)
    progress = Progress(generation, generation.context)
    written: AsyncGenerator[Step, None]
    if generation.fallback is None or generation.open_piece is not None:
        written = rounds(progress, backends)
    else:
        written = write_by_target(progress, backends, fallback=generation.fallback)
    try:
        while True:
            try:
                async with aclosing(written):
                    async for step in written:
                        if isinstance(step, SegmentRecord):
                            progress = progress.after(step.segment)
                        yield step
                break
            except BackendUnavailable as unavailable:
                written = write_by_target(progress, backends, fallback=str(unavailable))
    except ContextTooLong:
        if not progress.segments:
            raise
    yield Finished(progress.finish_reason or FinishReason.LENGTH)


def _rounds(strategy: Strategy, should_draft: ShouldDraft | None) -> Rounds:
    if should_draft is None or not strategy.can_skip_drafts:
        return strategy.rounds
    return partial(load_adaptive.rounds, drafted=strategy.rounds, should_draft=should_draft)


REASONING_SUFFIX = re.compile(
    "|".join(rf"{re.escape(form.opening)}\s*({re.escape(form.closing)}\s*)?\Z" for form in FORMS)
)
"""End of a rendered prompt that opens the reasoning, or opens and closes it."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompt of a generation as each model reads it."""

    target: Piece
    draft: Piece | None = None
    """None: the draft reads the target's, by its ids or by its text."""
    fallback: str | None = None
    """Why the target writes alone: the draft could not render the conversation."""


async def render_prompts(
    prompt: Prompt,
    encoded: Awaitable[Piece],
    drafter: Drafter,
    draft_info: ModelInfo,
    target_info: ModelInfo,
    draft_deadline_s: float | None = None,
) -> Prompts:
    """Wait for the target's rendering of `prompt`, `encoded`, and render it for the draft if its template differs.

    A plain text or its token ids go to both models as they are, and a draft without a chat template reads the target's
    rendering. The draft gets those of a conversation's variables that its template reads.
    Raises: what `encoded` does, before all else; ContextTooLong when the draft's window is too small.
    """
    if isinstance(prompt, str | TokenIds) or not renders_separately(draft_info, target_info):
        return Prompts(await encoded)
    if isinstance(prompt, Conversation):
        prompt = prompt.with_known(draft_info.template_variables)
    rendering = asyncio.create_task(
        call_backend("draft", _with_deadline(drafter.encode(prompt), draft_deadline_s))
    )
    try:
        target = await encoded
        return Prompts(target, align_reasoning(await rendering, target))
    except BackendUnavailable as unavailable:
        if isinstance(unavailable.__cause__, ContextTooLong):
            raise unavailable.__cause__ from None
        return Prompts(target, fallback=str(unavailable))
    finally:
        await cancel_task(rendering)


async def _with_deadline(work: Awaitable[Piece], deadline_s: float | None) -> Piece:
    """Raises: DeadlineExceeded after `deadline_s`; what `work` raises."""
    try:
        async with asyncio.timeout(deadline_s):
            return await work
    except TimeoutError:
        raise DeadlineExceeded("the prompt takes too long to render") from None


def renders_separately(draft: ModelInfo, target: ModelInfo) -> bool:
    """Return whether the draft reads conversations in its own chat template instead of the target's."""
    is_alike = (draft.chat_template, draft.tokenizer) == (target.chat_template, target.tokenizer)
    return bool(draft.chat_template) and not is_alike


def align_reasoning(draft: Piece, target: Piece) -> Piece:
    """Return `draft` with the reasoning opened, or left out, iff it is in `target`: both models continue alike.

    A text changed here has no token ids; the draft tokenizes it.
    """
    suffix, wanted = _reasoning_suffix(draft.text), _reasoning_suffix(target.text)
    is_aligned = (bool(suffix), _is_closed(suffix)) == (bool(wanted), _is_closed(wanted))
    if is_aligned or (_is_closed(suffix) and not wanted):
        return draft
    return Piece(draft.text.removesuffix(suffix) + wanted, (), "")


def _reasoning_suffix(prompt: str) -> str:
    found = REASONING_SUFFIX.search(prompt)
    return found[0] if found else ""


def _is_closed(reasoning: str) -> bool:
    """Return whether the end of a prompt leaves the reasoning out."""
    return any(form.closing in reasoning for form in FORMS)
