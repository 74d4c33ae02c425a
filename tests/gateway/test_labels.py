"""Labels of metrics come from closed sets, whatever clients send."""

import asyncio
from collections.abc import Collection, Mapping
from http import HTTPMethod, HTTPStatus
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from semspec import __version__
from semspec.decoding import STRATEGIES
from semspec.errors import TABLE
from semspec.keys import OPERATOR, entry
from semspec.records import VERDICTS
from semspec.types import Writer
from semspec_gateway import metrics
from semspec_gateway.api.shared.errors import CLIENT_GONE_STATUS
from semspec_gateway.metrics import SERVICES
from tests.helpers.gateway import (
    API_KEY,
    OURS,
    OWNER,
    Gateway,
    GatewayFactory,
    bearer,
    exchange,
)

ODD = "QuillOdd"
"""Part of every odd thing that is sent; no label may have it."""
MAX_EXPOSITION_BYTES = 1 << 20
KEYS = f"{entry(OWNER, API_KEY)}:{OPERATOR}, {entry('us', OURS)}"
BOUNDS = {str(float(bound)) for bound in (*metrics._SECONDS, *metrics._TOKENS)} | {"+Inf"}
ENDS = ("finished", "failed", "cancelled", "interrupted")


def closed_sets(gateway: Gateway) -> Mapping[str, Collection[str]]:
    """Return the values that each label may have. A new label needs a line here, and something odd in `send_odd`."""
    phrases = {status.phrase.lower().replace(" ", "_") for status in HTTPStatus}
    return {
        "method": {*HTTPMethod, "any", "other"},
        "route": {
            *gateway.app.openapi()["paths"],
            "unmatched",
            "/static/{name}",
            "/v1/models/{name:path}",
        },
        "status": {*(str(status.value) for status in HTTPStatus), str(CLIENT_GONE_STATUS), *ENDS},
        "code": {*phrases, *(row.code for row in TABLE.values()), "model_not_found"},
        "strategy": STRATEGIES.keys(),
        "gen_ai_request_model": {gateway.settings.model_name},
        "gen_ai_token_type": ("input", "output"),
        "verdict": VERDICTS.values(),
        "stage": ("draft", "read", "judge", "write"),
        "writer": {*Writer},
        "owner": (OWNER, "us"),
        "service": SERVICES,
        "result": ("supported", "unsupported"),
        "version": (__version__,),
        "le": BOUNDS,
    }


async def send_odd(gateway: Gateway, number: int) -> None:
    """Send something odd in place of everything that becomes a label, or might."""
    odd, long = f"{ODD}{number}", f"{ODD}{number}" * 1500
    methods, paths = (odd, long, odd.lower(), "GETT"), ("/health", f"/{odd}", "/v1/models")
    lines = [f"{method} {path}" for method in methods for path in paths]
    lines += [f"GET /v1/{path}/{odd}" for path in ("models", "generations", "sessions")]
    lines += [f"POST /v1/generations/{odd}/cancel", f"GET /static/{odd}", f"OPTIONS /{odd}"]
    lines += [f"GET /{odd}?{odd}={odd}"]
    head = f"host: {odd}\r\nauthorization: Bearer {OURS}\r\nx-request-id: {odd}\r\nconnection: close\r\n\r\n"
    await asyncio.gather(
        *(exchange(gateway.base_url, f"{line} HTTP/1.1\r\n{head}".encode()) for line in lines)
    )
    models = (odd, f"semspec-demo:{odd}", f"semspec-demo@{odd}")
    options = ("session", "strategy", "rewrite", "probes", "segmentation")
    fields: list[dict[str, Any]] = [{"model": model} for model in models]
    fields += [{"semspec": {name: odd}} for name in options]
    fields += [{odd: 1}, {"user": odd}, {"service_tier": odd}, {"metadata": {odd: odd}}]
    fields += [{"tools": [{"type": odd}]}]
    for body in fields:
        await gateway.chat(bearer(OURS), max_tokens=3, **{"model": "semspec-demo", **body})
    await gateway.chat({**bearer(odd), "idempotency-key": odd}, max_tokens=3)
    body = {"inputs": odd, "parameters": {"adapter_id": odd}}
    await gateway.http.post("/generate", json=body, headers=bearer(OURS))


async def series(gateway: Gateway) -> tuple[str, set[tuple[str, str, str]]]:
    """Return the exposition, and the name, label and value of each of its samples."""
    text = (await gateway.http.get("/metrics")).text
    families = text_string_to_metric_families(text)
    samples = (sample for family in families for sample in family.samples)
    return text, {(sample.name, *label) for sample in samples for label in sample.labels.items()}


async def test_every_label_of_every_metric_is_of_a_closed_set(
    start_gateway: GatewayFactory,
) -> None:
    gateway = await start_gateway(api_keys=KEYS)
    await send_odd(gateway, 0)
    for strategy in gateway.app.state.readiness.strategies:
        await gateway.chat(model=f"semspec-demo:{strategy}", headers=bearer(OURS))
    await series(gateway)  # which is a request, too
    _, first = await series(gateway)
    closed = closed_sets(gateway)
    assert [label for label in first if label[2] not in closed[label[1]]] == []
    for number in range(1, 4):
        await send_odd(gateway, number)
    text, last = await series(gateway)
    assert last - first == set() and ODD.lower() not in text.lower()
    assert len(text) < MAX_EXPOSITION_BYTES


async def test_unknown_method_ends_its_connection_and_is_in_no_log(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG"):
        for method in (ODD, ODD * 1500):
            line = (
                f"{method} /health HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {API_KEY}\r\n\r\n"
            )
            answer = await exchange(gateway.base_url, line.encode())
            assert answer.startswith(b"HTTP/1.1 405") and b"connection: close" in answer.lower()
    records = [record for record in caplog.records if record.name.startswith("semspec")]
    assert not any(ODD in str(vars(record)) for record in records)
    assert any(record.getMessage() == "other unmatched -> 405" for record in records)
