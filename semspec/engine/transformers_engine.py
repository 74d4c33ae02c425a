"""The reference engine: any Hugging Face causal LM on CPU or GPU. Simple and exact; other engines are compared to
it."""

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace
from time import perf_counter
from typing import TypeVar

import torch
from torch import Tensor

from semspec.engine.causal_lm import CausalLM, EngineName
from semspec.engine.kv_cache import Prefix, PrefixCache
from semspec.engine.logits import draw_first_tokens, draw_token, scores_of, states_of, token_logprob
from semspec.engine.scheduler import Scheduler, Steps, within_memory
from semspec.engine.segmentation import TokenSegmenter, ended_by_look_ahead
from semspec.engine.speculative import (
    check_proposal,
    check_token_ids,
    draw_with_distribution,
    shared_part,
    verify_tokens,
)
from semspec.engine.tensor_parallel.split import ALONE, Split
from semspec.engine.tokenization import ModelTokenizer, option_ids, parameter_of
from semspec.errors import InvalidRequest
from semspec.types import (
    ChoiceScores,
    Context,
    Distribution,
    GeneratedSegment,
    GenerationParams,
    Message,
    ModelInfo,
    Piece,
    Proposal,
    Segment,
    SegmentScore,
    Token,
    TokenLogprob,
    VerifiedTokens,
    Writer,
)

T = TypeVar("T")

PREFILL_TOKENS = 512
"""Maximum tokens of a prefill chunk, so that other calls can run between two chunks."""


