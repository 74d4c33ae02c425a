"""How a question gets to the system that answers it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from semspec.bench.configuration import Configuration
from semspec.types import Message


class RunnerError(Exception):
    """A runner cannot start or broke: one line, with the remedy."""


class NotApplicable(RunnerError):
    """This pair cannot do what the configuration asks for; the message says why."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One question under one configuration."""

    messages: tuple[Message, ...]
    configuration: Configuration
    temperature: float
    top_p: float
    seed: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came back."""

    text: str
    finish_reason: str
    """`stop` or `length`."""
    latency_s: float
    """At the asker, from the question to the whole answer."""
    num_prompt_tokens: int
    num_tokens: int
    trace: Sequence[dict[str, Any]] = ()
    """The segments as `semspec.records.record_json` writes them; none from peers."""


class Runner(Protocol):
    """Asks, one question at a time."""

    async def ask(self, ask: Ask) -> Outcome:
        """Raises: RunnerError, NotApplicable."""
        ...

    def processes(self) -> Mapping[str, int]:
        """Process ids by role, for their memory."""
        ...
