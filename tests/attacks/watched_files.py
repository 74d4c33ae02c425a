"""A spoilt file of keys, which a gateway watches: it takes up the next sound one, and its answers go on.

A watch that ends leaves keys valid that were revoked, while the gateway's health is 200.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import httpx

from semspec.keys import entry
from tests.attacks.case import HIGH, MEDIUM, Case, Draw, Family, Found, Run
from tests.attacks.files import HOW, spoil
from tests.attacks.victim import ATTACKER, Logs, Victim
from tests.helpers.gateway import free_port
from tests.helpers.processes import another_gateway
from tests.helpers.stack import http_of

NOTICED_S = 60.0


@dataclass(slots=True)
class WatchedSite:
    """A gateway whose file of keys is spoilt."""

    http: httpx.AsyncClient
    logs: Logs
    path: Path
    number: int = 0
    """Number of the last sound file."""

    def renew(self) -> None:
        """Write a sound file that differs from the one before."""
        self.number += 1
        if self.path.is_dir() and not self.path.is_symlink():
            shutil.rmtree(self.path)
        else:
            self.path.unlink(missing_ok=True)
        _write_sound(self.path, self.number)

    async def run(self, case: Case) -> None:
        """Raises: Found."""
        self.logs.restart()
        spoil(self.path, case["how"], Random(case["seed"]))
        await asyncio.sleep(case["wait_s"])
        self.renew()
        try:
            async with asyncio.timeout(NOTICED_S):
                while not await self._has_noticed():
                    await asyncio.sleep(0.2)
        except TimeoutError:
            raise Found(HIGH, "sound keys are not taken up after spoilt ones") from None
        if (health := await self.http.get("/health")).status_code != 200:
            raise Found(HIGH, f"health: {health.text[:300]}")
        self.logs.check((b"Traceback",))

    async def _has_noticed(self) -> bool:
        headers = {"authorization": f"Bearer {_key(self.number)}"}
        response = await self.http.get("/v1/models", headers=headers)
        if response.status_code not in (200, 401):
            raise Found(MEDIUM, f"{response.status_code}: {response.text[:300]}")
        return response.status_code == 200


def drawn(seed: str, number: int) -> list[Case]:
    cases = []
    for i in range(number):
        chance = Random(f"{seed}/{i}")
        case: Case = {"how": chance.choice(HOW), "wait_s": chance.choice((2, 12))}
        cases.append({**case, "seed": f"{seed}/{i}"})
    return cases


def _key(number: int) -> str:
    return f"sk-watched-{number}"


def _write_sound(path: Path, number: int) -> None:
    path.write_text(f"{entry('attacker', ATTACKER)}\n{entry('watched', _key(number))}\n")


@asynccontextmanager
async def opened(victim: Victim, folder: Path) -> AsyncIterator[tuple[Draw, Run]]:
    path = folder / "keys"
    _write_sound(path, 0)
    files = {"API_KEYS": "", "API_KEYS_FILE": str(path)}
    settings = {f"SEMSPEC_GATEWAY_{name}": value for name, value in files.items()}
    gateway = another_gateway(
        victim.processes["gateway"], "gateway watching", free_port(), **settings
    )
    await gateway.start()
    try:
        async with http_of(victim.stack, gateway.address) as http:
            yield drawn, WatchedSite(http, Logs({"gateway": gateway.child.log}), path).run
    finally:
        await gateway.kill()
        del victim.stack.processes[gateway.name]


FAMILY = Family("watched files", 16, opened)
