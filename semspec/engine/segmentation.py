"""Segmentation: rules for boundaries in growing text, applied to a model's token ids and to a server's text."""

import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from semspec.engine.tokenization import MAX_CHARACTER_BYTES, TEXT_OVERLAP, ModelTokenizer
from semspec.reasoning import ReasoningParser
from semspec.stops import StopSearch
from semspec.types import (
    Context,
    GenerationParams,
    Piece,
    Segment,
    Segmentation,
    SegmentEnd,
    Writer,
)

MAX_OPENING_CHARACTERS = 200
"""Last characters of a prompt, white space included, that show whether it opens the reasoning."""

ABBREVIATIONS = frozenset(
    (
        "e.g. i.e. etc. cf. vs. al. approx. resp. ca. dr. mr. mrs. ms. prof. st. "
        "fig. figs. eq. eqs. no. nos. sec. ch. vol."
    ).split()
)
"""Words in lower case that end in a full stop without ending a sentence."""

_SENTENCE_END = re.compile(r"[.?!][\"')\]*]*$")
_SENTENCE_END_INSIDE = re.compile(r"[.?!][\"')\]*]*(?=\s)")
# These patterns run on untrusted text: each can match at few positions only, so the search time stays linear.
_LIST_MARKER = re.compile(r"(?:^|\n)[^\S\n]*(?:\d+|[A-Za-z])\.$")
_LAST_WORD = re.compile(r"(?<!\S)\S+$")


class Paragraphs:
    """Boundary: the first `\\n\\n` after a character that is not white space."""

    marks = frozenset("\n")
    """A segment can only end at or after a token with one of these characters; a cheap first test."""

    def ends_inside(self, text: str) -> bool:
        """Whether `text` contains a boundary. The segment then ends with the token that completed the boundary."""
        return "\n\n" in text.lstrip()

    def ends_before(self, text: str, following: str) -> bool:
        """Whether `text` is complete, given the text of the next token, which is not part of it."""
        return False


class Sentences:
    """Boundary: `.`, `?` or `!`, with closing quotes and brackets, followed by white space.

    Not after an abbreviation, an initial or a list marker, not inside a number or `\\boxed{}`.
    """

    marks = frozenset(".?!")

    def ends_inside(self, text: str) -> bool:
        return any(
            self._is_complete(text[: match.end()]) for match in _SENTENCE_END_INSIDE.finditer(text)
        )

    def ends_before(self, text: str, following: str) -> bool:
        return following[:1].isspace() and self._is_complete(text)

    @staticmethod
    def _is_complete(text: str) -> bool:
        if not _SENTENCE_END.search(text) or _LIST_MARKER.search(text):
            return False
        word = _LAST_WORD.search(text)
        stripped = word[0].lstrip("(\"'[").lower() if word else ""
        is_initial = len(stripped) == 2 and stripped[0].isalpha() and stripped[1] == "."
        return stripped not in ABBREVIATIONS and not is_initial and not _is_in_boxed(text)


def _is_in_boxed(text: str) -> bool:
    start = text.rfind("\\boxed{")
    if start < 0:
        return False
    inside = text[start + len("\\boxed") :]
    return inside.count("{") > inside.count("}")


Rule: TypeAlias = Paragraphs | Sentences
"""Decides, for a segment's text so far, whether it is complete."""
RULES: dict[Segmentation, Rule] = {
    Segmentation.PARAGRAPH: Paragraphs(),
    Segmentation.SENTENCE: Sentences(),
}


def cut(text: str, segmentation: Segmentation) -> Iterator[str]:
    """Split `text` into segments where a model's output would end them; their concatenation is `text`."""
    rule, start = RULES[segmentation], 0
    for space in re.finditer(r"\s+", text):
        if rule.ends_before(text[start : space.start()], space[0]):
            end = space.start()
        elif rule.ends_inside(text[start : space.end()]):
            end = space.end()
        else:
            continue
        yield text[start:end]
        start = end
    if text[start:]:
        yield text[start:]


def first_segment(text: str, segmentation: Segmentation) -> str | None:
    """Return the first segment of a stream of which `text` has been received; None if later text could extend it."""
    rule = RULES[segmentation]
    if rule.marks.isdisjoint(text):
        return None
    first, *others = cut(text, segmentation)
    return first if others or rule.ends_inside(first) else None


