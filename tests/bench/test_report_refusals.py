"""What the report refuses, in one line with the remedy, before it writes anything."""

from pathlib import Path

import pytest

from semspec.errors import InvalidRequest
from semspec_bench.report.page import write_report
from tests.bench.made_up import FEW, made_up_run


def test_runs_that_make_no_report_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    run = made_up_run(labels=FEW, num_questions=3)
    backwards = made_up_run(labels=("draft", "semantic"), num_questions=3)
    for runs, message in (
        ([backwards], "no baseline: its first configuration is draft"),
        ([run, run], r"called sampled\.md; rename"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            write_report(runs, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", [None, "{", "[]", "{}", '{"medians": {}}'])
def test_files_that_are_not_what_they_should_be_are_refused_with_the_remedy(
    text: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "file.json"
    if text is not None:
        path.write_text(text)
    run = made_up_run(labels=FEW, num_questions=3)
    with pytest.raises(InvalidRequest, match="semspec train run"):
        write_report([run], tmp_path / "out", probes=path)
    assert not (tmp_path / "out").exists()
