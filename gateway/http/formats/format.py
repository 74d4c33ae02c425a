"""What every API's shapes offer to those who send answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pydantic import JsonValue

from gateway.generations.choice import Ended, Kept
from gateway.generations.statistics import Summary
from semspec.errors import SemspecError
from semspec.records import Json
from semspec.types import Drafted


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every chunk of a stream, and a whole response, says of itself."""

    id: str
    created: int
    model: str
    system_fingerprint: str


class Format(Protocol):
    """How one API writes what was generated."""

    last_line: str | None
    """The data of a stream's last event, after which nothing comes."""

    def opening(self, index: int) -> list[Json]:
        """Chunks that come before a choice's first text."""
        ...

    def drafted(self, event: Drafted) -> list[Json]:
        """Chunks that tell of drafts in flight, if the client wants to know."""
        ...

    def text(self, index: int, event: Kept | Ended) -> list[Json]:
        """Chunks of a segment, or of the text held back to the end; called for each, told or not."""
        ...

    def closing(self, index: int, ended: Ended, summaries: Sequence[Summary]) -> list[Json]:
        """A choice's last chunks, after all text; with `summaries` of all choices also the stream's."""
        ...

    def response(self, summaries: Sequence[Summary]) -> JsonValue:
        """The whole answer at once."""
        ...

    def error(self, error: SemspecError) -> Json:
        """The last event of a stream that broke."""
        ...
