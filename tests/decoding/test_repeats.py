"""The guard against loops, on fakes: drafted segments that repeat the answer are written by the target."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from semspec.decoding.repeats import repeated_index
from semspec.types import Acceptance, Context, GenerationParams, Segment, SegmentEnd, Writer
from tests.decoding.support import (
    ConstantVerifier,
    Players,
    generation,
    outcome,
    players,
    records,
    resumed,
    run,
    segments,
    texts,
)
from tests.helpers.fakes import FakeModel, num_written

LOOP = ("Therefore, Tom has 34 pens left over after five days.",)
CYCLE = (
    *LOOP,
    "So, to find out how many pens he had, we add 1.",
    "Let us check this once more, carefully.",
)
LOSSY: list[tuple[str, dict[str, Any]]] = [
    ("semantic", {}),
    ("semantic", {"gamma": 3}),
    ("semantic", {"num_candidates": 3}),
    ("semantic+token-level", {}),
    ("last-hidden", {}),
    ("likelihood", {"acceptance": Acceptance(threshold=0.0)}),
    ("likelihood", {"acceptance": Acceptance(threshold=0.0), "gamma": 4}),
    ("spec-reason", {"acceptance": Acceptance(threshold=0.0)}),
    ("random", {"acceptance": Acceptance("threshold", 0.0)}),
]


class LoopingModel(FakeModel):
    """Writes the paragraphs of a cycle in turn, whatever stands in its context."""

    def __init__(self, writer: Writer, cycle: Sequence[str], num_segments: int = 12) -> None:
        super().__init__(writer, num_segments)
        self._cycle = cycle

    def _text(self, context: Context, params: GenerationParams) -> str:
        return self._cycle[num_written(context) % len(self._cycle)]

    def _is_over(self, text: str, context: Context, params: GenerationParams) -> bool:
        return text.endswith(self._text(context, params))


def looping(drafted: Sequence[str], written: Sequence[str] = ()) -> Players:
    """A draft that loops; a target that loops too if `written` has paragraphs."""
    fakes = players(ConstantVerifier(0.5, 0.9), num_segments=12)
    target = LoopingModel(Writer.TARGET, written) if written else fakes.target
    return Players(LoopingModel(Writer.DRAFT, drafted), target, fakes.verifier)


@pytest.mark.parametrize("drafted", [LOOP, CYCLE, ("---",)], ids=["loop", "cycle", "short"])
@pytest.mark.parametrize(("strategy", "options"), LOSSY)
async def test_loop_is_cut(strategy: str, options: dict[str, Any], drafted: Sequence[str]) -> None:
    own = await generation(strategy=strategy, max_tokens=4000, **options)
    found = records(await run(own, looping(drafted)))
    most = 2 if drafted == ("---",) else 1
    assert Counter(record.segment.text for record in found if record.accepted) == {
        f"{text}\n\n": most for text in drafted
    }
    for record in found:
        assert record.accepted is (record.index < most * len(drafted))
        assert record.repeats == (None if record.accepted else record.index % len(drafted))
        if not record.accepted:
            assert record.segment.writer is Writer.TARGET and record.rejected is not None
            assert record.rejected.text.strip() == drafted[record.index % len(drafted)]


@pytest.mark.parametrize(("strategy", "options"), LOSSY)
async def test_guard_that_is_off_leaves_the_loop(strategy: str, options: dict[str, Any]) -> None:
    own = await generation(strategy=strategy, max_tokens=4000, accepts_repeats=True, **options)
    found = records(await run(own, looping(LOOP)))
    assert all(record.accepted and record.repeats is None for record in found) and len(found) == 12


@pytest.mark.parametrize(("strategy", "options"), LOSSY)
async def test_repeating_target_keeps_its_text(strategy: str, options: dict[str, Any]) -> None:
    own = await generation(strategy=strategy, max_tokens=4000, **options)
    events = await run(own, looping(LOOP, LOOP))
    assert texts(events).split("\n\n") == [*LOOP] * 12
    assert [record.accepted for record in records(events)] == [True, *[False] * 11]


@pytest.mark.parametrize("strategy", ["target", "token-level", "draft"])
async def test_strategies_that_judge_no_segment_are_not_guarded(strategy: str) -> None:
    own = await generation(strategy=strategy, max_tokens=4000)
    found = records(await run(own, looping(LOOP, LOOP)))
    assert len(found) == 12
    assert all(record.accepted is None and record.repeats is None for record in found)


@pytest.mark.parametrize("strategy", ["semantic", "likelihood", "spec-reason"])
async def test_resumed_loop_equals_undisturbed_one(strategy: str) -> None:
    own = await generation(strategy=strategy, max_tokens=4000)
    whole = await run(own, looping(CYCLE))
    for cut in range(1, 12):
        rest = await run(resumed(own, segments(whole)[:cut]), looping(CYCLE))
        assert outcome(rest) == outcome(whole)[cut:]


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("So, there are 220 pens after 5 days.\n\n", "So, there are 220 pens\nafter 5 days."),
        ("So, there are 220 pens after 5 days.", "**So, there are 220 pens after 5 days.**\n\n"),
        ("4. To find the total, we add 1 to it.", "5. To find the total, we add 1 to it."),
        ("**Step 4:** To find the total, we add 1.", "**Step 5:** To find the total, we add 1."),
        ("- To find the total, we add one to it.", "* To find the total, we add one to it."),
        (
            "答案是二十五减去六等于十九还剩下十九支钢笔。",
            "答案是二十五减去六等于十九还剩下十九支钢笔。\n\n",
        ),
    ],
)
def test_near_repeat_of_a_long_text_is_found(earlier: str, later: str) -> None:
    assert repeated_index(_segment(later), [_segment("A."), _segment(earlier)]) == 1


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("Day 1: Tom sells 6 pens, so 19 remain.", "Day 1: Tom sells 6 pens, so 13 remain."),
        (
            "Day 1: Tom sells 6 pens and has some left.",
            "Day 2: Tom sells 6 pens and has some left.",
        ),
        ("    return self.items.pop() + other", "    return self.items.pop() - other"),
        ("5. To find the total, we add 1 to it.", "5. To find the total, we add 2 to it."),
    ],
)
def test_text_with_another_content_is_no_repeat(earlier: str, later: str) -> None:
    assert repeated_index(_segment(later), [_segment(earlier)] * 3) is None


@pytest.mark.parametrize(
    "text", ["---", "}", "```", "Output:", "**Solution**", "", "\\[ x = 2 \\]"]
)
def test_short_text_may_stand_twice_and_no_more(text: str) -> None:
    once = [_segment(f"{text}\n\n")]
    assert repeated_index(_segment(text), once) is None
    assert repeated_index(_segment(text), [*once, _segment("B."), *once]) == 0


@pytest.mark.parametrize(
    ("unit", "rounds"),
    [
        ("|  \n", 200),
        ("- a piece of paper that is a suitable size\n", 3),
        ("The answer is 5. So it is. ", 4),
        ("ha", 40),
    ],
)
def test_segment_that_is_a_loop_in_itself_repeats_itself(unit: str, rounds: int) -> None:
    assert (
        repeated_index(_segment("Uses of a clip:\n" + unit * rounds + unit[:-2]), [_segment("A.")])
        == 1
    )
    assert (
        repeated_index(_segment("Uses of a clip:\n" + unit * 2 + "- and so on\n"), [_segment("A.")])
        is None
    )


def test_loop_of_numbered_lines_is_found() -> None:
    lines = "".join(f"{number}. A tool for making a coin.\n" for number in range(8, 12))
    assert repeated_index(_segment(lines), []) == 0


@pytest.mark.parametrize(
    "text",
    [
        "| Country | Capital |\n| --- | --- |\n| Chad | N'Djamena |\n| Peru | Lima |\n\n",
        "print(stack.pop())  # Output: 3\nprint(stack.pop())  # Output: 2\nprint(stack.pop())  # Output: 1\n\n",
        "1/3 = 0.3333333333333333333333333333\n\n",
        "Day 1: Tom sells 6, 19 remain.\nDay 2: Tom sells 6, 13 remain.\nDay 3: Tom sells 6, 7 remain.\n\n",
        "",
    ],
)
def test_lines_with_another_content_are_no_loop(text: str) -> None:
    assert repeated_index(_segment(text), []) is None


def _segment(text: str) -> Segment:
    return Segment(text, (1,), "bytes", Writer.DRAFT, SegmentEnd.BOUNDARY)
