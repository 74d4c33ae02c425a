"""What does not belong together never serves: the start fails, says why, and leaves nothing running. `semspec
doctor`, which starts nothing, fails exactly there."""

import asyncio
import json
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest

from semspec.commands.checks import Check
from semspec.commands.doctor import checks_of
from semspec.stack import Stack, StackConfig, StackError
from tests.processes import GENEROUS_S, left_alive, ordinary_user
from tests.stack.programs import SERVICE
from tests.stack.support import Pair, Running

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="package")]


async def refusal(config: StackConfig, is_seen_by_doctor: bool = True) -> StackError:
    """How a start fails, once it is sure that it left nothing behind."""
    stack = Stack(config)
    with pytest.raises(StackError) as caught:
        async with asyncio.timeout(GENEROUS_S), stack:
            pass
    assert left_alive([child.pid for child in stack.processes.values()], 0) == []
    assert "\n" not in str(caught.value)
    assert ("fail" in [check.level for check in await doctor(config)]) is is_seen_by_doctor
    return caught.value


async def doctor(config: StackConfig) -> list[Check]:
    """What `semspec doctor` says of a configuration."""
    return await asyncio.to_thread(lambda: list(checks_of(config)))


async def test_doctor_has_nothing_to_fix_where_the_stack_comes_up(stack_config: StackConfig, running: Running) -> None:
    assert await running.until_ready() == "ready"
    failures = [check for check in await doctor(stack_config) if check.level == "fail"]
    assert failures == []


def alone(config: StackConfig, role: str = "") -> StackConfig:
    """Only the service under test is real, to spare the others' start; without one, the gateway alone."""
    others = {"draft", "target", "verifier"} - {role}
    stand_ins = {other: (sys.executable, "-c", SERVICE, other.upper()) for other in others}
    return replace(config, commands={**config.commands, **stand_ins})


def with_cards(pair: Pair, folder: Path, **changes: object) -> StackConfig:
    """The pair with probes whose cards say something else."""
    copytree(pair.probes, folder)
    for card in folder.rglob("*.json"):
        card.write_text(json.dumps({**json.loads(card.read_text()), **changes}))
    return StackConfig(pair.draft, pair.target, folder / "draft.safetensors", folder / "target.safetensors", serving={})


def only_complaint(error: StackError) -> str:
    """The one line a service logged before it gave up."""
    assert "Traceback" not in error.log_tail
    (line,) = [line for line in error.log_tail.splitlines() if "level=CRITICAL" in line]
    return line


async def test_gpu_that_is_not_there_is_one_line(stack_config: StackConfig) -> None:
    config = replace(stack_config, environment={**stack_config.environment, "SEMSPEC_TARGET_DEVICE": "cuda:99"})
    error = await refusal(alone(config, "target"))
    assert "no device 'cuda:99'" in only_complaint(error) and "take 'cpu' or 'auto'" in only_complaint(error)
    [failure] = [check for check in await doctor(config) if check.level == "fail"]
    assert failure.remedy == "take 'cpu' or 'auto' as SEMSPEC_TARGET_DEVICE"


async def test_malformed_chat_template(stack_config: StackConfig, pair: Pair, tmp_path: Path) -> None:
    copytree(pair.target, tmp_path / "target")
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        if (path := tmp_path / "target" / name).exists():
            path.unlink()
    (tmp_path / "target" / "chat_template.jinja").write_text("{% for message in messages %}")
    error = await refusal(alone(replace(stack_config, target_model=tmp_path / "target"), "target"))
    assert "the chat template of" in only_complaint(error) and "is malformed in line 1" in only_complaint(error)


async def test_default_beyond_its_bounds(stack_config: StackConfig) -> None:
    error = await refusal(alone(replace(stack_config, serving={"gamma": 99})))
    assert str(error) == "gateway ended with status 2"
    assert "SEMSPEC_GATEWAY_DEFAULTS: gamma: " in error.log_tail and "Traceback" not in error.log_tail


