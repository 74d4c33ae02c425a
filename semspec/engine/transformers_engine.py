"""The reference engine: any Hugging Face causal LM on CPU or GPU. Plain, exact, measured against the others."""

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
from semspec.engine.logits import draw_token, scores_of, states_of, token_logprob
from semspec.engine.scheduler import Scheduler, Steps, within_memory
from semspec.engine.segmenter import Segmenter, end_after, ends_before
from semspec.engine.speculative import check_proposal, check_token_ids, draw_with_distribution, verify_tokens
from semspec.engine.tensor_parallel.split import ALONE, Split
from semspec.engine.tokenization import option_ids, turn_after
from semspec.errors import ContextTooLong, InvalidRequest
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
    SegmentEnd,
    SegmentScore,
    Token,
    TokenLogprob,
    VerifiedTokens,
    Writer,
)

T = TypeVar("T")

PREFILL_TOKENS = 512
"""Longest stretch of a context fed in one forward, so that other calls get their turn."""


class TransformersEngine:
    """Writes and reads segments, proposes and verifies tokens, answers. See `semspec.engine.protocol.Engine`."""

    def __init__(self, lm: CausalLM, writer: Writer, cache_bytes: int) -> None:
        self._lm, self._writer = lm, writer
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
        piece = self._lm.encode(prompt)
        self._check_room(len(piece.token_ids), "prompt" if isinstance(prompt, str) else "messages")
        return piece

    async def tokenize(self, text: str) -> list[Token]:
        return self._lm.tokenize(text)

    async def generate(self, context: Context, params: GenerationParams) -> AsyncGenerator[GeneratedSegment, None]:
        async for written in self._scheduler.stream(within_memory(self._generate_steps(context, params), self._cache)):
            yield written

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

    def _check_room(self, num_tokens: int, parameter: str) -> None:
        window = self._lm.info.max_context_tokens
        if num_tokens >= window:
            raise ContextTooLong(
                f"{num_tokens} tokens leave no room in the window of {window}; shorten the {parameter}", parameter
            )

    @contextmanager
    def _prefix(self, tokens: list[int], session: str) -> Iterator[Prefix]:
        """A cached prefix of `tokens`, given back when the call ends, however it ends."""
        prefix = self._cache.take(tokens, session)
        try:
            yield prefix
        finally:
            if prefix.kv.num_tokens == len(prefix.tokens):  # else a forward broke off: not to be trusted
                self._cache.give(prefix)

    def _feed(
        self, prefix: Prefix, tokens: Sequence[int], num_rows: int = 1, want_states: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Extend `prefix`; logits `[num_rows, vocab]` of the last positions, states `[layers + 1, tokens, hidden]`."""
        forward = self._lm.forward(tokens, prefix.kv, num_rows, want_states)
        prefix.tokens += tokens
        return forward.logits, forward.states

    def _prefill(self, prefix: Prefix, tokens: Sequence[int]) -> Generator[None, None, None]:
        """Feed `tokens` in stretches, with a turn for others after each; the logits behind the last are remembered."""
        for start in range(len(prefix.tokens), len(tokens), PREFILL_TOKENS):
            logits, _ = self._feed(prefix, tokens[start : start + PREFILL_TOKENS])
            prefix.remember_logits(len(prefix.tokens), logits[-1])
            yield None

    def _feed_after(
        self, prefix: Prefix, tokens: Sequence[int], following: Sequence[int]
    ) -> Generator[None, None, Tensor]:
        """Feed what `prefix` lacks of `tokens`, then `following` in the same forward as the last of it.

        Logits `[len(following) + 1, vocab_size]`: of the token after `tokens`, and after each of `following`.
        """
        yield from self._prefill(prefix, tokens[: max(0, len(tokens) - PREFILL_TOKENS)])
        rest = tokens[len(prefix.tokens) :]
        if rest:
            rows, _ = self._feed(prefix, [*rest, *following], num_rows=len(following) + 1)
            return rows
        first = prefix.logits[len(tokens)][None]
        return torch.cat([first, self._feed(prefix, following, len(following))[0]]) if following else first

    def _generate_steps(self, context: Context, params: GenerationParams) -> Steps[GeneratedSegment]:
        tokens = self._lm.context_ids(context)
        self._check_room(len(tokens), "context")
        start = perf_counter()
        with self._prefix(tokens, params.session) as prefix:
            yield from self._prefill(prefix, tokens)
            budget = min(params.max_tokens, self._lm.info.max_context_tokens - len(tokens))
            num_segments = 0
            while budget > 0:
                capped = replace(params, max_segment_tokens=min(params.max_segment_tokens, budget))
                written = yield from self._write_segment(prefix, capped)
                budget -= len(written.segment.token_ids)
                num_segments += 1
                now = perf_counter()
                yield replace(written, duration_ms=(now - start) * 1e3)
                start = now
                if written.segment.end is SegmentEnd.EOS or num_segments == params.max_segments:
                    break

    def _write_segment(self, prefix: Prefix, params: GenerationParams) -> Generator[None, None, GeneratedSegment]:
        """One segment after `prefix`; every token of it is fed, so that states and cache are whole."""
        context = list(prefix.tokens)
        tokens: list[int] = []
        logprobs: list[TokenLogprob] = []
        pooled: Tensor | None = None
        end: SegmentEnd | None = None
        while end is None:
            logits = prefix.logits[len(prefix.tokens)]
            token = draw_token(logits, params.sampling, len(prefix.tokens))
            if ends_before(self._lm, params.segmentation, context, tokens, token):
                end = SegmentEnd.BOUNDARY
                break
            if params.num_logprobs is not None:
                logprobs.append(token_logprob(self._lm, logits, token, params.num_logprobs))
            rows, states = self._feed(prefix, [token], want_states=params.want_states)
            prefix.remember_logits(len(prefix.tokens), rows[-1])
            tokens.append(token)
            if params.want_states:
                pooled = states[:, 0].float() if pooled is None else pooled + states[:, 0]
            yield None
            end = end_after(self._lm, params.segmentation, context, tokens, params.max_segment_tokens)
        text = self._lm.text_of(context, tokens)
        segment = Segment(text, tuple(tokens), self._lm.info.tokenizer, self._writer, end)
        pooled_states = None if pooled is None else states_of(pooled / len(tokens), self._lm.info.fingerprint)
        return GeneratedSegment(segment, pooled_states, 0.0, None if params.num_logprobs is None else tuple(logprobs))

    def _score_steps(self, context: Context, segments: Sequence[Segment], session: str) -> Steps[list[SegmentScore]]:
        tokens = self._lm.context_ids(context)
        read = [list(self._lm.read_ids(segment, is_first=False)) for segment in segments]
        if not read or not all(read):
            raise InvalidRequest("nothing to read; send segments that hold text", "segments")
        self._check_room(len(tokens) + sum(map(len, read)), "segments")
        start = perf_counter()
        with self._prefix(tokens, session) as prefix:
            yield from self._prefill(prefix, tokens)
            first = prefix.logits[len(tokens)]
            flat = [token for ids in read for token in ids]
            rows, states = self._feed(prefix, flat, num_rows=len(flat), want_states=True)
            prefix.remember_logits(len(prefix.tokens), rows[-1])
            readings = scores_of(read, torch.cat([first[None], rows]), states, self._lm.info.fingerprint)
            duration_ms = (perf_counter() - start) * 1e3
            yield [replace(reading, duration_ms=duration_ms) for reading in readings]

    def _propose_steps(
        self, context: Context, open_ids: Sequence[int], params: GenerationParams, num_tokens: int
    ) -> Steps[Proposal]:
        check_token_ids(self._lm, open_ids, "open_token_ids")
        tokens = [*self._lm.context_ids(context), *open_ids]
        self._check_room(len(tokens), "context")
        start = perf_counter()
        with self._prefix(tokens, params.session) as prefix:
            yield from self._prefill(prefix, tokens)
            drafted: list[int] = []
            distributions: list[Distribution] = []
            for index in range(min(num_tokens, self._lm.info.max_context_tokens - len(tokens))):
                if index:  # the last one is fed by the next call, along with what the target adds
                    rows, _ = self._feed(prefix, drafted[-1:])
                    prefix.remember_logits(len(prefix.tokens), rows[-1])
                    yield None
                position = len(prefix.tokens)
                token, distribution = draw_with_distribution(prefix.logits[position], params.sampling, position)
                drafted.append(token)
                distributions.append(distribution)
                if token in self._lm.eos_ids:
                    break
            duration_ms = (perf_counter() - start) * 1e3
            yield Proposal(tuple(drafted), tuple(distributions), self._lm.info.tokenizer, duration_ms)

    def _verify_steps(
        self, context: Context, open_ids: Sequence[int], proposal: Proposal, params: GenerationParams
    ) -> Steps[VerifiedTokens]:
        check_token_ids(self._lm, open_ids, "open_token_ids")
        check_proposal(self._lm, proposal)
        context_ids = self._lm.context_ids(context)
        tokens = [*context_ids, *open_ids]
        self._check_room(len(tokens), "context")
        segmenter = Segmenter(self._lm, self._writer, context_ids, open_ids, params)
        if segmenter.num_left < 1:
            raise InvalidRequest("open_token_ids: they already fill max_tokens", "open_token_ids")
        drafted = proposal.token_ids[: segmenter.num_left]
        start = perf_counter()
        with self._prefix(tokens, params.session) as prefix:
            rows = yield from self._feed_after(prefix, tokens, drafted)
            distributions = proposal.distributions[: len(drafted)]
            chosen = verify_tokens(rows, drafted, distributions, params.sampling, len(tokens))
            num_taken = next((index for index, token in enumerate(chosen) if not segmenter.take(token)), len(chosen))
            num_accepted = min(num_taken, len(chosen) - 1)
            prefix.crop(len(tokens) + num_accepted)
            prefix.remember_logits(len(prefix.tokens), rows[num_accepted])
            duration_ms = (perf_counter() - start) * 1e3
            yield VerifiedTokens(tuple(segmenter.segments), tuple(segmenter.open_ids), num_accepted, duration_ms)

    def _score_choices_steps(
        self, context: Context, question: str, prefill: str, options: Sequence[str], session: str
    ) -> Steps[ChoiceScores]:
        tokens = self._lm.context_ids(context)
        turn = turn_after(self._lm.tokenizer, question, prefill)
        if tokens[-1] in self._lm.eos_ids and turn[0] in self._lm.eos_ids:  # the context has ended its turn itself
            turn = turn[1:]
        asked = option_ids(self._lm.tokenizer, options)
        self._check_room(len(tokens) + len(turn), "context")
        start = perf_counter()
        with self._prefix(tokens, session) as prefix:
            rows = yield from self._feed_after(prefix, tokens, turn)
            prefix.crop(len(tokens))  # the turn is beside the work: the next call goes on from the context
            prefix.remember_logits(len(tokens), rows[0])
            probabilities = torch.softmax(rows[-1].float(), -1)
            likeliest = self._lm.token_text(int(probabilities.argmax()))
            duration_ms = (perf_counter() - start) * 1e3
            yield ChoiceScores(tuple(probabilities[asked].tolist()), likeliest, duration_ms)
