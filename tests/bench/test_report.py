"""The report of committed runs: what it shows, what it leaves out, what it refuses."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from semspec.errors import InvalidRequest
from semspec_bench.report.page import main_row, write_report
from semspec_bench.report.tables import main_table
from semspec_bench.summary import Run, load_run, summarise
from tests.helpers.pages import num_pictures

pytestmark = pytest.mark.slow
RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
HOSTILE = "<script>alert('x')</script>"


@pytest.fixture(scope="module")
def run() -> Run:
    return load_run(RESULTS / "strategies" / "strategies.jsonl.gz")


def test_page_is_self_contained_and_escapes_foreign_text(run: Run, tmp_path: Path) -> None:
    hostile = replace(run, not_applicable={"vllm/draft_model": f"vocabularies | differ {HOSTILE}"})
    greedy = load_run(RESULTS / "strategies" / "strategies-greedy.jsonl.gz")
    write_report([hostile, greedy], tmp_path, probes=RESULTS / "probes" / "report.json")
    page = (tmp_path / "report.html").read_text()
    assert num_pictures(page) == 4  # two runs; the probes' curves and learning curve
    assert HOSTILE not in page and "&lt;script&gt;" in page


def test_main_row_is_the_served_one_whatever_the_order(run: Run) -> None:
    row = main_row(replace(run, rows=run.rows[::-1]))
    assert row is not None and row.label == "semantic"
    others = [row for row in run.rows if row.configuration.method != "semantic"]
    assert main_row(replace(run, rows=others)) is None


def test_error_that_cannot_be_computed_is_null_in_the_summary(run: Run, tmp_path: Path) -> None:
    records = [record for record in run.records if record.question == run.records[0].question]
    rows = summarise(records, [row.label for row in run.rows])
    write_report([replace(run, rows=rows, records=records)], tmp_path)
    [row, *_] = json.loads((tmp_path / "summary.json").read_text())[run.name]["rows"]
    assert row["pass_at_1"]["error"] is None


def test_run_of_several_sessions_reports_quality_and_no_times(run: Run, tmp_path: Path) -> None:
    shared = replace(run, settings={**run.settings, "sessions": 16})
    write_report([shared], tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "times are not" in page and "times as fast" not in page
    assert not {"speed-up", "latency s", "tokens/s"} & set(main_table(shared).header)


@pytest.mark.parametrize("folder", ["loss", "strategies"])
def test_committed_tables_come_from_the_committed_answers(folder: str, tmp_path: Path) -> None:
    answers = list((RESULTS / folder).glob("*.jsonl.gz"))
    write_report([load_run(path) for path in answers], tmp_path)
    for name in (path.name.replace(".jsonl.gz", ".md") for path in answers):
        assert (tmp_path / name).read_text() == (RESULTS / folder / name).read_text()
    made, committed = (
        json.loads((place / "summary.json").read_text()) for place in (tmp_path, RESULTS / folder)
    )
    assert made == committed


def test_runs_without_report_are_refused(run: Run, tmp_path: Path) -> None:
    without_baseline = replace(run, rows=run.rows[1:])
    for runs, message in (
        ([without_baseline], "no baseline: its first configuration is"),
        ([run, run], r"can be called strategies\.md; rename"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            write_report(runs, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", [None, "{", "[]", '{"medians": {}}'])
def test_bad_report_of_probes_is_refused(text: str | None, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidRequest, match="semspec train run"):
        write_report([run], tmp_path / "out", probes=path)
    assert not (tmp_path / "out").exists()
