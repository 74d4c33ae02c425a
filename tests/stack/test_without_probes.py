"""A pair without probes through REST, answered by three processes and Redis."""

from dataclasses import replace

import pytest

from semspec.decoding import Generation
from semspec.stack import StackConfig
from semspec.types import Context, Message, SamplingParams
from tests.stack.support import MAX_TOKENS, QUESTION, Pair, assert_same, in_process, served

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="package")]


async def test_pair_without_probes_answers_as_the_loop_in_process(stack_config: StackConfig, pair: Pair) -> None:
    bare = replace(stack_config, draft_probe=None, target_probe=None)
    prompt = await pair.backends.target.encode([Message("user", QUESTION)])
    verdicts = set()
    async with served(bare) as running:
        assert "verifier" not in running.stack.processes
        assert await running.readiness() == (200, "ready")
        for seed in range(3):
            sampling = SamplingParams(1.0, 0.97, 0, seed)
            generation = Generation(Context((prompt,)), sampling, MAX_TOKENS, "likelihood", session="here")
            expected = await in_process(generation, pair)
            answer = await running.answer(
                seed=seed, max_tokens=MAX_TOKENS, top_p=0.97, temperature=1.0, semspec={"trace": True}
            )
            assert answer["semspec"]["strategy"] == "likelihood" and answer["semspec"]["fallback"] is None
            assert_same(answer["semspec"]["trace"], expected)
            verdicts |= {record["verdict"] for record in expected}
    assert verdicts == {"accepted", "rewritten"}
