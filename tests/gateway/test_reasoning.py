"""Reasoning of models whose marks are special tokens: real engines, gRPC and REST."""

import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from semspec.reasoning import FORMS, HARMONY, MISTRAL, THINK
from tests.gateway.engines import served
from tests.helpers.checkpoints import loaded, save_spelling_checkpoint
from tests.helpers.gateway import Gateway, chunks

pytestmark = pytest.mark.slow

SCHEMA = {
    "type": "object",
    "properties": {"number": {"enum": [1, 22, 333]}},
    "required": ["number"],
}
JSON_SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "count",
        "schema": {**SCHEMA, "additionalProperties": False},
        "strict": True,
    },
}
ENDS = {
    "think, opened": (THINK, "<think>\n"),
    "think": (THINK, ""),
    "mistral, opened": (MISTRAL, "[THINK]"),
    "mistral": (MISTRAL, "[THINK]...[/THINK]:"),
    "harmony": (HARMONY, "<|start|>assistant"),
    "harmony, opened": (HARMONY, f"<|start|>assistant{HARMONY.opening}"),
}
"""Ends of prompts, with the form of the model."""
ALL_MARKS = frozenset().union(*(form.marks for form in FORMS))
NEW_LINE = 198
"""Its id in byte-level vocabularies. Random weights seldom write it, and reasoning is ended after a blank line."""
FIELDS: dict[str, Any] = {
    "temperature": 1,
    "top_p": 1,
    "max_tokens": 160,
    "thinking_token_budget": 20,
    "response_format": JSON_SCHEMA,
    "logit_bias": {str(NEW_LINE): 5},
    "semspec": {"strategy": "target"},
}


@pytest.fixture(params=ENDS)
async def gateway(
    request: pytest.FixtureRequest, tmp_path: Path, redis_url: str
) -> AsyncIterator[Gateway]:
    """Start a gateway over models whose marks of reasoning are special tokens, and which write anything."""
    form, prompt_end = ENDS[request.param]
    model = save_spelling_checkpoint(tmp_path / "model", sorted(form.marks), prompt_end)
    async with (
        loaded(model, model) as engines,
        served(engines, tmp_path, redis_url=redis_url) as gateway,
    ):
        yield gateway


def messages_of(answer: Any) -> list[dict[str, Any]]:
    return [choice["message"] for choice in answer["choices"] if choice["finish_reason"] == "stop"]


async def test_answer_follows_its_format_after_the_reasoning(
    gateway: Gateway, request: pytest.FixtureRequest
) -> None:
    answer = (await gateway.chat(**FIELDS, n=6)).json()
    messages = messages_of(answer)
    assert messages
    assert all(json.loads(message["content"])["number"] in (1, 22, 333) for message in messages)
    reasonings = [message["reasoning"] for message in messages if message["reasoning"]]
    assert len(reasonings) == len(messages) if "opened" in request.node.name else reasonings
    assert not any(form.closing in reasoning for form in FORMS for reasoning in reasonings)
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0


async def test_stream_equals_answer_and_session_keeps_no_reasoning(gateway: Gateway) -> None:
    for seed in range(2):
        session = f"session-{secrets.token_hex(8)}"
        whole = (await gateway.chat(**FIELDS, seed=seed)).json()["choices"][0]["message"]
        asked = {
            **FIELDS,
            "seed": seed,
            "stream": True,
            "semspec": {**FIELDS["semspec"], "session": session},
        }
        deltas = [
            choice["delta"]
            for chunk in chunks(await gateway.chat(**asked))
            for choice in chunk.get("choices", ())
        ]
        for name in ("content", "reasoning", "reasoning_content"):
            assert "".join(delta.get(name) or "" for delta in deltas) == (whole[name] or "")
        turns = (await gateway.http.get(f"/v1/sessions/{session}")).json()["turns"]
        assert turns[-1]["content"] == (whole["content"] or "")


async def test_completion_of_a_text_contains_the_marks(gateway: Gateway) -> None:
    """The text can be sent again, as it can if the marks are ordinary tokens."""
    marks = await gateway.http.post("/tokenize", json={"inputs": "".join(sorted(ALL_MARKS))})
    [mark, *_] = [token for token in marks.json() if token["text"] in ALL_MARKS]
    body = {
        "model": "semspec-demo:target",
        "prompt": "Once",
        "seed": 1,
        "max_tokens": 4,
        "logprobs": 0,
    }
    body["logit_bias"] = {str(mark["id"]): 100}
    [choice] = (await gateway.http.post("/v1/completions", json=body)).json()["choices"]
    assert choice["text"] == 4 * mark["text"] == "".join(choice["logprobs"]["tokens"])
