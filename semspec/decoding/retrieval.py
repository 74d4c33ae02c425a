"""Drafts by retrieval (after SENSE, arXiv 2606.00021): a datastore proposes what followed similar contexts.

the datastore proposes up to retrieval_tokens tokens -> the target verifies them in one forward pass, exactly or through
a soft gate, and returns the hidden state that the next search uses; a segment is recorded once it is complete.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from semspec.decoding.protocols import Backends
from semspec.decoding.steps import Progress, Step, Stopwatch, of_drafted, or_backend_unavailable
from semspec.decoding.strategy import Option, Strategy
from semspec.decoding.verification import NOTHING, Tally
from semspec.errors import InvalidRequest
from semspec.types import Gate, GenerationParams, Proposal, Retrieval, RetrievalSource, VerifiedTokens, Writer

if TYPE_CHECKING:
    from semspec.decoding.loop import Generation

GateName = Literal["exact", "soft"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Request options of `retrieval`; the numbers of the gate are explained in `semspec.types.Gate`."""

    retrieval_tokens: Annotated[int, Option("tokens retrieved at a time", ge=1, le=64)] = 8
    retrieval_source: Annotated[
        RetrievalSource,
        Option(
            "context: n-grams of the context; ngrams: also those of the datastore; all: also semantic neighbours; "
            "datastore: all without the context"
        ),
    ] = "all"
    retrieval_tree: Annotated[
        bool, Option("true proposes alternatives too, a tree of retrieval_tokens tokens, where false proposes a chain")
    ] = False
    """Changes the speed, and with the exact gate never the output."""
    gate: Annotated[GateName, Option("exact: lossless; soft: keeps likely tokens too, at temperature 0 only")] = "exact"
    gate_entropy: Annotated[float, Option("share of the largest entropy above which a target is unsure", 0, 1)] = 0.05
    gate_floor: Annotated[float, Option("least probability of a token that the soft gate keeps", 0, 1)] = 0.1
    gate_top_k: Annotated[int, Option("ranks that the soft gate keeps where the target is unsure", 0, 1000)] = 3
    gate_density: Annotated[float, Option("most mismatches for keeping lower ranks, a share", 0, 1)] = 0.1
    gate_window: Annotated[int, Option("tokens over which mismatches are counted", 1, 1024)] = 16


def check(generation: "Generation") -> None:
    """Raises: InvalidRequest when the soft gate is to judge sampled tokens."""
    if generation.gate == "soft" and generation.sampling.temperature > 0:
        raise InvalidRequest(
            "gate: 'soft' is for temperature 0 only; send temperature 0, or the gate 'exact'", "semspec.gate"
        )


async def rounds(progress: Progress, backends: Backends) -> AsyncGenerator[Step, None]:
    """Run rounds of retrieving and verifying until the end.

    As with `token-level`, a sampled generation that is resumed has other tokens of the same distribution. So has a
    greedy one under the soft gate, which forgets the mismatches before. Raises: InvalidRequest, BackendUnavailable, and
    what the target raises.
    """
    check(progress.generation)
    verified = VerifiedTokens((), (), 0, 0.0)
    tally = Tally()
    while progress.finish_reason is None:
        clock = Stopwatch()
        proposal = await _propose(progress, verified, backends)
        tally = tally.proposed(proposal, clock.lap_ms())
        params = _params(progress, verified)
        verified = await of_drafted(backends.target.verify(progress.context, verified.open_ids, proposal, params))
        tally = tally.verified(verified, clock.lap_ms())
        for segment in verified.segments:
            yield tally.record(len(progress.segments), segment)
            progress, tally = progress.after(segment), Tally()


async def _propose(progress: Progress, verified: VerifiedTokens, backends: Backends) -> Proposal:
    """What was retrieved, perhaps nothing. Raises: BackendUnavailable."""
    generation, open_ids = progress.generation, verified.open_ids
    num_tokens = min(generation.retrieval_tokens, progress.tokens_left - len(open_ids) - 1)
    if num_tokens <= 0:
        return NOTHING
    retrieval = Retrieval(verified.state, generation.retrieval_source, generation.retrieval_tree)
    params = replace(progress.params("propose", max_segments=0), retrieval=retrieval)
    return await or_backend_unavailable(
        "draft", backends.drafter.propose(progress.context, open_ids, params, num_tokens)
    )


def _params(progress: Progress, verified: VerifiedTokens) -> GenerationParams:
    generation, params = progress.generation, progress.params("target", max_segments=0)
    if generation.gate == "exact":
        return params
    gate = Gate(
        generation.gate_entropy,
        generation.gate_floor,
        generation.gate_top_k,
        generation.gate_density,
        generation.gate_window,
        verified.mismatches,
    )
    return replace(params, gate=gate)


STRATEGY = Strategy(rounds, writers=frozenset({Writer.TARGET}), needs_datastore=True, tells_logprobs=False, check=check)
