"""Who may ask: API keys and pages of other origins; and what each owner of a key sees."""

import asyncio
import base64
import logging
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import iter_route_contexts
from pydantic import ValidationError

from semspec.errors import Unauthenticated, Unavailable
from semspec.keys import Keys, entry, new_key
from semspec_gateway.api.shared.errors import TGI_PATHS
from semspec_gateway.app import create_app
from semspec_gateway.store.store import Store
from tests.gateway.processes import SettingError
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
    make_settings,
    until,
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
    assert len(asked) > 20
    assert asked > OPEN
    assert ("GET", "/openapi.json") in asked
    assert ("POST", "/") in asked
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
            assert body["error"]["type"] == "authentication_error"
            assert body["error"]["code"] == "invalid_api_key"
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
        assert answer.startswith("HTTP/1.1 408 ")
        assert code in answer
        assert "connection: close" in answer
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
    assert message.endswith("give it the services' token")
    assert "SEMSPEC_SERVICE_TOKEN" in caplog.text


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


async def test_file_of_keys_is_read_again_when_it_changes(
    start_gateway: GatewayFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As a mounted secret changes: a link is turned to another folder."""
    for folder, key in (("first", OURS), ("second", THEIRS)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "keys").write_text(f"# of the team\n{entry('us', key)}\n")
    link, file = tmp_path / "now", tmp_path / "now" / "keys"
    link.symlink_to("first")
    gateway = await start_gateway(api_keys="", api_keys_file=file)
    assert await statuses(gateway, OURS, THEIRS) == [200, 401]

    turn(link, "second")
    await until(lambda: statuses(gateway, THEIRS), lambda found: found == [200])
    assert await statuses(gateway, OURS, THEIRS) == [401, 200]
    revoked = (await gateway.http.get("/v1/models", headers=bearer(OURS))).json()["error"]
    assert (
        revoked["message"]
        == "this API key is not known, or no longer; get one from the gateway's operator"
    )

    file.write_text("broken")
    await eventually(lambda: "cannot be used, keeping the old" in caplog.text)
    assert await statuses(gateway, OURS, THEIRS) == [401, 200]
    assert "broken" not in caplog.text

    turn(link, "first")
    await until(lambda: statuses(gateway, OURS), lambda found: found == [200])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: None,
        lambda path: path.mkdir(),
        lambda path: path.symlink_to(path.with_name("nowhere")),
        lambda path: path.symlink_to(path),
    ],
    ids=["missing file", "folder", "dangling link", "link to itself"],
)
async def test_watch_of_keys_outlasts_a_path_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], None]
) -> None:
    monkeypatch.setattr("semspec.keys._CHECK_S", 0.01)
    (path := tmp_path / "keys").write_text(entry("us", OURS))
    keys = Keys("", path)
    watch = asyncio.create_task(keys.watch())
    path.unlink()
    spoil(path)
    await asyncio.sleep(0.2)
    assert keys.owner(OURS.encode()) == "us"
    if path.is_dir():
        path.rmdir()
    path.unlink(missing_ok=True)
    path.write_text(entry("them", THEIRS))
    await eventually(lambda: keys.owner(THEIRS.encode()) == "them")
    assert keys.owner(OURS.encode()) is None
    watch.cancel()


async def test_stream_ends_whole_though_its_key_is_revoked(
    start_gateway: GatewayFactory, tmp_path: Path
) -> None:
    (file := tmp_path / "keys").write_text(entry("us", API_KEY))
    gateway = await start_gateway(api_keys="", api_keys_file=file)
    async with gateway.held(1, stream=True) as running:
        file.write_text(entry("them", THEIRS))
        await until(lambda: statuses(gateway, API_KEY, THEIRS), lambda found: found == [401, 200])
    assert running.response.status_code == 200 and "data: [DONE]" in running.response.text


def turn(link: Path, target: str) -> None:
    """At once, so that there is no moment without."""
    new = link.with_name("new")
    new.symlink_to(target)
    new.replace(link)


async def statuses(gateway: Gateway, *keys: str) -> list[int]:
    return [(await gateway.http.get("/v1/models", headers=bearer(key))).status_code for key in keys]


HASH = entry("x", "y").partition(":")[2]


@pytest.mark.parametrize(
    ("api_keys", "file", "variable", "words"),
    [
        ("", None, "API_KEYS", "there is no API key"),
        ("sk-secret", None, "API_KEYS", "entry 1 is not NAME:SHA256"),
        (f"a:{HASH} b:secret", None, "API_KEYS", "entry 2 is not NAME:SHA256"),
        (f"{'a' * 65}:{HASH}", None, "API_KEYS", "entry 1 is not NAME:SHA256"),
        (f"a:{HASH} secret:{HASH.upper()}", None, "API_KEYS", "one key has two names"),
        (f"secret:{HASH}", f"a:{HASH}", "API_KEYS", "one key has two names"),
        ("", "# secret", "API_KEYS_FILE", "the file has no entry"),
        (
            "",
            "/nowhere/secret",
            "API_KEYS_FILE",
            "the file cannot be read (No such file or directory)",
        ),
    ],
)
def test_keys_that_cannot_be_used_end_the_process_in_one_line(
    api_keys: str,
    file: str | None,
    variable: str,
    words: str,
    tmp_path: Path,
    setting_error: SettingError,
) -> None:
    settings: dict[str, object] = {"API_KEYS": api_keys}
    if file is not None:
        path = settings["API_KEYS_FILE"] = Path(file) if file.startswith("/") else tmp_path / "keys"
        if path == tmp_path / "keys":
            path.write_text(file)
    line = setting_error(**settings)
    assert f"SEMSPEC_GATEWAY_{variable}: Value error, {words}" in line
    assert "secret" not in line and HASH not in line


def test_file_may_hold_comments_and_two_keys_of_one_owner(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# all of us\n\n{entry('us', OURS)}  # old\n{entry('us', RENEWED)}\r\n")
    keys = Keys(f"{entry('them', THEIRS)},", file)
    assert [keys.owner(key.encode()) for key in (OURS, RENEWED, THEIRS)] == ["us", "us", "them"]
    assert keys.owner(new_key().encode()) is None


def test_owner_is_an_operator_only_if_all_of_its_keys_are() -> None:
    ours = f"{entry('us', OURS)}:operator"
    assert Keys(ours, None).is_operator("us") and not Keys(ours, None).is_operator("them")
    assert not Keys(f"{ours} {entry('us', RENEWED)}", None).is_operator("us")
    with pytest.raises(ValueError, match="with :operator after it at most"):
        Keys(f"{entry('us', OURS)}:operators", None)


def test_settings_and_their_errors_hide_the_entries() -> None:
    settings = make_settings()
    app = create_app(settings, Fakes.make().backends, Store(settings))
    hash = entry(OWNER, API_KEY).partition(":")[2]
    assert hash not in repr(settings) and hash not in repr(vars(app.state))


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
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] in (
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
