"""A second gateway serves a new release over the engines of the first: docs/probes.md tells an operator how."""

import asyncio
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest
import torch

from semspec.probes.probe import load_probe, save_probe
from semspec.probes.verifier import ProbeVerifier
from semspec.release import load_release
from semspec.stack import StackConfig
from semspec.types import Context, GenerationParams, SamplingParams
from tests.helpers.gateway import free_port
from tests.helpers.processes import GENEROUS_S, Process, another_gateway, second
from tests.helpers.stack import Pair, Running, http_of, served

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="package")]


def next_release(folder: Path, new: Path) -> None:
    """Write a release with another probe of the target."""
    copytree(folder, new)
    artifact = load_probe(new / "target.safetensors")
    weights = artifact.probe.network[0].weight
    weights.data += 0.2 * torch.randn(weights.shape, generator=torch.Generator().manual_seed(1))  # type: ignore[arg-type, operator]
    save_probe(artifact.probe, artifact.card, new / "target.safetensors")
    probes = ProbeVerifier.load(new).handshake()
    replace(load_release(folder).with_probes(probes), version="2").save(new)


async def hold_release(running: Running, role: str, release: Path) -> None:
    """Name the release's first layers in calls to an engine until it holds them."""
    wanted = {getattr(one, role) for one in load_release(release).projections} - {""}
    async with running.engine(role) as client, asyncio.timeout(GENEROUS_S):
        context = Context((await client.encode("A question"),))
        while missing := wanted - {*(await client.info()).projections}:
            params = GenerationParams(
                SamplingParams(), max_tokens=1, want_states=True, projection=missing.pop()
            )
            _ = [segment async for segment in client.generate(context, params)]
            await asyncio.sleep(0.1)


async def test_second_gateway_serves_a_new_release_over_the_same_engines(
    stack_config: StackConfig, pair: Pair, tmp_path: Path
) -> None:
    releases = tmp_path / "releases"
    old, new = releases / "1", releases / "2"
    copytree(pair.probes, old)
    commands = {
        role: ("env", f"SEMSPEC_{role.upper()}_PAIR={releases}", *stack_config.commands[role])
        for role in ("draft", "target")
    }
    config = replace(stack_config, pair=old, commands={**stack_config.commands, **commands})
    async with served(config) as running:
        next_release(old, tmp_path / "made")
        (tmp_path / "made").rename(new)
        for role in ("draft", "target"):
            await hold_release(running, role, new)
        verifier = Process.of(running.stack, "verifier")
        verifier.environment["SEMSPEC_VERIFIER_PAIR"] = str(new)
        settings = {
            "SEMSPEC_GATEWAY_PAIR": str(new),
            "SEMSPEC_GATEWAY_VERIFIER_ADDRESS": (await second(verifier, "verifier 2")).address,
        }
        gateway = another_gateway(
            Process.of(running.stack, "gateway"), "gateway 2", free_port(), **settings
        )
        await gateway.start()
        try:
            async with http_of(running.stack, gateway.address) as http:
                found = []
                for number, one in enumerate((running, Running(running.stack, http)), 1):
                    answer = await one.answer(
                        model=f"semspec-demo@{number}:semantic", semspec={"trace": True}
                    )
                    assert answer["semspec"]["fallback"] is None
                    for role in ("draft", "target"):
                        sample = f'semspec_gateway_service_whole_states{{service="{role}"}}'
                        assert await one.metric(sample) == 0, "the engines hold both first layers"
                    found.append(
                        [record["target_probability"] for record in answer["semspec"]["trace"]]
                    )
        finally:
            await gateway.kill()
    assert found[0] != found[1], "each release judges by its own probes"
