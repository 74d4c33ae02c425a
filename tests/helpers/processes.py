"""Processes: those of a stack, which can be killed, frozen and replaced at the same address, and their remains."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import which

import httpx
import psutil

from semspec.stack import Stack
from semspec.stack.child import Child, StackError
from semspec.stack.config import Command
from semspec.stack.redis import private_redis

GENEROUS_S = 300.0
"""Bound on anything that takes seconds on a quiet machine."""
POLL_S = 0.05


@dataclass(slots=True)
class Process:
    """One process; what is left of it in the end the stack stops."""

    stack: Stack
    name: str
    """The role, and what tells it from others of that role: `target 2`."""
    command: Command
    environment: dict[str, str]
    address: str

    @classmethod
    def of(cls, stack: Stack, name: str) -> "Process":
        """The one that the stack itself has started."""
        return cls(stack, name, *_origin(stack, name), stack.addresses[name])

    @property
    def role(self) -> str:
        return self.name.partition(" ")[0]

    @property
    def child(self) -> Child:
        return self.stack.processes[self.name]

    @property
    def folder(self) -> Path:
        """The stack's own."""
        return self.stack.processes["redis"].log.parent

    async def start(self) -> None:
        """Return when it serves. Raises: StackError when it ends before, or takes for ever."""
        if self._port_file is not None:
            self._port_file.unlink(missing_ok=True)
        log = self.folder / f"{self.name.replace(' ', '-')}.log"
        self.stack.processes[self.name] = await Child.start(
            self.role, self.command, self.environment, log
        )
        try:
            async with asyncio.timeout(GENEROUS_S):
                while not await self._serves():
                    self.child.check_alive()
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise StackError(
                f"{self.name} does not serve", log_tail=self.child.log_tail()
            ) from None

    async def kill(self) -> None:
        """As the kernel does when memory runs out."""
        self.child.kill()
        await self.child.process.wait()

    async def restart(self) -> None:
        """As an orchestrator does: SIGTERM, wait until it has drained, another in its place."""
        self.child.process.terminate()
        await self.child.process.wait()
        await self.start()

    @asynccontextmanager
    async def killed(self) -> AsyncIterator[None]:
        """It is gone; behind it another is in its place, and serves."""
        await self.kill()
        try:
            yield
        finally:
            await self.start()

    @asynccontextmanager
    async def frozen(self) -> AsyncIterator[None]:
        """SIGSTOP: its connections stay open, but it does not respond."""
        self.child.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.child.process.send_signal(signal.SIGCONT)

    @asynccontextmanager
    async def changed(self, *arguments: str, **environment: str) -> AsyncIterator[None]:
        """Another is in its place, with these beside its own; behind it the first again."""
        own = self.command, self.environment
        self.command, self.environment = (
            (*self.command, *arguments),
            {**self.environment, **environment},
        )
        try:
            async with self.killed():
                pass
            yield
        finally:
            self.command, self.environment = own
            async with self.killed():
                pass

    async def _serves(self) -> bool:
        if self._port_file is not None:
            return self._port_file.exists()
        return await (_accepts(self.address) if self.role == "redis" else _is_ready(self.address))

    @property
    def _port_file(self) -> Path | None:
        path = self.environment.get("SEMSPEC_PORT_FILE")
        return None if path is None else Path(path)


async def second(first: Process, name: str) -> Process:
    """Another replica of a service, started."""
    prefix = f"SEMSPEC_{first.role.upper()}"
    port_file = first.folder / f"{name}.port"
    own = {f"{prefix}_PORT": "0", "SEMSPEC_PORT_FILE": str(port_file)}
    replica = Process(first.stack, name, first.command, {**first.environment, **own}, "")
    await replica.start()
    port = port_file.read_text().strip()
    replica.environment[f"{prefix}_PORT"], replica.address = port, f"127.0.0.1:{port}"
    return replica


def another_gateway(first: Process, name: str, port: int, **environment: str) -> Process:
    """At a port of its own, with these variables beside those of the first; not started."""
    own = {**first.environment, "SEMSPEC_GATEWAY_PORT": str(port), **environment}
    return replace(first, name=name, environment=own, address=f"127.0.0.1:{port}")


async def _accepts(url: str) -> bool:
    with suppress(OSError):
        _, writer = await asyncio.open_unix_connection(url.removeprefix("unix://"))
        writer.close()
        return True
    return False


async def _is_ready(address: str) -> bool:
    with suppress(httpx.TransportError):
        async with httpx.AsyncClient(trust_env=False, timeout=5) as http:
            return (await http.get(f"http://{address}/ready")).status_code == 200
    return False


def _origin(stack: Stack, role: str) -> tuple[Command, dict[str, str]]:
    """The command and the environment by which a process of the stack is started anew in the same place."""
    address = stack.addresses[role]
    if role == "redis":  # which rewrites its own command line
        return private_redis(Path(address.removeprefix("unix://")).parent)[1], {}
    environment = psutil.Process(stack.processes[role].pid).environ()
    environment[f"SEMSPEC_{role.upper()}_PORT"] = address.rpartition(":")[2]
    return stack.config.commands[role], environment


def left_alive(pids: list[int], timeout_s: float = GENEROUS_S) -> list[int]:
    """Which of `pids` still run after a while."""
    deadline = time.monotonic() + timeout_s
    while (alive := [pid for pid in pids if is_running(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return alive


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def succeeds(*command: str) -> bool:
    """Whether there is such a command, and it ends well."""
    return (
        which(command[0]) is not None
        and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )


def ordinary_user() -> tuple[str, ...]:
    """What a command is begun with so that files which its user may not read cannot be read, though that user be root.

    Empty where it is not root, or cannot be kept from it.
    """
    if os.geteuid() != 0 or which("setpriv") is None:
        return ()
    return "setpriv", "--bounding-set=-dac_override,-dac_read_search"
