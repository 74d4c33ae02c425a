"""The metrics of a service's process, on a separate port: its backend's, Python's, and vLLM's if it runs."""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import accumulate
from socket import AF_INET, AF_INET6, SHUT_RDWR, socket
from socketserver import ThreadingTCPServer
from time import monotonic
from typing import Any

from prometheus_client import REGISTRY, MetricsHandler
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from semspec.background import keep_thread_running
from semspec.certificates import reloading_context
from semspec.errors import Unavailable
from semspec.observability import STEP_SECONDS, Durations, Metric
from semspec.settings import ServiceSettings

BOUNDS = [*map(str, STEP_SECONDS), "+Inf"]

MAX_CLIENTS = 32
"""Connections at the same time; a further one ends the oldest."""
CLIENT_S = 5.0
"""Seconds from connection to the end of the answer, after which a client is disconnected."""

logger = logging.getLogger(__name__)


class _Handler(MetricsHandler):
    timeout = CLIENT_S


class MetricsServer(ThreadingTCPServer, Collector):
    """Answers scrapes, each in a thread, with the service's certificate if it has one."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = MAX_CLIENTS

    def __init__(self, settings: ServiceSettings, port: int) -> None:
        """Raises: Unavailable when the port cannot be bound."""
        self.address_family = AF_INET6 if ":" in settings.host else AF_INET
        self.backend_metrics: Callable[[], Iterable[Metric]] = tuple
        """Set once there is a backend."""
        self._connected_at: dict[Any, float] = {}
        """Clients by their sockets, the oldest first."""
        try:
            super().__init__((settings.host, port), _Handler)
        except OSError as error:
            raise Unavailable(
                f"SEMSPEC_METRICS_PORT: cannot listen on {port}: {error}",
                remedy="choose another port",
            ) from error
        if settings.tls_certificate and settings.tls_key:
            context = reloading_context(settings.tls_certificate, settings.tls_key)
            self.socket = context.wrap_socket(
                self.socket, server_side=True, do_handshake_on_connect=False
            )
        REGISTRY.register(self)
        keep_thread_running("the metrics server", self.serve_forever)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a client in a thread."""
        if len(self._connected_at) >= MAX_CLIENTS:
            _disconnect(next(iter(self._connected_at), None))
        self._connected_at[request] = monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Disconnect clients that are too slow; called twice a second."""
        overdue = monotonic() - CLIENT_S
        for request, connected_at in list(self._connected_at.items()):
            if connected_at < overdue:
                _disconnect(request)

    def shutdown_request(self, request: Any) -> None:
        """Forget a client that has its answer, or is disconnected."""
        self._connected_at.pop(request, None)
        super().shutdown_request(request)

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]:
        for name, meaning, value in self.backend_metrics():
            if isinstance(value, Durations):
                buckets = list(zip(BOUNDS, accumulate(value.counts), strict=True))
                yield HistogramMetricFamily(name, meaning, buckets, value.total_s)
            elif name.endswith("_total"):
                yield CounterMetricFamily(name, meaning, value)
            else:
                yield GaugeMetricFamily(name, meaning, value)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client went away, or speaks no TLS."""
        logger.debug("a scrape has failed", exc_info=True)


def _disconnect(request: socket | None) -> None:
    """Wake the thread that reads from a client or writes to it; a TLS socket's own method would race with it."""
    with suppress(OSError):
        if request is not None:
            socket.shutdown(request, SHUT_RDWR)
