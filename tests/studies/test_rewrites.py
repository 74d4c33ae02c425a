"""Closed forms of rewrites, and their table of a run."""

from pathlib import Path
from random import Random

import pytest

from semspec.bench.record import RECORDS, Record, as_line
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


def line(label: str, proposed: int = 0, accepted: int = 0, num_kept: int = 1) -> str:
    """A record with one rewrite of 20 tokens and `num_kept` accepted segments."""
    row = {
        "rejected": {"num_tokens": 9},
        "num_tokens": 20,
        "num_proposed_tokens": proposed,
        "num_accepted_tokens": accepted,
        "times": {"write_ms": 100.0},
    }
    return as_line(
        Record(label, "q", 0, 1, True, "stop", 0.1, 5, 20, 20, num_kept, 1, proposed, accepted, {}, "", [row])
    )


def cells(output: str) -> list[list[str]]:
    return [text.strip("| ").split(" | ") for text in output.splitlines()]


def test_tables_of_a_run_compare_predictions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / RECORDS).write_text(
        line("semantic")
        + line("semantic+retrieval", 90, 10)
        + line("semantic+token-level:token_gamma=2", 16, 12)
        + line("semantic:num_drafts=2", num_kept=4)
    )
    main([str(tmp_path)])
    rows = cells(capsys.readouterr().out)
    assert [row[0] for row in rows[2:6]] == [
        "semantic", "semantic+retrieval", "semantic+token-level:token_gamma=2", "semantic:num_drafts=2"
    ]  # fmt: skip
    assert [row[4] for row in rows[2:6]] == ["1.00", "2.00", "2.50", "1.00"]
    assert rows[4][5] == "2.50", "3/4 of two proposed tokens, and one of the target's"
    assert rows[-1] == ["semantic:num_drafts=2", "0.500", "0.750", "0.800"]


def test_folder_without_rewrites_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    assert "no rewritten segments" in capsys.readouterr().err
