"""The protocols between the decoding loop, the engines and the services.

The loop calls a `Drafter`, a `Target` and a `Verifier`: engines in its process, gRPC clients, or fakes in tests. An
`Engine` is a drafter and a target, and has what its process needs besides. Draft and target run the same engine with
different weights. Properties of every engine:

- A call contains its whole context. Caches, batches and `session` change its speed, not its result.
- Token t of a context is drawn with `uniform(seed, "token", t)`. One call that writes five segments equals five calls.
- Every token of a segment is fed before its states are pooled (`states-v1`): writing and scoring give equal states.
- Closing a generator, or cancelling an await, stops the work between two forward passes.
- Text becomes ids, and ids become segments, by `semspec.engine.tokenization` and `semspec.engine.segmentation`.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from semspec.types import (
    Context,
    GeneratedSegment,
    GenerationParams,
    Judgement,
    ModelInfo,
    OpenText,
    Piece,
    Prompt,
    Proposal,
    Segment,
    SegmentScore,
    States,
    Token,
    VerifiedTokens,
    VerifierInfo,
)


class Model(Protocol):
    """Generates segments: what drafter and target have in common."""

    async def info(self) -> ModelInfo:
        """The served model, for the handshake. Raises: Unavailable."""

    async def encode(self, prompt: Prompt) -> Piece:
        """Tokenize a text, or a conversation rendered with the model's chat template; decode a prompt of token ids.

        Raises: InvalidRequest when the prompt is empty, the template refuses or omits a part of it, or an id is not in
        the vocabulary; ContextTooLong when it leaves no tokens for the output; Unavailable.
        """

    def generate(
        self, context: Context, params: GenerationParams
    ) -> AsyncGenerator[GeneratedSegment, None]:
        """Yield each segment when it is complete. Closing the generator stops the model between two tokens.

        Raises: ContextTooLong, Unavailable, DeadlineExceeded, Overloaded.
        """

    def stream(
        self, context: Context, params: GenerationParams
    ) -> AsyncGenerator[GeneratedSegment | OpenText, None]:
        """Yield what `generate` yields, and before each segment its text as it is written, if the model can tell it.

        A call that is retried elsewhere yields the text of the open segment again from its beginning.
        """


class Drafter(Model, Protocol):
    """The small model."""

    async def propose(
        self, context: Context, open_ids: Sequence[int], params: GenerationParams, num_tokens: int
    ) -> Proposal:
        """Propose up to `num_tokens` tokens, for a target to verify, after `context` and the incomplete `open_ids`.

        Uses only sampling and session of `params`. The last token may be end-of-sequence.
        Raises: ContextTooLong, Unavailable, DeadlineExceeded, Overloaded.
        """


class Target(Model, Protocol):
    """The large model: also scores the segments of a drafter in one forward pass."""

    async def tokenize(self, text: str) -> list[Token]:
        """The tokens of a text with their character offsets, without special tokens. Raises: Unavailable."""

    async def score(
        self, context: Context, segments: Sequence[Segment], session: str = "", projection: str = ""
    ) -> list[SegmentScore]:
        """Run one forward pass over `segments`, which follow `context` in this order; return one score per segment.

        `projection`: as `GenerationParams.projection`.

        Raises: ContextTooLong, Unavailable, DeadlineExceeded, Overloaded.
        """

    async def verify_tokens(
        self,
        context: Context,
        open_ids: Sequence[int],
        proposal: Proposal,
        params: GenerationParams,
    ) -> VerifiedTokens:
        """Exact speculative sampling (Leviathan et al. 2023): keep token x of the proposal with probability
        min(1, p(x)/q(x)). At the first rejection draw from norm(max(0, p - q)); without one draw a bonus token from p.

        The tokens kept have the distribution of the target under `params`. The budgets in `params` count from the end
        of `context`. With an empty proposal, the target generates one token. A proposal that is certain of all its
        tokens changes none: the tokens are those that `generate` draws.
        Tokens of the draft that the target lacks, such as other special tokens, are rejected.
        Raises: Mismatch for other ordinary tokens; ContextTooLong, Unavailable, DeadlineExceeded, Overloaded.
        """


class Verifier(Protocol):
    """Computes semantic probabilities from the hidden states of both models: a pure function."""

    async def info(self) -> VerifierInfo:
        """The models and states the probes were trained on, for the handshake. Raises: Unavailable."""

    async def judge(
        self, draft_states: Sequence[States], scores: Sequence[SegmentScore], probes: str = ""
    ) -> list[Judgement]:
        """One judgement per segment. `probes` is a name in `VerifierInfo.alternatives`; "" selects the default probes.

        Raises: InvalidRequest when no probes have that name; Mismatch when the states come from other models than
        those the probes were trained on; Unavailable.
        """


class Engine(Drafter, Target, Protocol):
    """A model that generates and scores, in its own process."""

    async def aclose(self) -> None:
        """Cancel running calls and free the model. Later calls raise Unavailable."""
        ...


class StepCounter(Protocol):
    """Counts an engine's steps, so that `semspec.rpc.servicers.watch_steps` can tell when it hangs: it is busy and
    makes no step. An engine with a counter has it as its attribute `steps`. It is read on the event loop, whichever
    thread makes the steps.

    Such an engine may have a method `metrics`, which yields `semspec.observability.Metric`s in any thread."""

    @property
    def num_steps(self) -> int: ...

    @property
    def is_busy(self) -> bool:
        """Return whether there is work, so that a step must follow."""
        ...
