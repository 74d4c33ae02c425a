"""What a checkpoint says of itself: a fingerprint over every byte, and a tokenizer that works."""

import json
import os
import shutil
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from semspec.engine import checkpoint, digests
from semspec.engine.causal_lm import CausalLM
from semspec.engine.checkpoint import load_tokenizer, model_fingerprint
from semspec.engine.settings import ModelSettings
from semspec.engine.torch_engine import TorchEngine
from semspec.engine.vllm import options
from semspec.errors import Mismatch
from semspec.types import (
    FINGERPRINT,
    GenerationParams,
    Penalties,
    SamplingParams,
    SegmentEnd,
    Writer,
)
from tests.engine.support import CHATML, Load, answered
from tests.helpers.checkpoints import edit_json, save_spelling_checkpoint, spelling_tokenizer


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file, and an empty cache that keeps digests of files of any size."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(digests, "LEAST_BYTES", 0)
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"weights")
    return file


def test_fingerprint_covers_every_byte(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    data = bytearray(5 << 20)
    seen = set()
    for place in (0, len(data) // 2, len(data) - 1):
        data[place] ^= 1
        (tmp_path / "model.safetensors").write_bytes(data)
        seen.add(model_fingerprint(str(tmp_path)))
    assert model_fingerprint(str(shutil.copytree(tmp_path, tmp_path / "copy"))) in seen
    assert len(seen) == 3 and all(fingerprint.startswith(f"{FINGERPRINT}:") for fingerprint in seen)


def test_digest_is_computed_once(weights: Path) -> None:
    [digest] = digests.file_digests([weights])
    [entry] = digests.cache_folder().iterdir()
    entry.write_text(json.dumps([*json.loads(entry.read_text())[:-1], "remembered"]))
    assert digests.file_digests([weights]) == ["remembered"]
    entry.write_text("{")
    assert digests.file_digests([weights]) == [digest]


def test_digest_of_a_changed_file_is_computed_again(weights: Path) -> None:
    before, times = digests.file_digests([weights]), weights.stat()
    weights.write_bytes(b"WEIGHTS")
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))  # the ctime cannot be put back
    assert digests.file_digests([weights]) != before


def test_digest_needs_no_writable_cache(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = digests.file_digests([weights])
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert digests.file_digests([weights]) == found


NO_TOKEN_IDS: list[Any] = [{}, [{"a": 1}], "</s>", [], True, 1.5, -1]


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        *(("tokenizer.json", text, "tokenizer") for text in ("{}", "[]", '{"version": "1.0"}')),
        *(("tokenizer.json", text, "cannot load model") for text in ("{", "")),
        ("config.json", {"pad_token_id": "x"}, "cannot load model"),
        ("config.json", {"num_hidden_layers": [2]}, "cannot load model"),
        ("config.json", {"model_type": 7}, "cannot load model"),
        ("config.json", {"intermediate_size": 8}, "cannot load model"),
        ("generation_config.json", '["x"]', "cannot load model"),
        *(
            ("generation_config.json", {"eos_token_id": eos}, "generation_config.json")
            for eos in NO_TOKEN_IDS
        ),
        ("config.json", {"eos_token_id": -1}, "eos_token_id in config.json is -1"),
        ("chat_template.jinja", "{% for m in messages %}{{ m.content }}", "chat template of"),
    ],
)
def test_malformed_file_is_refused(folder: Path, file: str, content: Any, complaint: str) -> None:
    """`content`: the text of the file, or fields to change in it."""
    path = folder / file
    path.write_text(
        content if isinstance(content, str) else json.dumps(json.loads(path.read_text()) | content)
    )
    with pytest.raises(Mismatch, match=f"(?s){complaint}") as refusal:
        TorchEngine.load(str(folder), writer=Writer.TARGET)
    assert "\n" not in str(refusal.value)


DOCUMENT_END, TURN_END = "<|endoftext|>", "<|im_end|>"
HARMONY = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<|channel|>final{{ m.content }}"
    "{{ '<|im_end|>' if not loop.last else '<|endoftext|>' }}{% else %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
)
"""Ends the last turn with one token, and each message before it with another, which also ends the reasoning."""


@pytest.fixture
def spelling(tmp_path: Path) -> Path:
    """Return a checkpoint without a chat template, with two special tokens that no file names as an end."""
    folder = save_spelling_checkpoint(tmp_path / "spelling")
    (folder / "generation_config.json").unlink()
    (folder / "chat_template.jinja").unlink()
    edit_json(folder / "config.json", eos_token_id=None)
    edit_json(folder / "tokenizer_config.json", eos_token=None)
    return folder


