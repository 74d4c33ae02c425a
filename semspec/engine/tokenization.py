"""Conversion between text and token ids of a model, shared by all engines and remote writers."""

import asyncio
import re
from codecs import getincrementaldecoder
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from semspec.engine.conversation import ids_after_turn, render
from semspec.errors import ContextTooLong, InvalidRequest, Mismatch
from semspec.reasoning import known_forms
from semspec.types import (
    Context,
    Conversation,
    ModelInfo,
    Piece,
    Prompt,
    Segment,
    SegmentEnd,
    Token,
    TokenIds,
    shares_ordinary_tokens,
)

if TYPE_CHECKING:
    from transformers import (
        PreTrainedTokenizerBase,
    )  # slow import, deferred until health checks are answered

P = TypeVar("P", bound=Piece)

MAX_TOKEN_CHARACTERS = 16
"""A text with more characters for each token of the window is refused without being tokenized."""

TEXT_OVERLAP = 8
"""Tokens of the context decoded with a segment, for tokenizers whose first piece depends on the preceding text."""

LETTER = "A"
"""Stands for a word next to the text that is tokenized."""

MAX_CHARACTER_BYTES = 4
"""Maximum bytes of a character in UTF-8, and so maximum tokens that it is spread over."""

_CONTINUATION = re.compile(rb"[\x80-\xbf]")
"""A byte that continues a character in UTF-8."""


@dataclass(frozen=True, slots=True)
class TokenizedPart:
    """A text that was tokenized as a part of a longer one, between `head` and `tail`."""

    head: str
    num_head_ids: int
    ids: list[int]
    """Ids of the text itself."""
    tail: str


