"""What the gateway is told, and tells, of several replicas."""

from dataclasses import dataclass

import pytest
from pydantic import ValidationError

from semspec.gateway.metrics import POOLED, Metrics
from semspec.gateway.settings import GatewaySettings

pytestmark = pytest.mark.slow


@dataclass
class Counts:
    """A pool."""

    num_replicas: int
    num_in_flight: int
    num_hung: int
    num_whole_states: int = 0


def test_gauges_follow_the_pools() -> None:
    metrics, counts = Metrics(), Counts(2, 5, 1)
    metrics.of_services.replicas("target", counts)
    assert 'semspec_gateway_service_replicas{service="target"} 2.0' in metrics.exposition().decode()
    counts.num_replicas = 1
    exposed = metrics.exposition().decode()
    assert 'semspec_gateway_service_replicas{service="target"} 1.0' in exposed
    assert 'semspec_gateway_service_hung_replicas{service="target"} 1.0' in exposed
    assert 'semspec_gateway_service_calls_in_flight{service="target"} 5.0' in exposed


@pytest.mark.parametrize("service", POOLED)
def test_address_lists_are_checked(service: str) -> None:
    field = f"{service}_address"
    good = {field: "a:1,b:1, [::1]:2,unix:/run/a.sock", "auth": "none"}
    assert getattr(GatewaySettings.model_validate(good), field) == good[field]
    with pytest.raises(ValidationError, match="'b' is no address: write host:port"):
        GatewaySettings.model_validate({field: "a:1,b", "auth": "none"})
