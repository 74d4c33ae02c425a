"""Checks of the processes that `semspec serve` starts: each reads its settings and loads what it serves, models without
their weights, by its own code; the gateway's code compares what they report. Then small models are tested."""

import asyncio
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semspec.commands import BAD_VERDICT
from semspec.commands.checks import Check, fail, ok, run_check, warn
from semspec.decoding.backends import WithoutProbes
from semspec.errors import Mismatch
from semspec.keys import new_key
from semspec.stack import StackConfig
from semspec.stack.redis import configured_url

if TYPE_CHECKING:
    from semspec.engine.settings import ModelSettings
    from semspec.engine.tokenization import ModelTokenizer
    from semspec.types import ModelInfo, Writer

FORM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes per weight; those of packed weights are as many as in their file."""


@dataclass(frozen=True, slots=True)
class StartedProcess:
    """A process that was started as far as its model's weights."""

    found: Check | str
    settings: Any
    report: Any
    """Its handshake with the gateway; the gateway's release. None: the model is not on this machine."""
    weight_bytes: int = 0
    """Memory of its model's weights."""


def check_processes(config: StackConfig) -> Iterator[Check]:
    """Yield one check per process; then, if both models are on this machine, a check of memory and, if nothing failed,
    checks of the pair as a whole."""
    started = dict[str, StartedProcess]()

    def start(name: str) -> Check | str:
        started[name] = _start(config, name)
        return started[name].found

    names = (*config.roles, "gateway")
    for name in names:
        yield run_check(name, partial(start, name))
    models = [
        started[role] for role in ("draft", "target") if role in started and started[role].report
    ]
    if len(models) == 2:
        yield run_check("memory", partial(_memory, models))
        if len(started) == len(names):
            yield run_check("pair", partial(_compare, started))
            yield run_check("draft test", lambda: asyncio.run(_tested("draft", started["draft"])))
            yield run_check(
                "target test", lambda: asyncio.run(_tested("target", started["target"]))
            )


def _start(config: StackConfig, name: str) -> StartedProcess:
    """Start a process as far as its model's weights. Raises: the error that would end it."""
    from semspec.settings import read_settings

    package = f"semspec_{name}"
    with _environment(config, name):
        settings = read_settings(_loaded(f"{package}.settings:{name.title()}Settings"))
        if name == "gateway":
            return _gateway(settings)
        if getattr(settings, "engine", "") != "vllm":
            from semspec.device import device_of

            device_of(settings.device, f"the {name} (SEMSPEC_{name.upper()}_DEVICE)")
        load = _loaded(f"{package}.__main__:load")
        return (
            _verifier(config, settings, load)
            if name == "verifier"
            else _model(name, settings, load)
        )


def _gateway(settings: Any) -> StartedProcess:
    release = _loaded("semspec_gateway.releases:load_served_release")(
        settings.pair, settings.defaults
    )
    words = f", the release is {release.pair.label}" if release else ""
    return StartedProcess(f"its settings are valid{words}", settings, release)


def _verifier(config: StackConfig, settings: Any, load: Any) -> StartedProcess:
    report = asyncio.run(load(settings.model_copy(update={"device": "cpu"})).info())
    found: Check | str = f"probes of {report.draft_model} and {report.target_model}"
    if not report.operating_points:
        remedy = "`semspec train run` makes it; until then set acceptance by hand"
        found = warn(
            "verifier",
            f"{found}, without an operating curve: what a strictness brings is unknown",
            remedy,
        )
    elif config.bad_verdicts:
        found = warn("verifier", f"{found}, whose report says: {config.bad_verdicts}", BAD_VERDICT)
    elif config.verdicts:
        found = f"{found}, whose report says: {config.verdicts}"
    return StartedProcess(found, settings, report)


def _model(role: str, settings: Any, load: Any) -> StartedProcess:
    from semspec.engine.hub import format_bytes, look_up

    num_weights, weight_bytes = 0, 0
    if settings.model:
        found = look_up(settings.model, settings.revision)
        if found.missing_bytes:
            words = (
                f"{settings.model} is not on this machine yet: {format_bytes(found.missing_bytes)}"
            )
            remedy = f"`hf download {settings.model.replace(':', ' ')}`, or `serve` fetches it"
            return StartedProcess(warn(role, words, remedy), settings, None)
        num_weights, weight_bytes = count_weights(found.folder), found.weight_bytes
    engine = load(settings, outline)
    if settings.model and (bytes_per_weight := FORM_BYTES.get(engine.form)):
        weight_bytes = bytes_per_weight * num_weights
    words = (
        f"{settings.model}: {engine.kind}, {num_weights / 1e6:.1f} M weights"
        if settings.model
        else "a datastore"
    )
    return StartedProcess(words, settings, asyncio.run(engine.info()), weight_bytes)


@dataclass(frozen=True, slots=True)
class ModelOutline:
    """Stands in for an engine: a model's handshake without its weights."""

    handshake: "ModelInfo"
    tokenizer: "ModelTokenizer"
    kind: str
    form: str
    """Numeric form of the weights when they are served."""

    async def info(self) -> "ModelInfo":
        return self.handshake


