"""A record as JSON."""

import json
from dataclasses import asdict

from semspec.records import record_json
from tests.decoding.support import generation, players, records, run


async def test_record_says_how_the_segment_came_to_be() -> None:
    events = await run(await generation(strategy="semantic+token-level"), players(num_segments=12))
    record = next(r for r in records(events) if r.accepted is False and r.num_accepted_tokens)
    trace = json.loads(json.dumps(record_json(record)))
    assert trace["verdict"] == "rewritten" and trace["rejected"]["writer"] == "draft" and trace["score"] is None
    assert trace["num_proposed_tokens"] == record.num_proposed_tokens > trace["num_accepted_tokens"] > 0
    assert trace["times"] == asdict(record.times)


async def test_score_of_a_graded_step_is_told() -> None:
    [first, *_] = records(await run(await generation(strategy="spec-reason"), players()))
    assert record_json(first)["score"] == first.score is not None