def end_after(
    tokenizer: ModelTokenizer,
    segmentation: Segmentation,
    context: Sequence[int],
    tokens: Sequence[int],
    max_tokens: int,
    budget: int | None = None,
) -> SegmentEnd | None:
    """Return why the segment `tokens` ends with its last token; None if it does not.

    A segment ends between characters. Inside a character it continues to the character's end, even beyond `max_tokens`.
    Three more tokens complete any valid character; if they do not, the segment ends without it. End-of-sequence and the
    `budget` end a segment anywhere; its text is then that of `ModelTokenizer.text_of`.
    """
    if tokens[-1] in tokenizer.eos_ids:
        return SegmentEnd.EOS
    is_at_border = not tokenizer.num_open_bytes(tokens)
    if is_at_border and _has_boundary(tokenizer, RULES[segmentation], context, tokens):
        return SegmentEnd.BOUNDARY
    limit = max_tokens if is_at_border else max_tokens + MAX_CHARACTER_BYTES - 1
    if budget is not None:
        limit = min(limit, budget)
    return SegmentEnd.LENGTH if len(tokens) >= limit else None


def _has_boundary(
    tokenizer: ModelTokenizer, rule: Rule, context: Sequence[int], tokens: Sequence[int]
) -> bool:
    """Whether the tokens of the last character complete a boundary."""
    start = tokenizer.character_start(tokens, len(tokens) - 1)
    may_end = any(_may_end(rule, tokenizer.token_text(token)) for token in tokens[start:])
    return may_end and rule.ends_inside(tokenizer.text_of(context, tokens))


def ends_before(
    tokenizer: ModelTokenizer,
    segmentation: Segmentation,
    context: Sequence[int],
    tokens: Sequence[int],
    following: int,
) -> bool:
    """Whether the token `following` shows that the segment is complete with `tokens`."""
    if not tokens:
        return False
    rule, text = RULES[segmentation], tokenizer.token_text(following)
    if not (_may_end(rule, tokenizer.token_text(tokens[-1])) or _may_end(rule, text)):
        return False
    return rule.ends_before(tokenizer.text_of(context, tokens), text)


def ended_by_look_ahead(context: Context, segmentation: Segmentation) -> bool:
    """Whether only the token drawn after the last segment, which is not part of `context`, completed that segment.

    The next segment then begins with such a token, whichever model writes it: see `semspec.engine.logits.draw_token`.
    """
    last, rule = context.pieces[-1], RULES[segmentation]
    if not isinstance(last, Segment) or last.end is not SegmentEnd.BOUNDARY:
        return False
    return not rule.ends_inside(last.text) and rule.ends_before(last.text, " ")


def _may_end(rule: Rule, token_text: str) -> bool:
    return not rule.marks.isdisjoint(token_text)


def prompt_and_output(context: Context) -> tuple[str, str]:
    """Return the end of the prompt's text, and the text of all segments after it."""
    prompt = next((piece.text for piece in context.pieces if not isinstance(piece, Segment)), "")
    return prompt[-MAX_OPENING_CHARACTERS:], "".join(
        piece.text for piece in context.pieces if isinstance(piece, Segment)
    )


def stops_after(prompt: str, output: str, params: GenerationParams) -> StopSearch | None:
    """Return a search for the stops of `params` in the text after `output`; None if there is nothing to find.

    It recognises reasoning as the gateway does, which truncates the text at the stop.
    """
    if not params.stops:
        return None
    search = StopSearch(
        params.stops, ReasoningParser.after(prompt) if params.splits_reasoning else None
    )
    search.add(output)
    return None if search.stop else search


class Segmenter:
    """Collects the segments of one call within its budgets; base of `TokenSegmenter` and `semspec.remote.segmenter`."""

    def __init__(
        self,
        tokenizer: ModelTokenizer,
        writer: Writer,
        params: GenerationParams,
        num_context_tokens: int,
        stops: StopSearch | None = None,
    ) -> None:
        """`stops`: a search for stop sequences, of which the first found ends the call; see `stops_after`."""
        self._tokenizer, self._writer, self._params, self._stops = tokenizer, writer, params, stops
        self._budget = min(
            params.max_tokens, tokenizer.info.max_context_tokens - num_context_tokens
        )
        self.segments: list[Segment] = []
        """The complete segments."""
        self.is_done = self._budget <= 0
        """Whether the call is complete: budget used, `max_segments` reached, end-of-sequence, or a stop sequence."""

    @property
    def _limit(self) -> int:
        """Number of tokens after which the open segment ends with the next whole character."""
        return min(self._params.max_segment_tokens, self._budget)

    def _close(self, text: str, ids: Sequence[int], end: SegmentEnd) -> Segment:
        segment = Segment(text, tuple(ids), self._tokenizer.info.tokenizer, self._writer, end)
        self.segments.append(segment)
        self._budget -= len(ids)
        has_all = self._budget <= 0 or len(self.segments) == (self._params.max_segments or -1)
        self.is_done = has_all or end.is_last
        return segment


