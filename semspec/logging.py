"""Logging of a process: one line a record on stderr, key=value or JSON, with the request it belongs to.

Only a `__main__` calls `configure_logging`; everything else logs as usual, and what it passes as `extra` becomes fields
of the line.
"""

import logging
from contextvars import ContextVar
from datetime import UTC, datetime
from json import dumps

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""The request this task works for; travels between processes as the metadata `x-request-id`."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


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
