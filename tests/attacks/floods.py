"""Floods of the requests that cost the gateway most, while health and a neighbour are timed."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from random import Random
from statistics import median
from time import monotonic

import httpx
import psutil

from tests.attacks.case import MEDIUM, Case, Draw, Family, Found, Run
from tests.attacks.victim import ATTACKER, LEAST_S, MAX_DESCRIPTORS, Victim
from tests.gateway.costly import CHAT, SOUND, costly_bodies

HEALTH_S, WORST_HEALTH_S, SLOWER, RESIDENT_BYTES, METRICS_BYTES = 0.2, 1.0, 3.0, 300 << 20, 1 << 20
"""Bars: median and worst wait for health, the neighbour's wait relative to quiet, memory afterwards, /metrics."""
SECONDS, SETTLE_S, PAUSE_S = 6.0, 3.0, 0.05
NUM_THREADS = 2
NUM_ARRIVING, NUM_IDLE = 450, 2 * MAX_DESCRIPTORS
METHOD_BYTES, DESCRIPTION_BYTES, BODY_BYTES = 15_000, 1_000_000, 1 << 20
SOCKET_S = 30.0
Address = tuple[str, int]
Flood = Callable[[Address, Random, threading.Event], None]
"""Floods an address until the event is set, in a thread."""


@dataclass(slots=True)
class Held:
    """Measurements of the gateway during a flood."""

    health_s: list[float] = field(default_factory=list)
    neighbour_s: float = 0.0
    """Median of the neighbour's waits."""
    quiet_s: float = 0.0
    """Median of the neighbour's waits without a flood."""
    resident_bytes: int = 0
    metrics_bytes: int = 0

    def check(self, least_s: float = 0.0) -> None:
        """Check the bars; the neighbour's wait counts if it is longer than `least_s` seconds.

        Raises: Found for the first bar that is missed.
        """
        slower = self.neighbour_s / self.quiet_s
        if self.resident_bytes > RESIDENT_BYTES:
            raise Found(MEDIUM, f"the gateway keeps {self.resident_bytes >> 20} MB")
        if self.metrics_bytes > METRICS_BYTES:
            raise Found(MEDIUM, f"/metrics has {self.metrics_bytes} bytes")
        if median(self.health_s) > HEALTH_S or max(self.health_s) > WORST_HEALTH_S:
            waits = (
                f"{median(self.health_s):.2f} s in the median, {max(self.health_s):.2f} s at worst"
            )
            raise Found(MEDIUM, f"health took {waits}", is_of_load=True)
        if slower > SLOWER and self.neighbour_s > least_s:
            raise Found(
                MEDIUM,
                f"the neighbour waited {slower:.1f} times as long as in quiet",
                is_of_load=True,
            )


def request(path: str, body: bytes, method: str = "POST") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ATTACKER}\r\n"
    return (
        f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        + body
    )


