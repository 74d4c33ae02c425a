"""The file of a calibration: what is written is read; what is damaged, foreign or of a small pilot is refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import pytest

import semspec.pairs
from semspec.decoding.likelihood.calibration import Calibration, as_json, load_calibration
from semspec.errors import Mismatch
from semspec.stack import BUNDLED_PAIR
from semspec.types import Writer
from tests.helpers.calibrations import calibration
from tests.helpers.fakes import FakeModel

PAIRS = Path(semspec.pairs.__file__).parent
DRAFT, TARGET = (FakeModel(writer).model_info for writer in (Writer.DRAFT, Writer.TARGET))
MADE_UP = calibration(DRAFT, TARGET)


def write(path: Path, value: Calibration) -> Path:
    path.write_text(json.dumps(as_json(value)))
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert load_calibration(write(tmp_path / "likelihood.json", MADE_UP)) == MADE_UP


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda text: text[:-20], "JSONDecodeError"),
        (lambda text: "[]", "all of it: "),
        (lambda text: text.replace('"threshold": 0.5', '"threshold": 0.4'), "is damaged"),
        (lambda text: text.replace('"format": 1', '"format": 9'), "has format 9, not 1"),
        (lambda text: text.replace('"draft": {', '"drift": {'), "draft: Field required"),
        (lambda text: text.replace('"paragraph"', '"page"'), "segmentation: "),
    ],
)
def test_damaged_file_is_refused(tmp_path: Path, spoil: Callable[[str], str], reason: str) -> None:
    path = write(tmp_path / "likelihood.json", MADE_UP)
    path.write_text(spoil(path.read_text()))
    with pytest.raises(Mismatch) as caught:
        load_calibration(path)
    message = str(caught.value)
    assert str(path) in message
    assert reason in message
    assert "semspec train calibrate" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_questions": 19}, "has 19 questions with labels, at least 20"),
        ({"num_wrong": 19}, "has 19 wrong drafted segments, at least 20"),
        ({"num_right": 0}, "has 0 right drafted segments, at least 20"),
        ({"bias": nan}, "weights, bias or threshold is not a finite number"),
        ({"weights": (4.0,)}, "there must be one weight for each statistic"),
        ({"statistics": ("mean_log_probability", "min_colour")}, "no statistic min_colour"),
    ],
)
def test_calibration_that_cannot_be_used_is_refused(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    path = write(tmp_path / "likelihood.json", replace(MADE_UP, **changes))
    with pytest.raises(Mismatch, match=reason):
        load_calibration(path)


def test_quantile_outside_its_range_is_refused(tmp_path: Path) -> None:
    fields = json.loads((PAIRS / "qwen2.5-coder" / "likelihood.json").read_text())
    fields["own"]["quantile"] = 0
    path = tmp_path / "likelihood.json"
    path.write_text(json.dumps(fields))
    with pytest.raises(Mismatch, match=r"own\.quantile: .* greater than 0"):
        load_calibration(path)


def test_bundled_pair_has_one_of_its_own_models() -> None:
    bundled = load_calibration(BUNDLED_PAIR / "probes" / "likelihood.json")
    for role, own in (("draft", bundled.draft), ("target", bundled.target)):
        card = json.loads((BUNDLED_PAIR / "probes" / f"{role}.json").read_text())
        assert (own.fingerprint, own.tokenizer) == (card["fingerprint"], card["tokenizer"])
    accepted = [point.acceptance for point in bundled.curve]
    assert accepted == sorted(accepted, reverse=True) and len(accepted) >= 8
    assert min(bundled.weights) >= 0
