"""Spoilt files that a gateway watches: it takes up the next sound ones, and its answers go on.

What is spoilt is in folders of the gateway's operator. A watch that ends leaves keys valid that were revoked, and a
readiness that says what was so once, while the gateway's health is 200.
"""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import httpx

from semspec.keys import entry
from semspec.release import load_release
from tests.attacks.case import HIGH, MEDIUM, Case, Draw, Family, Found, Run
from tests.attacks.files import HOW, spoil
from tests.attacks.victim import ATTACKER, Logs, Victim
from tests.gateway.support import free_port
from tests.processes import another_gateway
from tests.stack.support import http_of

NOTICED_S = 60.0
"""A gateway looks at its releases every ten seconds."""
KEYS, LIST, RELEASE = "keys", "releases.json", "release/pair.json"


@dataclass(slots=True)
class WatchedSite:
    """A gateway whose files are spoilt."""

    http: httpx.AsyncClient
    logs: Logs
    folder: Path
    number: int = 0
    """Number of the last sound files."""

    def renew(self) -> None:
        """Write sound files that differ from those before."""
        self.number += 1
        for name in (KEYS, LIST, RELEASE):
            path = self.folder / name
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(
                missing_ok=True
            )
        _write_sound(self.folder, self.number)

    async def run(self, case: Case) -> None:
        """Raises: Found."""
        self.logs.restart()
        (self.folder / case["file"]).touch()
        spoil(self.folder / case["file"], case["how"], Random(case["seed"]))
        if case["file"] == RELEASE:  # which is read when the list changes
            (self.folder / LIST).write_text(json.dumps([{"pair": "release", "weight": 2}]))
        await asyncio.sleep(case["wait_s"])
        self.renew()
        try:
            async with asyncio.timeout(NOTICED_S):
                while not await self._has_noticed():
                    await asyncio.sleep(0.2)
        except TimeoutError:
            raise Found(
                HIGH, f"{case['file']}: sound files are not taken up after spoilt ones"
            ) from None
        if (health := await self.http.get("/health")).status_code != 200:
            raise Found(HIGH, f"health: {health.text[:300]}")
        self.logs.check((b"Traceback",))

    async def _has_noticed(self) -> bool:
        headers = {"authorization": f"Bearer {_key(self.number)}"}
        response = await self.http.get("/v1/models", headers=headers)
        if response.status_code not in (200, 401):
            raise Found(MEDIUM, f"{response.status_code}: {response.text[:300]}")
        return f"@{self.number}" in response.text


def drawn(seed: str, number: int) -> list[Case]:
    cases = []
    for i in range(number):
        chance = Random(f"{seed}/{i}")
        case: Case = {"file": chance.choice((KEYS, LIST, LIST, RELEASE)), "how": chance.choice(HOW)}
        cases.append({**case, "wait_s": chance.choice((2, 12)), "seed": f"{seed}/{i}"})
    return cases


def _key(number: int) -> str:
    return f"sk-watched-{number}"


def _write_sound(folder: Path, number: int) -> None:
    """Write the list last, in one step: a gateway reads the release when the list has changed."""
    release = json.loads((folder / "sound" / "pair.json").read_text())
    (folder / RELEASE).write_text(json.dumps({**release, "version": str(number)}))
    (folder / KEYS).write_text(f"{entry('attacker', ATTACKER)}\n{entry('watched', _key(number))}\n")
    (folder / "new.json").write_text(json.dumps([{"pair": "release"}]))
    (folder / "new.json").replace(folder / LIST)


@asynccontextmanager
async def opened(victim: Victim, folder: Path) -> AsyncIterator[tuple[Draw, Run]]:
    (folder / "release").mkdir()
    (folder / "sound").mkdir()
    pair = victim.stack.config.pair
    assert pair is not None
    load_release(pair).save(folder / "sound")
    _write_sound(folder, 0)
    files = {"API_KEYS": "", "API_KEYS_FILE": str(folder / KEYS), "PAIR": str(folder / LIST)}
    settings = {f"SEMSPEC_GATEWAY_{name}": value for name, value in files.items()}
    gateway = another_gateway(
        victim.processes["gateway"], "gateway watching", free_port(), **settings
    )
    await gateway.start()
    try:
        async with http_of(victim.stack, gateway.address) as http:
            yield drawn, WatchedSite(http, Logs({"gateway": gateway.child.log}), folder).run
    finally:
        await gateway.kill()
        del victim.stack.processes[gateway.name]


FAMILY = Family("watched files", 16, opened)
