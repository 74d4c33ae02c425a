"""A REST client of the gateway, and interleaved comparisons that share the machine's varying load equally."""

import random
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal, Protocol, TypeVar, get_args

import httpx

from semspec.client import read_events

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


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer."""

    text: str
    """Reasoning included."""
    latency_s: float
    """Time from the request to the whole answer."""
    body: Json


async def supported_strategies(http: httpx.AsyncClient) -> list[Strategy]:
    """The strategies that the gateway's pair supports, in the order of `Strategy`. Raises: httpx.HTTPError."""
    supported = {model["strategy"] for model in await _models(http) if ":" in model["id"]}
    known: tuple[Strategy, ...] = get_args(Strategy)
    return [strategy for strategy in known if strategy in supported]


async def _models(http: httpx.AsyncClient) -> list[Json]:
    response = await http.get("/v1/models")
    response.raise_for_status()
    models: list[Json] = response.json()["data"]
    return models


class ChatClient:
    """Chat completions of one model of a gateway."""

    def __init__(self, http: httpx.AsyncClient, model: str) -> None:
        self._http = http
        self._model = model

    @classmethod
    async def connect(cls, http: httpx.AsyncClient) -> "ChatClient":
        """A client of the first model that the gateway lists. Raises: httpx.HTTPError."""
        return cls(http, (await _models(http))[0]["id"])

    async def complete(self, question: str | list[Json], fields: Json) -> Completion:
        """The answer to a conversation; `fields` are added to the request. Raises: httpx.HTTPError."""
        start = perf_counter()
        response = await self._http.post("/v1/chat/completions", json=self._body(question, fields))
        latency_s = perf_counter() - start
        response.raise_for_status()
        body = response.json()
        return Completion(_text(body["choices"][0]["message"]), latency_s, body)

    async def segments(self, question: str, fields: Json) -> AsyncIterator[Json]:
        """The segment records of one generation as they arrive. Raises: httpx.HTTPError."""
        fields = fields | {"stream": True, "semspec": fields["semspec"] | {"trace": True}}
        body = self._body(question, fields)
        async with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
            response.raise_for_status()
            async for event in read_events(response):
                if "error" in event.data:
                    raise httpx.RemoteProtocolError(event.data["error"]["message"])
                if record := event.data.get("semspec", {}).get("segment"):
                    yield record

    def _body(self, question: str | list[Json], fields: Json) -> Json:
        messages = (
            [{"role": "user", "content": question}] if isinstance(question, str) else question
        )
        return {"model": self._model, "messages": messages, **fields}


class Client:
    """Sends problems to a gateway."""

    def __init__(self, chat: ChatClient, temperature: float) -> None:
        self._chat = chat
        self._temperature = temperature

    async def ask(self, problem: Problem, strategy: Strategy, seed: int) -> Answer:
        """Answer one problem without streaming, and grade it. Raises: httpx.HTTPError."""
        completion = await self._chat.complete(problem.question, self._fields(strategy, seed))
        statistics = completion.body["semspec"]
        num_tokens = completion.body["usage"]["completion_tokens"]
        return Answer(
            is_right=problem.is_right(completion.text),
            latency_s=completion.latency_s,
            num_tokens=num_tokens,
            num_target_tokens=num_tokens * (statistics["target_ratio"] or 0.0),
            num_accepted=statistics["num_accepted"],
            num_rejected=statistics["num_rejected"],
        )

    def stream(self, problem: Problem, strategy: Strategy, seed: int) -> AsyncIterator[Json]:
        """See `ChatClient.segments`."""
        return self._chat.segments(problem.question, self._fields(strategy, seed))

    def _fields(self, strategy: Strategy, seed: int) -> Json:
        return {
            "temperature": self._temperature,
            "max_tokens": MAX_TOKENS,
            "seed": seed,
            "semspec": {"strategy": strategy},
        }


def _text(message: Json) -> str:
    return f"{message.get('reasoning_content') or ''}{message.get('content') or ''}"


def in_turns(questions: Sequence[Q], contestants: Sequence[T]) -> Iterator[tuple[Q, T]]:
    """Each question with all contestants, in an order drawn for it: neither other load on the machine nor what the one
    before left in a cache favours a contestant."""
    for index, question in enumerate(questions):
        for contestant in random.Random(index).sample(contestants, len(contestants)):
            yield question, contestant
