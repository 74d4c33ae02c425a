"""A server's text becomes the segments that the engine would have made of it."""

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from semspec.errors import (
    ContextTooLong,
    DeadlineExceeded,
    InvalidRequest,
    Mismatch,
    Overloaded,
    Unavailable,
)
from semspec.remote.client import Api, Completion, Server
from semspec.remote.connect import connect
from semspec.types import (
    Context,
    GeneratedSegment,
    GenerationParams,
    SamplingParams,
    Segmentation,
    SegmentEnd,
)
from tests.helpers.fakes import collected
from tests.helpers.gateway import eventually
from tests.remote.servers import NAME, Json, Script, serving
from tests.remote.support import PARAGRAPH, PROMPT, TO_THE_END, Local, segments

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="package")]

every_api = pytest.mark.parametrize("api", get_args(Api))
STEP = "So after 2 passes Ivy has the ball. Ivy shows 28. Ivy's card is lower than that of Abel."


@every_api
@pytest.mark.parametrize("size", [None, 1, 5, 10_000])
async def test_segments_and_states_are_those_of_the_engine_however_the_text_is_streamed(
    local: Local, context: Context, written: list[GeneratedSegment], api: Api, size: int | None
) -> None:
    """None: a piece of text is a token."""
    pieces = local.pieces(written)
    if size is not None:
        text = "".join(pieces)
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
    served = await local.served(api, Script(pieces), context, replace(TO_THE_END, want_states=True))
    assert segments(served) == segments(written)
    assert len(written) > 2 and written[-1].segment.end is SegmentEnd.EOS
    for one, other in zip(served, written, strict=True):
        assert one.states and other.states and one.states.model == other.states.model
        own = np.frombuffer(other.states.data, "<f4")
        assert np.allclose(np.frombuffer(one.states.data, "<f4"), own, atol=1e-3)


async def test_sentences_end_as_the_engine_ends_them(local: Local, context: Context) -> None:
    params = replace(TO_THE_END, segmentation=Segmentation.SENTENCE)
    own = await collected(local.engine.generate(context, params))
    assert segments(
        await local.served("tgi", Script(local.pieces(own)), context, params)
    ) == segments(own)


@every_api
async def test_one_paragraph_is_asked_for_with_what_draws_it(
    local: Local, context: Context, written: list[GeneratedSegment], api: Api
) -> None:
    script = Script(local.pieces(written), stalls=api == "openai")
    async with local.written_by(api, script) as remote:
        served = await collected(remote.generate(context, PARAGRAPH))
        if api == "openai":  # which is not told where to stop
            await eventually(lambda: script.num_left == 1)
    assert segments(served) == segments(written)[:1]
    [body] = script.seen
    assert script.headers[0]["authorization"] == "Bearer the-token"
    parameters: Json = body["parameters"] if api == "tgi" else body
    drawn = {name: parameters[name] for name in ("temperature", "top_p", "top_k")}
    assert drawn == {"temperature": 0.6, "top_p": 0.9, "top_k": 5}
    assert (body["inputs"] if api == "tgi" else body["prompt"]) == PROMPT
    assert parameters.get("stop") == (["\n\n"] if api == "tgi" else None)
    assert parameters["max_new_tokens" if api == "tgi" else "max_tokens"] == 512


async def test_request_has_a_seed_of_its_own_that_repeats(
    local: Local, context: Context, written: list[GeneratedSegment]
) -> None:
    script = Script([STEP])
    async with local.written_by("tgi", script) as remote:
        for one in (context, context.extended(*segments(written)[:1]), context):
            await collected(remote.generate(one, PARAGRAPH))
        await collected(
            remote.generate(context, replace(PARAGRAPH, sampling=SamplingParams(0.6, seed=1)))
        )
    first, second, again, other = (body["parameters"]["seed"] for body in script.seen)
    assert first == again and len({first, second, other}) == 3
    assert all(0 <= seed < 2**63 for seed in (first, second, other))


