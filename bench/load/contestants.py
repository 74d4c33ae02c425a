"""Contestants of a load test: our stack over an engine with a strategy, or vLLM's own server, each once it is up."""

import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import psutil

from semspec.bench.configuration import Configuration, parse
from semspec.bench.environment import ROLES
from semspec.bench.runners.protocol import RunnerError
from semspec.bench.runners.vllm import Site, sees_gpu, served, write_tokenizer
from semspec.engine.settings import ModelSettings
from semspec.errors import InvalidRequest
from semspec.stack import Stack, StackConfig

PLAIN = "vllm-serve"
"""vLLM's own server with the target alone, without semspec."""
ENGINES: Mapping[str, tuple[str, ...]] = {"fast": (), "vllm": ("target",), "vllm-both": ROLES}
"""The roles that run in vLLM; the others run in our engine."""
VLLM_PYTHON = Path(".work/vllm/bin/python")
"""Where `scripts/vllm-venv` installs vLLM's CPU build."""
START_TIMEOUT_S = 900.0
KV_BYTES = int(ModelSettings.model_fields["kv_bytes"].default)
"""Keys and values of vLLM's own server: as many as of our engines."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Contestant:
    """`ENGINE/STRATEGY[:knob=value...][:threads=N][:targets=N]`, or `vllm-serve[:threads=N]`."""

    label: str
    engine: str
    """A name in `ENGINES`, or `PLAIN`."""
    configuration: Configuration
    threads: int | None = None
    """CPU threads of the target; None: the engine's default."""
    targets: int = 1
    """Replicas of the target."""

    @property
    def is_plain(self) -> bool:
        return self.engine == PLAIN

    @property
    def is_target_alone(self) -> bool:
        return self.configuration.method == "target"

    @property
    def needs_vllm(self) -> bool:
        return self.is_plain or bool(ENGINES[self.engine])


def parse_contestant(text: str) -> Contestant:
    """The contestant that a label names. Raises: InvalidRequest naming the invalid part and the valid values."""
    label = text.strip()
    head, *knobs = label.split(":")
    engine, _, strategy = head.partition("/")
    counts = [knob.split("=", 1) for knob in knobs if knob.startswith(("threads=", "targets="))]
    rest = [knob for knob in knobs if not knob.startswith(("threads=", "targets="))]
    if engine not in (*ENGINES, PLAIN) or (engine == PLAIN) == bool(strategy):
        names = ", ".join(f"{name}/STRATEGY" for name in ENGINES)
        raise InvalidRequest(f"{label}: unknown contestant; give {names} or {PLAIN}", "contestant")
    sizes = {name: int(value) for name, value in counts if value.isdecimal() and int(value)}
    if len(sizes) < len(counts):
        name = counts[-1][0]
        raise InvalidRequest(
            f"{label}: give {name} as one whole number from 1, e.g. {head}:{name}=2", "contestant"
        )
    if engine == PLAIN and (rest or "targets" in sizes):
        refused = rest[0] if rest else "targets"
        raise InvalidRequest(
            f"{label}: {PLAIN} has no knob but threads; leave {refused} out", "contestant"
        )
    configuration = parse("vllm/target" if engine == PLAIN else ":".join((strategy, *rest)))
    return Contestant(label, engine, configuration, **sizes)


