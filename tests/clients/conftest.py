"""The bundled pair's stack, for tests of existing clients."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from semspec.stack import Stack
from semspec_demo.problems import SPLITS, make_problem
from tests.helpers.served import stack_of
from tests.real.support import NAME, real_config

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
    model: str = "semspec-demo:target"
    matrix_question: str = ""
    """What `test_matrix` asks; empty: a question of its own to the bundled pair."""
    pattern: str = r"boxed\{"
    """What an answer to it has."""

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"


@pytest.fixture(scope="package")
def server(bundled: Stack) -> Server:
    problem = make_problem(SPLITS["report"][0])
    return Server(
        bundled.base_url, bundled.api_key, problem.question, f"\\boxed{{{problem.answer}}}"
    )


NATURAL = "How many letters has the word 'pen'? Put the result within \\boxed{}."


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def real_server() -> AsyncIterator[Server]:
    """A pair of real checkpoints."""
    async with stack_of(real_config(dtype="bfloat16")) as stack:
        yield Server(
            stack.base_url,
            stack.api_key,
            NATURAL,
            "\\boxed{3}",
            f"{NAME}:target",
            NATURAL,
            r"boxed\{|letters",
        )


@pytest.fixture(scope="package")
def matrix_server(request: pytest.FixtureRequest) -> Server:
    """The pair that every client is asked about: the bundled one, unless `SEMSPEC_CLIENTS_PAIR` is `real`."""
    is_real = os.environ.get("SEMSPEC_CLIENTS_PAIR") == "real"
    server: Server = request.getfixturevalue("real_server" if is_real else "server")
    return server


def interpreter(client: str) -> str:
    """The Python that has the client; its environment is made if packages can be had."""
    if client in OWN:
        return sys.executable
    environment = ENVIRONMENTS.get(client, "agents")
    made = subprocess.run(
        [ROOT / "scripts" / "client-venv", environment], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"{environment} cannot be installed: {made.stderr.strip()[-300:]}")
    if client == "ai-sdk":  # its packages are for Node.js, which `matrix_program` starts
        return sys.executable
    return f"{made.stdout.strip()}/bin/python"
