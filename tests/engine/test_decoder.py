"""Our decoder gives what transformers gives, and keeps its keys and values straight."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, MistralConfig, MistralForCausalLM, PreTrainedModel

from semspec.engine.causal_lm import CausalLM, EngineName, Forward
from semspec.engine.kv_cache import KV, BufferKV
from semspec.engine.load import load_engine
from semspec.engine.torch_engine import TorchEngine
from semspec.errors import Mismatch
from semspec.types import Writer
from semspec_target.settings import TargetSettings
from tests.engine import models
from tests.engine.models import lm_of, random_ids, random_model
from tests.engine.support import assert_same
from tests.helpers.checkpoints import SIZES

STRETCHES = (37, 1, 1, 20, 1, 260, 5)
"""Tokens fed at a time: a prompt, single tokens, segments, and past the first buffer's end."""

ENGINES: tuple[EngineName, ...] = ("fast", "transformers")

SUPPORTED: dict[str, tuple[str, dict[str, object]]] = {
    "qwen2": ("qwen2", {}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-no-groups": ("qwen2", {"num_key_value_heads": 4}),
    "llama": ("llama", {}),
    "llama-biased": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-wide-heads": ("llama", {"head_dim": 16, "num_key_value_heads": 1}),
    "llama3-rope": ("llama", {"rope_parameters": models.LLAMA3_ROPE}),
    "yarn-rope": ("qwen2", {"rope_parameters": models.YARN_ROPE}),
}


class Int4Linear(torch.nn.Linear):
    """No plain matrix."""


def quantised() -> PreTrainedModel:
    model = random_model("qwen2")
    model.model.layers[1].mlp.up_proj = Int4Linear(
        SIZES["hidden_size"], SIZES["intermediate_size"], bias=False
    )
    return model


MISTRAL = MistralConfig(
    vocab_size=len(models.TOKENIZER), eos_token_id=1, sliding_window=None, **SIZES
)
UNSUPPORTED: dict[str, Callable[[], PreTrainedModel]] = {
    "sliding window": lambda: random_model("qwen2", **models.WINDOWED),
    "dynamic": lambda: random_model("llama", rope_parameters=models.DYNAMIC_ROPE),
    "gelu": lambda: random_model("llama", hidden_act="gelu"),
    "MistralForCausalLM": lambda: MistralForCausalLM(MISTRAL),
    "Int4Linear": quantised,
}


def feed(lm: CausalLM, ids: list[int], kv: KV | None = None) -> Forward:
    """All logits and states of `ids` fed in one go."""
    return lm.forward(ids, kv or lm.new_kv(), len(ids), want_states=True)


def assert_equal(a: Forward, b: Forward, tolerance: float = 1e-5) -> None:
    assert a.logits.shape == b.logits.shape and a.states.shape == b.states.shape
    assert_same(a.logits.float(), b.logits.float(), tolerance)
    for layer, other in zip(a.states.float(), b.states.float(), strict=True):
        assert_same(layer, other, tolerance)


def assert_agree(a: CausalLM, b: CausalLM, tolerance: float = 1e-5) -> None:
    """Both give the same at every stretch of a growing sequence."""
    ids, kv_a, kv_b = random_ids(sum(STRETCHES)), a.new_kv(), b.new_kv()
    for length in STRETCHES:
        stretch, ids = ids[:length], ids[length:]
        assert_equal(feed(a, stretch, kv_a), feed(b, stretch, kv_b), tolerance)
    for pair, other in zip(kv_a.per_layer(), kv_b.per_layer(), strict=True):
        assert_same(torch.stack(pair).float(), torch.stack(other).float(), tolerance)


@pytest.fixture(params=ENGINES)
def lm(request: pytest.FixtureRequest) -> CausalLM:
    return lm_of(random_model("qwen2"), request.param)


@pytest.fixture
def fast() -> CausalLM:
    return lm_of(random_model("llama"), "fast")


@pytest.mark.parametrize("name", SUPPORTED)
def test_fast_equals_transformers_in_logits_and_all_states(name: str) -> None:
    architecture, changes = SUPPORTED[name]
    model = random_model(architecture, **changes)
    assert_agree(lm_of(model, "fast"), lm_of(model, "transformers"))


def test_fast_in_bf16_is_as_near_to_fp32_as_transformers() -> None:
    model, ids = random_model("llama"), random_ids(120)
    exact = feed(lm_of(model, "transformers"), ids).states
    half = model.to(torch.bfloat16)
    fast, reference = (feed(lm_of(half, engine), ids).states.float() for engine in ENGINES)
    assert float((fast - exact).norm()) < 1.1 * float((reference - exact).norm())


def test_copy_and_original_that_is_rolled_back_go_on_independently(lm: CausalLM) -> None:
    shared, mine, others = random_ids(200), random_ids(30, seed=1), random_ids(7, seed=2)
    original = lm.new_kv()
    feed(lm, [*shared, *random_ids(150, seed=3)], original)
    twin = original.copy(len(shared))
    original.crop(len(shared))
    assert original.num_tokens == twin.num_tokens == len(shared)
    forwards = [feed(lm, mine, original), feed(lm, others, twin)]
    for own, forward in zip((mine, others), forwards, strict=True):
        fresh = feed(lm, [*shared, *own])
        assert_equal(forward, Forward(fresh.logits[len(shared) :], fresh.states[:, len(shared) :]))


def test_fused_weights_are_held_once_and_still_serve_batches() -> None:
    model = random_model("llama", attention_bias=True)
    reference, fast = lm_of(model, "transformers"), lm_of(model, "fast")
    assert held_bytes(fast.model) == held_bytes(model)
    ids = torch.tensor([random_ids(12), random_ids(12, seed=1)])
    batches = [
        lm.forward_batch(ids, DynamicCache(), 12, want_states=True) for lm in (reference, fast)
    ]
    assert_same(batches[0].logits, batches[1].logits)
    assert_same(batches[0].states, batches[1].states)
    assert_same(feed(fast, ids[1].tolist()).states, batches[0].states[:, 1])


def held_bytes(model: PreTrainedModel) -> int:
    storages = {
        storage.data_ptr(): storage.nbytes()
        for storage in map(Tensor.untyped_storage, model.parameters())
    }
    return sum(storages.values())


@pytest.mark.parametrize("reason", UNSUPPORTED)
def test_fast_refuses_what_it_cannot_compute_and_auto_falls_back(reason: str) -> None:
    model = UNSUPPORTED[reason]()
    with pytest.raises(Mismatch, match=rf"tiny: .*{reason}"):
        lm_of(model, "fast")
    lm = lm_of(model, "auto")
    assert not isinstance(lm.new_kv(), BufferKV)
    assert feed(lm, random_ids(5)).logits.isfinite().all()


@pytest.mark.parametrize(("name", "is_fast"), [("fast", True), ("transformers", False), ("", True)])
async def test_variable_chooses_the_engine(
    name: str, is_fast: bool, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMSPEC_TARGET_ENGINE", name)
    engine = load_engine(TargetSettings(model=str(checkpoint), device="cpu"), Writer.TARGET)
    assert isinstance(engine, TorchEngine)
    assert isinstance(engine.lm.new_kv(), BufferKV) is is_fast
    await engine.aclose()
