"""What the report refuses, in one line with the remedy, before it writes anything; and README's quoted tables."""

from dataclasses import replace
from pathlib import Path

import pytest

from semspec.bench.report.page import readme_tables, write_report
from semspec.errors import InvalidRequest
from tests.bench.made_up import FEW, made_up_run


def test_readme_tables_are_replaced_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench/new.md").write_text("| a |\n| --- |\n| \\1 new |\n")
    readme = "before\n\n<!-- bench/new.md -->\n| a |\n|---|\n| old |\n\nafter | bar\n<!-- bench/new.md -->\n\nend\n"
    table = "<!-- bench/new.md -->\n| a |\n| --- |\n| \\1 new |\n"
    replaced = readme_tables(readme, tmp_path)
    assert replaced == f"before\n\n{table}\nafter | bar\n{table}\nend\n"
    assert readme_tables(replaced, tmp_path) == replaced


def test_readme_marker_without_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"nowhere\.md, which is not there"):
        readme_tables("<!-- nowhere.md -->\n", tmp_path)


def test_runs_that_make_no_report_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    run = made_up_run(labels=FEW, num_questions=3)
    backwards = made_up_run(labels=("draft", "semantic"), num_questions=3)
    for runs, message in (
        ([replace(run, rows=[])], "has no answers"),
        ([replace(run, records=[])], "has no answers"),
        ([replace(run, name="report")], "can be called report.md"),
        ([backwards], "no baseline: its first configuration is draft"),
        ([], "no run"),
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
