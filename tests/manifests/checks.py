"""Every check: from the manifests of a build to what is wrong with them, in words."""

from tests.manifests import custom, environment, lifecycle, network, policy, references
from tests.manifests.kustomize import Objects

MODULES = (environment, lifecycle, references, network, policy, custom)


def problems(objects: Objects) -> list[str]:
    """What the functions `check_*` find."""
    checks = [found for module in MODULES for name, found in vars(module).items() if name.startswith("check_")]
    return [problem for check in checks for problem in check(objects)]
