"""Named pairs: a draft and a target in GGUF files, known by their digests.

Each pair is a manifest `NAME.json` in this package. A folder `NAME` next to it is the pair's release (`pair.json`, the
calibration, probes), with which it is served.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter

from semspec.errors import InvalidRequest, Mismatch
from semspec.files import read_json
from semspec.release import RELEASE_FILE

FOLDER = Path(__file__).parent
ROLES = ("draft", "target")


@dataclass(frozen=True, slots=True)
class PairFile:
    """A GGUF file of a repository on the hub."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    repository: str
    file: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    num_bytes: int
    revision: str = "main"

    @property
    def model(self) -> str:
        """Its name as a model to serve."""
        return f"{self.repository}:{self.file}"


@dataclass(frozen=True, slots=True)
class NamedPair:
    """A pair that is served by its name."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: Annotated[str, Field(pattern=r"^[\w.-]{1,64}$")]
    description: str
    licence: str
    draft: PairFile
    target: PairFile
    settings: dict[str, str]
    """Settings of both model services by name, such as `dtype`; the environment's come first."""
    memory_bytes: int | None
    """Memory that all processes take together; None: not measured."""
    measured: tuple[str, ...]
    """Results of measurements, a sentence each."""

    @property
    def release(self) -> Path | None:
        """The folder of the release that ships with the package; None: there is none."""
        folder = FOLDER / self.name
        return folder if (folder / RELEASE_FILE).exists() else None

    @property
    def files(self) -> Mapping[str, PairFile]:
        """By role."""
        return {"draft": self.draft, "target": self.target}


_PAIR = TypeAdapter(NamedPair)


def named_pairs() -> Iterator[NamedPair]:
    """Yield the pairs of the package in alphabetical order."""
    for file in sorted(FOLDER.glob("*.json")):
        yield _PAIR.validate_python(read_json(file))


def named_pair(name: str) -> NamedPair | None:
    """Return the pair of this name; None if there is none."""
    return next((pair for pair in named_pairs() if pair.name == name), None)


def find(file: PairFile, models: Path | None) -> Path | None:
    """Return the place of a file: in the folder `models` by name or by digest, or in the hub's cache; None if it is in
    neither.

    Raises: Mismatch when a file of this name has another digest, or there is no folder `models`.
    """
    from huggingface_hub import try_to_load_from_cache

    from semspec.engine.digests import file_digests

    if models is not None:
        if not models.is_dir():
            raise Mismatch(
                f"there is no folder {models}",
                remedy="give --models the folder with the pair's files",
            )
        if (named := models / file.file).exists():
            _check_digest(
                file, named, f"give --models a folder without it, or put {file.model} in its place"
            )
            return named
        for other in sorted(models.glob("*.gguf")):
            if (
                other.is_file()
                and other.stat().st_size == file.num_bytes
                and file_digests([other]) == [file.sha256]
            ):
                return other
    cached = try_to_load_from_cache(file.repository, file.file, revision=file.revision)
    if not isinstance(cached, str):
        return None
    _check_digest(
        file, Path(cached), f"remove {Path(cached).resolve()}, and start again to fetch it"
    )
    return Path(cached)


def locate(
    pair: NamedPair, models: Path | None, tell: Callable[[str], object] | None
) -> dict[str, str]:
    """Return each model of a pair by role: the path of its file, or its name on the hub if it is not on this machine.

    With `tell`, which gets lines about the progress, missing files are downloaded. Raises: Mismatch when that fails, or
    a digest is wrong.
    """
    found = {role: find(file, models) for role, file in pair.files.items()}
    missing = [pair.files[role] for role, place in found.items() if place is None]
    if tell is not None:
        found |= {
            role: _download(pair, role, missing, tell)
            for role, place in found.items()
            if place is None
        }
    return {role: str(place or pair.files[role].model) for role, place in found.items()}


def _download(
    pair: NamedPair, role: str, missing: list[PairFile], tell: Callable[[str], object]
) -> Path:
    from semspec.engine.hub import fetch_file, format_bytes

    file = pair.files[role]
    try:
        place = fetch_file(file.model, file.revision, tell)
    except Mismatch as error:
        listed = ", ".join(
            f"{one.file} ({format_bytes(one.num_bytes)}, SHA-256 {one.sha256})" for one in missing
        )
        remedy = f"put into a folder what is missing, and give it with --models FOLDER: {listed}"
        raise Mismatch(
            f"the pair {pair.name} cannot be fetched: {error.message}", remedy=remedy
        ) from error
    changed = f"{file.repository} has changed it; put the file of that digest into a folder, and give --models FOLDER"
    _check_digest(file, place, changed)
    return place


def _check_digest(file: PairFile, place: Path, remedy: str) -> None:
    """Raises: Mismatch when the file at `place` has another digest."""
    from semspec.engine.digests import file_digests

    try:
        [digest] = file_digests([place])
    except OSError as error:
        raise Mismatch(f"cannot read {place}: {error.strerror}", remedy=remedy) from error
    if digest != file.sha256:
        raise Mismatch(
            f"{place} has the SHA-256 {digest}, but {file.file} has {file.sha256}", remedy=remedy
        )


def unknown_pair(name: str) -> InvalidRequest:
    """The refusal of a name that is neither a pair nor a path."""
    known = ", ".join(pair.name for pair in named_pairs())
    return InvalidRequest(
        f"--pair: there is no pair {name!r} and no such path",
        remedy=f"give a release's path, or {known}",
    )
