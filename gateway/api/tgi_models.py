"""Answers in Text Generation Inference's shapes."""

from typing import Literal

from gateway.http.openapi.described import Described
from gateway.http.openapi.statistics import AnswerMetrics, Statistics


class TgiError(Described):
    """Every refusal and failure on TGI's routes."""

    error: str
    error_type: Literal["validation", "generation", "overloaded"]


class TgiToken(Described):
    """A token as a client sees it; a whole segment, where its tokens' log-probabilities are not known."""

    id: int
    text: str
    logprob: float | None
    special: bool


class TgiEnd(Described):
    """How a text came to its end."""

    finish_reason: Literal["length", "eos_token", "stop_sequence"]
    generated_tokens: int
    input_length: int
    seed: int | None
    """Null where nothing was drawn."""


class TgiDetails(TgiEnd):
    """The same with its tokens."""

    prefill: list[TgiToken]
    """Always empty."""
    tokens: list[TgiToken]
    top_tokens: tuple[list[TgiToken], ...] = ()
    """Only with `top_n_tokens`."""


class TgiAnswer(Described):
    """A whole text."""

    generated_text: str
    details: TgiDetails | None = None
    """Only if asked for."""
    semspec: Statistics
    metrics: AnswerMetrics


class TgiStarted(Described):
    """Whom to ask for the rest of a stream that was lost."""

    id: str


class TgiChunk(Described):
    """An event of a stream. The first has the generation's id, the last the text and the numbers of the whole."""

    index: int
    token: TgiToken
    top_tokens: tuple[TgiToken, ...] = ()
    """Only with `top_n_tokens`."""
    generated_text: str | None
    details: TgiEnd | None
    semspec: Statistics | TgiStarted | None = None
    metrics: AnswerMetrics | None = None


class TgiPlace(Described):
    """A token and where it stands in the text, in characters."""

    id: int
    text: str
    start: int
    stop: int


class TgiInfo(Described):
    """What is served and within which bounds."""

    model_id: str
    model_sha: str
    model_pipeline_tag: str
    max_concurrent_requests: int
    max_best_of: int
    max_stop_sequences: int
    max_input_tokens: int
    max_total_tokens: int
    validation_workers: int
    max_client_batch_size: int
    router: str
    version: str
    sha: None
    docker_label: None