@dataclass(frozen=True, slots=True)
class Running:
    """A contestant that is ready for requests."""

    http: httpx.AsyncClient
    model: str
    """Its name in requests."""
    fields: Mapping[str, Any]
    """Fields of each request that only this contestant takes."""
    takes_seed: bool
    processes: Mapping[str, psutil.Process]
    """By role."""

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds of each process with its children, since their start. Raises: RunnerError when one ended."""
        return {name: _family_cpu_s(name, process) for name, process in self.processes.items()}


def _family_cpu_s(name: str, process: psutil.Process) -> float:
    try:
        times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    except psutil.NoSuchProcess as error:
        raise RunnerError(f"the process {name} ended during the run") from error
    return float(sum(one.user + one.system for one in times))


@dataclass(frozen=True, slots=True)
class Launcher:
    """Starts contestants over one pair."""

    pair: Path
    vllm: Path
    """Interpreter of an environment with vLLM and semspec."""
    max_streams: int

    @asynccontextmanager
    async def running(self, contestant: Contestant) -> AsyncIterator[Running]:
        """The contestant within the block. Raises: RunnerError, StackError."""
        if contestant.needs_vllm and not self.vllm.exists():
            raise RunnerError(
                f"there is no {self.vllm}; run scripts/vllm-venv, or give an interpreter as --vllm"
            )
        opened = self._server(contestant) if contestant.is_plain else self._stack(contestant)
        async with opened as running:
            yield running

    @asynccontextmanager
    async def _stack(self, contestant: Contestant) -> AsyncIterator[Running]:
        async with (
            Stack(self.stack_config(contestant)) as stack,
            client(stack.base_url, stack.api_key) as http,
        ):
            processes = {name: psutil.Process(child.pid) for name, child in stack.processes.items()}
            fields = {"semspec": contestant.configuration.options}
            yield Running(http, await _model(http), fields, True, processes)

    def stack_config(self, contestant: Contestant) -> StackConfig:
        """The stack of a contestant, which admits all streams at once."""
        places = str(max(8, self.max_streams))
        environment = {
            "SEMSPEC_GATEWAY_MAX_CONCURRENT": places,
            "SEMSPEC_GATEWAY_MAX_QUEUED": places,
        }
        python = str(self.vllm.absolute())  # not resolved: an environment's interpreter is a link
        usual, commands = StackConfig.of_pair(self.pair), dict[str, tuple[str, ...]]()
        for role in ENGINES[contestant.engine]:
            environment |= {
                f"SEMSPEC_{role.upper()}_ENGINE": "vllm",
                f"SEMSPEC_{role.upper()}_VLLM_OPTIONS": json.dumps(
                    {"max_num_seqs": max(64, self.max_streams)}
                ),
            }
            commands[role] = (python, "-m", f"semspec.services.{role}")
        if contestant.threads:
            environment["SEMSPEC_TARGET_THREADS"] = str(contestant.threads)
        return replace(
            usual,
            environment=environment,
            commands={**usual.commands, **commands},
            num_targets=contestant.targets,
            start_timeout_s=START_TIMEOUT_S,
        )

    @asynccontextmanager
    async def _server(self, contestant: Contestant) -> AsyncIterator[Running]:
        python = self.vllm.absolute()
        has_gpu = await sees_gpu(python)
        threads = {}
        if contestant.threads:
            threads = {
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "OMP_NUM_THREADS": str(contestant.threads),
            }
        with tempfile.TemporaryDirectory(prefix="semspec-load-") as folder:
            site = Site(self.pair, python, has_gpu, Path(folder), KV_BYTES)
            write_tokenizer(self.pair / "target", site.tokenizer)
            async with served(site, contestant.configuration, threads) as server:
                processes = {"server": psutil.Process(server.child.pid)}
                async with client(str(server.http.base_url), "") as http:
                    yield Running(http, await _model(http), {}, has_gpu, processes)


async def _model(http: httpx.AsyncClient) -> str:
    response = await http.get("/v1/models", timeout=60)
    response.raise_for_status()
    return str(response.json()["data"][0]["id"])


def usual_contestants() -> list[str]:
    """All engines and strategies, and vLLM's own server with one thread and with all cores."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    stacks = [
        f"{engine}/{strategy}" for engine in ("fast", "vllm") for strategy in ("target", "semantic")
    ]
    return [*stacks, *(f"{PLAIN}:threads={threads}" for threads in sorted({1, cores}))]


def client(base_url: str, api_key: str) -> httpx.AsyncClient:
    """An HTTP client without a connection limit."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(
        base_url=base_url,
        headers=headers,
        limits=limits,
        timeout=None,  # noqa: S113, the caller sets the timeout
        trust_env=False,
    )
