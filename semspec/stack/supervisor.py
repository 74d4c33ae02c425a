"""Start the stack, wait until it is ready, stop it, and remove its files."""

import asyncio
import contextlib
import secrets
import signal
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from semspec.background import Backoff, cancel_tasks
from semspec.errors import Mismatch, SemspecError
from semspec.keys import new_key
from semspec.stack import redis
from semspec.stack.child import Child, StackError
from semspec.stack.config import StackConfig
from semspec.stack.folder import PrivateFolder
from semspec.stack.listening import free_port, url_host

if TYPE_CHECKING:
    from semspec.client import Gateway

POLL_S = 0.05


class Stack:
    """Use as `async with Stack(config) as stack:`. In the block, the gateway at `stack.base_url` is ready.

    Raises on entry: StackError, when a process dies or readiness takes longer than `config.start_timeout_s`.
    """

    def __init__(self, config: StackConfig | None = None) -> None:
        self.config = config or StackConfig()
        self.processes: dict[str, Child] = {}
        self.addresses: dict[str, str] = {}
        """`host:port` of each service and of the gateway; the URL of Redis."""
        self.api_key = self.config.api_key or new_key()
        """API key of the gateway."""
        self._token = secrets.token_urlsafe(32)
        self._private: PrivateFolder
        self._refusal = ""
        """Reason from the last readiness check of the gateway."""

    @property
    def base_url(self) -> str:
        return f"http://{self.addresses['gateway']}"

    @property
    def headers(self) -> dict[str, str]:
        """Headers required in every request to the gateway."""
        return {"authorization": f"Bearer {self.api_key}"}

    async def model_list(self) -> dict[str, Any]:
        """Return the gateway's models, see `Gateway.model_list`. Raises: StackError when the gateway has ended."""
        try:
            async with self._gateway() as gateway:
                return await gateway.model_list()
        except SemspecError as error:
            raise StackError(str(error), log_tail=self.processes["gateway"].log_tail()) from error

    async def __aenter__(self) -> "Stack":
        self._private = PrivateFolder()
        try:
            async with asyncio.timeout(self.config.start_timeout_s):
                await self._start()
        except TimeoutError:
            error = self._not_ready()
            await self._stop()
            raise error from None
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stop()

    async def restart(self, name: str) -> None:
        """Restart a process that has ended, at the same address."""
        child, environment = self.processes[name], {}
        if name in self.config.roles:
            environment = {f"SEMSPEC_{name.upper()}_PORT": self.addresses[name].rpartition(":")[2]}
        self.processes[name] = await Child.start(
            name, child.command, {**child.environment, **environment}, child.log
        )

    async def _start(self) -> None:
        await self._start_redis()
        for role in self.config.roles:
            settings = {
                "SEMSPEC_PORT_FILE": str(self._port_file(role)),
                "SEMSPEC_SERVICE_TOKEN": self._token,
            }
            settings = self.config.service_environment(role) | settings
            await self._start_child(role, self.config.commands[role], settings)
        for role in self.config.roles:
            self.addresses[role] = f"127.0.0.1:{await self._announced_port(role)}"
        await self._start_gateway()
        await self._until_ready()

    async def _start_redis(self) -> None:
        url = redis.configured_url()
        if url is None:
            url, command = redis.private_redis(self._private.path)
            await self._start_child("redis", command, {})
        self.addresses["redis"] = url

    async def _announced_port(self, name: str) -> int:
        """Return a service's port, from the file that it writes when it is ready."""
        while True:
            with contextlib.suppress(FileNotFoundError, ValueError):
                return int(self._port_file(name).read_text())
            await self._pause()

    async def _start_gateway(self) -> None:
        port = free_port(self.config.host, self.config.port)
        settings = self.config.gateway_environment(self.addresses, port, self.api_key)
        self.addresses["gateway"] = f"{url_host(self.config.host)}:{port}"
        settings |= {"SEMSPEC_SERVICE_TOKEN": self._token}
        await self._start_child("gateway", self.config.commands["gateway"], settings)

    async def _until_ready(self) -> None:
        async with self._gateway() as gateway:
            while True:
                try:
                    await gateway.readiness()
                    return
                except Mismatch as error:  # which waiting cannot resolve
                    raise StackError(error.message, remedy=error.remedy) from None
                except SemspecError as error:
                    self._refusal = str(error)
                await self._pause()

    def _gateway(self) -> "contextlib.aclosing[Gateway]":
        from semspec.client import Gateway  # needs httpx

        return contextlib.aclosing(Gateway.at(self.base_url, self.api_key))

    async def _start_child(
        self, name: str, command: tuple[str, ...], environment: Mapping[str, str]
    ) -> None:
        # OpenMP's default: with more threads than cores, weights in floating point are several times slower.
        environment = {"OMP_NUM_THREADS": "1", **self.config.environment, **environment}
        self.processes[name] = await Child.start(
            name, command, environment, self._private.path / f"{name}.log"
        )

    async def _pause(self) -> None:
        """Wait `POLL_S`. Raises: StackError when a child process has ended."""
        for child in self.processes.values():
            child.check_alive()
        await asyncio.sleep(POLL_S)

    def _not_ready(self) -> StackError:
        name = next((role for role in self.config.roles if role not in self.addresses), "gateway")
        tail = self.processes[name].log_tail() if name in self.processes else ""
        reason = f": {self._refusal}" if self._refusal else ""
        return StackError(
            f"{name} was not ready within {self.config.start_timeout_s:g} s{reason}", log_tail=tail
        )

    async def _stop(self) -> None:
        """Stop the gateway, which drains running requests, then the services. A second signal kills the others."""
        gateway = [child for child in self.processes.values() if child.name == "gateway"]
        others = [child for child in self.processes.values() if child.name != "gateway"]
        try:
            for group in (gateway, others):
                await asyncio.gather(*(child.stop(self.config.stop_grace_s) for child in group))
        finally:
            for child in self.processes.values():
                child.kill()
            self._private.remove()

    def _port_file(self, name: str) -> Path:
        return self._private.path / f"{name}.port"


