"""Requests to vLLM's processes, beside their token ids, and the model that these serve. A request travels in its
`SamplingParams.extra_args`, its results in `RequestOutput.kv_transfer_params`, both as plain values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from semspec import errors
from semspec.engine.requests import Request, Verified
from semspec.errors import SemspecError
from semspec.types import (
    GeneratedSegment,
    ModelInfo,
    OpenText,
    Proposal,
    SegmentScore,
    Writer,
)

KEY = "semspec"
"""Where requests, results and the configuration stand in vLLM's dictionaries."""
ERROR = "error"
"""Where the name of an error, its message and its parameter stand instead of a result."""

REQUEST: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="kind")])
_RESULTS: dict[str, TypeAdapter[Any]] = {
    "generate": TypeAdapter(GeneratedSegment | OpenText),
    "propose": TypeAdapter(Proposal),
    "score": TypeAdapter(list[SegmentScore]),
    "verify": TypeAdapter(Verified),
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


MODEL = TypeAdapter(Model)


def request_in(params: Any) -> Request | None:
    """The request in vLLM's `SamplingParams`; None for one of vLLM's own, such as its warm-up."""
    wire = ((params and params.extra_args) or {}).get(KEY)
    return None if wire is None else REQUEST.validate_python(wire)


def results_to_wire(kind: str, results: Sequence[object]) -> list[Any]:
    """Plain values for `kv_transfer_params`."""
    return [
        {ERROR: (type(one).__name__, one.message, one.parameter, one.remedy)}
        if isinstance(one, SemspecError)
        else _RESULTS[kind].dump_python(one)
        for one in results
    ]


def result_from_wire(kind: str, wire: object) -> Any:
    """The result of a request of this kind. Raises: the error that it ended with."""
    if isinstance(wire, dict) and ERROR in wire:
        name, message, parameter, remedy = wire[ERROR]
        raise getattr(errors, name)(message, parameter, remedy=remedy)
    return _RESULTS[kind].validate_python(wire)
