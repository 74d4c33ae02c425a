"""What the service asks of vLLM's processes, beside the token ids of a request. Each travels in the request's
`SamplingParams.extra_args`, its results in `RequestOutput.kv_transfer_params`, both as plain values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from semspec.types import (
    ChoiceScores,
    Distribution,
    GeneratedSegment,
    GenerationParams,
    ModelInfo,
    Proposal,
    SamplingParams,
    SegmentScore,
    Writer,
)

KEY = "semspec"
"""Where requests, results and the configuration stand in vLLM's dictionaries."""


@dataclass(frozen=True, slots=True)
class Generate:
    """Segments after the request's tokens, as `GeneratedSegment`s."""

    params: GenerationParams
    is_after_end: bool
    """The context is `ended_by_look_ahead`."""
    kind: Literal["generate"] = "generate"


@dataclass(frozen=True, slots=True)
class Propose:
    """A `Proposal` of up to `num_tokens` tokens after the request's."""

    sampling: SamplingParams
    num_tokens: int
    kind: Literal["propose"] = "propose"


@dataclass(frozen=True, slots=True)
class Score:
    """The `SegmentScore`s of the segments, of these lengths, that the request's tokens end with."""

    lengths: tuple[int, ...]
    projection: str = ""
    """Digest of the projection to apply to the states."""
    kind: Literal["score"] = "score"


@dataclass(frozen=True, slots=True)
class Verify:
    """Speculative sampling of `drafted`, of which the first `num_fed` are the last of the request's tokens: the tokens
    that `semspec.engine.speculative.rejection_sample` returns."""

    drafted: tuple[int, ...]
    num_fed: int
    distributions: tuple[Distribution, ...]
    sampling: SamplingParams
    is_after_end: bool
    kind: Literal["verify"] = "verify"


@dataclass(frozen=True, slots=True)
class Choose:
    """`ChoiceScores` of the token after the request's."""

    options: tuple[int, ...]
    kind: Literal["choose"] = "choose"


Request = Generate | Propose | Score | Verify | Choose

_REQUEST: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="kind")])
_RESULTS: dict[str, TypeAdapter[Any]] = {
    "generate": TypeAdapter(GeneratedSegment),
    "propose": TypeAdapter(Proposal),
    "score": TypeAdapter(list[SegmentScore]),
    "verify": TypeAdapter(list[int]),
    "choose": TypeAdapter(ChoiceScores),
}


@dataclass(frozen=True, slots=True)
class Model:
    """What vLLM's processes know of the model, in `VllmConfig.additional_config`."""

    folder: str
    info: ModelInfo
    eos_ids: tuple[int, ...]
    num_embeddings: int
    writer: Writer
    probes: str | None = None
    """The folder of probes whose first layers are applied to states."""


_MODEL = TypeAdapter(Model)


def request_to_wire(request: Request) -> dict[str, Any]:
    """Plain values for `extra_args`."""
    return {KEY: _REQUEST.dump_python(request)}


def request_from_wire(extra_args: dict[str, Any] | None) -> Request | None:
    """The request in `extra_args`; None for one of vLLM's own, such as its warm-up."""
    wire = (extra_args or {}).get(KEY)
    return None if wire is None else _REQUEST.validate_python(wire)


def results_to_wire(kind: str, results: Sequence[object]) -> list[Any]:
    """Plain values for `kv_transfer_params`."""
    return [_RESULTS[kind].dump_python(result) for result in results]


def result_from_wire(kind: str, wire: object) -> Any:
    """The result of a request of this kind."""
    return _RESULTS[kind].validate_python(wire)


def model_to_wire(model: Model) -> dict[str, Any]:
    """Plain values for `additional_config`."""
    return {KEY: _MODEL.dump_python(model, mode="json")}


def model_from_wire(additional_config: dict[str, Any]) -> Model:
    """The model in `additional_config`."""
    return _MODEL.validate_python(additional_config[KEY])
