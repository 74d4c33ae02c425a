"""Creates the FastAPI application and connects its components."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from semspec import __version__
from semspec.background import Background, cancel_tasks
from semspec.decoding import STRATEGIES, Backends, Strategies
from semspec.keys import Keys
from semspec.rpc.clients import RemoteBackend
from semspec_gateway.api.openai import completions, responses
from semspec_gateway.api.shared import generations, models, operations, playground, sessions
from semspec_gateway.api.shared.bodies import Bodies
from semspec_gateway.api.shared.document import DocumentedApp
from semspec_gateway.api.shared.errors import install_handlers
from semspec_gateway.api.shared.event_stream import GENERATION_ID
from semspec_gateway.api.shared.formats import Format
from semspec_gateway.api.shared.middleware import (
    Authenticated,
    BodyGuard,
    Drain,
    HttpFraming,
    Observed,
)
from semspec_gateway.api.shared.resolver import Resolver
from semspec_gateway.api.shared.responder import Responder
from semspec_gateway.api.tgi import generation as tgi
from semspec_gateway.api.tgi import tokens
from semspec_gateway.generation.admission import Admission, Limits
from semspec_gateway.generation.audit import Audit
from semspec_gateway.generation.generations import Generations
from semspec_gateway.generation.load import LoadControl
from semspec_gateway.generation.preparation import Preparation
from semspec_gateway.generation.runner import ChoiceRunner
from semspec_gateway.metrics import POOLED, Metrics
from semspec_gateway.readiness import Readiness
from semspec_gateway.settings import GatewaySettings
from semspec_gateway.store.leases import Leases
from semspec_gateway.store.sharing import Shared
from semspec_gateway.store.store import Store

_log = logging.getLogger(__name__)

STORED_WITHIN_S = 2.0
"""Longest wait, at shutdown, for traces to be stored."""
RECEIVE_TIMEOUT_S = 30.0
"""Longest that a client may take to send its body."""
CROSS_ORIGIN: dict[str, Any] = {
    "allow_methods": ["GET", "POST", "DELETE"],
    "allow_headers": ["*"],
    "expose_headers": [GENERATION_ID, "x-request-id", "x-should-retry", "retry-after"],
}
"""What pages of an allowed origin may send and read. No cookies: a page sends an API key, as every client does."""


def create_app(
    settings: GatewaySettings,
    backends: Backends,
    store: Store,
    strategies: Strategies = STRATEGIES,
) -> FastAPI:
    """A gateway over `backends` and `store`, with the strategies of this table.

    It closes the store at shutdown; the caller closes the backends.

    Routes get their dependencies as arguments; `app.state` exposes some to the entry point and to tests.
    """
    metrics, background, drain, keys = Metrics(), Background(), Drain(), _keys(settings)
    metrics.capacity.set(settings.max_concurrent)
    store.on_failure = lambda operation: metrics.redis_failures.labels(operation).inc()
    for service, backend in zip(
        POOLED, (backends.drafter, backends.target, backends.verifier), strict=True
    ):
        if isinstance(backend, RemoteBackend):
            metrics.of_services.replicas(service, backend.pool)
    readiness = Readiness(backends, settings, store, metrics, strategies)
    per_owner = settings.max_concurrent_per_key or settings.max_concurrent
    limits = Limits(
        settings.max_concurrent, per_owner, settings.max_queued, settings.queue_timeout_s
    )
    admission = Admission(limits, metrics)
    audit = Audit(readiness, admission, metrics, settings) if settings.audit.share else None
    leases = Leases(store, background, settings.writer_lease_s)
    load = LoadControl(metrics.load) if settings.load_adaptive else None
    runner = ChoiceRunner(readiness, metrics, settings, audit, load)
    preparation = Preparation(readiness, metrics, settings)
    running = Generations(runner, admission, preparation, readiness, leases)
    formats: dict[str, type[Format]] = {
        "chat": completions.ChatFormat,
        "completions": completions.CompletionFormat,
        "responses": responses.ResponsesFormat,
        "tgi": tgi.TgiFormat,
    }
    resolver = Resolver(readiness, settings, audit)
    calls = Shared(cancels_abandoned=True)
    responder = Responder(resolver, running, store, calls, settings, formats)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        watches = [background.keep("the watch of the services", readiness.watch)]
        if keys is not None:
            watches.append(background.keep("the watch of the keys", keys.watch))
        if audit is not None:
            watches.append(background.keep("the audit", audit.watch))
        try:
            yield
        finally:
            await cancel_tasks(*watches)
            await background.drain(STORED_WITHIN_S)
            preparation.close()
            await calls.close()
            await store.close()

    app = DocumentedApp(
        keys is not None,
        title="semspec",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.readiness, app.state.store, app.state.background = readiness, store, background
    app.state.admission, app.state.generations, app.state.drain = admission, running, drain
    for router in (
        completions.router(responder),
        responses.router(responder, readiness, store),
        models.router(readiness, settings),
        generations.router(responder, store),
        operations.router(backends, readiness, store, metrics, keys, settings),
        playground.router,
        sessions.router(store),
        tgi.router(responder, readiness, settings),
        tokens.router(preparation, readiness, settings),
    ):
        app.include_router(router)
    install_handlers(app, metrics)
    app.add_middleware(
        BodyGuard,
        bodies=Bodies(settings),
        timeout_s=RECEIVE_TIMEOUT_S,
        drain=drain,
        metrics=metrics,
    )
    if keys is not None:
        app.add_middleware(Authenticated, keys=keys, metrics=metrics)
    app.add_middleware(HttpFraming)
    app.add_middleware(Observed, metrics=metrics)
    # CORS is the outermost middleware: a page can read every error, and its preflight request needs no key.
    if settings.origins:
        app.add_middleware(CORSMiddleware, allow_origins=settings.origins, **CROSS_ORIGIN)
    return app


def _keys(settings: GatewaySettings) -> Keys | None:
    if settings.auth == "none":
        _log.warning(
            "authentication is off, since SEMSPEC_GATEWAY_AUTH is none: every client may use this gateway"
        )
        return None
    return Keys(settings.api_keys.get_secret_value(), settings.api_keys_file)
