"""Who may talk to whom, as the NetworkPolicies say it."""

from collections.abc import Iterator
from itertools import permutations
from typing import Any

from semspec.gateway.settings import GatewaySettings
from tests.manifests.environment import settings_of
from tests.manifests.kustomize import Manifest, Objects
from tests.manifests.objects import Pod, name_of, named, of_kind, pod, pods, selected

CALLED = ("draft", "target", "verifier", "redis")
RULES = {"Ingress": ("ingress", "from"), "Egress": ("egress", "to")}
DNS = 53
EVERYWHERE = {"0.0.0.0/0", "::/0"}


def check_policies(objects: Objects) -> Iterator[str]:
    """Pods without a wall in either direction, policies of no pod or of one family of addresses, ports of nobody."""
    policies = of_kind(objects, "NetworkPolicy")
    walls = [policy for policy in policies if not policy["spec"]["podSelector"] and not _opens(policy)]
    if not any(set(wall["spec"]["policyTypes"]) == set(RULES) for wall in walls):
        yield "no NetworkPolicy denies what the others do not allow"
    for policy in policies:
        if not selected(objects, policy["spec"]["podSelector"]):
            yield f"{name_of(policy)}: of no pod"
        yield from _unknown_ports(objects, policy)
        yield from _of_one_family(policy)


def _opens(policy: Manifest) -> bool:
    return any(policy["spec"].get(rules) for rules, _ in RULES.values())


def _of_one_family(policy: Manifest) -> Iterator[str]:
    """Ways out to every address of IPv4 that are none of IPv6, or the other way round."""
    for rule in policy["spec"].get("egress", ()):
        blocks = {peer["ipBlock"]["cidr"] for peer in rule["to"] if "ipBlock" in peer} & EVERYWHERE
        if blocks and blocks != EVERYWHERE:
            yield f"{name_of(policy)}: leads to {blocks} alone"


def _unknown_ports(objects: Objects, policy: Manifest) -> Iterator[str]:
    """Ports that are open at no pod the rule speaks of."""
    for rule in policy["spec"].get("ingress", ()):
        yield from _unknown(policy, rule, selected(objects, policy["spec"]["podSelector"]))
    for rule in policy["spec"].get("egress", ()):
        peers = [peer for peer in rule["to"] if "namespaceSelector" not in peer and "podSelector" in peer]
        for peer in peers:
            yield from _unknown(policy, rule, selected(objects, peer["podSelector"]))


def _unknown(policy: Manifest, rule: Manifest, others: list[Pod]) -> Iterator[str]:
    ports = {port for one in others for port in one.ports.values()}
    for port in rule["ports"]:
        if port["port"] not in ports:
            yield f"{name_of(policy)}: nobody there listens on {port['port']}"


def check_ways(objects: Objects) -> Iterator[str]:
    """Pods that must talk and cannot, or can and need not; addresses that no Service has."""
    for caller, called in permutations((one for one in pods(objects) if one.is_served), 2):
        needed = caller.name == "gateway" and called.name in CALLED
        open_ports = {port for port in called.ports.values() if may_call(objects, caller, called, port)}
        if needed and open_ports != set(called.ports.values()):
            yield f"{caller} cannot reach {called}"
        if not needed and open_ports:
            yield f"{caller} can reach {called}, and has nothing to say to it"
    for one in pods(objects):
        if not _allowed(objects, one, "Egress", None, DNS):
            yield f"{one} cannot look up names"
    yield from _unknown_addresses(objects)


def may_call(objects: Objects, caller: Pod, called: Pod, port: int) -> bool:
    """Whether the caller may send this and the called one receive it."""
    return _allowed(objects, caller, "Egress", called, port) and _allowed(objects, called, "Ingress", caller, port)


def _allowed(objects: Objects, one: Pod, direction: str, other: Pod | None, port: int) -> bool:
    """`other` None: whoever serves names, in another namespace."""
    rules, peers = RULES[direction]
    for policy in of_kind(objects, "NetworkPolicy"):
        if one in selected(objects, policy["spec"]["podSelector"]):
            for rule in policy["spec"].get(rules, ()):
                is_peer = peers not in rule or any(_is_peer(objects, peer, other) for peer in rule[peers])
                if is_peer and port in {port["port"] for port in rule["ports"]}:
                    return True
    return False


def _is_peer(objects: Objects, peer: dict[str, Any], other: Pod | None) -> bool:
    if other is None:
        return "namespaceSelector" in peer
    return "namespaceSelector" not in peer and "podSelector" in peer and other in selected(objects, peer["podSelector"])


def _unknown_addresses(objects: Objects) -> Iterator[str]:
    try:
        settings = settings_of(objects, pod(objects, "gateway"))
    except (KeyError, ValueError):
        return  # check_environment says so
    assert isinstance(settings, GatewaySettings)
    services = named(objects, "Service")
    for address in (settings.draft_address, settings.target_address, settings.verifier_address):
        host, _, port = address.partition(":")
        if host not in services or int(port) not in {one["port"] for one in services[host]["spec"]["ports"]}:
            yield f"the gateway calls {address}, which no Service is"
