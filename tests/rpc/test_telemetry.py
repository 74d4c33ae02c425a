"""Log lines: one a record, whatever is in it."""

import json
import logging

import pytest

from semspec.observability import JsonFormatter, KeyValueFormatter, configure_logging, request_id


def record(message: str, **extra: object) -> logging.LogRecord:
    return logging.getLogger("semspec.test").makeRecord(
        "semspec.test", logging.INFO, "file.py", 1, message, (), None, extra=extra
    )


def test_json_line_holds_the_request_and_the_extras() -> None:
    token = request_id.set("request-1")
    fields = json.loads(JsonFormatter().format(record("two\nlines", num_tokens=3)))
    request_id.reset(token)
    assert fields.pop("time").endswith("+00:00")
    assert fields == {
        "level": "INFO",
        "logger": "semspec.test",
        "message": "two\nlines",
        "request_id": "request-1",
        "num_tokens": 3,
    }


def test_key_value_line_quotes_what_would_forge_fields() -> None:
    line = KeyValueFormatter().format(record("end\nlevel=ERROR", plain=1, empty=""))
    assert "\n" not in line
    assert r'message="end\nlevel=ERROR"' in line
    assert line.endswith('plain=1 empty=""')
    assert "request_id" not in line


@pytest.mark.usefixtures("own_logging")
def test_exception_stays_on_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", json=True)
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("semspec.test").exception("failed")
    [line] = capsys.readouterr().err.splitlines()
    assert "ValueError: why" in json.loads(line)["exception"]
