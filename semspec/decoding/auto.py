"""Semantic speculation where it pays, the target alone where it does not.

Before each round `Costs` says how many segments to draft, or 0: then the target writes a stretch of segments. The
number drafted alters only the time a generation takes. Whether to draft decides who writes, and rests on measured
times: so a seed does not make another run, another machine or a resumed generation choose the same way. Each segment
is still drawn as `semantic` or `target` would draw it in its place.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from semspec.decoding.costs import Costs, is_losing
from semspec.decoding.protocols import Backends, Target
from semspec.decoding.semantic import Speculation, by_probes
from semspec.decoding.steps import Progress, Step, by_target, write_on
from semspec.decoding.strategy import Strategy
from semspec.errors import Unavailable
from semspec.types import Drafted, Forecast, SegmentRecord

STRETCH = 4
"""How many segments the target writes alone before the next forecast."""


async def rounds(progress: Progress, backends: Backends) -> AsyncGenerator[Step, None]:
    """Rounds as `backends.costs` forecast them until the end, each of their records with the forecast it follows.

    Raises: BackendUnavailable, and what the target raises.
    """
    costs = Costs() if backends.costs is None else backends.costs
    begun: Forecast | None = None
    async with aclosing(Speculation(backends, by_probes(backends.verifier), by_target(backends.target))) as speculation:
        while progress.finish_reason is None:
            forecast = costs.forecast(progress.generation.gamma)
            if forecast.gamma:
                moves = _drafted(progress, speculation, costs, forecast, begun or forecast)
            else:
                await speculation.aclose()
                moves = _alone(progress, backends.target, costs, forecast)
            begun = forecast
            async with aclosing(moves) as steps:
                async for step in steps:
                    progress = progress.past(step)
                    yield step


async def _drafted(
    progress: Progress, speculation: Speculation, costs: Costs, forecast: Forecast, begun: Forecast
) -> AsyncGenerator[Step, None]:
    """A round; what the draft has ahead was asked for by the forecast that was `begun`."""
    batch = await speculation.draft(progress, forecast.gamma)
    if progress.generation.show_drafts:
        yield Drafted(len(progress.segments), batch.segments)
    for judged in await speculation.judge(progress, batch):
        record = await speculation.settle(progress, judged)
        progress = progress.after(record.segment)
        costs.observe(record, len(batch.written), batch.was_ahead)
        yield replace(record, forecast=begun if batch.was_ahead else forecast)
        if not record.accepted:
            return


async def _alone(
    progress: Progress, target: Target, costs: Costs, forecast: Forecast
) -> AsyncGenerator[SegmentRecord, None]:
    """A stretch of the target's own segments; only one where its time is measured and drafting is no worse."""
    params = progress.params("target", max_segments=STRETCH if is_losing(forecast) else 1)
    num_kept = 0
    async with aclosing(write_on(progress, target, params, "write_ms")) as records:
        async for record in records:
            costs.observe(record)
            num_kept += 1
            yield replace(record, forecast=forecast)
    if not num_kept:
        raise Unavailable("the target ended its stream without a segment; retry")


STRATEGY = Strategy(rounds, probes="")
