"""The bundled target, once for the folder."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from semspec.engine.causal_lm import CausalLM
from semspec.engine.torch_engine import TorchEngine
from semspec.stack import BUNDLED_PAIR
from semspec.types import Context, GeneratedSegment, GenerationParams, SamplingParams, Writer
from tests.helpers.fakes import collected
from tests.remote.support import PROMPT, Local


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def local() -> AsyncIterator[Local]:
    lm = CausalLM.load(str(BUNDLED_PAIR / "target"), None, "cpu", "float32")
    engine = TorchEngine(lm, Writer.TARGET, 1 << 26)
    yield Local(lm, engine)
    await engine.aclose()


@pytest.fixture(scope="package")
def context(local: Local) -> Context:
    return Context((local.lm.tokenizer.encode(PROMPT),))


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def written(local: Local, context: Context) -> list[GeneratedSegment]:
    """What the engine itself writes, to the end."""
    params = GenerationParams(SamplingParams(0.0), max_segments=0, max_tokens=300, want_states=True)
    return await collected(local.engine.generate(context, params))
