"""The tokenizer of the tiny checkpoints: a word, a digit or a blank line is a token."""

from pathlib import Path

from transformers import PreTrainedTokenizerFast

END = "<eos>"


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A new tokenizer of some 400 words, without a chat template that keeps turns."""
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(
        Path(__file__).parent
    )
    return tokenizer
