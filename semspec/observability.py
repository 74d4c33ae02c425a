"""Logs and traces of a process, the request id that both contain, and durations for its metrics.

Only a `__main__` calls `configure_logging` and `exported_traces`; other code uses `logging` and opens a `span`. A log
record is one line on stderr, including the fields in `extra`. A span records counts, durations and the outcome. It
never contains a prompt, an answer or an error's message, which may quote them.
"""

import asyncio
import logging
import os
import sys
import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from json import dumps
from typing import TYPE_CHECKING, cast

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode

from semspec import __version__
from semspec.errors import SemspecError, one_line, represent
from semspec.installation import install_command

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

Attributes = Mapping[str, str | int | float | bool | None]
"""Attributes of a span; None: unknown and omitted."""

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Id of the request the current task processes; sent between processes as the metadata `x-request-id`."""

FLUSH_TIMEOUT_S = 3.0
"""Maximum wait for a collector to accept the last spans when a process ends."""

STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
"""Upper bounds of the histogram of a backend's steps."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    "color_message",
}
_TRACER = otel_context.create_key("semspec-tracer")  # in the context, which tasks inherit

_log = logging.getLogger(__name__)


class Durations:
    """A histogram of durations by `STEP_SECONDS`. One thread adds, others may read."""

    def __init__(self) -> None:
        self.total_s = 0.0
        self.counts = [0] * (len(STEP_SECONDS) + 1)
        """Durations up to each bound and above the one before; the last number is of those above all."""

    def add(self, duration_s: float) -> None:
        self.total_s += duration_s
        self.counts[bisect_left(STEP_SECONDS, duration_s)] += 1


Metric = tuple[str, str, float | Durations]
"""Name, meaning and value; a name that ends in `_total` is a counter's."""


def configure_logging(level: str, json: bool) -> None:
    """Send every logger's records of at least `level` ("DEBUG" to "CRITICAL") to stderr, one line each; also Python's
    warnings, and errors that end the process or a thread."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if json else KeyValueFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    sys.excepthook = lambda kind, error, _: _log.critical(
        "the process ended with %s", kind.__name__, exc_info=error
    )
    threading.excepthook = lambda ended: _log.error(
        "a thread ended with an error", exc_info=ended.exc_value
    )


def adopt(library: str) -> None:
    """Send the records of a library that has a log handler of its own to the root logger's handler."""
    logger = logging.getLogger(library)
    logger.handlers.clear()
    logger.propagate = True


class KeyValueFormatter(logging.Formatter):
    """`time=... level=INFO logger=semspec.rpc.server message="serving ..." request_id=... key=value`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; values with spaces, quotes or line breaks are quoted as in JSON."""
        return one_line(
            " ".join(f"{key}={_quoted(value)}" for key, value in _fields(self, record).items())
        )


class JsonFormatter(logging.Formatter):
    """The same fields as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; values that JSON cannot represent are converted with `str`."""
        return one_line(dumps(_fields(self, record), default=str, ensure_ascii=False))


def _fields(formatter: logging.Formatter, record: logging.LogRecord) -> dict[str, object]:
    fields: dict[str, object] = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "level": record.levelname,
        "logger": record.name,
        "message": record.getMessage(),
    }
    if identifier := request_id.get():
        fields["request_id"] = identifier
    fields |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
    if record.exc_info:
        fields["exception"] = formatter.formatException(record.exc_info)
    return fields


def _quoted(value: object) -> str:
    text = str(value)
    plain = text.isprintable() and text and not any(mark in text for mark in ' "=')
    return text if plain else dumps(text, ensure_ascii=False)


@contextmanager
def span(
    name: str,
    kind: SpanKind = SpanKind.INTERNAL,
    attributes: Attributes | None = None,
    context: Context | None = None,
) -> Iterator[Span]:
    """Record the block as a span, a child of the span in `context` (None: of the current span); it is current inside.

    Do not keep it open across the `yield` of an async generator, because it would be current in the consumer: use
    `detached_span`. An error sets the error's code on the span; a cancellation or an early close sets
    `semspec.cancelled`.
    """
    with detached_span(name, kind, attributes, context) as opened, current(opened):
        yield opened


@contextmanager
def detached_span(
    name: str,
    kind: SpanKind = SpanKind.INTERNAL,
    attributes: Attributes | None = None,
    context: Context | None = None,
) -> Iterator[Span]:
    """As `span`, but the span is current only inside `current(...)`."""
    opened = _tracer().start_span(name, context, kind, known(attributes or {}))
    try:
        yield opened
    except SemspecError as error:
        mark_failed(opened, represent(error).code)
        raise
    except (asyncio.CancelledError, GeneratorExit):
        opened.set_attribute("semspec.cancelled", True)
        raise
    except Exception as error:
        mark_failed(opened, type(error).__name__)
        raise
    finally:
        opened.end()


def current(opened: Span) -> AbstractContextManager[Span]:
    """Make `opened` the current span of the block. Neither ends it nor records exceptions on it."""
    return trace.use_span(opened, record_exception=False, set_status_on_exception=False)


def mark_failed(opened: Span, code: str) -> None:
    """Set the error status; of the error, only the code is recorded."""
    opened.set_attribute("error.type", code)
    opened.set_status(StatusCode.ERROR)


def known(attributes: Attributes) -> dict[str, str | int | float | bool]:
    """Return the attributes that are not None; OpenTelemetry rejects None."""
    return {key: value for key, value in attributes.items() if value is not None}


def _tracer() -> trace.Tracer:
    return cast(trace.Tracer, otel_context.get_value(_TRACER) or trace.NoOpTracer())


@contextmanager
def exported_traces(service: str) -> Iterator[None]:
    """Export the spans of this process to `OTEL_EXPORTER_OTLP_ENDPOINT` (or `..._TRACES_ENDPOINT`).

    `service` is their `service.name` unless `OTEL_SERVICE_NAME` is set. Nothing is recorded without an endpoint, with
    `OTEL_SDK_DISABLED=true`, or without the OpenTelemetry SDK. If the collector does not answer, spans are dropped and
    the end of the process is delayed by up to `FLUSH_TIMEOUT_S`.
    """
    provider = _provider(service) if _is_requested() else None
    if provider is None:
        yield
        return
    token = otel_context.attach(
        otel_context.set_value(_TRACER, provider.get_tracer("semspec", __version__))
    )
    try:
        yield
    finally:
        otel_context.detach(token)
        _flush(provider)


def _is_requested() -> bool:
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    disabled = (
        _variable("OTEL_SDK_DISABLED") == "true" or _variable("OTEL_TRACES_EXPORTER") == "none"
    )
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
        _log.warning(
            "an OTLP endpoint is set, but OpenTelemetry is not installed: no traces; %s",
            install_command("otel"),
        )
        return None
    # Not the global provider: frameworks that use one, such as FastAPI, add spans with contents we do not control.
    resource = Resource.create({"service.name": service, "service.version": __version__})
    provider = TracerProvider(
        resource=resource.merge(OTELResourceDetector().detect()), shutdown_on_exit=False
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def _flush(provider: "TracerProvider") -> None:
    """Send the remaining spans in a thread; wait at most `FLUSH_TIMEOUT_S`."""
    flush = threading.Thread(target=provider.shutdown, daemon=True)
    flush.start()
    flush.join(FLUSH_TIMEOUT_S)
    if flush.is_alive():
        _log.warning(
            "the last spans are lost: the collector did not take them within %g s", FLUSH_TIMEOUT_S
        )
