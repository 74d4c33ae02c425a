"""Requests in vLLM's processes: the rows of states and logits that each kind needs, and its results."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, zip_longest

import torch
from torch import Tensor

from semspec.engine.grammars import Grammars
from semspec.engine.logits import draw_token, segment_scores
from semspec.engine.logits_processor import LogitsProcessor, LogitsTransform, make_logits_processor
from semspec.engine.requests import (
    Generate,
    GenerationState,
    Propose,
    Request,
    Score,
    Verified,
    Verify,
    num_following,
)
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
    """Slot of `StateSums` in which their states are added."""


class Call:
    """One request. A row is a position in its tokens, with the states there and the logits after it."""

    scored_rows = NO_ROWS
    """Rows after which it needs the `token_statistics` of the next token."""
    logit_rows = NO_ROWS
    """Rows whose logits it needs."""
    state_layer: int | None = None
    """Row of the states, as in `Proposal.state_layer`, that it needs after each of `logit_rows`."""
    sampling: SamplingParams | None = None
    """How its tokens are drawn; None: its sampled token is not used."""
    notes_tokens = False
    """True if each drawn token is to be given to `note`."""

    def __init__(self, tokenizer: ModelTokenizer, prompt: Sequence[int], request: Request) -> None:
        self.kind, self._tokenizer, self.prompt = request.kind, tokenizer, list(prompt)
        self.projection: str = getattr(request, "projection", "")
        """Digest of the projection of the states in its results."""
        self.num_tokens = len(prompt)
        """Number of tokens of the prompt and of those that were taken."""
        first = first_row(request, len(prompt))
        self.wants_rows = first is not None
        self.spans: list[Span] = []
        """Incomplete spans, in order."""
        self.next_row = first or 0
        """The first row that is not recorded; rows computed again after a pre-emption are not recorded twice."""
        self.rows: list[Tensor] = []
        """Statistics or logits received so far, in order."""
        self.states: list[Tensor] = []
        """States of `state_layer` received so far, in order; each `[num_rows, hidden_size]`."""
        self.results: list[object] = []
        """Results that are not sent yet."""
        self.is_done = False

    def draw(self, logits: Tensor, position: int) -> int | None:
        """Draw the token at `position` from `logits` `[vocab_size]`; None leaves it to `draw_tokens` with `sampling`,
        from the `transformed` logits."""
        return None

    def transformed(self, logits: Tensor) -> Tensor:
        """Return the logits, `[vocab_size]`, that the next token is drawn from."""
        return logits

    def note(self, logits: Tensor, token: int) -> None:
        """Record that `token` was drawn from `logits` `[vocab_size]`, if it `notes_tokens`; `take` follows."""

    def take(self, token: int) -> list[Span]:
        """Add a sampled token, once all rows before it are recorded. Return the spans that are complete."""
        self.is_done = True
        return self.spans

    def finish(self, states: Sequence[States]) -> None:
        """Add results, with the `states` of the spans that `take` returned."""
        raise NotImplementedError


class GenerateCall(Call):
    """Generates segments."""

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
        self.notes_tokens = request.params.num_logprobs is not None
        self._generation = GenerationState(tokenizer, writer, request, prompt)
        self._processor: LogitsProcessor | None = None
        self._transform: LogitsTransform | None = None
        """Applied to the next logits."""
        self._error: SemspecError | None = None
        """The error that ends the call early."""
        with self._catch_error():
            self._processor = make_logits_processor(request, prompt, tokenizer, grammars)
            self._transform = self._processor.first() if self._processor else None
        self._complete: list[GeneratedSegment] = []
        self._text: OpenText | None = None
        self._open_span(len(prompt))

    def draw(self, logits: Tensor, position: int) -> int | None:
        # With changed logits one model writes all text: see `RequestRunner._generate`.
        is_after_end = self._request.is_after_end and position == len(self.prompt)
        if not is_after_end or self._transform:
            return None
        return draw_token(logits, self._request.params.sampling, position, self._tokenizer)

    def transformed(self, logits: Tensor) -> Tensor:
        return self._transform(logits) if self._transform else logits

    def note(self, logits: Tensor, token: int) -> None:
        self._generation.note(logits, token)

    def take(self, token: int) -> list[Span]:
        self._complete = [] if self._error else self._generation.take(token)
        self.is_done = self._generation.is_done
        self._text = self._generation.open_text() if self._request.streams_text else None
        if self._processor and not self.is_done:
            with self._catch_error():
                self._transform = self._processor.after(token)
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
        for generated, pooled in zip_longest(self._complete, states):
            self.results.append(replace(generated, states=pooled))
        self._complete = []
        if self._text:
            self.results.append(self._text)
        if self._error:
            self.results.append(self._error)

    @contextmanager
    def _catch_error(self) -> Iterator[None]:
        """End the call with an error of the block, such as one of a grammar that is too complex."""
        try:
            yield
        except SemspecError as error:
            self._error = error


class ProposeCall(Call):
    """Drafts tokens, with the distributions that they are drawn from."""

    def __init__(self, tokenizer: ModelTokenizer, prompt: Sequence[int], request: Propose) -> None:
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
    """Scores or verifies the last tokens of the prompt."""

    def __init__(
        self, tokenizer: ModelTokenizer, prompt: Sequence[int], request: Score | Verify
    ) -> None:
        super().__init__(tokenizer, prompt, request)
        self._request, self._first = request, len(prompt) - num_following(request)
        if isinstance(request, Score):
            self.scored_rows = range(self._first - 1, len(prompt) - 1)
            ends = accumulate(request.lengths, initial=self._first)
            self.spans = [Span(range(*pair)) for pair in pairwise(ends)]
        else:
            self.logit_rows = range(self._first - 1, len(prompt))
            self.state_layer = request.state_layer

    def finish(self, states: Sequence[States]) -> None:
        rows, request = torch.cat(self.rows), self._request
        match request:
            case Score(lengths=lengths):
                self.results = [segment_scores(rows.split(list(lengths)), states)]
            case Verify():
                chosen = verify(rows, request, self._first, self._tokenizer)
                self.results = [Verified(tuple(chosen), self._states_bytes(len(chosen)))]

    def _states_bytes(self, number: int) -> tuple[bytes, ...]:
        """Return the first `number` of `states` as `VerifiedTokens.state`; empty without `state_layer`."""
        if not self.states:
            return ()
        rows = torch.cat(self.states)[:number].float().cpu().numpy().astype("<f4")
        return tuple(row.tobytes() for row in rows)


def make_call(
    tokenizer: ModelTokenizer,
    prompt: Sequence[int],
    request: Request,
    writer: Writer,
    grammars: Grammars | None,
) -> Call:
    """Return the call of a request."""
    match request:
        case Generate():
            return GenerateCall(tokenizer, prompt, request, writer, grammars)
        case Propose():
            return ProposeCall(tokenizer, prompt, request)
    return ReadCall(tokenizer, prompt, request)


def first_row(request: Request, num_prompt: int) -> int | None:
    """Return the first row that must be computed for a request; None: all may come from the prefix cache."""
    match request:
        case Generate(params=params):
            return num_prompt if params.want_states else None
        case Propose():
            return None
    return num_prompt - num_following(request) - 1
