"""Answers in Text Generation Inference's shapes."""

from typing import Literal

from semspec.gateway.api.statistics import AnswerMetrics, Statistics
from semspec.records import Body, if_any


class TgiToken(Body):
    """A token as a client sees it; a whole segment, where its tokens' log-probabilities are not known."""

    id: int
    text: str
    logprob: float | None
    special: bool


class TgiEnd(Body):
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
    top_tokens: list[list[TgiToken]] | None = if_any()
    """Only with `top_n_tokens`."""


class TgiAnswer(Body):
    """A whole text."""

    generated_text: str
    details: TgiDetails | None = if_any()
    """Only if asked for."""
    semspec: Statistics
    metrics: AnswerMetrics


class TgiStarted(Body):
    """Whom to ask for the rest of a stream that was lost."""

    id: str


class TgiChunk(Body):
    """An event of a stream. The first has the generation's id, the last the text and the numbers of the whole."""

    index: int
    token: TgiToken
    top_tokens: list[TgiToken] | None = if_any()
    """Only with `top_n_tokens`."""
    generated_text: str | None
    details: TgiEnd | None
    semspec: Statistics | TgiStarted | None = if_any()
    metrics: AnswerMetrics | None = if_any()


class TgiPlace(Body):
    """A token and where it stands in the text, in characters."""

    id: int
    text: str
    start: int
    stop: int


class TgiInfo(Body):
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
