"""The pair's tokenizer: byte-level BPE with single digits, and with the end of a segment (`.\\n\\n`) as one token.

The models depend on tokenizer.json, which `python -m semspec.demo.tokenizer` trained; the command writes it
anew, for models that are trained anew.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from semspec.decoding.spec_reason import PREFILL, QUESTION
from semspec.demo.documents import write_document
from semspec.demo.problems import MEN, SPLITS, WOMEN
from semspec.demo.wording import ADVERBS, SLOTS, TENS, UNITS

END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
VOCABULARY_SIZE = 1024
WINDOW = 4096
PIECE = r" ?\p{L}+| ?\p{N}|</?think>\n*| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CHAT_TEMPLATE = (
    "{% if tools %}<|im_start|>system\nTools:\n{% for tool in tools %}{{ tool['function'] | tojson }}\n{% endfor %}"
    "Call: <tool_call>{name, arguments}</tool_call><|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] or '' }}"
    "{% for call in message['tool_calls'] or [] %}"
    "<tool_call>\n{{ call['function'] | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n\n{% endif %}"
)


FILE = Path(__file__).with_suffix(".json")


def build_tokenizer(file: Path = FILE) -> PreTrainedTokenizerFast:
    """The tokenizer of both models, with their chat template."""
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_file(str(file)),
        eos_token=END,
        pad_token=END_OF_TEXT,
        model_max_length=WINDOW,
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """A tokenizer trained on texts of a language."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECE), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[END_OF_TEXT, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def vocabulary_texts() -> Iterator[str]:
    """Every word of the language, alone and after a space."""
    words = [
        *WOMEN,
        *MEN,
        *ADVERBS,
        *UNITS,
        *TENS,
        *(word for slot in SLOTS.values() for word in slot),
    ]
    yield from (*words, *(f" {word}" for word in words))


def _texts() -> Iterator[str]:
    for text in (QUESTION, PREFILL, "user\n", "assistant\n<think>\n\n", *vocabulary_texts()):
        yield from [text] * 50
    for seed in SPLITS["train"][:1500]:
        document = write_document(seed)
        yield document.problem.question + document.solution


if __name__ == "__main__":
    train_tokenizer(_texts()).save(str(FILE))
