"""The rehearsal's tokenizers have the true ids, and its line leaves out what a kill disturbed."""

import pytest

from studies.rehearsal.depth import NUM_DEPTHS, Answer, Run
from studies.rehearsal.models import (
    QWQ_ADDED,
    QWQ_TEMPLATE,
    R1_ADDED,
    R1_END,
    R1_TEMPLATE,
    qwen_tokenizer,
)
from studies.rehearsal.processes import Held, Sample


@pytest.mark.parametrize(
    ("added", "template", "ids"),
    [
        (R1_ADDED, R1_TEMPLATE, {R1_END: 151643, "<think>": 151648, "<|file_sep|>": 151664}),
        (
            QWQ_ADDED,
            QWQ_TEMPLATE,
            {"<|im_end|>": 151645, "<tool_call>": 151657, "</think>": 151668},
        ),
    ],
)
def test_tokenizer_has_true_ids_and_gives_back_its_text(
    added: list[str], template: str, ids: dict[str, int]
) -> None:
    tokenizer = qwen_tokenizer(added, template)
    assert {token: tokenizer.convert_tokens_to_ids(token) for token in ids} == ids
    text = "Zoë has 52 coins.\n\nHow many?</think>\n\n  7"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_line_leaves_out_depths_that_a_kill_disturbed() -> None:
    def sample(tokens: int) -> Sample:
        cpu_s = tokens * 2e-3 + tokens**2 * 5e-8 + 9.0 * (tokens >= 8100)
        return Sample(0.0, 4 * tokens, {"target": Held(0, 0, cpu_s, 0, 0)}, 0, 0)

    samples = [sample(tokens) for tokens in range(0, 16_001, 100)]
    run = Run("fast", "target", [Answer()] * 4, samples, {"target": 8050.0}, [])
    start, slope, off = run.line()
    assert (start, slope) == pytest.approx((2.0, 0.1), rel=1e-3) and off < 1e-3
    assert sum(is_disturbed for _, _, is_disturbed in run.depths()) == 2 < NUM_DEPTHS
