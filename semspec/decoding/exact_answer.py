"""Exact answers: a strategy writes the reasoning, and the target's own text is the answer.

strategy writes a segment -> it ends the reasoning -> cut it behind the mark -> the target writes the answer.

What the target wrote is exact as it is; of a drafted segment nothing behind the mark is kept. So the answer, given the
reasoning, has the distribution of the target. Without reasoning, all text is the answer.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from semspec.decoding.backends import Backends
from semspec.decoding.generation import Generation, Progress, Rounds, Step, Strategy
from semspec.protocols import Target
from semspec.reasoning import answer_start, is_reasoning
from semspec.types import Context, Segment, SegmentEnd, SegmentRecord, Writer


async def rounds(
    progress: Progress, backends: Backends, reason: Rounds, answer: Rounds
) -> AsyncGenerator[Step, None]:
    """Run `reason` until the reasoning ends, then `answer`; and `reason` again if the target opens a reasoning.

    Raises: BackendUnavailable, and what the target raises.
    """
    is_exact = _answer_start(progress) is not None
    while progress.finish_reason is None:
        write = answer if is_exact else reason
        async with aclosing(write(progress, backends)) as steps:
            async for step in steps:
                if not isinstance(step, SegmentRecord):
                    yield step
                    continue
                record = step if is_exact else await _cut_at_answer(progress, step, backends.target)
                if record is None:
                    is_exact = True
                    break
                progress = progress.after(record.segment)
                yield record
                if (_answer_start(progress) is not None) is not is_exact:
                    is_exact = not is_exact
                    break
            else:
                return


def next_strategy(generation: Generation, context: Context) -> Strategy:
    """Return the strategy that writes the next segment after `context`, unless that segment opens a reasoning."""
    if generation.answer_strategy is None or is_reasoning(*_texts(context)):
        return generation.strategy
    return generation.answer_strategy


def _answer_start(progress: Progress, *following: Segment) -> int | None:
    """Return where the answer begins in the text of all segments and `following`; None: it has not begun."""
    return answer_start(*_texts(progress.context.extended(*following)))


def _texts(context: Context) -> tuple[str, str]:
    """Return the text of the prompt, and that of all segments after it."""
    prompt, output = "", ""
    for piece in context.pieces:
        if isinstance(piece, Segment):
            output += piece.text
        else:
            prompt += piece.text
    return prompt, output


async def _cut_at_answer(
    progress: Progress, record: SegmentRecord, target: Target
) -> SegmentRecord | None:
    """Return `record` without what the draft wrote of the answer; None if nothing remains that can be kept."""
    segment, start = record.segment, _answer_start(progress, record.segment)
    if start is None or segment.writer is Writer.TARGET:
        return record
    text = segment.text[: max(0, start - sum(len(kept.text) for kept in progress.segments))]
    if not text:
        return None
    if text == segment.text and segment.end is not SegmentEnd.EOS:
        return record
    if record.logprobs is not None:
        return _cut_between_tokens(record, text)
    ids = tuple(token.id for token in await target.tokenize(text))
    tokenizer = progress.context.pieces[0].tokenizer
    return replace(
        record, segment=Segment(text, ids, tokenizer, segment.writer, SegmentEnd.BOUNDARY)
    )


def _cut_between_tokens(record: SegmentRecord, text: str) -> SegmentRecord | None:
    """Return `record` with the tokens and logprobs of `text`; None if `text` ends inside a token."""
    segment, logprobs, data = record.segment, record.logprobs or (), b""
    for num_kept, token in enumerate(logprobs, start=1):
        data += token.data
        if data == text.encode():
            cut = replace(
                segment, text=text, token_ids=segment.token_ids[:num_kept], end=SegmentEnd.BOUNDARY
            )
            return replace(record, segment=cut, logprobs=logprobs[:num_kept])
    return None
