"""Steps graded by the target: on fakes, and the scores of digits on an engine."""

import shutil
from dataclasses import replace
from math import exp
from pathlib import Path

import pytest
import torch

from semspec.engine.causal_lm import CausalLM
from semspec.errors import InvalidRequest
from semspec.types import (
    SURPRISAL_FEATURES,
    Context,
    Finished,
    FinishReason,
    Segment,
    SegmentEnd,
    Token,
    Writer,
)
from semspec_bench.spec_reason import (
    DIGITS,
    PREFILL,
    QUESTION,
    digit_scores,
    grade_of,
    question_turn,
)
from tests.decoding.support import Players, generation, players, records, run, segments
from tests.engine.support import CHATML, PROMPT
from tests.helpers.checkpoints import loaded
from tests.helpers.fakes import FakeModel

THINKING = (
    "{% for m in messages %}{% if m.role == 'user' %}<|User|>{{ m.content | trim }}{% endif %}"
    "{% if m.role == 'assistant' %}<|Assistant|>{{ m.content.split('</think>')[-1] }}<eos>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|Assistant|><think>\n{% endif %}"
)
"""As DeepSeek-R1's: an earlier turn is stripped of its reasoning, the next one's is opened."""
STRICT = "{{ raise_exception('one question at a time') }}"
FORGETFUL = "{{ messages[-1]['content'] + '\n\n<think>\n\n' }}"


class Grader(FakeModel):
    """A target with its grades laid down: the most probable token after each step."""

    def __init__(self, grades: str) -> None:
        super().__init__(Writer.TARGET)
        self.grades = list(grades)
        self.asked: dict[str, str] = {}
        """The grade by the text of each context it was asked about."""

    def _likeliest_digit(self, context: Context) -> str:
        *pieces, turn = (piece.text for piece in context.pieces)
        assert QUESTION in turn and turn.endswith(PREFILL)
        text = "".join(pieces)
        if text not in self.asked:
            self.asked[text] = self.grades.pop(0)
        return self.asked[text]


def graded(grades: str, delay_s: float = 0.0) -> Players:
    fakes = players(delay_s=delay_s)
    target = Grader(grades)
    target.delay_s = delay_s
    return replace(fakes, target=target)


async def test_steps_are_kept_from_the_threshold_on() -> None:
    events = await run(await generation(strategy="spec-reason"), graded("976?80"))
    kept = [True, True, False, False, True, False]
    assert [record.accepted for record in records(events)] == kept
    assert [record.rejected is None for record in records(events)] == kept
    assert [segment.writer is Writer.DRAFT for segment in segments(events)] == kept
    assert events[-1] == Finished(FinishReason.STOP)


async def test_rejected_steps_are_those_of_the_target_alone() -> None:
    events = await run(await generation(strategy="spec-reason"), graded("0" * 6))
    assert segments(events) == segments(await run(await generation(strategy="target"), players()))


async def test_target_is_asked_about_the_kept_steps_and_the_drafted_one() -> None:
    fakes = graded("909090")
    events = records(await run(await generation(strategy="spec-reason"), fakes))
    text = "Question?"
    assert isinstance(fakes.target, Grader)
    for record, asked in zip(events, fakes.target.asked, strict=True):
        assert asked == text + (record.rejected or record.segment).text
        text += record.segment.text


@pytest.fixture(params=[CHATML, THINKING], ids=["chatml", "thinking"])
def checkpoint(
    request: pytest.FixtureRequest, checkpoints: dict[str, Path], tmp_path: Path
) -> Path:
    return with_template(checkpoints["qwen2"], tmp_path / "asked", request.param)


def with_template(checkpoint: Path, folder: Path, template: str) -> Path:
    """Copy a checkpoint to `folder`, with another chat template."""
    shutil.copytree(checkpoint, folder)
    (folder / "chat_template.jinja").write_text(template)
    return folder


def written(text: str, end: SegmentEnd = SegmentEnd.BOUNDARY, *ids: int) -> Segment:
    return Segment(text, ids, "", Writer.DRAFT, end)


@pytest.mark.parametrize("has_ended", [False, True])
async def test_scores_are_next_token_probabilities(checkpoint: Path, has_ended: bool) -> None:
    """The reference reads the context, one end of turn, the question and the prefill in one forward pass."""
    lm = CausalLM.load(str(checkpoint), None, "cpu", "float32")
    [eos], fingerprint = lm.tokenizer.eos_ids, lm.info.tokenizer
    async with loaded(checkpoint, checkpoint) as (_, engine):
        turn = await question_turn(engine)
        assert turn.count(QUESTION) == 1 and turn.endswith(PREFILL.removeprefix("<think>"))
        assert turn.count("<think>") == 1
        context = Context((await engine.encode(PROMPT), written("Tom has pens.</think>\n\n")))
        drafted = written("Tom sells 6 pens.\n\n")
        tokens = lm.tokenizer.context_ids(context.extended(drafted))
        if has_ended:
            ids = lm.tokenizer.segment_ids([*context.pieces, drafted])[-1]
            drafted = Segment(drafted.text, (*ids, eos), fingerprint, Writer.DRAFT, SegmentEnd.EOS)
        tokens += lm.tokenizer.ids_of(turn)
        expected = torch.softmax(lm.forward(tokens, lm.new_kv()).logits[-1], -1)
        ids = [lm.tokenizer.raw.convert_tokens_to_ids(digit) for digit in DIGITS]
        scores = dict([one async for one in digit_scores(engine, turn, context, drafted, "s")])
        assert list(scores) == list(range(9, -1, -1))
        log_probability = SURPRISAL_FEATURES.index("sum_log_probability")
        for digit, score in scores.items():
            assert score.num_tokens == 1
            assert exp(score.surprisal[log_probability]) == pytest.approx(
                float(expected[ids[digit]]), rel=1e-4
            )
        likeliest = int(expected.argmax())
        grade, _ = await grade_of(engine, turn, context, drafted, "s")
        assert grade == (ids.index(likeliest) if likeliest in ids else 0)


@pytest.mark.parametrize(
    ("template", "reason"), [(FORGETFUL, "drops earlier turns"), (STRICT, "one question at a time")]
)
async def test_template_that_drops_a_turn_cannot_be_asked(
    checkpoints: dict[str, Path], tmp_path: Path, template: str, reason: str
) -> None:
    checkpoint = with_template(checkpoints["qwen2"], tmp_path / "asked", template)
    async with loaded(checkpoint, checkpoint) as (_, engine):
        with pytest.raises(InvalidRequest, match=reason):
            await question_turn(engine)


async def test_digit_of_several_tokens_is_refused() -> None:
    class Spelling(FakeModel):
        async def tokenize(self, text: str) -> list[Token]:
            return [*await super().tokenize(text), *await super().tokenize(text)]

    with pytest.raises(InvalidRequest, match="'0' is 2 tokens"):
        await question_turn(Spelling(Writer.TARGET))
