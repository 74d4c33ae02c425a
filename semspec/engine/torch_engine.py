"""The engine of this process, with PyTorch: all calls share steps of one model on a CPU or a GPU.

`CausalLM` computes the forward passes, by our `Decoder` or by transformers. Other engines are compared to this one.
"""

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor

from semspec.device import num_cores
from semspec.engine.causal_lm import CausalLM, EngineName
from semspec.engine.local import LocalEngine
from semspec.engine.logits import draw_token, segment_scores, token_statistics
from semspec.engine.logits_processor import LogitsProcessor, make_logits_processor
from semspec.engine.requests import (
    Generate,
    GenerationState,
    Propose,
    Request,
    Result,
    Score,
    Verified,
    Verify,
    num_following,
)
from semspec.engine.speculative import (
    LEAST_CONFIDENCE,
    draw_with_distribution,
    largest_probability,
    state_before,
    verify,
)
from semspec.engine.steps import Feed, Output, Prefix, PrefixCache, Steps, run_feed
from semspec.engine.tokenization import ModelTokenizer
from semspec.engine.worker import Scheduler, Worker
from semspec.observability import Metric
from semspec.probes.projection import Projections
from semspec.types import Distribution, ModelInfo, Proposal, SegmentScore, Writer

KV_BYTES = 4 << 30
"""Default bound on keys and values in memory."""


