"""What docs/kubernetes.md tells its reader to do works, and what it says of numbers is so."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.manifests.checks import check
from tests.manifests.environment import SECRETS
from tests.manifests.kustomize import KUBERNETES, ROOT, built_in, has_tool
from tests.manifests.objects import pods

pytestmark = pytest.mark.slow
GUIDE = (ROOT / "docs" / "kubernetes.md").read_text()
wants_tool = pytest.mark.skipif(not has_tool(), reason="neither kubectl nor kustomize is installed")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE, flags=re.MULTILINE | re.DOTALL)


def test_secrets_are_those_that_the_manifests_refer_to() -> None:
    commands = (
        shlex.split(line, comments=True) for block in blocks("sh") for line in block.splitlines()
    )
    created = [words for words in commands if words[3:6] == ["create", "secret", "generic"]]
    keys = {
        words[6]: {words[7].removeprefix("--from-literal=").partition("=")[0]} for words in created
    }
    assert keys == {name: set(values) for name, values in SECRETS.items()}


@wants_tool
def test_kustomization_of_ones_own_builds(tmp_path: Path) -> None:
    [text] = [block for block in blocks("yaml") if "components:" in block]
    content: dict[str, Any] = yaml.safe_load(text)
    for kind in ("resources", "components"):
        content[kind] = [ROOT / path for path in content[kind]]
    objects = built_in(tmp_path, content)
    check(objects)
    assert any(one.main["image"].endswith("semspec-gateway@sha256:...") for one in pods(objects))


@wants_tool
def test_namespace_can_be_another(tmp_path: Path) -> None:
    check(
        built_in(
            tmp_path, {"namespace": "other", "resources": [KUBERNETES / "overlays" / "two-gpu"]}
        )
    )
