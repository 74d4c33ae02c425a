"""A whole stack, mutual TLS between its services and a password before its Redis: who is told more than they should."""

import json
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import pytest
import pytest_asyncio

from semspec.stack import Stack, StackConfig
from tests.helpers.certificates import Authority
from tests.helpers.gateway import RedisServer, redis_server

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

GENEROUS_S = 120.0
QUESTION = "Zoe has marbles: 47. Day 1: Zoe sells 16 marbles. How many marbles does Zoe have now?"


@dataclass(frozen=True, slots=True)
class Watched:
    """A stack, a client with a key to it, and everything the two were told."""

    stack: Stack
    http: httpx.AsyncClient
    redis: RedisServer
    secrets: dict[str, str]
    told: list[str] = field(default_factory=list)

    async def ask(self, method: str, path: str, **more: object) -> httpx.Response:
        response = await self.http.request(method, path, **more)  # type: ignore[arg-type]
        self.told.append(f"{response.headers}\n{response.text}")
        return response

    def logs(self) -> dict[str, str]:
        return {name: child.log.read_text() for name, child in self.stack.processes.items()}


def environment(folder: Path) -> dict[str, str]:
    """Every log at its loudest; every service asks its callers for a certificate."""
    authority = Authority(folder)
    service, gateway = authority.issue("service"), authority.issue("gateway", "gateway.example")
    files = {
        "TLS_CERTIFICATE": service.certificate,
        "TLS_KEY": service.key,
        "TLS_CLIENT_CA": authority.file,
    }
    shown = {"CA": authority.file, "CERTIFICATE": gateway.certificate, "KEY": gateway.key}
    return {
        "SEMSPEC_LOG_LEVEL": "DEBUG",
        **{f"SEMSPEC_{name}": str(path) for name, path in files.items()},
        **{f"SEMSPEC_GATEWAY_SERVICE_{name}": str(path) for name, path in shown.items()},
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def watched(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Watched]:
    folder, password = tmp_path_factory.mktemp("secrets"), secrets.token_urlsafe(24)
    config = StackConfig(environment=environment(folder), start_timeout_s=GENEROUS_S)
    guarded = redis_server(folder, options=("--requirepass", password))
    with guarded as redis, pytest.MonkeyPatch.context() as patch:
        patch.setenv("REDIS_URL", redis.url.replace("//", f"//:{password}@"))
        async with (
            Stack(config) as stack,
            httpx.AsyncClient(
                base_url=stack.base_url, headers=stack.headers, timeout=GENEROUS_S
            ) as http,
        ):
            token = psutil.Process(stack.processes["target"].pid).environ()["SEMSPEC_SERVICE_TOKEN"]
            kept = {"API key": stack.api_key, "token": token, "password": password}
            yield Watched(stack, http, redis, kept)


def chat(**fields: object) -> dict[str, object]:
    return {
        "model": "semspec-demo",
        "messages": [{"role": "user", "content": QUESTION}],
        "seed": 3,
        **fields,
    }


async def test_stack_answers_over_mutual_tls(watched: Watched) -> None:
    response = await watched.http.post(
        "/v1/chat/completions", json=chat(semspec={"strategy": "semantic"})
    )
    assert response.status_code == 200
    summary = response.json()["semspec"]
    assert summary["num_segments"] > 0 and not summary["fallback"], summary


async def test_no_log_header_body_or_command_line_tells_a_secret(watched: Watched) -> None:
    written = await answered(watched)
    await refused(watched)
    watched.redis.kill()
    assert (await watched.ask("POST", "/v1/chat/completions", json=chat())).status_code == 200
    assert (await watched.ask("GET", "/v1/sessions/s")).status_code == 503

    logs = watched.logs()
    assert "level=DEBUG" in logs["gateway"]
    processes = [psutil.Process(child.pid) for child in watched.stack.processes.values()]
    places = {
        **logs,
        "command lines": "\n".join(" ".join(process.cmdline()) for process in processes),
    }
    places["answers"] = "\n".join(watched.told)
    for kind, secret in watched.secrets.items():
        assert secret not in json.dumps(places), kind
    for name, log in logs.items():
        assert "marbles" not in log and written not in log, f"{name} logs what was said"


async def answered(watched: Watched) -> str:
    """Ask in every way; a piece of the answer to recognise it by."""
    for fields in (
        {"stream": True},
        {"semspec": {"strategy": "target"}},
        {"semspec": {"session": "s", "trace": True}},
    ):
        response = await watched.ask("POST", "/v1/chat/completions", json=chat(**fields))
        assert response.status_code == 200
    last = response.json()
    generation = last["id"]
    for path in ("", "/trace", "/events"):
        assert (await watched.ask("GET", f"/v1/generations/{generation}{path}")).status_code == 200
    for path in (
        "/ready",
        "/metrics",
        "/v1/services",
        "/v1/models",
        "/openapi.json",
        "/v1/sessions/s",
    ):
        assert (await watched.ask("GET", path)).status_code == 200, path
    return str(last["semspec"]["trace"][0]["text"]).strip()


async def refused(watched: Watched) -> None:
    """Ask in every wrong way, the key where it does not belong included."""
    key = watched.secrets["API key"]
    bad = (
        {"authorization": f"Bearer {key}0"},
        {"authorization": f"Basic {key}"},
        {"authorization": key},
    )
    answers = [
        await watched.ask("POST", "/v1/chat/completions", json=chat(), headers=headers)
        for headers in bad
    ]
    answers += [
        await watched.ask("GET", f"/v1/models?api_key={key}", headers={"authorization": ""}),
        await watched.ask("GET", f"/{key}"),
        await watched.ask("POST", "/v1/chat/completions", json=chat(temprature=1)),
        await watched.ask("POST", "/v1/chat/completions", content=json.dumps(chat())[:-1]),
        await watched.ask("GET", "/v1/models", headers={"x-request-id": f"{key} {QUESTION}"}),
    ]
    assert {answer.status_code for answer in answers} == {200, 400, 401, 404}
