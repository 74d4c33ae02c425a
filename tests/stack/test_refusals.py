"""What does not belong together never serves: the start fails, says why, and leaves nothing running. `semspec
doctor`, which starts nothing, fails exactly there and says the same."""

import asyncio
import os
import re
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest

from semspec.commands.checks import Check
from semspec.commands.doctor import checks_of
from semspec.stack import Stack, StackConfig, StackError
from tests.helpers.checkpoints import edit_json
from tests.helpers.processes import GENEROUS_S, left_alive, ordinary_user
from tests.helpers.stack import Running
from tests.stack.programs import SERVICE

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="package")]
Fault = Callable[[StackConfig, Path], StackConfig]


async def start(config: StackConfig) -> list[str]:
    """What is said of a start that fails, once it is sure that it left nothing behind."""
    stack = Stack(config)
    with pytest.raises(StackError) as caught:
        async with asyncio.timeout(GENEROUS_S), stack:
            pass
    assert left_alive([child.pid for child in stack.processes.values()], 0) == []
    assert "\n" not in str(caught.value) and "Traceback" not in caught.value.log_tail
    return [str(caught.value), *caught.value.log_tail.splitlines()]


async def failures(config: StackConfig) -> list[str]:
    """What `semspec doctor` says is to be fixed."""
    checks: list[Check] = await asyncio.to_thread(lambda: list(checks_of(config)))
    return [
        f"{check.name} {check.message}; {check.remedy}" for check in checks if check.level == "fail"
    ]


async def test_doctor_has_nothing_to_fix_where_the_stack_comes_up(
    stack_config: StackConfig, running: Running
) -> None:
    assert await running.until_ready() == "ready"
    assert await failures(stack_config) == []


def alone(config: StackConfig, role: str) -> StackConfig:
    """Only this service and the gateway are real, to spare the others' start."""
    stand_ins = {
        other: (sys.executable, "-c", SERVICE, other.upper())
        for other in config.roles
        if other != role
    }
    return replace(config, commands={**config.commands, **stand_ins})


def variable(name: str, value: str) -> Fault:
    return lambda config, folder: replace(config, environment={**config.environment, name: value})


def model(change: Callable[[Path], object]) -> Fault:
    """A copy of the target in which something is different."""

    def changed(config: StackConfig, folder: Path) -> StackConfig:
        copytree(config.target_model, folder / "target")
        change(folder / "target")
        return replace(config, target_model=folder / "target")

    return changed


def probes(change: Callable[[Path], object]) -> Fault:
    """A copy of the probes in which something is different."""

    def changed(config: StackConfig, folder: Path) -> StackConfig:
        assert config.pair is not None
        copytree(config.pair, folder / "probes")
        change(folder / "probes")
        return replace(config, pair=folder / "probes")

    return changed


def cards(pattern: str, **values: object) -> Fault:
    """Probes whose cards say something else."""

    def change(folder: Path) -> None:
        for card in folder.rglob(pattern):
            edit_json(card, **values)

    return probes(change)


def swapped(folder: Path) -> None:
    for suffix in ("safetensors", "json"):
        draft, target = folder / f"draft.{suffix}", folder / f"target.{suffix}"
        aside = draft.rename(folder / "aside")
        target.rename(draft)
        aside.rename(target)


def released(**changes: object) -> Fault:
    return probes(lambda folder: edit_json(folder / "pair.json", **changes))


FAULTS: dict[str, tuple[str, Fault, str]] = {
    "a device that is not there": (
        "target",
        variable("SEMSPEC_TARGET_DEVICE", "cuda:99"),
        "no device 'cuda:99' for .*; choose 'cpu' or 'auto'",
    ),
    "a rule beyond its bounds": (
        "gateway",
        released(rule={"gamma": 99}),
        "release semspec-demo@1: rule.gamma: ",
    ),
    "a rule that a setting states, too": (
        "gateway",
        lambda config, folder: variable("SEMSPEC_GATEWAY_DEFAULTS", '{"gamma": 2}')(
            released(rule={"gamma": 1})(config, folder), folder
        ),
        "SEMSPEC_GATEWAY_DEFAULTS sets gamma: leave it out, it comes from SEMSPEC_GATEWAY_PAIR",
    ),
    "a calibration that is not the release's": (
        "gateway",
        released(likelihood="another"),
        "likelihood.json next to the release semspec-demo@1 is not the one it names",
    ),
    "a dtype that is not the release's": (
        "target",
        variable("SEMSPEC_TARGET_DTYPE", "bfloat16"),
        "release semspec-demo@1 has the target .* in float32, but the target service serves .* in bfloat16",
    ),
    "probes that are not the release's": (
        "verifier",
        released(target_probe="another"),
        "the verifier has other probes than the release semspec-demo@1[:;] start it with the release's folder",
    ),
    "no model": (
        "target",
        lambda config, folder: replace(config, target_model=folder / "nowhere"),
        "nowhere; give a checkpoint's folder, a GGUF file or a hub id",
    ),
    "swapped probes": (
        "verifier",
        probes(swapped),
        "the draft probe needs 'states\\+surprisal'.*swap",
    ),
    "probes of another pair": (
        "verifier",
        cards("[dt]*.json", fingerprint="another"),
        "the verifier has other alternatives than the release semspec-demo@1.*start it with the release's folder",
    ),
}
"""The process that refuses, if it is one, what is wrong, and what is said of it."""


@pytest.mark.parametrize("fault", FAULTS)
async def test_start_and_doctor_refuse(
    stack_config: StackConfig, tmp_path: Path, fault: str
) -> None:
    role, spoil, said = FAULTS[fault]
    config = spoil(stack_config, tmp_path)
    [failure] = await failures(config)
    lines = await start(alone(config, role) if role else config)
    assert re.search(said, failure) and failure.startswith(role), failure
    assert [line for line in lines if re.search(said, line)], lines


async def test_port_that_is_taken_or_none(stack_config: StackConfig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        for port in (other.getsockname()[1], 1 << 17):
            config = alone(replace(stack_config, port=port), "")
            for lines in (await failures(config), await start(config)):
                assert "cannot listen on 127.0.0.1 port " in lines[0]
                assert "choose another port" in lines[0]


@pytest.mark.parametrize(
    ("role", "name"),
    [("target", "model.safetensors"), ("target", "tokenizer.json"), ("verifier", "draft.json")],
)
async def test_file_that_the_user_may_not_read(
    stack_config: StackConfig, tmp_path: Path, role: str, name: str
) -> None:
    """As where another user trained or downloaded it."""
    hide = (model if role == "target" else probes)(lambda folder: (folder / name).chmod(0))
    if os.geteuid() == 0 and not ordinary_user():
        pytest.skip("root may read everything here")
    config = alone(hide(stack_config, tmp_path), role)
    command = (*ordinary_user(), *config.commands[role])
    lines = await start(replace(config, commands={**config.commands, role: command}))
    [line] = [line for line in lines if "level=CRITICAL" in line]
    assert name in line or str(tmp_path) in line
    assert bool(await failures(config)) == (os.geteuid() != 0)  # root's doctor may read everything
