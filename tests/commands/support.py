"""Runs the command `semspec`, in this process and in separate ones, against a running gateway."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from semspec import cli
from semspec.commands import EXAMPLE

QUESTION = EXAMPLE
ANSWER = "\\boxed{88}"
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

    def ask(self, method: str, path: str, **request: Any) -> httpx.Response:
        """The answer, which is no refusal."""
        url, headers = f"{self.url}{path}", {"authorization": f"Bearer {self.api_key}"}
        response = httpx.request(
            method, url, headers=headers, timeout=60, trust_env=False, **request
        )
        assert response.status_code == 200, response.text
        return response

    def get(self, path: str) -> Any:
        return self.ask("GET", path).json()


def command(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "semspec.cli", *words]


def exit_code(*words: str) -> object:
    """Of a command, in this process."""
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    return end.value.code


def semspec(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("REDIS_URL", "SEMSPEC_API_KEY")
    }
    return subprocess.run(
        command(words), input=stdin, capture_output=True, text=True, timeout=120, env=environment
    )
