"""curl, as documentation has people use it, against a stack of real models."""

import json
import shutil
import subprocess
from typing import Any

import pytest

from tests.clients.conftest import GENEROUS_S, Server

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")]


def curl(server: Server, path: str, body: dict[str, Any], *options: str) -> tuple[int, str]:
    """The HTTP status and the body."""
    command = ["curl", "-sS", *options, "-w", "\n%{http_code}", f"{server.url}{path}"]
    command += ["-H", f"authorization: Bearer {server.api_key}"]
    command += ["-H", "content-type: application/json", "-d", json.dumps(body)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=GENEROUS_S, check=True)
    text, _, status = done.stdout.rpartition("\n")
    return int(status), text


def test_chat_streams_events(server: Server) -> None:
    body = {"model": "semspec-demo", "messages": [{"role": "user", "content": server.question}], "stream": True}
    status, text = curl(server, "/v1/chat/completions", {**body, "seed": 1}, "-N")
    lines = [line for line in text.splitlines() if line.startswith("data: ")]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert status == 200 and lines[-1] == "data: [DONE]"
    said = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    assert server.answer in said


def test_tgi_stream_ends_with_the_text(server: Server) -> None:
    inputs = f"{server.question}\n\n<think>\n\n"
    status, text = curl(server, "/generate_stream", {"inputs": inputs, "parameters": {"details": True}}, "-N")
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
    assert status == 200 and server.answer in events[-1]["generated_text"]
    assert events[-1]["details"]["finish_reason"] == "eos_token"


def test_refusals_have_a_status_and_the_words_of_their_api(server: Server) -> None:
    status, text = curl(server, "/v1/chat/completions", {"model": "semspec-demo", "messages": []})
    assert status == 400 and json.loads(text)["error"]["param"] == "messages"
    status, text = curl(server, "/generate", {"inputs": "Once", "parameters": {"truncate": 5}})
    assert status == 422


def test_tokens_are_told_with_their_places(server: Server) -> None:
    status, text = curl(server, "/tokenize", {"inputs": server.question})
    tokens = json.loads(text)
    assert status == 200 and [server.question[token["start"] : token["stop"]] for token in tokens] == [
        token["text"] for token in tokens
    ]
