"""The application, made of parts that its caller may choose."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from gateway.generations.admission import Admission, Limits
from gateway.generations.costs import CostTable
from gateway.http.errors import install_handlers
from gateway.http.middleware import Authenticated, BodyDeadline, BodyLimit, Observed
from gateway.http.openapi.document import TAGS, DocumentedApp, operation_id
from gateway.http.routes import completions, generations, models, operations, playground, sessions, tgi
from gateway.metrics import POOLED, Metrics
from gateway.parts import Parts
from gateway.readiness import Readiness
from gateway.settings import GatewaySettings
from gateway.storage.store import Store
from gateway.tasks import Background, cancelled
from semspec import __version__
from semspec.decoding import Backends
from semspec.keys import Keys
from semspec.rpc.pool import PooledRole

_log = logging.getLogger(__name__)


def create_app(settings: GatewaySettings, backends: Backends, store: Store) -> FastAPI:
    """A gateway over `backends` and `store`. It closes the store at shutdown; its caller closes the backends."""
    parts = _parts(settings, backends, store)
    app = DocumentedApp(
        title="semspec",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        openapi_tags=TAGS,
        generate_unique_id_function=operation_id,
        lifespan=_lifespan,
    )
    app.state.parts = parts
    for group in (completions, models, generations, operations, playground, sessions, tgi):
        app.include_router(group.router)
    install_handlers(app, parts.metrics)
    app.add_middleware(BodyLimit, max_body_bytes=settings.max_body_bytes)
    app.add_middleware(BodyDeadline, timeout_s=settings.receive_timeout_s)
    if parts.keys is not None:
        app.add_middleware(Authenticated, keys=parts.keys, metrics=parts.metrics)
    app.add_middleware(Observed, metrics=parts.metrics)
    return app


def _parts(settings: GatewaySettings, backends: Backends, store: Store) -> Parts:
    metrics = Metrics()
    metrics.capacity(settings.max_concurrent)
    store.on_failure = metrics.redis_failure
    for service, player in zip(POOLED, (backends.drafter, backends.target, backends.verifier), strict=True):
        if isinstance(player, PooledRole):
            metrics.of_services.replicas(service, player)
    return Parts(
        settings=settings,
        backends=backends,
        store=store,
        metrics=metrics,
        readiness=Readiness(backends, settings, store, metrics),
        admission=Admission(Limits.of(settings), metrics),
        background=Background(),
        costs=CostTable(),
        keys=_keys(settings),
    )


def _keys(settings: GatewaySettings) -> Keys | None:
    if settings.auth == "none":
        _log.warning("every client that reaches this gateway may use it: SEMSPEC_GATEWAY_AUTH is none")
        return None
    return Keys(settings.given_keys, settings.api_keys_file)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    parts: Parts = app.state.parts
    watches = [parts.background.spawn(parts.readiness.watch())]
    if parts.keys is not None:
        watches.append(parts.background.spawn(parts.keys.watch()))
    try:
        yield
    finally:
        await cancelled(*watches)
        await parts.background.drain(parts.settings.flush_timeout_s)
        await parts.store.close()
