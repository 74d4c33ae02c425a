"""Text of a segment before its record, in every API; and the work that a stop sequence saves. The engines, gRPC and
REST are real."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from semspec.engine.torch_engine import TorchEngine
from semspec.errors import Unavailable
from tests.engine.support import before_each_step
from tests.gateway.engines import served
from tests.helpers.checkpoints import loaded, save_spelling_checkpoint
from tests.helpers.gateway import Gateway, GatewayFactory, chunks, delta, text
from tests.helpers.gateway_fakes import Fakes
from tests.helpers.variants import VARIANTS

pytestmark = pytest.mark.slow

EXACT = ("target", "token-level")
LIMITS: dict[str, Any] = {"temperature": 1, "max_tokens": 60, "seed": 5}


@pytest.fixture
async def real(tmp_path: Path, redis_url: str) -> AsyncIterator[tuple[Gateway, TorchEngine]]:
    """Over models that write bytes, often a part of a character, with the target's engine."""
    model = save_spelling_checkpoint(tmp_path / "model")
    async with (
        loaded(model, model) as (draft, target),
        served((draft, target), tmp_path, redis_url=redis_url) as gateway,
    ):
        yield gateway, target


async def posted(gateway: Gateway, path: str, **fields: Any) -> httpx.Response:
    response = await gateway.http.post(path, json=fields)
    assert response.status_code == 200, response.text
    return response


def ids_and_chunks(response: httpx.Response) -> list[tuple[str, Any]]:
    """Each chunk of a stream with the id of its event, "" if it has none."""
    found = []
    for block in response.text.split("\n\n"):
        lines = block.split("\n")
        if lines[-1].startswith("data: {"):
            ids = [line.removeprefix("id: ") for line in lines if line.startswith("id: ")]
            found.append((ids[0] if ids else "", json.loads(lines[-1].removeprefix("data: "))))
    return found


@pytest.mark.parametrize("strategy", ["target", "token-level", "semantic", "draft"])
@pytest.mark.parametrize("num_choices", [1, 3])
async def test_streamed_text_is_the_whole_text(
    real: tuple[Gateway, TorchEngine], strategy: str, num_choices: int
) -> None:
    gateway, _ = real
    fields = {**LIMITS, "n": num_choices, "semspec": {"strategy": strategy}}
    whole = (
        await posted(gateway, "/v1/completions", model="semspec-demo", prompt="Once", **fields)
    ).json()
    stream = await posted(
        gateway, "/v1/completions", model="semspec-demo", prompt="Once", stream=True, **fields
    )
    for index, choice in enumerate(whole["choices"]):
        parts = [
            one["text"]
            for chunk in chunks(stream)
            for one in chunk["choices"]
            if one["index"] == index
        ]
        assert "".join(parts) == choice["text"]
        assert not any("\ufffd" in part for part in parts if "\ufffd" not in choice["text"]), (
            "no half characters"
        )
    num_tokens = whole["usage"]["completion_tokens"]
    assert 50 * num_choices < num_tokens <= 60 * num_choices
    if strategy == "target":
        assert len(chunks(stream)) > num_tokens / 4


