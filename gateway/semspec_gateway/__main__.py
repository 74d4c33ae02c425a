"""Entry point: `python -m semspec_gateway`."""

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from math import ceil
from socket import socket
from types import FrameType

import uvicorn
from fastapi import FastAPI
from uvicorn.config import STARTUP_FAILURE

from semspec.certificates import reloading_context
from semspec.decoding import STRATEGIES, Backends, Strategies
from semspec.decoding.backends import WithoutProbes
from semspec.descriptors import raise_limit
from semspec.observability import configure_logging, exported_traces
from semspec.rpc.clients import RemoteDrafter, RemoteTarget, RemoteVerifier
from semspec.rpc.connection import ClientOptions
from semspec.rpc.tls import Certificates
from semspec.settings import parse_command
from semspec_gateway.api.shared.middleware import Drain, is_open
from semspec_gateway.app import create_app
from semspec_gateway.connections import Connection, Connections, listen
from semspec_gateway.readiness import Readiness
from semspec_gateway.settings import NO_VERIFIER, GatewaySettings
from semspec_gateway.store.store import Store

SERVER_HEADER_BYTES = 16 * 1024
"""Maximum size of an incomplete request head, in bytes."""
CUT_OFF_AFTER_S = 2
"""Seconds from the end of the drain until connections whose clients do not read are cut off."""
_log = logging.getLogger(__name__)


class _Server(uvicorn.Server):
    """Shuts down in three steps: `/ready` fails for `settle_s`, running requests have `grace_s`, the rest get an error.

    Then `serve` returns; uvicorn's own server would raise the signal again and end the process.
    """

    def __init__(
        self, config: uvicorn.Config, readiness: Readiness, drain: Drain, settings: GatewaySettings
    ) -> None:
        super().__init__(config)
        self._readiness = readiness
        self._drain = drain
        self._settings = settings

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start the shutdown; a second signal ends the settle time and the drain at once."""
        if self._readiness.is_draining:
            self._drain.end()
        delay_s = 0 if self._readiness.is_draining else self._settings.settle_s
        self._readiness.is_draining = True
        asyncio.get_running_loop().call_later(delay_s, super().handle_exit, sig, frame)

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Refuse connections, wait for the running requests, then free the application."""
        timer = asyncio.get_running_loop().call_later(self._settings.grace_s, self._drain.end)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield


def downgrade_aborted_response(record: logging.LogRecord) -> bool:
    """A filter: uvicorn logs as an error that a response is given up, as for a client that does not read it."""
    if record.msg == "ASGI callable returned without completing response.":
        record.levelno, record.levelname = logging.INFO, "INFO"
        record.msg = "gave up a response; the connection is closed"
    return record.levelno >= logging.getLogger().getEffectiveLevel()


def main(strategies: Strategies = STRATEGIES) -> None:
    """Serve until SIGINT or SIGTERM."""
    settings = parse_command(GatewaySettings, "python -m semspec_gateway")
    configure_logging(settings.log_level, settings.log_json)
    logging.getLogger("uvicorn.error").addFilter(downgrade_aborted_response)
    raise_limit()
    services = AsyncExitStack()
    with exported_traces("semspec-gateway"), asyncio.Runner() as runner:
        try:
            backends = runner.run(_connect(settings, services))
            app = create_app(settings, backends, Store(settings), strategies)
            connections = Connections(is_open)
            config = _server_config(settings, app, connections)
            server = _Server(config, app.state.readiness, app.state.drain, settings)
            gc.freeze()  # what lives as long as the process is not looked at again
            runner.run(server.serve(_listening(settings, connections)))
        finally:
            runner.run(services.aclose())


def _listening(settings: GatewaySettings, connections: Connections) -> list[socket]:
    """Open the sockets of the gateway's address. Ends the process if it cannot listen there."""
    try:
        sockets = list(listen(settings.host, settings.port, connections))
    except OSError as error:
        _log.error(
            "cannot listen on %s:%d: %s; choose another host or port",
            settings.host,
            settings.port,
            error,
        )
        sys.exit(STARTUP_FAILURE)
    for listener in sockets:
        _log.info("listening on %s:%d", *listener.getsockname()[:2])
    return sockets


async def _connect(settings: GatewaySettings, services: AsyncExitStack) -> Backends:
    """Connect to the services; `services` closes the connections."""
    certificates = None
    if settings.service_ca:
        certificates = Certificates(
            settings.service_ca, settings.service_certificate, settings.service_key
        )
    options = ClientOptions(
        token=settings.service_token.get_secret_value() if settings.service_token else None,
        certificates=certificates,
        health_timeout_s=settings.health_timeout_s,
    )

    drafter = RemoteDrafter(settings.draft_address, options)
    services.push_async_callback(drafter.aclose)
    target = RemoteTarget(settings.target_address, options)
    services.push_async_callback(target.aclose)
    if settings.verifier_address == NO_VERIFIER:
        return Backends(drafter, target, WithoutProbes())
    verifier = RemoteVerifier(settings.verifier_address, options)
    services.push_async_callback(verifier.aclose)
    return Backends(drafter, target, verifier)


def _server_config(
    settings: GatewaySettings, app: FastAPI, connections: Connections
) -> uvicorn.Config:
    certificate, key = settings.tls_certificate, settings.tls_key
    tls = (
        (lambda config, default: reloading_context(certificate, key))
        if certificate and key
        else None
    )
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        http=partial(Connection, connections),  # type: ignore[arg-type] # uvicorn's other parser limits no request head
        backlog=connections.backlog,
        h11_max_incomplete_event_size=SERVER_HEADER_BYTES,
        timeout_keep_alive=settings.keep_alive_s,
        timeout_graceful_shutdown=ceil(settings.grace_s) + CUT_OFF_AFTER_S,
        ssl_context_factory=tls,
    )


if __name__ == "__main__":
    main()
