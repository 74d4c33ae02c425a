"""The protocol of runners, which answer questions by one system."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from semspec.errors import SemspecError
from semspec.types import Message
from semspec_bench.configuration import Configuration


class RunnerError(SemspecError):
    """A runner cannot start or failed."""


class NotApplicable(RunnerError):
    """This pair does not support the configuration; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One question under one configuration."""

    messages: tuple[Message, ...]
    configuration: Configuration
    temperature: float
    top_p: float
    seed: int
    max_tokens: int

    @property
    def turns(self) -> list[dict[str, str]]:
        """The messages as chat APIs and chat templates take them."""
        return [{"role": message.role, "content": message.content} for message in self.messages]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to a question."""

    text: str
    finish_reason: str
    """`stop` or `length`."""
    latency_s: float
    """Time at the client from the request to the whole answer."""
    num_prompt_tokens: int
    num_tokens: int
    trace: Sequence[dict[str, Any]] = ()
    """The segments' records as `semspec.records.SegmentTrace` has them; none from peers."""


class Runner(Protocol):
    """Answers one question at a time."""

    async def ask(self, ask: Ask) -> Outcome:
        """Raises: SemspecError; NotApplicable when this pair does not support the configuration."""
        ...

    def processes(self) -> Mapping[str, int]:
        """Process ids by role, for their memory."""
        ...
