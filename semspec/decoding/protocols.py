"""The three roles the decoding loop plays with: in-process engines, gRPC clients and fakes alike."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from semspec.decoding.costs import Costs
from semspec.types import (
    ChoiceScores,
    Context,
    GeneratedSegment,
    GenerationParams,
    Judgement,
    Message,
    ModelInfo,
    Piece,
    Proposal,
    Segment,
    SegmentScore,
    States,
    Token,
    VerifiedTokens,
    VerifierInfo,
)


class Drafter(Protocol):
    """Writes segments, cheaply."""

    async def info(self) -> ModelInfo:
        """What is served, for the handshake. Raises: Unavailable."""
        ...

    def generate(self, context: Context, params: GenerationParams) -> AsyncGenerator[GeneratedSegment, None]:
        """Yield segments as they are finished. Closing the generator stops the model between two tokens.

        Raises: ContextTooLong, Unavailable, DeadlineExceeded, Overloaded.
        """
        ...

    async def propose(
        self, context: Context, open_ids: Sequence[int], params: GenerationParams, num_tokens: int
    ) -> Proposal:
        """Up to `num_tokens` tokens that follow `context` and the tokens of a segment begun, for a target to verify.

        Of `params`, sampling and session count. The last token may be end-of-sequence.
        Raises: ContextTooLong, Unavailable, DeadlineExceeded, Overloaded.
        """
        ...


class Target(Drafter, Protocol):
    """Writes segments, and reads others' in one parallel forward."""

    async def encode(self, prompt: str | Sequence[Message]) -> Piece:
        """Tokenize a text as it is, or render a conversation with the chat template first.

        Raises: InvalidRequest when the prompt holds nothing; ContextTooLong when it leaves no room to write.
        """
        ...

    async def tokenize(self, text: str) -> list[Token]:
        """The tokens of a text, without special ones, with their places in it. Raises: Unavailable."""
        ...

    async def score(self, context: Context, segments: Sequence[Segment], session: str = "") -> list[SegmentScore]:
        """One forward pass over `segments`, which follow `context` and one another; one score a segment.

        Raises: ContextTooLong, Unavailable, DeadlineExceeded, Overloaded.
        """
        ...

    async def verify(
        self, context: Context, open_ids: Sequence[int], proposal: Proposal, params: GenerationParams
    ) -> VerifiedTokens:
        """Exact speculative sampling (Leviathan et al. 2023): keep token x of the proposal with probability
        min(1, p(x)/q(x)); at the first refusal draw from norm(max(0, p - q)), after none a bonus token from p.

        The tokens kept are distributed as if the target had written them by `params`, whose budgets count from the end
        of `context`. An empty proposal is one token written.
        Raises: Mismatch when the drafter has another vocabulary; ContextTooLong, Unavailable, DeadlineExceeded,
        Overloaded.
        """
        ...

    async def score_choices(
        self, context: Context, question: str, prefill: str, options: Sequence[str], session: str = ""
    ) -> ChoiceScores:
        """Ask about `context` in a user's turn of its own, the assistant's answer begun with `prefill`: how probable is
        each of `options`, all of them single tokens, as its next token?

        Raises: Mismatch when the chat template drops earlier turns; InvalidRequest when an option is not one token;
        ContextTooLong, Unavailable, DeadlineExceeded, Overloaded.
        """
        ...


class Verifier(Protocol):
    """Turns both models' states into semantic probabilities: a pure function."""

    async def info(self) -> VerifierInfo:
        """Which states the probes were trained on, for the handshake. Raises: Unavailable."""
        ...

    async def judge(
        self, draft_states: Sequence[States], readings: Sequence[SegmentScore], probes: str = ""
    ) -> list[Judgement]:
        """One judgement per segment, by the pair's own probes or those named `probes` in `VerifierInfo.alternatives`.

        Raises: InvalidRequest when there are no probes of that name; Mismatch when the states are not of the models
        the probes were trained on; Unavailable.
        """
        ...


@dataclass(frozen=True, slots=True)
class Backends:
    """The players of one generation: engines, clients or fakes."""

    drafter: Drafter
    target: Target
    verifier: Verifier
    costs: Costs | None = None
    """What `auto` knows from generations before, and adds to."""
