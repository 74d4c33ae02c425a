"""Checks of a reproduction before it begins: what it refuses, with the remedy, and how much it has to do."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import torch

from semspec.reporting.progress import Reporter
from semspec.stack.listening import free_port
from semspec.training.config import ServerSampler, read_config, read_yaml
from semspec_bench import samplers
from semspec_bench.cli import main
from semspec_bench.readiness import training_work
from semspec_bench.reproduce import PAIRS, PairConfig, Reproduction, _with_sums
from semspec_bench.runners.protocol import RunnerError
from semspec_bench.samplers import server_command
from semspec_bench.tasks import Question, Task
from tests.bench.tiny_pair import (
    DRAFT,
    METHODS,
    REVISION,
    TARGET,
    save_models,
    save_pair_file,
    save_questions,
    use_hub,
)
from tests.helpers.hub import serving, use
from tests.helpers.processes import is_running, left_alive


@pytest.fixture(autouse=True)
def _own_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_hub(tmp_path / "hub", monkeypatch)


@pytest.fixture
def models(tmp_path: Path) -> dict[str, Path | None]:
    """The draft is gated, the target larger than any disk."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").touch()
    return {DRAFT: None, TARGET: tmp_path / "model"}


@pytest.fixture
def hub(models: dict[str, Path | None], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with serving(models) as endpoint:
        use(endpoint, monkeypatch)
        yield endpoint


def reproduction(path: Path, output: Path) -> Reproduction:
    config = read_config(path, PairConfig)
    training = read_yaml(path.parent / config.training)
    return Reproduction(config, training, output, None, Reporter(quiet=True))


def is_right(reference: str, text: str) -> bool:
    return reference == text


def refused(path: Path, output: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines that the command says before it refuses; nothing is made."""
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", "--pair", str(path), "--output", str(output)])
    assert ended.value.code == 2 and not output.exists()
    lines = capsys.readouterr().err.strip().splitlines()
    return [line for line in lines if line.startswith(("ok", "fail", "semspec"))]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"runs": [{"task": "math500", "strategies": ["semantic"]}]}, "the target alone first"),
        (
            {"runs": [{"task": "math500", "strategies": ["target", "semantik"]}]},
            "unknown strategy 'semantik'",
        ),
        (
            {"runs": [{"task": "math500", "strategies": METHODS, "probes": "paper"}]},
            "paper not defined",
        ),
        ({"runs": 2 * [{"task": "math500", "strategies": METHODS}]}, "math500 occurs twice"),
        ({"training": "elsewhere.yaml"}, "cannot read"),
        (
            {"runs": [{"task": "math500", "strategies": ["target", "server/other"]}]},
            "servers: other not defined",
        ),
        ({"gpus": 2}, "gpus: no such setting"),
    ],
)
def test_pair_file_is_refused_by_field(
    changes: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [line] = refused(save_pair_file(tmp_path, **changes), tmp_path / "output", capsys)
    assert said in line


def test_failed_check_is_line(hub: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [{"task": "gpqa-diamond", "data": str(tmp_path / "none.jsonl"), "strategies": METHODS}]
    path = save_pair_file(tmp_path, runs=runs, environment={"SEMSPEC_TARGET_ENGINE": "vllm"})
    vllm, draft, target, _, questions, *_ = lines = refused(path, tmp_path / "output", capsys)
    assert vllm.startswith("fail") and "make setup TORCH_VARIANT=cuda" in vllm
    assert draft.startswith("fail")
    assert "is gated" in draft
    assert f"{hub}/{DRAFT}" in draft
    assert "hf auth login" in draft
    assert target.startswith("ok") and "to download: 100000000.0 GB" in target
    assert questions.startswith("fail") and "none.jsonl" in questions
    assert "3 of" in lines[-1] and "nothing was started" in lines[-1]


def checked(path: Path, output: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the lines of `--check`, which makes nothing, whether it succeeds or fails."""
    with suppress(SystemExit):
        main(["reproduce", "--pair", str(path), "--output", str(output), "--check"])
    assert not output.exists()
    return capsys.readouterr().err.strip().splitlines()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA devices")
@pytest.mark.parametrize(
    "changes",
    [
        {"environment": {"SEMSPEC_TARGET_DEVICE": "cuda:1", "SEMSPEC_DRAFT_DEVICE": "cpu"}},
        {"environment": {"SEMSPEC_VERIFIER_DEVICE": "cuda"}},
        {"probes": {"main": {}, "more": {"target": {"device": "cuda:0"}}}},
        {"probes": {"main": {"probes": {"device": "cuda"}}}},
    ],
)
def test_pair_that_names_cuda_devices_is_refused_without_them(
    changes: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_models(tmp_path / "hub")
    lines = checked(save_pair_file(tmp_path, **changes), tmp_path / "output", capsys)
    [devices] = [line for line in lines if " GPUs " in line]
    assert devices.startswith("fail") and "names cuda" in devices and "sees no GPU" in devices
    assert "TORCH_VARIANT=cuda" in devices or "nvidia-smi" in devices
    assert "1 of" in lines[-1] and "nothing was started" in lines[-1]


def test_devices_of_the_environment_replace_those_of_the_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_models(tmp_path / "hub")
    monkeypatch.setenv("SEMSPEC_TARGET_DEVICE", "cpu")
    path = save_pair_file(tmp_path, environment={"SEMSPEC_TARGET_DEVICE": "cuda:1"})
    assert not any(
        line.startswith(("fail", "semspec")) for line in checked(path, tmp_path / "output", capsys)
    )


def test_check_sums_hours_and_disk_of_all_stages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_models(tmp_path / "hub")
    data = save_questions(tmp_path)
    runs = [
        {"task": "math500", "data": data["math500"], "strategies": ["target", "semantic"]},
        {"task": "amc23", "data": data["amc23"], "samples": 4, "strategies": ["target", "draft"]},
    ]
    sets: dict[str, Any] = {
        "main": {},
        "data": {"contexts": {"traces": "data"}},
        "sentence": {"segmentation": "sentence"},
    }
    device = {role: {"device": "cpu"} for role in ("draft", "target")}
    path = save_pair_file(
        tmp_path, runs=runs, probes={name: {**device, **changes} for name, changes in sets.items()}
    )
    *_, total = checked(path, tmp_path / "output", capsys)

    num_questions, num_contexts, num_samples, num_sets = 20, 40, 6, 3
    traces_s = 2 * num_questions * 360
    alternatives_s = (1 + 1 + 0.5) * num_contexts * num_samples * 3.35
    clusters_s, fit_s = num_sets * num_contexts * 1.5, num_sets * num_contexts * 0.12
    answers_s = 2 * (89.91 + 35.47) + 4 * 2 * (154.34 + 19.59)  # Tables 1 and 4 of the paper
    seconds = traces_s + alternatives_s + clusters_s + fit_s + answers_s
    target, draft = (states_size(tmp_path / "hub", model) for model in (TARGET, DRAFT))
    states = num_sets * num_contexts * num_samples * 2 * (2 * target + draft)
    words = f"in all about {seconds / 3600:.1f} h ({seconds / 86400:.1f} days) and {states / 1e6:.1f} MB of disk"
    assert total.endswith(words)


def test_check_of_the_default_pair_is_a_day_by_hand(tmp_path: Path) -> None:
    made = reproduction(PAIRS / "r1-1.5b-r1-14b.yaml", tmp_path)
    work = [training_work(made.pipelines["main"], 300, 2, made.config.relative_cost)]
    sizes = {"math500": 100, "aime24": 30}
    tasks = [
        Task(run.task, [Question(str(n), (), "") for n in range(sizes[run.task])], is_right)
        for run in made.config.runs
    ]
    work += made._answers(tasks)

    # With vLLM, for 32B: 20 h for 1,000 traces, 19 h for 200,000 alternatives; 1.5 s for the clusters of a context.
    traces_s, alternatives_s = 300 * 72 * 0.451, 1200 * 20 * 0.342 * 0.451
    fit_s = 1200 * (1.5 + 0.12)
    # Table 4: target and four servers, draft, token-level, semantic twice.
    math_s = 100 * (5 * 0.451 * 89.91 + 12.7 + 59.32 + 2 * 35.47)
    aime_s = 30 * (5 * 0.451 * 214.76 + 29.45 + 191.45 + 2 * 86.75)
    assert [stage.seconds for stage in work] == pytest.approx(
        [traces_s + alternatives_s + fit_s, math_s, aime_s]
    )
    hours = sum(stage.seconds or 0 for stage in work) / 3600
    assert 20 < hours < 24
    *_, total = _with_sums(work)
    assert total.startswith(f"in all about {hours:.1f} h")


def test_samples_are_written_by_the_servers_of_the_pair(tmp_path: Path) -> None:
    made = reproduction(PAIRS / "r1-1.5b-r1-14b.yaml", tmp_path)
    config, target = made.pipelines["main"], "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B"
    assert isinstance(config.target.sampler, ServerSampler)
    assert config.target.sampler.model == config.target.model == target
    command = server_command("target", config, made.config.samplers["target"])
    assert command[command.index("serve") + 1] == target
    assert command[command.index("--max-model-len") + 1] == "16896"
    assert f"http://127.0.0.1:{command[command.index('--port') + 1]}/v1" == (
        config.target.sampler.base_url
    )
    assert command[-2:] == ["--gpu-memory-utilization", "0.86"]


HEALTHY = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_sampling_servers_end_with_their_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samplers, "PORTS", {"target": (port := free_port("127.0.0.1", 0))})
    command = [sys.executable, "-c", HEALTHY, str(port)]
    with samplers.sampling_servers({"target": command}, "", tmp_path):
        assert samplers._is_healthy(port)
    assert not samplers._is_healthy(port)
    broken = {"target": [sys.executable, "-c", "raise SystemExit('no GPU')"]}
    with (
        pytest.raises(RunnerError, match=r"samples from the target ended; see .*sampler-target"),
        samplers.sampling_servers(broken, "", tmp_path),
    ):
        pass
    assert "no GPU" in (tmp_path / "sampler-target.log").read_text()


def test_sampling_server_is_refused_if_its_port_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samplers, "PORTS", {"target": (port := free_port("127.0.0.1", 0))})
    healthy = {"target": [sys.executable, "-c", HEALTHY, str(port)]}
    idle = {"target": [sys.executable, "-c", "import time; time.sleep(600)"]}
    with (
        samplers.sampling_servers(healthy, "", tmp_path / "other"),
        pytest.raises(RunnerError, match=f"port {port}.*in use"),
        samplers.sampling_servers(idle, "", tmp_path),
    ):
        pass


def test_sampling_server_that_ends_is_noticed_though_another_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samplers, "PORTS", {"target": free_port("127.0.0.1", 0)})

    def is_healthy(port: int) -> bool:
        sleep(1)  # the command ends meanwhile
        return True

    monkeypatch.setattr(samplers, "_is_healthy", is_healthy)
    ended = {"target": [sys.executable, "-c", "raise SystemExit('address in use')"]}
    with (
        pytest.raises(RunnerError, match="samples from the target ended"),
        samplers.sampling_servers(ended, "", tmp_path),
    ):
        pass


