"""docs/two-gpus.md: its commands, in its order, with the bundled pair under its models' names, over vLLM on a CPU."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.checkpoints import edit_json
from tests.vllm.support import KV_BYTES, TARGET

PAGE = (Path(__file__).resolve().parents[2] / "docs/two-gpus.md").read_text()
BLOCKS = [
    text
    for text in re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    if "make setup" not in text
]
[EXPECTED] = re.findall(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for role, name in (("draft", "1.5B"), ("target", "32B")):
        model = tmp_path / "deepseek-ai" / f"DeepSeek-R1-Distill-Qwen-{name}"
        shutil.copytree(TARGET.parent / role, model)
        edit_json(model / "config.json", max_position_embeddings=40_000)
    (tmp_path / "bin").mkdir()
    for name, words in (("semspec", "-m semspec.cli"), ("python", "")):
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("SEMSPEC_API_KEY", "sk-two-gpus")
    return tmp_path


def test_every_command_of_the_page_runs(folder: Path, unused_tcp_port: int) -> None:
    def ended(block: str) -> str:
        done = subprocess.run(
            ["sh", "-ec", block], cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    plan, measure, serve, ask = BLOCKS
    ended(plan)
    planned = folder / "two-gpus.env"
    names = re.findall(r"^(SEMSPEC_\w+=)", EXPECTED, re.MULTILINE)
    assert (
        re.findall(r"^(\w+=)", planned.read_text(), re.MULTILINE) == names
        and "# colocated, 6" in EXPECTED
    )
    assert "no CUDA device here" in ended(measure)
    smaller = {
        "DEVICE=.*": "DEVICE=cpu",
        "TOKENS=.*": "TOKENS=2048",
        "KV_BYTES=.*": f"KV_BYTES={KV_BYTES}",
    }
    for pattern, own in (smaller | {".*VLLM_OPTIONS=.*\n": ""}).items():
        planned.write_text(re.sub(pattern, own, planned.read_text()))
    begin, shown = ["sh", "-ec", f"{serve.rstrip()} --port {unused_tcp_port}"], ""
    with subprocess.Popen(
        begin, cwd=folder, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        while run.stdout and "Ctrl-C stops it" not in shown:
            line = run.stdout.readline()
            assert line, shown
            shown += line
        url = f"http://127.0.0.1:{unused_tcp_port}"
        asked = ended(
            ask.replace("http://127.0.0.1:8080", url).replace(
                "semspec chat", f"semspec chat --url {url}"
            )
        )
        os.killpg(run.pid, signal.SIGINT)
        run.communicate(timeout=60)
    assert (
        "This pair has no probes: requests that name no strategy are answered by token-level"
        in shown
    )
    ready, *answer = asked.splitlines()
    assert ready == "serving" and "".join(answer).strip()
