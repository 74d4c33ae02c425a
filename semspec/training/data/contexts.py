"""Stage 1: contexts, the points of a reasoning trace where next segments are sampled and judged."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from semspec.decoding import Prompts, align_reasoning, renders_separately
from semspec.engine.segmentation import cut
from semspec.engine.tokenization import ModelTokenizer
from semspec.errors import InvalidRequest
from semspec.reporting.files import Row
from semspec.training.config import ContextsConfig, PromptConfig
from semspec.training.data.questions import Question
from semspec.training.data.writers import SegmentWriter
from semspec.types import (
    Context,
    Message,
    Piece,
    Segment,
    Segmentation,
    SegmentEnd,
    Writer,
    derive_seed,
)


@dataclass(frozen=True, slots=True)
class ProbeContext:
    """A question and the reasoning so far."""

    question: Question
    context: Context
    """The context as the target reads it."""
    draft_prompt: Piece | None = None
    """The prompt as the draft reads it; None: the prompt in `context`."""

    def read_by(self, model: Writer) -> Context:
        """Return the context as draft or target reads it."""
        return _read_by(model, self.context.pieces, self.draft_prompt)

    @property
    def depth(self) -> int:
        """Number of segments so far."""
        return len(self.context.pieces) - 1

    @property
    def id(self) -> str:
        return f"{self.question.id}/{self.depth}"

    @property
    def reasoning(self) -> str:
        """The text after the prompt."""
        return "".join(piece.text for piece in self.context.pieces[1:])


def _read_by(model: Writer, pieces: Sequence[Piece], draft_prompt: Piece | None) -> Context:
    if model is Writer.TARGET or draft_prompt is None:
        return Context(tuple(pieces))
    return Context((draft_prompt, *pieces[1:]))


def prompts(
    question: Question, config: PromptConfig, target: ModelTokenizer, draft: ModelTokenizer
) -> Prompts:
    """Render the question as each model's prompt, as the gateway does."""
    text = config.template.replace("{question}", question.text)
    messages = [Message("user", text)]
    start = target.encode(messages if config.chat else text)
    if not config.chat or not renders_separately(draft.info, target.info):
        return Prompts(start)
    return Prompts(start, align_reasoning(draft.encode(messages), start))


def mixed_trace(
    question: Question,
    start: Prompts,
    writers: dict[Writer, SegmentWriter],
    config: ContextsConfig,
    seed: int,
) -> list[Piece]:
    """Write a trace in which draft or target, chosen at random, writes each segment, up to the answer's end if the
    limits allow. Return the target's prompt and every segment but the last."""
    draft_share = config.draft_share if config.traces == "mixture" else 0.0
    num_tokens = len(start.target.token_ids)
    rng = random.Random(f"trace {seed} {question.id}")
    pieces = [start.target]
    for index in range(config.max_segments):
        writer = Writer.DRAFT if rng.random() < draft_share else Writer.TARGET
        draw = derive_seed(seed, f"trace {question.id}", index)
        [segment] = writers[writer].generate(_read_by(writer, pieces, start.draft), [draw])
        num_tokens += len(segment.token_ids)
        if segment.end is not SegmentEnd.BOUNDARY or num_tokens > config.max_tokens:
            break
        pieces.append(segment)
    return pieces


def data_trace(
    question: Question, start: Piece, target: ModelTokenizer, rule: Segmentation, limit: int
) -> list[Piece]:
    """Return the data's own trace, split where `rule` ends a segment."""
    if not question.trace:
        raise InvalidRequest(
            f"question {question.id} has no reasoning trace",
            remedy="name the field that holds it (questions.trace), "
            "or let the models write them (contexts.traces: mixture)",
        )
    pieces = [start]
    for text in list(cut(question.trace, rule))[:-1][:limit]:
        ids = tuple(target.ids_of(text))
        pieces.append(Segment(text, ids, target.info.tokenizer, Writer.TARGET, SegmentEnd.BOUNDARY))
    return pieces


def choose_depths(num_segments: int, config: ContextsConfig, seed: str) -> list[int]:
    """Choose the depths (numbers of segments) at which to sample: all, or one in each of equally long ranges."""
    depths = range(num_segments + 1)
    if config.per_question is None or config.per_question >= len(depths):
        return list(depths)
    rng = random.Random(f"depths {seed}")
    bounds = [round(i * len(depths) / config.per_question) for i in range(config.per_question + 1)]
    return [rng.randrange(low, high) for low, high in pairwise(bounds)]


def trace_row(
    number: int, pieces: Sequence[Piece], depths: Sequence[int], draft_prompt: Piece | None
) -> Row:
    """Return a trace as stored on disk: question number, prompts, segments, and the chosen depths."""
    return {
        "question": number,
        "pieces": [_piece_row(piece) for piece in pieces],
        "draft_prompt": _piece_row(draft_prompt) if draft_prompt else None,
        "depths": list(depths),
    }


def contexts_of(row: Row, question: Question) -> Iterator[ProbeContext]:
    """Yield the contexts of a trace, shallow ones first."""
    pieces = [_piece(piece) for piece in row["pieces"]]
    draft_prompt = _piece(row["draft_prompt"]) if row.get("draft_prompt") else None
    for depth in row["depths"]:
        yield ProbeContext(question, Context(tuple(pieces[: depth + 1])), draft_prompt)


def _piece_row(piece: Piece) -> Row:
    writer = piece.writer.value if isinstance(piece, Segment) else Writer.USER.value
    return {
        "text": piece.text,
        "token_ids": list(piece.token_ids),
        "tokenizer": piece.tokenizer,
        "writer": writer,
    }


def _piece(row: Row) -> Piece:
    ids = tuple(row["token_ids"])
    if row["writer"] == Writer.USER:
        return Piece(row["text"], ids, row["tokenizer"])
    return Segment(row["text"], ids, row["tokenizer"], Writer(row["writer"]), SegmentEnd.BOUNDARY)
