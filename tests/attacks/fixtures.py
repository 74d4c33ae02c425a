"""What the families attack: one stack with the bundled pair, whose undisturbed answers are known."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from semspec.stack import Stack, StackConfig
from tests.attacks.case import Broken, Verdict
from tests.processes import GENEROUS_S
from tests.stack.support import QUESTION, answer_of, chat_body

DEFECTS = (b"Traceback", b"level=ERROR", b"level=CRITICAL")
"""What an attacker from outside must not be able to have logged."""
START_S = 600.0
PATIENT = {
    "SEMSPEC_GATEWAY_HEALTH_TIMEOUT_S": "60",
    "SEMSPEC_GATEWAY_REDIS_TIMEOUT_S": "10",
}
"""Looks often for what it has lost, and takes nothing for lost that is slow on a busy machine."""
CONTROL = chat_body(QUESTION, {"seed": 5, "max_tokens": 24, "semspec": {"trace": True}})


@dataclass(slots=True)
class Logs:
    """The logs of processes, from a moment on."""

    paths: Mapping[str, Path]
    begun: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, stack: Stack) -> "Logs":
        return cls({name: child.log for name, child in stack.processes.items() if name != "redis"})

    def restart(self) -> None:
        """Forget what was logged before."""
        self.begun = {name: path.stat().st_size for name, path in self.paths.items()}

    def defects(self, words: tuple[bytes, ...]) -> list[str]:
        """Lines since with one of the words in them."""
        lines = []
        for name, path in self.paths.items():
            new = path.read_bytes()[self.begun.get(name, 0) :].splitlines()
            lines += [f"{name}: {line.decode(errors='replace')}" for line in new if any(word in line for word in words)]
        return lines


@dataclass(slots=True)
class Victim:
    """A running stack, a client, and the answer to the control question."""

    stack: Stack
    http: httpx.AsyncClient
    logs: Logs
    answer: str = ""

    @classmethod
    @asynccontextmanager
    async def of(cls, stack: Stack) -> AsyncIterator["Victim"]:
        """The stack as a victim, until the block is left."""
        options: dict[str, Any] = {"timeout": GENEROUS_S, "trust_env": False}
        async with httpx.AsyncClient(base_url=stack.base_url, headers=stack.headers, **options) as http:
            victim = cls(stack, http, Logs.of(stack))
            victim.answer = await victim.asked()
            yield victim

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.stack.addresses["gateway"].rpartition(":")
        return host, int(port)

    async def asked(self) -> str:
        """The control question's answer. Raises: Broken when it is lost or fell back."""
        response = await self.http.post("/v1/chat/completions", json=CONTROL)
        if response.status_code != 200:
            raise Broken(Verdict.LOST, f"the control question got {response.status_code}: {response.text[:300]}")
        body: dict[str, Any] = response.json()
        if body["semspec"]["fallback"] or body["semspec"]["degraded"]:
            raise Broken(Verdict.MEDIUM, f"the control question fell back: {json.dumps(body['semspec'])[:300]}")
        return answer_of(body)

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Raises: Broken when after the block a process is gone, a defect logged, or the control's answer another."""
        self.logs.restart()
        yield
        if gone := [name for name, child in self.stack.processes.items() if not child.is_alive]:
            raise Broken(Verdict.LOST, f"ended: {', '.join(gone)}")
        if lines := self.logs.defects(DEFECTS):
            raise Broken(Verdict.MEDIUM, f"logged: {lines[0][:500]}")
        if (answer := await self.asked()) != self.answer:
            raise Broken(Verdict.DIFFERING, f"the control question was answered {answer!r}, before {self.answer!r}")


@asynccontextmanager
async def started() -> AsyncIterator[Stack]:
    """A stack to attack."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("REDIS_URL", raising=False)
        async with Stack(StackConfig(environment=PATIENT, start_timeout_s=START_S)) as stack:
            yield stack
