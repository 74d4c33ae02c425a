"""Pages of other origins: those that the operator allows may call the gateway."""

import pytest
from pydantic import ValidationError

from tests.helpers.gateway import Gateway, GatewayFactory, make_settings

ORIGIN = "https://app.example.com"
PREFLIGHT = {
    "origin": ORIGIN,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization, content-type, x-stainless-lang",
}


@pytest.mark.parametrize("origins", [ORIGIN, f"http://localhost:3000, {ORIGIN}", "*"])
async def test_allowed_page_may_ask_before_it_sends_a_key(
    start_gateway: GatewayFactory, origins: str
) -> None:
    gateway = await start_gateway(cors_origins=origins)
    gateway.http.headers.pop("authorization")
    preflight = await gateway.http.options("/v1/chat/completions", headers=PREFLIGHT)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] in (ORIGIN, "*")
    assert "x-stainless-lang" in preflight.headers["access-control-allow-headers"]
    refused = await gateway.http.post("/v1/chat/completions", json={}, headers={"origin": ORIGIN})
    assert refused.status_code == 401 and refused.headers["access-control-allow-origin"] in (
        ORIGIN,
        "*",
    )


async def test_allowed_page_reads_answers_and_their_ids(start_gateway: GatewayFactory) -> None:
    gateway = await start_gateway(cors_origins=ORIGIN)
    gateway.http.headers["origin"] = ORIGIN
    for answer in (await gateway.chat(), await gateway.chat(stream=True)):
        assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == ORIGIN
        assert "x-generation-id" in answer.headers["access-control-expose-headers"]


async def test_other_page_is_not_allowed(start_gateway: GatewayFactory) -> None:
    gateway = await start_gateway(cors_origins=ORIGIN)
    headers = {**PREFLIGHT, "origin": "https://elsewhere.example.com"}
    preflight = await gateway.http.options("/v1/chat/completions", headers=headers)
    assert preflight.status_code == 400 and "access-control-allow-origin" not in preflight.headers


async def test_no_page_is_allowed_by_default(gateway: Gateway) -> None:
    preflight = await gateway.http.options("/v1/chat/completions", headers=PREFLIGHT)
    assert preflight.status_code == 405 and "access-control-allow-origin" not in preflight.headers
    answer = await gateway.http.get("/health", headers={"origin": ORIGIN})
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "origin", ["app.example.com", "https://app.example.com/", "https://a@b", "ftp://a"]
)
def test_value_that_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(ValidationError, match="is not an origin; write https://HOST"):
        make_settings(cors_origins=origin)
