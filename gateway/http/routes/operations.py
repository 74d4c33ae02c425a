"""For those who run the gateway: is it alive, can it serve, what does it do."""

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST

from gateway.http.openapi.responses import HEALTH, METRICS, READY
from gateway.parts import PartsOf
from gateway.readiness import describe
from semspec.trace import Json

router = APIRouter(tags=["operations"])


@router.get("/health", responses=HEALTH)
async def health() -> Json:
    """The process answers."""
    return {"status": "ok"}


@router.get("/ready", responses=READY)
async def ready(parts: PartsOf) -> Json:
    """The services answer and belong together; else 503 and one line that says what to do."""
    parts.readiness.require_place()
    return {"status": "ready", "detail": describe(parts.readiness.status)}


@router.get("/metrics", response_model=None, responses=METRICS)
async def metrics(parts: PartsOf) -> Response:
    """Prometheus' text format."""
    return Response(parts.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)
