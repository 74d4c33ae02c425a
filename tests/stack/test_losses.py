"""Processes killed in the middle of a generation, and what their absence is to a client."""

import httpx
import pytest

from tests.processes import Process
from tests.stack.support import Json, Running, until_first_segment

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="package")]

LONG: Json = {"seed": 4, "max_tokens": 600}
"""Seconds of work, of which a test sees the first segment."""
SHORT: Json = {"seed": 4, "max_tokens": 60}


def assert_unavailable(response: httpx.Response) -> None:
    """OpenAI's shape of an error that a retry may cure."""
    error = response.json()["error"]
    assert response.status_code == 503
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("server_error", "service_unavailable")


@pytest.mark.parametrize("victim", ["draft", "verifier"], indirect=True)
async def test_target_goes_on_alone_without(running: Running, victim: Process) -> None:
    async with running.streaming(**LONG, stream_options={"include_usage": True}) as stream:
        chunks = await until_first_segment(stream)
        await victim.kill()
        chunks += [chunk async for chunk in stream]
    assert chunks[-1]["usage"]["completion_tokens"] == LONG["max_tokens"]
    assert chunks[-1]["semspec"]["fallback"].startswith(f"the {victim.role} ")
    assert chunks[-1]["semspec"]["degraded"] is False

    _, line = await running.readiness()  # at once, however long the handshake takes that is under way
    assert line.startswith("ready, with the target alone: ")

    following = await running.answer(**SHORT)
    assert following["usage"]["completion_tokens"] == SHORT["max_tokens"]
    assert following["semspec"]["fallback"].startswith(f"the {victim.role} ")
    assert following["semspec"]["target_ratio"] == 1
    await running.until_ready(200, f"ready, with the target alone: .* the {victim.role} service.*")

    await victim.start()
    await running.until_ready()
    assert (await running.answer(**SHORT))["semspec"]["fallback"] is None


@pytest.mark.parametrize("victim", ["target"], indirect=True)
async def test_stream_ends_with_an_error_and_requests_are_refused_without(running: Running, victim: Process) -> None:
    async with running.streaming(**LONG) as stream:
        await until_first_segment(stream)
        await victim.kill()
        chunks = [chunk async for chunk in stream]
    assert chunks[-1]["error"]["code"] == "service_unavailable"
    assert_unavailable(await running.chat(**SHORT))
    line = await running.until_ready(503, "no handshake with the target service: no replica of the target answers.*")
    address = running.stack.addresses["target"]
    assert address not in line and "SEMSPEC" not in line
    assert f"SEMSPEC_GATEWAY_TARGET_ADDRESS={address}" in running.stack.processes["gateway"].log.read_text()

    await victim.start()
    await running.until_ready()
    assert (await running.answer(**SHORT))["semspec"]["fallback"] is None
