"""Response schemas of `/v1/generations`, `/v1/sessions`, `/v1/models` and the operational routes."""

from typing import Literal

from semspec.gateway.api.shared.answers import TokenCounts
from semspec.gateway.generation.request import Parameters
from semspec.records import Body, SegmentText, SegmentTrace, if_any
from semspec.types import FinishReason, Role, Segmentation

GenerationStatus = Literal["running", "finished", "failed", "cancelled", "interrupted"]


class GenerationModels(Body):
    """Fingerprints of the models and probes used, and of the calibration of `likelihood`."""

    draft: str
    target: str
    draft_probe: str
    target_probe: str
    likelihood: str | None = if_any()


class GenerationPrompt(Body):
    """The prompt as a model received it; no ids: the model tokenized the text."""

    text: str
    token_ids: list[int]
    tokenizer: str


class StoredGeneration(Body):
    """One stored choice of a request."""

    id: str
    object: Literal["generation"]
    status: GenerationStatus
    """`interrupted`: the next client that attaches resumes it."""
    created: int
    model: str
    seed: int
    session: str | None
    finish_reason: FinishReason | None
    degraded: bool
    parameters: Parameters
    models: GenerationModels
    prompt: GenerationPrompt
    """As the target received it."""
    draft_prompt: GenerationPrompt | None
    """As the draft received it, in its own chat template; null where it received the target's."""
    usage: TokenCounts | None
    """Null until the generation has finished."""


class GenerationTrace(Body):
    """The records of all kept segments so far, in order."""

    id: str
    object: Literal["generation.trace"]
    status: GenerationStatus
    degraded: bool
    segments: list[SegmentTrace]


class CollectedModel(Body):
    """Fingerprints of a served model and of its tokenizer."""

    fingerprint: str
    tokenizer: str


class CollectedAnswer(Body):
    """A finished choice whose owner consents."""

    id: str
    owner: str
    conversation: str
    """The same for all answers of a conversation."""
    question: str
    """The user's turns, or the plain prompt."""
    prompt: GenerationPrompt
    draft_prompt: GenerationPrompt | None
    """Null where the draft reads the target's."""
    segments: list[SegmentText]
    """Those that end at a boundary, from the first on."""


class CollectionPage(Body):
    """Answers of the models that serve now, under the gateway's default segmentation."""

    object: Literal["list"]
    draft: CollectedModel
    target: CollectedModel
    segmentation: Segmentation
    data: list[CollectedAnswer]
    next: str
    """For `after`; the same as sent if there is nothing more."""


class Turn(Body):
    """One message of a conversation."""

    role: Role
    content: str


class Session(Body):
    """A stored conversation."""

    id: str
    object: Literal["session"]
    turns: list[Turn]


class ListedSession(Body):
    """A conversation in the list."""

    id: str
    object: Literal["session"]
    updated: int
    """Seconds since 1970 of its last turn."""
    num_turns: int
    question: str
    """The beginning of its first user's turn, at most 200 characters."""


class SessionList(Body):
    """The last conversations, the latest first."""

    object: Literal["list"]
    data: list[ListedSession]


class SessionForgotten(Body):
    """A deleted conversation."""

    id: str
    object: Literal["session"]
    deleted: Literal[True]


class ModelName(Body):
    """A value for a request's `model`."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str


class ModelNames(Body):
    """All values for a request's `model`."""

    object: Literal["list"]
    data: list[ModelName]


class Health(Body):
    """The process runs."""

    status: Literal["ok"]


class Version(Body):
    """This server's version."""

    version: str


class Ready(Body):
    """The services respond and match."""

    status: Literal["ready"]
    detail: str
    """`ready`, or which service is unavailable while the target generates alone."""


class Service(Body):
    """State of one service."""

    name: Literal["draft", "target", "verifier", "redis"]
    status: Literal["ok", "away"]
    detail: str


class Services(Body):
    """State of all services."""

    services: list[Service]
