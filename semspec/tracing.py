"""OpenTelemetry traces of a process: off unless the standard variables ask for them, and then sent over OTLP/HTTP.

Only a `__main__` calls `exported_traces`; everything else opens a `span`, which costs nothing while traces are off and
needs OpenTelemetry (the extra `otel`) only while they are on. A span tells how much, how long and how it ended: never a
prompt, an answer or an error's message, which may quote either.
"""

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING, Literal

from semspec import __version__
from semspec.errors import SemspecError, represent

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span as RecordedSpan
    from opentelemetry.trace import Tracer

Kind = Literal["internal", "server", "client"]
Attributes = Mapping[str, str | int | float | bool | None]
"""None: unknown, and left out."""

CARRIED = ("traceparent", "tracestate")
"""W3C trace context: the HTTP headers and gRPC metadata by which a trace goes on in the next process."""

FLUSH_TIMEOUT_S = 3.0
"""How long the end of a process waits for a collector to take the last spans."""

_tracer: ContextVar["Tracer | None"] = ContextVar("tracer", default=None)
"""None: traces are off. Tasks inherit it from the `__main__`."""
_current: ContextVar["Span | None"] = ContextVar("current_span", default=None)
"""The parent of the next span."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of work under way, perhaps recorded."""

    recorded: "RecordedSpan | None"

    def set(self, attributes: Attributes) -> None:
        """Add to what is known of it."""
        if self.recorded is not None:
            self.recorded.set_attributes({key: value for key, value in attributes.items() if value is not None})

    def rename(self, name: str) -> None:
        """Name it by what is known only now."""
        if self.recorded is not None:
            self.recorded.update_name(name)

    def fail(self, code: str) -> None:
        """Mark it as failed."""
        if self.recorded is not None:
            from opentelemetry.trace import StatusCode

            self.recorded.set_attribute("error.type", code)
            self.recorded.set_status(StatusCode.ERROR)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Spans opened inside are its children. Not to be held across a `yield` to other code of the same task."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)


@contextmanager
def span(
    name: str, kind: Kind = "internal", attributes: Attributes | None = None, carried: Mapping[str, str] | None = None
) -> Iterator[Span]:
    """Record the block, below the active span or the one that another process has `carried` here.

    An error ends the span with the error's code; a cancellation, or a generator closed early, with
    `semspec.cancelled`.
    """
    tracer = _tracer.get()
    if tracer is None:
        yield Span(None)
        return
    opened = Span(_start(tracer, name, kind, carried))
    opened.set(attributes or {})
    try:
        yield opened
    except SemspecError as error:
        opened.fail(represent(error).code)
        raise
    except (asyncio.CancelledError, GeneratorExit):
        opened.set({"semspec.cancelled": True})
        raise
    except Exception as error:
        opened.fail(type(error).__name__)
        raise
    finally:
        _end(opened)


def carried() -> dict[str, str]:
    """What to send to the next process so that its spans are children of the active one; nothing while traces are off.

    Keys are those of `CARRIED`.
    """
    current = _current.get()
    if current is None or current.recorded is None:
        return {}
    from opentelemetry.trace import set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier, set_span_in_context(current.recorded))
    return carrier


@contextmanager
def exported_traces(service: str) -> Iterator[None]:
    """Inside, spans of this process are sent where `OTEL_EXPORTER_OTLP_ENDPOINT` (or `..._TRACES_ENDPOINT`) says.

    `service` is their `service.name`, unless `OTEL_SERVICE_NAME` names another. Without such a variable, with
    `OTEL_SDK_DISABLED=true` or without OpenTelemetry installed nothing is recorded. A collector that does not answer
    costs spans, and `FLUSH_TIMEOUT_S` at the end.
    """
    provider = _provider(service) if _asked_for() else None
    token = _tracer.set(None if provider is None else provider.get_tracer("semspec", __version__))
    try:
        yield
    finally:
        _tracer.reset(token)
        if provider is not None:
            _flush(provider)


def _asked_for() -> bool:
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    disabled = _variable("OTEL_SDK_DISABLED") == "true" or _variable("OTEL_TRACES_EXPORTER") == "none"
    return any(_variable(name) for name in endpoints) and not disabled


def _variable(name: str) -> str:
    return os.environ.get(name, "").strip().lower()


def _provider(service: str) -> "TracerProvider | None":
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        _log.warning("an OTLP endpoint is set, but OpenTelemetry is not installed: no traces; install semspec[otel]")
        return None
    # Not the process's global provider: frameworks that find one (FastAPI does) add spans with texts of their choosing.
    own = Resource.create({"service.name": service, "service.version": __version__})
    provider = TracerProvider(resource=own.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def _flush(provider: "TracerProvider") -> None:
    """Send what is left, in a thread that the process does not wait for longer than this."""
    flush = Thread(target=provider.shutdown, daemon=True)
    flush.start()
    flush.join(FLUSH_TIMEOUT_S)
    if flush.is_alive():
        _log.warning("the last spans are lost: the collector did not take them within %g s", FLUSH_TIMEOUT_S)


def _start(tracer: "Tracer", name: str, kind: Kind, carrier: Mapping[str, str] | None) -> "RecordedSpan":
    from opentelemetry.context import Context
    from opentelemetry.trace import SpanKind, set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    current = _current.get()
    parent = Context()
    if carrier is not None:
        parent = TraceContextTextMapPropagator().extract(carrier, parent)
    elif current is not None and current.recorded is not None:
        parent = set_span_in_context(current.recorded, parent)
    return tracer.start_span(name, parent, SpanKind[kind.upper()])


def _end(opened: Span) -> None:
    if opened.recorded is not None:
        opened.recorded.end()
