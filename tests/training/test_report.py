"""The page and its files."""

import re
from pathlib import Path

import numpy as np
import pytest
from markupsafe import escape

from semspec.reporting.document import Table
from semspec.training.data.labels import Labels
from semspec.training.evaluation.acceptance import Cost
from semspec.training.evaluation.evaluate import Evidence, Report, evaluate
from semspec.training.evaluation.report import examples_table, write_report
from tests.helpers.pages import num_pictures
from tests.training.judged import guessed, made_up

pytestmark = pytest.mark.slow
HOSTILE = "<script>alert('x')</script> & \"quotes\"\n\n"


def examples(labels: Labels, report: Report) -> Table:
    """Of hostile texts, with the segment's number."""
    served = guessed(labels, "served", 0.5)
    return examples_table(labels, served, report, lambda shard, row: (HOSTILE, str(row)))


@pytest.fixture(scope="module")
def labels() -> Labels:
    return made_up(num_questions=36, num_samples=6)


@pytest.fixture(scope="module")
def report(labels: Labels) -> Report:
    served = guessed(labels, "served", 0.5)
    curve = [(n, guessed(labels, str(n), 8 / n)) for n in (8, 16, 24)]
    domains = {name: guessed(labels, name, 1.0) for name in np.unique(labels.domain).tolist()}
    variants = [guessed(labels, "<b>paper</b>", 2.0)]
    cost = Cost(0.7, 7.3, 11.4, 0.5)
    facts: dict[str, str | int] = {"recipe": "<u>cross</u>"}
    return evaluate(
        Evidence("a<b", labels, served, cost, variants, curve, domains, facts), num_resamples=10
    )


def test_page_escapes_what_models_wrote(labels: Labels, report: Report, tmp_path: Path) -> None:
    write_report(report, tmp_path, examples(labels, report))
    text = (tmp_path / "report.html").read_text()
    assert num_pictures(text) == 2
    assert not re.search(r"https?://", text)
    assert re.findall('class="verdict ([a-z]+)"', text) == [
        verdict.standing for verdict in report.verdicts
    ]
    assert all(str(escape(verdict.sentence)) in text for verdict in report.verdicts)
    assert text.count("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;") >= 5
    assert "Probes for a&lt;b" in text and "&lt;b&gt;paper&lt;/b&gt;" in text


def test_examples_are_of_every_kind(labels: Labels, report: Report) -> None:
    served, rows = guessed(labels, "served", 0.5), examples(labels, report).rows
    threshold = report.recommendation.shown.threshold
    assert threshold is not None and len(rows) >= 5
    contexts = set()
    for kind, *_, text in rows:
        row = int(text)
        assert labels.split[row] == "test" and labels.by_draft[row]
        assert kind.endswith("right" if labels.valid[row] == 1 else "wrong")
        assert kind.startswith("accepted" if served.ratio[row] >= threshold else "rejected")
        contexts.add((kind, labels.context[row]))
    assert len(contexts) == len(rows)
