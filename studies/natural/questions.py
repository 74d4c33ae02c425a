"""MATH-500, divided as PREREGISTERED.md says."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

Part = Literal["learn", "tune", "report"]
PARTS: dict[int, Part] = {1: "learn", 2: "tune"}
"""By a question's number, from 1, modulo 5; the others are to report on."""


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
