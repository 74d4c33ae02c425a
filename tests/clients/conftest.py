"""One real stack of the bundled pair for the whole folder, asked by the clients that people have."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from demo.problems import SPLITS, make_problem
from semspec.stack import Stack, StackConfig

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


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def server() -> AsyncIterator[Server]:
    problem = make_problem(SPLITS["report"][0])
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("REDIS_URL", raising=False)
        async with Stack(StackConfig(start_timeout_s=GENEROUS_S)) as stack:
            yield Server(stack.base_url, stack.api_key, problem.question, f"\\boxed{{{problem.answer}}}")