def name_end(folder: Path, file: str, *tokens: str) -> None:
    """Name `tokens` as the ends of a sequence in `file`."""
    ids = spelling_tokenizer().convert_tokens_to_ids(list(tokens))
    path, field = folder / file, "eos_token" if file == "tokenizer_config.json" else "eos_token_id"
    if not path.exists():
        path.write_text("{}")
    edit_json(
        path, **{field: tokens[0] if field == "eos_token" else ids if len(ids) > 1 else ids[0]}
    )


def ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the tokens that end a sequence, which must be the same for both engines, and for `semspec doctor`."""
    monkeypatch.setattr(options, "_check_device", lambda *_: None)  # which needs vLLM
    settings = ModelSettings(model=str(folder), device="cpu")
    tokenizers = [
        CausalLM.load(str(folder), None, device, "float32").tokenizer for device in ("cpu", "meta")
    ]
    tokenizers.append(options.load_model(settings, Writer.TARGET)[1])
    [ids] = {tokenizer.eos_ids for tokenizer in tokenizers}
    return set(tokenizers[0].raw.convert_ids_to_tokens(sorted(ids)))


FILES = ("generation_config.json", "config.json", "tokenizer_config.json")


@pytest.mark.parametrize(("first", "second"), [*permutations(FILES, 2)])
def test_ends_of_a_sequence_are_those_of_all_files(
    spelling: Path, first: str, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name_end(spelling, first, DOCUMENT_END)
    assert ends(spelling, monkeypatch) == {DOCUMENT_END}
    name_end(spelling, second, TURN_END)
    assert ends(spelling, monkeypatch) == {DOCUMENT_END, TURN_END}


def test_multimodal_model_ends_as_its_text_configuration_says(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"eos_token_id": [3, 4]}}))
    assert checkpoint.eos_ids(str(tmp_path), spelling_tokenizer(), 300) == {3, 4, 261}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (CHATML, {DOCUMENT_END, TURN_END}),
        (HARMONY, {DOCUMENT_END}),
        (
            "{% for m in messages %}{{ m.content }}<think>{% endfor %}",
            {DOCUMENT_END},
        ),  # it is not special
        ("{% for m in messages %}{{ m.content }}\n\n{% endfor %}", {DOCUMENT_END}),
        ("{{ raise_exception('one turn at a time') }}", {DOCUMENT_END}),
    ],
)
def test_end_of_a_turn_ends_a_sequence_if_no_other_token_does(
    spelling: Path, template: str, expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name_end(spelling, "generation_config.json", DOCUMENT_END)
    (spelling / "chat_template.jinja").write_text(template)
    assert ends(spelling, monkeypatch) == expected


async def test_model_that_writes_the_end_of_a_turn_ends_there(spelling: Path, load: Load) -> None:
    """generation_config.json names the end of a document alone, the tokenizer that of a turn."""
    name_end(spelling, "generation_config.json", DOCUMENT_END)
    name_end(spelling, "tokenizer_config.json", TURN_END)
    engine = load(spelling)
    [end] = engine.tokenizer.ids_of(TURN_END)
    bias = Penalties(logit_bias=((end, 100.0),))
    params = GenerationParams(SamplingParams(), max_tokens=200, max_segments=0, penalties=bias)
    *_, last = await answered(engine, params)
    assert last.segment.end is SegmentEnd.EOS and last.segment.token_ids[-1] == end


def test_unknown_end_of_a_turn_is_not_an_end(folder: Path) -> None:
    """It is read as unknown tokens, which are special, too."""
    (folder / "chat_template.jinja").write_text(CHATML)
    assert CausalLM.load(str(folder), None, "cpu", "float32").tokenizer.eos_ids == {1}


def test_end_without_embedding_is_ignored(spelling: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name_end(spelling, "tokenizer_config.json", DOCUMENT_END)
    edit_json(spelling / "config.json", eos_token_id=[10**6])
    assert ends(spelling, monkeypatch) == {DOCUMENT_END}
    edit_json(spelling / "tokenizer_config.json", eos_token=None)
    with pytest.raises(Mismatch, match=r"names no end-of-sequence token"):
        CausalLM.load(str(spelling), None, "cpu", "float32")


def test_end_is_not_taken_from_config_class(folder: Path) -> None:
    """Llama's class has the id 2 by default, which is another token in most vocabularies."""
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    del config["eos_token_id"]
    (folder / "config.json").write_text(json.dumps(config))
    assert CausalLM.load(str(folder), None, "cpu", "float32").tokenizer.eos_ids == {1}


def test_chat_template_that_refuses_a_first_turn_is_served(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ raise_exception('begin with a system turn') }}")
    assert load_tokenizer(str(folder)).chat_template
