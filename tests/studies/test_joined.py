"""Runs of single configurations are compared with a committed baseline as they would be within one run."""

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from semspec.bench.record import RECORDS, as_line
from semspec.bench.report.page import write_report
from semspec.bench.report.tables import quality_table
from semspec.bench.summary import Run
from studies.joined import __main__ as joined
from tests.bench.made_up import made_up_run


@pytest.fixture
def whole() -> Run:
    """Both configurations in one run."""
    return made_up_run(labels=("target", "semantic"), sessions=24)


def split(whole: Run, folder: Path) -> tuple[Path, Path]:
    """The target's answers as a result, and the others as a run of their own."""
    write_report([whole], folder / "result")
    run = folder / "run"
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"settings": dict(whole.settings), "labels": ["semantic"]}))
    (run / RECORDS).write_text("".join(as_line(one) for one in whole.records if one.label == "semantic"))
    return folder / "result" / "sampled", run


def test_joined_row_is_that_of_one_run(whole: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    baseline, run = split(whole, tmp_path)
    joined.main([str(baseline), str(tmp_path / "out" / "cells"), f"paper/states/all={run}"])
    *_, row = (tmp_path / "out" / "cells.md").read_text().splitlines()
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[0] == "paper/states/all" and cells[1:-1] == list(quality_table(whole).rows[1][1:])
    kept = gzip.decompress((tmp_path / "out" / "cells.jsonl.gz").read_bytes()).splitlines()
    assert len(kept) == 120 and json.loads(kept[0])["label"] == "paper/states/all"
    assert row in capsys.readouterr().out


def test_trainings_of_one_name_are_averaged(whole: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    baseline, run = split(whole, tmp_path)
    joined.main([str(baseline), str(tmp_path / "out"), f"cross={run}", f"cross={run}", f"other={run}"])
    names = [line.split(" | ")[0].strip("| ") for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert names[2:5] == ["cross, training 1", "cross, training 2", "other"] and names[7:] == ["cross"]
    assert "| cross | 2 |" in (tmp_path / "out-trainings.md").read_text()
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_interval_has_the_variance_of_questions_and_of_training(whole: Run) -> None:
    base = [record for record in whole.records if record.label == "target"]
    rng = np.random.default_rng(0)
    inside, shares = [], rng.normal(0.7, 0.05, (150, 5)).clip(0, 1)
    for of_training in shares:
        own = [[replace(one, is_right=bool(rng.random() < each)) for one in base] for each in of_training]
        right = [replace(one, is_right=bool(rng.random() < 0.7)) for one in base]
        found = joined.pooled(right, own)
        inside.append(found.interval.low <= 0 <= found.interval.high)
        assert found.mean == pytest.approx(np.mean(found.differences))
    assert np.mean(inside) >= 0.9


def other_temperature(run: Path) -> None:
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**facts, "settings": {**facts["settings"], "temperature": 0.0}}))


def other_seeds(run: Path) -> None:
    lines = (run / RECORDS).read_text().splitlines()
    (run / RECORDS).write_text("".join(json.dumps({**json.loads(line), "seed": 1}) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (other_temperature, "its temperature is 0.0, the baseline's 0.6"),
        (other_seeds, "seeds are not the baseline's"),
        (lambda run: (run / "run.json").unlink(), "is not a run"),
    ],
)
def test_run_that_does_not_match_is_refused(
    whole: Run, tmp_path: Path, spoil: Callable[[Path], None], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline, run = split(whole, tmp_path)
    spoil(run)
    with pytest.raises(SystemExit):
        joined.main([str(baseline), str(tmp_path / "out"), f"p/q >= 0.4={run}"])
    assert said in capsys.readouterr().err and not list(tmp_path.glob("out*"))
