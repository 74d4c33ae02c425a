"""One vLLM for all tests that only ask, since it takes a while to start; and the start of `make test-vllm`."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from semspec.commands.plan import read_model
from semspec.engine.torch_engine import TorchEngine
from semspec.engine.vllm.engine import VllmEngine
from semspec.types import Writer
from tests.vllm.lane import Lane
from tests.vllm.support import PROBES, SMALL_TOKENS, TARGET, vllm_engine

LANE = pytest.StashKey[Lane]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the tests that run in vLLM's environment beside the others, which seldom use both cores."""
    functions = [item for item in session.items if isinstance(item, pytest.Function)]
    if (
        any("own_lane" in item.fixturenames for item in functions)
        and not session.config.option.collectonly
    ):
        session.config.stash[LANE] = Lane()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if lane := session.config.stash.get(LANE, None):
        lane.stop()


@pytest.fixture
def own_lane(request: pytest.FixtureRequest) -> Lane:
    """`make test-vllm`, which has run since the first test."""
    return request.config.stash[LANE]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def theirs() -> AsyncIterator[VllmEngine]:
    """vLLM with the bundled target, which counts for metrics."""
    async with vllm_engine(pair=PROBES, metrics_port=9464) as (engine, reasons):
        yield engine
        assert not reasons


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def small() -> AsyncIterator[VllmEngine]:
    """vLLM that computes prompts in chunks of 64 tokens, has keys and values for `SMALL_TOKENS` tokens only, so that it
    pre-empts requests, and keeps none between requests."""
    async with vllm_engine(
        kv_bytes=SMALL_TOKENS * 2 * read_model(str(TARGET)).token_bytes(1, is_fp8=False),  # in fp32
        cache_bytes=0,
        max_context_tokens=400,
        vllm_options={"max_num_batched_tokens": 64, "max_num_seqs": 16},
    ) as (engine, reasons):
        yield engine
        assert not reasons


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def ours() -> AsyncIterator[TorchEngine]:
    """Our engine with the bundled target."""
    engine = TorchEngine.load(str(TARGET), writer=Writer.TARGET, device="cpu", probes=PROBES)
    yield engine
    await engine.aclose()
