"""What each kind of request takes from vLLM's forward passes: rows of states and logits, and sampled tokens."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, zip_longest

import torch
from torch import Tensor

from semspec.engine.logits import draw_token, segment_scores
from semspec.engine.requests import (
    Generate,
    Propose,
    Request,
    Score,
    Verified,
    Verify,
    Writing,
    num_following,
)
from semspec.engine.shaping import Grammars, Shape, Shaping, shaping_of
from semspec.engine.speculative import (
    LEAST_CONFIDENCE,
    draw_with_distribution,
    largest_probability,
    verify,
)
from semspec.engine.tokenization import ModelTokenizer
from semspec.errors import SemspecError
from semspec.types import (
    Distribution,
    GeneratedSegment,
    OpenText,
    Proposal,
    SamplingParams,
    States,
    Writer,
)

NO_ROWS = range(0)


@dataclass(slots=True)
class Span:
    """Consecutive tokens of a request whose states are pooled."""

    rows: range
    """Positions of the tokens in the request."""
    slot: int | None = None
    """Where their states are added up."""


class Call:
    """One request. A row is a position of the request's tokens: its states, and the logits after it."""

    scored_rows = NO_ROWS
    """Rows whose `token_statistics` it needs, for the tokens after them."""
    logit_rows = NO_ROWS
    """Rows whose logits it needs."""
    sampling: SamplingParams | None = None
    """How its tokens are drawn; None: a sampled token has no meaning."""

    def __init__(
        self, tokenizer: ModelTokenizer, prompt: Sequence[int], request: Request, *others: object
    ) -> None:
        self.kind, self._tokenizer, self.prompt = request.kind, tokenizer, list(prompt)
        self.projection: str = getattr(request, "projection", "")
        """Of the states in its results."""
        first = first_row(request, len(prompt))
        self.wants_rows = first is not None
        self.spans: list[Span] = []
        """Spans that are not complete, in order."""
        self.next_row = first or 0
        """The first row not seen yet: rows that are computed again after a pre-emption are not taken twice."""
        self.rows: list[Tensor] = []
        """Statistics or logits received so far, in order."""
        self.results: list[object] = []
        """Results not sent yet."""
        self.is_done = False

    def draw(self, logits: Tensor, position: int) -> int | None:
        """The token drawn at `position` from `logits` `[vocab_size]`; None: by `sampling`, as any other."""
        return None

    def note(self, logits: Tensor, token: int) -> None:
        """`token` was drawn from `logits` `[vocab_size]`; `take` follows unless the prompt is not complete."""

    def take(self, token: int) -> list[Span]:
        """Go on with a sampled token, all rows before it being seen. Returns the spans that are complete."""
        self.is_done = True
        return self.spans

    def finish(self, states: Sequence[States]) -> None:
        """Make results; `states`: of the spans that `take` returned."""
        raise NotImplementedError


