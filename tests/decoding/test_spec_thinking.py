"""Whose turn it is, move by move, against the authors' loop; on scripted models and fakes."""

from collections.abc import AsyncGenerator, Sequence

import pytest

from semspec.types import (
    Context,
    GeneratedSegment,
    GenerationParams,
    Segment,
    SegmentEnd,
    SegmentRecord,
    Writer,
)
from semspec_bench import spec_thinking
from semspec_bench.spec_thinking import RECAP, leaning
from tests.decoding.support import (
    CUES,
    Players,
    generation,
    players,
    records,
    resumed,
    run,
    segments,
)
from tests.helpers.fakes import TOKENIZER, FakeModel, FakeVerifier

EOS = "<eos>"
DOUBT = "Wait, that is wrong."
"""Twenty characters, which are the tokens here."""


class Scripted(FakeModel):
    """Writes the texts laid down, one a call, cut to the order."""

    def __init__(self, writer: Writer, *script: str) -> None:
        super().__init__(writer)
        self.script = list(script)
        self.orders: list[GenerationParams] = []

    async def generate(
        self, context: Context, params: GenerationParams
    ) -> AsyncGenerator[GeneratedSegment, None]:
        self.orders.append(params)
        text = self.script.pop(0)
        end = SegmentEnd.BOUNDARY if text.endswith("\n\n") else SegmentEnd.LENGTH
        if text.endswith(EOS):
            text, end = text.removesuffix(EOS), SegmentEnd.EOS
        yield GeneratedSegment(segment(self.writer, text[: params.max_tokens], end), None, 1.0)


def segment(writer: Writer, text: str, end: SegmentEnd) -> Segment:
    return Segment(text, tuple(text.encode()), TOKENIZER, writer, end)


def paragraph(text: str = "So it is.") -> Segment:
    return segment(Writer.DRAFT, f"{text}\n\n", SegmentEnd.BOUNDARY)


def turn(text: str = DOUBT) -> Segment:
    return segment(Writer.TARGET, text, SegmentEnd.LENGTH)


async def play(
    draft: Sequence[str],
    target: Sequence[str],
    kept: Sequence[Segment] = (),
    max_tokens: int = 10000,
) -> tuple[list[SegmentRecord], Scripted, Scripted]:
    drafter, writer = Scripted(Writer.DRAFT, *draft), Scripted(Writer.TARGET, *target)
    first = resumed(await generation(strategy="spec-thinking", max_tokens=max_tokens), kept)
    events = await run(first, Players(drafter, writer, FakeVerifier()))
    assert not drafter.script and not writer.script, "all of the script is played"
    return records(events), drafter, writer


async def test_moves_follow_the_cue_words() -> None:
    verify, more = "Let me verify that: ", "x" * 125
    played, drafter, target = await play(
        [
            "One.\n\n",
            "The next one is two.",  # probe: no cue, thrown away
            "Two.\n\n",
            "Wait, is it not two?",  # probe: the target's turn
            " So three.\n\n",
            "Yes, and the rest is",  # probe: positive is a cue as well
            " Hence four.\n\n",
            "I should check that.",  # probe
            " Done." + EOS,
        ],
        ["Hm, two it is, right", "The answer is thus 4", verify, more],
    )
    assert [(r.segment.writer.value, r.segment.text) for r in played] == [
        ("draft", "One.\n\n"),
        ("draft", "Two.\n\n"),
        ("target", "Hm, two it is, right"),
        ("draft", " So three.\n\n"),
        ("target", "The answer is thus 4"),
        ("draft", " Hence four.\n\n"),
        ("target", verify),
        ("target", more),
        ("draft", " Done."),
    ]
    assert [params.max_tokens for params in target.orders] == [20, 20, 20, 125]
    assert [drafter.orders[i].max_tokens for i in (1, 3, 5, 7)] == [20] * 4
    assert all(r.accepted is None and r.rejected is None for r in played)


@pytest.mark.parametrize(
    ("num_recaps", "num_doubts", "num_tokens"),
    [(0, 15, 125), (1, 20, 150), (2, 25, 175), (3, 30, 200), (4, 30, 200), (5, 30, 200)],
)
async def test_recap_after_doubts(num_recaps: int, num_doubts: int, num_tokens: int) -> None:
    earlier = [piece for _ in range(num_recaps) for piece in (paragraph(), RECAP, turn("r" * 200))]
    doubts = [piece for _ in range(num_doubts) for piece in (paragraph(), turn())]
    kept = [*earlier, *doubts, paragraph()]
    played, _, target = await play([" End." + EOS], ["y" * num_tokens], kept)
    assert [(r.segment.text, r.index) for r in played[:2]] == [
        ("Let me check whether there are some wrong steps:", len(kept)),
        ("y" * num_tokens, len(kept) + 1),
    ]
    assert [params.max_tokens for params in target.orders] == [num_tokens]
    one_less = [*earlier, *doubts[2:], paragraph()]
    played, _, _ = await play(["Nothing more to say.", " End." + EOS], [], one_less)
    assert [r.segment.text for r in played] == [" End."]


async def test_turn_is_judged_by_its_own_words_not_by_the_probes() -> None:
    calm = [piece for _ in range(40) for piece in (paragraph(), turn("It is yes, for sure."))]
    played, _, _ = await play(
        ["Wait, wait, wait now", " End." + EOS], [DOUBT], [*calm, paragraph()]
    )
    assert [r.segment.text for r in played] == [DOUBT, " End."]


@pytest.mark.parametrize(
    ("kept", "num_tokens"),
    [
        ([turn("Let me ver")], 10),
        ([turn("Let me verify that: ")], 125),
        ([turn("Let me verify"), turn(" that: ")], 125),
        ([turn("Let me verify that: "), turn("x" * 100)], 25),
        ([RECAP], 125),
        ([RECAP, turn("x" * 60), turn("x" * 5)], 60),
    ],
)
async def test_turn_broken_off_is_finished(kept: list[Segment], num_tokens: int) -> None:
    _, _, target = await play([" End." + EOS], ["z" * num_tokens], [paragraph(), *kept])
    assert [params.max_tokens for params in target.orders] == [num_tokens]


async def test_resumed_with_recaps_equals_undisturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"NUM_CUE_TOKENS": 30, "RECAP_TOKENS": (60, 85), "DOUBTS": (2, 3)}.items():
        monkeypatch.setattr(spec_thinking, name, value)
    first = await generation(strategy="spec-thinking")

    async def after(kept: Sequence[Segment]) -> list[Segment]:
        return segments(await run(resumed(first, kept), players(num_segments=40, remarks=CUES)))

    whole = await after([])
    assert whole.count(RECAP) >= 2
    for cut in range(1, len(whole)):
        assert await after(whole[:cut]) == whole[cut:]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Then we add them.", 0),
        ("WAIT, no", -1),
        ("Yes, that is the final answer", 1),
        ("Yes, but wait", -1),
        ("Yes. Yeah. But wait", 1),
        ("Let me check", -1),
        ("wait. Wait. yes", -1),
        ("I am confident", 1),
        ("Alternatively, hold on, another", -1),
        ("think again and recap", -1),
    ],
)
def test_leaning_as_the_authors_count_it(text: str, expected: int) -> None:
    assert leaning(text) == expected