class TokenSegmenter(Segmenter):
    """Segments a stream of tokens."""

    def __init__(
        self,
        tokenizer: ModelTokenizer,
        writer: Writer,
        params: GenerationParams,
        context: Sequence[int],
        open_ids: Sequence[int] = (),
        stops: StopSearch | None = None,
        follows_text: bool = False,
    ) -> None:
        """`open_ids`: tokens of an incomplete segment after `context`, at whose end the budgets of `params` start.
        `follows_text`: keep `open_text` up to date; always done with `stops`."""
        super().__init__(tokenizer, writer, params, len(context), stops)
        self._context = list(context)
        self.open_ids = list(open_ids)
        self.open_text = ""
        """Text of the open segment, as far as no later token changes it."""
        self._num_settled = 0
        """Open tokens whose text is complete in `open_text`."""
        self._num_unsettled = 0
        """The other open tokens."""
        self._num_ahead = 0
        """Characters in `open_text` of unsettled tokens."""
        self._follows_text = follows_text or stops is not None
        if self._follows_text and (text := self._extend_text()) and stops:
            stops.add(text)

    @property
    def num_left(self) -> int:
        """Number of further tokens within the budget."""
        return self._budget - len(self.open_ids)

    @property
    def open_piece(self) -> Piece | None:
        """The open segment as text with its ids; None if there is none."""
        if not self.open_ids:
            return None
        text = self._tokenizer.text_of(self._context, self.open_ids)
        return Piece(text, tuple(self.open_ids), self._tokenizer.info.tokenizer)

    @property
    def settled_text(self) -> str:
        """Text of the open segment, as far as no later token changes it."""
        return self._tokenizer.settled_text_of(self._context, self.open_ids)

    def end_before(self, token: int) -> Segment | None:
        """Close the open segment if `token` shows that it ended before `token`, which is not added."""
        if ends_before(
            self._tokenizer, self._params.segmentation, self._context, self.open_ids, token
        ):
            return self._close_open(SegmentEnd.BOUNDARY)
        return None

    def append(self, token: int) -> Segment | None:
        """Add `token`, and close the open segment if it ends with it."""
        self.open_ids.append(token)
        new = self._extend_text() if self._follows_text else ""
        if self._stops and self._has_stop(self._stops, new):
            return self._close_open(SegmentEnd.STOP)
        limit, budget = self._params.max_segment_tokens, self._budget
        end = end_after(
            self._tokenizer, self._params.segmentation, self._context, self.open_ids, limit, budget
        )
        return self._close_open(end) if end else None

    def _has_stop(self, stops: StopSearch, new: str) -> bool:
        """Whether a stop sequence ends in `new`, or in the text that unsettled tokens add if the segment ends here."""
        if new and stops.ends_in(new):
            return True
        if not self._num_unsettled:
            return False
        text = self._tokenizer.text_of(self._context, self.open_ids)
        return stops.would_end_in(text[len(self.open_text) :])

    def _extend_text(self) -> str:
        """Bring `open_text` up to date, and return its new part. Only the last tokens are decoded."""
        settled, unsettled = self.open_ids[: self._num_settled], self.open_ids[self._num_settled :]
        overlap = TEXT_OVERLAP + MAX_CHARACTER_BYTES
        before = [*self._context[-overlap:], *settled[-overlap:]]
        text = self._tokenizer.settled_text_of(before, unsettled)
        new = text[self._num_ahead :]
        self.open_text += new
        if self._tokenizer.is_settled(unsettled):
            self._num_settled, self._num_ahead = len(self.open_ids), 0
        else:
            self._num_ahead = len(text)
        self._num_unsettled = len(self.open_ids) - self._num_settled
        return new

    def take(self, token: int) -> bool:
        """Call `end_before`, then `append`. Return False if the call is complete before `token`, which is not added."""
        if self.is_done or (self.end_before(token) and self.is_done):
            return False
        self.append(token)
        return True

    def _close_open(self, end: SegmentEnd) -> Segment:
        ids, self.open_ids = self.open_ids, []
        text = self._tokenizer.text_of(self._context, ids)
        if self._stops and not end.is_last and self._stops.ends_in(text[len(self.open_text) :]):
            end = SegmentEnd.STOP
        segment = self._close(text, ids, end)
        self._context += ids
        self.open_text, self._num_settled, self._num_ahead, self._num_unsettled = "", 0, 0, 0
        return segment
