"""One vLLM for all tests that only ask: it takes a while to start."""

from collections.abc import AsyncIterator

import pytest_asyncio

from semspec.engine.transformers_engine import TransformersEngine
from semspec.engine.vllm.engine import VllmEngine
from tests.vllm.support import our_engine, vllm_engine


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def theirs() -> AsyncIterator[VllmEngine]:
    """vLLM with the bundled target."""
    async with vllm_engine() as (engine, reasons):
        yield engine
        assert not reasons


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def small() -> AsyncIterator[VllmEngine]:
    """vLLM that computes prompts in chunks of 64 tokens, has keys and values for a few requests only, so that it
    pre-empts the others, and keeps none between requests."""
    kv_bytes = 16 << 20  # 680 tokens
    async with vllm_engine(
        kv_bytes=kv_bytes, cache_bytes=0, max_context_tokens=400, vllm_max_num_batched_tokens=64, vllm_max_num_seqs=16
    ) as (engine, reasons):
        yield engine
        assert not reasons


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def ours() -> AsyncIterator[TransformersEngine]:
    """Our engine with the bundled target."""
    engine = our_engine()
    yield engine
    await engine.aclose()
