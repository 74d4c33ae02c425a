"""The protocol of every engine that runs a causal LM, and how a service loads one.

An engine has two verbs. *Generate*: `generate` writes segments, `propose` writes tokens for a target to verify.
*Score*: `score` scores segments in one forward pass, `verify_tokens` verifies proposed tokens, `score_choices` returns
the probabilities of answers. Beside them are `encode`, `tokenize` and `info`. `Drafter` and `Target` in
`semspec.decoding.protocols` specify these methods and what they raise: they are the part of an engine that the decoding
loop calls, in one process or over gRPC. `Engine` adds what the process that owns the model needs. In-process engines,
remote writers and fakes satisfy it.

Properties of every engine:

- A call contains its whole context. Caches, batches and `session` change its speed, not its result.
- Token t of a context is drawn with `uniform(seed, "token", t)`. One call that writes five segments equals five calls.
- Every token of a segment is fed before its states are pooled (`states-v1`): writing and scoring give equal states.
- A tree of proposed tokens (`Proposal.parents`) may be verified as the chain of its first alternatives (`as_chain`).
- Closing a generator, or cancelling an await, stops the work between two forward passes.
- Text becomes ids, and ids become segments, by `semspec.engine.tokenization` and `semspec.engine.segmentation`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from semspec.decoding.protocols import Drafter, Target
from semspec.engine.tokenization import ModelTokenizer
from semspec.types import (
    ChoiceScores,
    Context,
    GenerationParams,
    Piece,
    Prompt,
    Proposal,
    Segment,
    SegmentScore,
    Token,
    VerifiedTokens,
    Writer,
)

if TYPE_CHECKING:
    from semspec.engine.settings import ModelSettings  # needs pydantic, which is optional for users of an engine alone


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
    """Read on the event loop, whichever thread makes the steps."""

    @property
    def num_steps(self) -> int: ...

    @property
    def is_busy(self) -> bool:
        """Whether there is work, which makes a step sooner or later."""
        ...


@runtime_checkable
class CountsSteps(Protocol):
    """A backend whose hanging is found by its steps: busy, it makes none (`semspec.rpc.servicers.StallWatch`)."""

    @property
    def steps(self) -> StepCounter | None:
        """None: they are not known."""
        ...


class EngineWrapper:
    """Forwards calls to an engine. Subclasses add `info` and `generate`, and what they do otherwise."""

    @property
    def _model(self) -> Engine:
        raise NotImplementedError

    @property
    def steps(self) -> StepCounter | None:
        model = self._model
        return model.steps if isinstance(model, CountsSteps) else None

    async def encode(self, prompt: Prompt) -> Piece:
        return await self._model.encode(prompt)

    async def tokenize(self, text: str) -> list[Token]:
        return await self._model.tokenize(text)

    async def score(
        self, context: Context, segments: Sequence[Segment], session: str = "", projection: str = ""
    ) -> list[SegmentScore]:
        return await self._model.score(context, segments, session, projection)

    async def propose(
        self, context: Context, open_ids: Sequence[int], params: GenerationParams, num_tokens: int
    ) -> Proposal:
        return await self._model.propose(context, open_ids, params, num_tokens)

    async def verify_tokens(
        self, context: Context, open_ids: Sequence[int], proposal: Proposal, params: GenerationParams
    ) -> VerifiedTokens:
        return await self._model.verify_tokens(context, open_ids, proposal, params)

    async def score_choices(
        self, context: Context, question: str, prefill: str, options: Sequence[str], session: str = ""
    ) -> ChoiceScores:
        return await self._model.score_choices(context, question, prefill, options, session)

    async def read_probes(self) -> None:
        await self._model.read_probes()

    async def aclose(self) -> None:
        await self._model.aclose()


class LocalEngine(Engine, Protocol):
    """An engine with its tokenizer in this process, for wrappers such as a remote writer."""

    @property
    def tokenizer(self) -> ModelTokenizer: ...


def load_engine(settings: "ModelSettings", writer: Writer) -> LocalEngine:
    """Load the model of `settings`. Raises: Mismatch when it cannot be served."""
    if settings.engine == "vllm":
        from semspec.engine.vllm.engine import load_vllm

        return load_vllm(settings, writer)
    from semspec.engine.transformers_engine import TransformersEngine  # slow, deferred until health checks are answered

    return TransformersEngine.load(
        settings.model,
        writer=writer,
        revision=settings.revision,
        device=settings.device,
        dtype=settings.dtype,
        threads=settings.threads,
        cache_bytes=settings.cache_bytes,
        kv_bytes=settings.kv_bytes,
        probes=settings.probes,
        max_context_tokens=settings.max_context_tokens,
        engine=settings.engine,
    )
