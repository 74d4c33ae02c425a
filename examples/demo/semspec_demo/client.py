"""Problems asked through a gateway, and interleaved comparisons that share the machine's varying load equally."""

import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal, Protocol, TypeVar, get_args

from semspec.client import Gateway

Strategy = Literal["target", "semantic", "likelihood", "token-level", "draft"]
Json = dict[str, Any]
MAX_TOKENS = 512
"""Twice the tokens of the longest solution, so that an overlong answer costs time."""

Q = TypeVar("Q")
T = TypeVar("T")


class Problem(Protocol):
    """A question that can be graded."""

    @property
    def question(self) -> str: ...

    @property
    def seed(self) -> int: ...

    @property
    def answer(self) -> object: ...

    def is_right(self, text: str) -> bool:
        """Return whether an answer, reasoning included, is right."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one problem, timed at the client."""

    is_right: bool
    latency_s: float
    num_tokens: int
    num_target_tokens: float
    num_accepted: int
    num_rejected: int


async def supported_strategies(gateway: Gateway) -> list[Strategy]:
    """The strategies that the gateway's pair supports, in the order of `Strategy`. Raises: SemspecError."""
    supported = {model["strategy"] for model in await gateway.models() if ":" in model["id"]}
    known: tuple[Strategy, ...] = get_args(Strategy)
    return [strategy for strategy in known if strategy in supported]


@dataclass(frozen=True, slots=True)
class Client:
    """Sends problems to a gateway."""

    gateway: Gateway
    temperature: float

    async def ask(self, problem: Problem, strategy: Strategy, seed: int) -> Answer:
        """Answer one problem without streaming, and grade it. Raises: SemspecError."""
        start = perf_counter()
        answer = await self.gateway.ask(problem.question, **self._fields(strategy, seed))
        latency_s = perf_counter() - start
        num_tokens = answer.usage["completion_tokens"]
        return Answer(
            is_right=problem.is_right(answer.reasoning + answer.content),
            latency_s=latency_s,
            num_tokens=num_tokens,
            num_target_tokens=num_tokens * (answer.statistics["target_ratio"] or 0.0),
            num_accepted=answer.statistics["num_accepted"],
            num_rejected=answer.statistics["num_rejected"],
        )

    async def stream(
        self,
        problem: Problem,
        strategy: Strategy,
        seed: int,
        on_break: Callable[[str], None],
    ) -> AsyncIterator[Json]:
        """Yield the segment records of one generation as they arrive. Raises: SemspecError."""
        body = {
            "messages": [{"role": "user", "content": problem.question}],
            **self._fields(strategy, seed),
            "semspec": {"strategy": strategy, "trace": True},
        }
        async with aclosing(self.gateway.chat(body, on_break)) as chunks:
            async for chunk in chunks:
                if record := chunk.get("semspec", {}).get("segment"):
                    yield record

    def _fields(self, strategy: Strategy, seed: int) -> Json:
        return {
            "temperature": self.temperature,
            "max_tokens": MAX_TOKENS,
            "seed": seed,
            "semspec": {"strategy": strategy},
        }


def in_turns(questions: Sequence[Q], contestants: Sequence[T]) -> Iterator[tuple[Q, T]]:
    """Each question with all contestants, in an order drawn for it: neither other load on the machine nor what the one
    before left in a cache favours a contestant."""
    for index, question in enumerate(questions):
        for contestant in random.Random(index).sample(contestants, len(contestants)):
            yield question, contestant
