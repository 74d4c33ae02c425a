"""Drafts by retrieval (after SENSE, arXiv 2606.00021): a datastore proposes what followed similar contexts.

the datastore proposes tokens -> the target verifies them in one forward pass and returns the hidden state that the next
search uses; a segment is recorded once it is complete.
"""

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Literal

from semspec.decoding import token_level
from semspec.decoding.backends import Backends
from semspec.decoding.generation import Limits, Options, Progress, Step, Strategy
from semspec.decoding.steps import call_backend
from semspec.types import Proposal, Retrieval, VerifiedTokens, Writer

NUM_TOKENS = Limits("retrieval", "num_speculative_tokens", 8, 1, 64)


def strategy(options: Options, max_segments: Literal[0, 1] = 0) -> Strategy:
    """Raises: InvalidRequest."""
    num_tokens = NUM_TOKENS.of(options.num_speculative_tokens)
    options = replace(options, num_speculative_tokens=num_tokens)

    def run_rounds(progress: Progress, backends: Backends) -> AsyncGenerator[Step, None]:
        async def propose(
            progress: Progress, verified: VerifiedTokens, num_tokens: int
        ) -> Proposal:
            """Retrieve a proposal, which may be empty."""
            retrieval = Retrieval(verified.state, options.retrieval.source)
            params = replace(progress.params("propose", max_segments=0), retrieval=retrieval)
            proposal = backends.drafter.propose(
                progress.context, verified.open_ids, params, num_tokens
            )
            return await call_backend("draft", proposal)

        return token_level.rounds(progress, backends.target, propose, num_tokens, max_segments)

    return Strategy(
        "retrieval",
        run_rounds,
        options,
        writers=frozenset({Writer.TARGET}),
        is_exact=True,
        needs_datastore=True,
        supports_logprobs=False,
    )