@pytest.mark.parametrize("strategy", EXACT)
async def test_first_text_is_sent_before_the_next_step(
    real: tuple[Gateway, TorchEngine], strategy: str
) -> None:
    """The target waits for the client to read it."""
    gateway, target = real
    num_steps, may_go_on = 0, asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait(sizes: list[int]) -> None:
        nonlocal num_steps
        num_steps += 1
        if num_steps == 7:
            asyncio.run_coroutine_threadsafe(may_go_on.wait(), loop).result(60)

    before_each_step(target, wait)
    body = {"model": "semspec-demo", "prompt": "Once", "stream": True, "seed": 1, **LIMITS}
    body |= {"semspec": {"strategy": strategy}}
    async with gateway.http.stream("POST", "/v1/completions", json=body) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {") and json.loads(line[6:])["choices"][0]["text"]:
                assert may_go_on.is_set() or num_steps <= 7
                may_go_on.set()
    assert num_steps > 7


async def test_logprobs_come_with_their_tokens(real: tuple[Gateway, TorchEngine]) -> None:
    gateway, _ = real
    fields = {**LIMITS, "model": "semspec-demo:target", "prompt": "Once", "logprobs": 1}
    whole = (await posted(gateway, "/v1/completions", **fields)).json()["choices"][0]
    stream = await posted(gateway, "/v1/completions", stream=True, **fields)
    parts = [choice for chunk in chunks(stream) for choice in chunk["choices"]]
    assert len(parts) > 10
    for name in ("tokens", "text_offset"):
        streamed = [item for part in parts if part["logprobs"] for item in part["logprobs"][name]]
        assert streamed == whole["logprobs"][name]
    assert "".join(part["text"] for part in parts) == whole["text"]


@pytest.mark.parametrize("strategy", ["target", "token-level", "semantic"])
async def test_stream_is_resumed_after_each_of_its_events(
    start_gateway: GatewayFactory, strategy: str
) -> None:
    gateway = await start_gateway()
    first = await gateway.chat(stream=True, semspec=VARIANTS[strategy], stop=["never"])
    seen, num_partial = "", 0
    for id, chunk in ids_and_chunks(first):
        seen += delta(chunk)
        if id:
            num_partial += "." in id
            rest = await gateway.events(chunk["id"], after=id)
            assert seen + text(rest) == text(first), id
    assert num_partial >= 4


@pytest.mark.parametrize("strategy", ["target", "token-level", "semantic"])
async def test_interrupted_segment_is_continued_elsewhere(
    start_gateway: GatewayFactory, strategy: str
) -> None:
    """The client has a part of a segment that no gateway has stored."""
    fields: dict[str, Any] = {"semspec": VARIANTS[strategy], "seed": 7}
    undisturbed = await (await start_gateway()).chat(stream=True, **fields)
    places = [id for id, _ in ids_and_chunks(undisturbed) if "." in id]
    for place in (places[0], places[-1]):
        first, second = await start_gateway(), await start_gateway()
        seen, id = "", ""
        body = {
            "model": "semspec-demo",
            "messages": [{"role": "user", "content": "How many?"}],
            **fields,
        }
        async with first.http.stream(
            "POST", "/v1/chat/completions", json={**body, "stream": True}
        ) as response:
            last = ""
            async for line in response.aiter_lines():
                last = line.removeprefix("id: ") if line.startswith("id: ") else last
                if line.startswith("data: {"):
                    chunk = json.loads(line.removeprefix("data: "))
                    seen, id = seen + delta(chunk), chunk["id"]
                    if last == place:
                        break
        rest = await second.events(id, after=place)
        assert seen + text(rest) == text(undisturbed)


async def test_client_with_other_text_is_refused(gateway: Gateway) -> None:
    first = await gateway.chat(stream=True, model="semspec-demo:target")
    id, chunk = next((id, chunk) for id, chunk in ids_and_chunks(first) if "." in id)
    place, size, checksum = id.split(".")
    changed = f"{place}.{size}.{int(checksum) ^ 1}"
    response = await gateway.events(chunk["id"], after=changed)
    assert "conflict" in response.text and "start a new generation" in response.text


@pytest.mark.parametrize("strategy", ["target", "token-level", "semantic"])
async def test_target_that_comes_back_prints_nothing_twice(
    start_gateway: GatewayFactory, strategy: str
) -> None:
    """It goes away after a part of a segment, and the gateway waits for it."""
    undisturbed = await (await start_gateway()).chat(stream=True, semspec=VARIANTS[strategy])
    gateway = await start_gateway(Fakes.make(), target_patience_s=30)
    seen, number = list[Any](), 0
    body = {
        "model": "semspec-demo",
        "messages": [{"role": "user", "content": "How many?"}],
        "seed": 7,
    }
    body |= {"stream": True, "semspec": VARIANTS[strategy]}
    async with gateway.http.stream("POST", "/v1/chat/completions", json=body) as response:
        async for line in response.aiter_lines():
            if line.startswith("id: ") and "." in line:
                number += 1
                if number in (1, 3):
                    gateway.fakes.target.errors.append(Unavailable("gone for a moment"))
            if line.startswith("data: {"):
                seen.append(json.loads(line.removeprefix("data: ")))
    assert "".join(map(delta, seen)) == text(undisturbed)
    assert not any("error" in chunk for chunk in seen)
