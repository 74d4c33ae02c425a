"""The application, made of parts that its caller may choose."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from gateway.background import Background, cancelled
from gateway.generations.admission import Admission
from gateway.generations.costs import CostTable
from gateway.http.errors import install_handlers
from gateway.http.middleware import BodyLimit, Observed
from gateway.http.openapi.document import TAGS, DocumentedApp, operation_id
from gateway.http.routes import completions, generations, models, operations, playground, sessions, tgi
from gateway.metrics import Metrics
from gateway.parts import Parts
from gateway.readiness import Readiness
from gateway.settings import GatewaySettings
from gateway.storage.store import Store
from semspec import __version__
from semspec.decoding import Roles


def create_app(settings: GatewaySettings, roles: Roles, store: Store) -> FastAPI:
    """A gateway over `roles` and `store`. It closes the store at shutdown; the roles are its caller's to close."""
    parts = _parts(settings, roles, store)
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
    app.add_middleware(Observed, metrics=parts.metrics)
    return app


def _parts(settings: GatewaySettings, roles: Roles, store: Store) -> Parts:
    metrics = Metrics()
    metrics.capacity(settings.max_concurrent)
    store.on_failure = metrics.redis_failure
    return Parts(
        settings=settings,
        roles=roles,
        store=store,
        metrics=metrics,
        readiness=Readiness(roles, settings, store, metrics),
        admission=Admission(settings.max_concurrent),
        background=Background(),
        costs=CostTable(),
    )


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    parts: Parts = app.state.parts
    watch = parts.background.spawn(parts.readiness.watch())
    try:
        yield
    finally:
        await cancelled(watch)
        await parts.background.drain(parts.settings.flush_timeout_s)
        await parts.store.close()
