"""Run in a virtual environment that has text-generation: ask what `test_text_generation.py` checks, answer in JSON."""

import importlib
import json
import sys
from collections.abc import Callable
from typing import Any


def main(url: str, api_key: str, question: str, prompt: str) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {api_key}"}
    client = importlib.import_module("text_generation").Client(url, headers=headers, timeout=120)
    whole = client.generate(prompt, max_new_tokens=500, seed=1, temperature=0.6, top_n_tokens=2)
    streamed = list(client.generate_stream(prompt, max_new_tokens=500, seed=1, temperature=0.6))
    stopped = client.generate(prompt, max_new_tokens=500, stop_sequences=["</think>"])
    schema = {
        "type": "object",
        "properties": {"n": {"enum": [1, 22]}},
        "required": ["n"],
        "additionalProperties": False,
    }
    by_schema = client.generate(question, max_new_tokens=50, grammar={"type": "json", "value": schema})
    by_regex = client.generate(question, max_new_tokens=50, grammar={"type": "regex", "value": "[0-9]{1,3} coins"})
    message = importlib.import_module("text_generation.types").Message(role="user", content=question)
    chat = client.chat([message], max_tokens=500, seed=1)
    return {
        "chat": chat.choices[0].message.content,
        "whole": json.loads(whole.model_dump_json()),
        "streamed": [json.loads(event.model_dump_json()) for event in streamed],
        "stopped": json.loads(stopped.model_dump_json()),
        "by_schema": by_schema.generated_text,
        "by_regex": by_regex.generated_text,
        "wrong_regex": _error(lambda: client.generate(question, grammar={"type": "regex", "value": "(?=a)b"})),
        "refused": _error(lambda: client.generate(prompt, truncate=5)),
        "refused_stream": _error(lambda: list(client.generate_stream(prompt, truncate=5))),
        "too_long": _error(lambda: client.generate(prompt, max_new_tokens=100_000)),
    }


def _error(call: Callable[[], object]) -> list[str]:
    """Class and words of what a call raises."""
    try:
        call()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return []


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*sys.argv[1:])))
