"""How likely the writer found its tokens, and what they are in bytes."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, processors, trainers
from tokenizers import models as token_models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from semspec.engine.causal_lm import CausalLM, EngineName
from semspec.engine.logits import token_logprob
from semspec.engine.tokenization import TokenBytes, tokenize
from semspec.engine.torch_engine import TorchEngine
from semspec.errors import Mismatch
from semspec.types import Context, SamplingParams, Segmentation, TokenLogprob
from tests.engine.models import lm_of, random_model
from tests.engine.support import Load, params, prompt, written

pytestmark = pytest.mark.slow
MULTILINGUAL = "Já 你好, 𝛑 ≈ 3.14 — naïve\n\n\u200d👩\u200d👧 <think>é</think>"


def byte_level() -> PreTrainedTokenizerFast:
    """A byte-level BPE with hardly a merge, so that most characters beyond ASCII are spread over tokens."""
    tokenizer = Tokenizer(token_models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=275, initial_alphabet=alphabet, special_tokens=["<pad>", "<eos>"]
    )
    tokenizer.train_from_iterator(["the pens and the cards", "the 你好 cards"], trainer)
    tokenizer.add_tokens(
        [AddedToken("<think>", special=False), AddedToken("two words", special=False)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>")


def sentence_pieces() -> PreTrainedTokenizerFast:
    """A BPE as of Llama 2: spaces as a letter, bytes for unknown characters, a space stripped from the front."""
    pieces = [
        "<eos>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *"▁abcdefghijklmnopqrstuvwxyz<>,.",
        "▁a",
        "an",
    ]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(
        token_models.BPE(vocab, [("▁", "a"), ("a", "n")], byte_fallback=True, unk_token="<eos>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


def spelt(logprobs: tuple[TokenLogprob, ...] | None) -> bytes:
    assert logprobs is not None
    return b"".join(logprob.data for logprob in logprobs)


@pytest.mark.parametrize(
    "tokenizer", [byte_level(), sentence_pieces()], ids=["byte-level", "byte-fallback"]
)
@pytest.mark.parametrize("text", [MULTILINGUAL, "an  ant two words  ", "é", "the pens"])
def test_bytes_of_tokens_make_up_the_text(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    ids = tokenizer.encode(f"a {text}", add_special_tokens=False)
    data = [TokenBytes(tokenizer)(token) for token in ids]
    assert b"".join(data).decode().removeprefix(" ") == f"a {text}"
    if text == MULTILINGUAL:
        assert any(one.decode(errors="replace") == "\ufffd" for one in data)


@pytest.mark.parametrize(
    "tokenizer", [byte_level(), sentence_pieces()], ids=["byte-level", "byte-fallback"]
)
def test_special_and_unknown_tokens_have_no_bytes(tokenizer: PreTrainedTokenizerBase) -> None:
    token_bytes = TokenBytes(tokenizer)
    assert tokenizer.eos_token_id is not None
    assert token_bytes(tokenizer.eos_token_id) == token_bytes(len(tokenizer) + 7) == b""


def test_byte_spelt_out_by_a_byte_level_tokenizer_is_text() -> None:
    tokenizer = byte_level()
    tokenizer.add_tokens(["<0x41>"])
    token_id = tokenizer.convert_tokens_to_ids("<0x41>")
    assert TokenBytes(tokenizer)(token_id) == b"<0x41>"


async def test_bytes_of_split_characters(checkpoint: Path, tmp_path: Path, load: Load) -> None:
    folder, texts = tmp_path / "byte-level", []
    shutil.copytree(checkpoint, folder)
    byte_level().save_pretrained(folder)
    spread = load(folder)
    for seed in range(8):
        context = Context((await spread.encode("the pens: "),))
        [one] = await written(
            spread, context, params(sampling=SamplingParams(1.0, 1.0, 0, seed), num_logprobs=0)
        )
        assert spelt(one.logprobs).decode(errors="replace") == one.segment.text
        texts.append(one.segment.text)
    assert any(
        ord(character) > 0x7F and character != "\ufffd" for text in texts for character in text
    )


@pytest.mark.parametrize("sampling", [SamplingParams(0), SamplingParams(0.6, 0.5, 3, 5)])
@pytest.mark.parametrize("name", ["fast", "transformers"])
async def test_logprobs_are_those_of_a_plain_forward_whatever_the_sampling(
    checkpoint: Path, load: Load, name: EngineName, sampling: SamplingParams
) -> None:
    engine = load(checkpoint, engine=name)
    context = await prompt(engine)
    what = params(sampling=sampling, segmentation=Segmentation.SENTENCE, num_logprobs=4)
    [one] = await written(engine, context, what)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    ids = torch.tensor([[*context.pieces[0].token_ids, *one.segment.token_ids]])
    with torch.no_grad():
        rows = torch.log_softmax(model(ids).logits[0, -len(one.segment.token_ids) - 1 : -1], -1)
    assert one.logprobs is not None
    for told, token, row in zip(one.logprobs, one.segment.token_ids, rows, strict=True):
        assert told.token_id == token
        assert told.logprob == pytest.approx(float(row[token]), abs=1e-4)
        likeliest = row.topk(4)
        assert [other.token_id for other in told.alternatives] == likeliest.indices.tolist()
        assert [other.logprob for other in told.alternatives] == pytest.approx(
            likeliest.values.tolist(), abs=1e-4
        )
        assert all(
            other.data == engine.tokenizer.token_bytes(other.token_id)
            for other in told.alternatives
        )


async def test_asking_for_logprobs_changes_nothing_else(uncached: TorchEngine) -> None:
    context = await prompt(uncached)
    asked = await written(
        uncached, context, params(max_segments=0, num_logprobs=0, want_states=True)
    )
    plain = await written(uncached, context, params(max_segments=0, want_states=True))
    assert [one.logprobs for one in plain] == [None] * len(plain)
    assert all(told.alternatives == () for one in asked for told in one.logprobs or ())
    assert [replace(one, duration_ms=0, logprobs=None) for one in asked] == [
        replace(x, duration_ms=0) for x in plain
    ]


def test_impossible_tokens_are_no_alternatives_and_few_tokens_are_all_there_are() -> None:
    lm = lm_of(random_model("qwen2"), "fast")
    logits = torch.tensor([0.0, -torch.inf, 0.0, -torch.inf])
    told = token_logprob(lm.tokenizer, logits, 2, 20)
    assert {other.token_id for other in told.alternatives} == {0, 2}
    assert told.logprob == pytest.approx(-0.6931, abs=1e-4)


async def test_tokens_of_a_text_are_where_they_say(engine: TorchEngine) -> None:
    text = "Tom has  12 pens.\n\nHow many?"
    tokens = await engine.tokenize(text)
    assert "".join(token.text for token in tokens) == text
    assert [text[token.start : token.stop] for token in tokens] == [token.text for token in tokens]
    assert tuple(token.id for token in tokens) == (await engine.encode(text)).token_ids
    assert await engine.tokenize("") == []


def test_tokens_that_share_a_character_have_the_whole_of_it() -> None:
    tokenizer = byte_level()
    tokens = tokenize(tokenizer, "a𝛑<eos>")
    assert [(token.text, token.start, token.stop) for token in tokens] == [
        ("a", 0, 1), *[("𝛑", 1, 2)] * 4, ("<eos>", 2, 7),
    ]  # fmt: skip


def test_no_special_token_is_added_to_a_text() -> None:
    tokenizer = sentence_pieces()
    post = processors.TemplateProcessing(single="<eos> $A", special_tokens=[("<eos>", 0)])
    tokenizer.backend_tokenizer.post_processor = post
    assert [0, *(token.id for token in tokenize(tokenizer, "an"))] == tokenizer.encode("an")


def test_slow_tokenizer(checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    lm = CausalLM.load(str(checkpoints["qwen2"]), None, "cpu", "float32")
    monkeypatch.setattr(type(lm.tokenizer.raw), "is_fast", False)
    with pytest.raises(Mismatch, match=r"tokenizer\.json"):
        lm.tokenizer.tokenize("Tom")
