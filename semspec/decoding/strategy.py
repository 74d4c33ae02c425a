"""What a strategy declares.

Each strategy has its own file and one line in `loop.STRATEGIES`. If it reads new request options, its `Options`
dataclass is a base class of `loop.Generation`.
"""

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semspec.decoding.protocols import Backends
from semspec.decoding.steps import Progress, Step
from semspec.types import Writer

if TYPE_CHECKING:
    from semspec.decoding.loop import Generation

Rounds = Callable[[Progress, Backends], AsyncGenerator[Step, None]]
"""Yields the steps of a generation from its progress to its end. Raises: BackendUnavailable, and what the target
raises."""


@dataclass(frozen=True, slots=True)
class Option:
    """Description and limits of a request option: the metadata in its `Annotated` type."""

    description: str
    ge: float | None = None
    """Least value; None: no limit."""
    le: float | None = None
    """Greatest value; None: no limit."""
    is_operators: bool = False
    """Whether the operator sets it for all requests, which have no such field."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """How segments are generated, and what that requires of the served models and probes.

    The fields of the dataclass `Options` in a strategy's file are the request options it reads, each annotated with its
    limits. `gateway` derives from them the fields of a request's `semspec` object and the keys of
    `SEMSPEC_GATEWAY_DEFAULTS`.
    """

    rounds: Rounds
    writers: frozenset[Writer] = frozenset({Writer.DRAFT, Writer.TARGET})
    """Models whose segments may be kept."""
    probes: str | None = None
    """Name of the verifier's probes to use; "": the default probes; None: the strategy does not call the verifier."""
    needs_calibration: bool = False
    """Whether it judges by `Backends.likelihood`."""
    needs_one_vocabulary: bool = False
    """Whether the target verifies draft tokens, so that both models must share their ordinary tokens."""
    needs_earlier_turns: bool = False
    """Whether it has the target score each step in a new turn, so that the chat template must keep earlier turns."""
    supports_grammars: bool = False
    """Whether all kept text is drawn in calls of `generate` to one model, which can hold it to a grammar and apply
    penalties."""
    supports_logprobs: bool = True
    """Whether each kept token has the log-probability that its writer assigned to it."""
    needs_datastore: bool = False
    """Whether the draft service retrieves from a datastore of the target's answers."""
    check: "Callable[[Generation], None] | None" = None
    """Raises: InvalidRequest when options of a request contradict each other; None: they cannot."""
