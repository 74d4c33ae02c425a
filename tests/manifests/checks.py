"""Every check of the manifests of a build."""

from tests.manifests import custom, environment, lifecycle, network, policy, references
from tests.manifests.kustomize import Objects

MODULES = (environment, lifecycle, references, network, policy, custom)


def check(objects: Objects) -> None:
    """Raises: what the functions `check_*` raise, mostly AssertionError."""
    for module in MODULES:
        for function in [
            found for name, found in vars(module).items() if name.startswith("check_")
        ]:
            function(objects)
