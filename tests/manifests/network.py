"""Who may talk to whom, as the NetworkPolicies say it."""

from itertools import permutations
from typing import Any

from semspec_gateway.settings import GatewaySettings
from tests.manifests.environment import settings_of
from tests.manifests.kustomize import Manifest, Objects
from tests.manifests.objects import Pod, name_of, named, of_kind, pod, pods, selected

CALLED = ("draft", "target", "verifier", "redis")
RULES = {"Ingress": ("ingress", "from"), "Egress": ("egress", "to")}
DNS = 53
EVERYWHERE = {"0.0.0.0/0", "::/0"}


def check_policies(objects: Objects) -> None:
    """All that no policy allows is denied, each policy is of some pod, and leads to ports that are open there."""
    policies = of_kind(objects, "NetworkPolicy")
    walls = [policy["spec"] for policy in policies if not policy["spec"]["podSelector"]]
    closed = [wall for wall in walls if not wall.get("ingress") and not wall.get("egress")]
    assert any(set(wall["policyTypes"]) == set(RULES) for wall in closed), "no default denial"
    for policy in policies:
        spec, name = policy["spec"], name_of(policy)
        own = selected(objects, spec["podSelector"])
        assert own, f"{name}: of no pod"
        for rule in spec.get("ingress", ()):
            _check_open(name, rule, own)
        for rule in spec.get("egress", ()):
            for peer in rule["to"]:
                if "namespaceSelector" not in peer and "podSelector" in peer:
                    _check_open(name, rule, selected(objects, peer["podSelector"]))
            blocks = {
                peer["ipBlock"]["cidr"] for peer in rule["to"] if "ipBlock" in peer
            } & EVERYWHERE
            assert blocks in (set(), EVERYWHERE), f"{name}: leads to {blocks} only"


def _check_open(name: str, rule: Manifest, others: list[Pod]) -> None:
    ports = {port for one in others for port in one.ports.values()}
    assert {port["port"] for port in rule["ports"]} <= ports, f"{name}: no {rule['ports']} there"


def check_ways(objects: Objects) -> None:
    """Pods that must talk can, others cannot; and the gateway's addresses are those of Services."""
    for caller, called in permutations((one for one in pods(objects) if one.is_served), 2):
        served = {port for name, port in called.ports.items() if name != "metrics"}
        needed = served if caller.name == "gateway" and called.name in CALLED else set()
        assert {
            port for port in called.ports.values() if may_call(objects, caller, called, port)
        } == needed, f"{caller} reaches too much or too little of {called}"
    for one in pods(objects):
        assert is_allowed(objects, one, "Egress", None, DNS), f"{one} cannot look up names"
    settings, services = settings_of(objects, pod(objects, "gateway")), named(objects, "Service")
    assert isinstance(settings, GatewaySettings)
    for address in (settings.draft_address, settings.target_address, settings.verifier_address):
        host, _, port = address.partition(":")
        assert int(port) in {one["port"] for one in services[host]["spec"]["ports"]}, address


def may_call(objects: Objects, caller: Pod, called: Pod, port: int) -> bool:
    """Whether the caller may send this and the called one receive it."""
    return is_allowed(objects, caller, "Egress", called, port) and is_allowed(
        objects, called, "Ingress", caller, port
    )


def is_allowed(objects: Objects, one: Pod, direction: str, other: Pod | None, port: int) -> bool:
    """`other` None: whoever serves names, in another namespace."""
    rules, peers = RULES[direction]
    for policy in of_kind(objects, "NetworkPolicy"):
        if one in selected(objects, policy["spec"]["podSelector"]):
            for rule in policy["spec"].get(rules, ()):
                is_peer = peers not in rule or any(
                    _is_peer(objects, peer, other) for peer in rule[peers]
                )
                if is_peer and port in {port["port"] for port in rule["ports"]}:
                    return True
    return False


def _is_peer(objects: Objects, peer: dict[str, Any], other: Pod | None) -> bool:
    if other is None:
        return "namespaceSelector" in peer
    return (
        "namespaceSelector" not in peer
        and "podSelector" in peer
        and other in selected(objects, peer["podSelector"])
    )
