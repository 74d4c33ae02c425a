"""Who may ask, and what each owner of a key sees."""

import asyncio
import base64
import logging
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.routing import iter_route_contexts

from semspec.errors import Unauthenticated, Unavailable
from semspec.keys import entry, new_key
from semspec_bench.runners.gateway import open_gateway
from semspec_bench.runners.protocol import RunnerError
from semspec_gateway.api.shared.errors import TGI_PATHS
from tests.helpers.gateway import (
    API_KEY,
    OURS,
    OWNER,
    RENEWED,
    THEIRS,
    TWO_OWNERS,
    Gateway,
    GatewayFactory,
    assert_error,
    bearer,
    eventually,
    exchange,
)
from tests.helpers.gateway_fakes import Fakes

OPEN = {
    ("GET", "/"),
    ("GET", "/health"),
    ("GET", "/ping"),
    ("GET", "/ready"),
    ("GET", "/static/playground.js"),
}

WRONG: dict[str, Any] = {
    "nothing": {"authorization": ""},
    "another key": bearer(new_key()),
    "the owner's name": bearer(OWNER),
    "the hash": bearer(entry(OWNER, API_KEY).partition(":")[2]),
    "the entry": bearer(entry(OWNER, API_KEY)),
    "half the key": bearer(API_KEY[:-1]),
    "no scheme": {"authorization": API_KEY},
    "another scheme": {
        "authorization": f"Basic {base64.b64encode(f'{OWNER}:{API_KEY}'.encode()).decode()}"
    },
    "bytes that are no text": {"authorization": b"Bearer \xff\xfe"},
    "another header": {"authorization": "", "x-api-key": API_KEY},
}


def routes(gateway: Gateway) -> Iterator[tuple[str, str]]:
    """Every method and path of the application, those that no document mentions included."""
    for context in iter_route_contexts(gateway.app.routes):
        assert context.path and context.methods, (
            f"{context.original_route} is of a kind that this test cannot ask"
        )
        path = context.path.replace("{id}", "unknown").replace("{name:path}", "unknown")
        for method in context.methods:
            yield method, path.replace("{name}", "playground.js")


@pytest.mark.parametrize("wrong", WRONG)
async def test_every_route_asks_for_a_key(gateway: Gateway, wrong: str) -> None:
    asked = set(routes(gateway))
    assert (
        len(asked) > 20
        and asked > OPEN
        and ("GET", "/openapi.json") in asked
        and ("POST", "/") in asked
    )
    for method, path in asked - OPEN:
        response = await gateway.http.request(method, path, headers=WRONG[wrong])
        assert response.status_code == 401 and response.headers["www-authenticate"] == "Bearer", (
            method,
            path,
        )
        if method == "HEAD":
            continue
        body = response.json()
        if path in TGI_PATHS:
            assert set(body) == {"error", "error_type"} and body["error_type"] == "validation"
        else:
            assert (
                body["error"]["type"] == "authentication_error"
                and body["error"]["code"] == "invalid_api_key"
            )
        assert API_KEY not in response.text
    for method, path in OPEN:
        assert (await gateway.http.request(method, path, headers=WRONG[wrong])).status_code == 200


@pytest.mark.parametrize(
    "line", ["GET /v1/unknown", "GET /docs", "PATCH /", "GET /static", "GET /READY"]
)
async def test_path_that_does_not_exist_asks_for_a_key_too(gateway: Gateway, line: str) -> None:
    assert (await gateway.send(line, headers=WRONG["nothing"])).status_code == 401
    assert (await gateway.send(line)).status_code in (404, 405)


async def test_scheme_is_taken_in_any_case(gateway: Gateway) -> None:
    for scheme in ("bearer", "BEARER", "Bearer "):
        response = await gateway.http.get(
            "/v1/models", headers={"authorization": f"{scheme} {API_KEY}"}
        )
        assert response.status_code == 200


