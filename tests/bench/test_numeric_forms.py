"""The comparison of numeric forms, on a tiny model."""

import json
import sys
from pathlib import Path

import gguf
import pytest

from semspec.engine.numeric_form import resolve_form
from semspec_bench import numeric_forms
from tests.helpers.checkpoints import save_spelling_checkpoint
from tests.helpers.ggufs import save_gguf


@pytest.fixture(autouse=True)
def _places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    resolve_form.cache_clear()


def rows(text: str) -> dict[str, list[str]]:
    """Return the cells of a Markdown table by the first cell of their line."""
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {first: others for first, *others in cells}


def test_forms_are_compared_with_fp32(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = save_gguf(
        tmp_path / "m.gguf",
        save_spelling_checkpoint(tmp_path / "m"),
        gguf.GGMLQuantizationType.Q8_0,
    )
    problems = tmp_path / "problems.jsonl"
    problems.write_text(
        "".join(
            json.dumps({"problem": f"{n} + 1?", "solution": f"{n + 1}."}) + "\n" for n in range(3)
        )
    )
    monkeypatch.setattr(sys, "argv", ["", str(file), "--problems", str(problems), "--number", "2"])
    assert numeric_forms.main() == 0
    written = (tmp_path / numeric_forms.RESULTS / "m-1-accuracy.md").read_text()
    assert "2 texts" in written
    found = rows(written)
    assert 0 < float(found["packed"][0].rstrip("%")) < 5
    assert 0 < float(found["bfloat16"][0].rstrip("%")) < 2
    monkeypatch.setattr(sys, "argv", ["", str(file), "--rounds", "2", "--forms", "float32,packed"])
    monkeypatch.setattr(numeric_forms, "PROMPT_IDS", (1, 200))
    assert numeric_forms.main() == 0
    speeds = rows((tmp_path / numeric_forms.RESULTS / "m-1.md").read_text())
    assert all(float(speeds[form][2]) > 0 for form in ("float32", "packed"))
