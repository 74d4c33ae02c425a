"""What is stored of generations and sessions, and what the operators' routes say."""

from typing import Literal

from semspec.gateway.api.statistics import TokenCounts
from semspec.gateway.generation.request import Parameters
from semspec.records import Body, SegmentTrace
from semspec.types import FinishReason

GenerationStatus = Literal["running", "finished", "failed", "cancelled", "interrupted"]


class GenerationModels(Body):
    """Fingerprints of what generated."""

    draft: str
    target: str
    draft_probe: str
    target_probe: str


class GenerationPrompt(Body):
    """As the target was given it."""

    text: str
    token_ids: list[int]
    tokenizer: str


class StoredGeneration(Body):
    """What is stored of one choice of a request."""

    id: str
    object: Literal["generation"]
    status: GenerationStatus
    """`interrupted`: the next request for its events resumes it."""
    created: int
    model: str
    seed: int
    session: str | None
    finish_reason: FinishReason | None
    degraded: bool
    parameters: Parameters
    models: GenerationModels
    prompt: GenerationPrompt
    usage: TokenCounts | None
    """Null until it has finished."""


class GenerationTrace(Body):
    """The records of all kept segments so far, in order."""

    id: str
    object: Literal["generation.trace"]
    status: GenerationStatus
    degraded: bool
    segments: list[SegmentTrace]


class Turn(Body):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class Session(Body):
    """A conversation that is kept."""

    id: str
    object: Literal["session"]
    turns: list[Turn]


class SessionForgotten(Body):
    """A conversation that no longer is."""

    id: str
    object: Literal["session"]
    deleted: Literal[True]


class ModelName(Body):
    """A name a request may put in `model`."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str


class ModelNames(Body):
    """All of them."""

    object: Literal["list"]
    data: list[ModelName]


class Health(Body):
    """The process answers."""

    status: Literal["ok"]


class Ready(Body):
    """The services answer and belong together."""

    status: Literal["ready"]
    detail: str
    """`ready`, or what is away while the target goes on alone."""


class Service(Body):
    """One lamp."""

    name: Literal["draft", "target", "verifier", "redis"]
    status: Literal["ok", "away"]
    detail: str


class Services(Body):
    """Who answers now."""

    services: list[Service]
