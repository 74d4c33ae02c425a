"""The bundled pair's stack, for tests of existing clients."""

from dataclasses import dataclass

import pytest

from semspec.demo.problems import SPLITS, make_problem
from semspec.stack import Stack

GENEROUS_S = 120.0


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