def outline(settings: "ModelSettings", writer: "Writer") -> ModelOutline:
    """Stand in for `load_engine`: load the model without its weights. Raises: Mismatch when it cannot be served."""
    from semspec.engine.load import choose_engine

    if (engine := choose_engine(settings)) == "vllm":
        from semspec.engine.vllm.options import check_installed, load_model

        check_installed()
        model, tokenizer = load_model(settings, writer)
        return ModelOutline(model.info, tokenizer, f"vLLM {version('vllm')}", "bfloat16")
    from semspec.engine.causal_lm import CausalLM
    from semspec.release import check_model

    name, limit = settings.model, settings.max_context_tokens
    lm = CausalLM.load(name, settings.revision, "meta", settings.dtype, limit, engine)
    check_model(settings, writer, lm.info.fingerprint)
    runner = "fast decoder" if lm.decoder else "transformers"
    return ModelOutline(
        lm.info, lm.tokenizer, f"{type(lm.model).__name__}, {runner}, {lm.form}", lm.form
    )


def count_weights(folder: Path) -> int:
    """Count the weights in a folder's safetensors files, or in its GGUF file. Raises: Mismatch when there are none, or
    a file is damaged."""
    from safetensors import SafetensorError, safe_open

    from semspec.engine.gguf import weights_file
    from semspec.engine.gguf_header import read_header

    if file := weights_file(folder):
        return read_header(file).num_weights
    num_weights = 0
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, "pt") as file:
                num_weights += sum(
                    math.prod(tensor.get_shape()) for tensor in map(file.get_slice, file.keys())
                )
        except (OSError, SafetensorError) as error:
            raise Mismatch(
                f"cannot read {path}: {error}", remedy="fetch the checkpoint again"
            ) from error
    if not num_weights:
        raise Mismatch(
            f"{folder} has no safetensors weights",
            remedy="convert the checkpoint: pickled ones are not read",
        )
    return num_weights


async def _tested(role: str, started: StartedProcess) -> str:
    """Run the self-test of a small model, with which its service starts. Raises: the error that would end it."""
    from semspec.engine.load import choose_engine
    from semspec.engine.selftest import REFERENCE_BYTES, self_test

    if choose_engine(started.settings) == "vllm" or started.weight_bytes > REFERENCE_BYTES:
        return "skipped: it would take minutes; `serve` runs it at the start"
    engine = _loaded(f"semspec_{role}.__main__:load")(started.settings)
    try:
        return (
            await self_test(engine, started.settings)
            or "skipped: the service has a datastore or a remote writer"
        )
    finally:
        await engine.aclose()


def _compare(started: dict[str, StartedProcess]) -> str:
    """Compare the handshakes as the gateway does once all services answer. Raises: Mismatch."""
    draft, target, gateway = (started[name].report for name in ("draft", "target", "gateway"))
    verifier = (
        started["verifier"].report if "verifier" in started else asyncio.run(WithoutProbes().info())
    )
    settings = started["gateway"].settings
    likelihood = gateway.likelihood if gateway else None
    uncalled = _loaded("semspec.decoding:Backends")(None, None, None, likelihood=likelihood)
    served = _loaded("semspec_gateway.served:Served")(
        draft,
        target,
        verifier,
        uncalled,
        release=gateway,
        defaults=gateway.defaults if gateway else settings.defaults,
    )
    if reason := _loaded("semspec_gateway.served:mismatch")(served, settings.audit):
        raise reason
    matched = (
        "models and probes belong together"
        if verifier.has_probes
        else "the models are served without probes"
    )
    return f"{matched}; {served.default_name} by default; {served.support}"


def _memory(models: list[StartedProcess]) -> Check:
    from semspec.engine.hub import format_bytes

    device, free_bytes = _free()
    needed = sum(m.weight_bytes for m in models)
    kv_bytes = sum(m.report.max_cache_bytes or m.settings.kv_bytes for m in models)
    if not free_bytes:
        return warn(
            "memory",
            f"weights {format_bytes(needed)}; what is free is unknown here",
            "see that they fit",
        )
    words = f"weights {format_bytes(needed)}, keys and values up to {format_bytes(kv_bytes)}"
    words += f", {format_bytes(free_bytes)} free on the {device}"
    if needed > free_bytes:
        return fail("memory", f"{words}: too little", "free some, or serve smaller models")
    if needed + kv_bytes > free_bytes:
        remedy = "lower SEMSPEC_DRAFT_KV_BYTES and SEMSPEC_TARGET_KV_BYTES"
        return warn("memory", f"{words}: too little for both", remedy)
    return ok("memory", words)


def _free() -> tuple[str, int]:
    """Return the device of the models, and its free bytes (0: unknown)."""
    import torch

    if torch.cuda.is_available():
        return "GPU", torch.cuda.mem_get_info()[0]
    listed = Path("/proc/meminfo")  # of Linux
    lines = listed.read_text().splitlines() if listed.exists() else []
    free = (int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    return "machine", next(free, 0)


@contextmanager
def _environment(config: StackConfig, name: str) -> Iterator[None]:
    """Set the process's environment under `semspec serve` for the duration of the block. Raises: StackError."""
    before = dict(os.environ)
    if name == "gateway":
        addresses = dict.fromkeys(config.roles, "127.0.0.1:1") | {
            "redis": configured_url() or "redis://127.0.0.1"
        }
        settings = config.gateway_environment(addresses, 0, config.api_key or new_key())
    else:
        settings = config.service_environment(name)
    os.environ.update({**config.environment, **settings})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _loaded(reference: str) -> Any:
    """Load an object of a service's or the gateway's package, which the library does not import."""
    return EntryPoint("", reference, "").load()
