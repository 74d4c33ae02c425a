"""A container's environment as the kubelet makes it, and the settings that its process makes of that."""

import contextlib
import io
import os
import re
import shutil
import tempfile
from functools import cache
from pathlib import Path
from unittest.mock import patch

import trustme

from semspec.settings import ServiceSettings, load_settings
from semspec.stack import BUNDLED_PAIR
from semspec_gateway.settings import GatewaySettings
from tests.compose.support import SETTINGS
from tests.manifests.kustomize import Manifest, Objects
from tests.manifests.objects import Pod, mounts, named, pods

SECRETS = {
    "api-keys": {"api-keys": f"alice:{'0' * 64}"},
    "service-token": {"token": "0" * 64},
    "redis": {"password": "0" * 64},
    "redis-external": {"url": "rediss://:secret@redis.example.com:6380/0"},
    "metrics-api-key": {"api-key": "sk-metrics"},
    "hub": {"token": "hf_token"},
}
"""What the guide has its reader create, with values to try."""


def environment(objects: Objects, container: Manifest) -> dict[str, str]:
    """Its variables, references resolved. Raises: KeyError when something is referred to that is not there."""
    found: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        found |= named(objects, "ConfigMap")[source["configMapRef"]["name"]]["data"]
    for entry in container.get("env", ()):
        if secret := entry.get("valueFrom", {}).get("secretKeyRef"):
            found[entry["name"]] = SECRETS[secret["name"]][secret["key"]]
        else:
            found[entry["name"]] = re.sub(
                r"\$\((\w+)\)", lambda match: found[match[1]], entry["value"]
            )
    return found


def settings_of(objects: Objects, one: Pod) -> GatewaySettings | ServiceSettings:
    """The settings of the process, its files made up. Raises: ValueError with what it says when it cannot start."""
    found, complaint = environment(objects, one.main), io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        own = {
            name: _on_disk(value, Path(folder))
            for name, value in found.items()
            if name.startswith("SEMSPEC_")
        }
        with patch.dict(os.environ, own, clear=True), contextlib.redirect_stderr(complaint):
            try:
                return load_settings(SETTINGS[one.name])
            except SystemExit as error:
                raise ValueError(complaint.getvalue()) from error


def check_environment(objects: Objects) -> None:
    """The processes accept their environments, and files that these name are mounted."""
    for one in pods(objects):
        if one.name in SETTINGS:
            settings_of(objects, one)
            folders = list(map(Path, mounts(one.main)))
            for value in environment(objects, one.main).values():
                is_mounted = any(Path(value).is_relative_to(folder) for folder in folders)
                assert is_mounted or not value.startswith("/"), f"{one}: {value} is no mount"


def _on_disk(value: str, folder: Path) -> str:
    """The value; if it is a path, that of a file or folder in `folder` that might be what is meant."""
    if not value.startswith("/"):
        return value
    path = folder / value.removeprefix("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix or path.name in SECRETS["api-keys"]:
        path.write_bytes(certificates().get(path.name, SECRETS["api-keys"]["api-keys"].encode()))
    else:
        shutil.copytree(BUNDLED_PAIR / "probes", path)  # whose release the gateway reads
    return str(path)


@cache
def certificates() -> dict[str, bytes]:
    """As cert-manager writes them into a Secret."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
    return {
        "tls.crt": chain,
        "tls.key": issued.private_key_pem.bytes(),
        "ca.crt": authority.cert_pem.bytes(),
    }
