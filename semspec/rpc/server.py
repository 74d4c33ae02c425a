"""The process of a service: health, limits, authentication, readiness and graceful shutdown."""

import asyncio
import ctypes
import logging
import os
import signal
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health

from semspec.background import Background
from semspec.descriptors import raise_limit
from semspec.errors import SemspecError, Unavailable
from semspec.files import replacing
from semspec.observability import configure_logging, exported_traces
from semspec.rpc.calls import MAX_MESSAGE_BYTES, Methods
from semspec.rpc.servicers import LOADING, Servicer, watch_steps
from semspec.rpc.tls import server_credentials
from semspec.settings import ServiceSettings

if TYPE_CHECKING:
    from semspec.protocols import StepCounter
    from semspec.rpc.metrics import MetricsServer

EXIT_CANNOT_SERVE = 1
"""Exit code when the settings are valid but the model cannot be loaded or the port cannot be bound."""

LOOPBACK = ("127.0.0.1", "::1", "localhost")

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h
_TRIM_BYTES = 256 << 20
_MMAP_BYTES = 32 << 20  # the maximum that glibc accepts

WHOLE_PROCESS = ""
"""Name in health checks, NOT_SERVING only while the backend hangs."""
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

logger = logging.getLogger(__name__)


class ServiceServer:
    """One service on one port. Call `start`, then `load`, then `stop`; call `abandon` if one of the first two fails."""

    def __init__(self, servicer: Servicer[Any], settings: ServiceSettings) -> None:
        self.port = settings.port
        self._servicer, self._settings = servicer, settings
        self._health = health.HealthServicer()
        self._is_loaded = self._is_stalled = False
        self._background = Background()
        token = settings.service_token
        methods = Methods(token.get_secret_value() if token else None)
        handlers = {
            method.name: methods.handler(method, getattr(servicer, method.name))
            for method in servicer.descriptor.methods
        }
        self._server = aio.server(options=_server_options())
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(servicer.name, handlers),)
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    @property
    def address(self) -> str:
        """Host and port in the form a client uses; the port is known after `start`."""
        host = self._settings.host
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    async def start(self) -> None:
        """Bind the port and answer health checks with NOT_SERVING.

        Raises: Unavailable when the port cannot be bound or the certificate cannot be used.
        """
        await self._refuse(LOADING)
        credentials = server_credentials(self._settings)
        try:
            if credentials:
                self.port = self._server.add_secure_port(self.address, credentials)
            else:
                self.port = self._server.add_insecure_port(self.address)
        except RuntimeError as error:
            raise Unavailable(
                f"cannot listen on {self.address}", "port", remedy="choose another host or port"
            ) from error
        await self._server.start()

    async def load(self) -> None:
        """Load and test the backend, then serve. Raises: what the servicer's `load` raises."""
        backend = await self._servicer.load()
        if steps := getattr(backend, "steps", None):
            self._background.keep(
                "the watch of the engine's steps", partial(self._watch_steps, steps)
            )
        self._is_loaded = True
        await self._refuse("")

    async def stop(self) -> None:
        """Stop serving, wait `settle_s`, drain calls for at most `grace_s`, free the model unless it hangs."""
        await self._background.drain(0)
        await self._refuse("it is shutting down")
        await asyncio.sleep(self._settings.settle_s)
        await self._server.stop(self._settings.grace_s)
        if not self._is_stalled:
            await self._servicer.aclose()

    async def abandon(self) -> None:
        """Stop without a grace period, and free nothing: after a failed start."""
        await self._background.drain(0)
        await self._server.stop(None)

    async def _watch_steps(self, steps: "StepCounter") -> None:
        await watch_steps(steps, self._settings.stall_s, self._report_stall, self._is_stalled)

    async def _report_stall(self, is_stalled: bool) -> None:
        """Set the health of the service, by which gateways choose, and of the process, which Kubernetes restarts."""
        self._is_stalled = is_stalled
        if is_stalled:
            logger.error(
                "%s hangs: it has work and made no step for %g s; restart it",
                self._servicer.name,
                self._settings.stall_s,
            )
        else:
            logger.warning("%s makes steps again", self._servicer.name)
        await self._refuse("it hangs" if is_stalled else "")
        await self._health.set(WHOLE_PROCESS, NOT_SERVING if is_stalled else SERVING)

    async def _refuse(self, refusal: str) -> None:
        """Stop serving for this reason, or serve if it is empty. Health checks and `Info` agree."""
        self._servicer.refusal = refusal
        await self._health.set(self._servicer.name, NOT_SERVING if refusal else SERVING)


