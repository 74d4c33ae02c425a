"""Our engine: any Hugging Face causal LM on CPU or GPU, one step for all calls. Other engines are compared to it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import torch

from semspec.engine.calls import Calls
from semspec.engine.causal_lm import CausalLM, EngineName
from semspec.engine.local import LocalEngine
from semspec.engine.requests import Generate, Request, Result
from semspec.engine.shaping import Counts, Grammars, Shaping
from semspec.engine.steps import PrefixCache
from semspec.engine.tree import MAX_TREE_TOKENS
from semspec.engine.worker import Scheduler, Worker
from semspec.probes.projection import Projections
from semspec.types import ModelInfo, Writer

KV_BYTES = 4 << 30
"""Default bound on keys and values in memory."""


class TransformersEngine(LocalEngine):
    """Makes the steps of all calls in a thread of its own."""

    def __init__(
        self, lm: CausalLM, writer: Writer, cache_bytes: int, kv_bytes: int = KV_BYTES, probes: Path | None = None
    ) -> None:
        """`cache_bytes`: keys and values kept between calls; `kv_bytes`: those and the running calls' together;
        `probes`: folder of the probes whose first layers it computes."""
        self._grammars = Grammars.of(lm.tokenizer)
        info = replace(
            lm.info,
            max_cache_bytes=cache_bytes,
            supports_grammars=self._grammars is not None,
            supports_penalties=True,
            num_token_ids=lm.tokenizer.num_embeddings,
        )
        super().__init__(lm.tokenizer, writer, info)
        self.max_tree_tokens = MAX_TREE_TOKENS if lm.decoder else 0
        self._projections = Projections(lm.info, str(lm.device), probes)
        self.lm, self.cache = lm, PrefixCache(cache_bytes, lm.new_kv)
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

    async def _results(self, tokens: list[int], request: Request, session: str) -> AsyncGenerator[Result, None]:
        shaping, is_ahead = None, False
        if isinstance(request, Generate):
            shaping, is_ahead = await self._shaping(tokens, request), request.params.is_ahead
        async with aclosing(self.steps.stream(self.calls.run(tokens, request, session, shaping), is_ahead)) as results:
            async for result in results:
                yield result

    async def aclose(self) -> None:
        await self.steps.close()
        self.cache.clear()
        if self._grammars:
            self._grammars.close()

    async def _shaping(self, tokens: list[int], request: Generate) -> Shaping | None:
        """Grammar and penalties after the context `tokens`."""
        params, counts, matcher = request.params, None, None
        if not params.penalties.is_neutral:
            counts = Counts(params.penalties, tokens, request.written, self.tokenizer.num_embeddings)
        if params.grammar and self._grammars:
            matcher = await self._grammars.matcher(params.grammar, request.written)
        return Shaping(matcher, counts) if params.is_shaped else None
