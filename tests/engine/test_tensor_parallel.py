"""A model split over two processes gives what it gives in one."""

import asyncio
import io
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn
from transformers import DynamicCache

from semspec.engine.causal_lm import CausalLM
from semspec.engine.decoder import Decoder
from semspec.engine.kv_cache import BufferKV
from semspec.engine.tensor_parallel.leader import SharedKV
from semspec.engine.tensor_parallel.orders import Copy, Forget, Forward, Order, encoded, orders_from
from semspec.engine.tensor_parallel.share import HEAD, Share, empty_model, fill
from semspec.engine.tensor_parallel.split import Split
from semspec.engine.tensor_parallel.worker import follow
from semspec.engine.transformers_engine import TransformersEngine
from semspec.errors import Mismatch
from semspec.types import Writer
from tests.engine import test_decoder, test_equivalence, test_token_level
from tests.engine.models import TOKENIZER, WINDOW, random_ids, random_model
from tests.engine.test_decoder import STRETCHES, assert_equal, feed
from tests.engine.test_equivalence import assert_same

HALVES = Split(2, "SEMSPEC_TARGET_TENSOR_PARALLEL")


@pytest.fixture(scope="module", params=["qwen2", "llama"])
def checkpoint(request: pytest.FixtureRequest, checkpoints: dict[str, Path], biased: Path) -> Path:
    return {**checkpoints, "biased": biased}[request.param]


