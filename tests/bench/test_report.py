"""The report of made-up runs: what stands in its tables, what it says is missing, what it refuses."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from semspec.bench.report import paper, rounds, sections, tables
from semspec.bench.report.page import write_report
from semspec.bench.report.tables import main_row
from semspec.bench.summary import Run, load_run
from semspec.training.report.document import (
    Bullets,
    Code,
    Section,
    Table,
    Text,
    as_html,
    as_markdown,
)
from tests.bench.made_up import FEW, HOSTILE, RATES, made_up_run
from tests.pages import num_pictures

pytestmark = pytest.mark.slow
PICTURES = ("-quality.png", "-pareto.png", "-speedup.png", "-round.png", "-depth.png")
ROOT = Path(__file__).resolve().parents[2]
PROBES = ROOT / "bench/results/probes/report.json"
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


def test_report_writes_pages_pictures_numbers_and_tables(output: Path) -> None:
    of_runs = {
        f"{run}{end}" for run in ("sampled", "greedy") for end in (".md", ".jsonl.gz", *PICTURES)
    }
    of_all = {"gamma.png", "report.md", "report.html", "summary.json"}
    assert {path.name for path in output.iterdir()} == of_runs | of_all


def test_html_is_whole_in_itself_and_escapes_what_others_wrote(output: Path) -> None:
    page = (output / "report.html").read_text()
    assert num_pictures(page) == 11
    assert HOSTILE not in page and "&lt;script&gt;" in page


def test_markdown_shows_every_picture_and_no_foreign_tags(output: Path) -> None:
    page = (output / "report.md").read_text()
    shown = re.findall(r"!\[[^\]]+\]\((\S+\.png)\)", page)
    assert {output / name for name in shown} == set(output.glob("*.png"))
    assert "<script" not in page
    widths = {
        len(re.findall(r"(?<!\\)\|", line))
        for line in (output / "sampled.md").read_text().splitlines()
    }
    assert widths == {10}  # a bar within a cell would add one


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


def test_mean_round_is_the_mean_of_the_judged_segments(runs: list[Run]) -> None:
    row = main_row(runs[0])
    assert row is not None
    found = rounds.mean_round(runs[0], row)
    assert found is not None
    num_rounds = found.num_rounds / row.num_questions
    assert num_rounds == row.num_rounds
    for name, stage_ms in found.stages_ms.items():
        assert stage_ms * num_rounds == pytest.approx(row.stages_ms[name])
    assert (
        rounds.mean_round(runs[0], runs[0].rows[0]) is None
    )  # nobody judges the target's own segments


def test_acceptance_by_depth_counts_positions_with_enough_segments(runs: list[Run]) -> None:
    row = main_row(runs[0])
    assert row is not None
    depths = rounds.by_depth(runs[0], row)
    assert [one.index for one in depths] == list(range(1, 9))
    pooled = sum(one.acceptance.value * one.num_segments for one in depths) / sum(
        one.num_segments for one in depths
    )
    assert pooled == pytest.approx(row.acceptance_rate)
    few = made_up_run(labels=FEW, num_questions=rounds.LEAST_SEGMENTS - 1)
    assert rounds.by_depth(few, few.rows[1]) == []


def test_code_stands_as_code_and_the_rest_is_escaped_in_both_settings() -> None:
    blocks = (Text("`x < y` and <b>"), Bullets(("<i>",)), Code(("<u> `z`",)))
    markdown, page = (
        as_markdown("T", [Section("A < B", blocks)]),
        as_html("T", [Section("A < B", blocks)]),
    )
    assert (
        "`x < y` and &lt;b>" in markdown and "- &lt;i>\n" in markdown and "\n<u> `z`\n" in markdown
    )
    assert "<code>x &lt; y</code> and &lt;b&gt;" in page
    assert "<li>&lt;i&gt;</li>" in page and "<pre>&lt;u&gt; `z`\n" in page


def test_run_of_several_sessions_reports_quality_and_no_times(tmp_path: Path) -> None:
    run = made_up_run("many", FEW, num_questions=200, sessions=16)
    write_report([run], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} >= {"many-quality.png", "many.md"}
    assert not list(tmp_path.glob("many-pareto.png")) and not list(
        tmp_path.glob("many-speedup.png")
    )
    times = [row[3:6] for row in tables.main_table(run).rows]
    assert times == [("-", "-", "-")] * len(FEW)


def test_quality_names_what_the_margin_allows() -> None:
    run = made_up_run(labels=("target", "semantic", "draft"), num_questions=2000)
    found = {row[0]: row[1:] for row in tables.quality_table(run).rows}
    assert (found["semantic"][-1], found["draft"][-1]) == ("yes", "not shown")
    assert set(found["target"][2:]) == {"-"}


@pytest.mark.parametrize(("target", "short"), paper.TARGETS.items())
def test_every_published_cell_is_printed_and_beside_the_same_pairs_runs(
    target: str, short: str
) -> None:
    with (ROOT / "bench/report/paper.csv").open() as file:
        cells = list(csv.DictReader(file))
    settings: dict[str, Any] = {"pair": "own", "models": f"{target}, {paper.DRAFT}"}
    runs = [made_up_run(task, FEW, num_questions=2, task=task, **settings) for task in paper.TASKS]
    blocks = {section.title: section.blocks[-1] for section in sections.paper_layout(runs)}
    own, every = blocks["Pair own"], blocks["The paper's own values, for orientation"]
    assert isinstance(own, Table) and isinstance(every, Table) and len(cells) == 86
    rows = {
        row[0]: dict(zip(paper.TASKS, row[1:], strict=True)) for row in (*own.rows, *every.rows)
    }
    for cell in cells:
        for where in [cell["pair"], *["published"] * cell["pair"].startswith(short)]:
            shown = rows[f"{where}: {cell['method']} (table {cell['table']})"][cell["task"]].split(
                " "
            )[:7:2]
            expected = [float(cell[name] or "nan") for name in list(cell)[5:]]
            assert [float(one.replace("-", "nan")) for one in shown] == pytest.approx(
                expected, rel=5e-3, nan_ok=True
            )
    assert {*rows["spec-thinking"].values()} == {"-"} != {*rows["target"].values()}


@pytest.mark.parametrize("folder", ["loss", "strategies"])
def test_committed_tables_come_from_the_committed_answers(folder: str, tmp_path: Path) -> None:
    committed = ROOT / "bench" / "results" / folder
    answers = list(committed.glob("*.jsonl.gz"))
    write_report([load_run(path) for path in answers], tmp_path)
    for name in (path.name.replace(".jsonl.gz", ".md") for path in answers):
        assert (tmp_path / name).read_text() == (committed / name).read_text()
    assert json.loads((tmp_path / "summary.json").read_text()) == json.loads(
        (committed / "summary.json").read_text()
    )
