"""Checks of the settings of the processes that `semspec serve` starts, and of what they make of the pair."""

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semspec.commands.checks import Check, fail, ok
from semspec.commands.checks.models import find_folder
from semspec.errors import Mismatch, SemspecError
from semspec.keys import new_key
from semspec.stack import StackConfig

if TYPE_CHECKING:
    from semspec.types import ModelInfo, VerifierInfo

CLASSES = {
    "draft": "semspec.services.draft.settings:DraftSettings",
    "target": "semspec.services.target.settings:TargetSettings",
    "verifier": "semspec.services.verifier.settings:VerifierSettings",
    "gateway": "semspec.gateway.settings:GatewaySettings",
}
"""Settings of each process, by name: the library imports no process."""
SERVED = "semspec.gateway.served"
"""The module in which the gateway decides whether models, probes and defaults belong together."""
_NOWHERE = "127.0.0.1:1"


def check_settings(config: StackConfig, names: Sequence[str]) -> Iterator[Check]:
    """One check per process of `names` whose settings or whose device it would refuse, or one for all."""
    problems = [check for name in names if (check := _problem(config, name))]
    yield from problems or [ok("settings", f"of {', '.join(names)}: all valid")]


def check_pair(config: StackConfig) -> Iterator[Check]:
    """What the gateway would say of the pair once all services answer; nothing if a model is not on this machine.

    Call it when all settings, models and probes are found right by themselves.
    """
    from semspec.decoding.likelihood.calibration import load_calibration
    from semspec.decoding.protocols import WithoutProbes
    from semspec.probes.verifier import ProbeVerifier

    settings = {name: read(config, name) for name in (*config.roles, "gateway")}
    if not all(find_folder(settings[role].model) for role in ("draft", "target")):
        return
    try:
        draft, target = (_model_info(settings[role]) for role in ("draft", "target"))
        if config.has_probes:
            probes = settings["verifier"]
            verifier = ProbeVerifier.load(probes.draft_probe, probes.target_probe, probes.alternatives)
            verifier_info: VerifierInfo = asyncio.run(verifier.info())
        else:
            verifier_info = asyncio.run(WithoutProbes().info())
        path = settings["gateway"].likelihood
        served = _loaded(f"{SERVED}:Served")(draft, target, verifier_info, load_calibration(path) if path else None)
        reason = _loaded(f"{SERVED}:mismatch")(served, settings["gateway"])
    except (SemspecError, OSError, ValueError) as error:
        reason = getattr(error, "message", None) or " ".join(str(error).split())[:300]
    if reason is None:
        yield ok("pair", f"models and probes belong together; {settings['gateway'].defaults.strategy} by default")
    else:
        message, _, remedy = reason.rpartition("; " if "; " in reason else ": ")
        yield fail("pair", message or reason, remedy)


def read(config: StackConfig, name: str) -> Any:
    """The settings that a process would have under `semspec serve`. Raises: InvalidRequest; StackError."""
    from semspec.settings import read_settings

    addresses = dict.fromkeys(config.roles, _NOWHERE) | {"redis": "redis://127.0.0.1"}
    own = (
        config.gateway_environment(addresses, 0, config.api_key or new_key())
        if name == "gateway"
        else config.service_environment(name)
    )
    with _environment({**config.environment, **own}):
        return read_settings(_loaded(CLASSES[name]))


def _problem(config: StackConfig, name: str) -> Check | None:
    try:
        settings = read(config, name)
        if name != "gateway" and getattr(settings, "engine", "") != "vllm" and find_spec("torch"):
            from semspec.engine.device import device_of

            device_of(settings.device, f"the {name}")
    except Mismatch as error:
        message, _, remedy = error.message.rpartition("; ")
        return fail("settings", message, f"{remedy} as SEMSPEC_{name.upper()}_DEVICE")
    except SemspecError as error:
        remedy = "correct it in the environment or in serving.json; docs/settings.md lists all settings"
        return fail("settings", f"{name}: {error.message}", remedy)
    return None


def _model_info(settings: Any) -> "ModelInfo":
    """The handshake of a model service, without loading weights. Raises: Mismatch, OSError or ValueError when the
    service could not load the checkpoint."""
    from transformers import AutoConfig, GenerationConfig

    from semspec.decoding.retrieval.datastore import Datastore
    from semspec.engine.checkpoint import eos_ids, load_tokenizer, model_info
    from semspec.engine.tokenization import tokenize

    name, revision = settings.model, settings.revision
    tokenizer = load_tokenizer(name, revision)
    tokenize(tokenizer, "A step.")
    config = AutoConfig.from_pretrained(name, revision=revision, trust_remote_code=False)
    try:
        generation = GenerationConfig.from_pretrained(name, revision=revision)
    except OSError:
        generation = GenerationConfig.from_model_config(config)
    eos_ids(generation, tokenizer)
    info = model_info(name, revision, config, tokenizer, settings.max_context_tokens)
    if folder := getattr(settings, "datastore", None):
        card = Datastore.load(Path(folder)).card
        return replace(info, datastore=card.digest, datastore_model=card.model)
    return info


@contextmanager
def _environment(added: Mapping[str, str]) -> Iterator[None]:
    """This process's environment with `added`, for the duration of the block."""
    before = dict(os.environ)
    os.environ.update(added)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _loaded(reference: str) -> Any:
    return EntryPoint("", reference, "").load()
