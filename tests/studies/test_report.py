"""The natural study's committed files still give the numbers of its README."""

import pytest

from studies.natural.report import report


@pytest.mark.slow
def test_committed_files_give_the_numbers_of_the_readme() -> None:
    lines = list(report())
    rows = {tuple(cell.strip() for cell in line.split("|")[1:4]): line for line in lines}
    assert "51.3% (42.8% to 59.8%; 657)" in rows["words", "target", "all"]
    assert "18.4% (12.9% to 24.3%; 657)" in rows["result", "target", "all"]
    assert "50.4% (41.4% to 59.8%; 399)" in rows["result", "draft", "all"]
    assert (
        "| 0.793 (0.711 to 0.865) | -0.004 (-0.063 to +0.054) |"
        in rows["states with surprisal", "0", "0.793 (0.711 to 0.865)"]
    )
    assert "| 0.794 (0.725 to 0.859) |" in rows["likelihood", "", "0.794 (0.725 to 0.859)"]
    assert "0.45 (0.22 to 0.65)" in "".join(line for line in lines if "one of the draft" in line)
    [draft] = [line for line in lines if line.startswith("| draft | 10.0%")]
    assert "| -30.0% (-44.5% to -13.6%) | 5, 23 | <0.001 |" in draft
    [likelihood] = [line for line in lines if line.startswith("| likelihood | 51.7% (39.3%")]
    assert "| +11.7% (-1.0% to +23.7%) | 11, 4 | 0.118 | 83.6%" in likelihood
    assert likelihood.endswith("| 15% | 0.64 |")
    assert any("by result, min(1, p/q) accepts 41.5%" in line for line in lines)
