"""The strategies of experiments: the product's, and what only an experiment needs.

`python -m semspec_bench.strategies` is the gateway with this table.
"""

from collections.abc import AsyncGenerator, Sequence

from semspec.decoding import STRATEGIES as PRODUCT
from semspec.decoding import Backends, Options, Strategies, Strategy
from semspec.decoding.generation import Progress, Step
from semspec.decoding.semantic import Judge, rounds
from semspec.types import GeneratedSegment, Judgement, SegmentScore, uniform
from semspec_bench import spec_reason, spec_thinking


def _at_random(progress: Progress, backends: Backends) -> AsyncGenerator[Step, None]:
    seed = progress.generation.sampling.seed

    async def judge(
        index: int, drafted: Sequence[GeneratedSegment], scores: Sequence[SegmentScore]
    ) -> list[Judgement]:
        positions = range(index, index + len(drafted))
        return [
            Judgement(uniform(seed, "random q", i), uniform(seed, "random p", i)) for i in positions
        ]

    return rounds(progress, backends, Judge(judge, progress.generation.strategy.options.acceptance))


def random(options: Options) -> Strategy:
    """The paper's Random baseline: the rounds of `semantic` with uniform random probabilities."""
    return Strategy("random", _at_random, options)


STRATEGIES: Strategies = {
    **PRODUCT,
    "spec-reason": spec_reason.strategy,
    "spec-thinking": spec_thinking.strategy,
    "random": random,
}

if __name__ == "__main__":
    from semspec_gateway.__main__ import main

    main(STRATEGIES)
