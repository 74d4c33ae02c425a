"""Exact answers behind reasoning by segments: nothing of the answer is the draft's."""

from dataclasses import replace
from typing import Any

import pytest

from semspec.decoding import STRATEGIES, Generation, Options, next_strategy
from semspec.errors import Unavailable
from semspec.reasoning import FORMS, HARMONY, THINK, answer_start
from semspec.types import (
    Acceptance,
    Context,
    FinishReason,
    GenerationParams,
    Piece,
    Segment,
    SegmentEnd,
    TokenLogprob,
    Writer,
)
from tests.decoding.support import (
    ConstantVerifier,
    Players,
    generation,
    num_running,
    outcome,
    players,
    records,
    resumed,
    run,
    segments,
    texts,
)
from tests.helpers import variants
from tests.helpers.fakes import TOKENIZER, FakeModel, num_written

LOSSY: list[tuple[str, dict[str, Any]]] = [
    ("semantic", {}),
    ("semantic", {"gamma": 4}),
    ("semantic", {"num_candidates": 2}),
    ("likelihood", {"acceptance": Acceptance(threshold=0.0)}),
    ("spec-reason", {"acceptance": Acceptance(threshold=0.0)}),
    ("random", {"acceptance": Acceptance("threshold", 0.0)}),
    ("draft", {}),
]
EXACT = ["target", "token-level"]


class ReasoningModel(FakeModel):
    """Ends its reasoning within its third segment, which goes on with the answer."""

    def __init__(self, writer: Writer, closing: str, num_segments: int = 6) -> None:
        super().__init__(writer, num_segments)
        self.closing = closing

    def _text(self, context: Context, params: GenerationParams) -> str:
        said = super()._text(context, params)
        is_open = self.closing not in "".join(piece.text for piece in context.pieces[1:])
        return (
            f"{self.writer} stops.{self.closing}{said}"
            if is_open and num_written(context) == 2
            else said
        )

    def _is_over(self, text: str, context: Context, params: GenerationParams) -> bool:
        return text.endswith(f"{self._text(context, params)}.")

    def _logprobs(
        self, segment: Segment, params: GenerationParams
    ) -> tuple[TokenLogprob, ...] | None:
        if params.num_logprobs is None:
            return None
        return tuple(TokenLogprob(token, bytes([token]), -1.0) for token in segment.token_ids)


def reasoning(
    closing: str = THINK.closing, num_segments: int = 6, target_probability: float = 0.9
) -> Players:
    """Fakes whose drafts are all accepted, unless the `target_probability` is 0."""
    fakes = players(ConstantVerifier(0.5, target_probability), agreement=0.0)
    draft, target = (
        ReasoningModel(writer, closing, num_segments) for writer in (Writer.DRAFT, Writer.TARGET)
    )
    target.agreement = 0.0
    return Players(draft, target, fakes.verifier)


async def strict(opening: str = THINK.opening, **changes: object) -> Generation:
    prompt = f"Question?{opening}\n"
    context = Context((Piece(prompt, tuple(prompt.encode()), TOKENIZER),))
    return await generation(**{"answer_strategy": "target", "context": context, **changes})


@pytest.mark.parametrize("answer_strategy", EXACT)
@pytest.mark.parametrize("form", FORMS, ids=["think", "mistral", "harmony"])
@pytest.mark.parametrize(("strategy", "options"), LOSSY)
async def test_answer_is_what_the_target_writes_after_the_same_reasoning(
    strategy: str, options: dict[str, Any], form: Any, answer_strategy: str
) -> None:
    own = await strict(form.opening, strategy=strategy, answer_strategy=answer_strategy, **options)
    events = await run(own, reasoning(form.closing))
    kept = segments(events)
    assert [segment.writer for segment in kept] == [Writer.DRAFT] * 3 + [Writer.TARGET] * 3
    assert kept[2].text == f"draft stops.{form.closing}" == bytes(kept[2].token_ids).decode()
    alone = variants.alone(resumed(own, kept[:3]))
    assert kept[3:] == segments(await run(alone, reasoning(form.closing)))
    assert [record.index for record in records(events)] == [*range(6)] and num_running() == 0


REFUSING: list[tuple[str, dict[str, Any]]] = [
    *LOSSY[:3],
    ("likelihood", {"acceptance": Acceptance(threshold=1.0)}),
]


@pytest.mark.parametrize(("strategy", "options"), REFUSING)
async def test_rewritten_segment_is_not_cut(strategy: str, options: dict[str, Any]) -> None:
    own = await strict(strategy=strategy, **options)
    events = await run(own, reasoning(target_probability=0.0))
    assert segments(events) == segments(await run(variants.alone(own), reasoning()))
    assert [record.accepted for record in records(events)] == [False] * 3 + [None] * 3


@pytest.mark.parametrize("strategy", ["semantic", "likelihood", "draft"])
async def test_text_without_reasoning_is_the_answer(strategy: str) -> None:
    own = await strict("", strategy=strategy)
    alone = variants.alone(own)
    assert segments(await run(own, reasoning("no mark"))) == segments(
        await run(alone, reasoning("no mark"))
    )


