"""MATH-500, divided as PREREGISTERED.md says."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from semspec_bench.record import RECORDS, read_records

Part = Literal["learn", "tune", "report"]
PARTS: dict[int, Part] = {1: "learn", 2: "tune"}
"""By a question's number, from 1, modulo 5; the others are to report on."""


def read_answered(part: Part, run: str) -> Iterator[dict[str, Any]]:
    """Yield the questions of a part that `studies.natural.served` has answered in the folder `run`, each with the
    target's first answer as `trace`."""
    answers = {
        record.question: "".join(segment["text"] for segment in record.trace)
        for record in read_records(Path(run) / RECORDS)
        if record.label == "in-process/target" and record.sample == 0
    }
    for question in read(part):
        if question["id"] in answers:
            yield question | {"trace": answers[question["id"]]}


def read(part: Part) -> Iterator[dict[str, Any]]:
    """Yield the questions of a part, with `id`, `problem`, `answer`, `level` and `domain`: algebra, or the rest.

    The file is `math500.jsonl` in the working directory, or the one that MATH500 names.
    """
    path = Path(os.environ.get("MATH500", "math500.jsonl"))
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if PARTS.get(number % 5, "report") == part:
            record = json.loads(line)
            domain = "algebra" if "Algebra" in record["subject"] else "rest"
            yield {
                "id": f"{number}",
                "problem": record["problem"],
                "answer": record["answer"],
                "level": record["level"],
                "domain": domain,
            }
