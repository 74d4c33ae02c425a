"""The pipeline and the paper's comparison over two layers of the true configurations, with few questions."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from semspec_bench.cli import main as bench
from semspec_demo.documents import write_document
from semspec_demo.problems import SPLITS
from studies.rehearsal.shapes import R1_DRAFT, R1_TARGET, SETTINGS, save_pairs

NLI = Path(__file__).parents[2] / "examples/demo/semspec_demo/nli"
NUM_QUESTIONS = 12
METHODS = ["target", "draft", "spec-reason", "spec-thinking", "token-level", "semantic",
           "semantic:probes=last-hidden:rule=sample", "random:rule=sample"]  # fmt: skip
"""Every published row."""


def reproduce(output: Path, models: Path, num_answers: int) -> None:
    """`semspec bench reproduce` on the pair r1 with `num_answers` questions of each task; the same call resumes it."""
    save_pairs(models)
    output.mkdir(parents=True, exist_ok=True)
    bench(
        [
            "reproduce",
            "--pair",
            str(_pair_file(output, models.absolute(), num_answers)),
            "--output",
            str(output),
        ]
    )


def _pair_file(folder: Path, models: Path, num_answers: int) -> Path:
    """Write the pair's file, and beside it the training's configuration and all data."""
    documents = [write_document(seed) for seed in SPLITS["tune"][:NUM_QUESTIONS]]
    solved = [{"id": str(number), "question": one.problem.question, "solution": one.solution}
              for number, one in enumerate(documents)]  # fmt: skip
    tasks = _tasks(folder, num_answers)
    training = {
        "name": "true-shapes",
        "output": "unused",
        "draft": {"model": str(models / R1_DRAFT), "device": "cpu", "dtype": "bfloat16"},
        "target": {"model": str(models / R1_TARGET), "device": "cpu", "dtype": "bfloat16"},
        "questions": [{"file": _write(folder / "questions.jsonl", solved), "id": "id"}],
        "evaluation_sets": [{"file": tasks["math500"], "question": "problem"}],
        "shares": {"validation": 0.25, "calibration": 0.15, "test": 0.25},
        "max_segment_tokens": 12,
        "contexts": {"traces": "mixture", "per_question": 1, "max_segments": 2},
        "samples": {"num_samples": 4, "temperature": 0.6, "top_p": 0.95},
        "equivalence": {"kind": "entailment", "model": str(NLI)},
        "probes": {"num_epochs": 2, "device": "cpu", "calibration": "none"},
        "report": {"learning_curve": []},
        "shard_questions": 4,
    }
    (folder / "training.yaml").write_text(yaml.safe_dump(training))
    runs = [{"task": task, "data": data, "strategies": METHODS} for task, data in tasks.items()]
    pair = {
        "name": "true-shapes",
        "training": "training.yaml",
        "runs": runs,
        "max_tokens": 16,
        "environment": SETTINGS,
    }
    (folder / "pair.yaml").write_text(yaml.safe_dump(pair))
    return folder / "pair.yaml"


def _tasks(folder: Path, num_answers: int) -> dict[str, str]:
    """Questions of each of the paper's tasks; returns their files."""
    numbers = range(1, num_answers + 1)
    mathematics = [{"problem": f"What is {n}+{n}?", "answer": str(2 * n), "id": n} for n in numbers]
    wrong = {f"Incorrect Answer {place}": str(10 + place) for place in (1, 2, 3)}
    choice = [
        {"Question": f"Which is {n}?", "Correct Answer": str(n), "Record ID": f"r{n}", **wrong}
        for n in numbers
    ]
    rows = dict.fromkeys(("math500", "aime24", "amc23"), mathematics) | {"gpqa-diamond": choice}
    return {task: _write(folder / f"{task}.jsonl", own) for task, own in rows.items()}


def _write(path: Path, rows: Iterable[Mapping[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path.absolute())
