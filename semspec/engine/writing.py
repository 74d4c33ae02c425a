"""The segments of a request from its tokens, one after another, in either engine."""

from collections.abc import Sequence

from torch import Tensor

from semspec.engine.logits import token_logprob
from semspec.engine.requests import Generate
from semspec.engine.segmentation import TokenSegmenter
from semspec.engine.tokenization import ModelTokenizer
from semspec.types import GeneratedSegment, Segment, TokenLogprob, Writer


class Writing:
    """Without states, a segment is complete with its last token; with states, when that token is fed."""

    def __init__(self, tokenizer: ModelTokenizer, writer: Writer, request: Generate, context: Sequence[int]) -> None:
        self._tokenizer, self._params = tokenizer, request.params
        self._segmenter = TokenSegmenter(tokenizer, writer, request.params, context)
        self._closed: Segment | None = None
        """A segment whose last token is not fed yet."""
        self._noted: TokenLogprob | None = None
        self._logprobs: list[TokenLogprob] = []
        self.is_done = False

    def note(self, logits: Tensor, token: int) -> None:
        """`token`, which `take` takes next, was drawn after `logits` `[vocab_size]`."""
        if self._params.num_logprobs is not None:
            self._noted = token_logprob(self._tokenizer, logits, token, self._params.num_logprobs)

    def take(self, token: int) -> list[GeneratedSegment]:
        """Go on with the next token, all before it being fed. Returns the segments that are complete, without states:
        one at most if states are wanted. If it is not done, `token` is to be fed."""
        segmenter, complete = self._segmenter, [self._closed] if self._closed else []
        self._closed = None
        if not segmenter.is_done and (segment := segmenter.end_before(token)):
            complete.append(segment)
        generated = [self._generated(one) for one in complete]
        if not segmenter.is_done:
            if self._noted:
                self._logprobs.append(self._noted)
            segment = segmenter.append(token)
            if segment and self._params.want_states:
                self._closed = segment
            elif segment:
                generated.append(self._generated(segment))
        self.is_done = segmenter.is_done and self._closed is None
        return generated

    def _generated(self, segment: Segment) -> GeneratedSegment:
        told = None if self._params.num_logprobs is None else tuple(self._logprobs)
        self._logprobs = []
        return GeneratedSegment(segment, None, 0.0, told)
