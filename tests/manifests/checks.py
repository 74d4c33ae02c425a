"""Every check: from the manifests of a build to what is wrong with them, in words."""

from collections.abc import Callable, Iterable

from tests.manifests import custom, environment, lifecycle, network, policy, references
from tests.manifests.kustomize import Objects

Check = Callable[[Objects], Iterable[str]]

CHECKS: tuple[Check, ...] = (
    environment.check_environment,
    lifecycle.check_lifecycle,
    references.check_selectors,
    references.check_ports,
    references.check_mounts,
    references.check_sources,
    references.check_scale_targets,
    references.check_memory,
    network.check_policies,
    network.check_ways,
    policy.check_confinement,
    policy.check_accounts,
    policy.check_resources,
    policy.check_images,
    policy.check_secrets,
    policy.check_disruptions,
    policy.check_rollout,
    policy.check_namespace,
    policy.check_discovery,
    policy.check_autoscaling,
    policy.check_writable,
    custom.check_scalers,
    custom.check_certificates,
    custom.check_monitors,
)


def problems(objects: Objects) -> list[str]:
    """What all checks together find."""
    return [problem for check in CHECKS for problem in check(objects)]
