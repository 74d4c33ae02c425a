"""Every log line of a process is one JSON object, those of libraries too."""

import json
import subprocess
import sys

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
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    library, warning, thread, end = map(json.loads, ended.stderr.splitlines())
    assert (library["logger"], library["message"]) == ("theirs.part", "of a library")
    assert warning["logger"] == "py.warnings" and "two\nlines" in warning["message"]
    assert "ZeroDivisionError" in thread["exception"]
    assert end["level"] == "CRITICAL" and "ValueError: at the end" in end["exception"] and ended.returncode == 1
