"""What the gateway counts, and what dashboard and alerts ask for; `test_service_metrics` has the services."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from semspec.records import speculative_decoding, statistics
from semspec.types import SegmentRecord
from semspec_gateway.metrics import SERVICES, Metrics
from tests.helpers.records import ACCEPTED, ALONE, HYBRID, PROPOSED, REWRITTEN

ROOT = Path(__file__).resolve().parents[2]
COMPOSE, MONITORING = ROOT / "docker-compose.yml", ROOT / "deploy" / "monitoring"
DASHBOARD = json.loads((MONITORING / "grafana" / "semspec.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
ALERTS = yaml.safe_load((MONITORING / "prometheus" / "alerts.yml").read_text())
SCRAPED = {"up": {"job", "instance"}}
"""Prometheus' own metric; the labels it gives to every other one are `job` and `instance`, too."""


def alert_rules() -> list[dict[str, Any]]:
    return [rule for group in ALERTS["groups"] for rule in group["rules"]]


def expressions() -> Iterator[str]:
    yield from (target["expr"] for panel in PANELS for target in panel["targets"])
    yield from (rule["expr"] for rule in alert_rules())


def asked_of_services(prefix: str) -> set[str]:
    """The metrics of the row "Engines", of our services or of vLLM."""
    named = (
        re.findall(r"\b(?:semspec_(?:engine|verifier)_|vllm:)\w+", one) for one in expressions()
    )
    return {
        name
        for names in named
        for name in names
        if name.startswith(prefix) and "spec_decode" not in name
    }


def busy() -> Metrics:
    """Everything counted at least once."""
    metrics = Metrics()
    metrics.of_services.up(dict.fromkeys(SERVICES, True))
    metrics.capacity.set(32)
    metrics.in_flight.inc()
    metrics.request("POST", "/v1/completions", 200, 1.0)
    metrics.refusals.labels("overloaded").inc()
    metrics.queue_wait_seconds.observe(0.5)
    metrics.redis_failures.labels("append").inc()
    metrics.prompt_tokens.inc(3)
    metrics.first_segment("semantic", 0.5)
    metrics.first_token("pair", 0.5)
    metrics.generation("semantic", "finished", 2.0)
    metrics.fallbacks.inc()
    metrics.degraded_generations.inc()
    for record in (ACCEPTED, REWRITTEN, PROPOSED):
        metrics.segment(record)
    metrics.load.measured(8, drafting=20.0, target=20.0)
    metrics.audit.judged("", True, 0.9, 0.9, 0.0)
    metrics.audit.tested("", 1.0, False)
    metrics.audit.ratio_drift.labels("")
    metrics.audit.skipped.labels("failed")
    return metrics


@pytest.fixture(scope="module")
def samples() -> dict[str, set[str]]:
    """The labels of every sample the gateway exposes, by its name, and of those that services do."""
    families = text_string_to_metric_families(busy().exposition().decode())
    exposed = {sample.name: set(sample.labels) for family in families for sample in family.samples}
    return exposed | SCRAPED | {name: {"le"} for name in asked_of_services("")}


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_expression_asks_for_metrics_and_labels_there_are(
    expression: str, samples: dict[str, set[str]]
) -> None:
    names = set(re.findall(r"\b(?:semspec_\w+|vllm:\w+|up)\b", expression))
    assert names and names <= set(samples)
    labels = set.union({"job", "instance", "namespace"}, *(samples[name] for name in names))
    grouped = {
        label.strip()
        for group in re.findall(r"by \(([^)]*)\)", expression)
        for label in group.split(",")
    }
    chosen = set(re.findall(r"[{,]\s*(\w+)\s*(?:=~?|!=|!~)", expression))
    assert grouped | chosen <= labels


def test_prometheus_scrapes_the_gateway_by_the_name_the_alerts_use_and_the_services_of_compose() -> (
    None
):
    config = yaml.safe_load((MONITORING / "prometheus" / "prometheus.yml").read_text())
    gateways, services = config["scrape_configs"]
    assert config["rule_files"] == ["alerts.yml"] and gateways["metrics_path"] == "/metrics"
    assert any(f'up{{job="{gateways["job_name"]}"}}' in rule["expr"] for rule in alert_rules())
    [found] = services["dns_sd_configs"]
    composed = yaml.safe_load(COMPOSE.read_text())["services"]
    ports = {composed[name]["environment"]["SEMSPEC_METRICS_PORT"] for name in found["names"]}
    assert found["names"] == ["draft", "target", "verifier"] and ports == {str(found["port"])}


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
