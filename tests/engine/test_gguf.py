"""Checkpoints in GGUF files: configuration and tokenizer of the cache, and what is refused."""

import errno
import os
import struct
import threading
from pathlib import Path
from typing import Any

import gguf
import pytest
from transformers import AutoConfig

from semspec.engine.architecture import context_window
from semspec.engine.checkpoint import (
    eos_ids,
    load_tokenizer,
    model_fingerprint,
    tokenizer_fingerprint,
)
from semspec.engine.gguf import checkpoint_of, weights_file
from semspec.engine.gguf_header import read_header
from semspec.engine.gguf_tokenizer import QWEN2_SPLIT
from semspec.errors import Mismatch
from tests.helpers.checkpoints import save_spelling_checkpoint
from tests.helpers.ggufs import save_gguf

TEXTS = (
    "How many?", "12*3 = 36, 1234567.", r"\frac{1}{2} $x^2$", "中文。", "👩‍🔬 é", "def f(x):\n    return x\n\n",
    "  a \t b\r\n ",
    "<tool_call>{\"a\": true}</tool_call><|im_end|>\n", "it's",
)  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "semspec" / "gguf"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save_spelling_checkpoint(tmp_path / "source")


@pytest.fixture
def file(tmp_path: Path, source: Path) -> Path:
    return save_gguf(tmp_path / "model.gguf", source)


def test_folder_has_configuration_and_tokenizer(file: Path, source: Path) -> None:
    folder = checkpoint_of(file)
    found, wanted = AutoConfig.from_pretrained(folder), AutoConfig.from_pretrained(source)
    for name in (
        "hidden_size",
        "num_key_value_heads",
        "rope_parameters",
        "rms_norm_eps",
        "vocab_size",
    ):
        assert getattr(found, name) == getattr(wanted, name)
    assert context_window(found) == context_window(wanted) == 1200
    tokenizer, published = load_tokenizer(str(folder)), load_tokenizer(str(source))
    assert [tokenizer.encode(text) for text in TEXTS] == [published.encode(text) for text in TEXTS]
    assert tokenizer_fingerprint(tokenizer) == tokenizer_fingerprint(published)
    assert tokenizer.chat_template == published.chat_template
    assert eos_ids(str(folder), tokenizer, 300) == eos_ids(str(source), published, 300)
    assert weights_file(folder) == file and not list(folder.glob("*.safetensors"))


@pytest.mark.parametrize(
    ("pre", "text", "parts"),
    [
        ("qwen2", "ab 12's", ["ab", "Ġ", "1", "2", "'s"]),
        ("llama-bpe", "ab 1234's", ["ab", "Ġ", "123", "4", "'s"]),
        ("smollm", "ab 12's", ["ab", "Ġ", "1", "2", "'s"]),
        ("gpt-2", "ab 12's", ["ab", "Ġ12", "'s"]),
    ],
)
def test_pre_tokenizer(tmp_path: Path, source: Path, pre: str, text: str, parts: list[str]) -> None:
    tokenizer = load_tokenizer(
        str(checkpoint_of(save_gguf(tmp_path / "model.gguf", source, pre=pre)))
    )
    assert [
        part for part, _ in tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
    ] == parts


def test_beginning_of_sequence_is_added(tmp_path: Path, source: Path) -> None:
    changes = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 262}
    tokenizer = load_tokenizer(
        str(checkpoint_of(save_gguf(tmp_path / "model.gguf", source, changes=changes)))
    )
    assert tokenizer.encode("a") == [262, *tokenizer.encode("a", add_special_tokens=False)]
    assert tokenizer.bos_token == tokenizer.convert_ids_to_tokens(262)


def test_rotary_scaling_and_window_of_file(tmp_path: Path, source: Path) -> None:
    changes = {
        "qwen2.rope.scaling.type": "yarn",
        "qwen2.rope.scaling.factor": 4.0,
        "qwen2.rope.scaling.original_context_length": 600,
    }
    folder = checkpoint_of(save_gguf(tmp_path / "model.gguf", source, changes=changes))
    config = AutoConfig.from_pretrained(folder)
    assert config.rope_parameters["rope_type"] == "yarn" and config.rope_parameters["factor"] == 4.0
    assert context_window(config) == 2400


