"""What the families attack: a stack whose models write by grammars, and a neighbour who keeps asking and is watched."""

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

import httpx
import psutil

from semspec.keys import entry
from semspec.stack import Stack, StackConfig
from tests.attacks.case import CRITICAL, HIGH, MEDIUM, Case, Found, Severity
from tests.helpers.checkpoints import loaded, random_probes, save_spelling_checkpoint
from tests.helpers.processes import Process
from tests.helpers.served import stack_of
from tests.helpers.stack import chat_body, http_of
from tests.test_openapi.support import CHAT

ATTACKER, NEIGHBOUR = "sk-attacker", "sk-neighbour"
WORD = "Quillfeather"
"""A word of the neighbour's questions. An answer to another owner that contains it is a leak."""
DEFECTS = (b"Traceback", b"level=ERROR", b"level=CRITICAL")
"""What an attacker from outside must not be able to have logged."""
LONGEST_S, SLOW, LEAST_S, SLOW_S, GROWN_BYTES = 10.0, 3, 1.5, 5.0, 200 << 20
NUM_QUIET = 5
MAX_DATA_KIB, MAX_DESCRIPTORS = 512 * 1024, 1024
"""Memory that the gateway may take, as in docker-compose.yml."""
_HELD = ("sh", "-c", f'ulimit -d {MAX_DATA_KIB}; ulimit -n {MAX_DESCRIPTORS}; exec "$@"', "sh")
_OPTIONS = {"seed": 5, "max_tokens": 12, "user": WORD, "semspec": {"trace": True}}
_SCHEMA = {
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": {"type": "integer"}},
    }
}
ASKED = (chat_body(WORD, _OPTIONS), chat_body(WORD, {**_OPTIONS, **_SCHEMA, "max_tokens": 24}))
"""The neighbour's questions."""


@dataclass(slots=True)
class Logs:
    """The logs of processes, from a moment on."""

    paths: Mapping[str, Path]
    begun: dict[str, int] = field(default_factory=dict)

    def restart(self) -> None:
        """Forget what was logged before."""
        self.begun = {name: path.stat().st_size for name, path in self.paths.items()}

    def check(self, words: tuple[bytes, ...]) -> None:
        """Raises: Found when a line since has one of the words in it."""
        for name, path in self.paths.items():
            for line in path.read_bytes()[self.begun.get(name, 0) :].splitlines():
                if any(word in line for word in words):
                    raise Found(MEDIUM, f"logged: {name}: {line.decode(errors='replace')[:500]}")


