"""`make bench-gpu` at toy size on a CPU: every stage for real."""

import json
from pathlib import Path

from semspec.bench.gpu.__main__ import STAGES, main


def test_every_stage_runs_and_parity_holds(tmp_path: Path) -> None:
    assert main(["--scale", "tiny", "--device", "cpu", "--output", str(tmp_path)]) == 0
    stages = json.loads((tmp_path / "gpu.json").read_text())["stages"]
    assert {name: row["status"] for name, row in stages.items()} == dict.fromkeys(STAGES, "done")
    assert stages["parity"]["facts"]["holds"] and len(stages["parity"]["facts"]["rows"]) == 6
    whats = {name: {row["what"] for row in stages[name]["facts"]["rows"]} for name in ("target", "draft", "plain")}
    assert whats == {
        "target": {"decode", "prefill", "read"},
        "draft": {"decode", "prefill", "read"},
        "plain": {"decode"},
    }
    start = stages["target"]["facts"]["start"]
    assert start["runner"] == "V1" and start["kv_tokens"] > 0 and start["seconds_to_ready"] > 0
