"""Runner over REST, for a stack that it starts or a running gateway."""

import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from time import perf_counter

import httpx

from semspec.client import Gateway, gateway_url
from semspec.errors import InvalidRequest, SemspecError, Unauthenticated
from semspec.keys import checked_key
from semspec.stack import Stack, StackConfig
from semspec_bench.runners.protocol import Ask, NotApplicable, Outcome, RunnerError

API_KEY = "SEMSPEC_API_KEY"
"""Environment variable with the API key of a running gateway."""


class GatewayRunner:
    """See `semspec_bench.runners.protocol.Runner`."""

    def __init__(self, gateway: Gateway, processes: Mapping[str, int]) -> None:
        self._gateway, self._processes = gateway, processes

    async def ask(self, ask: Ask) -> Outcome:
        start = perf_counter()
        with runner_errors():
            answer = await self._gateway.ask(
                ask.turns,
                temperature=ask.temperature,
                top_p=ask.top_p,
                max_tokens=ask.max_tokens,
                seed=ask.seed,
                semspec=ask.configuration.options,
            )
        return Outcome(
            text="".join(segment.text for segment in answer.trace),
            finish_reason=answer.finish_reason,
            latency_s=perf_counter() - start,
            num_prompt_tokens=answer.usage["prompt_tokens"],
            num_tokens=answer.usage["completion_tokens"],
            trace=[segment.model_dump(mode="json") for segment in answer.trace],
        )

    def processes(self) -> Mapping[str, int]:
        return self._processes


@asynccontextmanager
async def open_stack(config: StackConfig) -> AsyncIterator[GatewayRunner]:
    """Run the whole stack within the block, with the strategies of experiments. Raises: StackError."""
    commands = {**config.commands, "gateway": (sys.executable, "-m", "semspec_bench.strategies")}
    async with (
        Stack(replace(config, commands=commands)) as stack,
        _http(stack.base_url, stack.api_key) as http,
    ):
        processes = {name: child.pid for name, child in stack.processes.items()}
        yield GatewayRunner(Gateway(http), processes)


def with_concurrency(config: StackConfig, num_sessions: int) -> StackConfig:
    """Return `config` with a gateway that runs this many generations concurrently."""
    room = {"SEMSPEC_GATEWAY_MAX_CONCURRENT": str(max(num_sessions, 32))}
    return replace(config, environment={**config.environment, **room})


@asynccontextmanager
async def open_gateway(base_url: str) -> AsyncIterator[GatewayRunner]:
    """Connect to a running gateway. Raises: InvalidRequest, RunnerError."""
    async with _http(str(gateway_url(base_url)), os.environ.get(API_KEY)) as http:
        gateway = Gateway(http)
        with runner_errors():
            await gateway.models()
        yield GatewayRunner(gateway, {})


@contextmanager
def runner_errors() -> Iterator[None]:
    """Convert errors of the gateway to `RunnerError`, or to `NotApplicable` if the pair does not support a strategy."""
    try:
        yield
    except Unauthenticated as error:
        remedy = f"set {API_KEY} to a key of this gateway"
        raise RunnerError(f"the gateway answers 401: {error.message}", remedy=remedy) from error
    except SemspecError as error:
        if isinstance(error.__cause__, httpx.TransportError):
            raise RunnerError(
                error.message, remedy="start it, or give another --gateway"
            ) from error
        is_option = isinstance(error, InvalidRequest) and "semspec." in (error.parameter or "")
        raise (NotApplicable if is_option else RunnerError)(error.message) from error


def _http(base_url: str, key: str | None) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {checked_key(key)}"} if key else {}
    timeout, limits = httpx.Timeout(3600, connect=10), httpx.Limits(max_connections=None)
    return httpx.AsyncClient(
        base_url=base_url, headers=headers, timeout=timeout, limits=limits, trust_env=False
    )