async def test_reasoning_that_the_model_opens_itself_is_by_segments() -> None:
    class Opening(ReasoningModel):
        def _text(self, context: Context, params: GenerationParams) -> str:
            said = super()._text(context, params)
            return said if num_written(context) else f"<think>\n{said}"

    fakes = Players(Opening(Writer.DRAFT, "</think>"), reasoning().target, reasoning().verifier)
    kept = segments(await run(await strict(""), fakes))
    assert [segment.writer for segment in kept] == [Writer.DRAFT] * 3 + [Writer.TARGET] * 3
    fakes = Players(
        FakeModel(Writer.DRAFT), Opening(Writer.TARGET, "</think>"), reasoning().verifier
    )
    kept = segments(await run(await strict("", max_tokens=200), fakes))
    assert kept[0].writer is Writer.TARGET
    assert kept[1].writer is Writer.DRAFT, "the target opened it"


async def test_end_of_sequence_that_the_draft_wrote_behind_the_mark_is_not_kept() -> None:
    own = await strict()
    events = await run(own, reasoning(num_segments=3))
    assert [segment.writer for segment in segments(events)] == [Writer.DRAFT] * 2 + [
        Writer.DRAFT,
        Writer.TARGET,
    ]
    assert texts(events).partition("</think>")[2].startswith("target says")


@pytest.mark.parametrize("answer_strategy", EXACT)
@pytest.mark.parametrize("gamma", [1, 3])
async def test_resumed_generation_equals_undisturbed_one(gamma: int, answer_strategy: str) -> None:
    own = await strict(gamma=gamma, answer_strategy=answer_strategy, show_drafts=False)
    whole = await run(own, reasoning())
    for cut in range(1, 6):
        rest = await run(resumed(own, segments(whole)[:cut]), reasoning())
        assert outcome(rest) == outcome(whole)[cut:]


async def test_logprobs_are_those_of_the_tokens_that_are_kept() -> None:
    found = records(await run(await strict(num_logprobs=0), reasoning()))
    for record in found:
        assert record.logprobs is not None
        assert tuple(token.token_id for token in record.logprobs) == record.segment.token_ids


@pytest.mark.parametrize("max_tokens", [1, 30, 45, 60, 80])
async def test_budget_is_kept_to_the_token(max_tokens: int) -> None:
    events = await run(await strict(max_tokens=max_tokens), reasoning())
    assert sum(len(segment.token_ids) for segment in segments(events)) == max_tokens
    assert events[-1].reason is FinishReason.LENGTH  # type: ignore[union-attr]


@pytest.mark.parametrize("num_before", [0, 3])
async def test_target_goes_on_alone_when_the_draft_is_lost(num_before: int) -> None:
    own, fakes = await strict(answer_strategy="token-level"), reasoning()
    own = resumed(own, segments(await run(own, reasoning()))[:num_before])
    fakes.drafter.errors += [Unavailable("gone")] * 9
    found = records(await run(own, fakes))
    assert found
    assert all(record.fallback and record.segment.writer is Writer.TARGET for record in found)


@pytest.mark.parametrize(
    ("prompt", "text", "start"),
    [
        ("Q<think>\n", "So.\n</think>\n\nIt is 5.", 12),
        ("Q<think>\n", "So.\n", None),
        ("Q", "<think>So.</think>It", 18),
        ("Q", " \n<think>So.", None),
        ("Q", "<thi", None),
        ("Q", "", None),
        ("Q", "It is </think> 5.", 0),
        ("Q<think>\n\n</think>\n\n", "It is 5.", 0),
        (
            "Q<|start|>assistant",
            f"{HARMONY.opening}So.<|end|><|start|>assistant",
            len(HARMONY.opening) + 10,
        ),
        ("Q<|start|>assistant", "<|channel|>final<|message|>It", 0),
    ],
)
def test_answer_begins_behind_the_closing_mark(prompt: str, text: str, start: int | None) -> None:
    assert answer_start(prompt, text) == start


@pytest.mark.parametrize(
    ("prompt", "texts", "expected"),
    [
        ("Why? <think>", [], "semantic"),
        ("Why? <think>", ["Let me see. "], "semantic"),
        ("Why? <think>", ["Let me see. ", "So.</think> It is 4. "], "token-level"),
        ("Why?", [], "token-level"),
        ("Why?", ["<think>"], "semantic"),
        ("Why?", ["<think>No.</think>"], "token-level"),
        ("Why?", ["It is 4. "], "token-level"),
    ],
)
async def test_next_segment_is_of_the_answer_unless_reasoning_is_open(
    prompt: str, texts: list[str], expected: str
) -> None:
    own = replace(
        await generation(strategy="semantic"), answer_strategy=STRATEGIES["token-level"](Options())
    )
    segments = (Segment(text, (), TOKENIZER, Writer.TARGET, SegmentEnd.BOUNDARY) for text in texts)
    context = Context((Piece(prompt, (), TOKENIZER), *segments))
    assert next_strategy(own, context).name == expected
    assert next_strategy(replace(own, answer_strategy=None), context).name == "semantic"
