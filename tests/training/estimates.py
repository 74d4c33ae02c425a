"""`semspec train estimate` beside what the run then takes: `python -m tests.training.estimates`.

`--only NAME` measures one case, `--output FOLDER` writes elsewhere than bench/results/estimate.
Estimate and run follow each other in one process of one thread, both in seconds of the CPU, so that other load does
not count.
"""

import argparse
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from semspec.training.cli import quiet_libraries
from semspec.training.config import PipelineConfig, load_config
from semspec.training.pipeline import SHARDED, Pipeline
from semspec.training.progress import Reporter
from tests.training.support import save_ending
from tests.words import build_tokenizer

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results" / "estimate"
PILOT_S = 20.0
"""The least length of the pilot; the command's is three times as long, for longer runs."""
LIMIT = 0.3
"""The largest error that is promised, as a share of what the run took."""


@dataclass(frozen=True, slots=True)
class Measured:
    """CPU seconds by stage, estimated and taken."""

    name: str
    estimated_s: dict[str, float]
    taken_s: dict[str, float]
    report_s: float
    """Of the report, which the estimate leaves out."""

    @property
    def error(self) -> float:
        """Of all stages together, as a share of what they took."""
        return sum(self.estimated_s.values()) / sum(self.taken_s.values()) - 1

    def as_json(self) -> dict[str, Any]:
        """What is written."""
        numbers = (self.estimated_s, self.taken_s)
        estimated, taken = ({stage: round(seconds, 1) for stage, seconds in one.items()} for one in numbers)
        return {
            "name": self.name,
            "estimated_s": estimated,
            "taken_s": taken,
            "report_s": round(self.report_s, 1),
            "error": round(self.error, 3),
        }


def bundled(folder: Path) -> PipelineConfig:
    """The small run of the bundled pair, with every fit of the report, meaning decided by entailment."""
    config = load_config(ROOT / "demo" / "probes-small.yaml")
    return config.model_copy(update={"output": folder / "out"})


def wide(folder: Path) -> PipelineConfig:
    """Random weights, 12 layers of 1,024 numbers in the target; states larger than the memory for them."""
    torch.manual_seed(0)
    draft, target = (_saved(folder / name, *size) for name, size in {"draft": (256, 4), "target": (1024, 12)}.items())
    questions = {"python": "tests.training.support:solved", "id": "id", "trace": "solution", "limit": 40}
    return PipelineConfig.model_validate(
        {
            "name": "wide",
            "draft": {"model": str(draft), "dtype": "float32"},
            "target": {"model": str(target), "dtype": "float32"},
            "questions": [questions],
            "max_segment_tokens": 32,
            "contexts": {"traces": "data", "per_question": 3},
            "samples": {"num_samples": 20, "temperature": 1.0, "top_p": 1.0},
            "equivalence": {"kind": "python", "object": "tests.training.support:ByLength"},
            "probes": {"projection": {"kind": "random", "width": 256}, "memory_gib": 0.1},
            "output": str(folder / "out"),
        }
    )


def _saved(folder: Path, hidden_size: int, num_layers: int) -> Path:
    tokenizer = build_tokenizer()
    sizes = {"hidden_size": hidden_size, "intermediate_size": hidden_size, "num_hidden_layers": num_layers}
    heads = {"num_attention_heads": hidden_size // 64, "num_key_value_heads": 2}
    ends = {"vocab_size": len(tokenizer), "eos_token_id": 1, "bos_token_id": None}
    return save_ending(Qwen2ForCausalLM(Qwen2Config(**sizes, **heads, **ends)), tokenizer, folder)


CASES = {"bundled": bundled, "wide": wide}


def measure(name: str, reporter: Reporter) -> Measured:
    """Estimate a case and run it."""
    with tempfile.TemporaryDirectory() as folder:
        config = CASES[name](Path(folder))
        with (
            patch("semspec.training.pilot.perf_counter", process_time),
            patch("semspec.training.estimate.time", SimpleNamespace(perf_counter=process_time)),
        ):
            estimate = Pipeline(config, Path(folder) / "work", reporter=reporter).estimate(least_s=PILOT_S)
        reporter.say(str(estimate))
        pipeline = Pipeline(config, Path(folder) / "work", reporter=reporter)
        pipeline.check_start()
        pipeline.pair.models  # noqa: B018  (loaded before the stages, as in the estimate)
        taken_s = {}
        for stage in (*SHARDED, "probes", "report"):
            start = process_time()
            pipeline.make(stage)
            taken_s[stage] = process_time() - start
    return Measured(name, estimate.stage_s, taken_s, taken_s.pop("report"))


def main() -> int:
    """The exit status: 1 if an estimate was further off than `LIMIT`."""
    parser = argparse.ArgumentParser(prog="python -m tests.training.estimates", description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for NAME.json")
    parser.add_argument("--only", choices=CASES, help="one case")
    options = parser.parse_args()
    quiet_libraries()
    torch.set_num_threads(1)
    reporter = Reporter()
    options.output.mkdir(parents=True, exist_ok=True)
    errors = []
    for name in [options.only] if options.only else CASES:
        measured = measure(name, reporter)
        errors.append(measured.error)
        (options.output / f"{name}.json").write_text(json.dumps(measured.as_json(), indent=1) + "\n")
        reporter.say(json.dumps(measured.as_json()))
    return int(any(abs(error) > LIMIT for error in errors))


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
