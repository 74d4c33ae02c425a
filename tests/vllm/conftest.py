"""One vLLM for all tests that only ask: it takes a while to start."""

from collections.abc import AsyncIterator

import pytest_asyncio

from semspec.engine.transformers_engine import TransformersEngine
from semspec.engine.vllm.engine import VllmEngine
from tests.vllm.support import SMALL_TOKENS, kv_bytes_of_token, our_engine, vllm_engine


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def theirs() -> AsyncIterator[VllmEngine]:
    """vLLM with the bundled target."""
    async with vllm_engine() as (engine, reasons):
        yield engine
        assert not reasons


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def small() -> AsyncIterator[VllmEngine]:
    """vLLM that computes prompts in chunks of 64 tokens, has keys and values for `SMALL_TOKENS` tokens only, so that it
    pre-empts requests, and keeps none between requests."""
    async with vllm_engine(
        kv_bytes=SMALL_TOKENS * kv_bytes_of_token(),
        cache_bytes=0,
        max_context_tokens=400,
        vllm_max_num_batched_tokens=64,
        vllm_max_num_seqs=16,
    ) as (engine, reasons):
        yield engine
        assert not reasons


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def ours() -> AsyncIterator[TransformersEngine]:
    """Our engine with the bundled target."""
    engine = our_engine()
    yield engine
    await engine.aclose()
