"""A target and a draft service with a datastore and no model, through REST."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from semspec.commands.doctor import checks_of
from semspec.stack import StackConfig
from semspec.types import Context, GenerationParams, Message, SamplingParams
from tests.helpers.processes import Process
from tests.helpers.stack import (
    QUESTION,
    Json,
    Pair,
    Running,
    answer_of,
    has_mapped,
    is_text,
    served,
    text_of,
    up_to,
)
from tests.retrieval.support import write

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="package")]

NUM_TOKENS = 400
LONG: Json = {"seed": 4, "max_tokens": NUM_TOKENS, "temperature": 0}


@pytest_asyncio.fixture(loop_scope="package")
async def alone(stack_config: StackConfig, pair: Pair, tmp_path: Path) -> AsyncIterator[Running]:
    """With a datastore of the target's own answer, but for every ninth token."""
    target = pair.backends.target
    prompt = await target.encode([Message("user", QUESTION)])
    params = GenerationParams(SamplingParams(0), max_segments=0, max_tokens=NUM_TOKENS)
    answer = [
        token
        async for one in target.generate(Context((prompt,)), params)
        for token in one.segment.token_ids
    ]
    answer[5::9] = [(token + 1) % 50 for token in answer[5::9]]
    write(tmp_path / "datastore", await target.info(), [[*prompt.token_ids, *answer]])
    config = replace(stack_config, draft_model=None, pair=None, datastore=tmp_path / "datastore")
    async with served(config) as running:
        yield running


async def test_datastore_alone_serves_retrieval_and_its_death_changes_no_answer(
    alone: Running,
) -> None:
    assert await alone.readiness() == (200, "ready")
    checks = await asyncio.to_thread(lambda: list(checks_of(alone.stack.config)))
    assert "fail" not in {check.level for check in checks}, checks
    assert not has_mapped(alone.pid("draft"), "libtorch")

    expected = await alone.answer(**LONG, semspec={"strategy": "target"})
    helped = await alone.answer(**LONG)
    own = helped["semspec"]
    assert (own["strategy"], own["fallback"]) == ("retrieval", None)
    assert own["num_accepted_tokens"] > NUM_TOKENS / 2
    assert answer_of(helped) == answer_of(expected)

    longer = LONG | {
        "max_tokens": 5 * NUM_TOKENS
    }  # goes on for seconds after what the datastore knows
    expected = await alone.answer(**longer, semspec={"strategy": "target"})
    victim = Process.of(alone.stack, "draft")
    async with alone.streaming(**longer) as stream:
        chunks = await up_to(is_text, stream)
        await victim.kill()
        chunks += [chunk async for chunk in stream]
    assert chunks[-1]["semspec"]["fallback"].startswith("the draft ")
    assert text_of(chunks) == answer_of(expected)
    await alone.until_ready(200, "ready, with the target alone: .* the draft service.*")

    await victim.start()
    await alone.until_ready()
    again = await alone.answer(**LONG)
    assert again["semspec"]["fallback"] is None
    assert again["semspec"]["num_accepted_tokens"] > NUM_TOKENS / 2
    assert answer_of(again) == answer_of(helped)
