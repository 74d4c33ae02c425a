"""For those who run the gateway: is it alive, can it serve, what does it do."""

from fastapi import APIRouter, Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST

from gateway.http.middleware import is_anonymous
from gateway.http.openapi.responses import HEALTH, METRICS, READY
from gateway.parts import PartsOf
from gateway.readiness import describe
from semspec.errors import SemspecError
from semspec.records import Json

router = APIRouter(tags=["operations"])

_WITHOUT_KEY = "not ready; the log says why, and so does this route to who has an API key"
"""Clients without an API key do not learn addresses and models."""


@router.get("/health", responses=HEALTH)
async def health() -> Json:
    """The process answers."""
    return {"status": "ok"}


@router.get("/ready", responses=READY)
async def ready(request: Request, parts: PartsOf) -> Json:
    """The services answer and belong together; else 503 and, with an API key, one line that says what to do."""
    try:
        parts.readiness.require_place()
    except SemspecError as error:
        raise type(error)(_WITHOUT_KEY) if is_anonymous(request) else error from None
    detail = describe(parts.readiness.status)
    return {"status": "ready", "detail": detail.partition(":")[0] if is_anonymous(request) else detail}


@router.get("/metrics", response_model=None, responses=METRICS)
async def metrics(parts: PartsOf) -> Response:
    """Prometheus' text format."""
    return Response(parts.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)
