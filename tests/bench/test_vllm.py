"""The runner through vLLM, with a small program in the place of its interpreter and server."""

import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from semspec.engine.checkpoint import load_tokenizer
from semspec.stack.config import BUNDLED_PAIR
from semspec.types import Message
from semspec_bench.configuration import parse
from semspec_bench.runners.protocol import Ask, NotApplicable, RunnerError
from semspec_bench.runners.vllm import VllmServers, open_vllm, write_tokenizer
from semspec_demo.problems import make_problem
from tests.helpers.processes import is_running, left_alive

pytestmark = pytest.mark.slow
STAND_IN = """#!{python}
import json, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer

if "-c" in sys.argv:
    sys.exit(print({has_gpu}))
{at_start}
engine, num_asked = subprocess.Popen(["sleep", "600"]), 0

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(200, {{}})

    def do_POST(self):
        global num_asked
        num_asked += 1
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        {at_question}
        choice = {{"message": {{"content": json.dumps(body)}}, "finish_reason": "length"}}
        self.answer(200, {{"choices": [choice], "usage": {{"prompt_tokens": 5, "completion_tokens": num_asked}}}})

    def answer(self, status, body):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""

BENCH = """
import asyncio, sys
from pathlib import Path
from tests.bench.test_vllm import BUNDLED_PAIR, asked, open_vllm

