"""Token-level speculation between tokenizers that differ in their added tokens and their padding, as R1's and QwQ's."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from semspec.decoding import Backends, Generation, Options, token_level
from semspec.engine.checkpoint import tokenizer_fingerprint
from semspec.engine.torch_engine import TorchEngine
from semspec.types import (
    Context,
    Piece,
    SamplingParams,
    Segment,
    SegmentEnd,
    Writer,
    shares_ordinary_tokens,
)
from tests.engine.support import PROMPT, Load, assert_distributed, certainly, pairs, params, prompt
from tests.helpers import variants
from tests.helpers.checkpoints import random_probes
from tests.helpers.engines import trace

NUM_SEEDS = 200
HOT = SamplingParams(1.5, 1.0, 4)
NUM_ORDINARY = 310
OFTEN = (193, 134, 199)
"""Tokens that the model often writes."""
START, END, DONE = 310, 311, 312
"""Added tokens of the target, <|im_start|>, <|im_end|> and </done>; the draft has others with the first two ids."""
DRAFTS, TARGETS = ("<|User|>",), ("<|im_start|>", "<|im_end|>")
"""Special tokens of the two."""

Engines = tuple[TorchEngine, TorchEngine]


def with_added(source: Path, *special: str) -> PreTrainedTokenizerFast:
    """The tokenizer of `source` with more special tokens, and `</done>`, which has text."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(source)
    tokenizer.add_special_tokens({"additional_special_tokens": list(special)})
    tokenizer.add_tokens(["</done>"])
    return tokenizer


def save(
    source: Path, special: tuple[str, ...], likely: Mapping[int, int], size: int, folder: Path
) -> Path:
    """The model of `source` with special tokens and a vocabulary padded to `size`. A key of `likely` is a little more
    likely than its value."""
    model = AutoModelForCausalLM.from_pretrained(source)
    model.resize_token_embeddings(size, mean_resizing=False)
    head = model.lm_head.weight.data
    head[NUM_ORDINARY:] = 0
    for token, like in likely.items():
        head[token] = 1.02 * head[like]
    model.generation_config.eos_token_id = [1, END] if special is TARGETS else [1]
    model.save_pretrained(folder)
    with_added(source, *special).save_pretrained(folder)
    return folder


@pytest.fixture
async def engines(checkpoints: dict[str, Path], tmp_path: Path, load: Load) -> Engines:
    """Draft and target of the same weights, but for the tokens that are not ordinary, which both often write."""
    first, second, third = OFTEN
    of_draft = {START: second, 311: third, 315: first}
    of_target = {START: first, END: second, DONE: third}
    draft = save(checkpoints["qwen2"], DRAFTS, of_draft, 320, tmp_path / "draft")
    target = save(checkpoints["qwen2"], TARGETS, of_target, 340, tmp_path / "target")
    return load(draft, Writer.DRAFT), load(target)


@pytest.fixture
async def backends(engines: Engines, tmp_path: Path) -> Backends:
    return Backends(*engines, await random_probes(*engines, tmp_path))


def test_fingerprints_of_added_tokens(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    source = checkpoints["qwen2"]
    plain = PreTrainedTokenizerFast.from_pretrained(source)
    pair = [tokenizer_fingerprint(with_added(source, *special)) for special in (DRAFTS, TARGETS)]
    draft, target, own = *pair, tokenizer_fingerprint(plain)
    assert len({draft, target, own}) == 3
    assert shares_ordinary_tokens(draft, target) and shares_ordinary_tokens(own, target)
    plain.save_pretrained(tmp_path)
    file = tmp_path / "tokenizer.json"
    text = file.read_text()
    assert text.count('" Tom"') == 1
    file.write_text(text.replace('" Tom"', '" Tim"'))
    changed = tokenizer_fingerprint(PreTrainedTokenizerFast.from_pretrained(tmp_path))
    assert not shares_ordinary_tokens(changed, own) and not shares_ordinary_tokens("", own)


def test_pieces_are_read_by_ids_where_all_are_ordinary_and_else_by_text(engines: Engines) -> None:
    draft, target = (engine.tokenizer for engine in engines)
    ordinary = (NUM_ORDINARY - 1, 5, 5, 7)
    assert (
        draft.read_ids(Piece("other text", ordinary, target.info.tokenizer), before="So")
        == ordinary
    )
    assert draft.read_ids(Piece("</done>", (DONE,), target.info.tokenizer), before="So") == [311]
    assert draft.read_ids(Piece("</done>", (335,), target.info.tokenizer), before="So") == [311], (
        "padding"
    )
    ended = Segment(
        "7", (*target.ids_of("7"), END), target.info.tokenizer, Writer.TARGET, SegmentEnd.EOS
    )
    assert draft.read_ids(ended, before="So") == [*draft.ids_of("7"), draft.end_of_turn]


@pytest.mark.parametrize("num_tokens", [1, 3])
async def test_keeps_distribution(engines: Engines, backends: Backends, num_tokens: int) -> None:
    """Chi-square of the first two of three tokens, at fixed seeds, 0.1% level."""
    target = engines[1]
    context = await prompt(target)
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(NUM_SEEDS):
        options = Options(num_speculative_tokens=num_tokens)
        generation = Generation(
            context, replace(HOT, seed=seed), 3, strategy=token_level.strategy(options), session="s"
        )
        records = await trace(generation, backends)
        counts[tuple(token for record in records for token in record.segment.token_ids)[:2]] += 1
    assert_distributed(counts, pairs(target, context, HOT))
    assert {START, END, DONE} <= {token for tokens in counts for token in tokens}


@pytest.mark.parametrize("num_tokens", [1, 4])
async def test_greedy_rounds_equal_target_alone(backends: Backends, num_tokens: int) -> None:
    written: list[int] = []
    num_accepted = 0
    for question in (
        PROMPT,
        "Day 1: Tom sells 6 pens.",
        "How many pens does Tom have now?",
        "25 - 6 = 19.\n\n",
    ):
        context = Context((await backends.target.encode(question),))
        options = Options(num_speculative_tokens=num_tokens)
        greedy = Generation(context, SamplingParams(0), 40, strategy=token_level.strategy(options))
        records = await trace(greedy, backends)
        alone = await trace(variants.alone(greedy), backends)
        assert [record.segment for record in records] == [record.segment for record in alone]
        written += [token for record in records for token in record.segment.token_ids]
        num_accepted += sum(record.num_accepted_tokens for record in records)
    assert num_accepted > 0 and not {START, DONE}.isdisjoint(written)


async def test_tokens_that_only_the_draft_has_are_rejected(engines: Engines) -> None:
    draft, target = engines
    context = await prompt(target)
    alone = await target.verify_tokens(context, (), certainly(draft, ()), params())
    for token in (START, 311, 315):
        verified = await target.verify_tokens(context, (), certainly(draft, (token, 5)), params())
        assert verified.num_accepted == 0
        assert (verified.segments, verified.open_ids) == (alone.segments, alone.open_ids)
        assert verified.open_piece == Piece(
            target.tokenizer.text_of([], alone.open_ids),
            alone.open_ids,
            (await target.info()).tokenizer,
        )
