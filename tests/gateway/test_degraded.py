"""Services that break and a Redis that goes away: generations go on, and no client is told that it is at fault."""

import asyncio
from pathlib import Path

import pytest
from redis.asyncio import Redis

from semspec.errors import ContextTooLong, InternalError, InvalidRequest, SemspecError
from semspec.types import Piece, Prompt
from tests.helpers.gateway import (
    GENEROUS_S,
    NO_REDIS,
    Gateway,
    GatewayFactory,
    RedisServer,
    assert_error,
)
from tests.helpers.gateway_fakes import NUM_SEGMENTS


@pytest.mark.parametrize("semspec", [{}, {"session": "any"}], ids=str)
async def test_redis_killed_mid_generation_leaves_the_answer_whole(
    start_gateway: GatewayFactory, mortal_redis: RedisServer, semspec: dict[str, str]
) -> None:
    gateway = await start_gateway(redis_url=mortal_redis.url)
    whole = (await gateway.chat(model="semspec-demo:target")).json()
    async with gateway.held(3, semspec=semspec) as running:
        mortal_redis.kill()
    answer = running.response.json()
    assert answer["choices"] == whole["choices"]
    assert whole["semspec"]["degraded"] is False and answer["semspec"]["degraded"] is True
    assert answer["semspec"]["num_segments"] == NUM_SEGMENTS
    assert await gateway.metric("semspec_gateway_degraded_generations_total") == 1
    exposed = (await gateway.http.get("/metrics")).text
    assert "semspec_gateway_redis_failures_total{" in exposed


async def test_without_redis_generation_goes_on_and_the_rest_says_503(
    start_gateway: GatewayFactory,
) -> None:
    gateway = await start_gateway(redis_url=NO_REDIS)
    answer = await gateway.chat()
    assert answer.status_code == 200 and answer.json()["semspec"]["degraded"] is True
    streamed = await gateway.chat(stream=True)
    assert '"degraded":true' in streamed.text and streamed.text.endswith("data: [DONE]\n\n")
    id = answer.json()["id"]
    for method, path in (
        *(("GET", f"/v1/generations/{id}{part}") for part in ("", "/trace", "/events")),
        *(
            ("POST", f"/v1/generations/{id}/cancel"),
            ("GET", "/v1/sessions/any"),
            ("DELETE", "/v1/sessions/any"),
        ),
    ):
        assert_error(await gateway.http.request(method, path), 503, code="service_unavailable")
    for refused in (
        await gateway.chat(semspec={"session": "any"}),
        await gateway.chat({"idempotency-key": "any"}),
    ):
        assert refused.status_code == 503, (
            "an answer without the conversation, or a second one, would be wrong"
        )
    assert (await gateway.http.get("/ready")).status_code == 200


async def test_generation_whose_end_redis_refused_is_not_running(
    start_gateway: GatewayFactory, mortal_redis: RedisServer
) -> None:
    gateway = await start_gateway(redis_url=mortal_redis.url, writer_lease_s=1)
    async with Redis.from_url(mortal_redis.url) as redis:
        async with gateway.held(3) as running:
            await redis.config_set("maxmemory", 1)
        await redis.config_set("maxmemory", 0)
    assert running.response.json()["semspec"]["degraded"] is True
    await gateway.status_becomes(running.id, "interrupted")


async def test_what_redis_missed_is_stored_while_the_answer_goes_on(
    start_gateway: GatewayFactory, mortal_redis: RedisServer
) -> None:
    gateway = await start_gateway(redis_url=mortal_redis.url, writer_lease_s=1)
    target = gateway.fakes.target

    async def stored() -> list[int]:
        return [
            segment["index"] for segment in (await gateway.stored(running.id, "/trace"))["segments"]
        ]

    async with Redis.from_url(mortal_redis.url) as redis, gateway.held(3) as running:
        await redis.config_set("maxmemory", 1)
        target.pause_at = 5
        for step in (target.paused.clear, target.resume.set, target.resume.clear):
            step()
        await asyncio.wait_for(target.paused.wait(), GENEROUS_S)
        assert await stored() == [0, 1, 2]
        await redis.config_set("maxmemory", 0)
        async with asyncio.timeout(GENEROUS_S):
            while await stored() != [0, 1, 2, 3, 4]:
                await asyncio.sleep(0.05)
    assert running.response.json()["semspec"]["degraded"] is False
    assert len(await stored()) == NUM_SEGMENTS


async def test_full_redis_forgets_ended_generations_before_running_ones(
    start_gateway: GatewayFactory, mortal_redis: RedisServer
) -> None:
    deployed = (
        Path(__file__)
        .parents[2]
        .joinpath("deploy/kubernetes/base/redis.conf")
        .read_text()
        .splitlines()
    )
    gateway = await start_gateway(redis_url=mortal_redis.url, writer_lease_s=1)
    ended = [(await gateway.chat()).json()["id"] for _ in range(40)]
    async with Redis.from_url(mortal_redis.url) as redis:
        full = f"maxmemory {(await redis.info('memory'))['used_memory']}"
        for line in (*(line for line in deployed if line.startswith("maxmemory-")), full):
            await redis.config_set(*line.split())
        await asyncio.sleep(1.5)  # it tells times apart by seconds
        async with gateway.held(3) as running:
            later = [await gateway.chat() for _ in range(20)]
    assert not any(answer.json()["semspec"]["degraded"] for answer in (*later, running.response))
    assert len((await gateway.stored(running.id, "/trace"))["segments"]) == NUM_SEGMENTS
    paths = [f"/v1/generations/{id}{route}" for id in ended for route in ("", "/trace", "/events")]
    assert 404 in {(await gateway.http.get(path)).status_code for path in paths} <= {200, 404}
    await gateway.app.state.readiness.check()
    assert (
        0 < await gateway.metric("semspec_gateway_redis_max_memory_bytes") == float(full.split()[1])
    )


async def test_hung_redis_is_waited_for_once(
    start_gateway: GatewayFactory, mortal_redis: RedisServer
) -> None:
    gateway = await start_gateway(redis_url=mortal_redis.url, redis_timeout_s=1)
    assert (await gateway.chat()).json()["semspec"]["degraded"] is False
    mortal_redis.hang()
    answer = (await gateway.chat()).json()["semspec"]
    assert answer["degraded"] is True and answer["num_segments"] == NUM_SEGMENTS
    exposed = (await gateway.http.get("/metrics")).text
    assert (
        'redis_failures_total{operation="account"}' in exposed
    )  # the first answer's end may be one
    assert 'operation="append"' not in exposed, "what could not be begun is not waited for again"


ERRORS = [
    InvalidRequest("bad ids", "token_ids"),
    ContextTooLong("full"),
    InternalError("not a number"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("role", ["drafter", "verifier"])
async def test_broken_helper_means_target_alone(
    gateway: Gateway, role: str, error: SemspecError
) -> None:
    getattr(gateway.fakes, role).lost = error
    answer = await gateway.chat()
    assert answer.status_code == 200
    assert answer.json()["semspec"]["target_ratio"] == 1 and answer.json()["semspec"]["fallback"]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_broken_target_is_unavailable(gateway: Gateway, error: SemspecError) -> None:
    encode = gateway.fakes.target.encode

    async def then_break(prompt: Prompt) -> Piece:
        piece = await encode(prompt)
        gateway.fakes.target.lost = error
        return piece

    gateway.fakes.target.encode = then_break  # type: ignore[method-assign]  # the prompt itself is valid
    answer = await gateway.chat()
    assert_error(answer, 503, code="service_unavailable")
    assert answer.headers["retry-after"] and error.message not in answer.text
