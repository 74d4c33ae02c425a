"""A target in a network namespace of its own, behind a link that loses packets and brings others late.

The link is two TUN devices and this process between them, since not every kernel has netem.
"""

import asyncio
import fcntl
import os
import random
import struct
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from shutil import which

from tests.chaos.site import ALONE, FAR, Site
from tests.helpers.processes import succeeds

NAMESPACE = f"semspec-{os.getpid()}"
NEAR_IP, FAR_IP, PORT = "10.77.0.1", "10.77.0.2", "50052"
NEAR_DEVICE, FAR_DEVICE = "semspec-near", "semspec-far"
LOSS = 0.05
DELAY_S = 0.005, 0.015
TUN = Path("/dev/net/tun")
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
MAX_PACKET_BYTES = 65536


def has_namespaces() -> str | None:
    if not (which("ip") and TUN.exists()):
        return "asks for iproute2 and /dev/net/tun"
    return None if succeeds("unshare", "--net", "true") else "asks for root"


@asynccontextmanager
async def behind_lossy_link(site: Site) -> AsyncIterator[None]:
    """A gateway whose only target is far away."""
    target, gateway = site.processes["target"], site.processes[ALONE]
    inside = {"SEMSPEC_HOST": FAR_IP, "SEMSPEC_TARGET_PORT": PORT}
    inside["SEMSPEC_PORT_FILE"] = str(target.folder / "far.port")
    site.processes["target far"] = far_target = replace(
        target,
        name="target far",
        command=("ip", "netns", "exec", NAMESPACE, *target.command),
        environment={**target.environment, **inside},
    )
    site.processes[FAR] = far_gateway = replace(
        gateway,
        name=FAR,
        environment={**gateway.environment, "SEMSPEC_GATEWAY_TARGET_ADDRESS": f"{FAR_IP}:{PORT}"},
    )
    async with _link():
        await far_target.start()
        async with gateway.killed():  # the far one takes its port
            await far_gateway.start()
            try:
                yield
            finally:
                await asyncio.gather(far_gateway.kill(), far_target.kill())


@asynccontextmanager
async def _link() -> AsyncIterator[None]:
    _ip("netns", "add", NAMESPACE)
    try:
        near, far = _device(NEAR_DEVICE), _device(FAR_DEVICE)
        _ip("link", "set", FAR_DEVICE, "netns", NAMESPACE)
        _bring_up((), NEAR_DEVICE, NEAR_IP, FAR_IP)
        _bring_up(("-n", NAMESPACE), FAR_DEVICE, FAR_IP, NEAR_IP)
        loop = asyncio.get_running_loop()
        for source, sink in ((near, far), (far, near)):
            loop.add_reader(source, _forward, source, sink, random.Random(source))
        try:
            yield
        finally:
            for device in (near, far):
                loop.remove_reader(device)
            await asyncio.sleep(
                2 * max(DELAY_S)
            )  # a packet that is still under way must not meet another file
            for device in (near, far):
                os.close(device)
    finally:
        _ip("netns", "delete", NAMESPACE)


def _device(name: str) -> int:
    """A file that is read and written packet by packet; closing it removes the device."""
    device = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    return device


def _bring_up(where: tuple[str, ...], device: str, ip: str, peer: str) -> None:
    _ip(*where, "address", "add", ip, "peer", peer, "dev", device)
    _ip(*where, "link", "set", device, "up")
    _ip(*where, "link", "set", "lo", "up")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def _forward(source: int, sink: int, chance: random.Random) -> None:
    packet = os.read(source, MAX_PACKET_BYTES)
    if chance.random() >= LOSS:
        asyncio.get_running_loop().call_later(chance.uniform(*DELAY_S), _put, sink, packet)


def _put(sink: int, packet: bytes) -> None:
    with suppress(OSError):  # the device is full, or gone: one more packet that is lost
        os.write(sink, packet)
