"""What each kind of request takes from vLLM's forward passes: rows of states and logits, and sampled tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from semspec.engine.logits import draw_token, segment_surprisal, token_logprob
from semspec.engine.segmentation import TokenSegmenter
from semspec.engine.speculative import draw_with_distribution, rejection_sample
from semspec.engine.tokenization import ModelTokenizer
from semspec.engine.vllm.requests import Choose, Generate, Propose, Request, Score, Verify
from semspec.types import (
    ChoiceScores,
    Distribution,
    GeneratedSegment,
    Proposal,
    SamplingParams,
    Segment,
    SegmentScore,
    States,
    TokenLogprob,
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

    def __init__(self, tokenizer: ModelTokenizer, prompt: Sequence[int], request: Request) -> None:
        self.kind, self._tokenizer, self.prompt = request.kind, tokenizer, list(prompt)
        self.projection = projection_of(request)
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
    """Writes segments. Without states, a segment ends with its last token; with states, when that token is fed."""

    def __init__(self, tokenizer: ModelTokenizer, prompt: Sequence[int], request: Generate, writer: Writer) -> None:
        super().__init__(tokenizer, prompt, request)
        self._params, self._is_after_end = request.params, request.is_after_end
        self.sampling = request.params.sampling
        self._segmenter = TokenSegmenter(tokenizer, writer, request.params, prompt)
        self._closed: Segment | None = None
        """A segment whose last token is not fed yet."""
        self._complete: list[tuple[Segment, list[TokenLogprob]]] = []
        self._noted: TokenLogprob | None = None
        self._logprobs: list[TokenLogprob] = []
        self._open_span(len(prompt))

    def draw(self, logits: Tensor, position: int) -> int | None:
        if not (self._is_after_end and position == len(self.prompt)):
            return None
        return draw_token(logits, self._params.sampling, position, self._tokenizer)

    def note(self, logits: Tensor, token: int) -> None:
        if self._params.num_logprobs is not None:
            self._noted = token_logprob(self._tokenizer, logits, token, self._params.num_logprobs)

    def take(self, token: int) -> list[Span]:
        complete = [self._closed] if self._closed else []
        self._closed = None
        if not self._segmenter.is_done and (segment := self._segmenter.end_before(token)):
            complete.append(segment)
        self._keep(complete)
        if not self._segmenter.is_done:
            if self._noted:
                self._logprobs.append(self._noted)
            segment = self._segmenter.append(token)
            if segment and self._params.want_states:
                self._closed = segment
            elif segment:
                self._keep([segment])
        self.is_done = self._segmenter.is_done and self._closed is None
        return self._ended_spans(bool(complete))

    def _keep(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            self._complete.append((segment, self._logprobs))
            self._logprobs = []

    def _ended_spans(self, is_complete: bool) -> list[Span]:
        if not (is_complete and self._params.want_states):
            return []
        ended, self.spans = self.spans, []
        ended[0].rows = range(ended[0].rows.start, ended[0].rows.start + len(self._complete[-1][0].token_ids))
        self._open_span(ended[0].rows.stop)
        return ended

    def _open_span(self, start: int) -> None:
        if self._params.want_states:
            self.spans = [Span(range(start, 1 << 62))]

    def finish(self, states: Sequence[States]) -> None:
        for index, (segment, logprobs) in enumerate(self._complete):
            told = None if self._params.num_logprobs is None else tuple(logprobs)
            self.results.append(GeneratedSegment(segment, states[index] if states else None, 0.0, told))
        self._complete = []


class ProposeCall(Call):
    """Drafts tokens with the distributions they are drawn from."""

    def __init__(self, tokenizer: ModelTokenizer, prompt: Sequence[int], request: Propose) -> None:
        super().__init__(tokenizer, prompt, request)
        self.sampling, self._num_tokens = request.sampling, request.num_tokens
        self._drafted: list[int] = []
        self._distributions: list[Distribution] = []
        self._drawn: Distribution | None = None

    def draw(self, logits: Tensor, position: int) -> int | None:
        assert self.sampling
        token, self._drawn = draw_with_distribution(logits, self.sampling, position)
        return token

    def take(self, token: int) -> list[Span]:
        assert self._drawn
        self._drafted.append(token)
        self._distributions.append(self._drawn)
        self.is_done = len(self._drafted) == self._num_tokens or token in self._tokenizer.eos_ids
        return []

    def finish(self, states: Sequence[States]) -> None:
        if self.is_done:
            tokenizer = self._tokenizer.info.tokenizer
            self.results = [Proposal(tuple(self._drafted), tuple(self._distributions), tokenizer, 0.0)]


class ScoreCall(Call):
    """Pools the states of segments, and takes statistics of the logits that predict their tokens."""

    def __init__(self, tokenizer: ModelTokenizer, prompt: Sequence[int], request: Score) -> None:
        super().__init__(tokenizer, prompt, request)
        first = len(prompt) - sum(request.lengths)
        self.scored_rows = range(first - 1, len(prompt) - 1)
        ends = [first + sum(request.lengths[:count]) for count in range(len(request.lengths) + 1)]
        self.spans = [Span(range(*pair)) for pair in pairwise(ends)]
        self._lengths = request.lengths

    def finish(self, states: Sequence[States]) -> None:
        parts = torch.cat(self.rows).split(list(self._lengths))
        features = [tuple(segment_surprisal(rows).tolist()) for rows in parts]
        rows = zip(states, features, self._lengths, strict=True)
        self.results = [[SegmentScore(one, surprisal, length, 0.0) for one, surprisal, length in rows]]


class VerifyCall(Call):
    """Exact speculative sampling of the last tokens of the request."""

    def __init__(self, tokenizer: ModelTokenizer, prompt: Sequence[int], request: Verify) -> None:
        super().__init__(tokenizer, prompt, request)
        self._request, self._position = request, len(prompt) - request.num_fed
        self.logit_rows = range(self._position - 1, len(prompt))

    def finish(self, states: Sequence[States]) -> None:
        request, ended = self._request, self._tokenizer if self._request.is_after_end else None
        rows = torch.cat(self.rows)
        chosen = rejection_sample(rows, request.drafted, request.distributions, request.sampling, self._position, ended)
        self.results = [chosen]


class ChooseCall(Call):
    """Reads the probabilities of the token after the request's."""

    def __init__(self, tokenizer: ModelTokenizer, prompt: Sequence[int], request: Choose) -> None:
        super().__init__(tokenizer, prompt, request)
        self._options = list(request.options)
        self.logit_rows = range(len(prompt) - 1, len(prompt))

    def finish(self, states: Sequence[States]) -> None:
        probabilities = torch.softmax(self.rows[0][0].float(), -1)
        likeliest = self._tokenizer.token_text(int(probabilities.argmax()))
        self.results = [ChoiceScores(tuple(probabilities[self._options].tolist()), likeliest, 0.0)]


def new_call(tokenizer: ModelTokenizer, prompt: Sequence[int], request: Request, writer: Writer) -> Call:
    """The call of a request after `prompt`."""
    match request:
        case Generate():
            return GenerateCall(tokenizer, prompt, request, writer)
        case Propose():
            return ProposeCall(tokenizer, prompt, request)
        case Score():
            return ScoreCall(tokenizer, prompt, request)
        case Verify():
            return VerifyCall(tokenizer, prompt, request)
        case Choose():
            return ChooseCall(tokenizer, prompt, request)


def first_row(request: Request, num_prompt: int) -> int | None:
    """The first row that a request of so many tokens must see computed; None: any may come from the prefix cache."""
    match request:
        case Generate(params=params):
            return num_prompt if params.want_states else None
        case Score(lengths=lengths):
            return num_prompt - sum(lengths) - 1
        case Verify(num_fed=num_fed):
            return num_prompt - num_fed - 1
        case Choose():
            return num_prompt - 1
        case Propose():
            return None


def projection_of(request: Request) -> str:
    """Digest of the projection that a request wants its states by; "" for whole states."""
    match request:
        case Generate(params=params):
            return params.projection
        case Score(projection=projection):
            return projection
    return ""
