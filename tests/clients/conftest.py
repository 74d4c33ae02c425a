"""The bundled pair's stack, for tests of existing clients."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from semspec.demo.problems import SPLITS, make_problem
from semspec.stack import Stack

GENEROUS_S = 120.0
ROOT = Path(__file__).resolve().parents[2]
OWN = ("openai", "openai-responses", "langchain-openai", "huggingface_hub", "curl")
"""Clients of the environment that runs the tests; the others have environments of their own, see `client-venv`."""
ENVIRONMENTS = {
    "text-generation": "text-generation",
    **dict.fromkeys(("instructor", "aisuite"), "older-openai"),
    "ai-sdk": "ai-sdk",
    **dict.fromkeys(("lm_eval", "guidellm"), "harnesses"),
}


@dataclass(frozen=True, slots=True)
class Server:
    """Where it is, what opens it, and something to ask it."""

    url: str
    api_key: str
    question: str
    answer: str

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"


@pytest.fixture(scope="package")
def server(bundled: Stack) -> Server:
    problem = make_problem(SPLITS["report"][0])
    return Server(bundled.base_url, bundled.api_key, problem.question, f"\\boxed{{{problem.answer}}}")


def interpreter(client: str) -> str:
    """The Python that has the client; its environment is made if packages can be had."""
    if client in OWN:
        return sys.executable
    environment = ENVIRONMENTS.get(client, "agents")
    made = subprocess.run([ROOT / "scripts" / "client-venv", environment], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"{environment} cannot be installed: {made.stderr.strip()[-300:]}")
    if client == "ai-sdk":  # its packages are for Node.js, which `matrix_program` starts
        return sys.executable
    return f"{made.stdout.strip()}/bin/python"
