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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": []}, "has no answers"),
        ({"records": []}, "has no answers"),
        ({"name": "report"}, "can be called report.md"),
    ],
)
def test_run_without_answers_or_with_a_taken_name_is_refused(
    change: dict[str, object], message: str, tmp_path: Path
) -> None:
    run = replace(made_up_run(labels=FEW, num_questions=3), **change)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=message):
        write_report([run], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_run_whose_first_row_is_not_the_target_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no baseline: its first configuration is draft"):
        write_report([made_up_run(labels=("draft", "semantic"), num_questions=3)], tmp_path)


def test_no_run_and_two_of_a_name_are_refused(tmp_path: Path) -> None:
    run = made_up_run(labels=FEW, num_questions=3)
    with pytest.raises(InvalidRequest, match="no run"):
        write_report([], tmp_path)
    with pytest.raises(InvalidRequest, match=r"called sampled\.md; rename"):
        write_report([run, run], tmp_path)


@pytest.mark.parametrize("text", [None, "{", "[]", "{}", '{"medians": {}}'])
def test_files_that_are_not_what_they_should_be_are_refused_with_the_remedy(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    if text is not None:
        path.write_text(text)
    run = made_up_run(labels=FEW, num_questions=3)
    with pytest.raises(InvalidRequest, match="semspec train run"):
        write_report([run], tmp_path / "out", probes=path)
    with pytest.raises(InvalidRequest, match=r"python -m semspec\.bench\.cost"):
        write_report([run], tmp_path / "out", cost=path)
    assert not (tmp_path / "out").exists()
