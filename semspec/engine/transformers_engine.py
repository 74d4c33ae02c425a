"""Our engine: any Hugging Face causal LM on CPU or GPU, one step for all calls. Other engines are compared to it."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch

from semspec.engine.calls import Calls
from semspec.engine.causal_lm import CausalLM, EngineName
from semspec.engine.protocol import TextEngine, check_supported
from semspec.engine.shaping import Counts, Grammars, Shaping
from semspec.engine.speculative import check_no_retrieval
from semspec.engine.steps import PrefixCache, Steps
from semspec.engine.worker import Scheduler, Worker
from semspec.probes.projection import Projections
from semspec.types import (
    ChoiceScores,
    Context,
    GeneratedSegment,
    GenerationParams,
    ModelInfo,
    Proposal,
    Segment,
    SegmentScore,
    VerifiedTokens,
    Writer,
)

T = TypeVar("T")
KV_BYTES = 4 << 30
"""Default bound on keys and values in memory."""


class TransformersEngine(TextEngine):
    """See `semspec.engine.protocol.Engine`."""

    def __init__(
        self, lm: CausalLM, writer: Writer, cache_bytes: int, kv_bytes: int = KV_BYTES, probes: Path | None = None
    ) -> None:
        """`cache_bytes`: keys and values kept between calls; `kv_bytes`: those and the running calls' together;
        `probes`: folder of the probes whose first layers it computes."""
        super().__init__(lm.tokenizer)
        self._projections = Projections(lm.info, str(lm.device), probes)
        self.lm, self.cache = lm, PrefixCache(cache_bytes, lm.new_kv)
        self._grammars = Grammars.of(lm.tokenizer)
        self._info = replace(
            lm.info,
            max_cache_bytes=cache_bytes,
            supports_grammars=self._grammars is not None,
            supports_penalties=True,
            num_token_ids=lm.tokenizer.num_embeddings,
        )
        self.calls = Calls(lm, writer, self.cache, self._projections)
        self.steps = Worker(f"engine-{writer}", lm, self.cache, Scheduler(self.cache, kv_bytes))
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
        threads: int = 1,
        cache_bytes: int = 1 << 30,
        kv_bytes: int = KV_BYTES,
        probes: Path | None = None,
        max_context_tokens: int | None = None,
        engine: EngineName = "auto",
    ) -> "TransformersEngine":
        """Load a model and start its thread. Raises: Mismatch when the model cannot be served."""
        torch.set_num_threads(threads)
        lm = CausalLM.load(model, revision, device, dtype, max_context_tokens, engine)
        return cls(lm, writer, cache_bytes, kv_bytes, probes)

    async def info(self) -> ModelInfo:
        return replace(self._info, cache_bytes=self.cache.num_bytes, projections=self._projections.digests)

    async def read_probes(self) -> None:
        await asyncio.to_thread(self._projections.read)

    async def generate(self, context: Context, params: GenerationParams) -> AsyncGenerator[GeneratedSegment, None]:
        check_supported(params, self._info)
        context = await self._owned(context)
        steps = self.calls.generate(context, params, await self._shaping(context, params))
        async for generated in self.steps.stream(steps, params.is_ahead):
            yield generated

    async def score(
        self, context: Context, segments: Sequence[Segment], session: str = "", projection: str = ""
    ) -> list[SegmentScore]:
        segments = await self.tokenizer.owned(tuple(segments), is_context=False)
        return await self._result(self.calls.score(await self._owned(context), segments, session, projection))

    async def propose(
        self, context: Context, open_ids: Sequence[int], params: GenerationParams, num_tokens: int
    ) -> Proposal:
        check_no_retrieval(params)
        return await self._result(self.calls.propose(await self._owned(context), open_ids, params, num_tokens))

    async def verify_tokens(
        self, context: Context, open_ids: Sequence[int], proposal: Proposal, params: GenerationParams
    ) -> VerifiedTokens:
        return await self._result(self.calls.verify_tokens(await self._owned(context), open_ids, proposal, params))

    async def score_choices(
        self, context: Context, question: str, prefill: str, options: Sequence[str], session: str = ""
    ) -> ChoiceScores:
        context = await self._owned(context)
        return await self._result(self.calls.score_choices(context, question, prefill, options, session))

    async def aclose(self) -> None:
        await self.steps.close()
        self.cache.clear()
        if self._grammars:
            self._grammars.close()

    async def _shaping(self, context: Context, params: GenerationParams) -> Shaping | None:
        """Grammar and penalties after the segments of `context`, whose tokens count as written."""
        if not params.grammar and params.penalties.is_neutral:
            return None
        segments = (piece for piece in context.pieces if isinstance(piece, Segment))
        written = [token for segment in segments for token in self.tokenizer.read_ids(segment, is_first=False)]
        counts = None
        if not params.penalties.is_neutral:
            tokens = self.tokenizer.context_ids(context)
            counts = Counts(params.penalties, tokens, written, self.tokenizer.num_embeddings)
        matcher = None
        if params.grammar and self._grammars:
            matcher = await self._grammars.matcher(params.grammar, written)
        return Shaping(matcher, counts)

    async def _result(self, steps: Steps[T]) -> T:
        async with aclosing(self.steps.stream(steps)) as results:
            async for result in results:
                return result
        raise RuntimeError("a unary call yields once")