class ModelTokenizer:
    """A model's tokenizer, with the end-of-sequence ids, number of embeddings and context window of the model."""

    def __init__(
        self,
        raw: "PreTrainedTokenizerBase",
        info: ModelInfo,
        eos_ids: frozenset[int],
        num_embeddings: int,
    ) -> None:
        """`raw`: the Hugging Face tokenizer; `num_embeddings`: number of valid token ids."""
        self.raw, self.info = raw, info
        self.eos_ids, self.num_embeddings = eos_ids, num_embeddings
        self._token_texts: dict[int, str] = {}
        self._pieces: dict[int, str] = {}

    @cached_property
    def token_bytes(self) -> "TokenBytes":
        """The UTF-8 bytes that each token adds to a text."""
        return TokenBytes(self.raw, self.mark_ids)

    @cached_property
    def mark_ids(self) -> frozenset[int]:
        """Special tokens that mark reasoning in a known form.

        Unlike other special tokens, they are part of the text, so that its readers find them.
        """
        added = self.raw.get_added_vocab()
        marks = {added[mark] for form in known_forms(added) for mark in form.marks}
        return frozenset(marks & special_ids(self.raw)) - self.eos_ids

    @cached_property
    def added_ids(self) -> frozenset[int]:
        """The ids of added tokens, such as special tokens; the other ids of the vocabulary are ordinary."""
        return frozenset(self.raw.get_added_vocab().values())

    @cached_property
    def num_ordinary_ids(self) -> int:
        """Exclusive upper limit of the ordinary ids; some lower ids may be those of added tokens."""
        ids: set[int] = set(self.raw.get_vocab().values())
        return 1 + max(ids - self.added_ids, default=-1)

    def num_ordinary(self, token_ids: Sequence[int]) -> int:
        """Return the number of `token_ids` before the first added token or padding of the vocabulary."""
        limit, added = self.num_ordinary_ids, self.added_ids
        return next(
            (i for i, id in enumerate(token_ids) if id >= limit or id in added), len(token_ids)
        )

    @cached_property
    def end_of_turn(self) -> int:
        """The end-of-sequence token that ends an assistant's turn in the chat template, or else the smallest one.

        A model may have several: QwQ has `<|endoftext|>` and `<|im_end|>`, and only the second ends a turn.
        """
        return next(
            (token for token in ids_after_turn(self.raw) if token in self.eos_ids),
            min(self.eos_ids),
        )

    def encode(self, prompt: Prompt) -> Piece:
        """Tokenize a prompt that may fit the window. See `semspec.protocols.Target.encode`."""
        if isinstance(prompt, TokenIds):
            self.check_room(len(prompt.ids), "prompt")
            if not prompt.ids:
                raise InvalidRequest("the prompt is empty", "prompt", remedy="send some token ids")
            if (largest := max(prompt.ids)) >= len(self.raw):
                message = (
                    f"the token id {largest} is outside the vocabulary of {len(self.raw)} tokens"
                )
                raise InvalidRequest(message, "prompt")
            self.check_embedded(prompt.ids, "prompt")
            text = self.raw.decode(
                list(prompt.ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
            return Piece(str(text), prompt.ids, self.info.tokenizer)
        if isinstance(prompt, str):
            self.check_length(len(prompt), "prompt")
            text, ids = prompt, self.raw.encode(prompt)
        else:
            conversation = (
                prompt if isinstance(prompt, Conversation) else Conversation(tuple(prompt))
            )
            self.check_length(conversation.num_characters, "messages")
            text = render(self.raw, conversation, self.info.model)
            ids = self.ids_of(text)
        if not text.strip() or not ids:
            raise InvalidRequest(
                "the prompt is empty", parameter_of(prompt), remedy="send some text"
            )
        self.check_embedded(ids, parameter_of(prompt))
        return Piece(text, tuple(ids), self.info.tokenizer)

    def tokenize(self, text: str) -> list[Token]:
        """Tokenize a text. See `semspec.protocols.Target.tokenize`."""
        self.check_length(len(text), "text")
        tokens = tokenize(self.raw, text)
        self.check_room(len(tokens), "text")
        self.check_embedded([token.id for token in tokens], "text")
        return tokens

    def ids_of(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Return the token ids of a text."""
        ids: list[int] = self.raw.encode(text, add_special_tokens=add_special_tokens)
        return ids

    def read_ids(self, piece: Piece, before: str) -> Sequence[int]:
        """Return the token ids of a piece that follows the text `before`, empty for the first piece of a context.

        Ids of this tokenizer are returned unchanged. Text with the ids of another tokenizer is tokenized as a part of a
        longer text, so that a context has the ids of its whole text:

        - It follows the added token that `before` ends with, or else a short text whose tokens do not merge with it. So
          a tokenizer that marks the beginning of a text does not mark the beginning of each piece.
        - If it ends with white space, a letter follows it, because GPT-2's pre-tokenizer makes two tokens of a blank
          line before a word and one at the end of a text. At an end of sequence, which ends the text, nothing follows.

        The text that really follows the piece is never read. So a piece keeps its ids when the context grows, and the
        cache finds the shorter context for a longer one. The ids differ from those of the whole text only where a token
        would cross the border of two pieces.

        Raises: InvalidRequest when an id has no embedding.
        """
        if self._has_valid_ids(piece):
            self.check_embedded(piece.token_ids, "token_ids")
            return piece.token_ids
        is_ended = isinstance(piece, Segment) and piece.end is SegmentEnd.EOS
        ids = self._tokenize_part(before, piece.text, is_ended).ids
        self.check_embedded(ids, "text")
        return [*ids, self.end_of_turn] if is_ended else ids

    def read_all(self, pieces: Sequence[Piece]) -> list[Sequence[int]]:
        """Return the token ids of each piece of a whole context. Raises: what `read_ids` raises."""
        ids, before = list[Sequence[int]](), ""
        for piece in pieces:
            ids.append(self.read_ids(piece, before))
            before = piece.text or before
        return ids

    def tokens_after(self, before: str, text: str) -> list[Token]:
        """Tokenize a text that follows `before`, with the ids of `read_ids`. Raises: Mismatch as `tokenize`."""
        part = self._tokenize_part(before, text)
        tokens = tokenize(self.raw, part.head + text + part.tail)
        shift, end = len(part.head), len(part.head) + len(text)
        return [
            replace(token, start=token.start - shift, stop=token.stop - shift)
            for token in tokens[part.num_head_ids :]
            if token.start < end
        ]

    def _tokenize_part(self, before: str, text: str, is_ended: bool = False) -> TokenizedPart:
        """Tokenize `text` with the head and tail that `read_ids` describes, unless its tokens merge with theirs."""
        bos = self.raw.bos_token
        wants_specials = not before and not (bos and text.startswith(bos))
        anchor, letter_ids = self._anchor(before, text), self._letter_ids
        looks_ahead = bool(letter_ids) and text[-1:].isspace() and not is_ended
        following = (LETTER, letter_ids) if looks_ahead else ("", ())
        for (head, head_ids), (tail, tail_ids) in (
            (anchor, following),
            (anchor, ("", ())),
            (("", ()), ("", ())),
        ):
            ids = self.ids_of(head + text + tail, wants_specials)
            start, stop = len(head_ids), len(ids) - len(tail_ids)
            if start <= stop and tuple(ids[:start]) == head_ids and tuple(ids[stop:]) == tail_ids:
                break
        return TokenizedPart(head, start, ids[start:stop], tail)

    def _anchor(self, before: str, text: str) -> tuple[str, tuple[int, ...]]:
        """Return the head that replaces `before` when `text` is tokenized, and its ids; empty without `before`."""
        if not before:
            return "", ()
        sizes, texts = self._added_texts
        added = next((end for size in sizes if (end := before[-size:]) in texts), "")
        anchor = added or (LETTER if text[:1].isspace() else "\n")
        ids = tuple(self.ids_of(anchor))
        return ("", ()) if self.raw.unk_token_id in ids else (anchor, ids)

    @cached_property
    def _added_texts(self) -> tuple[list[int], frozenset[str]]:
        """The sizes of the added tokens in characters, in descending order, and the tokens."""
        texts = frozenset(text for text in self.raw.get_added_vocab() if text)
        return sorted(set(map(len, texts)), reverse=True), texts

    @cached_property
    def _letter_ids(self) -> tuple[int, ...]:
        """The ids of `LETTER` at the beginning of a line; none if the tokenizer merges it or does not know it."""
        line = self.ids_of("\n")
        ids = self.ids_of("\n" + LETTER)
        is_apart = ids[: len(line)] == line and self.raw.unk_token_id not in ids
        return tuple(ids[len(line) :]) if is_apart else ()

    def segment_ids(self, segments: Sequence[Piece]) -> list[list[int]]:
        """Return the token ids of each segment, already retokenized. Raises: InvalidRequest when there are none."""
        ids = [list(token_ids) for token_ids in self.read_all(segments)]
        if not ids or not all(ids):
            raise InvalidRequest(
                "nothing to score", "segments", remedy="send segments that contain text"
            )
        return ids

    async def retokenize(self, pieces: tuple[P, ...]) -> tuple[P, ...]:
        """Return the pieces of a whole context with ids of this tokenizer. Texts are tokenized in a thread.

        Raises: ContextTooLong, before texts are tokenized that cannot fit the window; what `read_ids` raises.
        """
        texts = [piece.text for piece in pieces if not self._has_valid_ids(piece)]
        if not texts:
            return pieces
        self.check_length(sum(map(len, texts)), "context")
        return await asyncio.to_thread(self._retokenize, pieces)

    def _retokenize(self, pieces: tuple[P, ...]) -> tuple[P, ...]:
        fingerprint = self.info.tokenizer
        return tuple(
            replace(piece, token_ids=tuple(token_ids), tokenizer=fingerprint)
            for piece, token_ids in zip(pieces, self.read_all(pieces), strict=True)
        )

    def _has_valid_ids(self, piece: Piece) -> bool:
        """Whether the ids of `piece` mean the same tokens for this tokenizer."""
        fingerprint, ids = self.info.tokenizer, piece.token_ids
        return piece.tokenizer == fingerprint or (
            shares_ordinary_tokens(piece.tokenizer, fingerprint)
            and self.num_ordinary(ids) == len(ids)
        )

    def context_ids(self, context: Context) -> list[int]:
        """Return the token ids of a whole context. Raises: InvalidRequest when it is empty."""
        ids = [token for piece_ids in self.read_all(context.pieces) for token in piece_ids]
        if not ids:
            raise InvalidRequest("the context is empty", "context", remedy="send a prompt")
        return ids

    def check_room(self, num_tokens: int, parameter: str) -> None:
        """Raises: ContextTooLong when `num_tokens` fill the model's context window."""
        window = self.info.max_context_tokens
        if num_tokens >= window:
            raise ContextTooLong(
                f"{num_tokens} tokens leave no room in the window of {window}",
                parameter,
                remedy=f"shorten the {parameter}",
            )

    def check_length(self, num_characters: int, parameter: str) -> None:
        """Raises: ContextTooLong when a text of `num_characters` cannot fit the model's context window."""
        window = self.info.max_context_tokens
        if num_characters > window * MAX_TOKEN_CHARACTERS:
            raise ContextTooLong(
                f"{num_characters} characters are too many for the window of {window} tokens",
                parameter,
                remedy=f"shorten the {parameter}",
            )

    def check_embedded(self, token_ids: Sequence[int], parameter: str) -> None:
        """Check that the model has an embedding for each of `token_ids`.

        A tokenizer may hold added tokens beyond the model's embeddings. On a GPU such an id would crash the process.

        Raises: InvalidRequest with the first token that has none.
        """
        if max(token_ids, default=0) < self.num_embeddings:
            return
        foreign = next(token for token in token_ids if token >= self.num_embeddings)
        text = self.raw.convert_ids_to_tokens(foreign)
        named = f"the token {text!r} (id {foreign})" if text else f"the token id {foreign}"
        limit = f"the vocabulary of {self.num_embeddings} tokens that the model has embeddings for"
        raise InvalidRequest(
            f"{named} is outside {limit}", parameter, remedy=f"leave it out of the {parameter}"
        )

    def without_bos(self, text: str) -> str:
        """Return `text` without a leading beginning-of-sequence token, for a server that adds one itself."""
        bos = self.raw.bos_token
        if bos and text.startswith(bos) and self.ids_of("", True)[:1] == [self.raw.bos_token_id]:
            return text[len(bos) :]
        return text

    def text_of(self, context: Sequence[int], tokens: Sequence[int]) -> str:
        """Return the text that `tokens` add after `context`, without special tokens except `mark_ids`.

        A character belongs to the tokens that complete it. If the budget of an answer ends inside a character, the text
        ends before the character, as in vLLM and TGI, but its tokens count as written.
        """
        overlap = context[self.character_start(context, max(0, len(context) - TEXT_OVERLAP)) :]
        return self._whole_text([*overlap, *tokens])[len(self._whole_text(overlap)) :]

    def settled_text_of(self, context: Sequence[int], tokens: Sequence[int]) -> str:
        """Return the text that `tokens` add after `context`, as far as no later token changes it.

        SentencePiece decodes consecutive byte tokens together; one that makes them invalid changes the text of all.
        """
        num_settled = len(tokens)
        while num_settled and self._is_byte(tokens[num_settled - 1]):
            num_settled -= 1
        return self.text_of(context, tokens[:num_settled])

    def is_settled(self, tokens: Sequence[int]) -> bool:
        """Whether `settled_text_of` returns the text of all `tokens`."""
        return not (tokens and self._is_byte(tokens[-1])) and not self.num_open_bytes(tokens)

    def _is_byte(self, token: int) -> bool:
        """Whether `token` is a byte in SentencePiece's notation."""
        return BYTE_PIECE.fullmatch(self.piece_of(token)) is not None

    def piece_of(self, token: int) -> str:
        """Return the entry of `token` in the vocabulary: its text in the tokenizer's notation."""
        if token not in self._pieces:
            self._pieces[token] = str(self.raw.convert_ids_to_tokens(token))
        return self._pieces[token]

    def _whole_text(self, tokens: Sequence[int]) -> str:
        """Return the text of `tokens`, without an incomplete character at the end."""
        num_bytes, kept = self.num_open_bytes(tokens), list(tokens)
        while num_bytes and len(data := self.token_bytes(kept[-1])) <= num_bytes:
            num_bytes -= len(data)
            kept.pop()
        text = _decode(self.raw, kept, self.mark_ids)
        return text.removesuffix("\N{REPLACEMENT CHARACTER}") if num_bytes else text

    def num_open_bytes(self, tokens: Sequence[int]) -> int:
        """Return the number of bytes at the end of `tokens` that begin a character without completing it."""
        data = b""
        for token in reversed(tokens):
            data = self.token_bytes(token) + data
            if len(data) >= MAX_CHARACTER_BYTES:
                break
        decoder = getincrementaldecoder("utf-8")("replace")
        decoder.decode(data)
        return len(decoder.getstate()[0])

    def character_start(self, tokens: Sequence[int], index: int) -> int:
        """Return the last index up to `index` whose token does not begin inside a character."""
        for start in range(index, max(-1, index - MAX_CHARACTER_BYTES), -1):
            if start == len(tokens) or not _CONTINUATION.match(self.token_bytes(tokens[start])):
                return start
        return index

    def token_text(self, token: int) -> str:
        """Return the text of a single token, special tokens included."""
        if token not in self._token_texts:
            self._token_texts[token] = self.raw.decode([token])
        return self._token_texts[token]

    def begins_with_space(self, token: int) -> bool:
        """Whether the text that `token` adds begins with white space."""
        return self.token_bytes(token).decode(errors="ignore")[:1].isspace()


def parameter_of(prompt: Prompt) -> str:
    """Return the request field of a prompt of this type."""
    return "prompt" if isinstance(prompt, str | TokenIds) else "messages"


def special_ids(tokenizer: "PreTrainedTokenizerBase") -> frozenset[int]:
    """Return the ids of all special tokens, including those without a role."""
    added = tokenizer.added_tokens_decoder.items()
    return frozenset(tokenizer.all_special_ids).union(
        token for token, content in added if content.special
    )


def _decode(
    tokenizer: "PreTrainedTokenizerBase", tokens: Sequence[int], marks: frozenset[int] = frozenset()
) -> str:
    """Return the text of `tokens`, without special tokens except `marks`."""
    kept, skips_special = list(tokens), marks.isdisjoint(tokens)
    if not skips_special:
        dropped = special_ids(tokenizer) - marks
        kept = [token for token in kept if token not in dropped]
    return str(
        tokenizer.decode(
            kept, skip_special_tokens=skips_special, clean_up_tokenization_spaces=False
        )
    )


_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = sorted({*range(0x100)} - {*_PRINTABLE})
BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(0x100 + index): byte for index, byte in enumerate(_OTHERS)
}
"""Byte of each character in byte-level tokenizers (GPT-2); printable characters stand for the byte of their code."""

BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
"""A single byte in SentencePiece's notation."""


def tokenize(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[Token]:
    """Return the tokens of `text`, without special tokens. Tokens that share a character all have it as their text.

    Raises: Mismatch when the tokenizer does not return offsets.
    """
    if not tokenizer.is_fast:
        raise Mismatch(
            "the model's tokenizer returns no token offsets", remedy="save it with a tokenizer.json"
        )
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    offsets = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
    return [Token(token, text[start:stop], start, stop) for token, (start, stop) in offsets]


class TokenBytes:
    """The UTF-8 bytes that each token adds to a text.

    A token may be part of a character. Special tokens except `marks` add none.
    """

    def __init__(
        self, tokenizer: "PreTrainedTokenizerBase", marks: frozenset[int] = frozenset()
    ) -> None:
        self._tokenizer, self._marks = tokenizer, marks
        decoder = tokenizer.backend_tokenizer.decoder if tokenizer.is_fast else None
        self._is_byte_level = (
            decoder is not None and b'"type":"ByteLevel"' in decoder.__getstate__()
        )
        self._before: list[int] = tokenizer.encode("a", add_special_tokens=False)
        """Decoded before each token, because some decoders strip the beginning of a text."""
        self._known: dict[int, bytes] = {}

    def __call__(self, token: int) -> bytes:
        if token not in self._known:
            self._known[token] = self._bytes(token)
        return self._known[token]

    def _bytes(self, token: int) -> bytes:
        before = _decode(self._tokenizer, self._before)
        text = _decode(self._tokenizer, [*self._before, token], self._marks)[len(before) :]
        if not text:
            return b""
        piece = str(self._tokenizer.convert_ids_to_tokens(token))
        if self._is_byte_level:  # as the decoder does, including added tokens
            return (
                bytes(map(BYTE_OF.__getitem__, piece))
                if BYTE_OF.keys() >= set(piece)
                else piece.encode()
            )
        if text != piece and (byte := BYTE_PIECE.fullmatch(piece)):
            return bytes.fromhex(byte[1])
        return text.encode()
