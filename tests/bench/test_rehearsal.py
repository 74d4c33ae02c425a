"""The paper's comparison from two small checkpoints of its model classes to the report, by the command."""

import json
from pathlib import Path

import pytest
import yaml

from semspec.reporting.progress import Reporter
from semspec.training.config import read_config, read_yaml
from semspec_bench.cli import main
from semspec_bench.record import read_records
from semspec_bench.report import paper
from semspec_bench.reproduce import PairConfig, Reproduction
from tests.bench.test_vllm import stand_in
from tests.bench.tiny_pair import METHODS, save_models, save_pair_file, use_hub

pytestmark = pytest.mark.slow


def test_one_command_makes_every_published_row_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_hub(tmp_path / "hub", monkeypatch)
    save_models(tmp_path / "hub")
    output = tmp_path / "output"
    pair_file = save_pair_file(tmp_path)
    config_data = yaml.safe_load(pair_file.read_text())
    aime, in_transformers = config_data["runs"][1], config_data["runs"][1].copy()
    aime["strategies"] = [*METHODS, "server/other", "server/absent"]
    in_transformers |= {"engine": "transformers", "strategies": ["target", "semantic"]}
    config_data["runs"].append(in_transformers)
    config_data["servers"] = {
        "other": f"exec {stand_in(tmp_path)} --port {{port}}",
        "absent": 'cd "${NOWHERE:?set NOWHERE}"',
    }
    pair_file.write_text(yaml.safe_dump(config_data))
    main(["reproduce", "--pair", str(pair_file), "--output", str(output)])
    said = capsys.readouterr().err
    assert "math500: 2 answers from each of 8 strategies" in said
    assert "at the paper's latencies" in said

    page = (output / "report" / "report.html").read_text()
    published = [row for row in paper.RESULTS if row.pair.startswith("R1-32B")]
    assert all(f"{row.pair}: {row.method}" in page for row in published)
    tables = [(output / "report" / f"{task}.md").read_text() for task in paper.TASKS]
    assert all(f"| {label} | " in table for label in METHODS for table in tables)
    assert "Learning curve" in page

    runs = output / "runs"
    for task in paper.TASKS:
        facts = json.loads((runs / task / "run.json").read_text())
        labels = {record.label for record in read_records(runs / task / "records.jsonl")}
        assert labels | set(facts["not_applicable"]) >= set(METHODS)
    facts = json.loads((runs / "aime24/run.json").read_text())
    assert "set NOWHERE" in facts["not_applicable"]["server/absent"]
    for folder, label in (("aime24", "server/other"), ("aime24-transformers", "semantic")):
        assert label in {record.label for record in read_records(runs / folder / "records.jsonl")}
    before = {
        path: path.stat().st_mtime_ns
        for path in (*runs.rglob("*"), *(output / "training").rglob("*"))
    }
    config = read_config(pair_file, PairConfig)
    again = Reproduction(
        config, read_yaml(tmp_path / config.training), output, None, Reporter(quiet=True)
    )
    again.train("main")
    again.measure(again.check())
    assert before == {path: path.stat().st_mtime_ns for path in before}
