"""Closed forms of rewrites, and their table of a run."""

from pathlib import Path
from random import Random

import pytest

from studies.simulate.rewrites import acceptance_of, kept_share, main, tokens_a_round


@pytest.mark.parametrize(("acceptance", "num_proposed"), [(0.0, 4), (0.5, 1), (0.8, 4), (0.95, 16), (1.0, 4)])
def test_tokens_a_round_are_those_of_many_rounds(acceptance: float, num_proposed: int) -> None:
    random, total = Random(1), 0
    for _ in range(20_000):
        accepted = [random.random() < acceptance for _ in range(num_proposed)]
        total += [*accepted, False].index(False) + 1
    expected = tokens_a_round(acceptance, num_proposed)
    assert total / 20_000 == pytest.approx(expected, rel=0.02)
    assert acceptance_of((expected - 1) / num_proposed, num_proposed) == pytest.approx(acceptance, abs=1e-6)


def test_kept_share_grows_with_alternatives() -> None:
    assert [kept_share(0.5, number) for number in (1, 2, 3)] == [0.5, 0.75, 0.875]


def test_folder_without_rewrites_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    assert "no rewritten segments" in capsys.readouterr().err
