"""What other controllers read: KEDA's, cert-manager's and Prometheus' own kinds, of which Kubernetes has no schema."""

import re
from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families

from semspec.gateway.metrics import Metrics
from semspec.gateway.settings import GatewaySettings
from tests.manifests.environment import settings_of
from tests.manifests.kustomize import ROOT, Objects
from tests.manifests.objects import name_of, named, of_kind, pod

OWN_KINDS = {"Certificate", "Issuer", "PodMonitor", "PrometheusRule", "ScaledObject"}
ALERTS = ROOT / "deploy" / "monitoring" / "prometheus" / "alerts.yml"


def check_scalers(objects: Objects) -> Iterator[str]:
    """Triggers that ask for metrics there are none of, take silence for idleness, or wait for what cannot be."""
    exposed = {family.name for family in text_string_to_metric_families(Metrics().exposition().decode())}
    for scaler in of_kind(objects, "ScaledObject"):
        fallback = scaler["spec"].get("fallback", {})
        wanted = {"behavior": "currentReplicasIfHigher", "replicas": scaler["spec"]["minReplicaCount"]}
        if not wanted.items() <= fallback.items():
            yield f"{name_of(scaler)}: goes to some number when Prometheus is away"
        for trigger in scaler["spec"]["triggers"]:
            metadata = trigger["metadata"]
            asked = set(re.findall(r"\bsemspec_gateway_\w+", metadata["query"]))
            if "semspec_gateway_queue_depth" not in asked or not asked <= exposed:
                yield f"{name_of(scaler)}: asks for {sorted(asked)}"
            if metadata.get("ignoreNullValues") != "false" or float(metadata["threshold"]) <= 0:
                yield f"{name_of(scaler)}: takes silence for idleness"
            if scaler["metadata"]["name"] == "gateway" and float(metadata["threshold"]) >= _rooms(objects):
                yield f"{name_of(scaler)}: a gateway is full before another one is asked for"
            services = set(re.findall(r'service="(\w+)"', metadata["query"]))
            if services - {scaler["metadata"]["name"]}:
                yield f"{name_of(scaler)}: scales by the load of {services}"
            namespaces = set(re.findall(r'namespace="(\w+)"', metadata["query"]))
            if namespaces != {scaler["metadata"]["namespace"]}:
                yield f"{name_of(scaler)}: counts in {namespaces}"


def _rooms(objects: Objects) -> int:
    """Generations that a gateway takes at once."""
    settings = settings_of(objects, pod(objects, "gateway"))
    assert isinstance(settings, GatewaySettings)
    return settings.max_concurrent


def check_certificates(objects: Objects) -> Iterator[str]:
    """Certificates of unknown authorities, for names that nobody calls, and for uses they do not have."""
    certificates, issuers = named(objects, "Certificate"), named(objects, "Issuer")
    if not certificates:
        return
    for name, certificate in certificates.items():
        if certificate["spec"]["issuerRef"]["name"] not in issuers:
            yield f"Certificate/{name}: nobody issues it"
    settings = settings_of(objects, pod(objects, "gateway"))
    assert isinstance(settings, GatewaySettings)
    for address in (settings.draft_address, settings.target_address, settings.verifier_address):
        host = address.partition(":")[0]
        spec = certificates.get(host, {}).get("spec", {})
        if not {host, "localhost"} <= set(spec.get("dnsNames", ())):
            yield f"Certificate/{host}: is not for {host} and localhost"
        if not {"server auth", "client auth"} <= set(spec.get("usages", ())):
            yield f"Certificate/{host}: cannot serve, and ask for its own health"
    if "client auth" not in certificates["gateway-client"]["spec"]["usages"]:
        yield "Certificate/gateway-client: cannot ask the services"


def check_monitors(objects: Objects) -> Iterator[str]:
    """Scrapes without a key or without TLS where the gateway wants it."""
    for monitor in of_kind(objects, "PodMonitor"):
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            if endpoint["path"] != "/metrics" or "credentials" not in endpoint.get("authorization", {}):
                yield f"{name_of(monitor)}: brings no API key"
            if (endpoint.get("scheme") == "https") != bool(of_kind(objects, "Certificate")):
                yield f"{name_of(monitor)}: speaks {endpoint.get('scheme', 'http')}"
            job = [rule["replacement"] for rule in endpoint["relabelings"] if rule["targetLabel"] == "job"]
            if not any(f'job="{name}"' in ALERTS.read_text() for name in job):
                yield f"{name_of(monitor)}: its job {job} is not the alerts'"
