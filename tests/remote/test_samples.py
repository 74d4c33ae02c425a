"""Probe data sampled from a server of others: what its stream may not be taken for."""

import asyncio
from typing import get_args

import pytest

from semspec.errors import InvalidRequest, Unavailable
from semspec.remote.client import Api
from semspec.training.config import ServerSampler
from semspec.training.data.writers import ServerWriter
from semspec.types import (
    Context,
    GenerationParams,
    SamplingParams,
    Segment,
    Segmentation,
    SegmentEnd,
    Writer,
)
from tests.helpers.gateway import eventually
from tests.remote.servers import Script, serving
from tests.remote.support import Local

pytestmark = [
    pytest.mark.asyncio(loop_scope="package"),
    pytest.mark.parametrize("api", get_args(Api)),
]

STEP = "So after 2 passes Ivy has the ball."


async def sampled(
    local: Local,
    context: Context,
    api: Api,
    script: Script,
    seeds: list[int],
    segmentation: Segmentation = Segmentation.PARAGRAPH,
) -> list[Segment]:
    async with serving(api, script) as url:
        config = ServerSampler(backend=api, base_url=url, model="m", concurrency=2, max_retries=0)
        writer = ServerWriter(
            config,
            Writer.DRAFT,
            GenerationParams(SamplingParams(0.8), segmentation),
            local.lm.tokenizer,
        )
        segments = await asyncio.to_thread(writer.generate, context, seeds)
        if script.stalls:  # ending the server would end its streams too
            await eventually(lambda: script.num_left == len(seeds))
        return segments


async def test_each_seed_is_a_request_that_is_left_at_the_boundary(
    local: Local, context: Context, api: Api
) -> None:
    script = Script([STEP, "\n\n", STEP], stalls=True)
    segments = await sampled(local, context, api, script, [1, 2, 2**31 + 3])
    assert [(one.text, one.end, one.writer) for one in segments] == 3 * [
        (f"{STEP}\n\n", SegmentEnd.BOUNDARY, Writer.DRAFT)
    ]
    assert sorted(
        (body["parameters"] if api == "tgi" else body)["seed"] for body in script.seen
    ) == [1, 2, 3]


async def test_sentence_ends_with_its_whole_token(local: Local, context: Context, api: Api) -> None:
    """`.\\n\\n` is one token of the bundled pair; a server's piece of text may end within it."""
    segments = await sampled(
        local, context, api, Script([STEP, "\n", "\n", STEP]), [1], Segmentation.SENTENCE
    )
    assert [(one.text, one.end) for one in segments] == [(f"{STEP}\n\n", SegmentEnd.BOUNDARY)]


async def test_error_of_the_server_names_the_setting(
    local: Local, context: Context, api: Api
) -> None:
    with pytest.raises(Unavailable, match=r"does not write segments.* check sampler\.base_url"):
        await sampled(
            local, context, api, Script([], refusal=(503, {"error": {"message": "unhealthy"}})), [1]
        )


async def test_missing_key_is_told_before_the_first_request(
    local: Local, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    config = ServerSampler(
        backend=api, base_url="http://127.0.0.1:9", model="m", api_key_env="SOME_KEY"
    )
    with pytest.raises(InvalidRequest, match="SOME_KEY is not set"):
        ServerWriter(config, Writer.DRAFT, GenerationParams(SamplingParams()), local.lm.tokenizer)
