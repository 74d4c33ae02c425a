"""Operational routes: health check, readiness, metrics, and the state of the services."""

import asyncio
from collections.abc import Awaitable, Callable
from operator import attrgetter
from typing import Literal, TypeVar

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST

from semspec import __version__
from semspec.decoding import Backends
from semspec.errors import SemspecError
from semspec.keys import Keys
from semspec.records import Body
from semspec.types import ModelInfo, VerifierInfo
from semspec_gateway.api.shared.document import errors
from semspec_gateway.api.shared.middleware import OwnerOf, is_anonymous
from semspec_gateway.metrics import Metrics
from semspec_gateway.readiness import Readiness, describe
from semspec_gateway.settings import GatewaySettings
from semspec_gateway.store.store import Store

T = TypeVar("T")
_WITHOUT_KEY = "not ready; see the log for the reason, or send an API key"
"""Without an API key, the response contains no addresses or models."""


class Health(Body):
    """The process runs."""

    status: Literal["ok"]


class Version(Body):
    """This server's version."""

    version: str


class Ready(Body):
    """The services respond and match."""

    status: Literal["ready"]
    detail: str
    """`ready`, or which service is unavailable while the target generates alone."""


class Service(Body):
    """State of one service."""

    name: Literal["draft", "target", "verifier", "redis"]
    status: Literal["ok", "away"]
    detail: str


class Services(Body):
    """State of all services."""

    services: list[Service]


def router(
    backends: Backends,
    readiness: Readiness,
    store: Store,
    metrics: Metrics,
    keys: Keys | None,
    settings: GatewaySettings,
) -> APIRouter:
    """`/health`, `/ping`, `/ready`, `/version`, `/metrics` and `/v1/services`."""
    routes = APIRouter(tags=["operations"])

    @routes.get("/health")
    async def health() -> Health:
        """Answer while the process runs."""
        return Health(status="ok")

    @routes.get("/ping")
    async def ping() -> Health:
        """The same as `/health`, under the path that SageMaker asks."""
        return Health(status="ok")

    @routes.get("/version")
    async def version() -> Version:
        """The version of this server."""
        return Version(version=__version__)

    @routes.get("/ready", responses=errors(503))
    async def ready(http: HttpRequest) -> Ready:
        """Answer 200 if the services respond and match; else 503 and, with an API key, one line with the remedy."""
        anonymous = keys is not None and is_anonymous(http)
        try:
            readiness.require_ready()
        except SemspecError as error:
            raise type(error)(_WITHOUT_KEY) if anonymous else error from None
        reason = None if anonymous else attrgetter("text")
        return Ready(status="ready", detail=describe(readiness.status, reason))

    @routes.get(
        "/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}}
    )
    async def exposition(owner: OwnerOf) -> Response:
        """Prometheus' text format; numbers by owner for a key with the option `operator`."""
        return Response(
            metrics.exposition(keys is None or keys.is_operator(owner)),
            media_type=CONTENT_TYPE_LATEST,
        )

    @routes.get("/v1/services")
    async def services() -> Services:
        """Call each service once and report its state."""
        states = (
            state("draft", backends.drafter.info, _model),
            state("target", backends.target.info, _model),
            state("verifier", backends.verifier.info, _probes),
            state("redis", store.check, lambda _: "keeps traces and sessions"),
        )
        return Services(services=list(await asyncio.gather(*states)))

    async def state(
        name: str, ask: Callable[[], Awaitable[T]], describe: Callable[[T], str]
    ) -> Service:
        status = "away"
        try:
            async with asyncio.timeout(settings.health_timeout_s):
                status, detail = "ok", describe(await ask())
        except SemspecError as error:
            detail = error.text
        except TimeoutError:
            detail = "no answer in time"
        return Service.model_validate({"name": name, "status": status, "detail": detail})

    return routes


def _model(info: ModelInfo) -> str:
    name = info.model.rstrip("/").rpartition("/")[2]  # its folder on the server is not public
    return f"{name}, {info.num_layers} layers"


def _probes(info: VerifierInfo) -> str:
    if not info.has_probes:
        return "none; the pair is served without probes"
    return f"probes {info.draft_probe} and {info.target_probe}"
