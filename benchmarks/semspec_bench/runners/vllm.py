"""Runner of OpenAI servers: vLLM in a separate environment, with the target alone, with a draft model, or with n-grams;
and servers that a pair's file gives the commands of."""

import asyncio
import contextlib
import json
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx
import psutil
import torch
from transformers import AutoConfig

from semspec.engine.architecture import context_window
from semspec.engine.checkpoint import load_tokenizer
from semspec.engine.vllm.options import token_bytes
from semspec.stack.child import Child, StackError
from semspec.stack.listening import free_port
from semspec_bench.configuration import Configuration, parse
from semspec_bench.runners.protocol import Ask, NotApplicable, Outcome, RunnerError

MODEL = "pair"
"""The model's name in requests."""
START_TIMEOUT_S = 900.0
"""Timeout of one server's start: loading a large model and capturing its graphs takes minutes."""
STOP_GRACE_S = 15.0
POLL_S = 0.2
NUM_SPECULATIVE_TOKENS = 4
NUM_CACHED_WINDOWS = 2
"""Size of the KV cache in full contexts; by default vLLM's first server would take nearly all GPU memory."""
WINDOW_SETTING = "SEMSPEC_TARGET_MAX_CONTEXT_TOKENS"
"""Limit of the target's window, for our service and for vLLM's server."""

_FACTS = "from importlib.metadata import version; version('vllm'); import torch; print(int(torch.cuda.is_available()))"
_ERROR = re.compile(r"^(?:.*\bERROR\b.*?\] )?([\w.]*(?:Error|Exception): .*)$", re.MULTILINE)
_REFUSED_VALUE = re.compile(r"^ *Value error, (.*?)(?: \[type=.*)?$", re.MULTILINE)
"""The reason in a pydantic error about vLLM's settings."""


@dataclass(frozen=True, slots=True)
class VllmServers:
    """Pair, interpreter and files of vLLM's servers."""

    pair: Path
    python: Path
    """Interpreter of the environment with vLLM."""
    has_gpu: bool
    folder: Path
    """Folder of the logs and the tokenizer."""
    servers: Mapping[str, str] = field(default_factory=dict)
    """Shell commands by name, with {vllm}, vLLM's command for the target alone, {draft}, its folder, and {port}."""

    @property
    def tokenizer(self) -> Path:
        return self.folder / "tokenizer"

    def command(self, configuration: Configuration, port: int) -> list[str]:
        """The server's command line."""
        if configuration.runner == "server":
            return ["/bin/sh", "-c", self._shell_command(configuration.method, port)]
        target, networks = self.pair / "target", [self.pair / "target"]
        num_tokens = context_window(_config(target))
        if limit := os.environ.get(WINDOW_SETTING):
            num_tokens = min(num_tokens, int(limit))
        options = ["--served-model-name", MODEL, "--tokenizer", str(self.tokenizer)]
        options += ["--host", "127.0.0.1", "--port", str(port)]
        options += ["--generation-config", "vllm", "--max-model-len", str(num_tokens)]
        if configuration.method != "target":
            options += ["--speculative-config", json.dumps(self._speculation(configuration))]
        if configuration.method == "draft_model":
            networks.append(self.pair / "draft")
        sizes = [token_bytes(_config(network), 1, 2 if self.has_gpu else 4) for network in networks]
        kv_bytes = NUM_CACHED_WINDOWS * num_tokens * sum(sizes)
        options += ["--kv-cache-memory-bytes", str(kv_bytes)]
        # With an explicit cache size, this share only needs to be free at the server's start.
        device = ["bfloat16", "--gpu-memory-utilization", "0.05"] if self.has_gpu else ["float32"]
        start = [str(self.python), "-I", "-m", "vllm.entrypoints.cli.main", "serve", str(target)]
        return [*start, *options, "--dtype", *device]

    @property
    def environment(self) -> dict[str, str]:
        path = f"{self.python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return {"PATH": path, "VLLM_NO_USAGE_STATS": "1"}

    def _shell_command(self, name: str, port: int) -> str:
        values = {"draft": str(self.pair / "draft"), "port": str(port)}
        if "{vllm}" in self.servers[name]:
            values["vllm"] = shlex.join(self.command(parse("vllm/target"), port))
        command = self.servers[name]
        for placeholder, value in values.items():
            command = command.replace(f"{{{placeholder}}}", value)
        return command

    def _speculation(self, configuration: Configuration) -> dict[str, Any]:
        tokens = configuration.knobs.get("tokens", NUM_SPECULATIVE_TOKENS)
        speculation: dict[str, Any] = {
            "method": configuration.method,
            "num_speculative_tokens": tokens,
        }
        if configuration.method == "draft_model":
            speculation["model"] = str(self.pair / "draft")
        return speculation


