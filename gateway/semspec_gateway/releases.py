"""The release of the pair that the gateway serves."""

from dataclasses import dataclass
from pathlib import Path

from semspec.decoding.likelihood.calibration import CALIBRATION_FILE, Calibration, load_calibration
from semspec.errors import Mismatch
from semspec.files import digest_of
from semspec.release import Release, load_release
from semspec_gateway.options import Defaults


@dataclass(frozen=True, slots=True)
class ServedRelease:
    """A release that is served."""

    pair: Release
    """As in `pair.json`."""
    digest: str
    """Digest of the rule."""
    defaults: Defaults
    """Defaults for the options that a request leaves unset: the operator's, and the release's rule."""
    likelihood: Calibration | None


def load_served_release(path: Path | None, defaults: Defaults) -> ServedRelease | None:
    """Load the release of a folder or of `pair.json`; None without a path.

    `defaults`: the operator's. Raises: ValueError in one line, with the remedy.
    """
    if path is None:
        return None
    try:
        return _merged(load_release(path), defaults)
    except Mismatch as error:
        raise ValueError(str(error)) from error


def _merged(release: Release, defaults: Defaults) -> ServedRelease:
    """Raises: Mismatch, ValueError."""
    likelihood = load_calibration(release.folder / CALIBRATION_FILE) if release.likelihood else None
    if likelihood is not None and likelihood.digest != release.likelihood:
        remedy = "put its own back, or make the release again with `semspec train export`"
        raise Mismatch(
            f"{CALIBRATION_FILE} next to the release {release.label} is not the one it names",
            remedy=remedy,
        )
    if stated := ", ".join(sorted(release.rule.keys() & defaults.model_fields_set)):
        raise ValueError(
            f"SEMSPEC_GATEWAY_DEFAULTS sets {stated}: leave it out, it comes from SEMSPEC_GATEWAY_PAIR"
        )
    merged = defaults.with_rule(release)
    return ServedRelease(release, digest_of(release.rule), merged, likelihood)