def test_sampling_server_that_never_gets_ready_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samplers, "PORTS", {"target": free_port("127.0.0.1", 0)})
    monkeypatch.setattr(samplers, "START_TIMEOUT_S", 0.5)
    idle = {"target": [sys.executable, "-c", "import time; time.sleep(600)"]}
    with (
        pytest.raises(RunnerError, match=r"not ready within 0.5 s; see .*sampler-target"),
        samplers.sampling_servers(idle, "", tmp_path),
    ):
        pass


WITH_ENGINE = """
import subprocess
engine = subprocess.Popen(["sleep", "600"])
print(engine.pid, flush=True)
"""
REPRODUCTION = """
import sys, time
from pathlib import Path
from semspec_bench import samplers

samplers.PORTS = {"target": int(sys.argv[2])}
command = [sys.executable, "-c", sys.argv[1], sys.argv[2]]
with samplers.sampling_servers({"target": command}, "", Path(sys.argv[3])):
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_engine_of_a_sampling_server_ends_with_the_killed_reproduction(
    tmp_path: Path, number: signal.Signals
) -> None:
    port = str(free_port("127.0.0.1", 0))
    program = [sys.executable, "-c", REPRODUCTION, WITH_ENGINE + HEALTHY, port, str(tmp_path)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as reproduction:
        assert reproduction.stdout and reproduction.stdout.readline() == "ready\n"
        engine = int((tmp_path / "sampler-target.log").read_text().split()[0])
        assert is_running(engine)
        reproduction.send_signal(number)
    try:
        assert left_alive([engine], timeout_s=30) == []
    finally:
        with suppress(ProcessLookupError):
            os.kill(engine, signal.SIGKILL)


def states_size(hub: Path, model: str) -> int:
    """Return how many numbers the states of a segment have: those of the embedding and of each layer."""
    facts = json.loads((snapshot_of(hub, model) / "config.json").read_text())
    size: int = (facts["num_hidden_layers"] + 1) * facts["hidden_size"]
    return size


def test_check_names_stages_whose_time_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_models(tmp_path / "hub")
    other = {"model": str(snapshot_of(tmp_path / "hub", DRAFT)), "revision": None, "device": "cpu"}
    path = save_pair_file(tmp_path, probes={"main": {"draft": other, "target": other}})
    *_, total, unknown = checked(path, tmp_path / "output", capsys)
    assert total.startswith("in all about 0.0 h") and "training tiny, math500" in unknown


def snapshot_of(hub: Path, model: str) -> Path:
    return hub / f"models--{model.replace('/', '--')}" / "snapshots" / REVISION


@pytest.mark.parametrize("path", sorted(PAIRS.glob("*-32b.yaml")), ids=lambda path: path.stem)
def test_pair_of_the_paper_is_valid_and_has_its_four_tasks(path: Path, tmp_path: Path) -> None:
    made = reproduction(path, tmp_path)
    config = made.config
    assert {run.task for run in config.runs} >= {"math500", "aime24", "amc23", "gpqa-diamond"}
    recipes = {name: made.pipelines[f"paper-{name}"].probes for name in ("math", "science")}
    assert all(
        (one.domain, one.labels, one.projection) == (name, "own", None)
        for name, one in recipes.items()
    )
    assert [*map(made._sampling_group, config.probes)] == [
        "main",
        "paper-math",
        "paper-math",
        "sentence",
    ]
    assert all(
        pipeline.output == tmp_path / "pairs" / pipeline.name / "probes"
        for pipeline in made.pipelines.values()
    )