class RequestRunner:
    """Runs requests to one model as generators on the worker's thread; each yields feeds and results (see `Steps`)."""

    def __init__(
        self, lm: CausalLM, writer: Writer, cache: PrefixCache, projections: Projections
    ) -> None:
        self._lm, self._writer, self._cache, self._projections = lm, writer, cache, projections
        self._tokenizer: ModelTokenizer = lm.tokenizer
        self.num_generated = self.num_queried = self.num_cached = 0
        """Tokens of segments and proposals; tokens looked up in the cache, and tokens found there."""

    @contextmanager
    def _prefix(self, tokens: list[int], session: str) -> Iterator[Prefix]:
        """Take a cached prefix of `tokens`, and return it to the cache when the call ends or fails."""
        prefix = self._cache.take(tokens, session)
        self.num_queried += len(tokens)
        self.num_cached += len(prefix.tokens)
        try:
            yield prefix
        finally:
            num_tokens = prefix.kv.num_tokens  # after an eviction, fewer than `prefix.tokens`
            if num_tokens <= len(prefix.tokens):  # else a forward pass failed midway: invalid
                prefix.crop(num_tokens)
                self._cache.give(prefix)

    def _rows_after(
        self,
        prefix: Prefix,
        tokens: Sequence[int],
        following: Sequence[int],
        segments: Sequence[int] = (),
        wants_each: bool = False,
    ) -> Generator[Feed, Output | None, tuple[Tensor, Sequence[Tensor]]]:
        """Feed the tokens that `prefix` lacks, then `following`, and return logits and states.

        The logits are `[len(following) + 1, vocab_size]`, after `tokens` and after each token of `following`. The
        states are those of `segments`: `following` divided at these lengths. With `wants_each` they are those of each
        row's token; the first is missing if `prefix` had it, and all are missing if `prefix` lacked more than one.
        """
        known = [prefix.logits[len(tokens)][None]] if len(prefix.tokens) == len(tokens) else []
        rest = [*tokens[len(prefix.tokens) :], *following]
        if not rest:
            return known[0], ()
        # Not for a whole prompt, whose states need much memory.
        if wants_each and len(rest) <= len(following) + 1:
            segments = (1,) * len(rest)
        feed = Feed(prefix, rest, len(following) + 1 - len(known), segments)
        output = yield from run_feed(feed)
        rows = torch.cat([*known, output.rows])
        ends = () if wants_each else accumulate(segments[:-1], initial=0)
        for position in ends:  # a later call may continue there
            prefix.remember_logits(len(tokens) + position, rows[position])
        return rows, output.pooled

    def run(
        self,
        all_tokens: Sequence[int],
        request: Request,
        session: str = "",
        processor: LogitsProcessor | None = None,
    ) -> Steps[Result]:
        """Yield the results of a request that reads `all_tokens`. `processor`: of the tokens it generates."""
        start, end = perf_counter(), len(all_tokens) - num_following(request)
        tokens, following = list(all_tokens[:end]), all_tokens[end:]
        with self._prefix(tokens, session) as prefix:
            num_cached = len(prefix.tokens)
            value: object
            match request:
                case Generate():
                    yield from self._generate(prefix, tokens, request, processor)
                    return
                case Propose():
                    value = yield from self._propose(prefix, tokens, request)
                case Verify():
                    value = yield from self._verify(prefix, tokens, following, request)
                case Score():
                    value = yield from self._score(prefix, tokens, following, request)
            yield Result(value, (perf_counter() - start) * 1e3, num_cached)

    def _score(
        self, prefix: Prefix, tokens: list[int], following: Sequence[int], request: Score
    ) -> Generator[Feed, Output | None, list[SegmentScore]]:
        lengths = request.lengths
        rows, pooled = yield from self._rows_after(prefix, tokens, following, lengths)
        ids = torch.tensor(following, device=rows.device)
        parts = zip(rows[:-1].split(lengths), ids.split(lengths), strict=True)
        states = self._projections.states_of(pooled, request.projection)
        return segment_scores([token_statistics(*part) for part in parts], states)

    def _generate(
        self,
        prefix: Prefix,
        tokens: list[int],
        request: Generate,
        processor: LogitsProcessor | None,
    ) -> Steps[Result]:
        params, start, num_cached = request.params, perf_counter(), len(prefix.tokens)
        generation = GenerationState(self._tokenizer, self._writer, request, tokens)
        if rest := tokens[num_cached:]:
            yield from run_feed(Feed(prefix, rest))
        logits, total = prefix.logits[len(tokens)], None
        # With changed logits one model writes all text, so it draws the token that ended a sentence again.
        ended = self._tokenizer if request.is_after_end and not processor else None
        token = draw_token(
            processor.first()(logits) if processor else logits, params.sampling, len(tokens), ended
        )
        segments = (1,) if params.want_states else ()
        while True:
            generation.note(logits, token)
            for generated in generation.take(token):
                if total is not None:
                    pooled = [total / len(generated.segment.token_ids)]
                    [states] = self._projections.states_of(pooled, params.projection)
                    generated, total = replace(generated, states=states), None
                now = perf_counter()
                self.num_generated += len(generated.segment.token_ids)
                yield Result(generated, (now - start) * 1e3, num_cached)
                start = now
            if request.streams_text and (text := generation.open_text()):
                yield Result(text, 0.0, num_cached)
            if generation.is_done:
                return
            transform = processor.after(token) if processor else None
            output = yield from run_feed(
                Feed(
                    prefix,
                    [token],
                    segments=segments,
                    sampling=params.sampling,
                    transform=transform,
                )
            )
            for token_states in output.pooled:
                total = token_states if total is None else total + token_states
            token, logits = output.token, output.rows[-1]

    def _propose(
        self, prefix: Prefix, tokens: list[int], request: Propose
    ) -> Generator[Feed, Output | None, Proposal]:
        drafted: list[int] = []
        distributions: list[Distribution] = []
        confidence = 1.0
        for _ in range(request.num_tokens):
            # The last drafted token is not fed here: the next call feeds it, with the target's token.
            if rest := [*tokens, *drafted][len(prefix.tokens) :]:
                yield from run_feed(Feed(prefix, rest))
            position = len(prefix.tokens)
            token, distribution = draw_with_distribution(
                prefix.logits[position], request.sampling, position
            )
            drafted.append(token)
            distributions.append(distribution)
            confidence *= largest_probability(prefix.logits[position])
            if token in self._tokenizer.eos_ids or confidence < LEAST_CONFIDENCE:
                break
        self.num_generated += len(drafted)
        return Proposal(tuple(drafted), tuple(distributions), self._lm.info.tokenizer, 0.0)

    def _verify(
        self, prefix: Prefix, tokens: list[int], following: Sequence[int], request: Verify
    ) -> Generator[Feed, Output | None, Verified]:
        layer = request.state_layer
        rows, states = yield from self._rows_after(
            prefix, tokens, following, wants_each=layer is not None
        )
        chosen = verify(rows, request, len(tokens), self._tokenizer)
        num_accepted = len(chosen) - 1
        prefix.crop(len(tokens) + num_accepted)
        prefix.remember_logits(len(prefix.tokens), rows[num_accepted])
        if layer is None:
            return Verified(tuple(chosen))
        rows_before = range(-len(rows), num_accepted + 1 - len(rows))
        return Verified(
            tuple(chosen), tuple(state_before(row, states, layer) for row in rows_before)
        )


