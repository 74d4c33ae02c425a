"""The GPU bench without vLLM: its record, the lower bounds, the shapes. tests/vllm runs all of its stages."""

import json
import signal
import subprocess
import sys
import tarfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from semspec_bench.gpu import __main__ as gpu
from semspec_bench.gpu.record import Record, bundle, summary
from semspec_bench.gpu.shapes import PAPER, QUARTER_HOUR, TINY
from semspec_bench.gpu.timing import PeakRates, with_floors


def on_disk(folder: Path) -> dict[str, Any]:
    stages: dict[str, Any] = json.loads((folder / "gpu.json").read_text())["stages"]
    return stages


@pytest.mark.slow
def test_light_is_measured_without_vllm_and_the_other_stages_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "find_spec", lambda _: None)
    assert gpu.main(["--scale", "tiny", "--device", "cpu", "--output", str(tmp_path)]) == 0
    light, *others = on_disk(tmp_path).values()
    assert light["status"] == "done" and light["facts"]["bandwidth_bytes_per_s"] > 0
    assert len(others) == 6
    assert all(
        row["status"] == "skipped" and "TORCH_VARIANT=cuda" in row["reason"] for row in others
    )
    with tarfile.open(tmp_path / "bundle.tar.gz") as tar:
        assert tar.getnames() == ["gpu.json", "summary.txt"]
        assert {(one.uid, one.uname, one.mtime) for one in tar} == {(0, "", 0)}


def test_quarter_of_an_hour_has_every_row_of_the_paper_s_sizes_within_its_limits() -> None:
    limits = {name: limit for name, (_, limit) in gpu.QUARTER_HOUR_STAGES.items()}
    on_one_gpu = sum(limit for name, limit in limits.items() if name != "tp2")
    assert limits.keys() == gpu.STAGES.keys() and on_one_gpu <= 60 * gpu.MINUTES["quarter-hour"]
    for sizes, paper in (
        (QUARTER_HOUR.target_sizes, PAPER.target_sizes),
        (QUARTER_HOUR.draft_sizes, PAPER.draft_sizes),
    ):
        assert replace(sizes, num_repeats=paper.num_repeats) == paper


def test_stage_that_is_killed_at_its_limit_keeps_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {
        "rows": [{"what": "read", "streams": 1, "tokens": 4, "context": 8, "ms": {"median": 2.0}}]
    }

    def killed(*_: object) -> None:
        (tmp_path / "target.json").write_text(json.dumps(facts))

    monkeypatch.setattr(gpu, "_run_group", killed)
    monkeypatch.setattr(gpu, "find_spec", lambda _: True)
    chosen = gpu._parser().parse_args(["--scale", "tiny"])
    row = gpu.run_stage("target", chosen, tmp_path, Record(tmp_path, {}, 60), 7)
    assert row == {"status": "failed", "facts": facts, "reason": "it was killed after 7 s"}


def test_process_is_killed_at_its_limit_with_its_group(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        assert gpu._run_group(["sh", "-c", "sleep 60 & wait"], log.fileno(), 0.2) is None
        assert gpu._run_group(["sh", "-c", "exit 3"], log.fileno(), 10) == 3


def test_record_on_disk_is_complete_while_a_later_stage_runs(tmp_path: Path) -> None:
    def second(limit_s: float) -> dict[str, Any]:
        assert on_disk(tmp_path)["first"]["facts"] == {
            "value": 1
        }  # as a kill at this moment would leave it
        assert limit_s <= 5
        return {"status": "failed", "reason": "out of memory"}

    record = Record(tmp_path, {"environment": {"device": "none"}}, 60)
    record.stage("first", 0, 5, lambda _: {"status": "done", "facts": {"value": 1}})
    record.stage("second", 0, 5, second)
    record.stage("third", 61, 90, second)
    assert [row["status"] for row in on_disk(tmp_path).values()] == ["done", "failed", "skipped"]


def test_same_run_keeps_what_is_done_and_another_device_does_not(tmp_path: Path) -> None:
    asked: list[str] = []

    def measured(name: str) -> dict[str, Any]:
        asked.append(name)
        return {"status": "failed" if asked == ["first", "second"] else "done"}

    for device, expected in (
        ("one", ["first", "second"]),
        ("one", ["second"]),
        ("other", ["first", "second"]),
    ):
        asked.clear()
        (tmp_path / "pair-mine" / "run").mkdir(parents=True, exist_ok=True)
        record = Record(tmp_path, {"environment": {"device": device}}, 60)
        for name in ("first", "second"):
            record.stage(name, 0, 5, lambda _, name=name: measured(name))  # type: ignore[misc]
        assert asked == expected and list(on_disk(tmp_path)) == ["first", "second"]
        assert (tmp_path / "pair-mine").exists() == (device == "one")  # answers are a device's, too


@pytest.mark.slow
def test_stage_ends_with_a_run_that_is_killed(tmp_path: Path) -> None:
    code = "import sys; from semspec_bench.gpu.__main__ import _run_group; _run_group(sys.argv[1:], 1, 60)"
    stage = ["sh", "-c", f"echo $$ > {tmp_path}/pid; kill -9 $PPID; exec sleep 60"]
    assert (
        subprocess.run([sys.executable, "-c", code, *stage], check=False).returncode
        == -signal.SIGKILL
    )
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int((tmp_path / "pid").read_text())).wait(30)


def test_bundle_has_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("SHLVL", "1")
    record = Record(tmp_path, {}, 60)
    reason = "401 of hf_secret in /home/somebody/models, 1 of 2"
    record.stage("answers", 0, 5, lambda _: {"status": "failed", "reason": reason})
    for name in (
        "summary.txt",
        "answers.log",
        "pair-mine/answers.jsonl.gz",
        "pair-mine/run/records.jsonl",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    with tarfile.open(bundle(tmp_path)) as tar:
        assert tar.getnames() == ["gpu.json", "summary.txt", "pair-mine/answers.jsonl.gz"]
        read = tar.extractfile("gpu.json")
        assert read and "401 of $HF_TOKEN in ~/models, 1 of 2" in read.read().decode()


def test_floor_is_the_larger_of_bytes_and_products() -> None:
    shape = TINY.target
    num_weights = shape.num_body_parameters + shape.num_head_parameters
    slow_memory, slow_units = PeakRates(1e6, 1e30), PeakRates(1e30, 1e9)
    decode = {"what": "decode", "streams": 2, "tokens": 1, "context": 9}
    kept_bytes = 2 * 10 * shape.kv_bytes_per_token
    assert slow_memory.floor_ms(shape, decode) == pytest.approx(
        (2 * num_weights + kept_bytes) / 1e6 * 1e3
    )
    read = {"what": "read", "streams": 1, "tokens": 3, "context": 0}
    attention = 4 * shape.num_layers * shape.hidden_size * (1 + 2 + 3)
    assert slow_units.floor_ms(shape, read) == pytest.approx(
        (2 * num_weights * 3 + attention) / 1e9 * 1e3
    )
    facts = with_floors({"rows": [decode | {"ms": {"median": 1e6}}]}, shape, slow_memory)
    assert 0 < facts["rows"][0]["share_of_floor"] < 1
    [line] = summary({"target": {"facts": facts}})
    assert "of the floor" in line and "2 x 1 tokens after 9" in line
