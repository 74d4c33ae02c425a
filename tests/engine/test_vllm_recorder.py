"""Sums of states and draws of tokens over vLLM's forward passes."""

import torch

from semspec.engine.causal_lm import CausalLM
from semspec.engine.logits import draw_token
from semspec.engine.requests import Generate, Propose, Request
from semspec.engine.vllm.calls import GenerateCall
from semspec.engine.vllm.recorder import POOLED_ROWS, Chunk, Recorder, StateSums
from semspec.probes.projection import Projections
from semspec.stack import BUNDLED_PAIR
from semspec.types import GenerationParams, Penalties, SamplingParams, Writer

CPU = torch.device("cpu")


def test_rows_that_do_not_fit_side_by_side_are_added_all_the_same() -> None:
    states, rows = list(torch.randn(3, 2000, 8)), range(0, 1200, 2)
    assert len(rows) > 2 * POOLED_ROWS
    sums = StateSums(num_layers=2, hidden_size=8, device=torch.device("cpu"))
    one, other = sums.acquire(), sums.acquire()
    sums.add(states, rows, [one if row < 400 else other for row in rows])
    expected = [
        torch.stack(states)[:, part].mean(1) for part in (slice(0, 400, 2), slice(400, 1200, 2))
    ]
    torch.testing.assert_close(
        sums.means([one, other], [200, 400]), torch.stack(expected), atol=1e-5, rtol=1e-5
    )


def test_tokens_of_all_kinds_of_calls_are_drawn_in_one_step() -> None:
    lm = CausalLM.load(str(BUNDLED_PAIR / "draft"), None, "cpu", "float32")
    tokenizer, prompt = lm.tokenizer, [5, 6, 7]
    projections = Projections(tokenizer.info, "cpu", None)
    recorder = Recorder(tokenizer, Writer.DRAFT, CPU, lambda rows: rows, projections, None)
    samplings = [SamplingParams(0.8, 0.9, 0, seed) for seed in range(4)]
    banned = Penalties(logit_bias=((3, -100.0),))
    requests: list[Request] = [
        Generate(GenerationParams(samplings[0], num_logprobs=2), is_after_end=False),
        Propose(samplings[1], 2),
        Generate(GenerationParams(samplings[2]), is_after_end=False),
        Generate(GenerationParams(samplings[3], penalties=banned), is_after_end=False),
    ]
    for number, request in enumerate(requests):
        recorder.start(str(number), prompt, request)
    num_fed = [3, 3, 2, 3]  # of the third prompt, the last token is not fed yet
    chunks = [Chunk(str(number), 3 * number, 0, count) for number, count in enumerate(num_fed)]
    logits = torch.randn(4, tokenizer.num_embeddings, generator=torch.Generator().manual_seed(0))
    logits[3, 3] = 50
    before = logits.clone()
    recorder.draw(chunks, logits)
    assert torch.equal(logits[2], before[2])
    wanted = before.clone()
    wanted[3, 3] -= 100
    expected = {row: draw_token(wanted[row], samplings[row], 3) for row in (0, 1, 3)}
    for row, token in expected.items():
        assert logits[row].argmax() == token
        assert logits[row].isfinite().sum() == 1
    [first, *_] = recorder.calls.values()
    assert isinstance(first, GenerateCall)
    first.take(expected[0])
    assert [drawn.token_id for drawn in first._generation._logprobs] == [expected[0]]