async def keep_running(stack: Stack, report: Callable[[str], None]) -> NoReturn:
    """Restart processes of `stack` that end, each after a growing delay, until cancelled; `report` gets the end of
    their logs. No process is given up: requests may have ended it, and the others serve without it.

    Raises: OSError when a process cannot be started.
    """
    tasks = [asyncio.create_task(_keep(stack, name, report)) for name in stack.processes]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        raise done.pop().exception() or RuntimeError("each task runs until it is cancelled")
    finally:
        await cancel_tasks(*tasks)


async def _keep(stack: Stack, name: str, report: Callable[[str], None]) -> None:
    now, backoff = asyncio.get_running_loop().time, Backoff()
    while True:
        child, started_at = stack.processes[name], now()
        await child.process.wait()
        delay_s = backoff.delay_s(now() - started_at)
        report(
            f"{child.log_tail()}\nsemspec: {name} ended with {child.status}; it starts again in {delay_s:g} s"
        )
        await asyncio.sleep(delay_s)
        await stack.restart(name)


def run(main: Coroutine[Any, Any, int]) -> int:
    """Run `main` and return its exit status; after a signal 128 plus its number, as in shells.

    SIGINT, SIGTERM and SIGHUP cancel `main`, so that `async with Stack(...)` always cleans up.
    """
    return asyncio.run(_run(main))


async def _run(main: Coroutine[Any, Any, int]) -> int:
    task = asyncio.ensure_future(main)
    received: list[signal.Signals] = []

    def cancel(number: signal.Signals) -> None:
        received.append(number)
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if (
            number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
        ):  # ignored under nohup
            loop.add_signal_handler(number, cancel, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not received:
            raise
        return 128 + received[0]