async def test_setting_that_does_not_exist(stack_config: StackConfig) -> None:
    error = await refusal(alone(replace(stack_config, environment={"SEMSPEC_DRAFT_KVBYTES": "1"}), "draft"))
    assert "did you mean SEMSPEC_DRAFT_KV_BYTES?" in error.log_tail and "Traceback" not in error.log_tail


async def test_port_that_is_taken(stack_config: StackConfig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        error = await refusal(alone(replace(stack_config, port=other.getsockname()[1])))
    assert str(error).startswith("cannot listen on 127.0.0.1 port ")


async def test_malformed_serving_file(pair: Pair, stack_config: StackConfig, tmp_path: Path) -> None:
    copytree(pair.probes, tmp_path / "probes")
    (tmp_path / "probes" / "serving.json").write_text("{")
    draft, target = (tmp_path / "probes" / f"{role}.safetensors" for role in ("draft", "target"))
    changed = replace(stack_config, serving=None, draft_probe=draft, target_probe=target)
    error = await refusal(alone(changed))
    assert "serving.json" in str(error) and str(error).endswith("train the probes again, or delete it")


async def test_swapped_probes(stack_config: StackConfig) -> None:
    swapped = replace(stack_config, draft_probe=stack_config.target_probe, target_probe=stack_config.draft_probe)
    error = await refusal(alone(swapped, "verifier"))
    assert str(error).startswith("verifier ended with status 1")
    assert "the draft probe wants 'states+surprisal'" in only_complaint(error)
    assert "swapped" in only_complaint(error)


async def test_probes_of_another_state_convention(pair: Pair, tmp_path: Path) -> None:
    error = await refusal(alone(with_cards(pair, tmp_path / "old", state_convention="states-v0"), "verifier"))
    assert str(error).startswith("verifier ended with status 1")
    assert "states 'states-v0'" in only_complaint(error) and "retrain it" in only_complaint(error)


async def test_alternative_probes_of_another_pair(pair: Pair, tmp_path: Path) -> None:
    config = with_cards(pair, tmp_path / "whole")
    card = tmp_path / "whole" / "alternatives" / "surprisal" / "target.json"
    card.write_text(json.dumps({**json.loads(card.read_text()), "fingerprint": "another"}))
    error = await refusal(alone(config, "verifier"))
    assert str(error).startswith("verifier ended with status 1")
    assert "alternative probes 'surprisal': the target probe was trained on" in only_complaint(error)
    assert "SEMSPEC_VERIFIER_ALTERNATIVES" in only_complaint(error)


async def test_model_that_does_not_exist(stack_config: StackConfig, tmp_path: Path) -> None:
    error = await refusal(alone(replace(stack_config, target_model=tmp_path / "nowhere"), "target"))
    assert str(error).startswith("target ended with status 1")
    assert "nowhere" in only_complaint(error) and "give a checkpoint's folder or a hub id" in only_complaint(error)


async def test_probes_of_another_pair(pair: Pair, tmp_path: Path) -> None:
    error = await refusal(with_cards(pair, tmp_path / "other", fingerprint="another"))
    assert "the verifier's draft probe was trained on model another" in str(error)
    assert str(error).endswith("start the verifier with that model's probe")


@pytest.mark.parametrize(
    ("role", "name"), [("target", "model.safetensors"), ("target", "tokenizer.json"), ("verifier", "draft.json")]
)
async def test_file_that_the_user_may_not_read(pair: Pair, tmp_path: Path, role: str, name: str) -> None:
    """As where another user trained or downloaded it."""
    config = with_cards(pair, tmp_path / "probes")
    config = replace(config, target_model=copytree(pair.target, tmp_path / "target"))
    (tmp_path / ("target" if role == "target" else "probes") / name).chmod(0)
    if os.geteuid() == 0 and not ordinary_user():
        pytest.skip("root may read everything here")
    config = alone(config, role)
    command = (*ordinary_user(), *config.commands[role])
    of_user = replace(config, commands={**config.commands, role: command})
    error = await refusal(of_user, is_seen_by_doctor=os.geteuid() != 0)  # root's doctor may read everything
    assert str(error).startswith(f"{role} ended with status 1")
    assert name in only_complaint(error) or str(tmp_path) in only_complaint(error)
