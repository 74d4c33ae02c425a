"""Semantic speculation where it is expected to be faster, else the target alone.

Before each round `Costs` forecasts how many segments to draft. With 0 the target writes up to `STRETCH` segments. The
number of drafted segments affects only the time of a generation. The choice between drafting and not drafting affects
which model writes, and depends on measured times. So with the same seed, another run, another machine or a resumed
generation may choose differently. Each segment still has the distribution it has under `semantic` or `target`.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from semspec.decoding.costs import Costs, is_losing
from semspec.decoding.look_up import by_target
from semspec.decoding.protocols import Backends, Target
from semspec.decoding.semantic import Speculation, by_probes
from semspec.decoding.steps import Progress, Step, write_on
from semspec.decoding.strategy import Strategy
from semspec.errors import Unavailable
from semspec.types import Drafted, Forecast, SegmentRecord

STRETCH = 4
"""Number of segments the target writes alone before the next forecast."""


async def rounds(progress: Progress, backends: Backends) -> AsyncGenerator[Step, None]:
    """Run rounds by the forecasts of `backends.costs` until the end; each record holds the forecast of its round.

    Raises: BackendUnavailable, and what the target raises.
    """
    costs = Costs() if backends.costs is None else backends.costs
    previous: Forecast | None = None
    with costs.running():
        async with aclosing(Speculation(backends, by_probes(backends), by_target(backends.target))) as speculation:
            while progress.finish_reason is None:
                forecast = costs.forecast(progress.generation.gamma)
                if forecast.gamma:
                    round_steps = _drafted(progress, speculation, costs, forecast, previous or forecast)
                else:
                    await speculation.aclose()
                    round_steps = _alone(progress, backends.target, costs, forecast)
                previous = forecast
                async with aclosing(round_steps) as steps:
                    async for step in steps:
                        progress = progress.past(step)
                        yield step


async def _drafted(
    progress: Progress, speculation: Speculation, costs: Costs, forecast: Forecast, previous: Forecast
) -> AsyncGenerator[Step, None]:
    """One round with drafting; segments drafted ahead follow from the `previous` forecast."""
    batch = await speculation.draft(progress, forecast.gamma)
    if progress.generation.show_drafts:
        yield Drafted(len(progress.segments), batch.segments)
    records = await speculation.judge(progress, batch)
    for judged in records:
        record = await speculation.settle(progress, judged)
        progress = progress.after(record.segment)
        costs.observe(record, len(batch.generated), len(records), batch.was_ahead)
        yield replace(record, forecast=previous if batch.was_ahead else forecast)


async def _alone(
    progress: Progress, target: Target, costs: Costs, forecast: Forecast
) -> AsyncGenerator[SegmentRecord, None]:
    """Segments written by the target alone: `STRETCH` if drafting is slower, else one, to measure the target's time."""
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