def run(servicer: Servicer[Any], settings: ServiceSettings) -> None:
    """Run a service as a process: serve until SIGTERM or SIGINT, then drain.

    Exits with code 1 and one log line when the model cannot be loaded or the port cannot be bound; in the second case
    gRPC logs a line of its own before it.
    """
    configure_logging(settings.log_level, settings.log_json)
    raise_limit()
    _keep_freed_memory()
    try:
        with exported_traces(servicer.name.lower().replace("semspec.v2.", "semspec-")):
            asyncio.run(serve(servicer, settings))
    except SemspecError as error:
        logger.critical("cannot serve %s: %s", servicer.name, error)
        raise SystemExit(EXIT_CANNOT_SERVE) from error


async def serve(servicer: Servicer[Any], settings: ServiceSettings) -> None:
    """Serve until SIGTERM or SIGINT, then drain. Before the model is loaded, either signal exits the process at once.

    Raises: Unavailable when the port cannot be bound; what the servicer's `load` raises.
    """
    _on_stop_signals(_exit_now)
    if settings.port_file:
        settings.port_file.unlink(missing_ok=True)
    server, metrics = ServiceServer(servicer, settings), _metrics_server(settings)
    try:
        await server.start()
        await server.load()
        if metrics and getattr(servicer.backend, "steps", None):  # there is an engine
            metrics.backend_metrics = getattr(servicer.backend, "metrics", tuple)
    except BaseException:
        await server.abandon()
        raise
    logger.info("serving %s on %s", servicer.name, server.address)
    if not (settings.service_token or settings.tls_client_ca or settings.host in LOOPBACK):
        logger.warning(
            "any client that reaches %s may call it; set SEMSPEC_SERVICE_TOKEN or SEMSPEC_TLS_CLIENT_CA",
            server.address,
        )
    if settings.port_file:
        with replacing(settings.port_file) as file:  # a waiting process never reads a part of it
            file.write_text(f"{server.port}\n")
    await _stop_signal()
    logger.info("draining %s", servicer.name)
    await server.stop()


def _metrics_server(settings: ServiceSettings) -> "MetricsServer | None":
    """Raises: Unavailable when there is none where one is wanted."""
    if settings.metrics_port is None:
        return None
    try:
        from semspec.rpc.metrics import MetricsServer
    except ModuleNotFoundError as error:
        raise Unavailable(
            f"{error.name} is not installed", remedy="install it, or unset SEMSPEC_METRICS_PORT"
        ) from error
    return MetricsServer(settings, settings.metrics_port)


async def _stop_signal() -> None:
    stopped = asyncio.Event()
    _on_stop_signals(lambda _: stopped.set())
    await stopped.wait()
    _on_stop_signals(_exit_now)  # a second signal exits without waiting for the drain


def _on_stop_signals(action: Callable[[int], None]) -> None:
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, action, signum)


def _exit_now(signum: int) -> None:
    # Loading a model in a thread cannot be interrupted, and for PID 1 the default action of a signal is to ignore it.
    os._exit(128 + signum)


def _keep_freed_memory() -> None:
    """Make malloc keep up to 256 MiB of freed memory instead of returning it to the kernel.

    This reduces the cost of sending 1.3 MB of states to a third. Affects the whole process; no effect without glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)


def _server_options() -> Sequence[tuple[str, int]]:
    return (
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.so_reuseport", 0),  # two processes on one port are a configuration error
        ("grpc.keepalive_time_ms", 30_000),  # stop generating for disconnected clients
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # Clients may ping during a long prefill.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    )
