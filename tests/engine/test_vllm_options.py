"""The engine over vLLM where there is none: what its settings are, and what is refused."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

import pytest

from semspec.engine import load
from semspec.engine.load import load_engine
from semspec.engine.settings import ModelSettings, VllmOptions
from semspec.engine.torch_engine import TorchEngine
from semspec.engine.vllm import options
from semspec.engine.vllm.options import fingerprint, load_model, prepare_environment
from semspec.engine.vllm.process import reason_in, remedy_for
from semspec.engine.vllm.requests import Model
from semspec.errors import Mismatch
from semspec.settings import load_settings
from semspec.stack.config import BUNDLED_PAIR
from semspec.types import ModelInfo, Writer
from semspec_target.settings import TargetSettings
from tests.helpers.checkpoints import edit_json
from tests.helpers.processes import left_alive

ROOT = Path(__file__).resolve().parents[2]
REFUSED = "load_format hf_overrides trust_remote_code speculative_config nnodes".split()


def test_missing_vllm_is_refused_with_a_remedy() -> None:
    with pytest.raises(Mismatch, match=r"^vLLM is not installed"):
        load_engine(ModelSettings(model="any", engine="vllm"), Writer.TARGET)


def test_service_refuses_another_vllm_at_its_start_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/__init__.py").write_text("raise RuntimeError('not to be imported')")
    (tmp_path / "vllm-0.34.1.dist-info").mkdir()
    (tmp_path / "vllm-0.34.1.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: vllm\nVersion: 0.34.1\n"
    )
    service = {
        "SEMSPEC_TARGET_ENGINE": "vllm",
        "SEMSPEC_TARGET_MODEL": str(BUNDLED_PAIR / "target"),
        "SEMSPEC_TARGET_PORT": "0",
    }
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    ended = subprocess.run(
        [sys.executable, "-m", "semspec_target"],
        env=os.environ | service | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode != 0
    assert len(ended.stderr.strip().splitlines()) == 1, ended.stderr
    remedy = "install vllm==0.32.*, or set the engine to fast or transformers"
    assert f"vLLM 0.34.1 is not supported; {remedy}" in ended.stderr


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        ("pyproject.toml", r"\"vllm==([\d.]+)\*\""),
        ("scripts/vllm-venv", r"^vllm=([\d.]+)$"),
        ("deploy/vllm.Dockerfile", r"^ARG BASE_IMAGE=.+:v([\d.]+)$"),
    ],
)
def test_supported_version_is_the_one_that_is_installed(path: str, pattern: str) -> None:
    [found] = re.findall(pattern, (ROOT / path).read_text(), re.MULTILINE)
    assert found.startswith(options.VLLM_VERSIONS[0])


@pytest.mark.parametrize(
    ("is_installed", "device", "engine"), [(True, "cuda:1", "vllm"), (False, "cuda", "auto")]
)
def test_auto_takes_vllm_on_cuda_and_warns_where_there_is_none(
    is_installed: bool,
    device: str,
    engine: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(load, "find_spec", lambda name: name if is_installed else None)
    assert load.choose_engine(ModelSettings(model="any", device=device)) == engine
    assert load.choose_engine(ModelSettings(model="any", device="cpu")) == "auto"
    assert ("long contexts need vLLM" in caplog.text) == (not is_installed)


def test_gguf_file_is_refused_for_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ModelSettings(model="a/model-GGUF:model.gguf", engine="vllm")
    with pytest.raises(Mismatch, match=r"does not serve the GGUF file .*, such as a/model"):
        load_model(settings, Writer.TARGET)
    monkeypatch.setattr(load, "find_spec", lambda name: name)
    assert load.choose_engine(ModelSettings(model="model.gguf", device="cuda")) == "auto"


def test_vllm_is_imported_only_where_it_is_chosen() -> None:
    code = "import sys, semspec_target.__main__, semspec.engine.vllm.engine; print('vllm' in sys.modules)"
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert told.stdout == "False\n"


def test_process_whose_parent_is_killed_while_it_starts_ends(tmp_path: Path) -> None:
    code = (
        "import multiprocessing, os, pathlib, signal, sys, time\n"
        "from semspec.engine.vllm.process import VllmProcesses\n"
        "def start():\n"
        "    (child := multiprocessing.get_context('spawn').Process(target=time.sleep, args=(600,))).start()\n"
        "    pathlib.Path(sys.argv[1]).write_text(str(child.pid)); os.kill(os.getpid(), signal.SIGKILL)\n"
        "VllmProcesses.start('m', start, print)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "pid")], timeout=120, check=False)
    assert left_alive([int((tmp_path / "pid").read_text())], timeout_s=60) == []


def test_threads_of_the_setting_replace_those_that_a_stack_sets() -> None:
    with patch.dict(os.environ, {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "0-1"}):
        prepare_environment(threads=4)
        assert os.environ["OMP_NUM_THREADS"] == "4"
        assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "0-1"


@pytest.mark.parametrize(("visible", "seen"), [("", "1"), ("4,6", "6"), ("4", "")])
def test_numbered_gpu_is_the_only_one_that_vllm_sees(visible: str, seen: str) -> None:
    with patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": visible}):
        prepare_environment(threads=1, device="cuda:1")
        assert os.environ["CUDA_VISIBLE_DEVICES"] == seen


@pytest.mark.parametrize(
    ("is_cpu", "chosen", "has_graphs"),
    [(False, {}, True), (False, {"enforce_eager": True}, False), (True, {}, False)],
)
def test_graph_sizes_are_asked_for_on_gpus_alone(
    is_cpu: bool, chosen: dict[str, bool], has_graphs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = SimpleNamespace(is_cpu=lambda: is_cpu)
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.platforms", SimpleNamespace(current_platform=platform))
    settings = ModelSettings(model="any", engine="vllm", vllm_options=chosen)
    info = ModelInfo("any", "fingerprint", "tokenizer", 2, 8, 512)
    arguments = options.engine_args(settings, Model("folder", info, (1,), 100, Writer.TARGET))
    assert arguments.get("cudagraph_capture_sizes", [0])[-1] == (512 if has_graphs else 0)
    assert bool(arguments.get("enforce_eager")) == (not has_graphs)


@pytest.mark.parametrize(
    ("num_requests", "num_tokens", "sizes"),
    [
        (20, 2048, [1, 2, 4, 8, 16, 20, 128, 256, 512]),
        (20, 300, [1, 2, 4, 8, 16, 20, 128, 256, 300]),
        (20, 100, [1, 2, 4, 8, 16, 20, 100]),
        (1, 2048, [1, 2, 4, 128, 256, 512]),
        (256, 2048, []),  # vLLM's own end at 512
        (64, 128, []),
    ],
)
def test_graphs_are_captured_for_full_batches_and_for_several_scores(
    num_requests: int, num_tokens: int, sizes: list[int]
) -> None:
    limits = VllmOptions(max_num_seqs=num_requests, max_num_batched_tokens=num_tokens)
    assert options.graph_sizes(limits) == sizes


@pytest.mark.parametrize(
    ("engine", "options", "complaint"),
    [
        *(
            ("vllm", f'{{"{name}": "dummy"}}', f"OPTIONS: {name}: not among the keys, leave it out")
            for name in REFUSED
        ),
        ("vllm", '{"gpu_memory_utilization": 1.5}', "gpu_memory_utilization"),
        ("fast", '{"quantization": "fp8"}', "vllm_options: only for the engine vllm"),
    ],
)
def test_option_that_is_not_listed_or_out_of_bounds_ends_the_start(
    engine: str,
    options: str,
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in {"MODEL": "m", "ENGINE": engine, "VLLM_OPTIONS": options}.items():
        monkeypatch.setenv(f"SEMSPEC_TARGET_{name}", value)
    with pytest.raises(SystemExit):
        load_settings(TargetSettings)
    [line] = capsys.readouterr().err.splitlines()
    assert complaint in line


async def test_quantisation_is_part_of_the_fingerprint(engine: TorchEngine) -> None:
    info = await engine.info()
    other = replace(info, fingerprint="sha256-full:0")
    changes = [
        VllmOptions(quantization="fp8"),
        VllmOptions(quantization="int8"),
        VllmOptions(kv_cache_dtype="fp8"),
    ]
    assert fingerprint(info, VllmOptions()) == info.fingerprint
    found = [fingerprint(info, one) for one in changes]
    assert len({info.fingerprint, fingerprint(other, changes[0]), *found}) == 5
    assert {(one.partition(":")[0], len(one)) for one in found} == {
        ("sha256-full", len(info.fingerprint))
    }


ROPES: dict[str, dict[str, object]] = {
    "dynamic": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4},
    "longrope": {
        "rope_type": "longrope",
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
        "rope_theta": 1e4,
    },
}


@pytest.fixture(params=ROPES)
def stretched(
    request: pytest.FixtureRequest, checkpoints: dict[str, Path], tmp_path: Path
) -> ModelSettings:
    """Return settings of a Llama with a window of 600 tokens, 256 of them trained, and an embedding of `ROPES`."""
    folder = shutil.copytree(checkpoints["llama"], tmp_path / "model")
    rope = ROPES[request.param] | {"original_max_position_embeddings": 256}
    edit_json(folder / "config.json", rope_parameters=rope)
    return ModelSettings(model=str(folder), engine="vllm", device="cpu")


@pytest.mark.parametrize("stretched", ["dynamic"], indirect=True)
def test_rotary_embedding_that_vllm_computes_otherwise_is_refused(stretched: ModelSettings) -> None:
    with pytest.raises(Mismatch, match=r"vLLM applies dynamic rotary scaling to short"):
        load_model(stretched, Writer.TARGET)


@pytest.mark.parametrize("stretched", ["longrope"], indirect=True)
def test_window_of_short_factors(stretched: ModelSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM takes the long factors if its window, one token more than ours, is longer than the trained one."""
    monkeypatch.setattr(options, "_check_device", lambda *_: None)  # which needs vLLM
    assert load_model(stretched, Writer.TARGET)[0].info.max_context_tokens + 1 == 256
    lower = stretched.model_copy(update={"max_context_tokens": 200})
    assert load_model(lower, Writer.TARGET)[0].info.max_context_tokens == 200


LOGGED = "(EngineCore pid=1) ERROR 01-01 [core.py:1] "


@pytest.mark.parametrize(
    ("prefix", "reason", "remedy"),
    [
        (LOGGED, "ValueError: No available memory for the KV cache blocks.", "set more kv_bytes"),
        (
            LOGGED,
            "ValueError: Following weights were not initialized from checkpoint: {'lm_head.weight'}",
            "fetch the",
        ),
        ("", "torch.OutOfMemoryError: CUDA out of memory.", "or use more GPUs"),
        ("", "RuntimeError: X does not return its hidden states in vLLM", "set the engine to fast"),
    ],
)
def test_reason_and_remedy_in_output(prefix: str, reason: str, remedy: str) -> None:
    general = "RuntimeError: Engine core initialization failed. See root cause above."
    lines = ["INFO loading", general, prefix + reason, "Error: x"]
    assert reason_in(lines) == reason and remedy in remedy_for(reason)
