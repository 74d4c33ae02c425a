"""What other controllers read: KEDA's, cert-manager's and Prometheus' own kinds, of which Kubernetes has no schema."""

import re

from prometheus_client.parser import text_string_to_metric_families

from semspec_gateway.metrics import Metrics
from semspec_gateway.settings import GatewaySettings
from tests.manifests import network
from tests.manifests.environment import settings_of
from tests.manifests.kustomize import ROOT, Objects
from tests.manifests.objects import name_of, named, of_kind, pod

OWN_KINDS = {"Certificate", "Issuer", "PodMonitor", "PrometheusRule", "ScaledObject"}
ALERTS = ROOT / "deploy" / "monitoring" / "prometheus" / "alerts.yml"


def check_scalers(objects: Objects) -> None:
    """Triggers ask for metrics that there are, of their own service, do not take silence for idleness, and scale out
    before a gateway is full."""
    exposed = {
        family.name for family in text_string_to_metric_families(Metrics().exposition().decode())
    }
    settings = settings_of(objects, pod(objects, "gateway"))
    assert isinstance(settings, GatewaySettings)
    for scaler in of_kind(objects, "ScaledObject"):
        spec, name = scaler["spec"], scaler["metadata"]["name"]
        wanted = {"behavior": "currentReplicasIfHigher", "replicas": spec["minReplicaCount"]}
        assert wanted.items() <= spec["fallback"].items(), f"{name}: has a bad fallback"
        for trigger in spec["triggers"]:
            metadata = trigger["metadata"]
            query, threshold = metadata["query"], float(metadata["threshold"])
            asked = set(re.findall(r"\bsemspec_gateway_\w+", query))
            assert "semspec_gateway_queue_depth" in asked
            assert asked <= exposed, f"{name}: asks for {sorted(asked)}"
            assert metadata["ignoreNullValues"] == "false"
            assert threshold > 0, f"{name}: takes silence for idleness"
            assert name != "gateway" or threshold < settings.max_concurrent, "full too early"
            assert set(re.findall(r'service="(\w+)"', query)) <= {name}, name
            assert set(re.findall(r'namespace="(\w+)"', query)) == {
                scaler["metadata"]["namespace"]
            }, name


def check_certificates(objects: Objects) -> None:
    """Certificates are of known authorities, for the names that are called and for the uses that they have."""
    certificates, issuers = named(objects, "Certificate"), named(objects, "Issuer")
    if not certificates:
        return
    for name, certificate in certificates.items():
        assert certificate["spec"]["issuerRef"]["name"] in issuers, f"{name}: has no issuer"
    settings = settings_of(objects, pod(objects, "gateway"))
    assert isinstance(settings, GatewaySettings)
    for address in (settings.draft_address, settings.target_address, settings.verifier_address):
        host = address.partition(":")[0]
        spec = certificates[host]["spec"]
        assert {host, "localhost"} <= set(spec["dnsNames"]), f"{host}: has other names"
        assert {"server auth", "client auth"} <= set(spec["usages"]), f"{host}: has other uses"
    assert "client auth" in certificates["gateway-client"]["spec"]["usages"]


def check_monitors(objects: Objects) -> None:
    """Scrapes reach their ports, with TLS where there is any, and for gateways a key and the job that alerts name."""
    for monitor in of_kind(objects, "PodMonitor"):
        one = pod(objects, monitor["metadata"]["name"])
        is_gateway = monitor["metadata"]["name"] == "gateway"
        [endpoint] = monitor["spec"]["podMetricsEndpoints"]
        port, [rule] = one.ports[endpoint["port"]], endpoint["relabelings"]
        assert endpoint["path"] == "/metrics"
        assert ("authorization" in endpoint) == is_gateway, name_of(monitor)
        assert (endpoint.get("scheme") == "https") == bool(of_kind(objects, "Certificate")), (
            name_of(monitor)
        )
        assert rule == {"targetLabel": "job", "replacement": f"semspec-{one.name}"}, name_of(
            monitor
        )
        assert not is_gateway or f'job="{rule["replacement"]}"' in ALERTS.read_text()
        assert network.is_allowed(objects, one, "Ingress", None, port), name_of(monitor)


NGINX = "nginx.ingress.kubernetes.io/"


def check_ingresses(objects: Objects) -> None:
    """Ingresses reach the gateway's port by the protocol that it speaks, and trust its certificate's authority."""
    gateway = pod(objects, "gateway")
    settings, services = settings_of(objects, gateway), named(objects, "Service")
    assert isinstance(settings, GatewaySettings)
    for ingress in of_kind(objects, "Ingress"):
        name, metadata, spec = name_of(ingress), ingress["metadata"], ingress["spec"]
        options = {key.removeprefix(NGINX): value for key, value in metadata["annotations"].items()}
        [backend] = [
            path["backend"]["service"] for rule in spec["rules"] for path in rule["http"]["paths"]
        ]
        ports = {port["name"]: port["port"] for port in services[backend["name"]]["spec"]["ports"]}
        port = ports[backend["port"]["name"]]
        assert network.is_allowed(objects, gateway, "Ingress", None, port), f"{name}: is blocked"
        assert spec["tls"][0]["hosts"] == [rule["host"] for rule in spec["rules"]], name
        assert int(options["proxy-body-size"].removesuffix("m")) << 20 >= settings.max_body_bytes, (
            name
        )
        protocol = "HTTPS" if settings.tls_certificate else "HTTP"
        assert options.get("backend-protocol", "HTTP") == protocol, f"{name}: not {protocol}"
        if settings.tls_certificate:
            certificate = named(objects, "Certificate")["gateway"]["spec"]
            secret = f"{metadata['namespace']}/{certificate['secretName']}"
            assert options["proxy-ssl-secret"] == secret
            assert options["proxy-ssl-verify"] == "on", name
            assert options["proxy-ssl-name"] in certificate["dnsNames"], name