class ServerFailed(RunnerError):
    """A server did not start, or failed during a request; the message has the reason from its log."""


@dataclass(frozen=True, slots=True)
class Server:
    """An OpenAI-compatible server in a child process, and the client that asks it."""

    child: Child
    http: httpx.AsyncClient

    async def ask(self, ask: Ask, takes_seed: bool) -> Outcome:
        """Raises: ServerFailed; RunnerError, when it refuses the question."""
        start = perf_counter()
        try:
            response = await self.http.post("/v1/chat/completions", json=_body(ask, takes_seed))
        except httpx.TransportError as error:
            raise self.failure("closed the connection") from error
        latency_s = perf_counter() - start
        if response.is_server_error:
            raise self.failure(f"answers {response.status_code}")
        if response.is_error:
            raise RunnerError(f"{self.child.name} refuses the question: {_message(response)}")
        body = response.json()
        [choice] = body["choices"]
        return Outcome(
            text=choice["message"]["content"] or "",
            finish_reason=choice["finish_reason"],
            latency_s=latency_s,
            num_prompt_tokens=body["usage"]["prompt_tokens"],
            num_tokens=body["usage"]["completion_tokens"],
        )

    async def until_healthy(self) -> None:
        """Raises: ServerFailed, when the server ends or takes too long."""
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while not await self._is_healthy():
                    self.child.check_alive()
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise self.failure(f"was not ready within {START_TIMEOUT_S:g} s") from None
        except StackError as error:
            raise self.failure("ended at its start") from error

    async def _is_healthy(self) -> bool:
        try:
            return (await self.http.get("/health")).is_success
        except httpx.TransportError:
            return False

    def failure(self, how: str) -> ServerFailed:
        """Return the error to raise, with the reason from the log; the end of the log is a note."""
        error = ServerFailed(
            f"{self.child.name} {how}: {reason(self.child.log.read_text(errors='replace'))}"
        )
        error.add_note(self.child.log_tail())
        return error


class VllmRunner:
    """See `semspec_bench.runners.protocol.Runner`. Each label has its server, started at its first request."""

    def __init__(self, site: VllmServers, stack: AsyncExitStack) -> None:
        self._site, self._stack = site, stack
        self._servers: dict[str, Server] = {}
        self._proven: set[str] = set()
        """Labels that have answered once, so that a later failure does not mean an unsupported method."""

    async def ask(self, ask: Ask) -> Outcome:
        label = ask.configuration.label
        try:
            if label not in self._servers:
                self._servers[label] = await self._stack.enter_async_context(
                    served(self._site, ask.configuration)
                )
            outcome = await self._servers[label].ask(ask, self._site.has_gpu)
        except ServerFailed as error:
            if ask.configuration.method == "target" or label in self._proven:
                raise
            raise NotApplicable(str(error)) from error
        self._proven.add(label)
        return outcome

    def processes(self) -> Mapping[str, int]:
        """Return the servers' processes and their children."""
        found: dict[str, int] = {}
        for label, server in self._servers.items():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(server.child.pid)
                found[label] = process.pid
                found |= {
                    f"{label} {child.name()}": child.pid
                    for child in process.children(recursive=True)
                }
        return found


