"""Response schemas of Text Generation Inference's API."""

from typing import Literal

from pydantic import ConfigDict

from semspec.records import Body, if_any
from semspec_gateway.api.shared.answers import AnswerMetrics, Statistics


class TgiToken(Body):
    """A token as the client sees it; a whole segment where log-probabilities are unknown."""

    model_config = ConfigDict(from_attributes=True)

    id: int
    text: str
    logprob: float | None
    special: bool


class TgiEnd(Body):
    """How a text ended."""

    finish_reason: Literal["length", "eos_token", "stop_sequence"]
    generated_tokens: int
    input_length: int
    seed: int | None
    """Null for greedy decoding."""


class TgiDetails(TgiEnd):
    """How a text ended, with its tokens."""

    prefill: list[TgiToken]
    """Always empty."""
    tokens: list[TgiToken]
    top_tokens: list[list[TgiToken]] | None = if_any()
    """Only with `top_n_tokens`."""


class TgiAnswer(Body):
    """A whole response."""

    generated_text: str
    details: TgiDetails | None = if_any()
    """Only if requested."""
    semspec: Statistics
    metrics: AnswerMetrics


class TgiStarted(Body):
    """The generation's id, to attach again after a broken stream."""

    id: str


class TgiChunk(Body):
    """A streamed event. The first has the generation's id, the last the whole text and its statistics."""

    index: int
    token: TgiToken
    top_tokens: list[TgiToken] | None = if_any()
    """Only with `top_n_tokens`."""
    generated_text: str | None
    details: TgiEnd | None
    semspec: Statistics | TgiStarted | None = if_any()
    metrics: AnswerMetrics | None = if_any()


class TgiSimpleToken(Body):
    """A token and its position in the text, in characters."""

    id: int
    text: str
    start: int
    stop: int


class Tokens(Body):
    """The target's tokens of a prompt, as vLLM answers."""

    count: int
    max_model_len: int
    """The target's context window, in tokens."""
    tokens: list[int]
    token_strs: None


class Detokenized(Body):
    """The text of token ids, as vLLM answers."""

    prompt: str


class TgiInfo(Body):
    """The served model and its limits."""

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
