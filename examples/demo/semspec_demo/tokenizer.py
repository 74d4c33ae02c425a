"""The pair's tokenizer: byte-level BPE with single digits, and with the end of a segment (`.\\n\\n`) as one token.

The models depend on tokenizer.json, which `python -m studies.pair.tokenizer` trained.
"""

from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from semspec_demo.problems import MEN, WOMEN
from semspec_demo.wording import ADVERBS, SLOTS, TENS, UNITS

END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
WINDOW = 4096
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
