"""Drafts by retrieval (after SENSE, arXiv 2606.00021): a datastore proposes what followed similar contexts.

the datastore proposes up to retrieval_tokens tokens -> the target verifies them in one forward pass, exactly or through
a soft gate, and returns the hidden state that the next search uses; a segment is recorded once it is complete.
`semantic+retrieval` so writes the segments that `semantic` rejects.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from semspec.decoding import semantic, verification
from semspec.decoding.protocols import Backends, Drafter
from semspec.decoding.steps import Progress, Step, or_backend_unavailable, rewritten
from semspec.decoding.strategy import Option, Strategy
from semspec.errors import InvalidRequest
from semspec.types import Gate, Proposal, Retrieval, RetrievalSource, SegmentRecord, VerifiedTokens, Writer

if TYPE_CHECKING:
    from semspec.decoding.loop import Generation

GateName = Literal["exact", "soft"]
_gate = partial(Option, is_operators=True)  # an open gate keeps whatever a datastore has


@dataclass(frozen=True, kw_only=True)
class Options:
    """Request options of strategies that retrieve; the numbers of the gate are explained in `semspec.types.Gate`."""

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
    gate_entropy: Annotated[float, _gate("share of the largest entropy above which a target is unsure", 0, 1)] = 0.05
    gate_floor: Annotated[float, _gate("least probability of a token that the soft gate keeps", 0, 1)] = 0.1
    gate_top_k: Annotated[int, _gate("ranks that the soft gate keeps where the target is unsure", 0, 1000)] = 3
    gate_density: Annotated[float, _gate("most mismatches for keeping lower ranks, a share", 0, 1)] = 0.1
    gate_window: Annotated[int, _gate("tokens over which mismatches are counted", 1, 1024)] = 16


def check(generation: "Generation") -> None:
    """Raises: InvalidRequest when the soft gate is to judge sampled tokens."""
    if generation.gate == "soft" and generation.sampling.temperature > 0:
        raise InvalidRequest(
            "gate: 'soft' is for temperature 0 only; send temperature 0, or the gate 'exact'", "semspec.gate"
        )


def rounds(
    progress: Progress, backends: Backends, max_segments: Literal[0, 1] = 0
) -> AsyncGenerator[SegmentRecord, None]:
    """Rounds of retrieving and verifying, see `verification.rounds`.

    Raises: InvalidRequest, BackendUnavailable, and what the target raises.
    """
    generation = progress.generation
    check(generation)
    gate = None
    if generation.gate == "soft":
        gate = Gate(
            generation.gate_entropy,
            generation.gate_floor,
            generation.gate_top_k,
            generation.gate_density,
            generation.gate_window,
        )
    return verification.rounds(progress, backends.target, _from_datastore(backends.drafter), max_segments, gate)


def _from_datastore(drafter: Drafter) -> verification.Propose:
    """Proposals of what was retrieved, perhaps nothing."""

    async def propose(progress: Progress, verified: VerifiedTokens) -> Proposal:
        generation, open_ids = progress.generation, verified.open_ids
        num_tokens = verification.num_proposable(progress, verified, generation.retrieval_tokens)
        if not num_tokens:
            return verification.NOTHING
        retrieval = Retrieval(verified.state, generation.retrieval_source, generation.retrieval_tree)
        params = replace(progress.params("propose", max_segments=0), retrieval=retrieval)
        return await or_backend_unavailable("draft", drafter.propose(progress.context, open_ids, params, num_tokens))

    return propose


def _with_semantic(progress: Progress, backends: Backends) -> AsyncGenerator[Step, None]:
    """As `semantic`, with rewrites by `retrieval`. Under the exact gate the same segments."""
    check(progress.generation)

    async def rewrite(before: Progress, rejected: SegmentRecord) -> SegmentRecord:
        return await rewritten(rejected, rounds(before, backends, max_segments=1))

    return semantic.rounds(progress, backends, semantic.by_probes(backends), rewrite)


STRATEGY = Strategy(
    rounds, writers=frozenset({Writer.TARGET}), needs_datastore=True, supports_logprobs=False, check=check
)
WITH_SEMANTIC = Strategy(_with_semantic, probes="", needs_datastore=True, supports_logprobs=False, check=check)