def exchange(connection: socket.socket, sent: bytes) -> None:
    """Send a request, and read its answer, which is short, or has no length and ends with the connection."""
    connection.sendall(sent)
    received = b""
    while b"\r\n\r\n" not in received:
        if not (data := connection.recv(1 << 16)):
            raise ConnectionError
        received += data
    head, _, body = received.partition(b"\r\n\r\n")
    length = next(
        (line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")),
        b": 0",
    )
    missing = int(length.partition(b":")[2]) - len(body)
    while missing > 0 and (data := connection.recv(1 << 16)):
        missing -= len(data)


def _repeat(address: Address, is_over: threading.Event, next_request: Callable[[], bytes]) -> None:
    """Send one request after another; a closed connection is opened again."""
    while not is_over.is_set():
        with suppress(OSError), socket.create_connection(address, SOCKET_S) as connection:
            while not is_over.is_set():
                exchange(connection, next_request())


@cache
def costly_requests() -> list[bytes]:
    """Return requests that are refused for their bodies; making them takes seconds."""
    return [request(costly.path, costly.body) for costly in costly_bodies().values()]


def refused_bodies(address: Address, chance: Random, is_over: threading.Event) -> None:
    """Send bodies of a megabyte that are costly to refuse."""
    _repeat(address, is_over, lambda: chance.choice(costly_requests()))


def refused_grammars(address: Address, chance: Random, is_over: threading.Event) -> None:
    """Send different schemas with a long description and a type that does not exist."""

    def body() -> bytes:
        schema = {"description": f"{chance.random()}" + "x" * DESCRIPTION_BYTES, "type": 3}
        format = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        return request(CHAT, json.dumps({**SOUND[CHAT], "response_format": format}).encode())

    _repeat(address, is_over, body)


def methods(address: Address, chance: Random, is_over: threading.Event) -> None:
    """Send different methods that HTTP does not have."""
    begin = f"X{chance.random()}".replace(".", "")
    numbers = count()
    _repeat(
        address,
        is_over,
        lambda: request("/v1/models", b"", f"{begin}{next(numbers)}".ljust(METHOD_BYTES, "X")),
    )


def arriving_bodies(address: Address, _: Random, is_over: threading.Event) -> None:
    """Send bodies of which all but the last byte arrives."""
    sent = request(CHAT, b" " * BODY_BYTES)[:-1]
    while not is_over.is_set():
        connections = list[socket.socket]()
        for _number in range(NUM_ARRIVING // NUM_THREADS):
            if is_over.is_set():
                break
            with suppress(OSError):
                connections.append(socket.create_connection(address, SOCKET_S))
                connections[-1].settimeout(1.0)
                connections[-1].sendall(sent)
        is_over.wait(1.0)
        for connection in connections:
            connection.close()


def connections(address: Address, _: Random, is_over: threading.Event) -> None:
    """Open more connections than the gateway has descriptors, and open each closed one again."""
    opened = list[socket.socket]()
    with suppress(OSError):
        while len(opened) < NUM_IDLE // NUM_THREADS and not is_over.is_set():
            opened.append(socket.create_connection(address, SOCKET_S))
    while not is_over.wait(10 * PAUSE_S):
        for number, connection in enumerate(opened[:100]):
            with suppress(OSError):
                connection.close()
                opened[number] = socket.create_connection(address, SOCKET_S)
        opened = opened[100:] + opened[:100]
    for connection in opened:
        connection.close()


FLOODS: Mapping[str, Flood] = {
    "refused bodies": refused_bodies,
    "refused grammars": refused_grammars,
    "methods": methods,
    "arriving bodies": arriving_bodies,
    "connections": connections,
}


async def flooded(victim: Victim, kind: str, seed: str, seconds: float) -> Held:
    """Flood the gateway, and return the measurements."""
    await asyncio.to_thread(costly_requests)  # before the flood begins
    is_over, held = threading.Event(), Held(quiet_s=victim.quiet_s)
    process = psutil.Process(victim.stack.processes["gateway"].pid)
    begun = len(victim.waits_s)
    threads = [
        threading.Thread(
            target=FLOODS[kind],
            args=(victim.address, Random(f"{seed}/{number}"), is_over),
            daemon=True,
        )
        for number in range(NUM_THREADS)
    ]
    for thread in threads:
        thread.start()
    try:
        async with httpx.AsyncClient(
            base_url=victim.stack.base_url, timeout=SOCKET_S, trust_env=False
        ) as http:
            end = monotonic() + seconds
            while monotonic() < end:
                await _ask_health(http, held)
    finally:
        is_over.set()
        for thread in threads:
            await asyncio.to_thread(thread.join)
    held.neighbour_s = median(victim.waits_s[begun:] or [monotonic() - end + seconds])
    await asyncio.sleep(SETTLE_S)
    with suppress(psutil.NoSuchProcess, httpx.TransportError):
        held.resident_bytes = process.memory_info().rss
        held.metrics_bytes = len((await victim.http.get("/metrics")).content)
    return held


async def _ask_health(http: httpx.AsyncClient, held: Held) -> None:
    """Ask over a new connection, as a load balancer does; one that is not answered counts as the longest wait."""
    begin = monotonic()
    try:
        await http.get("/health", headers={"connection": "close"})
        held.health_s.append(monotonic() - begin)
    except httpx.TransportError:
        held.health_s.append(SOCKET_S)
    await asyncio.sleep(PAUSE_S)


@asynccontextmanager
async def opened(victim: Victim, _: Path) -> AsyncIterator[tuple[Draw, Run]]:
    async def run(case: Case) -> None:
        (await flooded(victim, case["kind"], case["seed"], case["seconds"])).check(LEAST_S)

    def draw(seed: str, number: int) -> list[Case]:
        kinds = list(FLOODS)
        return [
            {"kind": kinds[i % len(kinds)], "seed": f"{seed}/{i}", "seconds": SECONDS}
            for i in range(number)
        ]

    yield draw, run


FAMILY = Family("floods", 2 * len(FLOODS), opened)
