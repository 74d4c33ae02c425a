"""The report of made-up runs: what stands in its tables, what it says is missing, what it refuses."""

import json
from pathlib import Path

import pytest

from semspec_bench.report.page import main_row, write_report
from semspec_bench.report.tables import main_table
from semspec_bench.summary import Run, load_run
from tests.bench.made_up import FEW, HOSTILE, RATES, made_up_run
from tests.helpers.pages import num_pictures

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
PROBES = ROOT / "benchmarks/results/probes/report.json"
OLD = {"vllm/draft_model": f"vocabularies | differ {HOSTILE}"}


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return [
        made_up_run(not_applicable=OLD),
        made_up_run("greedy", FEW, num_questions=30, seed=1, temperature=0.0),
    ]


@pytest.fixture(scope="module")
def output(runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    write_report(runs, folder / "out", probes=PROBES)
    return folder / "out"


def test_page_is_whole_in_itself_and_escapes_what_others_wrote(output: Path) -> None:
    page = (output / "report.html").read_text()
    assert num_pictures(page) == 4  # two runs; the probes' curves and learning curve
    assert HOSTILE not in page and "&lt;script&gt;" in page


def test_main_row_is_the_served_one_whatever_the_order() -> None:
    labels = (
        "target",
        "semantic:gamma=2",
        "in-process/semantic",
        "semantic",
        "semantic:threshold=0.3",
    )
    row = main_row(made_up_run(labels=labels, num_questions=5))
    assert row is not None and row.label == "semantic"
    assert main_row(made_up_run(labels=("target", "draft"), num_questions=5)) is None


def test_summary_holds_all_rows_and_no_nan(output: Path, tmp_path: Path) -> None:
    summary = json.loads((output / "summary.json").read_text())
    assert [row["label"] for row in summary["sampled"]["rows"]] == list(RATES)
    write_report([made_up_run(labels=FEW, num_questions=1)], tmp_path)
    [row, *_] = json.loads((tmp_path / "summary.json").read_text())["sampled"]["rows"]
    assert row["pass_at_1"]["error"] is None


def test_run_of_several_sessions_reports_quality_and_no_times(tmp_path: Path) -> None:
    run = made_up_run("many", FEW, num_questions=200, sessions=16)
    write_report([run], tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "times are not" in page and "times as fast" not in page
    assert not {"speed-up", "latency s", "tokens/s"} & set(main_table(run).header)


@pytest.mark.parametrize("folder", ["loss", "strategies"])
def test_committed_tables_come_from_the_committed_answers(folder: str, tmp_path: Path) -> None:
    committed = ROOT / "benchmarks" / "results" / folder
    answers = list(committed.glob("*.jsonl.gz"))
    write_report([load_run(path) for path in answers], tmp_path)
    for name in (path.name.replace(".jsonl.gz", ".md") for path in answers):
        assert (tmp_path / name).read_text() == (committed / name).read_text()
    assert json.loads((tmp_path / "summary.json").read_text()) == json.loads(
        (committed / "summary.json").read_text()
    )
