"""The page and its files."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from semspec.training.data.labels import Labels
from semspec.training.evaluation.acceptance import Cost
from semspec.training.evaluation.evaluate import Evidence, Report, evaluate
from semspec.training.evaluation.report import examples_table, sections, write_report
from semspec.training.report.document import Table, as_html
from tests.pages import num_pictures
from tests.training.judged import guessed, made_up

pytestmark = pytest.mark.slow
PNG = b"\x89PNG\r\n\x1a\n"
HOSTILE = "<script>alert('x')</script> & \"quotes\"\n\n"


def examples(labels: Labels, report: Report) -> Table:
    """Of hostile texts, with the segment's number."""
    served = guessed(labels, "served", 0.5)
    return examples_table(labels, served, report, lambda shard, row: (HOSTILE, str(row)))


def labels_of(domains: list[str]) -> Labels:
    return made_up(num_questions=36, num_samples=6, domains=domains)


def report_on(labels: Labels) -> Report:
    served = guessed(labels, "served", 0.5)
    curve = [(n, guessed(labels, str(n), 8 / n)) for n in (8, 16, 24)]
    domains = {name: guessed(labels, name, 1.0) for name in np.unique(labels.domain).tolist()}
    variants = [guessed(labels, "<b>paper</b>", 2.0)]
    cost = Cost(0.7, 7.3, 11.4, 0.5)
    facts: dict[str, str | int] = {"entailment forwards": 12_345, "recipe": "<u>cross</u>"}
    return evaluate(Evidence("a<b", labels, served, cost, variants, curve, domains, facts), num_resamples=10)


@pytest.fixture(scope="module")
def labels() -> Labels:
    return labels_of(["algebra", "geometry"])


@pytest.fixture(scope="module")
def report(labels: Labels) -> Report:
    return report_on(labels)


@pytest.fixture(scope="module")
def written(report: Report, labels: Labels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work") / "report"
    write_report(report, folder, examples(labels, report))
    return folder


def test_page_is_whole_in_itself_and_escapes_what_models_wrote(written: Path) -> None:
    text = (written / "report.html").read_text()
    assert num_pictures(text) == 2
    assert not re.search(r"https?://", text)
    assert text.count("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;") >= 5
    assert "&lt;u&gt;cross&lt;/u&gt;" in text and "Probes for a&lt;b" in text and "&lt;b&gt;paper&lt;/b&gt;" in text


def test_page_says_the_verdict_and_its_numbers(written: Path, report: Report) -> None:
    text = (written / "report.html").read_text()
    assert report.verdict.headline in text and text.index("fails" if "fails" in text else "holds") < text.index(
        "Variants"
    )
    for auroc in (report.served.verifications["truth"].auroc, report.learning_curve[0].auroc, report.domains[1].auroc):
        assert f"{auroc.value:.3f} ± {auroc.error:.3f}" in text
    assert "entailment forwards" in text
    assert "unknown" not in re.sub(r"truth about them is unknown", "", text)


def test_files_are_the_pages_and_leave_nothing_behind(written: Path, report: Report) -> None:
    names = {"acceptance", "reliability"}
    assert {path.name for path in written.iterdir()} == {f"{n}.png" for n in names} | {"report.html", "report.json"}
    assert all(path.read_bytes().startswith(PNG) for path in written.glob("*.png"))
    assert json.loads((written / "report.json").read_text())["verdict"]["headline"] == report.verdict.headline


def test_pictures_are_the_same_each_time(report: Report, labels: Labels, written: Path, tmp_path: Path) -> None:
    write_report(report, tmp_path, examples(labels, report))
    for path in tmp_path.glob("*.png"):
        assert path.read_bytes() == (written / path.name).read_bytes()


def test_page_without_truth_curve_and_domains() -> None:
    labels = labels_of(["all"])
    labels.valid[:] = np.nan
    served = guessed(labels, "served", 0.5)
    report = evaluate(Evidence("bare", labels, served, Cost(0.7, 7.3, 11.4, 0.5)), num_resamples=2)
    text = as_html("T", sections(report, examples(labels, report)))
    assert num_pictures(text) == 2 and "the target says it too" in text and "shares of the training" not in text


def test_examples_are_of_every_kind_and_of_different_contexts(labels: Labels, report: Report) -> None:
    served, rows = guessed(labels, "served", 0.5), examples(labels, report).rows
    threshold = report.recommendation.expected.threshold
    assert threshold is not None and len(rows) >= 5
    contexts = set()
    for kind, *_, text in rows:
        row = int(text)
        assert labels.split[row] == "test" and labels.by_draft[row]
        assert kind.endswith("right" if labels.valid[row] == 1 else "wrong")
        assert kind.startswith("accepted" if served.ratio[row] >= threshold else "rejected")
        contexts.add((kind, labels.context[row]))
    assert len(contexts) == len(rows)