async def test_refused_key_is_counted_and_in_no_log(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = new_key()
    with caplog.at_level(logging.DEBUG):
        assert (await gateway.http.get("/v1/models", headers=bearer(wrong))).status_code == 401
        assert (await gateway.http.get("/v1/models")).status_code == 200
    assert "-> 401" in caplog.text and wrong not in caplog.text and API_KEY not in caplog.text
    assert await gateway.metric('semspec_gateway_refusals_total{code="invalid_api_key"}') == 1


async def test_body_of_a_request_without_a_key_is_not_waited_for(gateway: Gateway) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 1000\r\n\r\n"
    assert (await exchange(gateway.base_url, head)).startswith(b"HTTP/1.1 401 ")


async def test_body_that_comes_too_slowly_is_given_up(
    start_gateway: GatewayFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semspec_gateway.app.RECEIVE_TIMEOUT_S", 0.5)
    gateway = await start_gateway()
    key = f"authorization: Bearer {API_KEY}\r\n"
    for path, code in (
        ("/v1/chat/completions", '"code":"request_timeout"'),
        ("/generate", '"error_type":"validation"'),
    ):
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{key}content-length: 9\r\n\r\n"
        answer = (await exchange(gateway.base_url, f"{head}{{".encode())).decode()
        assert (
            answer.startswith("HTTP/1.1 408 ") and code in answer and "connection: close" in answer
        )
    async with gateway.held(1) as running:
        await asyncio.sleep(0.7)
        assert not running.task.done(), "only the body has to come in time"


async def test_gateway_that_asks_for_no_key_ignores_one(
    start_gateway: GatewayFactory, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = await start_gateway(auth="none", api_keys="")
    assert "SEMSPEC_GATEWAY_AUTH is none" in caplog.text
    for headers in WRONG.values():
        assert (await gateway.http.get("/v1/models", headers=headers)).status_code == 200


async def test_service_that_refuses_the_gateway_is_not_the_clients_fault(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.fakes.target.refusal = Unauthenticated("the token is wrong")
    refused = await gateway.chat()
    message = assert_error(refused, 503)["message"]
    assert "www-authenticate" not in refused.headers
    assert (
        message.endswith("give it the services' token") and "SEMSPEC_SERVICE_TOKEN" in caplog.text
    )


async def test_other_owner_sees_no_generation(start_gateway: GatewayFactory) -> None:
    gateway = await start_gateway(api_keys=TWO_OWNERS)
    id = (await gateway.chat(bearer(OURS))).json()["id"]
    unknown = "chatcmpl-" + secrets.token_hex(16)
    for method, part in (("GET", ""), ("GET", "/trace"), ("GET", "/events"), ("POST", "/cancel")):
        theirs = await gateway.http.request(
            method, f"/v1/generations/{id}{part}", headers=bearer(THEIRS)
        )
        nobodys = await gateway.http.request(
            method, f"/v1/generations/{unknown}{part}", headers=bearer(THEIRS)
        )
        assert theirs.status_code == 404 and theirs.text.replace(id, unknown) == nobodys.text
        for key in (OURS, RENEWED):
            own = await gateway.http.request(
                method, f"/v1/generations/{id}{part}", headers=bearer(key)
            )
            assert own.status_code == 200


async def test_metrics_tell_operators_owners_apart(start_gateway: GatewayFactory) -> None:
    gateway = await start_gateway(
        api_keys=f"{TWO_OWNERS} {entry('prometheus', 'sk-watch')}:operator"
    )
    answers = [await gateway.chat(bearer(key)) for key in (OURS, RENEWED, THEIRS)]
    text = (await gateway.http.get("/metrics", headers=bearer("sk-watch"))).text
    lines = dict(
        line.rsplit(" ", 1)
        for line in text.splitlines()
        if line.startswith("semspec_gateway_owner_")
    )
    finished = 'semspec_gateway_owner_generations_total{{owner="{}",status="finished"}}'
    assert [float(lines[finished.format(owner)]) for owner in ("us", "them")] == [2, 1]
    tokens = [answer.json()["usage"]["completion_tokens"] for answer in answers]
    told = [
        float(lines[f'semspec_gateway_owner_tokens_total{{owner="{owner}"}}'])
        for owner in ("us", "them")
    ]
    assert told == [tokens[0] + tokens[1], tokens[2]]
    clients = (await gateway.http.get("/metrics", headers=bearer(OURS))).text
    assert "semspec_gateway_generations_total" in clients and "owner" not in clients


@pytest.mark.parametrize("key", ["sk-wrong", ""])
async def test_bench_names_the_variable_of_its_key(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("SEMSPEC_API_KEY", key)
    with pytest.raises(
        RunnerError, match=r"answers 401: .*; set SEMSPEC_API_KEY to a key of this gateway$"
    ):
        async with open_gateway(gateway.base_url):
            pass


async def test_other_owner_cannot_cancel(start_gateway: GatewayFactory) -> None:
    gateway = await start_gateway(api_keys=TWO_OWNERS)
    async with gateway.held(1, headers=bearer(OURS)) as running:
        path = f"/v1/generations/{running.id}/cancel"
        assert (await gateway.http.post(path, headers=bearer(THEIRS))).status_code == 404
    assert running.response.status_code == 200


async def test_sessions_of_two_owners_are_two(start_gateway: GatewayFactory, session: str) -> None:
    gateway, path = await start_gateway(api_keys=TWO_OWNERS), f"/v1/sessions/{session}"
    await gateway.chat(bearer(OURS), semspec={"session": session})
    assert (await gateway.http.get(path, headers=bearer(THEIRS))).status_code == 404
    error = assert_error(await gateway.http.delete(path, headers=bearer(THEIRS)), 404)
    assert error["message"].startswith(f"session {session} does not exist")
    await gateway.chat(bearer(THEIRS), semspec={"session": session})
    assert gateway.fakes.target.prompts[-1] == "<user>How many?", (
        "nothing of the other conversation"
    )
    assert (await gateway.http.get(path, headers=bearer(RENEWED))).json()["id"] == session
    assert (await gateway.http.delete(path, headers=bearer(THEIRS))).status_code == 200
    assert (await gateway.http.get(path, headers=bearer(OURS))).status_code == 200


async def test_readiness_tells_a_stranger_no_addresses(start_gateway: GatewayFactory) -> None:
    fakes = Fakes.make()
    fakes.drafter.lost = fakes.target.lost = Unavailable("connection refused by 10.1.2.3")
    gateway = await start_gateway(fakes, ready=False)
    await eventually(lambda: gateway.app.state.readiness.status.error is not None)
    for headers, is_told in (
        (bearer(API_KEY), True),
        (bearer(new_key()), False),
        ({"authorization": ""}, False),
    ):
        answer = await gateway.http.get("/ready", headers=headers)
        assert answer.status_code == 503 and ("10.1.2.3" in answer.text) == is_told
    fakes.target.lost = fakes.drafter.lost = None
    await eventually(lambda: gateway.app.state.readiness.status.error is None)
    fakes.drafter.lost = Unavailable("connection refused by 10.1.2.3")
    await gateway.app.state.readiness.check()
    told = [
        (await gateway.http.get("/ready", headers=headers)).json()["detail"]
        for headers in (bearer(API_KEY), WRONG["nothing"])
    ]
    assert "10.1.2.3" in told[0] and told[1] == "ready, with the target alone"
