"""The report of made-up runs: what stands in its tables, what it says is missing, what it refuses."""

import csv
import json
import re
from pathlib import Path

import pytest
from markupsafe import escape

from semspec_bench.report import paper
from semspec_bench.report.page import main_row, write_report
from semspec_bench.report.tables import COMPARED, main_table
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


def test_report_writes_page_numbers_and_tables(output: Path) -> None:
    of_runs = {f"{run}{end}" for run in ("sampled", "greedy") for end in (".md", ".jsonl.gz")}
    assert {path.name for path in output.iterdir()} == of_runs | {"report.html", "summary.json"}


def test_page_is_whole_in_itself_and_escapes_what_others_wrote(output: Path) -> None:
    page = (output / "report.html").read_text()
    assert num_pictures(page) == 4  # two runs; the probes' curves and learning curve
    assert HOSTILE not in page and "&lt;script&gt;" in page


def test_equal_runs_have_equal_pages(runs: list[Run], output: Path, tmp_path: Path) -> None:
    write_report(runs, tmp_path, probes=PROBES)
    assert (tmp_path / "report.html").read_bytes() == (output / "report.html").read_bytes()


def test_markdown_table_has_equal_rows_and_no_foreign_tags(output: Path) -> None:
    lines = (output / "sampled.md").read_text().splitlines()
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
    assert "<script" not in "".join(lines) and "&lt;script" in lines[-1]


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


def test_table_has_counts_intervals_and_nothing_to_compare_the_baseline_with() -> None:
    table = main_table(made_up_run(labels=("target", "semantic"), num_questions=100))
    rows = [dict(zip(table.header, row, strict=True)) for row in table.rows]
    assert rows[1]["right"].endswith(" of 100")
    assert re.fullmatch(r"\d+\.\d \(\d+\.\d to \d+\.\d\)", rows[1]["pass@1 in % (95%)"])
    assert (
        {rows[0][column] for column in COMPARED}
        == {"-"}
        != {rows[1][column] for column in COMPARED}
    )


@pytest.mark.parametrize(("target", "short"), paper.TARGETS.items())
def test_every_published_cell_of_a_pair_stands_below_its_runs(
    target: str, short: str, tmp_path: Path
) -> None:
    models = f"{target}, {paper.DRAFT}"
    runs = [made_up_run(task, FEW, 2, task=task, models=models) for task in paper.TASKS]
    write_report(runs, tmp_path)
    sections = (
        (tmp_path / "report.html").read_text().split("<h2>The paper's values for this task")[1:]
    )
    with (ROOT / "benchmarks/semspec_bench/report/paper.csv").open() as file:
        cells = list(csv.DictReader(file))
    assert len(cells) == 86
    for cell in cells:
        section = sections[list(paper.TASKS).index(cell["task"])].split("</table>")[0]
        name = escape(f"{cell['pair']}: {cell['method']}")
        pass_at_1, tokens_per_s, latency_s, ratio = (
            float(cell[column] or "nan") for column in list(cell)[5:]
        )
        numbers = (cell["table"], f"{100 * pass_at_1:.1f}", latency_s, tokens_per_s, ratio)
        start = f'<th scope="row">{name}</th>' + "".join(f"<td>{number}</td>" for number in numbers)
        start = start.replace("nan", "-")
        assert (start in section) == cell["pair"].startswith(short)


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
