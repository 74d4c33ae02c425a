"""The services towards a caller who knows their protocol but means them no good."""

import asyncio
import hmac
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import Mock

import grpc
import pytest

from semspec.rpc.calls import path_of
from semspec.rpc.server import serve
from semspec.rpc.servicers import DraftServicer, Servicer, TargetServicer, VerifierServicer
from tests.helpers.fakes import FakeVerifier
from tests.helpers.gateway import eventually
from tests.helpers.rpc import FakeEngine, serving, settings
from tests.security.support import METHODS, TOKEN, status

pytestmark = pytest.mark.slow
SERVICES: dict[str, Servicer[Any]] = {
    "Draft": DraftServicer(FakeEngine),
    "Target": TargetServicer(FakeEngine),
    "Verifier": VerifierServicer(FakeVerifier),
}
NO_TOKEN = (
    "",
    f"Bearer {TOKEN[::-1]}",
    f"Bearer {TOKEN}0",
    f"Bearer {TOKEN[:-1]}",
    "Bearer ",
    f"Basic {TOKEN}",
    TOKEN,
)


@asynccontextmanager
async def guarded(method: Any) -> AsyncIterator[str]:
    """The service of a method, asking for the token; its address."""
    async with serving(
        SERVICES[method.containing_service.name], settings(service_token=TOKEN)
    ) as server:
        yield server.address


@pytest.mark.parametrize("method", METHODS, ids=path_of)
async def test_every_method_of_every_service_asks_for_the_token(method: Any) -> None:
    async with guarded(method) as address:
        for authorization in NO_TOKEN:
            assert (
                await status(address, method, b"", authorization) is grpc.StatusCode.UNAUTHENTICATED
            )
        assert await status(address, method, b"") is not grpc.StatusCode.UNAUTHENTICATED


async def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hmac, "compare_digest", compare := Mock(wraps=hmac.compare_digest))
    async with guarded(METHODS[0]) as address:
        await status(address, METHODS[0], b"", "Bearer guess")
    compare.assert_called_once_with(b"Bearer guess", f"Bearer {TOKEN}".encode())


@pytest.mark.parametrize("method", METHODS, ids=path_of)
async def test_bytes_that_are_no_message_are_refused(
    method: Any, caplog: pytest.LogCaptureFixture
) -> None:
    random = Random(method.full_name)
    async with guarded(method) as address:
        for length in (1, 2, 7, 100, 10_000):
            answer = await status(address, method, b"\x0a\xff" + random.randbytes(length))
            assert answer is grpc.StatusCode.INVALID_ARGUMENT
        assert await status(address, method, b"") is not grpc.StatusCode.UNAVAILABLE
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(
    ("options", "is_warned"),
    [
        ({"host": "0.0.0.0"}, True),
        ({"host": "0.0.0.0", "service_token": TOKEN}, False),
        ({"host": "127.0.0.1"}, False),
    ],
    ids=["anyone", "with a token", "this machine"],
)
async def test_service_that_lets_strangers_in_says_so(
    options: dict[str, Any], is_warned: bool, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    port = tmp_path / "port"
    serving = asyncio.create_task(
        serve(DraftServicer(FakeEngine), settings(port_file=port, **options))
    )
    await eventually(port.exists)
    os.kill(os.getpid(), signal.SIGTERM)
    await serving
    assert (
        any("SEMSPEC_SERVICE_TOKEN or SEMSPEC_TLS_CLIENT_CA" in line for line in caplog.messages)
        is is_warned
    )
