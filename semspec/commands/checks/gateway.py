"""Checks of a running gateway: liveness, round-trip time, readiness, services and models."""

from collections.abc import Iterator
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from semspec.commands.checks import Check, fail, ok, warn

if TYPE_CHECKING:
    import httpx

NUM_ROUND_TRIPS = 5
TIMEOUT_S = 5.0


def check_gateway(url: str, api_key: str | None) -> Iterator[Check]:
    try:
        import httpx
    except ImportError:
        yield fail("gateway", "httpx is not installed, so no gateway can be asked", "pip install 'semspec[cli]'")
        return
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        with httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT_S, trust_env=False) as http:
            yield _health(http, url)
            yield _ready(http)
            yield from _services(http)
            yield _models(http)
    except (httpx.TransportError, httpx.InvalidURL) as error:
        remedy = "start it with `semspec serve`, or correct --url"
        yield fail("gateway", f"{url} does not answer: {error or type(error).__name__}", remedy)


def _health(http: "httpx.Client", url: str) -> Check:
    durations_ms = []
    for _ in range(NUM_ROUND_TRIPS):
        start = perf_counter()
        response = http.get("/health")
        durations_ms.append((perf_counter() - start) * 1e3)
    if response.is_error:
        return fail("gateway", f"{url}/health answers {response.status_code}", "is this a semspec gateway? see --url")
    return ok("gateway", f"{url} is alive, a round trip takes {median(durations_ms):.1f} ms")


def _ready(http: "httpx.Client") -> Check:
    response = http.get("/ready")
    body = _json(response)
    if response.is_error:
        return fail(
            "ready", _description(response), "see the services' logs; `semspec serve` shows what a dead one last said"
        )
    detail = str(body.get("detail", "ready"))
    return ok("ready", detail)


def _services(http: "httpx.Client") -> Iterator[Check]:
    """The health of each service, if the gateway reports it."""
    response = http.get("/v1/services")
    if response.status_code == 404:
        return
    for service in _json(response).get("services", []):
        name, detail = f"{service['name']} (live)", str(service.get("detail") or "answers")
        if service["status"] == "ok":
            yield ok(name, detail)
        else:
            yield warn(name, detail, "start it again; until then the gateway does without, or not at all")


def _models(http: "httpx.Client") -> Check:
    response = http.get("/v1/models")
    names = [str(model["id"]) for model in _json(response).get("data", [])]
    if not names:
        return fail("models", _description(response), "if it wants a key, give --api-key or set SEMSPEC_API_KEY")
    return ok("models", ", ".join(names))


def _description(response: "httpx.Response") -> str:
    """Path, status and error message of a response."""
    error = _json(response).get("error")
    message = error.get("message", "") if isinstance(error, dict) else ""
    return f"{response.request.url.path} answers {response.status_code}: {message or response.text.strip()[:200]}"


def _json(response: "httpx.Response") -> dict[str, Any]:
    try:
        body = response.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
