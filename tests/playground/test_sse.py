"""The page's reader of server-sent events, run by Node.js."""

import json
import shutil
import subprocess
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js on the PATH"),
]
SOURCE = Path(__file__).parents[2] / "gateway/semspec_gateway/api" / "static" / "sse.js"
PROGRAM = """
const [, source, sent, size] = process.argv;
const { events } = await import(`data:text/javascript;base64,${source}`);
const bytes = new Uint8Array(Buffer.from(sent, "base64"));
const body = new ReadableStream({
  start(stream) {
    for (let at = 0; at < bytes.length; at += Number(size)) stream.enqueue(bytes.slice(at, at + Number(size)));
    stream.close();
  },
});
const found = [];
for await (const event of events({ body })) found.push(event);
console.log(JSON.stringify(found));
"""


def read_in_page(sent: bytes, num_bytes: int) -> Any:
    """Return the events that the page reads from a stream that arrives in pieces of this size."""
    arguments = b64encode(SOURCE.read_bytes()).decode(), b64encode(sent).decode(), str(num_bytes)
    command = ["node", "--input-type=module", "--eval", PROGRAM, "--", *arguments]
    return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=repr)
@pytest.mark.parametrize("num_bytes", [1, 7, 1000])
def test_lines_end_at_line_feeds_and_carriage_returns_alone(end: str, num_bytes: int) -> None:
    text = "a\x85b\u2028c\u2029d"
    sent = f"id: 1{end}data: {text}{end}{end}data: [DONE]{end}{end}:{end}"
    found = read_in_page(sent.encode(), num_bytes)
    assert found == [{"id": "1", "data": text}, {"id": "1", "data": "[DONE]"}]