async def main():
    async with open_vllm(BUNDLED_PAIR, Path(sys.argv[1])) as runner:
        await runner.ask(asked("vllm/target"))
        print(*runner.processes().values(), flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


def asked(label: str, temperature: float = 0.0) -> Ask:
    messages = (Message("user", "How many pens?"),)
    return Ask(messages, parse(label), temperature, top_p=0.95, seed=7, max_tokens=50)


def stand_in(
    folder: Path, at_start: str = "", at_question: str = "pass", has_gpu: bool = False
) -> Path:
    """A program in the place of an interpreter with vLLM."""
    path = folder / "python"
    path.write_text(
        STAND_IN.format(
            python=sys.executable, at_start=at_start, at_question=at_question, has_gpu=int(has_gpu)
        )
    )
    path.chmod(0o755)
    return path


def option(command: list[str], name: str) -> Any:
    return command[command.index(name) + 1]


def test_command_follows_the_model_and_the_device(tmp_path: Path) -> None:
    python = Path("/vllm/bin/python")
    on_cpu = VllmServers(BUNDLED_PAIR, python, False, tmp_path).command(parse("vllm/target"), 4711)
    assert on_cpu[0] == str(python)
    assert option(on_cpu, "serve") == str(BUNDLED_PAIR / "target")
    assert (option(on_cpu, "--port"), option(on_cpu, "--max-model-len")) == ("4711", "4096")
    assert option(on_cpu, "--dtype") == "float32"
    assert not any("eager" in one for one in on_cpu), "compiled, as vLLM is by default"
    # Two windows of keys and values: 36 layers of 128 numbers.
    assert int(option(on_cpu, "--kv-cache-memory-bytes")) == 2 * 4096 * 36 * 2 * 128 * 4
    on_gpu = VllmServers(BUNDLED_PAIR, python, True, tmp_path).command(parse("vllm/target"), 4711)
    assert option(on_gpu, "--dtype") == "bfloat16"


def test_command_of_a_server_extends_that_of_vllm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMSPEC_TARGET_MAX_CONTEXT_TOKENS", "1024")
    servers = {"two": '{vllm} -tp 2 --speculative-config \'{"model": "{draft}"}\' --port {port}'}
    site = VllmServers(BUNDLED_PAIR, Path("/vllm/bin/python"), True, tmp_path, servers)
    plain, [shell, flag, command] = (
        site.command(parse(label), 4711) for label in ("vllm/target", "server/two")
    )
    assert (shell, flag) == ("/bin/sh", "-c") and option(plain, "--max-model-len") == "1024"
    speculation = json.dumps({"model": str(BUNDLED_PAIR / "draft")})
    more = ["-tp", "2", "--speculative-config", speculation, "--port", "4711"]
    assert shlex.split(command) == plain + more


async def test_server_of_a_pair_file_answers_and_one_that_cannot_start_is_not_applicable(
    tmp_path: Path,
) -> None:
    other = stand_in(tmp_path)
    servers = {"other": f"exec {other} --port {{port}}", "absent": 'cd "${NOWHERE:?set NOWHERE}"'}
    async with open_vllm(BUNDLED_PAIR, Path(sys.executable), servers) as runner:
        outcome = await runner.ask(asked("server/other"))
        assert json.loads(outcome.text)["messages"][0]["content"] == "How many pens?"
        with pytest.raises(NotApplicable, match="set NOWHERE"):
            await runner.ask(asked("server/absent"))


def test_written_tokenizer_reads_as_ours_where_the_checkpoint_itself_does_not(
    tmp_path: Path,
) -> None:
    write_tokenizer(BUNDLED_PAIR / "target", tmp_path)
    ours, text = load_tokenizer(str(BUNDLED_PAIR / "target")), make_problem(3).question
    theirs = AutoTokenizer.from_pretrained(str(tmp_path))
    assert theirs.encode(text) == ours.encode(text)
    assert theirs.chat_template == ours.chat_template is not None
    assert AutoTokenizer.from_pretrained(str(BUNDLED_PAIR / "target")).encode(text) != ours.encode(
        text
    )


@pytest.mark.parametrize("has_gpu", [False, True])
async def test_request_has_seed_only_on_a_gpu(tmp_path: Path, has_gpu: bool) -> None:
    ask = asked("vllm/target", temperature=0.6)
    async with open_vllm(BUNDLED_PAIR, stand_in(tmp_path, has_gpu=has_gpu)) as runner:
        outcome = await runner.ask(ask)
    assert json.loads(outcome.text) == {
        "model": "pair",
        "messages": [{"role": "user", "content": "How many pens?"}],
        "temperature": 0.6,
        "top_p": 0.95,
        "max_tokens": 50,
    } | ({"seed": 7} if has_gpu else {})
    assert outcome.finish_reason == "length"
    assert outcome.num_prompt_tokens == 5
    assert outcome.num_tokens == 1
    assert outcome.latency_s > 0


async def test_label_has_one_server_which_ends_with_the_runner(tmp_path: Path) -> None:
    async with open_vllm(BUNDLED_PAIR, stand_in(tmp_path)) as runner:
        assert runner.processes() == {}
        assert (await runner.ask(asked("vllm/target"))).num_tokens == 1
        assert (await runner.ask(asked("vllm/target"))).num_tokens == 2
        assert (await runner.ask(asked("vllm/ngram"))).num_tokens == 1
        processes = runner.processes()
        assert list(processes) == [
            "vllm/target",
            "vllm/target sleep",
            "vllm/ngram",
            "vllm/ngram sleep",
        ]
        assert all(is_running(pid) for pid in processes.values())
    assert left_alive(list(processes.values())) == []


def test_servers_end_with_killed_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = [sys.executable, "-c", BENCH, str(stand_in(tmp_path))]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as bench:
        assert bench.stdout
        pids = [int(pid) for pid in bench.stdout.readline().split()]
        assert len(pids) == 2
        bench.send_signal(signal.SIGKILL)
    assert left_alive(pids) == []


DIES = 'print("loading"); sys.exit("ValueError: no such quantization")'
LOADS = 'print("capturing", flush=True); time.sleep(600)'
REFUSES = 'self.answer(400, {"error": {"message": "too long"}}); return'


@pytest.mark.parametrize(
    ("label", "at_start", "at_question", "words", "is_not_applicable"),
    [
        ("vllm/target", DIES, "pass", "vllm/target ended at its start: ValueError", False),
        ("vllm/draft_model", DIES, "pass", "vllm/draft_model ended at its start", True),
        ("vllm/target", LOADS, "pass", "vllm/target was not ready within 0.5 s: capturing", False),
        ("vllm/target", "", REFUSES, "vllm/target refuses the question: too long", False),
    ],
    ids=["dies", "dies with a method", "not ready in time", "refuses"],
)
async def test_failure_of_a_server_is_reported_with_its_last_words(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    label: str,
    at_start: str,
    at_question: str,
    words: str,
    is_not_applicable: bool,
) -> None:
    if at_start == LOADS:
        monkeypatch.setattr("semspec_bench.runners.vllm.START_TIMEOUT_S", 0.5)
    async with open_vllm(BUNDLED_PAIR, stand_in(tmp_path, at_start, at_question)) as runner:
        with pytest.raises(RunnerError, match=words) as caught:
            await runner.ask(asked(label))
    assert isinstance(caught.value, NotApplicable) is is_not_applicable
