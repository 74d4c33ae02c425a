"""Authentication: wrong keys, other owners' objects, and ways round the check."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import httpx

from semspec.keys import new_key
from tests.attacks.case import Broken, Case, Draw, Family, Verdict, shown
from tests.attacks.fixtures import CONTROL, Fixtures, Victim
from tests.gateway.support import bearer

OPEN = ("/", "/health", "/ping", "/ready")
OBJECTS = (
    ("GET", "/v1/generations/{}"), ("GET", "/v1/generations/{}/trace"), ("GET", "/v1/generations/{}/events"),
    ("POST", "/v1/generations/{}/cancel"), ("GET", "/v1/sessions/{}"), ("DELETE", "/v1/sessions/{}"),
)  # fmt: skip
DETOURS = (
    "/health/../v1/models", "//v1/models", "/static/../v1/models", "/static/..%2fv1/models", "/ready/..;/metrics",
    "/HEALTH/../metrics", "/./metrics", "/metrics/", "/metrics%00", "/metrics?key={key}", "/v1/models?api_key={key}",
    "/%76%31/models", "/v1%2fmodels", "/static//v1/models", "/static/%2e%2e/metrics", "/health%2f..%2fmetrics",
    "/v1/models#/health", "/v1/models;/health", "/openapi.json", "/docs", "/redoc", "/.env", "/server-status",
)  # fmt: skip


def wrong_key(key: str, chance: Random) -> str:
    """Something like the key that is not the key, even after white space around it is dropped."""
    place = chance.randrange(len(key))
    wrong = chance.choice(
        (
            key[:place] + key[place + 1 :],
            key[:place] + chr(ord(key[place]) ^ 1) + key[place + 1 :],
            key[:place] + chance.choice("aZ0-_=~") + key[place:],
            f"{key[:place]} {key[place:]}",
            key.swapcase(),
            key[::-1],
            f"{key},{key}",
            f'"{key}"',
            key + chance.choice(("=", "\xa0x", "%00", "/")),
            f"sha256:{key}",
            new_key(),
            "",
            "null",
            "x" * chance.choice((1, 64, 9000)),
        )
    )
    return wrong if wrong.strip() != key else f"{wrong}x"


def _credentials(key: str, chance: Random) -> dict[str, str]:
    """Headers that hold no valid credentials, but may look like it."""
    wrong = wrong_key(key, chance).strip(" \t")
    match chance.choice(("wrong", "wrong", "wrong", "scheme", "elsewhere", "none")):
        case "wrong":
            return {"authorization": f"Bearer {wrong}".strip()}
        case "scheme":
            return {"authorization": chance.choice(("Basic {}", "Token {}", "{}", "Bearer:{}", "Bearer{}")).format(key)}
        case "elsewhere":
            name = chance.choice(("x-api-key", "api-key", "cookie", "proxy-authorization", "x-authorization"))
            return {name: f"Bearer {key}"}
        case _:
            return {}


async def _sent(victim: Victim, method: str, path: str, headers: dict[str, str], body: object = None) -> httpx.Response:
    """The path as it is; without the client's own key."""
    target = {"target": path.encode()}
    async with httpx.AsyncClient(timeout=300, trust_env=False) as http:
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        return await http.request(method, victim.stack.base_url, headers=raw, json=body, extensions=target)


def _refused(answer: httpx.Response, what: str) -> None:
    if answer.status_code != 401 or "www-authenticate" not in answer.headers or "error" not in answer.json():
        raise Broken(Verdict.MEDIUM, f"{what} got {answer.status_code}: {answer.text[:200]}")


def _guess(victim: Victim, routes: list[tuple[str, str]], chance: Random) -> Case:
    method, path = chance.choice(routes)
    while "{" in path:
        path = path[: path.index("{")] + chance.choice(("x", "chatcmpl-0", "%2e")) + path[path.index("}") + 1 :]
    headers = _credentials(victim.stack.api_key, chance)
    body = chance.choice((None, {}, CONTROL)) if method == "POST" else None

    async def run() -> None:
        async with victim.watched():
            _refused(await _sent(victim, method, path, headers, body), f"{method} {path}")

    said = json.dumps(headers).replace(victim.stack.api_key, "KEY")
    return Case("wrong key", shown(f"{method} {path} {said}"), run)


def _detour(victim: Victim, chance: Random) -> Case:
    path = chance.choice(DETOURS).format(key=victim.stack.api_key)
    method = chance.choice(("GET", "HEAD", "OPTIONS", "POST", "GET"))
    headers = _credentials(victim.stack.api_key, chance)

    async def run() -> None:
        async with victim.watched():
            answer = await _sent(victim, method, path, headers)
            if answer.status_code < 400 and path.partition("?")[0] not in OPEN:
                raise Broken(Verdict.MEDIUM, f"{method} {path} got {answer.status_code}: {answer.text[:200]}")

    return Case("way round", shown(f"{method} {path}".replace(victim.stack.api_key, "KEY")), run)


def _other_owner(victim: Victim, chance: Random) -> Case:
    """The other owner asks for what the stack's key made, and for what does not exist: both get the same."""
    method, path = chance.choice(OBJECTS)
    session = f"s{chance.randrange(10**9)}"
    unknown = f"chatcmpl-{chance.randbytes(16).hex()}"

    async def run() -> None:
        async with victim.watched():
            made = await victim.http.post("/v1/chat/completions", json={**CONTROL, "semspec": {"session": session}})
            id = made.json()["id"]
            own, none = (session, f"{session}0") if "sessions" in path else (id, unknown)
            headers = bearer(victim.other_key)
            theirs = await _sent(victim, method, path.format(own), headers)
            missing = await _sent(victim, method, path.format(none), headers)
            said = theirs.text.replace(own, none)
            if (theirs.status_code, said) != (missing.status_code, missing.text) or theirs.status_code == 200:
                raise Broken(Verdict.MEDIUM, f"{theirs.status_code} {theirs.text[:200]}, unknown {missing.status_code}")
            for kept in (f"/v1/generations/{id}", f"/v1/sessions/{session}"):
                if (answer := await victim.http.get(kept)).status_code != 200:
                    raise Broken(Verdict.LOST, f"{kept} is {answer.status_code} afterwards")

    return Case("other owner", f"{method} {path}", run)


@asynccontextmanager
async def opened(fixtures: Fixtures) -> AsyncIterator[Draw]:
    victim = await fixtures.victim()
    described = (await victim.http.get("/openapi.json")).json()["paths"]
    routes = sorted((method.upper(), path) for path, methods in described.items() for method in methods)
    routes = [(method, path) for method, path in routes if path not in OPEN and not path.startswith("/static")]

    def draw(chance: Random) -> Case:
        match chance.choice(("guess", "guess", "detour", "other")):
            case "guess":
                return _guess(victim, routes, chance)
            case "detour":
                return _detour(victim, chance)
            case _:
                return _other_owner(victim, chance)

    yield draw


FAMILY = Family("authentication", 90, opened)