def test_folder_is_written_once(file: Path, tmp_path: Path, cache: Path) -> None:
    folder = checkpoint_of(file)
    written = (folder / "tokenizer.json").stat().st_ino
    moved = file.rename(tmp_path / "moved.gguf")
    with pytest.raises(Mismatch, match=f"^{file} no longer exists; put it back"):
        weights_file(folder)
    assert checkpoint_of(moved) == folder and weights_file(folder) == moved
    assert (folder / "tokenizer.json").stat().st_ino == written
    assert [path.name for path in cache.iterdir()] == [folder.name]


def test_fingerprint_names_the_file_and_the_form(file: Path, tmp_path: Path, source: Path) -> None:
    folder = str(checkpoint_of(file))
    before = model_fingerprint(folder, "float32")
    assert before == model_fingerprint(folder, "float32") != model_fingerprint(folder, "packed")
    assert before.startswith("sha256-full:")
    with file.open("r+b") as opened:  # the last weight
        opened.seek(-1, os.SEEK_END)
        opened.write(b"\x7f")
    assert model_fingerprint(str(checkpoint_of(file)), "float32") != before
    assert model_fingerprint(str(source), "packed") == model_fingerprint(str(source))


def test_damaged_folder_is_written_again(file: Path) -> None:
    folder = checkpoint_of(file)
    (folder / "gguf.json").write_text('{"file":')
    (folder / "tokenizer.json").write_text("{")
    assert checkpoint_of(file) == folder
    assert weights_file(folder) == file and load_tokenizer(str(folder)).encode("a")


def test_processes_may_write_a_folder_at_once(file: Path, cache: Path) -> None:
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(checkpoint_of(file))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len({*found}) == 1
    assert [path.name for path in cache.iterdir()] == [found[0].name]


def test_full_disk_leaves_nothing(file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text = Path.write_text

    def write_until_full(path: Path, *arguments: Any, **options: Any) -> int:
        if path.name == "tokenizer_config.json":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return write_text(path, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", write_until_full)
        with pytest.raises(
            Mismatch,
            match=r"^cannot write .*model.gguf into a cache: No space left on device; make room, or set",
        ):
            checkpoint_of(file)
    assert not list(cache.iterdir())
    assert load_tokenizer(str(checkpoint_of(file))).encode("a")


def test_cache_that_cannot_be_written_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    with pytest.raises(
        Mismatch, match=r"^cannot write .* into a cache: .*, or set XDG_CACHE_HOME to"
    ):
        checkpoint_of(file)


def test_cut_file_is_refused_wherever_it_is_cut(file: Path, cache: Path) -> None:
    whole = file.read_bytes()
    for share in (0.0, 0.001, 0.01, 0.1, 0.3, 0.6, 0.9, 1 - 1 / len(whole)):
        file.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(Mismatch, match=f"^{file} is (cut: .*|not a GGUF file: it is empty)"):
            checkpoint_of(file)
    assert not cache.exists()
    file.write_bytes(whole)
    assert checkpoint_of(file).is_dir()


@pytest.mark.parametrize(
    ("beginning", "reason"),
    [
        (b"PK\x03\x04" + bytes(60), r"is not a GGUF file: it begins with b'PK\\x03\\x04'"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(60), "is big-endian; give a little-endian file"),
        (b"GGUF" + struct.pack("<I", 9) + bytes(60), "has version 9 of the format; give"),
    ],
)
def test_file_of_another_format_is_refused(tmp_path: Path, beginning: bytes, reason: str) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(beginning)
    with pytest.raises(Mismatch, match=f"^{file} {reason}"):
        checkpoint_of(file)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"general.architecture": "mamba"}, "has the architecture 'mamba'"),
        ({"general.type": "mmproj"}, "is not a language model but a part for one; give"),
        ({"split.count": 3}, "is one of 3 parts; join them with `llama-gguf-split --merge`"),
        ({"qwen2.expert_count": 8}, "has experts, which are not read"),
        ({"qwen2.block_count": None}, "has None as qwen2.block_count; fetch it again"),
        ({"qwen2.rope.scaling.type": "longrope"}, "has 'longrope' as qwen2.rope.scaling.type"),
        ({"tokenizer.ggml.model": None}, "has no tokenizer; give"),
        ({"tokenizer.ggml.model": "llama"}, "has a tokenizer of the kind 'llama'"),
        ({"tokenizer.ggml.pre": "falcon"}, "has the pre-tokenizer 'falcon'"),
        ({"tokenizer.ggml.pre": None}, "does not name its pre-tokenizer; give"),
        ({"tokenizer.ggml.tokens": None}, "has no tokenizer.ggml.tokens; fetch it again"),
        ({"tokenizer.ggml.merges": ["t", "x"]}, "has merges that do not belong to its tokens"),
        ({"tokenizer.ggml.eos_token_id": 70_000}, "names the id 70000 as its eos token"),
    ],
)
def test_file_that_cannot_be_served_is_refused_in_one_line(
    tmp_path: Path, source: Path, cache: Path, changes: dict[str, Any], reason: str
) -> None:
    file = save_gguf(tmp_path / "model.gguf", source, changes=changes)
    with pytest.raises(Mismatch, match=f"^{file} {reason}") as refusal:
        checkpoint_of(file)
    assert "\n" not in str(refusal.value)
    assert not cache.exists() or not list(cache.iterdir())


