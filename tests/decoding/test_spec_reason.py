"""Steps graded by the target, on fakes."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from semspec.decoding.spec_reason import DIGITS, PREFILL, QUESTION, score
from semspec.types import ChoiceScores, Context, Finished, FinishReason, ScoreMethod, Writer
from tests.decoding.support import Players, generation, players, records, run, segments
from tests.fakes import FakeModel


class Grader(FakeModel):
    """A target with its grades laid down: the likeliest next token after each step."""

    def __init__(self, grades: str) -> None:
        super().__init__(Writer.TARGET)
        self.grades = list(grades)
        self.asked: list[str] = []
        """The text of each context it was asked about."""

    async def score_choices(
        self,
        context: Context,
        question: str,
        prefill: str,
        options: Sequence[str],
        session: str = "",
    ) -> ChoiceScores:
        assert (question, prefill, options) == (QUESTION, PREFILL, DIGITS)
        self.asked.append("".join(piece.text for piece in context.pieces))
        grade = self.grades.pop(0)
        return ChoiceScores(tuple(float(digit == grade) for digit in DIGITS), grade, 1.0)


def graded(grades: str) -> Players:
    return replace(players(), target=Grader(grades))


async def test_steps_are_kept_from_the_threshold_on() -> None:
    fakes = graded("976?80")
    events = await run(await generation(strategy="spec-reason"), fakes)
    assert [r.score for r in records(events)] == [9, 7, 6, 0, 8, 0]
    assert [r.accepted for r in records(events)] == [True, True, False, False, True, False]
    assert [s.writer.value for s in segments(events)] == [
        "draft",
        "draft",
        "target",
        "target",
        "draft",
        "target",
    ]
    assert [r.rejected is not None for r in records(events)] == [
        False,
        False,
        True,
        True,
        False,
        True,
    ]
    assert events[-1] == Finished(FinishReason.STOP)


async def test_target_is_asked_about_the_kept_steps_and_the_drafted_one() -> None:
    fakes = graded("909090")
    events = records(await run(await generation(strategy="spec-reason"), fakes))
    text = "Question?"
    assert isinstance(fakes.target, Grader)
    for record, asked in zip(events, fakes.target.asked, strict=True):
        assert asked == text + (record.rejected or record.segment).text
        text += record.segment.text


async def test_no_step_is_drafted_ahead() -> None:
    fakes = players(delay_s=0.002)
    await run(await generation(strategy="spec-reason"), fakes)
    assert fakes.drafter.num_written == 6 and fakes.drafter.num_cancelled == 0


@pytest.mark.parametrize(
    ("likeliest", "probabilities", "method", "expected"),
    [
        ("8", {8: 0.5, 2: 0.25}, "greedy", 8.0),
        ("8", {8: 0.5, 2: 0.25}, "average", 6.0),
        ("Hm", {9: 0.1}, "greedy", 0.0),
        ("Hm", {9: 0.1}, "average", 9.0),
        (" 7", {7: 0.2}, "greedy", 0.0),
        ("10", {1: 0.2}, "greedy", 0.0),
        ("²", {}, "greedy", 0.0),
        ("", {}, "average", 0.0),
        ("0", dict.fromkeys(range(10), 0.1), "average", 4.5),
    ],
)
def test_score_as_the_authors_read_it(
    likeliest: str, probabilities: dict[int, float], method: ScoreMethod, expected: float
) -> None:
    reply = ChoiceScores(
        tuple(probabilities.get(digit, 0.0) for digit in range(10)), likeliest, 1.0
    )
    assert score(reply, method) == pytest.approx(expected)
