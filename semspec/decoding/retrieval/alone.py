"""A draft service with a datastore and no model."""

from collections.abc import AsyncGenerator, Sequence

from semspec.errors import Mismatch
from semspec.types import (
    ChoiceScores,
    Context,
    GeneratedSegment,
    GenerationParams,
    ModelInfo,
    Piece,
    Prompt,
    Proposal,
    Segment,
    SegmentScore,
    Token,
    VerifiedTokens,
)


class NoModel:
    """Stands for the model of a draft service: it has a tokenizer's ids, and refuses every call.

    See `semspec.engine.protocol.Engine`.
    """

    def __init__(self, tokenizer: str) -> None:
        """`tokenizer`: fingerprint of the one whose ids are proposed, the target's."""
        self._tokenizer = tokenizer

    async def info(self) -> ModelInfo:
        return ModelInfo("", "", self._tokenizer, 0, 0, 0, supports_logprobs=False)

    async def encode(self, prompt: Prompt) -> Piece:
        raise _refusal()

    async def tokenize(self, text: str) -> list[Token]:
        raise _refusal()

    async def generate(self, context: Context, params: GenerationParams) -> AsyncGenerator[GeneratedSegment, None]:
        raise _refusal()
        yield  # makes it a generator

    async def propose(
        self, context: Context, open_ids: Sequence[int], params: GenerationParams, num_tokens: int
    ) -> Proposal:
        raise _refusal()

    async def score(
        self, context: Context, segments: Sequence[Segment], session: str = "", projection: str = ""
    ) -> list[SegmentScore]:
        raise _refusal()

    async def read_probes(self) -> None:
        """No states, no probes."""

    async def verify_tokens(
        self, context: Context, open_ids: Sequence[int], proposal: Proposal, params: GenerationParams
    ) -> VerifiedTokens:
        raise _refusal()

    async def score_choices(
        self, context: Context, question: str, prefill: str, options: Sequence[str], session: str = ""
    ) -> ChoiceScores:
        raise _refusal()

    async def aclose(self) -> None:
        """Nothing to free."""


def _refusal() -> Mismatch:
    return Mismatch(
        "this service has a datastore and no model: use the strategy 'retrieval', or set SEMSPEC_DRAFT_MODEL"
    )