def test_weights_in_a_form_that_cannot_be_read_are_refused(file: Path, tmp_path: Path) -> None:
    header, content = read_header(file), bytearray(file.read_bytes())
    name = next(
        tensor.name for tensor in header.tensors.values() if len(tensor.shape) == 2
    ).encode()
    place = content.index(struct.pack("<Q", len(name)) + name) + 8 + len(name)
    kind = place + 4 + 2 * 8
    for number, reason in (
        (gguf.GGMLQuantizationType.F64, "has weights in F64, which"),
        (99, "type 99"),
    ):
        content[kind : kind + 4] = struct.pack("<I", number)
        file.write_bytes(content + bytes(1 << 20))
        with pytest.raises(Mismatch, match=f"{reason}.*; give "):
            checkpoint_of(file)


SAMPLES = (
    "Let's solve this step by step.", "1234567 + 89.01 = ?", r"\[ \frac{a^2}{\sqrt{b}} \leq \sum_{i=1}^{n} x_i \]",
    "我们来解决这个问题。第一步:12个苹果。", "👩🏽‍🔬🇩🇪 naïve café — “quoted”",
    "def f(x):\n\treturn {'a': [x]*3}\n\n\n# end\n",
    "a  b   c    \n\n  \t d\r\n\r\n   ", "I'LL don't WE'VE x's", "e\u0301 \u212b", "١٢٣ ½ Ⅷ",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen-coder-0.5b", "qwen-coder-1.5b"])
def test_real_tokenizer_has_the_published_ids(name: str) -> None:
    folder, file = real_model(name)
    tokenizer, published = load_tokenizer(str(checkpoint_of(file))), load_tokenizer(str(folder))
    for text in SAMPLES:
        assert tokenizer.encode(text) == published.encode(text)
        assert tokenizer.decode(tokenizer.encode(text)) == published.decode(published.encode(text))
    specials = "<|im_start|>user\nHi<|im_end|>\n<|endoftext|>"
    assert tokenizer.encode(specials) == published.encode(specials)
    assert QWEN2_SPLIT in (folder / "tokenizer.json").read_text().encode().decode("unicode_escape")
    assert (
        tokenizer.encode("<tool_call>") == [151657] and len(tokenizer) == 151_665
    )  # as on the hub


def real_model(name: str) -> tuple[Path, Path]:
    """The folder and the GGUF file of a real model; skips the test where there are none."""
    models = Path(os.environ.get("SEMSPEC_REAL_MODELS", "/nonexistent"))
    if not (models / f"{name}.gguf").exists():
        pytest.skip(f"SEMSPEC_REAL_MODELS names no folder with {name}.gguf")
    return models / name, models / f"{name}.gguf"
