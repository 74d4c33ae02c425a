"""Files and settings with JSON or YAML of too many levels are refused in one line."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from semspec.clustering.loading import served_equivalence
from semspec.commands.plan import read_model
from semspec.decoding.likelihood.calibration import load_calibration
from semspec.decoding.retrieval.datastore import Datastore
from semspec.engine.digests import _read_entry
from semspec.engine.torch_engine import TorchEngine
from semspec.errors import SemspecError
from semspec.files import MAX_DEPTH, TooDeep, parse_json
from semspec.keys import read_entries
from semspec.probes.probe import load_probe
from semspec.release import load_release
from semspec.reporting.files import json_lines
from semspec.reporting.files import read_json as read_stage
from semspec.stack import BUNDLED_PAIR, StackConfig
from semspec.training.config import read_yaml
from semspec.types import ModelInfo, Writer
from semspec_bench.record import read_records
from semspec_bench.report.page import read_probes
from semspec_bench.summary import read_run
from semspec_gateway.options import Defaults
from semspec_gateway.releases import load_served_release
from tests.retrieval.support import write

DEEP = "[" * 100_000 + "]" * 100_000
FORMS = {
    "lists": DEEP,
    "objects": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "field": f'{{"format": 1, "zzz": {DEEP}}}',
    "within Python's limit": "[" * 800 + "]" * 800,
}
Read = Callable[[Path], object]
READERS: dict[str, tuple[str, Read]] = {
    "release": ("probes/pair.json", lambda path: load_release(path.parent)),
    "release of a gateway": (
        "probes/pair.json",
        lambda path: load_served_release(path.parent, Defaults()),
    ),
    "calibration": ("probes/likelihood.json", load_calibration),
    "probe": ("probes/draft.json", lambda path: load_probe(path.with_suffix(".safetensors"))),
    "probe's verdict": (
        "probes/target.json",
        lambda path: StackConfig(pair=path.parent).bad_verdicts,
    ),
    "keys": ("keys", lambda path: read_entries("", path)),
    "datastore": ("datastore/card.json", lambda path: Datastore.load(path.parent)),
    "equivalence": ("equivalence.json", lambda path: served_equivalence(str(path), {})),
    "configuration of training": ("training.yaml", read_yaml),
    "stage of training": ("stage.json", read_stage),
    "questions": ("questions.jsonl", lambda path: list(json_lines(path))),
    "run of a bench": ("run.json", lambda path: read_run(path.parent)),
    "answers of a bench": ("records.jsonl", lambda path: read_records(path)),
    "report of probes": ("report.json", read_probes),
    "model's configuration in a plan": (
        "draft/config.json",
        lambda path: read_model(str(path.parent)),
    ),
    **{
        f"checkpoint's {name}": (f"draft/{name}", lambda path: load_engine(path.parent))
        for name in (
            "config.json",
            "generation_config.json",
            "tokenizer.json",
            "tokenizer_config.json",
        )
    },
}
"""Readers of files, with the file that each reads."""


def load_engine(folder: Path) -> object:
    return TorchEngine.load(str(folder), writer=Writer.DRAFT, device="cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Sound files, to be spoilt."""
    for name in ("probes", "draft"):
        shutil.copytree(BUNDLED_PAIR / name, tmp_path / name)
    write(
        tmp_path / "datastore",
        ModelInfo("target", "fingerprint", "tokens", 2, 16, 600),
        [[3, 1, 4, 1, 5, 9, 2, 6]],
    )
    return tmp_path


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reader", READERS)
def test_deep_file_is_refused_in_one_line(folder: Path, reader: str, form: str) -> None:
    name, read = READERS[reader]
    path = folder / name
    path.write_text(FORMS[form] + "\n")
    with pytest.raises((SemspecError, ValueError)) as refused:
        read(path)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 1500


@pytest.mark.parametrize("form", FORMS)
def test_deep_cache_of_a_digest_is_not_used(tmp_path: Path, form: str) -> None:
    (tmp_path / "entry.json").write_text(FORMS[form])
    assert _read_entry(tmp_path / "entry.json", []) is None


def test_depth_is_bounded_and_usual_depth_is_not() -> None:
    assert parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH) and parse_json('{"a": [1, {"b": null}]}')
    for text in ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), DEEP):
        with pytest.raises(TooDeep, match="more than 100 levels"):
            parse_json(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "variable"),
    [
        ("gateway", "SEMSPEC_GATEWAY_DEFAULTS"),
        ("gateway", "SEMSPEC_GATEWAY_AUDIT"),
        ("gateway", "SEMSPEC_GATEWAY_CORS_ORIGINS"),
        ("target", "SEMSPEC_TARGET_VLLM_OPTIONS"),
    ],
)
def test_deep_setting_ends_the_start_in_one_line(program: str, variable: str) -> None:
    value = {variable: '{"a": ' + "[" * 30_000 + "]" * 30_000 + "}"}
    command = [sys.executable, "-m", f"semspec_{program}"]
    ended = subprocess.run(
        command, env=os.environ | value, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 2
    [line] = ended.stderr.splitlines()
    assert f"{variable}: its JSON has more than 100 levels" in line
