"""The files that bring the stack up in containers, as a reader without Docker sees them."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from semspec.settings import ServiceSettings
from semspec_draft.settings import DraftSettings
from semspec_gateway.settings import GatewaySettings
from semspec_target.settings import TargetSettings
from semspec_verifier.settings import VerifierSettings

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "docker-compose.yml"
OVERLAYS = ROOT / "deploy" / "compose"
TWO_GPU = OVERLAYS / "two-gpu.yml"

SETTINGS: dict[str, type[GatewaySettings | ServiceSettings]] = {
    "draft": DraftSettings,
    "target": TargetSettings,
    "verifier": VerifierSettings,
    "gateway": GatewaySettings,
}
DOCKERFILES = {
    role: ROOT / ("gateway" if role == "gateway" else f"services/{role}") / "Dockerfile"
    for role in SETTINGS
}
SECRETS = {
    "SEMSPEC_GATEWAY_API_KEYS": f"me:{'0' * 64}",
    "SEMSPEC_SERVICE_TOKEN": "service-token",
    "SEMSPEC_REDIS_PASSWORD": "redis-password",
}
"""Variables without which nothing comes up."""

Json = dict[str, Any]

_VARIABLE = re.compile(
    r"\$\{(?P<name>\w+)(?:(?P<operator>:?[-?])(?P<word>[^}]*))?\}|\$(?P<dollar>\$)"
)


class _Loader(yaml.SafeLoader):
    """Knows compose's mark for a list that takes the place of another."""


class _Override(list[Any]):
    """Not to be put behind what was there before."""


def _override(loader: yaml.SafeLoader, node: yaml.SequenceNode) -> _Override:
    return _Override(loader.construct_sequence(node, deep=True))


_Loader.add_constructor("!override", _override)


class MissingVariable(Exception):
    """What compose stops with: the variable's name and the words behind its question mark."""


@cache
def _loaded(path: Path) -> Json:
    loaded: Json = yaml.load(path.read_text(), _Loader)  # noqa: S506, a SafeLoader
    return loaded


def composed(variables: dict[str, str], *overlays: Path) -> Json:
    """The services by name, as compose would start them. Raises: MissingVariable."""
    merged = _loaded(BASE)
    for overlay in overlays:
        merged = _merged(merged, _loaded(overlay))
    services: Json = _interpolated(merged["services"], variables)
    return services


def _merged(below: Any, above: Any) -> Any:
    if isinstance(below, dict) and isinstance(above, dict):
        common = {name: _merged(below[name], above[name]) for name in below if name in above}
        return {**below, **above, **common}
    if isinstance(below, list) and isinstance(above, list) and not isinstance(above, _Override):
        return [*below, *above]
    return above


def _interpolated(value: Any, variables: dict[str, str]) -> Any:
    match value:
        case dict():
            return {name: _interpolated(inner, variables) for name, inner in value.items()}
        case list():
            return [_interpolated(inner, variables) for inner in value]
        case str():
            return _VARIABLE.sub(lambda found: _value(found, variables), value)
    return value


def _value(found: re.Match[str], variables: dict[str, str]) -> str:
    if found["dollar"]:
        return "$"
    if given := variables.get(found["name"]):
        return given
    if found["operator"] == ":?":
        raise MissingVariable(f"{found['name']}: {found['word']}")
    return found["word"] or ""
