"""A reproduction on a small scale: models of the paper's class with random weights in a hub's cache, few questions."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import constants

from tests.helpers.checkpoints import model_of
from tests.training.support import bytes_tokenizer, save_ending, solved

ROOT = Path(__file__).resolve().parents[2]
REVISION = "0123456789abcdef0123456789abcdef01234567"
DRAFT, TARGET = "tests/DeepSeek-R1-Distill-Qwen-1.5B", "tests/DeepSeek-R1-Distill-Qwen-32B"
METHODS = ["target", "draft", "spec-reason", "spec-thinking", "token-level", "semantic",
           "semantic:probes=last-hidden:rule=sample",
           "random:rule=sample"]  # fmt: skip
"""Every published row."""


def use_hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process and those that it starts use this folder as the hub's cache, and nothing else of the hub."""
    for name, value in {
        "HF_HUB_OFFLINE": True,
        "HF_HUB_DISABLE_TELEMETRY": True,
        "HF_HUB_CACHE": str(cache),
    }.items():
        monkeypatch.setattr(constants, name, value)
        monkeypatch.setenv(name, str(value))


def save_models(cache: Path) -> None:
    """Save both models as the hub's client does; as in the real pair, their vocabularies are padded differently."""
    for name, num_layers, num_padded, seed in ((DRAFT, 2, 1, 0), (TARGET, 3, 3, 1)):
        torch.manual_seed(seed)
        tokenizer = bytes_tokenizer()
        sizes = {"vocab_size": len(tokenizer) + num_padded, "num_hidden_layers": num_layers}
        ends = {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
        model = model_of(
            "qwen2", max_position_embeddings=1200, tie_word_embeddings=False, **sizes, **ends
        )
        save_ending(model, tokenizer, snapshot(cache, name))


def snapshot(cache: Path, model: str) -> Path:
    folder = cache / f"models--{model.replace('/', '--')}" / "snapshots" / REVISION
    folder.mkdir(parents=True)
    return folder


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def save_questions(folder: Path) -> dict[str, str]:
    """Two questions of each of the paper's tasks; returns their files."""
    mathematics = [{"problem": f"What is {n}+{n}?", "answer": str(2 * n), "id": n} for n in (1, 2)]
    wrong = {f"Incorrect Answer {place}": str(10 + place) for place in (1, 2, 3)}
    choice = [
        {"Question": f"Which is {n}?", "Correct Answer": str(n), "Record ID": f"r{n}", **wrong}
        for n in (1, 2)
    ]
    rows: dict[str, list[Any]] = {
        "math500": mathematics,
        "aime24": mathematics,
        "amc23": mathematics,
        "gpqa-diamond": choice,
    }
    return {task: write_lines(folder / f"{task}.jsonl", own) for task, own in rows.items()}


def save_pair_file(folder: Path, **changes: Any) -> Path:
    """Write a pair's file, and beside it the training's configuration and all data; returns its path."""
    questions = write_lines(
        folder / "questions.jsonl", [row for row, _ in zip(solved(), range(20), strict=False)]
    )
    data = save_questions(folder)
    training = {
        "name": "tiny",
        "output": "unused",
        "draft": {"model": DRAFT, "revision": REVISION, "device": "cpu"},
        "target": {"model": TARGET, "revision": REVISION, "device": "cpu"},
        "questions": [{"file": questions, "id": "id"}],
        "evaluation_sets": [{"file": data["math500"], "question": "problem"}],
        "shares": {"validation": 0.25, "calibration": 0.15, "test": 0.25},
        "max_segment_tokens": 12,
        "contexts": {"traces": "mixture", "per_question": 2, "max_segments": 4},
        "samples": {"num_samples": 6, "temperature": 1.0, "top_p": 1.0},
        "equivalence": {"kind": "entailment", "model": str(ROOT / "tests/helpers/nli")},
        "probes": {"num_epochs": 2, "device": "cpu", "calibration": "none"},
        "report": {"learning_curve": [0.5]},
        "shard_questions": 10,
    }
    (folder / "training.yaml").write_text(yaml.safe_dump(training))
    gammas = ["semantic:gamma=1", "semantic:gamma=2", "semantic:gamma=3"]
    runs = [{"task": task, "data": file, "strategies": METHODS} for task, file in data.items()]
    runs[2] |= {"strategies": [*METHODS, *gammas]}
    config = {"name": "tiny", "training": "training.yaml", "runs": runs, "max_tokens": 24}
    (folder / "pair.yaml").write_text(yaml.safe_dump(config | changes))
    return folder / "pair.yaml"
