"""Tokens of a text, bytes of a token, and the chat turn that asks a model to choose among answers."""

import re
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from semspec.errors import InvalidRequest, Mismatch
from semspec.types import Token

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = sorted({*range(0x100)} - {*_PRINTABLE})
BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {chr(0x100 + index): byte for index, byte in enumerate(_OTHERS)}
"""The characters byte-level tokenizers write bytes as: a printable one is the byte of its number (GPT-2)."""

BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
"""A byte on its own, as SentencePiece writes it."""


def tokenize(tokenizer: PreTrainedTokenizerBase, text: str) -> list[Token]:
    """The tokens of `text`, none added. Each of those that share a character has the whole of it as its text.

    Raises: Mismatch when the tokenizer does not know places.
    """
    if not tokenizer.is_fast:
        raise Mismatch("the model's tokenizer does not tell the places of tokens; save it with a tokenizer.json")
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    places = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
    return [Token(token, text[start:stop], start, stop) for token, (start, stop) in places]


class TokenBytes:
    """What each token adds to a text, in UTF-8. A token may be part of a character; special ones add nothing."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._is_byte_level = _is_byte_level(tokenizer)
        self._before: list[int] = tokenizer.encode("a", add_special_tokens=False)
        """Stands before a token to be decoded: some decoders strip the beginning of a text."""
        self._known: dict[int, bytes] = {}

    def __call__(self, token: int) -> bytes:
        if token not in self._known:
            self._known[token] = self._bytes(token)
        return self._known[token]

    def _bytes(self, token: int) -> bytes:
        text = self._decode([*self._before, token])[len(self._decode(self._before)) :]
        if not text:
            return b""
        piece = str(self._tokenizer.convert_ids_to_tokens(token))
        if self._is_byte_level:  # as its decoder does, added tokens included
            return bytes(map(BYTE_OF.__getitem__, piece)) if BYTE_OF.keys() >= set(piece) else piece.encode()
        if text != piece and (byte := BYTE_PIECE.fullmatch(piece)):
            return bytes.fromhex(byte[1])
        return text.encode()

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _is_byte_level(tokenizer: PreTrainedTokenizerBase) -> bool:
    decoder = tokenizer.backend_tokenizer.decoder if tokenizer.is_fast else None
    return decoder is not None and b'"type":"ByteLevel"' in decoder.__getstate__()


EARLIER_TURN = "semspec: an earlier turn"
"""Stands for the context where the template is rendered. The context itself never passes through it, since templates
strip an earlier turn of its reasoning; it is continued token by token."""
THINK = "<think>"
REMEDY = "choose another strategy, or a target that can be asked"


def turn_after(tokenizer: PreTrainedTokenizerBase, question: str, prefill: str) -> list[int]:
    """Tokens that end the assistant's turn, put `question` in a user's, and begin the answer with `prefill`.

    A `<think>` that the template opens itself is not doubled. Raises: Mismatch when the template drops earlier turns.
    """
    rendered = _render(tokenizer, question)
    _, found, suffix = rendered.rpartition(EARLIER_TURN)
    if not found or question.strip() not in suffix:
        raise Mismatch(f"the target's chat template drops earlier turns, so it cannot be asked; {REMEDY}")
    if suffix.rstrip().endswith(THINK):
        prefill = prefill.removeprefix(THINK)
    token_ids: list[int] = tokenizer.encode(suffix + prefill, add_special_tokens=False)
    return token_ids


def can_be_asked(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether `turn_after` works with this tokenizer's chat template."""
    try:
        return bool(turn_after(tokenizer, "A question?", ""))
    except Mismatch:
        return False


def option_ids(tokenizer: PreTrainedTokenizerBase, options: Sequence[str]) -> list[int]:
    """The one token of each option. Raises: InvalidRequest when an option is not one, or there are none."""
    if not options:
        raise InvalidRequest("options: at least one is needed", "options")
    return [_single_token(tokenizer, option, f"options[{index}]") for index, option in enumerate(options)]


def _single_token(tokenizer: PreTrainedTokenizerBase, option: str, field: str) -> int:
    token_ids: list[int] = tokenizer.encode(option, add_special_tokens=False)
    if len(token_ids) != 1 or token_ids[0] == tokenizer.unk_token_id:
        raise InvalidRequest(f"{field}: {option!r} is not one token of the target's vocabulary", field)
    return token_ids[0]


def _render(tokenizer: PreTrainedTokenizerBase, question: str) -> str:
    if tokenizer.chat_template is None:
        raise Mismatch(f"the target has no chat template, so it cannot be asked; {REMEDY}")
    turns = [
        {"role": "user", "content": "A task."},
        {"role": "assistant", "content": EARLIER_TURN},
        {"role": "user", "content": question},
    ]
    try:
        return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # templates raise what they like
        raise Mismatch(f"the target's chat template refuses a question after a turn: {error}; {REMEDY}") from error
