"""The target service with a writer: its settings, its look at the server, and the texts of a real one."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import get_args

import httpx
import pytest

from semspec.decoding import Backends
from semspec.engine.torch_engine import TorchEngine
from semspec.errors import Mismatch, Unavailable
from semspec.probes.verifier import ProbeVerifier
from semspec.protocols import Engine
from semspec.remote.client import Api
from semspec.settings import load_settings
from semspec.stack import BUNDLED_PAIR
from semspec.types import Context, GeneratedSegment, Writer
from semspec_target.__main__ import load
from semspec_target.settings import TargetSettings
from tests.helpers.fakes import collected
from tests.helpers.gateway import make_settings, redis_server, running_gateway
from tests.remote.servers import NAME, Script, serving
from tests.remote.support import PARAGRAPH, TO_THE_END, Local, segments

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="package")]

MODEL = str(BUNDLED_PAIR / "target")


@asynccontextmanager
async def target(**writer: object) -> AsyncIterator[Engine]:
    """What the service serves with these settings."""
    settings = TargetSettings.model_validate({"model": MODEL, "device": "cpu", "writer": writer})
    engine = await asyncio.to_thread(load, settings)
    try:
        yield engine
    finally:
        await engine.aclose()


async def test_settings_name_the_model_that_openais_api_wants(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SEMSPEC_TARGET_MODEL", "m")
    monkeypatch.setenv("SEMSPEC_TARGET_WRITER", '{"url": "http://somewhere/v1"}')
    assert (server := load_settings(TargetSettings).server) and server.api == "tgi"
    monkeypatch.setenv("SEMSPEC_TARGET_WRITER", '{"url": "http://somewhere/v1", "api": "openai"}')
    with pytest.raises(SystemExit):
        load_settings(TargetSettings)
    assert (
        "SEMSPEC_TARGET_WRITER: model: Value error, required for the API openai"
        in capsys.readouterr().err
    )
    monkeypatch.setenv(
        "SEMSPEC_TARGET_WRITER", '{"url": "http://somewhere/v1", "api": "openai", "model": "there"}'
    )
    monkeypatch.setenv("SEMSPEC_TARGET_WRITER_TOKEN", "secret")
    assert (server := load_settings(TargetSettings).server)
    assert (server.model, server.token) == ("there", "secret") and "secret" not in repr(server)


async def test_other_model_at_the_server_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async with serving("tgi", Script([])) as url:
        with caplog.at_level(logging.WARNING):
            async with target(url=url):
                pass
        assert NAME in caplog.text and "must be the same model" in caplog.text
    async with serving("openai", Script([])) as url:
        with pytest.raises(
            Mismatch, match=r"serves some/model, not another; .*SEMSPEC_TARGET_WRITER"
        ):
            async with target(url=url, api="openai", model="another"):
                pass


@pytest.mark.parametrize("api", get_args(Api))
async def test_server_that_is_away_is_named_by_each_call(context: Context, api: Api) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        async with target(url=url, api=api, model="m") as engine:
            with pytest.raises(
                Unavailable, match=rf"does not write segments.*{url}.*SEMSPEC_TARGET_WRITER"
            ) as refusal:
                await collected(engine.generate(context, PARAGRAPH))
            assert refusal.value.text == (
                "the server behind this model does not write segments; retry later"
            )
            assert (await engine.info()).fingerprint
            assert [one.text for one in await engine.tokenize("On day 1")]


@asynccontextmanager
async def gateway(local: Local, folder: Path) -> AsyncIterator[str]:
    """The address of one that serves the bundled pair; its target writes alone unless asked otherwise."""
    draft = TorchEngine.load(str(BUNDLED_PAIR / "draft"), writer=Writer.DRAFT, device="cpu")
    probes = BUNDLED_PAIR / "probes"
    verifier = ProbeVerifier.load(probes)
    pair = Backends(draft, local.engine, verifier)
    with redis_server(folder) as redis:
        settings = make_settings(redis_url=redis.url, defaults={"strategy": "target"}, auth="none")
        async with running_gateway(settings, pair) as running:
            yield running.base_url
    await draft.aclose()


@pytest.mark.parametrize("api", get_args(Api))
async def test_greedy_text_of_a_real_server_is_the_engines_own(
    local: Local, context: Context, written: list[GeneratedSegment], tmp_path: Path, api: Api
) -> None:
    own = segments(written)
    async with gateway(local, tmp_path) as url, httpx.AsyncClient() as http:
        if api == "tgi" and (await http.get(f"{url}/info")).status_code == 404:
            pytest.skip("the gateway does not speak TGI's API")
        url = url if api == "tgi" else f"{url}/v1"
        async with target(url=url, api=api, model="semspec-demo:target") as engine:
            served = segments(await collected(engine.generate(context, TO_THE_END)))
            after = context.extended(*own[:1])
            [second] = segments(
                await collected(engine.generate(after, replace(TO_THE_END, max_segments=1)))
            )
    assert served == own
    assert second == own[1]