@pytest.fixture(scope="module")
def biased(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Biases wherever there may be some, wide heads, and weights in several files."""
    folder = tmp_path_factory.mktemp("biased")
    model = random_model("llama", attention_bias=True, mlp_bias=True, head_dim=16)
    model.save_pretrained(folder, max_shard_size="40KB")
    TOKENIZER.save_pretrained(folder)
    assert len(list(folder.glob("*.safetensors"))) > 2
    return folder


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> Iterator[TransformersEngine]:
    """One for all tests of a checkpoint: its cache has seen what they left."""
    split = TransformersEngine.load(str(checkpoint), writer=Writer.TARGET, device="cpu", split=HALVES)
    yield split
    asyncio.run(split.aclose())


@pytest.fixture
async def drafter(checkpoints: dict[str, Path]) -> AsyncIterator[TransformersEngine]:
    whole = TransformersEngine.load(str(checkpoints["llama"]), writer=Writer.DRAFT, device="cpu")
    yield whole
    await whole.aclose()


@pytest.fixture
def lm(engine: TransformersEngine) -> CausalLM:
    return engine.lm


# What holds for a whole model holds for a split one beside a whole one (`uncached`).
test_states_of_writing_equal_states_of_reading = test_equivalence.test_states_of_writing_equal_states_of_reading
test_greedy_equals_generate = test_equivalence.test_greedy_equals_generate
test_read_after_rollback_equals_recomputed = test_decoder.test_read_after_rollback_equals_recomputed
test_copy_and_original_go_on_independently = test_decoder.test_copy_and_original_go_on_independently


async def test_cached_equals_recomputed_after_any_accepts_and_rejects(
    engine: TransformersEngine, uncached: TransformersEngine
) -> None:
    await test_equivalence.test_cached_equals_recomputed_after_any_accepts_and_rejects(engine, uncached, seed=1)


async def test_cached_verification_equals_recomputed(
    engine: TransformersEngine, uncached: TransformersEngine, drafter: TransformersEngine
) -> None:
    await test_token_level.test_cached_verification_equals_recomputed(engine, uncached, drafter, seed=1)


def whole(folder: Path) -> CausalLM:
    return CausalLM.load(str(folder), None, "cpu", "float32", engine="fast")


def assert_split_equals_whole(split: CausalLM, whole: CausalLM, tolerance: float = 1e-5) -> None:
    """In logits and states at every stretch of a growing sequence; rank 0 holds the first half of the key heads."""
    ids, kv, whole_kv = random_ids(sum(STRETCHES)), split.new_kv(), whole.new_kv()
    for length in STRETCHES:
        stretch, ids = ids[:length], ids[length:]
        assert_equal(feed(split, stretch, kv), feed(whole, stretch, whole_kv), tolerance)
    for pair, other in zip(kv.per_layer(), whole_kv.per_layer(), strict=True):
        num_heads = pair[0].shape[1]
        assert 2 * num_heads == other[0].shape[1]
        assert_same(torch.stack(pair), torch.stack(other)[:, :, :num_heads], tolerance)
    assert kv.nbytes == whole_kv.nbytes


@pytest.mark.parametrize("checkpoint", ["qwen2", "llama", "biased"], indirect=True)
def test_split_equals_whole_in_logits_and_all_states(lm: CausalLM, checkpoint: Path) -> None:
    assert_split_equals_whole(lm, whole(checkpoint))


def test_second_split_model_in_a_process_is_refused_and_the_first_goes_on(lm: CausalLM, checkpoint: Path) -> None:
    with pytest.raises(Mismatch, match="a process of its own"):
        CausalLM.load(str(checkpoint), None, "cpu", "float32", split=HALVES)
    assert feed(lm, random_ids(5)).logits.isfinite().all()


def test_bad_token_is_refused_before_any_rank_hears_of_it(lm: CausalLM) -> None:
    ids, kv = random_ids(40), lm.new_kv()
    feed(lm, ids[:30], kv)
    with pytest.raises(IndexError, match="token ids go from 0 to"):
        feed(lm, [3, 10_000], kv)
    assert_same(feed(lm, ids[30:], kv).logits, feed(lm, ids).logits[30:])


def test_foreign_keys_and_values_and_batches_are_refused(lm: CausalLM, checkpoint: Path) -> None:
    with pytest.raises(TypeError, match="new_kv"):
        lm.forward([5], whole(checkpoint).new_kv())
    with pytest.raises(Mismatch, match="split over several processes"):
        lm.forward_batch(torch.tensor([[5]]), DynamicCache())


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_shares_make_up_the_whole(num_ranks: int, checkpoint: Path) -> None:
    axes = {"q_proj": 0, "k_proj": 0, "v_proj": 0, "gate_proj": 0, "up_proj": 0, "o_proj": 1, "down_proj": 1}
    with safe_open(checkpoint / "model.safetensors", framework="pt") as weights:
        for name in weights.keys():  # noqa: SIM118 (no dictionary)
            parts = [Share(rank, num_ranks).of(name, weights.get_slice(name)) for rank in range(num_ranks)]
            module = name.split(".")[-2]
            joined = torch.cat(parts, axes[module]) if module in axes else parts[-1]
            assert torch.equal(joined, weights.get_tensor(name)), name


def test_no_rank_holds_what_is_anothers(biased: Path) -> None:
    model = empty_model(biased, torch.float32)
    num_whole, num_head = numbers(model), model.get_parameter(HEAD).numel()
    fill(model, biased, Share(1, 2), torch.device("cpu"))
    held = [parameter for parameter in model.parameters() if not parameter.is_meta]
    assert [name for name, parameter in model.named_parameters() if parameter.is_meta] == [HEAD]
    num_held = sum(parameter.untyped_storage().nbytes() // 4 for parameter in held)
    num_embedded = model.model.embed_tokens.weight.numel()
    assert num_embedded < num_held < num_embedded + 0.55 * (num_whole - num_head - num_embedded)


def numbers(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


ORDERS: list[Order] = [Forward(0, 0, [3, 4, 5]), Copy(0, 7, 2), Forget(0), Forward(7, 2, [9]), Forward(7, 0, [2, 3])]


def test_orders_survive_the_way() -> None:
    stream = io.BytesIO(b"".join(map(encoded, ORDERS)))
    assert list(orders_from(stream)) == ORDERS


def test_order_that_breaks_off_is_not_carried_out() -> None:
    with pytest.raises(EOFError):
        list(orders_from(io.BytesIO(encoded(ORDERS[0])[:-8])))


class Recorder(Decoder):
    """A whole model that follows orders, and what it was fed."""

    def __init__(self) -> None:
        super().__init__(random_model("llama"), WINDOW)
        self.fed: list[tuple[BufferKV, int, Sequence[int]]] = []

    def follow(self, tokens: Sequence[int], kv: BufferKV) -> None:
        self.fed.append((kv, kv.num_tokens, tokens))
        super().follow(tokens, kv)


def test_follower_crops_copies_and_forgets() -> None:
    decoder = Recorder()
    follow(decoder, ORDERS)
    kvs = [kv for kv, _, _ in decoder.fed]
    assert kvs[0] is not kvs[1] and kvs[1] is kvs[2]
    assert [(start, tokens) for _, start, tokens in decoder.fed] == [(0, [3, 4, 5]), (2, [9]), (0, [2, 3])]


def test_dropped_sequence_is_forgotten_with_the_next_order(lm: CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    feed(lm, random_ids(3))  # with which others go that were dropped before
    given: list[Order] = []

    def noted(one: Order) -> bytes:
        given.append(one)
        return encoded(one)

    monkeypatch.setattr("semspec.engine.tensor_parallel.workers.encoded", noted)
    kv = lm.new_kv()
    assert isinstance(kv, SharedKV)
    dropped = kv.sequence
    feed(lm, random_ids(3), kv)
    given.clear()
    del kv
    feed(lm, random_ids(3))
    assert Forget(dropped) in given and isinstance(given[-1], Forward)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_split_over_two_gpus_equals_whole(biased: Path) -> None:
    whole = CausalLM.load(str(biased), None, "cuda:0", "float32", engine="fast")
    split = CausalLM.load(str(biased), None, "cuda", "float32", split=HALVES)
    try:
        assert_split_equals_whole(split, whole, tolerance=1e-4)
    finally:
        split.close()
