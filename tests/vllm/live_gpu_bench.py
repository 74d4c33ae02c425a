"""`make bench-gpu` at toy size on a CPU: every stage for real, killed in the middle and continued."""

import json
import subprocess
import sys
import tarfile
import time
from pathlib import Path

from semspec_bench.gpu.__main__ import STAGES, main
from semspec_bench.gpu.pair import STRATEGIES


def test_every_stage_runs_after_a_kill_and_what_is_compared_agrees(tmp_path: Path) -> None:
    arguments = ["--scale", "tiny", "--device", "cpu", "--output", str(tmp_path)]
    with subprocess.Popen([sys.executable, "-m", "semspec_bench.gpu", *arguments]) as run:
        while not (tmp_path / "parity.json").exists():  # vLLM has started
            assert run.poll() is None
            time.sleep(0.1)
        run.kill()
    light = json.loads((tmp_path / "gpu.json").read_text())["stages"]["light"]
    assert main(arguments) == 0
    stages = json.loads((tmp_path / "gpu.json").read_text())["stages"]
    expected = dict.fromkeys(STAGES, "done") | {"tp2": "skipped"}
    assert {name: row["status"] for name, row in stages.items()} == expected
    assert stages["light"] == light
    rows = {name: stage.get("facts", {}).get("rows", []) for name, stage in stages.items()}
    assert len(rows["parity"]) == 7 and all(row["holds"] for row in rows["parity"])
    ours = {"self-test", "decode", "prefill", "read", "planned, keys and values"}
    assert {row["what"] for row in rows["target"]} == {row["what"] for row in rows["draft"]} == ours
    assert {row["what"] for row in rows["plain"]} == {"decode"}
    assert {row["what"]: row["num_answers"] for row in rows["answers"]} == dict.fromkeys(
        STRATEGIES, 2
    )
    assert stages["target"]["facts"]["start"]["runner"] == "V1"
    with tarfile.open(tmp_path / "bundle.tar.gz") as tar:
        assert tar.getnames() == ["gpu.json", "summary.txt", "pair-pair/answers.jsonl.gz"]
