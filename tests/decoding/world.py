"""A simulation in which segments are accepted at random and take given times."""

from dataclasses import dataclass, replace
from random import Random

from semspec.decoding.costs import Costs, Stages
from semspec.decoding.steps import total
from semspec.types import Forecast, Segment, SegmentEnd, SegmentRecord, StageTimes, Writer


@dataclass(frozen=True, slots=True)
class World:
    """Costs and acceptance of a simulated round. Tokens per segment are sampled around their means."""

    acceptance: float = 0.9
    draft_call_ms: float = 2.0
    draft_token_ms: float = 1.0
    hidden_ms: float = 0.0
    read_call_ms: float = 8.0
    read_token_ms: float = 0.2
    write_token_ms: float = 10.0
    num_drafted_tokens: int = 20
    num_written_tokens: int = 24

    @property
    def stages(self) -> Stages:
        return Stages(
            self.acceptance,
            self.draft_call_ms,
            self.draft_token_ms,
            self.hidden_ms,
            self.read_call_ms,
            self.read_token_ms,
            self.write_token_ms,
            self.num_drafted_tokens,
            self.num_written_tokens,
        )


@dataclass(frozen=True, slots=True)
class Round:
    """What was kept, by the true time and the records the loop would make of it."""

    ms: float
    num_tokens: int
    records: list[SegmentRecord]
    num_drafted: int
    was_ahead: bool

    @property
    def is_whole(self) -> bool:
        return bool(self.records[-1].accepted)


def play(world: World, gamma: int, was_ahead: bool, chance: Random) -> Round:
    """A round of `gamma` drafted segments, or one segment of the target's."""
    if gamma == 0:
        written = _segment(world.num_written_tokens, Writer.TARGET, chance)
        write_ms = world.write_token_ms * len(written.token_ids)
        record = SegmentRecord(0, written, None, times=StageTimes(write_ms=write_ms))
        return Round(write_ms, len(written.token_ids), [record], 0, False)
    drafts = [_segment(world.num_drafted_tokens, Writer.DRAFT, chance) for _ in range(gamma)]
    num_tokens = sum(len(draft.token_ids) for draft in drafts)
    draft_ms = world.draft_call_ms + world.draft_token_ms * num_tokens
    if was_ahead:
        draft_ms -= min(draft_ms, world.hidden_ms)
    read_ms = world.read_call_ms + world.read_token_ms * num_tokens
    records: list[SegmentRecord] = []
    for draft in drafts:
        records.append(_decided(world, draft, chance))
        if not records[-1].accepted:
            break
    ms = draft_ms + read_ms + records[-1].times.write_ms
    share = StageTimes(draft_ms=draft_ms / len(records), read_ms=read_ms / len(records))
    records = [replace(record, times=total(record.times, share)) for record in records]
    return Round(ms, sum(len(record.segment.token_ids) for record in records), records, gamma, was_ahead)


def live(world: World, costs: Costs, num_segments: int, max_gamma: int = 1, seed: int = 0) -> list[Forecast]:
    """Let `costs` steer until so many segments are kept: the forecast each of them came by."""
    chance, forecasts, is_ahead = Random(seed), list[Forecast](), False
    while len(forecasts) < num_segments:
        forecast = costs.forecast(max_gamma)
        played = play(world, forecast.gamma, is_ahead, chance)
        is_ahead = played.is_whole
        for record in played.records:
            costs.observe(record, max(1, played.num_drafted), len(played.records), played.was_ahead)
            forecasts.append(forecast)
    return forecasts


def _decided(world: World, draft: Segment, chance: Random) -> SegmentRecord:
    if chance.random() < world.acceptance:
        return SegmentRecord(0, draft, True)
    written = _segment(world.num_written_tokens, Writer.TARGET, chance)
    write_ms = world.write_token_ms * len(written.token_ids)
    return SegmentRecord(0, written, False, rejected=draft, times=StageTimes(write_ms=write_ms))


def _segment(mean_tokens: int, writer: Writer, chance: Random) -> Segment:
    num_tokens = round(mean_tokens * chance.uniform(0.7, 1.3))
    return Segment("x" * num_tokens, tuple(range(num_tokens)), "made up", writer, SegmentEnd.BOUNDARY)
