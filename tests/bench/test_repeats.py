"""Acceptance by the number of earlier repeats, counted from runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from semspec.errors import InvalidRequest
from semspec_bench.configuration import parse
from semspec_bench.record import RECORDS, as_line
from semspec_bench.repeats import count_runs, main
from tests.bench.test_summary import record

GUARDED, FREE = "in-process/likelihood", "in-process/likelihood:repeats=allowed"
LONG = "So, there are 220 pens after 5 days.\n\n"


def row(index: int, text: str, rejected: str | None = None, **fields: Any) -> dict[str, Any]:
    verdict = "accepted" if rejected is None else "rewritten"
    return {
        "index": index,
        "text": text,
        "verdict": verdict,
        "rejected": rejected and {"text": rejected},
        **fields,
    }


def save_run(folder: Path, **traces: list[dict[str, Any]]) -> Path:
    """A run of one answer for each label."""
    folder.mkdir()
    labels = {"guarded": GUARDED, "free": FREE, "target": "target"}
    records = [
        record(labels[name], 1, finish_reason="length", trace=trace)
        for name, trace in traces.items()
    ]
    (folder / RECORDS).write_text("".join(map(as_line, records)))
    return folder


def test_drafts_are_counted_by_their_earlier_repeats(tmp_path: Path) -> None:
    run = save_run(
        tmp_path / "run",
        guarded=[
            row(0, LONG),
            row(1, "Other.\n\n", LONG, repeats=0),
            row(2, "Another.\n\n", "|\n" * 90, repeats=2),
        ],
        free=[row(index, LONG if index else f" {LONG}") for index in range(6)],
        target=[{**row(0, LONG), "verdict": "unjudged"}],
    )
    guarded, free = count_runs([run])
    assert guarded.label == GUARDED
    assert guarded.is_guarded is True
    assert guarded.num_refused == 2
    assert guarded.num_loops == 1
    assert guarded.num_judged == (2, 1, 0, 0)
    assert guarded.num_accepted == (1, 0, 0, 0)
    assert guarded.num_third == 0
    assert free.is_guarded is False
    assert free.num_judged == (1, 1, 1, 3)
    assert free.num_accepted == (1, 1, 1, 3)
    assert (free.num_third, free.num_answers, free.num_cut) == (4, 1, 1)


def test_third_repeat_with_the_guard_fails_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row(index, LONG) for index in range(3)]
    free, broken = (
        save_run(tmp_path / "free", free=rows),
        save_run(tmp_path / "broken", guarded=rows),
    )
    assert main([str(free), "--output", str(tmp_path / "out")]) == 0
    assert json.loads((tmp_path / "out" / "repeats.json").read_text())[0]["num_accepted"] == [
        1,
        1,
        1,
        0,
    ]
    assert "| 3 or more |" in capsys.readouterr().out
    assert main([str(free), str(broken)]) == 1
    assert main([str(tmp_path / "none")]) == 2
    assert "contains no drafted segment" in capsys.readouterr().err


def test_guard_is_switched_off_by_the_bench_alone() -> None:
    assert parse(FREE).knobs == {"repeats": "allowed"}
    assert "repeats" not in parse(GUARDED).knobs
    with pytest.raises(InvalidRequest, match="unknown knob 'repeats'"):
        parse("likelihood:repeats=allowed")
    assert parse("semantic:exact_answer=on").options["exact_answer"] is True
