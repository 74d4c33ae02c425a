"""Logs and traces of a process, and the request id that both contain.

Only a `__main__` calls `configure_logging` and `exported_traces`; other code logs as usual and opens a `span`. A record
is one line on stderr, with what the caller passes as `extra`. A span states how much, how long and how it ended: never
a prompt, an answer or an error's message, which may quote either.
"""

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from json import dumps
from threading import Thread
from typing import TYPE_CHECKING, cast

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode

from semspec import __version__
from semspec.errors import SemspecError, represent

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

Attributes = Mapping[str, str | int | float | bool | None]
"""None: unknown, and left out."""

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""The request this task works for; travels between processes as the metadata `x-request-id`."""

FLUSH_TIMEOUT_S = 3.0
"""How long the end of a process waits for a collector to take the last spans."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
_TRACER = otel_context.create_key("semspec-tracer")  # in the current context; tasks inherit it from the `__main__`

_log = logging.getLogger(__name__)


def configure_logging(level: str, json: bool) -> None:
    """Send every logger's records of at least `level` ("DEBUG" to "CRITICAL") to stderr, one line each."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if json else KeyValueFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class KeyValueFormatter(logging.Formatter):
    """`time=... level=INFO logger=semspec.rpc.server message="serving ..." request_id=... key=value`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; values that hold blanks, quotes or line ends are quoted as in JSON."""
        return _one_line(" ".join(f"{key}={_quoted(value)}" for key, value in _fields(self, record).items()))


class JsonFormatter(logging.Formatter):
    """The same fields as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; what JSON cannot say is written as its `str`."""
        return _one_line(dumps(_fields(self, record), default=str, ensure_ascii=False))


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


def _one_line(text: str) -> str:
    """`text` without what JSON leaves as it is though it ends a line, or turns its direction, for those who read it."""
    return text if text.isprintable() else "".join(one if one.isprintable() else dumps(one)[1:-1] for one in text)


@contextmanager
def span(
    name: str, kind: SpanKind = SpanKind.INTERNAL, attributes: Attributes | None = None, context: Context | None = None
) -> Iterator[Span]:
    """Record the block, as a child of the span of `context` (None: of the current one); it is current inside.

    Not to be held across the `yield` of an async generator, whose consumer would then work in it: see `detached_span`.
    An error ends the span with the error's code; a cancellation, or a generator closed early, with `semspec.cancelled`.
    """
    with detached_span(name, kind, attributes, context) as opened, current(opened):
        yield opened


@contextmanager
def detached_span(
    name: str, kind: SpanKind = SpanKind.INTERNAL, attributes: Attributes | None = None, context: Context | None = None
) -> Iterator[Span]:
    """The same, but the span is current only inside `current(...)`."""
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
    """Spans opened inside are children of `opened`, which does not end here and is told of no exception."""
    return trace.use_span(opened, record_exception=False, set_status_on_exception=False)


def mark_failed(opened: Span, code: str) -> None:
    """End with an error, of which only the code is recorded."""
    opened.set_attribute("error.type", code)
    opened.set_status(StatusCode.ERROR)


def known(attributes: Attributes) -> dict[str, str | int | float | bool]:
    """Those that are not None, which OpenTelemetry refuses."""
    return {key: value for key, value in attributes.items() if value is not None}


def _tracer() -> trace.Tracer:
    return cast(trace.Tracer, otel_context.get_value(_TRACER) or trace.NoOpTracer())


@contextmanager
def exported_traces(service: str) -> Iterator[None]:
    """Inside, spans of this process are sent where `OTEL_EXPORTER_OTLP_ENDPOINT` (or `..._TRACES_ENDPOINT`) says.

    `service` is their `service.name`, unless `OTEL_SERVICE_NAME` names another. Without such a variable, with
    `OTEL_SDK_DISABLED=true` or without OpenTelemetry's SDK installed nothing is recorded. A collector that does not
    answer costs spans, and `FLUSH_TIMEOUT_S` at the end.
    """
    provider = _provider(service) if _asked_for() else None
    if provider is None:
        yield
        return
    token = otel_context.attach(otel_context.set_value(_TRACER, provider.get_tracer("semspec", __version__)))
    try:
        yield
    finally:
        otel_context.detach(token)
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
    """Send what is left, in a thread for which the process waits `FLUSH_TIMEOUT_S` at most."""
    flush = Thread(target=provider.shutdown, daemon=True)
    flush.start()
    flush.join(FLUSH_TIMEOUT_S)
    if flush.is_alive():
        _log.warning("the last spans are lost: the collector did not take them within %g s", FLUSH_TIMEOUT_S)
