"""vLLM's servers that write the samples of a training, on the GPU that its workers leave free."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from semspec.pairs import ROLES
from semspec.stack.child import StackError
from semspec.stack.listening import free_port
from semspec.stack.parent_death import bound_command
from semspec.training.config import PipelineConfig
from semspec_bench.runners.protocol import RunnerError
from semspec_bench.runners.vllm import START_TIMEOUT_S, kill_group_at_exit

PORTS = dict(zip(ROLES, (8001, 8000), strict=True))
"""Fixed, because the configuration of a training, which names them, must not change when it is resumed."""
HOST = "127.0.0.1"
POLL_S = 0.5


def sampler(role: str, model: str) -> dict[str, str]:
    """Return the setting `sampler` of a model that a server of `sampling_servers` writes for."""
    return {"backend": "openai", "base_url": f"http://{HOST}:{PORTS[role]}/v1", "model": model}


def server_command(role: str, config: PipelineConfig, options: str) -> list[str]:
    """Return the command of vLLM's server for a model of a training, with more `options`."""
    model = config.draft if role == "draft" else config.target
    revision = ["--revision", model.revision] if model.revision else []
    window = config.contexts.max_tokens + config.max_segment_tokens
    return [
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", model.model, *revision),
        *("--max-model-len", str(window), "--generation-config", "vllm"),
        *("--host", HOST, "--port", str(PORTS[role]), *shlex.split(options)),
    ]


@contextmanager
def sampling_servers(commands: Mapping[str, list[str]], device: str, logs: Path) -> Iterator[None]:
    """Run the command of each role on the GPU `device` within the block, one after another. Raises: RunnerError."""
    with ExitStack() as stack:
        for role, command in commands.items():
            stack.enter_context(_server(role, command, device, logs / f"sampler-{role}.log"))
        yield


@contextmanager
def _server(role: str, command: list[str], device: str, log: Path) -> Iterator[None]:
    try:
        free_port(HOST, PORTS[role])
    except StackError as error:
        raise RunnerError(
            f"the server that samples from the {role}: {error}",
            remedy=f"end the process that listens on port {PORTS[role]}",
        ) from error
    environment = {"VLLM_NO_USAGE_STATS": "1"}
    if device:
        environment["CUDA_VISIBLE_DEVICES"] = device
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            bound_command(command),
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        with kill_group_at_exit(process.pid):
            _wait_until_healthy(role, process, log)
            yield
    finally:
        process.wait()


def _wait_until_healthy(role: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Raises: RunnerError, when the server ends or takes too long."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        is_healthy = _is_healthy(PORTS[role])
        # Checked after the request, which another process may have answered if this one could not bind its port.
        if process.poll() is not None:
            raise RunnerError(f"the server that samples from the {role} ended; see {log}")
        if is_healthy:
            return
        if time.monotonic() > deadline:
            raise RunnerError(
                f"the server that samples from the {role} was not ready within "
                f"{START_TIMEOUT_S:g} s; see {log}"
            )
        time.sleep(POLL_S)


def _is_healthy(port: int) -> bool:
    try:
        return httpx.get(f"http://{HOST}:{port}/health", trust_env=False, timeout=5).is_success
    except httpx.TransportError:
        return False
