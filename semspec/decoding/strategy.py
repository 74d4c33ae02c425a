"""What a strategy declares of itself. Each has a file of its own, and a line in `loop.STRATEGIES`; if it reads
new request options, its `Options` are a base of `loop.Generation`.
"""

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from semspec.decoding.protocols import Backends
from semspec.decoding.steps import Progress, Step
from semspec.types import Writer

Rounds = Callable[[Progress, Backends], AsyncGenerator[Step, None]]
"""The segments that follow, until the end. Raises: BackendUnavailable, and what the target raises."""


@dataclass(frozen=True, slots=True)
class Option:
    """What is known of a request option beside its type, as the metadata of its `Annotated`."""

    description: str
    ge: float | None = None
    """Least value,"""
    le: float | None = None
    """and greatest."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """How segments come to be, and what that needs of the models and probes that are served.

    The request options a strategy reads are the fields of the dataclass `Options` in its file, each annotated with its
    limits: `gateway` makes of them the fields of a request's `semspec` object and the settings
    `SEMSPEC_GATEWAY_DEFAULT_*`.
    """

    rounds: Rounds
    writers: frozenset[Writer] = frozenset({Writer.DRAFT, Writer.TARGET})
    """Models whose segments may be kept."""
    probes: str | None = None
    """The verifier's probes that judge: "" for the pair's own, or their name; None: the verifier is not asked."""
    needs_one_vocabulary: bool = False
    """Whether the target verifies the draft's tokens."""
    needs_earlier_turns: bool = False
    """Whether it asks the target about each step, so that the chat template must keep earlier turns."""
    tells_logprobs: bool = True
    """Whether each token kept has a log-probability of its writer."""
