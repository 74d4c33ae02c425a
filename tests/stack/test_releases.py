"""A release of new probes, or of another target, goes beside the old one, and is taken back, under load: docs/probes.md
tells an operator how."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from semspec.engine.checkpoint import model_fingerprint
from semspec.probes.probe import load_probe, save_probe
from semspec.probes.verifier import ProbeVerifier
from semspec.release import load_release
from semspec.stack import Stack, StackConfig
from semspec.stack.child import Child
from tests.gateway.support import free_port
from tests.processes import GENEROUS_S
from tests.stack.support import Json, Pair, Running, served

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="package")]
NUM_STREAMS, NUM_SEEDS = 16, 5
MAX_TOKENS = 24


def next_release(folder: Path, new: Path, target: Path | None) -> Path:
    """A release with another probe of the target; and with `target` changed a little for its target."""
    copytree(folder, new)
    release = load_release(folder)
    artifact = load_probe(new / "target.safetensors")
    weights = artifact.probe.network[0].weight
    weights.data += 0.2 * torch.randn(weights.shape, generator=torch.Generator().manual_seed(1))  # type: ignore[arg-type, operator]
    if target:
        rmtree(new / "alternatives", ignore_errors=True)
        tensors = load_file(copytree(target, new / "target") / "model.safetensors")
        save_file(
            {name: 1.02 * one for name, one in tensors.items()},
            new / "target" / "model.safetensors",
            {"format": "pt"},
        )
        fingerprint = model_fingerprint(str(new / "target"))
        release = replace(
            release, target=replace(release.target, model="target", fingerprint=fingerprint)
        )
    save_probe(
        artifact.probe,
        replace(artifact.card, fingerprint=release.target.fingerprint),
        new / "target.safetensors",
    )
    replace(release.with_probes(ProbeVerifier.load(new).handshake()), version="2").save(new)
    return new


async def start_beside(stack: Stack, role: str, release: Path, folder: Path) -> str:
    """Start another service of this role, for this release. Returns its address once it serves."""
    port, name, prefix = free_port(), f"{role}-beside", f"SEMSPEC_{role.upper()}"
    settings = {
        f"{prefix}_PAIR": str(release),
        f"{prefix}_PORT": str(port),
        "SEMSPEC_PORT_FILE": str(folder / name),
    }
    if role == "target":
        settings["SEMSPEC_TARGET_MODEL"] = str(release / "target")
    command = (sys.executable, "-m", f"semspec.services.{role}")
    settings = {**stack.processes[role].environment, **settings}
    child = stack.processes[name] = await Child.start(
        name, command, settings, folder / f"{name}.log"
    )
    async with asyncio.timeout(GENEROUS_S):
        while not (folder / name).exists():
            child.check_alive()
            await asyncio.sleep(0.1)
    return f"127.0.0.1:{port}"


@dataclass
class Load:
    """Streams that ask one question after another, and what they were answered."""

    running: Running
    answers: list[Json] = field(default_factory=list)
    seeds: Any = field(default_factory=count)

    async def ask(self) -> None:
        while True:
            self.answers.append(await asked(self.running, next(self.seeds) % NUM_SEEDS))

    @asynccontextmanager
    async def on(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self.ask()) for _ in range(NUM_STREAMS)]
        try:
            yield
            assert not any(task.done() for task in tasks), "a request failed"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def until(self, releases: set[str], num: int = NUM_STREAMS) -> None:
        """Until the last answers are all of these releases, and of each there is one."""
        async with asyncio.timeout(2 * GENEROUS_S):
            while {one["release"] for one in self.answers[-num:]} != releases or len(
                self.answers
            ) < num:
                await asyncio.sleep(0.2)


async def asked(running: Running, seed: int, model: str = "semspec-demo") -> Json:
    """A streamed answer: its release, its seed, and what was decided."""
    fields: Json = {
        "seed": seed,
        "max_tokens": MAX_TOKENS,
        "model": model,
        "semspec": {"trace": True},
    }
    async with running.streaming(**fields) as stream:
        chunks = [chunk async for chunk in stream]
    trace = [
        chunk["semspec"]["segment"] for chunk in chunks if "segment" in chunk.get("semspec", {})
    ]
    stored = await running.generation(chunks[0]["id"])
    decided = [
        (one["text"], one["verdict"], one["draft_probability"], one["target_probability"])
        for one in trace
    ]
    return {
        "release": stored["models"]["release"],
        "seed": seed,
        "decided": decided,
        "fallback": chunks[-1]["semspec"]["fallback"],
    }


def same(decided: list[Any], expected: list[Any]) -> bool:
    """Whether two answers have the same segments, judged by the same probes; batches change the last digits."""
    if [one[:2] for one in decided] != [one[:2] for one in expected]:
        return False
    pairs = zip(decided, expected, strict=True)
    return all(a[2:] == b[2:] or a[2:] == pytest.approx(b[2:], abs=1e-3) for a, b in pairs)


@pytest.mark.parametrize("is_of_models", [False, True], ids=["probes", "models"])
async def test_release_is_switched_to_and_rolled_back_under_load(
    stack_config: StackConfig, pair: Pair, tmp_path: Path, is_of_models: bool
) -> None:
    releases, routes = tmp_path / "releases", tmp_path / "releases.json"
    copytree(pair.probes, releases / "1")
    first, second = {"pair": "releases/1", "weight": 1}, {"pair": "releases/2", "weight": 0}
    routes.write_text(json.dumps([first]))
    usual, paths = (
        dict(stack_config.commands),
        {"draft": releases, "target": releases, "gateway": routes},
    )
    commands = {
        role: ("env", f"SEMSPEC_{role.upper()}_PAIR={path}", *usual[role])
        for role, path in paths.items()
    }
    config = replace(stack_config, pair=releases / "1", commands={**usual, **commands})
    async with served(config) as running:
        load, stack = Load(running), running.stack
        pids = {name: child.pid for name, child in stack.processes.items()}
        async with load.on():
            await load.until({"semspec-demo@1"})
            made = next_release(
                releases / "1", tmp_path / "made", pair.target if is_of_models else None
            )
            made.rename(releases / "2")
            if is_of_models:
                second["target"] = await start_beside(stack, "target", releases / "2", tmp_path)
            else:
                held = set[str]()
                for role in ("draft", "target"):
                    os.kill(running.pid(role), signal.SIGHUP)
                wanted = {
                    one.target for one in load_release(releases / "2").projections if one.target
                }
                async with running.engine("target") as client, asyncio.timeout(GENEROUS_S):
                    while not wanted <= held:
                        held = set((await client.info()).projections)
                        await asyncio.sleep(0.1)
            second["verifier"] = await start_beside(stack, "verifier", releases / "2", tmp_path)
            for weights, expected in (((1, 1), "12"), ((0, 1), "2"), ((1, 0), "1"), ((0, 1), "2")):
                first["weight"], second["weight"] = weights
                routes.write_text(json.dumps([first, second]))
                await load.until({f"semspec-demo@{version}" for version in expected})
        known = {
            (version, seed): (await asked(running, seed, f"semspec-demo@{version}"))["decided"]
            for version in "12"
            for seed in range(NUM_SEEDS)
        }
        assert pids.items() <= {name: child.pid for name, child in stack.processes.items()}.items()
        samples = [
            f'semspec_gateway_service_whole_states{{service="{role}"}}'
            for role in ("draft", "target")
        ]
        whole = [await running.metric(sample) for sample in samples]
        if is_of_models:
            await stack.processes["target"].stop(GENEROUS_S)
            assert {(await asked(running, seed))["release"] for seed in range(NUM_SEEDS)} == {
                "semspec-demo@2"
            }
    assert any(known["1", seed] != known["2", seed] for seed in range(NUM_SEEDS)), (
        "the releases decide alike"
    )
    assert {one["fallback"] for one in load.answers} == {None}
    mixed = [
        one
        for one in load.answers
        if not same(one["decided"], known[one["release"][-1], one["seed"]])
    ]
    assert not mixed, f"{len(mixed)} of {len(load.answers)}, the first: {mixed[0]}"
    assert whole == [0, 0], "the engines hold the first layers of both"