@dataclass(slots=True)
class Victim:
    """A running stack, clients of it, and what the neighbour noticed."""

    stack: Stack
    http: httpx.AsyncClient
    """The attacker's."""
    neighbour: httpx.AsyncClient
    processes: dict[str, Process]
    logs: Logs
    hidden: tuple[str, ...] = ()
    """Paths of what the neighbour has stored: a generation, its trace, a session."""
    answers: dict[str, Any] = field(default_factory=dict)
    """What the neighbour is answered when nothing disturbs, by what it asks."""
    waits_s: list[float] = field(default_factory=list)
    """How long each of the neighbour's rounds took."""
    quiet_s: float = math.inf
    """The median of those when nothing disturbs."""
    slow_s: float = 0.0
    """How long the latest rounds took together, if each was slow."""
    noticed: list[Found] = field(default_factory=list)
    resident: dict[str, int] = field(default_factory=dict)
    """Most memory of each process that was seen, in bytes."""

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.stack.addresses["gateway"].rpartition(":")
        return host, int(port)

    def memory(self) -> dict[str, int]:
        """Of each process now, in bytes."""
        now = {}
        for name, child in self.stack.processes.items():
            with suppress(psutil.NoSuchProcess):
                now[name] = int(psutil.Process(child.pid).memory_info().rss)
                self.resident[name] = max(now[name], self.resident.get(name, 0))
        return now

    async def keep_asking(self) -> None:
        """One request after another, in rounds."""
        while True:
            begin = monotonic()
            for number, body in enumerate((*ASKED, *[None] * len(self.hidden))):
                path = self.hidden[number - len(ASKED)] if body is None else CHAT
                try:
                    response = await self.neighbour.request(
                        "POST" if body else "GET", path, json=body
                    )
                    self._compare(f"{number} {path}", response)
                except Found as found:
                    self.noticed.append(found)
                except httpx.HTTPError as error:
                    self.noticed.append(
                        Found(HIGH, f"the neighbour's {path}: {error!r}", is_of_load=True)
                    )
            self._waited(monotonic() - begin)
            await asyncio.sleep(0.02)

    def _compare(self, name: str, response: httpx.Response) -> None:
        if response.status_code != 200:
            told = f"the neighbour's {name} got {response.status_code}: {response.text[:300]}"
            raise Found(
                CRITICAL if response.status_code == 404 else HIGH,
                told,
                response.status_code in (503, 504),
            )
        said = response.json()
        if (said.get("semspec") or {}).get("fallback"):
            raise Found(
                HIGH,
                f"the neighbour's {name} fell back: {said['semspec']['fallback']}",
                is_of_load=True,
            )
        answer = said.get("choices") or {
            part: value for part, value in said.items() if part != "expires_in_s"
        }
        if answer != self.answers.setdefault(name, answer):
            raise Found(
                CRITICAL, f"the neighbour's {name} was {answer}, before {self.answers[name]}"[:900]
            )

    def _waited(self, round_s: float) -> None:
        self.waits_s.append(round_s)
        self.slow_s = self.slow_s + round_s if round_s > max(LEAST_S, SLOW * self.quiet_s) else 0.0
        if self.slow_s and (round_s > LONGEST_S or self.slow_s > SLOW_S):
            told = f"the neighbour waited {round_s:.1f} s, in quiet {self.quiet_s:.2f} s; slow for {self.slow_s:.1f} s"
            self.noticed.append(
                Found(HIGH if round_s > LONGEST_S else MEDIUM, told, is_of_load=True)
            )

    async def until_round(self, number: int = 1) -> None:
        """Return when so many rounds of the neighbour are over that began after now."""
        last = len(self.waits_s) + 1 + number
        while len(self.waits_s) < last:
            await asyncio.sleep(0.01)

    async def quieten(self) -> None:
        """Measure the neighbour's rounds again, while nothing else is asked."""
        await self.until_round(NUM_QUIET)
        self.quiet_s = median(self.waits_s[-NUM_QUIET:])

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Raises: Found if after the block the neighbour, a process, a log or the memory shows that there was one."""
        self.logs.restart()
        self.noticed, self.slow_s, before = [], 0.0, self.memory()
        yield
        await self.until_round()
        if gone := [name for name, child in self.stack.processes.items() if not child.is_alive]:
            codes = [self.stack.processes[name].process.returncode for name in gone]
            for name in self.processes.keys() & gone:
                await self.processes[name].start()
            raise Found(CRITICAL, f"ended: {', '.join(gone)} with {codes}")
        for path in self.hidden:
            if (response := await self.http.get(path)).status_code != 404:
                raise Found(
                    CRITICAL,
                    f"another owner gets {path}: {response.status_code}: {response.text[:300]}",
                )
        if self.noticed:
            raise max(self.noticed, key=lambda found: list(Severity).index(found.severity))
        self.logs.check(DEFECTS)
        await self.check_memory(before)

    async def check_memory(self, before: Mapping[str, int]) -> None:
        """Raises: Found if a process has grown by more than GROWN_BYTES, and keeps them."""
        for wait_s in (0, SLOW_S):
            await asyncio.sleep(wait_s)
            grown = {name: now - before.get(name, now) for name, now in self.memory().items()}
            if max(grown.values()) <= GROWN_BYTES:
                return
        raise Found(MEDIUM, f"grown by bytes: {grown}")


def hold_apart(case: Case, response: httpx.Response, hidden: tuple[str, ...]) -> None:
    """Raises: Found if an answer tells of the neighbour what the request did not say."""
    words = (WORD, *(path.split("/")[3] for path in hidden[:1]))
    if leaked := [
        word for word in words if word in response.text and word not in f"{case}{response.url}"
    ]:
        raise Found(CRITICAL, f"told of the neighbour: {leaked}: {response.text[:300]}")


@asynccontextmanager
async def victim_of(folder: Path) -> AsyncIterator[Victim]:
    """A stack that is attacked; the neighbour is asking."""
    model = save_spelling_checkpoint(folder / "model")
    async with loaded(model, model) as (draft, target):
        await random_probes(draft, target, folder)
    keys = f"{entry('attacker', ATTACKER)} {entry('neighbour', NEIGHBOUR)}"
    environment = {"SEMSPEC_GATEWAY_API_KEYS": keys, "SEMSPEC_GATEWAY_MODEL_NAME": "semspec-demo"}
    environment |= {
        "SEMSPEC_GATEWAY_HEALTH_TIMEOUT_S": "60",
        "SEMSPEC_GATEWAY_REDIS_TIMEOUT_S": "10",
    }  # busy machines
    environment |= {
        f"SEMSPEC_{role}_CACHE_BYTES": str(32 << 20) for role in ("DRAFT", "TARGET")
    }  # full soon
    config = StackConfig(model, model, folder, environment=environment, start_timeout_s=600.0)
    config = replace(
        config, commands={**config.commands, "gateway": (*_HELD, *config.commands["gateway"])}
    )
    async with stack_of(config) as stack, http_of(stack) as http, http_of(stack) as neighbour:
        http.headers["authorization"], neighbour.headers["authorization"] = (
            f"Bearer {ATTACKER}",
            f"Bearer {NEIGHBOUR}",
        )
        logs = Logs({name: child.log for name, child in stack.processes.items() if name != "redis"})
        victim = Victim(
            stack,
            http,
            neighbour,
            {name: Process.of(stack, name) for name in stack.processes},
            logs,
        )
        kept = await neighbour.post(CHAT, json={**ASKED[0], "semspec": {"session": "neighbours"}})
        path = f"/v1/generations/{kept.json()['id']}"
        victim.hidden = (path, f"{path}/trace", "/v1/sessions/neighbours")
        asking = asyncio.create_task(victim.keep_asking())
        try:
            await victim.quieten()
            yield victim
        finally:
            asking.cancel()
