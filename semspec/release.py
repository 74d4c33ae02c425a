"""A release of a pair: `pair.json` names its models, tokenizers, probes, calibration and rule as one version.

`semspec train` writes it into the folder of the probes. The services and the gateway read it, and refuse what it does
not name.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from semspec.errors import Mismatch
from semspec.files import first_error, read_json, replacing
from semspec.types import ModelInfo, ProbeProjections, VerifierInfo, Writer

if TYPE_CHECKING:
    from semspec.engine.settings import ModelSettings

RELEASE_FILE = "pair.json"
_REMEDY = "make it again with `semspec train export`"


@dataclass(frozen=True, slots=True)
class ReleasedModel:
    """A model of the pair."""

    model: str
    """Its folder or GGUF file, absolute or relative to the folder of `pair.json`; or its name on the hub."""
    fingerprint: str
    """Digest of its weights, its configuration, and the options of vLLM that change its numbers."""
    tokenizer: str
    revision: str | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16", "packed"] = "auto"
    """Numeric form of the weights when it is served; auto: any."""


@dataclass(frozen=True, slots=True)
class Release:
    """One version of a pair: models, probes, calibration and rule."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: Annotated[str, Field(pattern=r"^[\w./-]{1,128}$")]
    version: Annotated[str, Field(pattern=r"^[\w.-]{1,32}$")]
    draft: ReleasedModel
    target: ReleasedModel
    rule: dict[str, Any]
    """Defaults for the options that a request leaves unset, as in `SEMSPEC_GATEWAY_DEFAULTS`."""
    draft_probe: str = ""
    """Digest of its weights; empty: the pair has no probes."""
    target_probe: str = ""
    projections: tuple[ProbeProjections, ...] = ()
    """First layers of the probes and of their alternatives."""
    likelihood: str = ""
    """Digest of the calibration; empty: there is none."""
    format: Literal[1] = 1
    folder: Path = field(default=Path(), compare=False)
    """Folder of `pair.json`; not part of the file."""

    @property
    def label(self) -> str:
        """Return its name in a request's `model`."""
        return f"{self.name}@{self.version}"

    def model_location(self, role: str) -> str:
        """Return the folder, the GGUF file or the name on the hub of a model."""
        model: str = getattr(self, role).model
        return str((self.folder / model).resolve()) if (self.folder / model).exists() else model

    def with_probes(self, served: VerifierInfo) -> "Release":
        """Return the release with the probes that a verifier serves."""
        probes = served.draft_probe, served.target_probe
        return replace(
            self, draft_probe=probes[0], target_probe=probes[1], projections=served.projections
        )

    def save(self, folder: Path) -> None:
        """Write `pair.json` atomically."""
        with replacing(folder / RELEASE_FILE) as partial:
            partial.write_bytes(_RELEASE.dump_json(self, indent=2, exclude={"folder"}) + b"\n")

    def model_mismatch(
        self, role: str, name: str, fingerprint: str, tokenizer: str = "", dtype: str = "auto"
    ) -> Mismatch | None:
        """Return why a model is not the release's; None if it is. An empty `tokenizer` is not compared."""
        released: ReleasedModel = getattr(self, role)
        found = f"but the {role} service serves {name}"
        if fingerprint != released.fingerprint:
            reason = f"({released.fingerprint}), {found} ({fingerprint})"
            remedy = "serve that model, or the release of this one"
        elif tokenizer not in ("", released.tokenizer):
            reason = f"with the tokenizer {released.tokenizer}, {found} with {tokenizer}"
            remedy = "put its own tokenizer files back"
        elif dtype != released.dtype and "auto" not in (dtype, released.dtype):
            reason, remedy = f"in {released.dtype}, {found} in {dtype}", "set that dtype"
        else:
            return None
        message = f"the release {self.label} has the {role} {released.model} {reason}"
        return Mismatch(
            message, remedy=remedy, operator_hint=f"SEMSPEC_{role.upper()}_MODEL, _DTYPE, _PAIR"
        )

    def mismatch_reason(
        self, draft: ModelInfo, target: ModelInfo, verifier: VerifierInfo
    ) -> Mismatch | None:
        """Return why the services do not serve this release; None if they do."""
        for role, info in (("draft", draft), ("target", target)):
            if info.has_model and (
                reason := self.model_mismatch(role, info.model, info.fingerprint, info.tokenizer)
            ):
                return reason
        return self.probes_mismatch(verifier)

    def probes_mismatch(self, served: VerifierInfo) -> Mismatch | None:
        """Return why the verifier's probes are not the release's; None if they are."""
        if self.with_probes(served) == self:
            return None
        probes = (served.draft_probe, served.target_probe) == (self.draft_probe, self.target_probe)
        difference = f"other {'alternatives' if probes else 'probes'} than the release {self.label}"
        return Mismatch(
            f"the verifier has {difference}",
            remedy="start it with the release's folder",
            operator_hint="SEMSPEC_VERIFIER_PAIR",
        )


_RELEASE = TypeAdapter(Release)


def load_release(path: Path) -> Release:
    """Read a release from its folder or from its `pair.json`. Raises: Mismatch, with the remedy, in one line."""
    file = path / RELEASE_FILE if path.is_dir() else path
    try:
        release = _RELEASE.validate_python(read_json(file))
    except ValidationError as error:
        raise Mismatch(
            f"cannot read release {file}: {first_error(error, 'the file')}", remedy=_REMEDY
        ) from None
    except (OSError, ValueError) as error:
        raise Mismatch(f"cannot read release {file}: {error}", remedy=_REMEDY) from error
    return replace(release, folder=file.parent.absolute())


def check_model(settings: "ModelSettings", writer: Writer, fingerprint: str) -> None:
    """Check that a release in `settings.pair` names this model; the folder is a release, or holds one in each folder.

    Raises: Mismatch when none does.
    """
    if settings.pair is None:
        return
    inside = [
        path.parent
        for path in sorted(settings.pair.glob(f"*/{RELEASE_FILE}"))
        if path.parent.name[0] != "."
    ]
    folders = inside if inside and not (settings.pair / RELEASE_FILE).exists() else [settings.pair]
    reasons = [
        load_release(folder).model_mismatch(
            writer.value, settings.model, fingerprint, dtype=settings.dtype
        )
        for folder in folders
    ]
    if None not in reasons and (reason := reasons[0]):
        raise reason
