"""Shares of segments that agree, against counts done by hand, and the texts that a run leaves."""

import json
from pathlib import Path
from typing import Any

import pytest

from studies.natural.labels import collect, report


def sample(writer: str, words: int | None, result: int | None) -> dict[str, Any]:
    return {
        "writer": writer,
        "text": "so x = 5",
        "num_tokens": 20,
        "end": "length" if result is None else "boundary",
        "words": words,
        "result": result,
    }


def test_shares_are_those_counted_by_hand() -> None:
    """Two of the target's three samples agree by result and none by words; one of two whole drafts states it, too."""
    samples = [
        *(sample("target", words, result) for words, result in ((0, 0), (1, 0), (2, 1))),
        *(sample("draft", words, result) for words, result in ((3, 0), (4, 2), (None, None))),
    ]
    records = [{"question": f"{number}", "depth": 0, "samples": samples} for number in range(2)]
    lines = list(report(records))
    assert "2 contexts of 2 questions; 12 segments, of which 2 are cut" in lines[0]
    rows = {tuple(line.strip("| ").split(" | ")[:3]): line for line in lines if "|" in line}
    shares = [cell.split(" ")[0] for cell in rows["words", "target", "all"].split(" | ")[3:]]
    assert shares == ["100.0%", "100.0%", "0.0%"]
    shares = [cell.split(" ")[0] for cell in rows["result", "target", "all"].split(" | ")[3:]]
    assert shares == ["33.3%", "33.3%", "33.3%"]
    shares = [cell.split(" ")[0] for cell in rows["result", "draft", "all"].split(" | ")[3:]]
    assert shares == ["100.0%", "50.0%", "33.3%"]


@pytest.mark.slow
def test_finished_run_keeps_its_texts(run: Path) -> None:
    records = list(collect(run / "work"))
    assert json.dumps(records) and list(report(records))
    for record in records:
        for first in record["samples"]:
            for second in record["samples"]:
                if first["words"] is not None and first["words"] == second["words"]:
                    assert first["text"].split() == second["text"].split()
