"""Which releases of a pair the gateway serves: one, or several by weight, each with services of its own."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from semspec.decoding.likelihood.calibration import CALIBRATION_FILE, Calibration, load_calibration
from semspec.errors import Mismatch
from semspec.files import digest_of, first_error, read_json
from semspec.gateway.options import Defaults
from semspec.release import Release, load_release
from semspec.rpc.pool import parse_endpoints
from semspec.settings import SettingObject, checked


@dataclass(frozen=True, slots=True)
class Route:
    """A release that is served."""

    release: Release
    label: str
    """NAME@VERSION."""
    digest: str
    """Of the rule."""
    defaults: Defaults
    """What a request of this release has that does not say it: the operator's options, and the release's rule."""
    likelihood: Calibration | None
    weight: float = 1.0
    """Its share of the new answers that name no version, as a part of all weights."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Of its own services, by their names in `Backends`; the others are the gateway's."""


Addresses = Annotated[str, checked(parse_endpoints)]


class Listed(SettingObject):
    """A release in a list."""

    pair: Path
    weight: float = Field(1.0, ge=0, le=1e9)
    draft: Addresses = ""
    target: Addresses = ""
    verifier: Addresses = ""


_LISTED = TypeAdapter(list[Listed])


def is_list(path: Path) -> bool:
    """Return whether a file lists releases instead of being one. Raises: OSError if it cannot be read."""
    return path.is_file() and path.read_bytes().lstrip().startswith(b"[")


def load_routes(path: Path | None, defaults: Defaults) -> tuple[Route, ...]:
    """The releases of a folder, of `pair.json`, or of a file with a list of them, whose first is the main one.

    `defaults`: the operator's. Raises: ValueError in one line, with the remedy.
    """
    if path is None:
        return ()
    try:
        routes = tuple(_route(listed, path.parent, defaults) for listed in _listed(path))
    except Mismatch as error:
        raise ValueError(error.message) from error
    labels = {route.label for route in routes}
    if len(labels) < len(routes) or len({route.release.name for route in routes}) != 1:
        raise ValueError(f"{path}: list releases of one name, each version once")
    verifiers = [route.addresses.get("verifier") for route in routes if route.release.target_probe]
    if len({*verifiers}) < len(verifiers):
        raise ValueError(
            f"{path}: two releases have one verifier; start one for each, and name it by `verifier`"
        )
    if not any(route.weight for route in routes):
        raise ValueError(
            f"{path}: all weights are 0; give a release that new answers go to a greater one"
        )
    return routes


def _listed(path: Path) -> list[Listed]:
    """Raises: ValueError."""
    try:
        return (
            _LISTED.validate_python(read_json(path))
            if is_list(path)
            else [Listed(pair=Path(path.name))]
        )
    except ValidationError as error:
        raise ValueError(f"{path}: {first_error(error)}") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read releases from {path}: {error}; correct the file") from None


def _route(listed: Listed, folder: Path, defaults: Defaults) -> Route:
    """Raises: Mismatch, ValueError."""
    release = load_release(folder / listed.pair)
    likelihood = load_calibration(release.folder / CALIBRATION_FILE) if release.likelihood else None
    if likelihood is not None and likelihood.digest != release.likelihood:
        remedy = "put its own back, or make the release again with `semspec train export`"
        raise Mismatch(
            f"{CALIBRATION_FILE} beside the release {release.label} is not the one it names; {remedy}"
        )
    if stated := ", ".join(sorted(release.rule.keys() & defaults.model_fields_set)):
        raise ValueError(
            f"SEMSPEC_GATEWAY_DEFAULTS sets {stated}: leave it out, it comes from SEMSPEC_GATEWAY_PAIR"
        )
    try:
        merged = Defaults.model_validate(defaults.model_dump(exclude_unset=True) | release.rule)
    except ValidationError as error:
        raise ValueError(
            f"the release {release.label}: rule.{first_error(error)}; correct it"
        ) from None
    digest = digest_of(release.rule)
    addresses = {"drafter": listed.draft, "target": listed.target, "verifier": listed.verifier}
    own = {name: address for name, address in addresses.items() if address}
    return Route(release, release.label, digest, merged, likelihood, listed.weight, own)
