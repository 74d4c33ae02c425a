"""The gateway of tests/gateway, to be asked by those who mean it no good."""

from tests.gateway.conftest import gateway, redis, redis_url, start_gateway

__all__ = ["gateway", "redis", "redis_url", "start_gateway"]
