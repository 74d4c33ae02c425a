"""InferenceClient, by both APIs it speaks, and text-generation, against a stack of real models."""

import json
import subprocess

import httpx
import pytest
from huggingface_hub import InferenceClient, TextGenerationInputGrammarType

from tests.clients.conftest import GENEROUS_S, Server, interpreter
from tests.helpers.gateway import bearer

pytestmark = pytest.mark.slow
TEXT_GENERATION = """
import json, sys, text_generation
url, key, prompt = sys.argv[1:]
client = text_generation.Client(url, headers={"authorization": f"Bearer {key}"}, timeout=120)
whole = client.generate(prompt, max_new_tokens=500)
tokens = [event.token for event in client.generate_stream(prompt, max_new_tokens=500)]
print(json.dumps([whole.generated_text, "".join(token.text for token in tokens if not token.special)]))
"""


@pytest.fixture
def client(server: Server) -> InferenceClient:
    return InferenceClient(base_url=server.url, timeout=GENEROUS_S, token=server.api_key)


def prompt(server: Server) -> str:
    return f"<|im_start|>user\n{server.question}<|im_end|>\n<|im_start|>assistant\n<think>\n\n"


def test_text_generation_streams_tokens(server: Server, client: InferenceClient) -> None:
    whole = client.text_generation(prompt(server), max_new_tokens=500)
    assert "".join(client.text_generation(prompt(server), max_new_tokens=500, stream=True)) == whole
    stream = client.text_generation(
        prompt(server), max_new_tokens=500, stream=True, details=True, top_n_tokens=2
    )
    events = list(stream)
    assert [event.index for event in events] == list(range(1, len(events) + 1)) and len(events) > 50
    assert all(event.top_tokens and len(event.top_tokens) == 2 for event in events)
    assert events[-1].generated_text == whole
    assert events[-1].details is not None and events[-1].details.finish_reason == "eos_token"


def test_text_generation_streams_characters_that_end_lines(client: InferenceClient) -> None:
    written = "a\x0bb\x1cc\x85d\u2028e\u2029f"
    grammar = TextGenerationInputGrammarType(type="regex", value=written)
    assert (
        "".join(client.text_generation("Once", max_new_tokens=60, grammar=grammar, stream=True))
        == written
    )


def test_text_generation_reads_what_is_answered_over_rest(server: Server) -> None:
    command = [
        interpreter("text-generation"),
        "-c",
        TEXT_GENERATION,
        server.url,
        server.api_key,
        prompt(server),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * GENEROUS_S)
    assert done.returncode == 0, done.stderr
    body = {"inputs": prompt(server), "parameters": {"max_new_tokens": 500}}
    answer = httpx.post(
        f"{server.url}/generate", json=body, headers=bearer(server.api_key), timeout=GENEROUS_S
    )
    assert json.loads(done.stdout) == [answer.json()["generated_text"]] * 2
