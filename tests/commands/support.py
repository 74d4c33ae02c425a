"""Runs the command `semspec` in separate processes."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from semspec.commands.serve import EXAMPLE

Json = dict[str, Any]

QUESTION = EXAMPLE
ANSWER = "\\boxed{56}"
CERTAIN = ("--model", "semspec-demo:target", "--temperature", "0")
"""The target alone and greedy: it solves the question."""


@dataclass(frozen=True, slots=True)
class Live:
    """A running gateway."""

    url: str
    api_key: str

    @property
    def options(self) -> tuple[str, ...]:
        """For a command that is to ask it."""
        return "--url", self.url, "--api-key", self.api_key

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.api_key}"}

    def get(self, path: str) -> Json:
        response = httpx.get(f"{self.url}{path}", headers=self.headers, trust_env=False)
        assert response.status_code == 200, response.text
        body: Json = response.json()
        return body

    def metrics(self) -> str:
        return httpx.get(f"{self.url}/metrics", headers=self.headers, trust_env=False).text

    def generate(self) -> str:
        """The id of a finished generation."""
        body = {"model": "semspec-demo", "seed": 5, "messages": [{"role": "user", "content": QUESTION}]}
        url = f"{self.url}/v1/chat/completions"
        response = httpx.post(url, json=body, headers=self.headers, timeout=60, trust_env=False)
        return str(response.json()["semspec"]["id"])


def command(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "semspec.cli", *words]


def semspec(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("REDIS_URL", "SEMSPEC_API_KEY")}
    return subprocess.run(command(words), input=stdin, capture_output=True, text=True, timeout=120, env=environment)


def record(**other: object) -> Json:
    """A segment's record as the gateway sends it."""
    usual = {
        "index": 0,
        "text": "On day 1, Tom gets 4 more pens.\n\n",
        "num_tokens": 12,
        "writer": "draft",
        "verdict": "accepted",
        "draft_probability": 0.5,
        "target_probability": 0.4,
        "ratio": 0.8,
        "draw": 0.1,
        "rejected": None,
        "score": None,
        "times": {"draft_ms": 10.0, "read_ms": 20.0, "judge_ms": 2.0, "write_ms": 0.0, "wire_ms": 5.0},
        "fallback": None,
    }
    return usual | other
