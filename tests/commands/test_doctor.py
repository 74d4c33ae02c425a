"""`semspec doctor` on a healthy tree, and each fault named."""

import json
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from semspec import cli
from semspec.commands.checks import Check
from semspec.commands.checks.environment import check_requirement
from semspec.commands.checks.models import count_weights, look_at
from semspec.stack import BUNDLED_PAIR
from tests.commands.support import Live

pytestmark = pytest.mark.slow
Checks = dict[str, Check]


@pytest.fixture(autouse=True)
def own_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDIS_URL", raising=False)


def doctor(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, Checks]:
    """Exit code and checks."""
    with pytest.raises(SystemExit) as end:
        cli.main(["doctor", "--json", "--port", "0", *words])
    body = json.loads(capsys.readouterr().out)
    assert body["ok"] is (end.value.code == 0)
    return end.value.code, {check["name"]: Check(**check) for check in body["checks"]}


def only_failure(result: tuple[object, Checks]) -> Check:
    code, checks = result
    assert code == 1
    [failure] = [check for check in checks.values() if check.level == "fail"]
    assert failure.remedy
    return failure


def test_healthy_tree_and_gateway_have_nothing_to_fix(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    code, checks = doctor(capsys, *live.options)
    assert code == 0
    assert {"python", "torch", "cores", "draft model", "target probe", "memory", "port", "redis"} <= set(checks)
    assert "fast decoder" in checks["target model"].message
    assert checks["gateway"].message.endswith("ms") and "semspec-demo:target" in checks["models"].message
    assert checks["ready"].message == "ready"


def test_lines_for_people_name_level_check_and_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="1"):
        cli.main(["doctor", "--port", "0", "--draft-model", "/nowhere"])
    lines = capsys.readouterr().out.splitlines()
    [line] = [line for line in lines if line.startswith("fail")]
    assert re.fullmatch("fail  draft model .*/nowhere -> .*--draft-model.*", line)


def test_probe_of_another_model_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    failure = only_failure(doctor(capsys, "--draft-model", str(BUNDLED_PAIR / "target")))
    assert failure.name == "pair" and "the verifier's draft probe was trained on model sha256-full:" in failure.message


def test_unreadable_probe_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    failure = only_failure(doctor(capsys, "--target-probe", str(tmp_path / "target.safetensors")))
    assert failure.name == "probes" and "target.safetensors" in failure.message


def test_broken_serving_file_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shutil.copytree(BUNDLED_PAIR / "probes", tmp_path / "probes")
    (tmp_path / "probes" / "serving.json").write_text("{")
    failure = only_failure(doctor(capsys, "--target-probe", str(tmp_path / "probes" / "target.safetensors")))
    assert failure.name == "serving" and "serving.json" in failure.message


def test_pair_without_probes_has_nothing_to_fix(capsys: pytest.CaptureFixture[str]) -> None:
    code, checks = doctor(capsys, "--likelihood", str(BUNDLED_PAIR / "probes" / "likelihood.json"))
    assert code == 0 and checks["probes"].message.startswith("none") and "target probe" not in checks
    assert checks["likelihood"].message.startswith("of draft and target, from 100 questions")


def test_foreign_and_damaged_calibrations_are_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = Path(shutil.copy(BUNDLED_PAIR / "probes" / "likelihood.json", tmp_path / "likelihood.json"))
    options = ("--likelihood", str(path))
    foreign = only_failure(doctor(capsys, *options, "--draft-model", str(BUNDLED_PAIR / "target")))
    assert foreign.name == "pair" and "the likelihood calibration is for the draft draft" in foreign.message
    path.write_text(path.read_text()[:-9])
    damaged = only_failure(doctor(capsys, *options))
    assert damaged.name == "likelihood" and str(path) in damaged.message and "train calibrate" in damaged.remedy


def test_taken_port_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        failure = only_failure(doctor(capsys, "--port", str(other.getsockname()[1])))
    assert failure.name == "port" and "Address already in use" in failure.message


def test_dead_redis_is_named_and_its_password_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://:hush@127.0.0.1:1/0")
    failure = only_failure(doctor(capsys))
    assert failure.name == "redis" and "REDIS_URL" in failure.message and "hush" not in failure.message


def test_dead_gateway_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    failure = only_failure(doctor(capsys, "--url", "http://127.0.0.1:1"))
    assert failure.name == "gateway" and "semspec serve" in failure.remedy