@every_api
async def test_token_of_the_hub_is_kept_from_the_server(
    local: Local, context: Context, monkeypatch: pytest.MonkeyPatch, api: Api
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_of_someone")
    script = Script([STEP])
    async with serving(api, script) as url, aclosing(connect(Server(api, url, NAME))) as client:
        assert await client.served() == [NAME]
        async with aclosing(client.stream(Completion(PROMPT, SamplingParams(), 9))) as deltas:
            assert (await anext(deltas)).text == STEP
    assert len(script.headers) == 2 and "hf_of_someone" not in str(script.headers)


async def test_greedy_tgi_is_not_told_of_filters(local: Local, context: Context) -> None:
    script = Script([STEP])
    await local.served("tgi", script, context, GenerationParams(SamplingParams(0.0, 0.9, 5)))
    assert script.seen[0]["parameters"].keys().isdisjoint({"temperature", "top_p", "top_k"})


async def test_stop_that_is_kept_back_is_put_back(local: Local, context: Context) -> None:
    [served] = await local.served(
        "tgi", Script([STEP, "\n\n", "On"], keeps_stop=False), context, PARAGRAPH
    )
    assert (served.segment.text, served.segment.end) == (f"{STEP}\n\n", SegmentEnd.BOUNDARY)


async def test_stop_before_the_first_word_does_not_end_a_paragraph(
    local: Local, context: Context
) -> None:
    script = Script(["\n\n", STEP, "\n\n", "On"])
    [served] = await local.served("tgi", script, context, PARAGRAPH)
    assert (served.segment.text, served.segment.end) == (f"\n\n{STEP}\n\n", SegmentEnd.BOUNDARY)
    assert [body["inputs"] for body in script.seen] == [PROMPT, f"{PROMPT}\n\n"]


@every_api
async def test_end_without_a_word_is_a_segment(local: Local, context: Context, api: Api) -> None:
    [served] = await local.served(api, Script([]), context, PARAGRAPH)
    assert (served.segment.text, served.segment.token_ids) == (
        "",
        (min(local.lm.tokenizer.eos_ids),),
    )
    assert served.segment.end is SegmentEnd.EOS


async def test_marks_of_reasoning_that_tgi_calls_special_stay_in_the_text(
    local: Local, context: Context
) -> None:
    script = Script(["[THINK]", "So.", "[/THINK]", STEP], special=("[THINK]", "[/THINK]", "<pad>"))
    [served] = await local.served("tgi", script, context, PARAGRAPH)
    assert served.segment.text == f"[THINK]So.[/THINK]{STEP}"


@every_api
async def test_budget_ends_a_segment(local: Local, context: Context, api: Api) -> None:
    script = Script([STEP[:40]], end="length")
    [served] = await local.served(api, script, context, replace(PARAGRAPH, max_tokens=20))
    assert (served.segment.text, served.segment.end) == (STEP[:40], SegmentEnd.LENGTH)
    body = script.seen[0]
    assert (body["parameters"]["max_new_tokens"] if api == "tgi" else body["max_tokens"]) == 20


@pytest.mark.parametrize("size", [3, 10_000])
async def test_segment_without_a_boundary_is_cut_between_tokens(
    local: Local, context: Context, size: int
) -> None:
    pieces = [STEP[start : start + size] for start in range(0, len(STEP), size)]
    params = replace(TO_THE_END, max_segment_tokens=6)
    served = segments(await local.served("tgi", Script([*pieces, "\n\n"]), context, params))
    assert "".join(one.text for one in served) == f"{STEP}\n\n"
    assert [len(one.token_ids) for one in served[:3]] == [6, 6, 6]
    assert {one.end for one in served[:3]} == {SegmentEnd.LENGTH}
    assert served[-1].end is SegmentEnd.EOS
    ids = [token for one in served for token in one.token_ids]
    assert local.lm.tokenizer.text_of((), ids) == f"{STEP}\n\n"


@every_api
async def test_leaving_hangs_up(local: Local, context: Context, api: Api) -> None:
    script = Script([STEP, "\n\n", STEP], stalls=True)
    async with local.written_by(api, script) as remote:
        async with aclosing(remote.generate(context, TO_THE_END)) as stream:
            assert (await anext(stream)).segment.text == f"{STEP}\n\n"
            assert script.num_left == 0
        await eventually(lambda: script.num_left == 1)


@every_api
async def test_cancelled_wait_hangs_up(local: Local, context: Context, api: Api) -> None:
    script = Script([STEP], stalls=True)
    async with local.written_by(api, script) as remote:
        task = asyncio.create_task(collected(remote.generate(context, TO_THE_END)))
        await eventually(lambda: bool(script.seen))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: script.num_left == 1)


@every_api
async def test_stalled_stream_is_given_up_despite_signs_of_life(
    local: Local, context: Context, api: Api
) -> None:
    script = Script([STEP], stalls=True)
    async with local.written_by(api, script, timeout_s=0.5) as remote:
        with pytest.raises(DeadlineExceeded, match=r"nothing came for 0\.5 s; check this and that"):
            await collected(remote.generate(context, TO_THE_END))
        await eventually(lambda: script.num_left == 1)


@every_api
@pytest.mark.parametrize(
    ("status", "error_type", "error"),
    [
        (429, "overloaded", Overloaded),
        (422, "validation", Mismatch),
        (424, "generation", Unavailable),
        (504, "timeout", DeadlineExceeded),
    ],
)
async def test_refusal_is_told_in_the_servers_words(
    local: Local, context: Context, api: Api, status: int, error_type: str, error: type[Exception]
) -> None:
    if api == "openai":
        refusal: Json = {
            "error": {"message": "these words", "type": error_type, "param": None, "code": None}
        }
        error = Mismatch if status == 424 else error
    else:
        known = error_type in ("overloaded", "validation", "generation")
        refusal = {"error": "these words"} | ({"error_type": error_type} if known else {})
    with pytest.raises(error, match=r"does not write segments.*these words.*; check this"):
        await local.served(api, Script([], refusal=(status, refusal)), context, PARAGRAPH)


@every_api
async def test_error_within_a_stream_comes_after_its_segments(
    local: Local, context: Context, api: Api
) -> None:
    message = "out of memory"
    told: Json = (
        {"error": message, "error_type": "generation"}
        if api == "tgi"
        else {"error": {"message": message}}
    )
    received = []
    async with local.written_by(api, Script([STEP, "\n\n"], late_error=told)) as remote:
        with pytest.raises(Unavailable, match="out of memory"):
            async for one in remote.generate(context, TO_THE_END):
                received.append(one.segment.text)
    assert received == [f"{STEP}\n\n"]


@every_api
async def test_stream_that_breaks_off_is_no_end(local: Local, context: Context, api: Api) -> None:
    with pytest.raises(Unavailable, match="closed the stream"):
        await local.served(api, Script([STEP], end=None), context, TO_THE_END)


async def test_orders_it_cannot_fulfil_are_refused_before_the_server_is_asked(
    local: Local, context: Context
) -> None:
    script = Script([STEP])
    long = Context((replace(context.pieces[0], token_ids=(9,) * local.lm.info.max_context_tokens),))
    async with local.written_by("tgi", script) as remote:
        with pytest.raises(InvalidRequest, match="leave it out") as caught:
            await collected(remote.generate(context, replace(PARAGRAPH, num_logprobs=0)))
        with pytest.raises(ContextTooLong, match="shorten the context"):
            await collected(remote.generate(long, PARAGRAPH))
    assert caught.value.parameter == "logprobs" and script.seen == []
