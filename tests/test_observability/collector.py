"""An OTLP/HTTP collector: takes what processes send over the wire, and keeps it as plain values."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

GENEROUS_S = 20.0


@dataclass(frozen=True, slots=True)
class Received:
    """A span as it arrived."""

    service: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    has_failed: bool
    attributes: dict[str, Any]


@dataclass
class Collector:
    """What has been received so far, and where."""

    address: str
    spans: list[Received] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """What makes a process send its spans here, soon."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{self.address}",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
        }

    def trace(self, trace_id: str) -> list[Received]:
        return [span for span in self.spans if span.trace_id == trace_id]

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        self.bodies.append(body)
        for resource in request.resource_spans:
            service = _values(resource.resource.attributes)["service.name"]
            self.spans += [
                _received(service, span) for scope in resource.scope_spans for span in scope.spans
            ]


@contextmanager
def collecting(port: int = 0) -> Iterator[Collector]:
    """A collector on `port`, or a free one; nothing listens there afterwards."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.take(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(ExportTraceServiceResponse().SerializeToString())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        collector = Collector(f"127.0.0.1:{server.server_port}")
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}).start()
        try:
            yield collector
        finally:
            server.shutdown()


def named(spans: Sequence[Received], name: str, kind: str = "") -> list[Received]:
    return [span for span in spans if span.name == name and kind in ("", span.kind)]


def _received(service: str, span: WireSpan) -> Received:
    return Received(
        service=service,
        name=span.name,
        kind=WireSpan.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        has_failed=span.status.code == Status.STATUS_CODE_ERROR,
        attributes=_values(span.attributes),
    )


def _values(attributes: Sequence[KeyValue]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in attributes}


def _value(value: AnyValue) -> Any:
    return getattr(value, value.WhichOneof("value") or "string_value")
