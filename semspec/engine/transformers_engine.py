"""Our engine: any Hugging Face causal LM on CPU or GPU, one step for all calls. Other engines are compared to it."""

from collections.abc import AsyncGenerator, AsyncIterable, Generator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace
from itertools import accumulate
from time import perf_counter
from typing import TypeVar

import torch
from torch import Tensor

from semspec.engine.causal_lm import CausalLM, EngineName
from semspec.engine.logits import draw_first_tokens, draw_token, scores_of, token_logprob
from semspec.engine.prefix_cache import Prefix, PrefixCache
from semspec.engine.scheduler import Scheduler
from semspec.engine.segmentation import TokenSegmenter, ended_by_look_ahead
from semspec.engine.speculative import (
    check_proposal,
    check_token_ids,
    draw_with_distribution,
    shared_part,
    verify_tokens,
)
from semspec.engine.steps import Feed, Output, Steps, fed
from semspec.engine.tokenization import ModelTokenizer, option_ids, parameter_of
from semspec.engine.worker import Worker
from semspec.errors import InvalidRequest
from semspec.probes.projection import Projections
from semspec.types import (
    ChoiceScores,
    Context,
    Distribution,
    GeneratedSegment,
    GenerationParams,
    ModelInfo,
    Piece,
    ProjectionSpec,
    Prompt,
    Proposal,
    Segment,
    SegmentScore,
    Token,
    TokenLogprob,
    VerifiedTokens,
    Writer,
)

T = TypeVar("T")
KV_BYTES = 4 << 30
"""Default bound on keys and values in memory."""


