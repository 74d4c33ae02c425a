"""Does everything that a manifest names exist, and mean what the other side means?"""

from collections.abc import Iterator

from tests.manifests.environment import SECRETS, certificates
from tests.manifests.kustomize import Manifest, Objects
from tests.manifests.objects import Pod, bytes_of, mounts, name_of, named, of_kind, pods, references, selected, volumes

SELECTING = ("Service", "PodDisruptionBudget", "PodMonitor")


def check_selectors(objects: Objects) -> Iterator[str]:
    """Selectors that take no pod, or not the one they are named after."""
    for one in pods(objects):
        selector = one.owner["spec"].get("selector", {"matchLabels": one.labels})
        if selected([one.owner], selector) != [one]:
            yield f"{one}: its selector misses its own pods"
        for spread in one.spec.get("topologySpreadConstraints", ()):
            if selected(objects, spread["labelSelector"]) != [one]:
                yield f"{one}: spreads other pods than its own"
    for manifest in of_kind(objects, *SELECTING):
        selector = manifest["spec"]["selector"]
        taken = selected(objects, {"matchLabels": selector} if manifest["kind"] == "Service" else selector)
        if [one.name for one in taken] != [manifest["metadata"]["name"]]:
            yield f"{name_of(manifest)}: selects {[one.name for one in taken]}"


def check_ports(objects: Objects) -> Iterator[str]:
    """Ports of Services and monitors that no container has."""
    for service in of_kind(objects, "Service"):
        for one in selected(objects, {"matchLabels": service["spec"]["selector"]}):
            for port in service["spec"]["ports"]:
                if one.ports.get(port["targetPort"]) != port["port"]:
                    yield f"{name_of(service)}: port {port['port']} is not the {port['targetPort']} of {one}"
    for monitor in of_kind(objects, "PodMonitor"):
        known = {name for one in selected(objects, monitor["spec"]["selector"]) for name in one.ports}
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            if endpoint["port"] not in known:
                yield f"{name_of(monitor)}: no port {endpoint['port']!r}"


def check_mounts(objects: Objects) -> Iterator[str]:
    """Mounts without a volume, volumes without a mount, and two mounts in one place."""
    for one in pods(objects):
        mounted = {name for container in one.containers for name in mounts(container).values()}
        for volume in sorted(mounted ^ volumes(one).keys()):
            yield f"{one}: {volume} is not both a volume and a mount"
        for container in one.containers:
            if len(mounts(container)) != len(container.get("volumeMounts", ())):
                yield f"{one}: two mounts in one place"


def check_sources(objects: Objects) -> Iterator[str]:
    """ConfigMaps, claims, accounts and keys of Secrets that nobody makes, and ConfigMaps that nobody uses."""
    for one in pods(objects):
        for kind, names in _used(one).items():
            yield from (f"{one}: there is no {kind} {name}" for name in sorted(names - named(objects, kind).keys()))
    used = set[str]().union(*(_used(one)["ConfigMap"] for one in pods(objects)))
    for name, config in named(objects, "ConfigMap").items():
        if name not in used and "grafana_dashboard" not in config["metadata"]["labels"]:
            yield f"ConfigMap/{name}: nobody uses it"
    secrets = _secrets(objects)
    for manifest in objects:
        for secret, key in _used_secrets(manifest):
            if key not in secrets.get(secret, ()):
                yield f"{name_of(manifest)}: nobody makes the Secret {secret} with {key}"


def _used(one: Pod) -> dict[str, set[str]]:
    """What a pod refers to: names by kind."""
    configs = references(one.spec, "configMapRef", "configMapKeyRef", "configMap")
    return {
        "ConfigMap": {found["name"] for found in configs},
        "PersistentVolumeClaim": {found["claimName"] for found in references(one.spec, "persistentVolumeClaim")},
        "ServiceAccount": {one.spec.get("serviceAccountName", "default")},
    }


def _secrets(objects: Objects) -> dict[str, set[str]]:
    """Keys by name: those of the guide, and those that cert-manager writes."""
    issued = {one["spec"]["secretName"]: set(certificates()) for one in of_kind(objects, "Certificate")}
    return {name: set(keys) for name, keys in SECRETS.items()} | issued


def _used_secrets(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Name and key; of a volume, which has all keys, the one that every Secret of its kind has."""
    for found in references(manifest, "secretKeyRef", "credentials", "secret"):
        name = found.get("name") or found["secretName"]
        yield name, found.get("key") or ("api-keys" if name == "api-keys" else "tls.crt")


def check_scale_targets(objects: Objects) -> Iterator[str]:
    """Autoscalers of nothing, of one thing twice, and of a workload that says its own number."""
    targets = []
    for scaler in of_kind(objects, "ScaledObject", "HorizontalPodAutoscaler"):
        name = scaler["spec"]["scaleTargetRef"]["name"]
        targets.append(name)
        workload = named(objects, "Deployment").get(name)
        if workload is None:
            yield f"{name_of(scaler)}: there is no Deployment {name}"
        elif "replicas" in workload["spec"]:
            yield f"{name_of(scaler)}: {name} says its own replicas, and would be reset to them"
    if len(set(targets)) < len(targets):
        yield f"two autoscalers of one Deployment: {targets}"


def check_memory(objects: Objects) -> Iterator[str]:
    """Volumes in memory that do not fit into the limit of their pod."""
    for one in pods(objects):
        limit = sum(bytes_of(container["resources"]["limits"]["memory"]) for container in one.spec["containers"])
        for volume in volumes(one).values():
            medium = volume.get("emptyDir", {})
            if medium.get("medium") == "Memory" and 2 * bytes_of(medium["sizeLimit"]) > limit:
                yield f"{one}: its volume in memory may take more than half of {limit} bytes"