class TorchEngine(LocalEngine):
    """Runs the steps of all calls in a thread of its own."""

    def __init__(
        self,
        lm: CausalLM,
        writer: Writer,
        cache_bytes: int,
        kv_bytes: int = KV_BYTES,
        probes: Path | None = None,
    ) -> None:
        """`cache_bytes`: keys and values kept between calls; `kv_bytes`: those of the cache and of running calls;
        `probes`: folder of the probes whose first layers the engine computes."""
        super().__init__(lm.tokenizer, writer, replace(lm.info, max_cache_bytes=cache_bytes))
        self._projections = Projections(lm.info, str(lm.device), probes)
        self.lm, self.cache = lm, PrefixCache(cache_bytes, lm.new_kv)
        self.requests = RequestRunner(lm, writer, self.cache, self._projections)
        self.steps = Worker(f"engine-{writer}", lm, Scheduler(self.cache, kv_bytes))
        """Runs and counts the steps; see `semspec.rpc.servicers.watch_steps`."""

    @classmethod
    def load(
        cls,
        model: str,
        *,
        writer: Writer,
        revision: str | None = None,
        device: str = "auto",
        dtype: str = "auto",
        threads: int | None = None,
        cache_bytes: int = 1 << 30,
        kv_bytes: int = KV_BYTES,
        probes: Path | None = None,
        max_context_tokens: int | None = None,
        engine: EngineName = "auto",
    ) -> "TorchEngine":
        """Load a model and start its thread.

        By default, packed weights use every core, because their threads sleep between products. Other weights use one,
        because waiting threads of PyTorch slow down the other models on the machine.

        Raises: Mismatch when the model cannot be served.
        """
        torch.set_num_threads(threads or num_cores())
        lm = CausalLM.load(model, revision, device, dtype, max_context_tokens, engine, threads)
        torch.set_num_threads(1 if lm.form == "packed" else threads or 1)
        return cls(lm, writer, cache_bytes, kv_bytes, probes)

    async def info(self) -> ModelInfo:
        return replace(
            self._info, cache_bytes=self.cache.num_bytes, projections=self._projections.digests
        )

    def metrics(self) -> Iterator[Metric]:
        requests = self.requests
        yield from self.steps.metrics()
        yield (
            "semspec_engine_generated_tokens_total",
            "Tokens of segments and proposals.",
            requests.num_generated,
        )
        yield (
            "semspec_engine_prefix_cache_queries_total",
            "Tokens looked up in the prefix cache.",
            requests.num_queried,
        )
        yield (
            "semspec_engine_prefix_cache_hits_total",
            "Tokens found in the prefix cache.",
            requests.num_cached,
        )

    async def _results(
        self, tokens: list[int], request: Request, session: str
    ) -> AsyncGenerator[Result, None]:
        processor, is_ahead = None, isinstance(request, Generate) and request.params.is_ahead
        if isinstance(request, Generate) and request.changes_logits:
            if request.params.grammar and self._grammars:
                await self._grammars.compile(request.params.grammar, request.params.owner)
            processor = await asyncio.to_thread(
                make_logits_processor, request, tokens, self.tokenizer, self._grammars
            )
        async with aclosing(
            self.steps.stream(self.requests.run(tokens, request, session, processor), is_ahead)
        ) as results:
            async for result in results:
                yield result

    async def aclose(self) -> None:
        await self.steps.close()
        self.cache.clear()
        if self._grammars:
            self._grammars.close()
