"""A question through REST, answered by five processes: what comes back, and what it costs."""

import asyncio
import sys

import psutil
import pytest

from semspec.decoding import Generation
from semspec.types import Acceptance, Context, Message, SamplingParams, Segmentation
from tests.helpers.processes import GENEROUS_S
from tests.helpers.stack import (
    MAX_TOKENS,
    QUESTION,
    Json,
    Pair,
    Running,
    answer_of,
    assert_same,
    has_mapped,
    in_process,
    is_text,
    up_to,
)
from tests.helpers.variants import PLAIN, VARIANTS, changed

pytestmark = pytest.mark.asyncio(loop_scope="package")

IN_FLIGHT = "semspec_gateway_generations_in_flight"
SETTLED_S = 0.3
"""Processor time that two idle services may take in a second; a model at work takes nearly all of it."""

CASES: list[tuple[str, int, Segmentation, Acceptance]] = [
    ("semantic", 1, Segmentation.PARAGRAPH, Acceptance("sample")),
    ("semantic", 2, Segmentation.PARAGRAPH, Acceptance("sample")),
    ("semantic", 3, Segmentation.PARAGRAPH, Acceptance("threshold", 1.05)),
    ("semantic", 1, Segmentation.SENTENCE, Acceptance("sample")),
    ("semantic+token-level", 2, Segmentation.PARAGRAPH, Acceptance("sample")),
    ("token-level", 1, Segmentation.PARAGRAPH, Acceptance()),
    ("last-hidden", 2, Segmentation.PARAGRAPH, Acceptance("sample")),
    ("surprisal", 1, Segmentation.PARAGRAPH, Acceptance("sample")),
    ("likelihood", 2, Segmentation.PARAGRAPH, Acceptance()),
    ("target", 1, Segmentation.PARAGRAPH, Acceptance()),
    ("draft", 1, Segmentation.PARAGRAPH, Acceptance()),
]


def fields(strategy: str, gamma: int, segmentation: Segmentation, acceptance: Acceptance) -> Json:
    """The request that asks for this; `sample` takes no threshold."""
    rule: Json = {"rule": acceptance.rule}
    if acceptance.threshold is not None:
        rule["threshold"] = acceptance.threshold
    options = {
        **VARIANTS[strategy],
        "gamma": gamma,
        "segmentation": segmentation.value,
        "acceptance": rule,
    }
    return {"max_tokens": MAX_TOKENS, "top_p": 0.97, "semspec": {**options, "trace": True}}


@pytest.mark.parametrize("seed", [1, 2])
async def test_answer_over_rest_equals_the_loop_in_process(
    running: Running, pair: Pair, seed: int
) -> None:
    verdicts, num_segments = set(), 0
    prompt = await pair.backends.target.encode([Message("user", QUESTION)])
    for strategy, gamma, segmentation, acceptance in CASES:
        sampling = SamplingParams(1.0, 0.97, 0, seed)
        plain = Generation(
            Context((prompt,)),
            sampling,
            MAX_TOKENS,
            segmentation=segmentation,
            session="here",
            strategy=PLAIN,
        )
        generation = changed(plain, strategy, gamma=gamma, acceptance=acceptance)
        expected = await in_process(generation, pair)
        answer = await running.answer(
            seed=seed, **fields(strategy, gamma, segmentation, acceptance)
        )
        assert_same(answer["semspec"]["trace"], expected)
        assert answer_of(answer) == "".join(record["text"] for record in expected)
        assert answer["semspec"]["fallback"] is None and answer["semspec"]["degraded"] is False
        verdicts |= {record["verdict"] for record in expected}
        num_segments += len(expected)
    assert verdicts == {"accepted", "rewritten", "unjudged"}
    assert num_segments > 5 * len(CASES)


@pytest.mark.parametrize("strategy", ["semantic", "target", "draft"])
async def test_client_that_hangs_up_stops_both_models(running: Running, strategy: str) -> None:
    models = [running.pid("draft"), running.pid("target")]
    async with running.streaming(
        seed=3, max_tokens=15_000, semspec={"strategy": strategy}
    ) as stream:
        await up_to(is_text, stream)
        assert await running.metric(IN_FLIGHT) == 1
    async with asyncio.timeout(GENEROUS_S):
        while await running.metric(IN_FLIGHT) or await spent_in_a_second(models) >= SETTLED_S:
            await asyncio.sleep(0.05)


async def spent_in_a_second(pids: list[int]) -> float:
    processes = [psutil.Process(pid) for pid in pids]
    for process in processes:
        process.cpu_percent()  # the next is from here on
    await asyncio.sleep(1)
    return float(sum(process.cpu_percent() for process in processes)) / 100


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists what a process has mapped")
async def test_torch_is_in_the_services_and_not_in_the_gateway(running: Running) -> None:
    assert has_mapped(running.pid("target"), "libtorch")
    assert not has_mapped(running.pid("gateway"), "libtorch")


async def test_states_leave_the_gateways_path(running: Running) -> None:
    """The stack has both engines read the pair's probes, whose first layers they then compute."""
    samples = [
        f'semspec_gateway_service_whole_states{{service="{role}"}}' for role in ("draft", "target")
    ]
    before = [await running.metric(sample) for sample in samples]
    answer = await running.answer(semspec={"strategy": "semantic"})
    assert (
        answer["semspec"]["num_segments"]
        and [await running.metric(sample) for sample in samples] == before
    )