class TransformersEngine:
    """Generates and scores segments, proposes and verifies tokens, scores choices. See
    `semspec.engine.protocol.Engine`."""

    def __init__(self, lm: CausalLM, writer: Writer, cache_bytes: int) -> None:
        self._lm, self._writer = lm, writer
        self.tokenizer: ModelTokenizer = lm.tokenizer
        self._cache = PrefixCache(cache_bytes, lm.new_kv)
        self._scheduler = Scheduler(f"engine-{writer}")

    @classmethod
    def load(
        cls,
        model: str,
        *,
        writer: Writer,
        revision: str | None = None,
        device: str = "auto",
        dtype: str = "auto",
        threads: int = 1,
        cache_bytes: int = 1 << 30,
        max_context_tokens: int | None = None,
        engine: EngineName = "auto",
        split: Split = ALONE,
    ) -> "TransformersEngine":
        """Load a model and start its thread. Raises: Mismatch when the model cannot be served."""
        torch.set_num_threads(threads)
        lm = CausalLM.load(model, revision, device, dtype, max_context_tokens, engine, split)
        return cls(lm, writer, cache_bytes)

    @property
    def lm(self) -> CausalLM:
        return self._lm

    async def info(self) -> ModelInfo:
        cache = self._cache
        return replace(self._lm.info, cache_bytes=cache.num_bytes, max_cache_bytes=cache.max_bytes)

    async def encode(self, prompt: str | Sequence[Message]) -> Piece:
        piece = self.tokenizer.encode(prompt)
        self.tokenizer.check_room(len(piece.token_ids), parameter_of(prompt))
        return piece

    async def tokenize(self, text: str) -> list[Token]:
        return self.tokenizer.tokenize(text)

    async def generate(self, context: Context, params: GenerationParams) -> AsyncGenerator[GeneratedSegment, None]:
        async for generated in self._scheduler.stream(
            within_memory(self._generate_steps(context, params), self._cache)
        ):
            yield generated

    async def score(self, context: Context, segments: Sequence[Segment], session: str = "") -> list[SegmentScore]:
        return await self._result(self._score_steps(context, segments, session))

    async def propose(
        self, context: Context, open_ids: Sequence[int], params: GenerationParams, num_tokens: int
    ) -> Proposal:
        return await self._result(self._propose_steps(context, open_ids, params, num_tokens))

    async def verify(
        self, context: Context, open_ids: Sequence[int], proposal: Proposal, params: GenerationParams
    ) -> VerifiedTokens:
        return await self._result(self._verify_steps(context, open_ids, proposal, params))

    async def score_choices(
        self, context: Context, question: str, prefill: str, options: Sequence[str], session: str = ""
    ) -> ChoiceScores:
        return await self._result(self._score_choices_steps(context, question, prefill, options, session))

    async def aclose(self) -> None:
        await self._scheduler.close()
        self._cache.clear()
        await asyncio.to_thread(self._lm.close)

    async def _result(self, steps: Steps[T]) -> T:
        async with aclosing(self._scheduler.stream(within_memory(steps, self._cache))) as results:
            async for result in results:
                return result
        raise RuntimeError("a unary call yields once")

    @contextmanager
    def _prefix(self, tokens: list[int], session: str) -> Iterator[Prefix]:
        """A cached prefix of `tokens`, returned to the cache when the call ends or fails."""
        prefix = self._cache.take(tokens, session)
        try:
            yield prefix
        finally:
            if prefix.kv.num_tokens == len(
                prefix.tokens
            ):  # otherwise a forward pass failed midway and the cache is invalid
                self._cache.give(prefix)

    def _feed(
        self, prefix: Prefix, tokens: Sequence[int], num_rows: int = 1, want_states: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Extend `prefix` by `tokens`. Returns logits `[num_rows, vocab_size]` of the last positions and states
        `[num_layers + 1, num_tokens, hidden_size]`."""
        forward = self._lm.forward(tokens, prefix.kv, num_rows, want_states)
        prefix.tokens += tokens
        return forward.logits, forward.states

    def _prefill(self, prefix: Prefix, tokens: Sequence[int]) -> Generator[None, None, None]:
        """Feed `tokens` in chunks and yield after each, so that other calls run; store the logits after the last
        token."""
        for start in range(len(prefix.tokens), len(tokens), PREFILL_TOKENS):
            logits, _ = self._feed(prefix, tokens[start : start + PREFILL_TOKENS])
            prefix.remember_logits(len(prefix.tokens), logits[-1])
            yield None

    def _feed_after(
        self, prefix: Prefix, tokens: Sequence[int], following: Sequence[int]
    ) -> Generator[None, None, Tensor]:
        """Feed the tokens that `prefix` lacks, the last chunk together with `following`.

        Returns logits `[len(following) + 1, vocab_size]`: after `tokens`, and after each token of `following`.
        """
        yield from self._prefill(prefix, tokens[: max(0, len(tokens) - PREFILL_TOKENS)])
        rest = tokens[len(prefix.tokens) :]
        if rest:
            rows, _ = self._feed(prefix, [*rest, *following], num_rows=len(following) + 1)
            return rows
        first = prefix.logits[len(tokens)][None]
        return torch.cat([first, self._feed(prefix, following, len(following))[0]]) if following else first

    def _generate_steps(self, context: Context, params: GenerationParams) -> Steps[GeneratedSegment]:
        tokens = self.tokenizer.context_ids(context)
        self.tokenizer.check_room(len(tokens), "context")
        segmenter = TokenSegmenter(self.tokenizer, self._writer, params, tokens)
        start = perf_counter()
        with self._prefix(tokens, params.session) as prefix:
            yield from self._prefill(prefix, tokens)
            first = self._first_token(prefix, params) if ended_by_look_ahead(context, params.segmentation) else None
            while not segmenter.is_done:
                generated = yield from self._write_segment(prefix, segmenter, params, first)
                first = None
                now = perf_counter()
                yield replace(generated, duration_ms=(now - start) * 1e3)
                start = now

    def _first_token(self, prefix: Prefix, params: GenerationParams) -> int:
        """The first token of a call after a sentence that a look-ahead ended."""
        position = len(prefix.tokens)
        logits, sampling = prefix.logits[position][None], params.sampling
        return draw_first_tokens(self.tokenizer, logits, sampling, [sampling.seed], position)[0]

    def _write_segment(
        self, prefix: Prefix, segmenter: TokenSegmenter, params: GenerationParams, first: int | None
    ) -> Generator[None, None, GeneratedSegment]:
        """Generate the next segment after `prefix`, beginning with the token `first`, if given.

        Every token of it is fed, so states and KV cache are complete.
        """
        logprobs: list[TokenLogprob] = []
        total: Tensor | None = None
        segment: Segment | None = None
        while segment is None:
            logits = prefix.logits[len(prefix.tokens)]
            token = draw_token(logits, params.sampling, len(prefix.tokens)) if first is None else first
            first = None
            if segment := segmenter.end_before(token):
                break
            if params.num_logprobs is not None:
                logprobs.append(token_logprob(self.tokenizer, logits, token, params.num_logprobs))
            rows, states = self._feed(prefix, [token], want_states=params.want_states)
            prefix.remember_logits(len(prefix.tokens), rows[-1])
            if params.want_states:
                total = states[:, 0].float() if total is None else total + states[:, 0]
            yield None
            segment = segmenter.append(token)
        pooled = None if total is None else states_of(total / len(segment.token_ids), self._lm.info.fingerprint)
        return GeneratedSegment(segment, pooled, 0.0, None if params.num_logprobs is None else tuple(logprobs))

    def _score_steps(self, context: Context, segments: Sequence[Segment], session: str) -> Steps[list[SegmentScore]]:
        tokens = self.tokenizer.context_ids(context)
        ids = [list(self.tokenizer.read_ids(segment, is_first=False)) for segment in segments]
        if not ids or not all(ids):
            raise InvalidRequest("nothing to score; send segments that contain text", "segments")
        all_ids = [token for segment_ids in ids for token in segment_ids]
        self.tokenizer.check_room(len(tokens) + len(all_ids), "segments")
        start = perf_counter()
        with self._prefix(tokens, session) as prefix:
            yield from self._prefill(prefix, tokens)
            first = prefix.logits[len(tokens)]
            rows, states = self._feed(prefix, all_ids, num_rows=len(all_ids), want_states=True)
            prefix.remember_logits(len(prefix.tokens), rows[-1])
            scores = scores_of(ids, torch.cat([first[None], rows]), states, self._lm.info.fingerprint)
            duration_ms = (perf_counter() - start) * 1e3
            yield [replace(score, duration_ms=duration_ms) for score in scores]

    def _propose_steps(
        self, context: Context, open_ids: Sequence[int], params: GenerationParams, num_tokens: int
    ) -> Steps[Proposal]:
        check_token_ids(self.tokenizer, open_ids, "open_token_ids")
        tokens = [*self.tokenizer.context_ids(context), *open_ids]
        self.tokenizer.check_room(len(tokens), "context")
        start = perf_counter()
        with self._prefix(tokens, params.session) as prefix:
            yield from self._prefill(prefix, tokens)
            drafted: list[int] = []
            distributions: list[Distribution] = []
            for index in range(min(num_tokens, self._lm.info.max_context_tokens - len(tokens))):
                if index:  # the next call feeds the last token, with the target's token
                    rows, _ = self._feed(prefix, drafted[-1:])
                    prefix.remember_logits(len(prefix.tokens), rows[-1])
                    yield None
                position = len(prefix.tokens)
                token, distribution = draw_with_distribution(prefix.logits[position], params.sampling, position)
                drafted.append(token)
                distributions.append(distribution)
                if token in self.tokenizer.eos_ids:
                    break
            duration_ms = (perf_counter() - start) * 1e3
            yield Proposal(tuple(drafted), tuple(distributions), self._lm.info.tokenizer, duration_ms)

    def _verify_steps(
        self, context: Context, open_ids: Sequence[int], proposal: Proposal, params: GenerationParams
    ) -> Steps[VerifiedTokens]:
        check_token_ids(self.tokenizer, open_ids, "open_token_ids")
        check_proposal(self.tokenizer, proposal)
        context_ids = self.tokenizer.context_ids(context)
        tokens = [*context_ids, *open_ids]
        self.tokenizer.check_room(len(tokens), "context")
        segmenter = TokenSegmenter(self.tokenizer, self._writer, params, context_ids, open_ids)
        if segmenter.num_left < 1:
            raise InvalidRequest("open_token_ids: they already fill max_tokens", "open_token_ids")
        drafted = proposal.token_ids[: segmenter.num_left]
        start = perf_counter()
        with self._prefix(tokens, params.session) as prefix:
            num_shared, distributions = shared_part(self.tokenizer, proposal)
            rows = yield from self._feed_after(prefix, tokens, drafted[:num_shared])
            is_first = not open_ids and ended_by_look_ahead(context, params.segmentation)
            ended = self.tokenizer if is_first else None
            chosen = verify_tokens(rows, drafted, distributions[: len(drafted)], params.sampling, len(tokens), ended)
            num_taken = next((index for index, token in enumerate(chosen) if not segmenter.take(token)), len(chosen))
            num_accepted = min(num_taken, len(chosen) - 1)
            prefix.crop(len(tokens) + num_accepted)
            prefix.remember_logits(len(prefix.tokens), rows[num_accepted])
            duration_ms = (perf_counter() - start) * 1e3
            is_foreign = bool(drafted) and proposal.tokenizer != self._lm.info.tokenizer
            open_piece = segmenter.open_piece if is_foreign else None
            open_ids = tuple(segmenter.open_ids)
            yield VerifiedTokens(tuple(segmenter.segments), open_ids, num_accepted, duration_ms, open_piece)

    def _score_choices_steps(
        self, context: Context, question: str, prefill: str, options: Sequence[str], session: str
    ) -> Steps[ChoiceScores]:
        tokens = self.tokenizer.context_ids(context)
        turn = self.tokenizer.question_ids(tokens, question, prefill)
        choice_ids = option_ids(self.tokenizer.raw, options)
        self.tokenizer.check_room(len(tokens) + len(turn), "context")
        start = perf_counter()
        with self._prefix(tokens, session) as prefix:
            rows = yield from self._feed_after(prefix, tokens, turn)
            prefix.crop(len(tokens))  # remove the question: the next call continues from the context
            prefix.remember_logits(len(tokens), rows[0])
            probabilities = torch.softmax(rows[-1].float(), -1)
            likeliest = self.tokenizer.token_text(int(probabilities.argmax()))
            duration_ms = (perf_counter() - start) * 1e3
            yield ChoiceScores(tuple(probabilities[choice_ids].tolist()), likeliest, duration_ms)
