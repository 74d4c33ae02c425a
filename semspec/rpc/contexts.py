"""Contexts that both ends of a connection remember, so that a call carries only the new pieces of its context.

The caller names the pieces that it has sent before by a digest; a service that does not have them any more asks for the
whole context. So every call can still be answered by any replica, and what is computed does not change.
"""

import struct
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from semspec.errors import NotFound
from semspec.rpc.codec.messages import encodable, read_each
from semspec.rpc.codec.values import check_filled, invalid, put_piece
from semspec.types import Context, Piece, Segment

MAX_BYTES = 64 * 2**20
"""Limit of all contexts that a service or a caller's connection remembers: 1.5 million tokens."""
TAIL = "tail"
"""The parameter of the refusal of a context that is not remembered."""


@dataclass(frozen=True, slots=True)
class _Chain:
    """A context, with the digest and the size of each of its beginnings."""

    pieces: tuple[Piece, ...] = ()
    digests: tuple[bytes, ...] = ()
    """`digests[i]` is that of `pieces[: i + 1]`."""
    sizes: tuple[int, ...] = ()
    """Approximate bytes of memory of `pieces[: i + 1]`."""

    def of(self, pieces: tuple[Piece, ...]) -> "_Chain":
        """Return the chain of `pieces`; only pieces that are not in this one are digested."""
        num_common = _num_common(self.pieces, pieces)
        digests, sizes = list(self.digests[:num_common]), list(self.sizes[:num_common])
        digest, size = (digests[-1], sizes[-1]) if num_common else (b"", 0)
        for piece in pieces[num_common:]:
            digest, size = _digest(digest, piece), size + piece.num_bytes
            digests.append(digest)
            sizes.append(size)
        return _Chain(pieces, tuple(digests), tuple(sizes))

    @property
    def size(self) -> int:
        return self.sizes[-1] if self.sizes else 0


class LastContexts:
    """The last context of each session; those of the sessions used least recently are forgotten first."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._chains: OrderedDict[str, _Chain] = OrderedDict()
        self._num_bytes = 0

    def note(self, session: str, context: Context) -> None:
        """Remember the context of a call; nothing without a session."""
        if not session:
            return
        before = self._chains.pop(session, None)
        if before is not None:
            self._num_bytes -= _size(session, before)
        chain = self._chains[session] = (before or _Chain()).of(context.pieces)
        self._num_bytes += _size(session, chain)
        while self._num_bytes > self._max_bytes:
            self._num_bytes -= _size(*self._chains.popitem(last=False))

    def rest(self, session: str, context: Context) -> tuple[Context, bytes]:
        """Return the new pieces, which a caller has to send, and the digest of the others; b"" if all are new."""
        chain = self._chains.get(session, _Chain())
        num_common = _num_common(chain.pieces, context.pieces)
        if num_common == 0:
            return context, b""
        return Context(context.pieces[num_common:]), chain.digests[num_common - 1]

    def whole(self, session: str, before: bytes, pieces: Iterable[Piece]) -> Context:
        """Return the context of a received call. Raises: NotFound when its beginning is not remembered."""
        chain = self._chains.get(session, _Chain())
        if before not in chain.digests:
            raise NotFound("the service does not remember this context: send it whole", TAIL)
        return Context((*chain.pieces[: chain.digests.index(before) + 1], *pieces))


def put_context(message: Any, context: Context, before: bytes = b"") -> Any:
    """Fill in the request's context; with `before`, as the tail after a beginning that the service remembers.

    Raises: InvalidRequest for a value that protobuf cannot encode.
    """
    message.ClearField("context")
    message.ClearField("tail")
    pieces = message.context
    if before:
        message.tail.before, pieces = before, message.tail.pieces
    with encodable():
        for piece in context.pieces:
            put_piece(pieces.add(), piece)
    return message


def read_context(message: Any, kept: LastContexts) -> Context:
    """Return the whole context of a request, at least the prompt, and note it in `kept`.

    Raises: NotFound when the message has only the tail of a context that is not in `kept`.
    """
    if message.HasField("tail"):
        if message.context:
            raise invalid("context", "must be empty next to a tail")
        pieces = read_each(Piece, message.tail.pieces, "tail.pieces")
        context = kept.whole(message.session, message.tail.before, pieces)
    else:
        check_filled(message.context, "context")
        context = Context(tuple(read_each(Piece, message.context, "context")))
    kept.note(message.session, context)
    return context


def _num_common(pieces: Sequence[Piece], others: Sequence[Piece]) -> int:
    """Return the length of the common prefix."""
    if pieces == others[: len(pieces)]:  # mostly, and fast: the pieces are the same objects
        return len(pieces)
    return next(
        (
            index
            for index, (left, right) in enumerate(zip(pieces, others, strict=False))
            if left != right
        ),
        min(len(pieces), len(others)),
    )


def _digest(before: bytes, piece: Piece) -> bytes:
    text, tokenizer = (
        part.encode("utf-8", "surrogatepass") for part in (piece.text, piece.tokenizer)
    )
    kind = f"{piece.writer} {piece.end}".encode() if isinstance(piece, Segment) else b""
    ids = struct.pack(f"<{len(piece.token_ids)}I", *piece.token_ids)
    parts = (before, text, tokenizer, kind, ids)
    digest = blake2b(struct.pack(f"<{len(parts)}Q", *map(len, parts)), digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.digest()


def _size(session: str, chain: _Chain) -> int:
    """Return roughly the bytes of memory of a session's name and context."""
    return 200 + 4 * len(session) + chain.size
