"""The metrics of a service's process, on a port of their own: its backend's, Python's, and vLLM's where that runs."""

import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from socket import AF_INET, AF_INET6
from socketserver import TCPServer
from threading import Thread

from prometheus_client import REGISTRY, MetricsHandler
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from semspec.certificates import renewing_context
from semspec.errors import Unavailable
from semspec.observability import STEP_SECONDS, Durations, Metric
from semspec.settings import ServiceSettings

BOUNDS = [*map(str, STEP_SECONDS), "+Inf"]

logger = logging.getLogger(__name__)


class _Handler(MetricsHandler):
    timeout = 5.0
    """Seconds that a client may send nothing while others wait."""


class MetricsServer(TCPServer, Collector):
    """Answers scrapes in a thread, one after another, with the service's certificate if it has one."""

    allow_reuse_address = True

    def __init__(self, settings: ServiceSettings, port: int) -> None:
        """Raises: Unavailable when the port cannot be bound."""
        self.address_family = AF_INET6 if ":" in settings.host else AF_INET
        self.of_backend: Callable[[], Iterable[Metric]] = tuple
        """Set once there is a backend."""
        try:
            super().__init__((settings.host, port), _Handler)
        except OSError as error:
            raise Unavailable(f"SEMSPEC_METRICS_PORT: cannot listen on {port}: {error}; choose another port") from error
        if settings.tls_certificate and settings.tls_key:
            context = renewing_context(settings.tls_certificate, settings.tls_key)
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        REGISTRY.register(self)
        Thread(target=self.serve_forever, name="metrics", daemon=True).start()

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]:
        for name, meaning, value in self.of_backend():
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
