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
from semspec.engine.shaping import shaping_of
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
        super().__init__(lm.tokenizer, writer, replace(lm.info, max_cache_bytes=cache_bytes))
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
        shaping, is_ahead = None, isinstance(request, Generate) and request.params.is_ahead
        if isinstance(request, Generate) and request.is_shaped:
            shaping = await asyncio.to_thread(shaping_of, request, tokens, self.tokenizer, self._grammars)
        async with aclosing(self.steps.stream(self.calls.run(tokens, request, session, shaping), is_ahead)) as results:
            async for result in results:
                yield result

    async def aclose(self) -> None:
        await self.steps.close()
        self.cache.clear()
        if self._grammars:
            self._grammars.close()