@asynccontextmanager
async def open_vllm(
    pair: Path, python: Path, servers: Mapping[str, str] | None = None
) -> AsyncIterator[VllmRunner]:
    """Run servers for `pair` within the block, vLLM by the interpreter `python`. Raises: RunnerError.

    With `servers`, it is in this process's environment, or not needed.
    """
    python = python.absolute()  # not resolved: an environment's interpreter is a link
    has_gpu = torch.cuda.is_available() if servers else await sees_gpu(python)
    with tempfile.TemporaryDirectory(prefix="semspec-vllm-") as folder:
        site = VllmServers(pair, python, has_gpu, Path(folder), servers or {})
        write_tokenizer(pair / "target", site.tokenizer)
        async with AsyncExitStack() as stack:
            yield VllmRunner(site, stack)


def write_tokenizer(model: Path, folder: Path) -> None:
    """Write the tokenizer of `model`, as in its tokenizer.json, into a folder without the model's type.

    By the model's type, transformers (in vLLM) would choose a class that, for Qwen2, ignores the file.
    Raises: RunnerError.
    """
    try:
        load_tokenizer(str(model)).save_pretrained(folder, save_jinja_files=False)
    except (OSError, ValueError) as error:
        raise RunnerError(
            f"cannot read the tokenizer of {model}", remedy="give another --pair"
        ) from error
    path = folder / "tokenizer_config.json"
    if (folder / "tokenizer.json").exists():
        path.write_text(
            json.dumps(
                json.loads(path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
            )
        )


def reason(log: str) -> str:
    """Return why a server ended, from its log: the first error, or else the last line."""
    if found := _REFUSED_VALUE.search(log) or _ERROR.search(log):
        return found[1].strip()[:400]
    return next(
        (line.strip() for line in reversed(log.splitlines()) if line.strip()), "its log is empty"
    )[:400]


@asynccontextmanager
async def served(site: VllmServers, configuration: Configuration) -> AsyncIterator[Server]:
    """Run a server of this configuration, and wait until it is healthy. Raises: ServerFailed."""
    port = free_port("127.0.0.1", 0)
    command, log = site.command(configuration, port), site.folder / f"{port}.log"
    child = await Child.start(configuration.label, command, site.environment, log)
    client = httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}",
        timeout=httpx.Timeout(3600, connect=10),
        trust_env=False,
    )
    with kill_group_at_exit(child.pid):
        try:
            async with client as http:
                server = Server(child, http)
                await server.until_healthy()
                yield server
        finally:
            await child.stop(STOP_GRACE_S)


@contextmanager
def kill_group_at_exit(group: int) -> Iterator[None]:
    """Kill a process group at the end of the block or of this process.

    A shell waits for the end of its input, which comes however this process ends, and kills the group.
    """
    kill_group = 'read -r _; kill -s KILL -- "-$1"'
    # At the end of its block, Popen closes the input and waits for the shell.
    with subprocess.Popen(
        ["/bin/sh", "-c", kill_group, "reaper", str(group)],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ):
        yield


async def sees_gpu(python: Path) -> bool:
    """Return whether the environment's torch sees a GPU. Raises: RunnerError when it has no vLLM."""
    remedy = "give the interpreter of an environment with vLLM as --vllm"
    try:
        process = await asyncio.create_subprocess_exec(
            *(str(python), "-I", "-c", _FACTS),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise RunnerError(f"cannot run {python}: {error.strerror}", remedy=remedy) from error
    output, errors = await process.communicate()
    if process.returncode:
        raise RunnerError(
            f"{python} has no vLLM: {reason(errors.decode(errors='replace'))}", remedy=remedy
        )
    return bool(json.loads(output))


def _body(ask: Ask, takes_seed: bool) -> dict[str, Any]:
    """Return the request. vLLM's sampler for the CPU crashes on a request's seed."""
    return {
        "model": MODEL,
        "messages": ask.turns,
        "temperature": ask.temperature,
        "top_p": ask.top_p,
        "max_tokens": ask.max_tokens,
    } | ({"seed": ask.seed} if takes_seed else {})


def _message(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{response.status_code} {response.text.strip()[:300]}"


def _config(model: Path) -> Any:
    return AutoConfig.from_pretrained(str(model), trust_remote_code=False).get_text_config()
