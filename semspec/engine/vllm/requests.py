"""Messages between the service and vLLM's processes: requests, results and the served model.

A request is sent in `SamplingParams.extra_args`, next to its token ids. Its results are in
`RequestOutput.kv_transfer_params`. Both are plain values.
"""

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
"""Key of requests, results and the configuration in vLLM's dictionaries."""
ERROR = "error"
"""Key of an error's class, message, parameter and remedy, in place of a result."""

REQUEST: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="kind")])
_RESULTS: dict[str, TypeAdapter[Any]] = {
    "generate": TypeAdapter(GeneratedSegment | OpenText),
    "propose": TypeAdapter(Proposal),
    "score": TypeAdapter(list[SegmentScore]),
    "verify": TypeAdapter(Verified),
}


@dataclass(frozen=True, slots=True)
class Model:
    """The model that vLLM's processes serve, in `VllmConfig.additional_config`."""

    folder: str
    info: ModelInfo
    eos_ids: tuple[int, ...]
    num_embeddings: int
    writer: Writer
    probes: str | None = None
    """The folder of probes whose first layers are applied to states."""


MODEL = TypeAdapter(Model)


def request_in(params: Any) -> Request | None:
    """Return the request in vLLM's `SamplingParams`; None for vLLM's internal requests, such as its warm-up."""
    message = ((params and params.extra_args) or {}).get(KEY)
    return None if message is None else REQUEST.validate_python(message)


def results_to_wire(kind: str, results: Sequence[object]) -> list[Any]:
    """Return results as plain values for `kv_transfer_params`."""
    return [
        {ERROR: (type(result).__name__, result.message, result.parameter, result.remedy)}
        if isinstance(result, SemspecError)
        else _RESULTS[kind].dump_python(result)
        for result in results
    ]


def result_from_wire(kind: str, value: object) -> Any:
    """Return the result of a request of this kind. Raises: the error that ended the request."""
    if isinstance(value, dict) and ERROR in value:
        name, message, parameter, remedy = value[ERROR]
        raise getattr(errors, name)(message, parameter, remedy=remedy)
    return _RESULTS[kind].validate_python(value)
