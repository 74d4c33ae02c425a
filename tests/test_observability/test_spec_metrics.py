"""Acceptance in vLLM's words: per response, and over the life of a gateway."""

from typing import Any

import pytest

from semspec.records import speculative_decoding, statistics
from semspec.types import SegmentRecord
from semspec_gateway.metrics import Metrics
from tests.helpers.records import ACCEPTED, ALONE, HYBRID, PROPOSED, REWRITTEN


def reported(*records: SegmentRecord) -> dict[str, Any]:
    report = speculative_decoding(statistics(records).steps)
    assert report is not None
    return report


@pytest.mark.parametrize(
    ("record", "num_steps", "num_draft_tokens", "num_accepted_tokens"),
    [(ACCEPTED, 1, 7, 7), (REWRITTEN, 1, 4, 0), (PROPOSED, 1, 12, 6), (HYBRID, 2, 11, 4)],
)
def test_record_counts_as_the_decisions_that_led_to_it(
    record: SegmentRecord, num_steps: int, num_draft_tokens: int, num_accepted_tokens: int
) -> None:
    report = reported(record, ALONE)
    assert report["num_spec_steps"] == num_steps
    assert report["num_draft_tokens"] == num_draft_tokens
    assert report["num_accepted_draft_tokens"] == num_accepted_tokens


def test_report_holds_together_as_its_readers_check() -> None:
    report = reported(ACCEPTED, REWRITTEN, PROPOSED, HYBRID, ALONE)
    histogram = report["acceptance_histogram"]
    assert all(type(count) is int for count in histogram)
    assert sum(histogram) == report["num_spec_steps"] == 5
    assert (
        sum(j * count for j, count in enumerate(histogram))
        == report["num_accepted_draft_tokens"]
        == 17
    )
    assert report["draft_acceptance_rate"] == 17 / 34
    assert report["mean_acceptance_length"] == 1 + 17 / 5
    assert report["num_spec_tokens"] is None, "a number would bound the histogram's length"


def test_nothing_is_reported_where_nothing_was_decided() -> None:
    assert speculative_decoding(statistics([ALONE]).steps) is None


def test_counters_add_up_to_the_reports() -> None:
    metrics = Metrics()
    for record in (ACCEPTED, REWRITTEN, PROPOSED, HYBRID, ALONE):
        metrics.segment(record)
    lines = metrics.exposition().decode().splitlines()
    assert "vllm:spec_decode_num_drafts_total 5.0" in lines
    assert "vllm:spec_decode_num_draft_tokens_total 34.0" in lines
    assert "vllm:spec_decode_num_accepted_tokens_total 17.0" in lines