class GenerateCall(Call):
    """Writes segments."""

    def __init__(
        self,
        tokenizer: ModelTokenizer,
        prompt: Sequence[int],
        request: Generate,
        writer: Writer,
        grammars: Grammars | None,
    ) -> None:
        super().__init__(tokenizer, prompt, request)
        self._request, self.sampling = request, request.params.sampling
        self._writing = Writing(tokenizer, writer, request, prompt)
        self._shaping: Shaping | None = None
        self._shape: Shape | None = None
        """What is done to the next logits."""
        self._error: SemspecError | None = None
        """Why it ends early."""
        with self._failing():
            self._shaping = shaping_of(request, prompt, tokenizer, grammars)
            self._shape = self._shaping.first() if self._shaping else None
        self._complete: list[GeneratedSegment] = []
        self._text: OpenText | None = None
        self._open_span(len(prompt))

    def draw(self, logits: Tensor, position: int) -> int | None:
        if self._shape:  # one model writes all that is shaped: see our engine
            return draw_token(self._shape(logits), self._request.params.sampling, position)
        if self._request.is_after_end and position == len(self.prompt):
            return draw_token(logits, self._request.params.sampling, position, self._tokenizer)
        return None

    def note(self, logits: Tensor, token: int) -> None:
        self._writing.note(logits, token)

    def take(self, token: int) -> list[Span]:
        self._complete = [] if self._error else self._writing.take(token)
        self.is_done = self._writing.is_done
        self._text = self._writing.open_text() if self._request.streams_text else None
        if self._shaping and not self.is_done:
            with self._failing():
                self._shape = self._shaping.after(token)
        self.is_done |= self._error is not None
        if not (self._complete and self._request.params.want_states):
            return []
        [ended], [generated] = self.spans, self._complete
        ended.rows = range(ended.rows.start, ended.rows.start + len(generated.segment.token_ids))
        self._open_span(ended.rows.stop)
        return [ended]

    def _open_span(self, start: int) -> None:
        if self._request.params.want_states:
            self.spans = [Span(range(start, 1 << 62))]

    def finish(self, states: Sequence[States]) -> None:
        for one, own in zip_longest(self._complete, states):
            self.results.append(replace(one, states=own))
        self._complete = []
        if self._text:
            self.results.append(self._text)
        if self._error:
            self.results.append(self._error)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """An error of the body, such as of a grammar that is too complex, ends the call."""
        try:
            yield
        except SemspecError as error:
            self._error = error


class ProposeCall(Call):
    """Drafts tokens with the distributions they are drawn from."""

    def __init__(
        self, tokenizer: ModelTokenizer, prompt: Sequence[int], request: Propose, *others: object
    ) -> None:
        super().__init__(tokenizer, prompt, request)
        self.sampling, self._num_tokens = request.sampling, request.num_tokens
        self._drafted: list[int] = []
        self._distributions: list[Distribution] = []
        self._drawn: Distribution | None = None
        self._confidence = 1.0

    def draw(self, logits: Tensor, position: int) -> int | None:
        assert self.sampling
        token, self._drawn = draw_with_distribution(logits, self.sampling, position)
        self._confidence *= largest_probability(logits)
        return token

    def take(self, token: int) -> list[Span]:
        assert self._drawn
        self._drafted.append(token)
        self._distributions.append(self._drawn)
        self.is_done = (
            len(self._drafted) == self._num_tokens
            or token in self._tokenizer.eos_ids
            or self._confidence < LEAST_CONFIDENCE
        )
        return []

    def finish(self, states: Sequence[States]) -> None:
        if self.is_done:
            tokenizer = self._tokenizer.info.tokenizer
            self.results = [
                Proposal(tuple(self._drafted), tuple(self._distributions), tokenizer, 0.0)
            ]


class ReadCall(Call):
    """Reads the last tokens of the prompt: scores or verifies them."""

    def __init__(
        self,
        tokenizer: ModelTokenizer,
        prompt: Sequence[int],
        request: Score | Verify,
        *others: object,
    ) -> None:
        super().__init__(tokenizer, prompt, request)
        self._request, self._first = request, len(prompt) - num_following(request)
        if isinstance(request, Score):
            self.scored_rows = range(self._first - 1, len(prompt) - 1)
            ends = accumulate(request.lengths, initial=self._first)
            self.spans = [Span(range(*pair)) for pair in pairwise(ends)]
        else:
            self.logit_rows = range(self._first - 1, len(prompt))

    def finish(self, states: Sequence[States]) -> None:
        rows, request = torch.cat(self.rows), self._request
        match request:
            case Score(lengths=lengths):
                self.results = [segment_scores(rows.split(list(lengths)), states)]
            case Verify():
                chosen = verify(rows, request, self._first, self._tokenizer)
                self.results = [Verified(tuple(chosen))]


CALLS: Mapping[str, Callable[..., Call]] = {"generate": GenerateCall, "propose": ProposeCall}
"""Of each kind of request; of any other, `ReadCall`."""


def first_row(request: Request, num_prompt: int) -> int | None:
    """The first row that a request of so many tokens must see computed; None: any may come from the prefix cache."""
    match request:
        case Generate(params=params):
            return num_prompt if params.want_states else None
        case Propose():
            return None
    return num_prompt - num_following(request) - 1
