"""What a CUDA graph would replay, run on the CPU by a capture that only remembers what to run."""

import logging
from collections.abc import Callable, Sequence

import pytest
import torch

from semspec.engine import cuda_graph
from semspec.engine.causal_lm import CausalLM, Forward
from semspec.engine.cuda_graph import GraphedSteps, Outputs
from semspec.engine.kv_cache import KV, BufferKV, Chunk
from tests.engine.models import lm_of, random_ids, random_model
from tests.engine.support import assert_same


def remember(run: Callable[[], Outputs], device: torch.device) -> tuple[Callable[[], None], Outputs]:
    """As `cuda_graph.capture`: outputs in memory that every replay overwrites."""
    outputs = run()

    def replay() -> None:
        for static, new in zip(outputs, run(), strict=True):
            static.copy_(new)

    return replay, outputs


def fail(run: Callable[[], Outputs], device: torch.device) -> tuple[Callable[[], None], Outputs]:
    raise RuntimeError("operation not permitted when stream is capturing")


def graphed(architecture: str, capture: cuda_graph.Capture = remember) -> CausalLM:
    lm = lm_of(random_model(architecture), "fast")
    decoder = lm.decoder
    assert decoder is not None
    decoder.graphs = GraphedSteps(decoder.layout, decoder.static_step, capture)
    return lm


def buckets(lm: CausalLM) -> list[tuple[int, int]]:
    """Of the graphs of a model that has some or may have."""
    assert lm.decoder is not None and lm.decoder.graphs is not None
    return list(lm.decoder.graphs.buckets)


@pytest.fixture(params=["qwen2", "llama"])
def pair(request: pytest.FixtureRequest) -> tuple[CausalLM, CausalLM]:
    """The same model with and without graphs."""
    return graphed(request.param), lm_of(random_model(request.param), "fast")


class Twins:
    """One sequence in both models: every step is checked."""

    def __init__(self, graphed: CausalLM, eager: CausalLM, kvs: tuple[KV, KV] | None = None) -> None:
        self.lms, self.kvs = (graphed, eager), kvs or (graphed.new_kv(), eager.new_kv())

    def feed(self, ids: list[int]) -> Forward:
        mine, eager = (lm.forward(ids, kv, 1, True) for lm, kv in zip(self.lms, self.kvs, strict=True))
        assert_same(mine.logits, eager.logits)
        assert_same(mine.states, eager.states)
        assert self.kvs[0].num_tokens == self.kvs[1].num_tokens
        return mine

    def crop(self, num_tokens: int) -> None:
        for kv in self.kvs:
            kv.crop(num_tokens)

    def copy(self, num_tokens: int) -> "Twins":
        return Twins(*self.lms, (self.kvs[0].copy(num_tokens), self.kvs[1].copy(num_tokens)))


SINGLE, ROLLBACK = [1] * 5, -6
"""Numbers of tokens to feed at a time, or to drop."""


@pytest.mark.parametrize(
    ("lengths", "capacity"),
    [([*SINGLE, 248, *SINGLE], 512), ([30, *[1, 1, 1, ROLLBACK, 4] * 3, 1], 256)],
    ids=["from the first token past a bucket", "rollbacks and reads between single tokens"],
)
def test_static_step_equals_the_plain_forward(
    pair: tuple[CausalLM, CausalLM], lengths: list[int], capacity: int
) -> None:
    twins = Twins(*pair)
    for number, length in enumerate(lengths):
        if length < 0:
            twins.crop(twins.kvs[0].num_tokens + length)
        else:
            twins.feed(random_ids(length, seed=number))
    assert isinstance(twins.kvs[0], BufferKV) and twins.kvs[0].capacity == capacity


def test_sequences_in_turn_do_not_mix(pair: tuple[CausalLM, CausalLM]) -> None:
    first = Twins(*pair)
    first.feed(random_ids(30))
    second = first.copy(20)
    for token in random_ids(4, seed=1):
        first.feed([token])
        second.feed([token + 1])


def test_outputs_are_not_overwritten_by_the_next_token(pair: tuple[CausalLM, CausalLM]) -> None:
    lm, kv = pair[0], pair[0].new_kv()
    first = lm.forward([5], kv, 1, True)
    logits, states = first.logits.clone(), first.states.clone()
    lm.forward([6], kv, 1, True)
    assert torch.equal(first.logits, logits) and torch.equal(first.states, states)


def test_longer_sequences_than_a_graph_serves_go_without(
    pair: tuple[CausalLM, CausalLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_graph, "MAX_TOKENS", 300)
    twins = Twins(*pair)
    twins.feed(random_ids(300))
    twins.feed([5])
    assert buckets(pair[0]) == []


def step(lm: CausalLM, kvs: Sequence[KV], tokens: Sequence[int]) -> list[Forward]:
    """One token of each of several sequences."""
    return lm.forward_step([Chunk([token], kv, 1, True) for kv, token in zip(kvs, tokens, strict=True)])


def test_sequences_that_come_and_go_share_graphs_of_several_sizes(
    pair: tuple[CausalLM, CausalLM],
) -> None:
    """The sequences of each step, by number: slots are kept, left, taken by others and found again."""
    lengths = (30, 3, 254, 100, 17)
    kvs = [[lm.new_kv() for _ in lengths] for lm in pair]
    for index, length in enumerate(lengths):
        for lm, own in zip(pair, kvs, strict=True):
            lm.forward(random_ids(length, seed=index), own[index])
    for number, those in enumerate([(0, 1, 2, 3), (3, 1), (1, 4, 0), (2,), (4, 2, 0, 1), (0, 1, 2, 3, 4), (3, 1)]):
        tokens = random_ids(len(those), seed=50 + number)
        results = [step(lm, [own[i] for i in those], tokens) for lm, own in zip(pair, kvs, strict=True)]
        for mine, expected in zip(*results, strict=True):
            assert_same(mine.logits, expected.logits)
            assert_same(mine.states, expected.states)
        for own in kvs:
            own[those[0]].crop(own[those[0]].num_tokens - number % 2)
    assert {size for size, _ in buckets(pair[0])} == {1, 2, 4, 8}


def test_buffers_of_all_graphs_stay_within_their_bound(
    pair: tuple[CausalLM, CausalLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_graph, "MAX_BUFFERED_TOKENS", 1200)
    lm = pair[0]
    kvs = [lm.new_kv() for _ in range(8)]
    for number in (1, 2, 4, 1, 8):
        step(lm, kvs[:number], random_ids(number))
    assert buckets(lm) == [(1, 256)]
    assert [kv.num_tokens for kv in kvs] == [5, 3, 2, 2, 1, 1, 1, 1]


def test_failed_capture_is_said_once_and_decoding_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    twins = Twins(graphed("llama", fail), lm_of(random_model("llama"), "fast"))
    with caplog.at_level(logging.WARNING):
        for token in random_ids(3):
            twins.feed([token])
    [record] = caplog.records
    assert "stream is capturing" in record.getMessage()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_graphs_on_a_gpu_equal_eager_steps() -> None:
    model = random_model("qwen2").to("cuda")
    twins = Twins(lm_of(model, "fast"), lm_of(model, "fast"))
    eager = twins.lms[1].decoder
    assert eager is not None
    eager.graphs = None
    twins.feed(random_ids(30))
    for token in random_ids(5, seed=1):
        twins.feed([token])
    assert buckets(twins.lms[0]) == [(1, 256)]
