"""Log lines: one a record, whatever is in it; with JSON one object each, those of libraries too."""

import json
import logging
import subprocess
import sys

from semspec.observability import JsonFormatter, request_id

PROGRAM = """
import logging, threading, warnings
theirs = logging.getLogger("theirs")
theirs.addHandler(logging.StreamHandler())
theirs.propagate = False
from semspec.observability import adopt, configure_logging
configure_logging("INFO", json=True)
adopt("theirs")
logging.getLogger("theirs.part").warning("of a library")
warnings.warn("two\\nlines")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
raise ValueError("at the end")
"""


def test_every_line_is_an_object() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    library, warning, thread, end = map(json.loads, ended.stderr.splitlines())
    assert (library["logger"], library["message"]) == ("theirs.part", "of a library")
    assert warning["logger"] == "py.warnings" and "two\nlines" in warning["message"]
    assert "ZeroDivisionError" in thread["exception"]
    assert end["level"] == "CRITICAL"
    assert "ValueError: at the end" in end["exception"]
    assert ended.returncode == 1


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
