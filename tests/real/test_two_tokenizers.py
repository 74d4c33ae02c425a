"""A draft that writes for a target with another tokenizer, by text: the same over sockets as in one process."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from semspec.decoding import Backends, Generation
from semspec.decoding.backends import WithoutProbes
from semspec.decoding.loop import render_prompts
from semspec.protocols import Engine
from semspec.types import Acceptance, Context, Message, SamplingParams, Segmentation, SegmentRecord
from tests.helpers.calibrations import calibration
from tests.helpers.checkpoints import loaded
from tests.helpers.engines import assert_same, behind_sockets, trace
from tests.helpers.variants import PLAIN, changed
from tests.real.support import DRAFT, DTYPE, MIDDLE, TARGET, real_model

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

QUESTION = "Tom has 25 pens and sells 6 of them each day for 3 days. How many are left? Reason step by step."
CASES: list[tuple[str, dict[str, Any]]] = [
    ("likelihood", {"gamma": 2}),
    ("spec-reason", {"acceptance": Acceptance(threshold=5.0)}),
    ("random", {}),
    ("draft", {}),
]
"""The strategies that need no common vocabulary; `semantic` needs probes besides."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def models() -> AsyncIterator[tuple[Engine, Engine]]:
    async with loaded(real_model(DRAFT), real_model(TARGET), dtype=DTYPE) as models:
        yield models


async def test_trace_over_sockets_is_that_in_process(models: tuple[Engine, Engine]) -> None:
    draft, target = models
    verifier = WithoutProbes()
    infos = await draft.info(), await target.info()
    likelihood = calibration(*infos, middle=MIDDLE, segmentation=Segmentation.SENTENCE)
    local = Backends(draft, target, verifier, likelihood=likelihood)
    plain, records = await generation_of(local), list[SegmentRecord]()
    async with behind_sockets(draft, target, verifier) as remote:
        for strategy, options in CASES:
            generation = changed(plain, strategy, **options)
            expected = await trace(generation, local)
            assert_same(await trace(generation, replace(remote, likelihood=likelihood)), expected)
            records += expected
    assert not any(record.fallback for record in records)
    assert {record.accepted for record in records} == {True, False, None}
    assert len({record.segment.tokenizer for record in records}) == 2


async def generation_of(backends: Backends) -> Generation:
    """A sampled answer in sentences, for which each model reads the question in its own template."""
    messages = (Message("user", QUESTION),)
    infos = await backends.drafter.info(), await backends.target.info()
    prompts = await render_prompts(
        messages, backends.target.encode(messages), backends.drafter, *infos
    )
    assert prompts.draft is not None
    assert "SmolLM" in prompts.draft.text
    assert "Qwen" in prompts.target.text
    sampling = SamplingParams(temperature=0.6, top_p=0.95, seed=5)
    plain = Generation(
        Context((prompts.target,)),
        sampling,
        60,
        session="here",
        draft_prompt=prompts.draft,
        strategy=PLAIN,
    )
    return replace(plain, segmentation=Segmentation.SENTENCE)
