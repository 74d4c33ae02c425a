"""Runner over REST, for a stack that it starts or a running gateway."""

import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

import httpx

from semspec.client import gateway_url
from semspec.keys import checked_key
from semspec.stack import Stack, StackConfig
from semspec_bench.runners.protocol import Ask, NotApplicable, Outcome, RunnerError
from semspec_demo.client import ChatClient

API_KEY = "SEMSPEC_API_KEY"
"""Environment variable with the API key of a running gateway."""


class GatewayRunner:
    """See `semspec_bench.runners.protocol.Runner`."""

    def __init__(self, chat: ChatClient, processes: Mapping[str, int]) -> None:
        self._chat, self._processes = chat, processes

    async def ask(self, ask: Ask) -> Outcome:
        fields = {
            "temperature": ask.temperature,
            "top_p": ask.top_p,
            "max_tokens": ask.max_tokens,
            "seed": ask.seed,
            "semspec": {**ask.configuration.options, "trace": True},
        }

        with runner_errors():
            completion = await self._chat.complete(ask.turns, fields)
        body = completion.body
        return Outcome(
            text="".join(record["text"] for record in body["semspec"]["trace"]),
            finish_reason=body["choices"][0]["finish_reason"],
            latency_s=completion.latency_s,
            num_prompt_tokens=body["usage"]["prompt_tokens"],
            num_tokens=body["usage"]["completion_tokens"],
            trace=body["semspec"]["trace"],
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
        yield GatewayRunner(await ChatClient.connect(http), processes)


def with_concurrency(config: StackConfig, num_sessions: int) -> StackConfig:
    """Return `config` with a gateway that runs this many generations concurrently."""
    room = {"SEMSPEC_GATEWAY_MAX_CONCURRENT": str(max(num_sessions, 32))}
    return replace(config, environment={**config.environment, **room})


@asynccontextmanager
async def open_gateway(base_url: str) -> AsyncIterator[GatewayRunner]:
    """Connect to a running gateway. Raises: InvalidRequest, RunnerError."""
    async with _http(str(gateway_url(base_url)), os.environ.get(API_KEY)) as http:
        with runner_errors():
            chat = await ChatClient.connect(http)
        yield GatewayRunner(chat, {})


@contextmanager
def runner_errors() -> Iterator[None]:
    """Convert HTTP errors to one-line `RunnerError`s."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        raise _refusal(error) from error
    except httpx.TransportError as error:
        url = error.request.url.copy_with(path="/")
        reason = str(error) or type(error).__name__
        raise RunnerError(
            f"the gateway at {url} does not answer ({reason})",
            remedy="start it, or give another --gateway",
        ) from error


def _refusal(error: httpx.HTTPStatusError) -> RunnerError:
    """Return `NotApplicable` for a strategy that the pair does not support, else `RunnerError`."""
    try:
        detail = error.response.json()["error"]
        message, parameter = str(detail["message"]), str(detail["param"])
    except (ValueError, KeyError, TypeError):
        message, parameter = error.response.text.strip()[:300], ""
    if error.response.status_code == httpx.codes.BAD_REQUEST and parameter.startswith("semspec."):
        return NotApplicable(message)
    if error.response.status_code == httpx.codes.UNAUTHORIZED:
        message = f"{message.rstrip('.')}; set {API_KEY} to a key of this gateway"
    return RunnerError(f"the gateway answers {error.response.status_code}: {message}")


def _http(base_url: str, key: str | None) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {checked_key(key)}"} if key else {}
    timeout, limits = httpx.Timeout(3600, connect=10), httpx.Limits(max_connections=None)
    return httpx.AsyncClient(
        base_url=base_url, headers=headers, timeout=timeout, limits=limits, trust_env=False
    )
