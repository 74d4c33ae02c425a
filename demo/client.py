"""Asking the gateway over REST, as any client would."""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal

import httpx

from demo.problems import Problem

Strategy = Literal["target", "semantic", "draft"]
Json = dict[str, Any]

MAX_TOKENS = 512
"""Twice what the longest solution needs, so that a model that rambles pays for it."""

_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for one problem, timed here, at the client."""

    is_right: bool
    latency_s: float
    num_tokens: int
    num_target_tokens: float
    num_accepted: int
    num_rejected: int


class Client:
    """Chat completions of one gateway."""

    def __init__(self, http: httpx.AsyncClient, model: str, temperature: float) -> None:
        self._http = http
        self._model = model
        self._temperature = temperature

    @classmethod
    async def connect(cls, http: httpx.AsyncClient, temperature: float) -> "Client":
        """A client of the first model the gateway lists. Raises: httpx.HTTPError."""
        response = await http.get("/v1/models")
        response.raise_for_status()
        return cls(http, response.json()["data"][0]["id"], temperature)

    async def ask(self, problem: Problem, strategy: Strategy, seed: int) -> Answer:
        """One problem, answered in one piece and graded. Raises: httpx.HTTPError."""
        start = perf_counter()
        response = await self._http.post("/v1/chat/completions", json=self._body(problem, strategy, seed))
        latency_s = perf_counter() - start
        response.raise_for_status()
        body = response.json()
        statistics, num_tokens = body["semspec"], body["usage"]["completion_tokens"]
        return Answer(
            is_right=boxed(_text(body["choices"][0]["message"])) == str(problem.answer),
            latency_s=latency_s,
            num_tokens=num_tokens,
            num_target_tokens=num_tokens * (statistics["target_ratio"] or 0.0),
            num_accepted=statistics["num_accepted"],
            num_rejected=statistics["num_rejected"],
        )

    async def stream(self, problem: Problem, strategy: Strategy, seed: int) -> AsyncIterator[Json]:
        """The segment records of one generation as they arrive. Raises: httpx.HTTPError."""
        body = self._body(problem, strategy, seed) | {"stream": True}
        body["semspec"]["trace"] = True
        async with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                record = _record(line)
                if record is not None:
                    yield record

    def _body(self, problem: Problem, strategy: Strategy, seed: int) -> Json:
        return {
            "model": self._model,
            "messages": [{"role": "user", "content": problem.question}],
            "temperature": self._temperature,
            "max_tokens": MAX_TOKENS,
            "seed": seed,
            "semspec": {"strategy": strategy},
        }


def boxed(text: str) -> str | None:
    """What stands in the last `\\boxed{}`."""
    found = _BOXED.findall(text)
    return found[-1].strip() if found else None


def _text(message: Json) -> str:
    return f"{message.get('reasoning_content') or ''}{message.get('content') or ''}"


def _record(line: str) -> Json | None:
    """The segment record in a line of an event stream, if it holds one."""
    if not line.startswith("data: {"):
        return None
    chunk = json.loads(line.removeprefix("data: "))
    if "error" in chunk:
        raise httpx.RemoteProtocolError(chunk["error"]["message"])
    record: Json | None = chunk.get("semspec", {}).get("segment")
    return record
