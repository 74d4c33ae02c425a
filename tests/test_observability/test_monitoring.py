"""The dashboard and the alerts ask for what the gateway tells."""

import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from semspec.gateway.api.shared.middleware import _POLLED
from semspec.gateway.metrics import SERVICES, Metrics
from tests.test_observability.records import ACCEPTED, PROPOSED, REWRITTEN

MONITORING = Path(__file__).resolve().parents[2] / "deploy" / "monitoring"
DASHBOARD = json.loads((MONITORING / "grafana" / "semspec.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
ALERTS = yaml.safe_load((MONITORING / "prometheus" / "alerts.yml").read_text())
SCRAPED = {"up": {"job", "instance"}}
"""Prometheus' own metric; the labels it gives to every other one are `job` and `instance`, too."""

Json = dict[str, Any]


def alert_rules() -> list[Json]:
    return [rule for group in ALERTS["groups"] for rule in group["rules"]]


def expressions() -> Iterator[str]:
    yield from (target["expr"] for panel in PANELS for target in panel["targets"])
    yield from (rule["expr"] for rule in alert_rules())


def busy() -> Metrics:
    """Everything counted at least once."""
    metrics = Metrics()
    metrics.of_services.up(dict.fromkeys(SERVICES, True))
    metrics.capacity(32)
    metrics.in_flight.inc()
    metrics.request("POST", "/v1/completions", 200, 1.0)
    metrics.refusal("overloaded")
    metrics.queue_wait(0.5)
    metrics.redis_failure("append")
    metrics.prompt(3)
    metrics.first_segment("semantic", 0.5)
    metrics.generation("semantic", "finished", 2.0)
    metrics.fallback()
    metrics.degraded()
    for record in (ACCEPTED, REWRITTEN, PROPOSED):
        metrics.segment(record)
    metrics.audit.judged(True, 0.9, 0.9, 0.0)
    metrics.audit.tested(1.0, False)
    metrics.audit.skipped("failed")
    metrics.collected("listed")
    return metrics


@pytest.fixture(scope="module")
def samples() -> dict[str, set[str]]:
    """The labels of every sample the gateway exposes, by its name."""
    families = text_string_to_metric_families(busy().exposition().decode())
    exposed = {sample.name: set(sample.labels) for family in families for sample in family.samples}
    return exposed | SCRAPED


def test_every_metric_has_help_and_a_unit_where_it_measures() -> None:
    for family in text_string_to_metric_families(busy().exposition().decode()):
        assert family.documentation.endswith("."), family.name
        if family.type == "histogram":
            assert family.name.endswith("_seconds")
        if family.type == "counter":
            assert not re.search(r"_(ms|seconds|bytes)$", family.name), "a unit of no counter here"


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_expression_asks_for_metrics_and_labels_there_are(expression: str, samples: dict[str, set[str]]) -> None:
    names = set(re.findall(r"\b(?:semspec_gateway_\w+|vllm:\w+|up)\b", expression))
    assert names and names <= set(samples)
    labels = set.union({"job", "instance"}, *(samples[name] for name in names))
    grouped = {label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")}
    chosen = set(re.findall(r"[{,]\s*(\w+)\s*(?:=~?|!=|!~)", expression))
    assert grouped | chosen <= labels


@pytest.mark.parametrize("expression", sorted(one for one in set(expressions()) if "semspec_gateway_request" in one))
def test_requests_that_are_counted_are_not_those_of_probes(expression: str) -> None:
    asked = re.findall(r"semspec_gateway_request\w+\{([^}]*)\}", expression)
    assert len(asked) == expression.count("semspec_gateway_request")
    assert all(f'route!~"{"|".join(_POLLED)}"' in chosen for chosen in asked)


def test_every_family_but_creation_times_is_on_the_dashboard_or_in_an_alert(samples: dict[str, set[str]]) -> None:
    asked = " ".join(expressions())
    unseen = {name for name in samples if not name.endswith(("_created", "_bucket", "_sum", "_count"))}
    assert {name for name in unseen if name not in asked} == {
        "semspec_gateway_prompt_tokens_total",  # what clients send
        "semspec_gateway_segment_rejections_total",  # the same as the verdict `rewritten`
    }


def test_panels_have_units_and_the_datasource_of_the_reader() -> None:
    for panel in PANELS:
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)
    [variable] = DASHBOARD["templating"]["list"]
    assert (variable["name"], variable["type"], variable["query"]) == ("datasource", "datasource", "prometheus")


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in combinations((panel["gridPos"] for panel in panels), 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


def test_alerts_say_what_is_wrong_and_what_to_do() -> None:
    names = [rule["alert"] for rule in alert_rules()]
    assert len(set(names)) == len(names)
    for rule in alert_rules():
        assert rule["labels"]["severity"] in ("warning", "critical") and rule["for"]
        assert all(rule["annotations"][part].endswith(".") for part in ("summary", "description"))


def test_prometheus_scrapes_the_gateway_by_the_name_the_alerts_use() -> None:
    config = yaml.safe_load((MONITORING / "prometheus" / "prometheus.yml").read_text())
    [job] = config["scrape_configs"]
    assert config["rule_files"] == ["alerts.yml"] and job["metrics_path"] == "/metrics"
    assert any(f'up{{job="{job["job_name"]}"}}' in rule["expr"] for rule in alert_rules())
