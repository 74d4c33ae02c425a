"""Runs NVIDIA AIPerf against the bundled pair's stack: latency and acceptance by an independent tool.

python -m studies.aiperf          writes results/profile.json and summary.md
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from semspec.bench.environment import environment
from semspec.demo.client import MAX_TOKENS
from semspec.demo.problems import SPLITS, make_problem
from semspec.stack import BUNDLED_PAIR, Stack, StackConfig
from semspec.training.files import write_json
from semspec.training.report.document import Code, Section, Table, Text, as_markdown, write_text

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).parent / "results"
MODELS = ("semspec-demo", "semspec-demo:token-level", "semspec-demo:target")
NUM_REQUESTS = 24
COUNTERS = {
    "total_spec_decode_steps": "vllm:spec_decode_num_drafts",
    "total_draft_tokens": "vllm:spec_decode_num_draft_tokens",
    "total_accepted_draft_tokens": "vllm:spec_decode_num_accepted_tokens",
}
"""AIPerf's sums over the responses, and the gateway's counters of the same."""
ROWS = {
    "request latency, median, ms": ("request_latency", "p50"),
    "time to first token, median, ms": ("time_to_first_token", "p50"),
    "output tokens a second": ("output_token_throughput", "avg"),
    "output tokens": ("total_osl", "avg"),
    "failed requests, %": ("request_error_rate", "avg"),
    "acceptance length, tokens": ("spec_decode_token_weighted_acceptance_length", "avg"),
    "draft acceptance rate, %": ("spec_decode_overall_draft_acceptance_rate", "avg"),
}
LEFT_OUT = ("input_config", "run_info", "benchmark_id", "http_req_", "effective_", "active_", "credit_")
"""Prefixes of the omitted fields of AIPerf's report: its input, which is given here, and its internals."""

Json = dict[str, Any]


async def main() -> None:
    aiperf = _installed()
    profiles = {model: await _profile(aiperf, model) for model in MODELS}
    write_json(RESULTS / "profile.json", profiles)
    summary = _summary(profiles)
    write_text(RESULTS / "summary.md", summary)
    print(summary)


def _installed() -> Path:
    process = subprocess.run([str(ROOT / "scripts" / "client-venv"), "aiperf"], stdout=subprocess.PIPE, text=True)
    if process.returncode:
        sys.exit("aiperf cannot be installed; see its output above")
    return Path(process.stdout.strip()) / "bin" / "aiperf"


async def _profile(aiperf: Path, model: str) -> Json:
    """AIPerf's report on a fresh stack, and the gateway's counters of the same run."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        async with Stack(StackConfig()) as stack:
            command = [str(aiperf), *_arguments(model, stack, Path(folder))]
            process = await asyncio.create_subprocess_exec(*command, env=_online(), stdout=subprocess.DEVNULL)
            if await process.wait():
                sys.exit(f"aiperf failed: {(Path(folder) / 'logs' / 'aiperf.log').read_text()[-2000:]}")
        report = json.loads((Path(folder) / "profile_export_aiperf.json").read_text())
        counted = json.loads((Path(folder) / "server_metrics_export.json").read_text())["metrics"]
    kept = {name: value for name, value in report.items() if not name.startswith(LEFT_OUT)}
    return {**kept, "load_average": load, "gateway": {name: _total(counted, name) for name in COUNTERS.values()}}


def _arguments(model: str, stack: Stack, folder: Path) -> list[str]:
    questions = folder / "questions.jsonl"
    lines = (json.dumps({"text": make_problem(seed).question}) for seed in SPLITS["report"][:NUM_REQUESTS])
    questions.write_text("\n".join(lines))
    files = ["--tokenizer", str(BUNDLED_PAIR / "target"), "--input-file", str(questions)]
    where = ["--url", stack.base_url, "--api-key", stack.api_key]
    return [*_options(model), *where, *files, "--output-artifact-dir", str(folder)]


def _options(model: str) -> list[str]:
    options = f"profile --model {model} --endpoint-type chat --streaming --use-server-token-count --concurrency 2"
    options += (
        f" --request-count {NUM_REQUESTS} --custom-dataset-type single_turn --extra-inputs max_tokens:{MAX_TOKENS}"
    )
    return [*options.split(), "--extra-inputs", "seed:1", "--no-gpu-telemetry", "--ui", "none"]


def _online() -> Mapping[str, str]:
    """The environment without offline flags, which make AIPerf look up the tokenizer's folder in the hub's cache."""
    return {name: value for name, value in os.environ.items() if name not in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")}


def _total(counted: Json, name: str) -> float:
    return float(sum(series["stats"]["total"] for series in counted.get(name, {}).get("series", [])))


def _summary(profiles: Mapping[str, Json]) -> str:
    where, version = environment(BUNDLED_PAIR), next(iter(profiles.values()))["aiperf_version"]
    head = f"NVIDIA AIPerf {version}, {NUM_REQUESTS} questions of the demo language, two at a time, chat completions"
    names = [f"`{model}`" for model in profiles]
    rows = [[label, *(_cell(profile, *place) for profile in profiles.values())] for label, place in ROWS.items()]
    rows.append(["load of the machine before it", *(f"{profile['load_average']:.1f}" for profile in profiles.values())])
    rows.append(["the gateway's counters agree", *(_agreement(profile) for profile in profiles.values())])
    command = (
        f"aiperf {' '.join(_options('MODEL'))} \\",
        "    --tokenizer demo/pair/target --input-file QUESTIONS.jsonl \\",
        "    --url http://127.0.0.1:8080 --api-key KEY",
    )
    blocks = (
        Text(f"{head}, streamed, the bundled pair on {where['processor']} ({where['num_cores']} cores)."),
        Table(("", *names), rows),
        Text(
            "A draft here is a segment, so an acceptance length is that of whole segments; under `token-level` it is "
            "all tokens accepted while one segment was written. `target` drafts nothing, so there is nothing to tell. "
            "Acceptance does not depend on the machine; times do, and say little where its load exceeds its cores."
        ),
        Text("Again: `python -m studies.aiperf`, which runs"),
        Code(command),
    )
    return as_markdown("AIPerf", [Section("", blocks)])


def _cell(profile: Json, metric: str, statistic: str) -> str:
    return f"{profile[metric][statistic]:,.1f}" if metric in profile else "-"


def _agreement(profile: Json) -> str:
    """Whether AIPerf and the gateway counted the same decisions and tokens."""
    sides = [(profile.get(ours, {}).get("avg", 0.0), profile["gateway"][theirs]) for ours, theirs in COUNTERS.items()]
    return "yes" if all(one == other for one, other in sides) else f"no: {sides}"


if __name__ == "__main__":
    asyncio.run(main())
