"""Models with the packed weights of a GGUF file: exact weights, rows that do not depend on others, bounded error."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from transformers import DynamicCache

from semspec.engine.causal_lm import CausalLM
from semspec.engine.decoder import LONG_STEP
from semspec.engine.gguf_weights import GgufTensor, PackedMatrix
from semspec.engine.kv_cache import Chunk
from semspec.engine.numeric_form import resolve_form
from semspec.engine.onnx_layers import product
from semspec.engine.selftest import self_test
from semspec.engine.settings import ModelSettings
from semspec.engine.torch_engine import TorchEngine
from semspec.errors import Mismatch
from semspec.types import Writer
from tests.engine.models import random_model
from tests.helpers.checkpoints import save_spelling_checkpoint
from tests.helpers.ggufs import save_gguf

TYPES = [
    GGMLQuantizationType[name]
    for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
]
WITH_MINIMUM = {"Q4_1", "Q5_1", "Q4_K", "Q5_K"}
SPLIT = [1, 1, 3, 16, 1, 38, 7]
"""Numbers of rows that are computed together, in turn."""
OUTPUT_ERROR, STATES_ERROR = 0.02, 0.05
"""Bounds of the relative error of a product, and of a small random model's states."""


def random_matrix(
    kind: GGMLQuantizationType, rows: int = 96, num_blocks: int = 3, seed: int = 0
) -> GgufTensor:
    """Return a matrix of random codes and scales."""
    random = np.random.default_rng(seed)
    block_size, block_bytes = GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (rows * num_blocks, block_bytes), dtype=np.uint8)
    at = 208 if kind.name == "Q6_K" else 0
    count = 2 if kind.name in WITH_MINIMUM else 1
    scales = random.uniform(0.001, 0.01, (len(blocks), count)).astype(np.float16)
    blocks[:, at : at + 2 * count] = scales.view(np.uint8)
    return GgufTensor(kind, blocks.reshape(rows, -1), (rows, num_blocks * block_size))


def restored(packed: PackedMatrix) -> np.ndarray:
    codes = packed.codes
    if packed.bits == 4:
        codes = np.stack([codes & 15, codes >> 4], -1).reshape(len(codes), -1, packed.group_size)
    values = packed.scales[..., None] * (
        codes.astype(np.float32) - (8 if packed.bits == 4 else 128)
    )
    if packed.offsets is not None:
        values += packed.offsets[..., None]
    return values.reshape(packed.shape)


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_packed_weights_are_those_of_the_file(kind: GGMLQuantizationType) -> None:
    matrix = random_matrix(kind)
    np.testing.assert_allclose(
        restored(matrix.packed()), matrix.dequantized(), rtol=1e-6, atol=1e-7
    )


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_row_of_product_is_independent(kind: GGMLQuantizationType, num_threads: int) -> None:
    matrix = random_matrix(kind)
    compute = product(matrix.packed(), np.ones(96, np.float32), num_threads)
    rows = torch.randn(67, matrix.shape[1], generator=torch.Generator().manual_seed(1))
    rows[:, 5] *= 100  # an outlier, as in the activations of Qwen2
    together = compute(rows)
    assert torch.equal(together, torch.cat([compute(row[None].clone()) for row in rows]))
    assert torch.equal(together, torch.cat([compute(part.clone()) for part in rows.split(SPLIT)]))
    wanted = rows @ torch.from_numpy(matrix.dequantized()).T + 1
    assert (together - wanted).norm() < OUTPUT_ERROR * wanted.norm()


