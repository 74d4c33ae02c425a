"""Text Generation Inference's own client, in an environment of its own, against a stack of real models."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import GENEROUS_S, Server

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="package")
def python() -> Path:
    """An interpreter that has the client; made once, where packages can be had."""
    command = [str(ROOT / "scripts" / "client-venv"), "text-generation"]
    made = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if made.returncode:
        pytest.skip(f"text-generation cannot be installed: {made.stderr.strip()[-300:]}")
    return Path(made.stdout.strip()) / "bin" / "python"


@pytest.fixture(scope="package")
def answers(server: Server, python: Path) -> dict[str, Any]:
    program, prompt = Path(__file__).with_name("text_generation_program.py"), f"{server.question}\n\n<think>\n\n"
    command = [str(python), str(program), server.url, server.api_key, server.question, prompt]
    done = subprocess.run(command, capture_output=True, text=True, timeout=GENEROUS_S)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_chat_needs_no_name_for_the_model(server: Server, answers: dict[str, Any]) -> None:
    assert server.answer in answers["chat"]


def test_generate_tells_text_and_tokens(server: Server, answers: dict[str, Any]) -> None:
    text, details = answers["whole"]["generated_text"], answers["whole"]["details"]
    assert server.answer in text
    assert "".join(token["text"] for token in details["tokens"]) == text
    assert details["finish_reason"] == "eos_token" and details["seed"] == 1
    assert [len(tokens) for tokens in details["top_tokens"]] == [2] * details["generated_tokens"]


def test_stream_says_the_same(answers: dict[str, Any]) -> None:
    events, whole = answers["streamed"], answers["whole"]
    assert [event["token"]["id"] for event in events] == [token["id"] for token in whole["details"]["tokens"]]
    assert events[-1]["generated_text"] == whole["generated_text"]
    assert events[-1]["details"]["generated_tokens"] == len(events)
    assert all(event["details"] is None for event in events[:-1])


def test_stop_sequence_stays_in_the_text(answers: dict[str, Any]) -> None:
    assert answers["stopped"]["generated_text"].endswith("</think>")
    assert answers["stopped"]["details"]["finish_reason"] == "stop_sequence"


def test_grammar_is_held(answers: dict[str, Any]) -> None:
    assert json.loads(answers["by_schema"])["n"] in (1, 22)
    assert re.fullmatch("[0-9]{1,3} coins", answers["by_regex"])
    kind, message = answers["wrong_regex"]
    assert kind == "ValidationError" and "look-around" in message


def test_refusals_are_validation_errors(answers: dict[str, Any]) -> None:
    for name, word in (("refused", "truncate"), ("refused_stream", "truncate"), ("too_long", "window")):
        kind, message = answers[name]
        assert kind == "ValidationError" and word in message
