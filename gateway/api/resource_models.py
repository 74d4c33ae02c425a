"""Errors, what is stored of a generation, and what the operators' routes say."""

from typing import Literal

from gateway.http.openapi.answers import TokenCounts
from gateway.http.openapi.described import Described
from gateway.http.openapi.statistics import Parameters, SegmentTrace
from semspec.types import FinishReason


class ErrorDetail(Described):
    """What went wrong, in OpenAI's words."""

    message: str
    type: str
    param: str | None
    """The field at fault, as a path with dots."""
    code: str


class Error(Described):
    """Every refusal and failure outside TGI's routes."""

    error: ErrorDetail


GenerationStatus = Literal["running", "finished", "failed", "cancelled", "interrupted"]


class GenerationModels(Described):
    """Fingerprints of what generated."""

    draft: str
    target: str
    draft_probe: str
    target_probe: str


class GenerationPrompt(Described):
    """As the target was given it."""

    text: str
    token_ids: list[int]
    tokenizer: str


class Generation(Described):
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


class GenerationTrace(Described):
    """The records of all kept segments so far, in order."""

    id: str
    object: Literal["generation.trace"]
    status: GenerationStatus
    degraded: bool
    segments: list[SegmentTrace]


class Turn(Described):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class Session(Described):
    """A conversation that is kept."""

    id: str
    object: Literal["session"]
    turns: list[Turn]


class SessionForgotten(Described):
    """A conversation that no longer is."""

    id: str
    object: Literal["session"]
    deleted: Literal[True]


class ModelName(Described):
    """A name a request may put in `model`."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str


class ModelNames(Described):
    """All of them."""

    object: Literal["list"]
    data: list[ModelName]


class Health(Described):
    """The process answers."""

    status: Literal["ok"]


class Ready(Described):
    """The services answer and belong together."""

    status: Literal["ready"]
    detail: str
    """`ready`, or what is away while the target goes on alone."""


class Service(Described):
    """One lamp."""

    name: Literal["draft", "target", "verifier", "redis"]
    status: Literal["ok", "away"]
    detail: str


class Services(Described):
    """Who answers now."""

    services: list[Service]
