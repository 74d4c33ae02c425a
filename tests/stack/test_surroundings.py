"""The stack where the machine around it is odd, and where there are no probes."""

import asyncio
import json
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from semspec.commands.serve import serve
from semspec.stack import StackConfig
from tests.helpers.processes import GENEROUS_S
from tests.helpers.stack import served

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="package")]

DEAD = "http://127.0.0.1:9"
"""Address of a proxy that does not run."""


async def test_answers_with_dead_proxies_no_home_and_an_odd_key(stack_config: StackConfig) -> None:
    proxies = {
        name: DEAD
        for each in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
        for name in (each, each.lower())
    }
    surroundings = {
        **proxies,
        "HOME": "/proc/nowhere",
        "XDG_CACHE_HOME": "/proc/nowhere",
        "LC_ALL": "C",
    }
    key = "!\"#$%&'()*+,-./:;<=>?@[]^_`{|}~"
    config = replace(
        stack_config, api_key=key, environment={**stack_config.environment, **surroundings}
    )
    async with served(config) as running:
        answer = await running.answer(seed=4, max_tokens=20)
    assert answer["semspec"]["fallback"] is None and answer["semspec"]["degraded"] is False


async def test_own_pair_is_served_at_once_and_its_banner_asks_it(
    stack_config: StackConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = replace(stack_config, pair=None)
    task, shown = asyncio.create_task(serve(bare)), ""
    try:
        while "Ctrl-C stops it" not in shown:
            await asyncio.wait([task], timeout=0.1)
            shown += capsys.readouterr().out
            assert not task.done()
        assert (
            "This pair has no probes: requests that name no strategy are answered by token-level."
            in shown
        )
        assert "It supports token-level, " in shown and "semantic (no probes)" in shown
        assert "likelihood (no calibration)" in shown and "retrieval (no datastore)" in shown
        chat, request = (
            shown[shown.index("SEMSPEC_API_KEY=") : shown.index("Ctrl-C")].strip().split("\n\n")
        )
        assert shlex.split(chat)[1:3] == [str(Path(sys.executable).with_name("semspec")), "chat"]
        _, _, url, _, key, _, _, _, body, *_ = shlex.split(request)
        async with httpx.AsyncClient(headers=dict([key.split(": ")]), timeout=GENEROUS_S) as client:
            answer = (await client.post(url, json={**json.loads(body), "max_tokens": 9})).json()
            pages = [
                await client.get(page)
                for page in re.findall(r"(?<!curl -s )(?<!--url )http://\S+", shown)
            ]
        assert len(pages) == 2 and {page.status_code for page in pages} == {200}
        assert f"curl -H '{key}' {pages[0].url}" in shown and "semspec_gateway_" in pages[0].text
        assert answer["semspec"]["strategy"] == "token-level"
        assert answer["usage"]["completion_tokens"] == 9
    finally:
        task.cancel()
        await asyncio.wait([task])
