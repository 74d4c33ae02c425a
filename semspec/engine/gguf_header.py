"""The header of a GGUF file: its metadata, and the position of each tensor.

The reader of the package `gguf` creates a NumPy view for each token of the vocabulary, which takes many seconds at
every start, and raises errors of NumPy for a truncated file.
"""

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NoReturn

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from semspec.errors import Mismatch

MAGIC = b"GGUF"
VERSIONS = (2, 3)
STRING, ARRAY = 8, 9
FORMATS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""Value types of fixed size, as `struct` names them; all are little-endian."""
MAX_DIMENSIONS = 4
ALIGNMENT = 32
"""Alignment of tensors, in bytes, in a file that does not state it."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor of the file."""

    name: str
    shape: tuple[int, ...]
    """Outermost dimension first, as in PyTorch."""
    type: GGMLQuantizationType
    start: int
    """Offset of its first byte in the file."""
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """Metadata and tensors of a GGUF file."""

    metadata: dict[str, Any]
    """Numbers, texts and lists, by key."""
    tensors: dict[str, TensorInfo]
    """By name."""

    @property
    def num_weights(self) -> int:
        return sum(prod(tensor.shape) for tensor in self.tensors.values())


def read_header(file: Path) -> Header:
    """Read the header of a GGUF file. Raises: Mismatch when it is not one, is truncated or cannot be read."""
    try:
        num_bytes = file.stat().st_size
        with file.open("rb") as opened:
            if (magic := opened.read(len(MAGIC))) != MAGIC:
                found = f"begins with {magic!r}, not with {MAGIC!r}" if magic else "is empty"
                raise Mismatch(
                    f"{file} is not a GGUF file: it {found}",
                    remedy="fetch it again, or give another file",
                )
            with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _Reader(file, content, num_bytes).read()
    except OSError as error:
        raise Mismatch(
            f"cannot read {file}: {error.strerror or error}",
            remedy="give a GGUF file that can be read",
        ) from error
    except UnicodeDecodeError as error:
        raise Mismatch(
            f"{file} is damaged: a text in its header is not UTF-8", remedy="fetch it again"
        ) from error


class _Reader:
    """Reads a header from its beginning to its end."""

    def __init__(self, file: Path, content: mmap.mmap, num_bytes: int) -> None:
        self._file, self._content, self._num_bytes = file, content, num_bytes
        self._position = len(MAGIC)

    def read(self) -> Header:
        version = self._number("I")
        if version not in VERSIONS:
            reason = (
                "is big-endian" if version >= 1 << 16 else f"has version {version} of the format"
            )
            self._refuse(
                reason, "give a little-endian file of version 3, as llama.cpp writes it now"
            )
        num_tensors, num_values = self._number("Q"), self._number("Q")
        metadata: dict[str, Any] = {}
        for _ in range(num_values):
            key = self._text()
            metadata[key] = self._value(self._number("I"))
        if (number := metadata.get("split.count", 0)) not in (0, 1):
            self._refuse(
                f"is one of {number} parts",
                "join them with `llama-gguf-split --merge`, or give a whole file",
            )
        alignment = metadata.get("general.alignment", ALIGNMENT)
        if type(alignment) is not int or alignment < 1:
            self._refuse(f"has the alignment {alignment!r}", "fetch it again")
        described = [self._tensor() for _ in range(num_tensors)]
        first = -(-self._position // alignment) * alignment
        tensors = {
            name: TensorInfo(name, shape, kind, first + offset, size)
            for name, shape, kind, offset, size in described
        }
        end = max((tensor.start + tensor.num_bytes for tensor in tensors.values()), default=0)
        if end > self._num_bytes:
            self._refuse(f"is cut: it has {self._num_bytes:,} of {end:,} bytes", "fetch it again")
        return Header(metadata, tensors)

    def _tensor(self) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int, int]:
        name, num_dimensions = self._text(), self._number("I")
        if num_dimensions > MAX_DIMENSIONS:
            self._refuse(
                f"is damaged: its tensor {name!r} has {num_dimensions} dimensions", "fetch it again"
            )
        shape = tuple(reversed([self._number("Q") for _ in range(num_dimensions)]))
        number, offset = self._number("I"), self._number("Q")
        try:
            kind = GGMLQuantizationType(number)
            block_size, block_bytes = GGML_QUANT_SIZES[kind]
        except (ValueError, KeyError):
            self._refuse(
                f"has the tensor {name!r} in type {number}, which is not known",
                "give one in Q8_0 or Q4_K_M",
            )
        if not shape or shape[-1] % block_size:
            self._refuse(
                f"is damaged: {kind.name} cannot hold {[*shape]} of its tensor {name!r}",
                "fetch it again",
            )
        return name, shape, kind, offset, prod(shape) // block_size * block_bytes

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._text()
        if kind != ARRAY:
            return self._number(self._format(kind))
        kind, length = self._number("I"), self._number("Q")
        if kind == STRING:
            return [self._text() for _ in range(length)]
        form = self._format(kind)
        start = self._take(length * struct.calcsize(f"<{form}"))
        return [*struct.unpack_from(f"<{length}{form}", self._content, start)]

    def _format(self, kind: int) -> str:
        if (form := FORMATS.get(kind)) is None:
            self._refuse(f"is damaged: its header has a value of type {kind}", "fetch it again")
        return form

    def _number(self, form: str) -> Any:
        [number] = struct.unpack_from(
            f"<{form}", self._content, self._take(struct.calcsize(f"<{form}"))
        )
        return number

    def _text(self) -> str:
        length = self._number("Q")
        start = self._take(length)
        return self._content[start : start + length].decode()

    def _take(self, length: int) -> int:
        """Return the current position, and advance by `length` bytes."""
        start, self._position = self._position, self._position + length
        if self._position > self._num_bytes:
            self._refuse("is cut: it ends inside its header", "fetch it again")
        return start

    def _refuse(self, reason: str, remedy: str) -> NoReturn:
        raise Mismatch(f"{self._file} {reason}", remedy=remedy)
