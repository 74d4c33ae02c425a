"""What the families attack: one stack with the bundled pair, whose undisturbed answers are known."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from semspec.stack import Stack, StackConfig
from tests.attacks.case import Broken, Verdict
from tests.stack.support import QUESTION, answer_of, chat_body, http_of

DEFECTS = (b"Traceback", b"level=ERROR", b"level=CRITICAL")
"""What an attacker from outside must not be able to have logged."""
PATIENT = {"SEMSPEC_GATEWAY_HEALTH_TIMEOUT_S": "60", "SEMSPEC_GATEWAY_REDIS_TIMEOUT_S": "10"}
CONFIG = StackConfig(environment=PATIENT, start_timeout_s=600.0)
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

    def check(self, words: tuple[bytes, ...]) -> None:
        """Raises: Broken when a line since has one of the words in it."""
        for name, path in self.paths.items():
            for line in path.read_bytes()[self.begun.get(name, 0) :].splitlines():
                if any(word in line for word in words):
                    raise Broken(Verdict.MEDIUM, f"logged: {name}: {line.decode(errors='replace')[:500]}")


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
        async with http_of(stack) as http:
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
        self.logs.check(DEFECTS)
        if (answer := await self.asked()) != self.answer:
            raise Broken(Verdict.DIFFERING, f"the control question was answered {answer!r}, before {self.answer!r}")
