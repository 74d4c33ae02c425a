"""`semspec doctor` on a healthy tree, and each fault named."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import constants

from semspec.commands.checks import Check
from semspec.commands.checks.processes import check_processes
from semspec.release import load_release
from semspec.stack import BUNDLED_PAIR, StackConfig
from tests.commands.support import exit_code
from tests.helpers.hub import serving, use

pytestmark = pytest.mark.slow
Checks = dict[str, Check]


@pytest.fixture(autouse=True)
def own_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDIS_URL", raising=False)


def doctor(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, Checks]:
    """Exit code and checks."""
    code = exit_code("doctor", "--json", "--port", "0", *words)
    body = json.loads(capsys.readouterr().out)
    assert body["ok"] is (code == 0)
    return code, {check["name"]: Check(**check) for check in body["checks"]}


def only_failure(result: tuple[object, Checks]) -> Check:
    code, checks = result
    assert code == 1
    [failure] = [check for check in checks.values() if check.level == "fail"]
    assert failure.remedy
    return failure


def test_healthy_tree_has_one_warning(capsys: pytest.CaptureFixture[str]) -> None:
    code, checks = doctor(capsys)
    assert code == 0
    assert {"python", "torch", "cores", "memory", "pair", "port", "redis"} <= set(checks)
    assert "Qwen2ForCausalLM, fast decoder, float32, 7.4 M weights" in checks["target"].message
    assert all(
        "with plain transformers too" in checks[f"{role} test"].message
        for role in ("draft", "target")
    )
    assert {name: check.level for name, check in checks.items() if check.level != "ok"} == {
        "verifier": "warn"
    }
    verifier = checks["verifier"]
    assert "By the data's own truth: Good enough to serve." in verifier.message
    assert "'target'" in verifier.remedy
    assert (
        'By "the target says it", the criterion of pairs without a truth: Not good enough'
        in verifier.message
    )
    assert "AUROC of p/q is 0.960 ± 0.010, the bar is at least 0.985" in verifier.message


def test_pair_without_probes_is_ok(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    release = load_release(BUNDLED_PAIR / "probes")
    release = replace(release, draft_probe="", target_probe="", projections=(), rule={})
    models = {
        role: replace(getattr(release, role), model=release.model_location(role))
        for role in ("draft", "target")
    }
    shutil.copy(BUNDLED_PAIR / "probes" / "likelihood.json", tmp_path)
    replace(release, **models).save(tmp_path)
    code, checks = doctor(capsys, "--pair", str(tmp_path))
    assert code == 0 and "verifier" not in checks
    assert checks["gateway"].message == "its settings are valid, the release is semspec-demo@1"
    message = checks["pair"].message
    assert message.startswith(
        "the models are served without probes; likelihood by default; this pair supports "
    )
    assert message.endswith("but not 'semantic' (no probes), 'retrieval' (no datastore)")


def test_audit_and_bad_probes_get_remedies(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMSPEC_GATEWAY_AUDIT", '{"share": 0.1}')
    failure = only_failure(doctor(capsys))
    assert failure.name == "pair" and "SEMSPEC_VERIFIER_EQUIVALENCE" in failure.remedy
    monkeypatch.setenv("SEMSPEC_VERIFIER_EQUIVALENCE", "card")
    monkeypatch.setattr(StackConfig, "bad_verdicts", "Missed: AUROC.")
    [warning] = [check for check in doctor(capsys)[1].values() if check.level != "ok"]
    assert warning.name == "verifier"
    assert warning.level == "warn"
    assert "report says: Missed: AUROC." in warning.message


@pytest.mark.parametrize(
    ("words", "name", "message", "remedy"),
    [
        (
            ["--draft-model", str(BUNDLED_PAIR / "target"), "--pair", str(BUNDLED_PAIR / "probes")],
            "draft",
            "the release semspec-demo@1 has the draft ../draft (sha256-full:",
            "serve that model, or the release of this one",
        ),
        (["--pair", "{}/probes"], "pair", "needs a datastore", "SEMSPEC_DRAFT_DATASTORE"),
    ],
)
def test_fault_is_named_with_its_remedy(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    words: list[str],
    name: str,
    message: str,
    remedy: str,
) -> None:
    shutil.copytree(BUNDLED_PAIR / "probes", tmp_path / "probes")
    replace(load_release(BUNDLED_PAIR / "probes"), rule={"strategy": "retrieval"}).save(
        tmp_path / "probes"
    )
    (tmp_path / "draft").symlink_to(BUNDLED_PAIR / "draft")
    (tmp_path / "target").symlink_to(BUNDLED_PAIR / "target")
    failure = only_failure(doctor(capsys, *(word.format(tmp_path) for word in words)))
    assert failure.name == name and message in failure.message and remedy in failure.remedy


def test_dead_redis(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://:hush@127.0.0.1:1/0")
    failure = only_failure(doctor(capsys))
    assert (
        failure.name == "redis" and "REDIS_URL" in failure.message and "hush" not in failure.message
    )


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
        (cut_off, "fail", "draft/model.safetensors: "),
        (pickled, "fail", "has no safetensors weights"),
        (of_architecture("HyenaForNothing", "hyena-nothing"), "fail", "hyena-nothing"),
        (of_architecture("ViTModel", "vit"), "fail", "ViTModel"),
        (of_architecture("GPT2LMHeadModel", "gpt2"), "ok", "GPT2LMHeadModel, transformers"),
    ],
)
def test_folder_of_a_model_is_looked_at(
    tmp_path: Path, change: Callable[[Path], object], level: str, words: str
) -> None:
    folder = shutil.copytree(BUNDLED_PAIR / "draft", tmp_path / "draft")
    change(folder)
    check = next(check_processes(StackConfig(draft_model=folder, pair=None)))
    assert check.name == "draft" and check.level == level and words in check.message


def test_hub_model_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with serving({"a/draft": BUNDLED_PAIR / "draft"}) as endpoint:
        use(endpoint, monkeypatch)
        check = next(check_processes(StackConfig(draft_model="a/draft")))
    assert check.level == "warn"
    assert "1.5 MB" in check.message
    assert "hf download a/draft" in check.remedy
    check = next(check_processes(StackConfig(draft_model="a/draft")))
    assert check.level == "fail" and "does not answer" in check.message


def test_memory_counts(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    _, checks = doctor(capsys)
    assert (
        "keys and values up to 8.6 GB" in checks["memory"].message
    )  # two services, 4 GiB each by default
    monkeypatch.setenv("SEMSPEC_DRAFT_KV_BYTES", str(1 << 30))
    monkeypatch.setenv("SEMSPEC_TARGET_KV_BYTES", str(512 << 40))
    _, checks = doctor(capsys)
    assert f"up to {((512 << 40) + (1 << 30)) / 1e9:.1f} GB" in checks["memory"].message
    assert checks["memory"].level == "warn" and "SEMSPEC_TARGET_KV_BYTES" in checks["memory"].remedy