@pytest.fixture(scope="module", params=["qwen2", "llama"])
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file in Q8_0, and next to it the folder `checkpoint` that it was written from."""
    folder = tmp_path_factory.mktemp(request.param)
    config = json.loads(
        (save_spelling_checkpoint(folder / "checkpoint") / "config.json").read_text()
    )
    changes = {
        name: config[name] for name in ("vocab_size", "eos_token_id", "max_position_embeddings")
    }
    random_model(request.param, **changes, bos_token_id=None).save_pretrained(folder / "checkpoint")
    return save_gguf(folder / "tiny.gguf", folder / "checkpoint", gguf.GGMLQuantizationType.Q8_0)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    resolve_form.cache_clear()
    yield
    resolve_form.cache_clear()


def ids_below(limit: int, num_tokens: int) -> list[int]:
    ids: list[int] = torch.randint(
        limit, (num_tokens,), generator=torch.Generator().manual_seed(0)
    ).tolist()
    return ids


def load(file: Path, dtype: str) -> CausalLM:
    return CausalLM.load(str(file), None, "cpu", dtype)


@pytest.mark.usefixtures("cache")
def test_tokens_read_together_have_the_bits_of_tokens_read_one_after_another(file: Path) -> None:
    lm, ids = load(file, "packed"), ids_below(250, 60)
    assert lm.decoder and lm.form == "packed"
    alone, together = lm.new_kv(), lm.new_kv()
    one_by_one = [lm.forward([id], alone, want_states=True) for id in ids]
    parts = [
        lm.forward(ids[a:b], together, b - a, want_states=True)
        for a, b in ((0, 31), (31, 32), (32, 60))
    ]
    assert torch.equal(
        torch.cat([one.logits for one in one_by_one]), torch.cat([one.logits for one in parts])
    )
    assert torch.equal(
        torch.cat([one.states for one in one_by_one], 1),
        torch.cat([one.states for one in parts], 1),
    )


@pytest.mark.usefixtures("cache")
def test_sequences_in_one_step_have_the_bits_of_single_steps(file: Path) -> None:
    """A long prompt, and tokens and a segment after prompts."""
    lm, ids = load(file, "packed"), ids_below(250, LONG_STEP + 50)
    parts = [(0, LONG_STEP + 10), (20, 1), (25, 1), (30, 7)]
    fed = [lm.new_kv() for _ in parts], [lm.new_kv() for _ in parts]
    for kvs in fed:
        for kv, (start, _) in zip(kvs, parts, strict=True):
            if start:
                lm.forward(ids[:start], kv)
    chunks = [
        [
            Chunk(ids[start : start + length], kv, length, want_states=True)
            for kv, (start, length) in zip(kvs, parts, strict=True)
        ]
        for kvs in fed
    ]
    together = lm.forward_step(chunks[0])
    for found, chunk in zip(together, chunks[1], strict=True):
        [alone] = lm.forward_step([chunk])
        assert torch.equal(found.logits, alone.logits)
        assert torch.equal(found.states, alone.states)


@pytest.mark.usefixtures("cache")
def test_packed_states_are_close_to_those_in_fp32_and_to_transformers(file: Path) -> None:
    packed, exact, ids = load(file, "packed"), load(file, "float32"), ids_below(250, 50)
    states = [lm.forward(ids, lm.new_kv(), 50, want_states=True).states for lm in (packed, exact)]
    assert (states[0] - states[1]).norm() < STATES_ERROR * states[1].norm()
    batch = packed.forward_batch(torch.tensor([ids]), DynamicCache(), 50, want_states=True)
    assert (batch.states[:, 0] - states[0]).norm() < STATES_ERROR * states[0].norm()


@pytest.mark.usefixtures("cache")
async def test_self_test_finds_wrong_layer(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All passes share the layer, so they agree with one another."""
    settings = ModelSettings(model=str(file), port=0, device="cpu", dtype="packed")
    engine = TorchEngine.load(str(file), writer=Writer.TARGET, device="cpu", dtype="packed")
    assert "layers with those in fp32" in await self_test(engine, settings)
    last: Any = engine.lm.model.model.layers[-1]
    finish = last.finish
    monkeypatch.setattr(last, "finish", lambda hidden, attended: finish(hidden, 1.5 * attended))
    number = len(engine.lm.model.model.layers) - 1
    with pytest.raises(Mismatch, match=f"self-test: layer {number} is not that of the file"):
        await self_test(engine, settings)
    await engine.aclose()


@pytest.mark.usefixtures("cache")
def test_weights_of_gguf_equal_checkpoint(file: Path) -> None:
    """Rows of Llama's queries and keys, which llama.cpp orders in another way, included."""
    folder, ids = file.parent / "checkpoint", ids_below(250, 50)
    whole = save_gguf(file.parent / "whole.gguf", folder, gguf.GGMLQuantizationType.F32)
    logits = [
        load(path, "float32").forward(ids, load(path, "float32").new_kv(), 50).logits
        for path in (whole, folder)
    ]
    torch.testing.assert_close(*logits)


@pytest.mark.usefixtures("cache")
def test_packed_form_that_cannot_be_had_is_refused_in_a_line(file: Path) -> None:
    with pytest.raises(Mismatch, match=r"dtype packed: .* has no packed weights"):
        load(file.parent / "checkpoint", "packed")
    whole = save_gguf(
        file.parent / "floats.gguf", file.parent / "checkpoint", gguf.GGMLQuantizationType.F16
    )
    with pytest.raises(Mismatch, match="has the type F16, which has no packed product"):
        load(whole, "packed")


@pytest.mark.usefixtures("cache")
def test_small_model_is_served_in_fp32_by_auto(file: Path) -> None:
    assert load(file.parent / "checkpoint", "auto").form == "float32"
