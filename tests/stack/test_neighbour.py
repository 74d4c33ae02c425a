"""What one owner asks takes nothing from another: costly requests come in while a neighbour keeps asking."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import psutil
import pytest

from semspec.errors import InvalidRequest, Overloaded
from semspec.keys import entry
from semspec.stack import Stack, StackConfig
from semspec.types import Context, GenerationParams, SamplingParams, Segmentation
from tests.checkpoints import loaded, random_probes, save_spelling_checkpoint
from tests.fakes import collected
from tests.grammars.schemas import COSTLY, COUNTED, grammar_of
from tests.processes import GENEROUS_S
from tests.stack.support import Running, chat_body

pytestmark = pytest.mark.slow
COSTS = "too much time or memory|no time to check"  # the second on a busy machine
BUSY = "no free slot"  # what a busy machine's gateway may say to the attacker
ATTACKER, NEIGHBOUR = "sk-attacker", "sk-neighbour"
LONGEST_S = 15.0
MAX_GROWTH_BYTES = 300 << 20

JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer"}}}


def tool(parameters: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}]}


def schema(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


ATTACKS: dict[str, tuple[str, dict[str, Any], str]] = {
    "required": ("/v1/chat/completions", chat_body("x", tool(COUNTED["required"][0])), "requires 30000 properties"),
    "allOf": ("/v1/chat/completions", chat_body("x", schema(COUNTED["multiples"][0])), "product of its multipleOf"),
    "patterns": ("/v1/chat/completions", chat_body("x", schema(COSTLY["patterns"])), COSTS),
    "tokenize": ("/tokenize", {"inputs": "a" * 900_000}, "900000 characters are too many"),
    "encode": ("/v1/chat/completions", chat_body("a" * 900_000, {}), "900000 characters are too many"),
    "penalty": ("/v1/chat/completions", chat_body("x", {"repetition_penalty": 1e-300}), "repetition_penalty"),
}


@pytest.fixture
async def spelling(tmp_path: Path) -> AsyncIterator[Running]:
    """A pair that takes grammars, served to two owners."""
    model = save_spelling_checkpoint(tmp_path / "model")
    async with loaded(model, model) as (draft, target):
        await random_probes(draft, target, tmp_path)
    keys = f"{entry('attacker', ATTACKER)} {entry('neighbour', NEIGHBOUR)}"
    environment = {"SEMSPEC_GATEWAY_API_KEYS": keys, "SEMSPEC_GATEWAY_MODEL_NAME": "semspec-demo"}
    config = StackConfig(model, model, tmp_path, environment=environment, start_timeout_s=GENEROUS_S)
    async with Stack(config) as stack, httpx.AsyncClient(base_url=stack.base_url, timeout=GENEROUS_S) as http:
        yield Running(stack, http)


async def ask(running: Running, key: str, path: str, body: dict[str, Any]) -> httpx.Response:
    return await running.http.post(path, json=body, headers={"authorization": f"Bearer {key}"})


async def attack(running: Running, name: str) -> None:
    path, body, words = ATTACKS[name]
    response = await ask(running, ATTACKER, path, body)
    assert 400 <= response.status_code < 500 and re.search(f"{words}|{BUSY}", response.text), (
        name,
        response.text[:300],
    )


async def attack_service(running: Running, role: str, schema: Any, words: str) -> None:
    """With a grammar that no gateway has seen."""
    params = GenerationParams(SamplingParams(), Segmentation.PARAGRAPH, 1, 40, grammar=grammar_of(schema))
    async with running.engine(role) as client:
        context = Context((await client.encode("x"),))
        with pytest.raises((InvalidRequest, Overloaded), match=words):
            await collected(client.generate(context, params))


async def test_costly_requests_take_nothing_from_a_neighbour(spelling: Running) -> None:
    pids = {name: child.pid for name, child in spelling.stack.processes.items()}
    resident = {name: psutil.Process(pid).memory_info().rss for name, pid in pids.items()}
    durations_s: dict[str, list[float]] = {"text": [], "json": []}

    async def keep_asking(kind: str) -> None:
        own = {} if kind == "text" else {"response_format": JSON_SCHEMA}
        while True:
            body = chat_body("x", {"max_tokens": 24, "seed": len(durations_s[kind]), **own})
            start = monotonic()
            response = await ask(spelling, NEIGHBOUR, "/v1/chat/completions", body)
            assert response.status_code == 200, response.text
            durations_s[kind].append(monotonic() - start)

    asking = asyncio.gather(*map(keep_asking, durations_s))
    for number in range(20):
        if number >= 2 and min(map(len, durations_s.values())) > 2:
            break
        works = [attack(spelling, name) for name in ATTACKS for _ in range(3)]
        for role in ("draft", "target"):
            works.append(attack_service(spelling, role, COUNTED["required"][0], "requires 30000 properties"))
            works.append(attack_service(spelling, role, COSTLY["patterns"], COSTS))
        await asyncio.gather(*works)
    assert not asking.done(), asking.exception()
    asking.cancel()
    assert all(len(kind) > 2 and max(kind) <= LONGEST_S for kind in durations_s.values()), durations_s
    assert {name: child.pid for name, child in spelling.stack.processes.items()} == pids
    for name, pid in pids.items():
        assert psutil.Process(pid).memory_info().rss - resident[name] < MAX_GROWTH_BYTES, name