def test_gateway_that_wants_a_key_is_named(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    failure = only_failure(doctor(capsys, "--url", live.url, "--api-key", "sk-wrong"))
    assert failure.name == "models" and "this API key is not known" in failure.message
    assert "SEMSPEC_API_KEY" in failure.remedy and "sk-wrong" not in failure.message


def test_default_strategy_that_the_pair_cannot_serve_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shutil.copytree(BUNDLED_PAIR / "probes", tmp_path / "probes")
    (tmp_path / "probes" / "serving.json").write_text('{"strategy": "retrieval"}')
    probes = [f"--{role}-probe={tmp_path}/probes/{role}.safetensors" for role in ("draft", "target")]
    failure = only_failure(doctor(capsys, *probes))
    assert failure.name == "pair" and "needs a datastore" in failure.message
    assert "SEMSPEC_DRAFT_DATASTORE" in failure.remedy


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("SEMSPEC_TARGET_KV_BYTES", "much", "target: SEMSPEC_TARGET_KV_BYTES: Input should be a valid integer"),
        ("SEMSPEC_VERIFIER_DEVICES", "cpu", "did you mean SEMSPEC_VERIFIER_DEVICE?"),
        ("SEMSPEC_DRAFT_DEVICE", "cuda:99", "no device 'cuda:99' for the draft"),
        ("SEMSPEC_GATEWAY_MAX_N", "0", "gateway: SEMSPEC_GATEWAY_MAX_N"),
    ],
)
def test_setting_that_a_process_would_refuse_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, variable: str, value: str, told: str
) -> None:
    monkeypatch.setenv(variable, value)
    failure = only_failure(doctor(capsys))
    assert failure.name == "settings" and told in failure.message


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def cut_off(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])


def of_architecture(name: str, model_type: str) -> Callable[[Path], object]:
    content = json.dumps({"architectures": [name], "model_type": model_type})
    return lambda folder: (folder / "config.json").write_text(content)


@pytest.mark.parametrize(
    ("change", "level", "words"),
    [
        (cut_off, "fail", "model.safetensors is incomplete"),
        (pickled, "fail", "has no safetensors weights"),
        (of_architecture("HyenaForNothing", "hyena-nothing"), "fail", "HyenaForNothing (hyena-nothing) is not known"),
        (of_architecture("GPT2LMHeadModel", "gpt2"), "ok", "GPT2LMHeadModel, transformers"),
    ],
)
def test_folder_of_a_model_is_looked_at(
    tmp_path: Path, change: Callable[[Path], object], level: str, words: str
) -> None:
    folder = Path(shutil.copytree(BUNDLED_PAIR / "draft", tmp_path / "draft"))
    change(folder)
    check = look_at("draft", str(folder)).check
    assert check.level == level and words in check.message


def test_hub_model_that_is_not_here_is_a_warning() -> None:
    check = look_at("target", "no-such-owner/no-such-model").check
    assert check.level == "warn" and "hf download no-such-owner/no-such-model" in check.remedy


def test_weights_are_counted_from_their_headers() -> None:
    from safetensors.torch import load_file

    weights = load_file(BUNDLED_PAIR / "draft" / "model.safetensors")
    assert count_weights(BUNDLED_PAIR / "draft") == sum(tensor.numel() for tensor in weights.values())


@pytest.mark.parametrize(
    ("requirement", "level"),
    [
        ("pydantic>=2.12", None),
        ("pydantic>=99", "fail"),
        ("protobuf<5,>=4", "fail"),
        ("torch>=2.10", None),  # its version has a local part
        ('no-such-package>=1; extra == "gateway"', "fail"),
        ('no-such-package>=1; extra == "cli"', "warn"),
        ('no-such-package>=1; extra == "training"', None),
        ('no-such-package>=6.2; python_version < "3.13" and extra == "demo"', None),
    ],
)
def test_requirement_is_held_against_what_is_installed(requirement: str, level: str | None) -> None:
    check = check_requirement(requirement)
    assert (check and check.level) == level


def test_memory_counts_the_keys_and_values_that_are_set(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, checks = doctor(capsys)
    assert "keys and values up to 8.6 GB" in checks["memory"].message  # two services, 4 GiB each by default
    monkeypatch.setenv("SEMSPEC_DRAFT_KV_BYTES", str(1 << 30))
    monkeypatch.setenv("SEMSPEC_TARGET_KV_BYTES", str(512 << 40))
    _, checks = doctor(capsys)
    assert f"up to {((512 << 40) + (1 << 30)) / 1e9:.1f} GB" in checks["memory"].message
    assert checks["memory"].level == "warn" and "SEMSPEC_TARGET_KV_BYTES" in checks["memory"].remedy
