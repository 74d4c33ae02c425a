"""Fault injections, as context managers around the work that must survive them."""

import os
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from shutil import which
from typing import Any, Concatenate, ParamSpec

from tests.chaos.site import ALONE, FIRST, SECOND, Site
from tests.helpers.processes import succeeds
from tests.helpers.proxy import PASSING, Link

Holding = Callable[[Site], AbstractAsyncContextManager[None]]
P = ParamSpec("P")

DISK_BYTES = 4 << 20
LOST_LOG_BYTES = 3001
"""Some segments' records."""
SHIFTED_CLOCK = Path(__file__).with_name("clock.c")


def nothing(site: Site) -> AbstractAsyncContextManager[None]:
    return nullcontext()


def injection(inject: Callable[Concatenate[Site, P], AsyncIterator[None]]) -> Callable[P, Holding]:
    """`inject` as a function of its arguments after the site; what it returns takes the site."""
    holding = asynccontextmanager(inject)

    def of(*arguments: P.args, **options: P.kwargs) -> Holding:
        return lambda site: holding(site, *arguments, **options)

    return of


def killed(name: str) -> Holding:
    """SIGKILL; at the end, a replacement process starts."""
    return lambda site: site.processes[name].killed()


def frozen(name: str) -> Holding:
    """SIGSTOP; at the end, SIGCONT."""
    return lambda site: site.processes[name].frozen()


@injection
async def turned_away(site: Site, holding: Holding) -> AsyncIterator[None]:
    """Clients that connect are led to the other gateway, as a balancer does for one that does not answer."""
    async with holding(site):
        site.lead_to(SECOND)
        yield


@injection
async def linked(site: Site, name: str, link: Link) -> AsyncIterator[None]:
    """The proxy before `name` so."""
    site.links[name].set(link)
    try:
        yield
    finally:
        site.links[name].set(PASSING)


@injection
async def reset(site: Site, name: str) -> AsyncIterator[None]:
    """Every connection of the proxy before `name` broken once."""
    site.links[name].reset()
    yield


@injection
async def restarted(site: Site, *names: str) -> AsyncIterator[None]:
    """SIGTERM to one after the other, each when the gateways know the one in the place of that before."""
    for name in names:
        if name in (FIRST, SECOND):
            site.lead_to(SECOND if name == FIRST else FIRST)
        await site.processes[name].restart()
        await site.until_whole()
    yield


@injection
async def commanded(site: Site, *commands: str, undo: tuple[str, ...] = ()) -> AsyncIterator[None]:
    """Redis does these commands, and `undo` at the end."""
    async with site.redis as client:
        redis: Any = client
        for command in commands:
            await redis.execute_command(*command.split())
        try:
            yield
        finally:
            if undo:
                await redis.execute_command(*undo)


@asynccontextmanager
async def append_only_log(site: Site) -> AsyncIterator[None]:
    """Redis writes a log, to the disk once a second."""
    async with site.processes["redis"].changed("--appendonly", "yes", "--appendfsync", "everysec"):
        yield


@asynccontextmanager
async def log_cut(site: Site) -> AsyncIterator[None]:
    """SIGKILL, the end of the log is lost, in the middle of an entry, and Redis starts with the rest."""
    redis = site.processes["redis"]
    await redis.kill()
    log = max(redis.folder.rglob("*.aof"), key=lambda path: path.stat().st_mtime)
    os.truncate(log, max(0, log.stat().st_size - LOST_LOG_BYTES))
    await redis.start()
    yield


def _disk(site: Site) -> Path:
    return site.processes["redis"].folder / "disk"


@asynccontextmanager
async def small_disk(site: Site) -> AsyncIterator[None]:
    """Redis writes what it is told to a disk of its own, a small one."""
    disk = _disk(site)
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", disk], check=True)
    try:
        async with site.processes["redis"].changed("--dir", str(disk), "--appendonly", "yes"):
            yield
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)
        disk.rmdir()


@asynccontextmanager
async def disk_full(site: Site) -> AsyncIterator[None]:
    """Something else takes what is left of Redis' disk."""
    filler = _disk(site) / "filler"
    subprocess.run(
        ["dd", "if=/dev/zero", f"of={filler}", "bs=4k"], check=False, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        filler.unlink()


def _clock(site: Site) -> Path:
    return site.processes["redis"].folder / "clock"


@asynccontextmanager
async def shiftable_clocks(site: Site) -> AsyncIterator[None]:
    """Redis and the gateway go by a wall clock that can be set; their other clock is as it was."""
    library, clock = _clock(site).with_suffix(".so"), _clock(site)
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, SHIFTED_CLOCK], check=True)
    clock.write_bytes(bytes(8))
    environment = {"LD_PRELOAD": str(library), "SHIFTED_CLOCK": str(clock)}
    async with (
        site.processes["redis"].changed(**environment),
        site.processes[ALONE].changed(**environment),
    ):
        yield


@asynccontextmanager
async def two_hours_ahead(site: Site) -> AsyncIterator[None]:
    """Then back, a second jump. The file is written in place, since both processes have it mapped."""
    with _clock(site).open("r+b", buffering=0) as clock:
        clock.write(struct.pack("=q", 2 * 60 * 60))
        try:
            yield
        finally:
            clock.seek(0)
            clock.write(bytes(8))


def can_mount() -> str | None:
    """Why not; tried where nobody sees it."""
    return (
        None
        if succeeds("unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/tmp")
        else "asks for root"
    )


def has_compiler() -> str | None:
    return None if which("cc") and sys.platform == "linux" else "asks for a C compiler, and Linux"
