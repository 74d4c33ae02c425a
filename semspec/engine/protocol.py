"""The protocol of every engine that runs a causal LM, and how a service loads one.

An engine has two verbs. *Generate*: `generate` writes segments, `propose` writes tokens for a target to verify.
*Score*: `score` scores segments in one forward pass, `verify_tokens` verifies proposed tokens. Next to them are
`encode`, `tokenize` and `info`. `Drafter` and `Target` in `semspec.decoding.protocols` specify these methods and what
they raise: they are the part of an engine that the decoding loop calls, in one process or over gRPC. `Engine` adds what
the model's process needs.

Properties of every engine:

- A call contains its whole context. Caches, batches and `session` change its speed, not its result.
- Token t of a context is drawn with `uniform(seed, "token", t)`. One call that writes five segments equals five calls.
- Every token of a segment is fed before its states are pooled (`states-v1`): writing and scoring give equal states.
- Closing a generator, or cancelling an await, stops the work between two forward passes.
- Text becomes ids, and ids become segments, by `semspec.engine.tokenization` and `semspec.engine.segmentation`.
"""

import logging
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, Protocol

from semspec.decoding.protocols import Drafter, Target
from semspec.types import Writer

if TYPE_CHECKING:
    from semspec.engine.causal_lm import EngineName
    from semspec.engine.local import LocalEngine
    from semspec.engine.settings import (
        ModelSettings,
    )  # needs pydantic, which is optional for users of an engine alone


class Engine(Drafter, Target, Protocol):
    """A model that generates and scores. Draft and target run the same engine with different weights."""

    async def read_probes(self) -> None:
        """Read the folder of probes again, whose first layers calls name (`semspec.probes.projection.Projections`). A
        call that names one that is not held returns the states."""
        ...

    async def aclose(self) -> None:
        """Cancel running calls and free the model. Later calls raise Unavailable."""
        ...


class StepCounter(Protocol):
    """What shows that an engine hangs: busy, it makes no steps (`semspec.rpc.servicers.watch_steps`). An engine that
    counts them has it as its attribute `steps`. Read on the event loop, whichever thread makes the steps.

    Such an engine may have a method `metrics`, which yields `semspec.observability.Metric`s in any thread."""

    @property
    def num_steps(self) -> int: ...

    @property
    def is_busy(self) -> bool:
        """Whether there is work, which makes a step sooner or later."""
        ...


OPTIONS = {
    "revision",
    "device",
    "dtype",
    "threads",
    "cache_bytes",
    "kv_bytes",
    "max_context_tokens",
}
"""Settings that our engine takes as they are."""

LoadModel = Callable[["ModelSettings", Writer], "LocalEngine"]
"""`load_engine`, or what takes its place."""


def chosen_engine(settings: "ModelSettings") -> "EngineName | Literal['vllm']":
    """The engine of `settings`; for auto on the device cuda it is vLLM, if that is installed and can serve the model:
    it cannot serve a GGUF file."""
    if (
        settings.engine == "auto"
        and settings.device.startswith("cuda")
        and not settings.model.endswith(".gguf")
    ):
        if find_spec("vllm"):
            return "vllm"
        logging.getLogger(__name__).warning(
            "vLLM is not installed: our engine serves; long contexts need vLLM"
        )
    return settings.engine


def load_engine(settings: "ModelSettings", writer: Writer) -> "LocalEngine":
    """Load the model of `settings`. Raises: Mismatch when it cannot be served."""
    if (engine := chosen_engine(settings)) == "vllm":
        from semspec.engine.vllm.engine import load_vllm

        return load_vllm(settings, writer)
    from semspec.engine.checkpoint import (
        loading,
        model_fingerprint,
    )  # slow, deferred until health checks are answered
    from semspec.engine.numeric_form import resolve_form
    from semspec.engine.transformers_engine import TransformersEngine
    from semspec.release import check_model

    if settings.pair:  # before weights take memory
        with loading(settings.model, settings.revision) as folder:
            form = resolve_form(settings.model, folder, settings.device, settings.dtype)
            check_model(settings, writer, model_fingerprint(folder, form))
    options = settings.model_dump(include=OPTIONS)
    return TransformersEngine.load(
        settings.model, writer=writer, engine=engine, probes=settings.pair, **options
    )
