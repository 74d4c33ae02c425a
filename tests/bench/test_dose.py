"""A worse draft is served with the bundled probes, and its report has the runs' numbers."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from semspec.bench import dose
from semspec.bench.record import RECORDS, as_line
from semspec.bench.report.page import write_report
from semspec.errors import InvalidRequest
from semspec.probes.verifier import ProbeVerifier
from semspec.stack import BUNDLED_PAIR, StackConfig
from tests.bench.made_up import made_up_run


async def test_noise_has_the_size_that_is_asked_for(tmp_path: Path) -> None:
    for noise in (0.0, 0.1):
        dose.worse_draft(noise, tmp_path / str(noise))
    given, same, worse = (
        load_file(folder / "draft" / "model.safetensors")
        for folder in (BUNDLED_PAIR, tmp_path / "0.0", tmp_path / "0.1")
    )
    for name, matrix in given.items():
        assert torch.equal(matrix, same[name])
        if matrix.ndim > 1:
            added = (worse[name].float() - matrix.float()).std() / matrix.float().std()
            assert added == pytest.approx(0.1, rel=0.1), name
        else:
            assert torch.equal(matrix, worse[name])
    config = StackConfig.of_pair(tmp_path / "0.1")
    assert config.draft_probe and config.target_probe
    own, bundled = [
        await ProbeVerifier.load(probes / "draft.safetensors", probes / "target.safetensors").info()
        for probes in (config.draft_probe.parent, BUNDLED_PAIR / "probes")
    ]
    assert own.target_model == bundled.target_model
    assert own.draft_model != bundled.draft_model
    with pytest.raises(InvalidRequest, match="exists"):
        dose.worse_draft(0.1, tmp_path / "0.1")


def test_report_has_the_wrong_steps_and_the_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = made_up_run(labels=("target", "draft", "semantic"), sessions=24)
    write_report([whole], tmp_path / "result")
    folder = tmp_path / "0.1"
    for label in ("draft", "semantic"):
        run = folder / label
        run.mkdir(parents=True)
        (run / "run.json").write_text(json.dumps({"settings": dict(whole.settings), "labels": [label]}))
        (run / RECORDS).write_text("".join(as_line(one) for one in whole.records if one.label == label))
    arguments = [
        "report",
        str(tmp_path / "result" / "sampled"),
        f"noise .1={folder}",
        "--output",
        str(tmp_path / "out"),
    ]
    with pytest.raises(SystemExit):
        dose.main(arguments)
    assert "algorithm_error" in capsys.readouterr().err and not (tmp_path / "out").exists()
    (folder / "algorithm").mkdir()
    rules = {"draft alone": 0.2, "p/q >= 0.4, probes (as served)": 0.05}
    facts = {"rules": [{"rule": name, "wrong": {"value": share, "error": 0.01}} for name, share in rules.items()]}
    (folder / "algorithm" / "algorithm.json").write_text(json.dumps(facts))
    dose.main(arguments)
    assert "| noise .1 | 20.0% ± 1.0% | 5.0% ± 1.0% |" in capsys.readouterr().out
    assert (tmp_path / "out" / "dose.png").read_bytes().startswith(b"\x89PNG")
