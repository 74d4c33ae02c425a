"""docs/tutorial.md: its commands, in its order, on small models of the classes and under the names that it has."""

import json
import re
import shlex
import shutil
import signal
import subprocess
from itertools import islice, pairwise
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from semspec.engine.checkpoint import load_tokenizer
from semspec_demo.probe_data import questions
from tests.commands.support import command
from tests.helpers.processes import GENEROUS_S

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples/demo/semspec_demo"
BLOCKS = re.findall(
    r"^```(\w+)\n(.*?)^```", (ROOT / "docs/tutorial.md").read_text(), re.MULTILINE | re.DOTALL
)
TEMPLATE = """\
{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n\n' }}{% endif %}"""
"""As Qwen's instruct models have it; the bundled models' answers begin with their reasoning."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Models and questions under the tutorial's names, and `pair.yaml`."""
    [pair] = [text for language, text in BLOCKS if language == "yaml"]
    (tmp_path / "pair.yaml").write_text(pair)
    for role, name in (("draft", "Qwen2.5-0.5B-Instruct"), ("target", "Qwen2.5-1.5B-Instruct")):
        tokenizer = load_tokenizer(str(DEMO / "pair" / role))
        tokenizer.chat_template = TEMPLATE
        for one in (AutoModelForCausalLM.from_pretrained(DEMO / "pair" / role), tokenizer):
            one.save_pretrained(tmp_path / "Qwen" / name)
    shutil.copytree(ROOT / "tests/helpers/nli", tmp_path / "cross-encoder" / "nli-deberta-v3-base")
    data = tmp_path / "openai" / "gsm8k"
    data.mkdir(parents=True)
    files = [{"split": split, "path": f"{split}.jsonl"} for split in ("train", "test")]
    configs = json.dumps([{"config_name": "main", "data_files": files}])
    (data / "README.md").write_text(f"---\nconfigs: {configs}\n---\n")
    for split, source, number in (("train", "probe", 24), ("test", "report", 6)):
        rows = map(json.dumps, islice(questions(split=source), number))
        (data / f"{split}.jsonl").write_text("\n".join(rows))
    prompts = [{"question": row["question"]} for row in islice(questions(split="probe"), 8)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    monkeypatch.setenv("SEMSPEC_API_KEY", "sk-tutorial")
    monkeypatch.setenv(
        "HF_DATASETS_CACHE", str(tmp_path / "cache")
    )  # which knows files by their names
    return tmp_path


def served(folder: Path, words: list[str], chat: list[str], port: int) -> str:
    """What `semspec serve` prints until it answers; then the tutorial's question is asked, and Ctrl-C pressed."""
    shown, serve = "", command([*words, f"--port={port}"])
    with subprocess.Popen(serve, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        while server.stdout and "Ctrl-C stops it" not in shown:
            line = server.stdout.readline()
            assert line, shown
            shown += line
        assert ended(folder, [*chat, f"--url=http://127.0.0.1:{port}"]).strip()
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=GENEROUS_S)
    return shown


def ended(folder: Path, words: list[str]) -> str:
    """The output of a command that ends by itself, and well."""
    done = subprocess.run(command(words), cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_every_command_of_the_tutorial_runs(folder: Path, unused_tcp_port: int) -> None:
    lines = [
        line
        for language, text in BLOCKS
        if language == "sh"
        for line in text.replace("\\\n", " ").splitlines()
    ]
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("semspec ")]
    plain_chat, likelihood_chat = (words for words in commands if words[0] == "chat")
    bare, calibrate, calibrated, run, probed = (
        served(
            folder,
            words,
            following if following == likelihood_chat else plain_chat,
            unused_tcp_port,
        )
        if words[0] == "serve"
        else ended(folder, [*words, "--threads=1"])
        for words, following in pairwise([*commands, []])
        if words[0] != "chat"
    )
    assert "has no probes" in bare and "token-level" in bare
    assert (
        "has no probes" not in calibrated and "verifier" not in calibrated and "verifier" in probed
    )
    assert "the first answer took" in calibrate and "drafts accepted" in calibrate
    assert run.index("together") < run.index("Ctrl-C stops; the same")
    assert (folder / ".work/probes-qwen-laptop/report/report.html").is_file()