class TransformersEngine:
    """See `semspec.engine.protocol.Engine`."""

    def __init__(
        self, lm: CausalLM, writer: Writer, cache_bytes: int, kv_bytes: int = KV_BYTES, projection_bytes: int = 1 << 30
    ) -> None:
        """`cache_bytes`: keys and values kept between calls; `kv_bytes`: those and the running calls' together."""
        self._lm, self._writer = lm, writer
        self.tokenizer: ModelTokenizer = lm.tokenizer
        self._cache = PrefixCache(cache_bytes, lm.new_kv)
        self._projections = Projections(lm.info, str(lm.device), projection_bytes)
        self._worker = Worker(f"engine-{writer}", lm, self._cache, Scheduler(self._cache, kv_bytes))

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
        kv_bytes: int = KV_BYTES,
        projection_bytes: int = 1 << 30,
        max_context_tokens: int | None = None,
        engine: EngineName = "auto",
    ) -> "TransformersEngine":
        """Load a model and start its thread. Raises: Mismatch when the model cannot be served."""
        torch.set_num_threads(threads)
        lm = CausalLM.load(model, revision, device, dtype, max_context_tokens, engine)
        return cls(lm, writer, cache_bytes, kv_bytes, projection_bytes)

    @property
    def lm(self) -> CausalLM:
        return self._lm

    @property
    def steps(self) -> Worker:
        """Counts the steps; see `semspec.rpc.stalls`."""
        return self._worker

    async def info(self) -> ModelInfo:
        cache = self._cache
        return replace(self._lm.info, cache_bytes=cache.num_bytes, max_cache_bytes=cache.max_bytes)

    async def encode(self, prompt: Prompt) -> Piece:
        piece = self.tokenizer.encode(prompt)
        self.tokenizer.check_room(len(piece.token_ids), parameter_of(prompt))
        return piece

    async def tokenize(self, text: str) -> list[Token]:
        return self.tokenizer.tokenize(text)

    async def generate(self, context: Context, params: GenerationParams) -> AsyncGenerator[GeneratedSegment, None]:
        async for generated in self._worker.stream(self._generate_steps(context, params), params.is_ahead):
            yield generated

    async def score(
        self, context: Context, segments: Sequence[Segment], session: str = "", projection: str = ""
    ) -> list[SegmentScore]:
        return await self._result(self._score_steps(context, segments, session, projection))

    async def project(self, spec: ProjectionSpec, data: AsyncIterable[bytes]) -> None:
        await self._projections.keep(spec, data)

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
        await self._worker.close()
        self._cache.clear()

    async def _result(self, steps: Steps[T]) -> T:
        async with aclosing(self._worker.stream(steps)) as results:
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
            num_tokens = prefix.kv.num_tokens  # fewer than the prefix has after an eviction
            if num_tokens <= len(prefix.tokens):  # otherwise a forward pass failed midway and the cache is invalid
                prefix.crop(num_tokens)
                self._cache.give(prefix)

    def _rows_after(
        self, prefix: Prefix, tokens: Sequence[int], following: Sequence[int], segments: Sequence[int] = ()
    ) -> Generator[Feed, Output | None, tuple[Tensor, Sequence[Tensor]]]:
        """Feed the tokens that `prefix` lacks, and `following`. Returns logits `[len(following) + 1, vocab_size]`,
        after `tokens` and each token of `following`, and the states of `segments`: `following` cut at these lengths.
        """
        known = [prefix.logits[len(tokens)][None]] if len(prefix.tokens) == len(tokens) else []
        rest = [*tokens[len(prefix.tokens) :], *following]
        if not rest:
            return known[0], ()
        output = yield from fed(Feed(prefix, rest, len(following) + 1 - len(known), segments))
        rows = torch.cat([*known, output.rows])
        for position in accumulate(segments[:-1], initial=0):  # where a later call may go on
            prefix.remember_logits(len(tokens) + position, rows[position])
        return rows, output.pooled

    def _generate_steps(self, context: Context, params: GenerationParams) -> Steps[GeneratedSegment]:
        tokens = self.tokenizer.context_ids(context)
        self.tokenizer.check_room(len(tokens), "context")
        segmenter = TokenSegmenter(self.tokenizer, self._writer, params, tokens)
        start = perf_counter()
        with self._prefix(tokens, params.session) as prefix:
            token = yield from self._first_token(prefix, context, tokens, params)
            while not segmenter.is_done:
                generated, token = yield from self._write_segment(prefix, token, segmenter, params)
                now = perf_counter()
                yield replace(generated, duration_ms=(now - start) * 1e3)
                start = now

    def _first_token(
        self, prefix: Prefix, context: Context, tokens: Sequence[int], params: GenerationParams
    ) -> Generator[Feed, Output | None, int]:
        """The token drawn after `tokens`, those of `context`."""
        sampling = params.sampling
        if rest := tokens[len(prefix.tokens) :]:
            yield from fed(Feed(prefix, rest))
        logits = prefix.logits[len(tokens)]
        if ended_by_look_ahead(context, params.segmentation):
            return draw_first_tokens(self.tokenizer, logits[None], sampling, [sampling.seed], len(tokens))[0]
        return draw_token(logits, sampling, len(tokens))

    def _write_segment(
        self, prefix: Prefix, token: int, segmenter: TokenSegmenter, params: GenerationParams
    ) -> Generator[Feed, Output | None, tuple[GeneratedSegment, int]]:
        """The next segment after `prefix`, from its first `token` on, all of its tokens fed; and the token after it."""
        logprobs: list[TokenLogprob] = []
        total: Tensor | None = None
        segment = segmenter.end_before(token)
        while segment is None:
            if params.num_logprobs is not None:
                logits = prefix.logits[len(prefix.tokens)]
                logprobs.append(token_logprob(self.tokenizer, logits, token, params.num_logprobs))
            own = (1,) if params.want_states else ()
            output = yield from fed(Feed(prefix, [token], segments=own, sampling=params.sampling))
            for one in output.pooled:
                total = one if total is None else total + one
            segment = segmenter.append(token)
            token = output.token
            segment = segment or segmenter.end_before(token)
        pooled = [] if total is None else [total / len(segment.token_ids)]
        states = next(iter(self._projections.states_of(pooled, params.projection)), None)
        told = None if params.num_logprobs is None else tuple(logprobs)
        return GeneratedSegment(segment, states, 0.0, told), token

    def _score_steps(
        self, context: Context, segments: Sequence[Segment], session: str, projection: str
    ) -> Steps[list[SegmentScore]]:
        tokens = self.tokenizer.context_ids(context)
        ids = [list(self.tokenizer.read_ids(segment, is_first=False)) for segment in segments]
        if not ids or not all(ids):
            raise InvalidRequest("nothing to score; send segments that contain text", "segments")
        all_ids = [token for segment_ids in ids for token in segment_ids]
        self.tokenizer.check_room(len(tokens) + len(all_ids), "segments")
        start = perf_counter()
        with self._prefix(tokens, session) as prefix:
            rows, pooled = yield from self._rows_after(prefix, tokens, all_ids, [len(one) for one in ids])
            scores = scores_of(ids, rows, self._projections.states_of(pooled, projection))
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
            drafted: list[int] = []
            distributions: list[Distribution] = []
            for _ in range(min(num_tokens, self._lm.info.max_context_tokens - len(tokens))):
                # Without the last token: the next call feeds it, with the target's token.
                if rest := [*tokens, *drafted][len(prefix.tokens) :]:
                    yield from fed(Feed(prefix, rest))
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
            rows, _ = yield from self._rows_after(prefix, tokens, drafted[:num_shared])
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
            rows, _ = yield from self._rows_after(prefix, tokens, turn)
            prefix.crop(len(tokens))  # remove the question: the next call continues from the context
            prefix.remember_logits(len(tokens), rows[0])
            probabilities = torch.softmax(rows[-1].float(), -1)
            likeliest = self.tokenizer.token_text(int(probabilities.argmax()))
            duration_ms = (perf_counter() - start) * 1e3
            yield ChoiceScores(tuple(probabilities[choice_ids].tolist()), likeliest, duration_ms)
