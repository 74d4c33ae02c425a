"""The files between the stages: Parquet rows and safetensors tensors, in shards, each file written atomically.

A stage's folder contains `recipe.json` (its settings) and, for each shard, its files and `NNNNN.json`: the manifest,
written last. A shard without a manifest does not exist; one whose inputs, or whose files' sizes, do not match its
manifest is made again. A file of the right size with other contents is refused, not replaced: rows whenever they are
read, states before labels are made from them, all by `semspec train check`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from safetensors.torch import load_file, save_file
from torch import Tensor

from semspec.errors import InvalidRequest, Mismatch
from semspec.files import digest_of, file_digest
from semspec.reporting.files import AGAIN, Row, flat, read_json, replacing, write_json

DATA_FORMAT = 2
"""Format of a work folder. 2: segments cut by a budget have no cluster, ends of turns have their own, and labels leave
the judged segment out. Folders without a format are of format 1."""

_RECIPE = "restore it, or delete {} to make that stage again"


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a Parquet table with one row per mapping."""
    from pyarrow import Table, parquet  # not installed with every extra

    with replacing(path) as partial:
        parquet.write_table(Table.from_pylist(list(rows)), partial, compression="zstd")


def read_rows(path: Path) -> list[Row]:
    import pyarrow.parquet as pq

    return list(pq.read_table(path).to_pylist())


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    with replacing(path) as partial:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, partial)
        partial.chmod(0o644)  # safetensors creates it private; other workers of a cluster read it


@dataclass(frozen=True, slots=True)
class File:
    """A file's entry in a manifest."""

    sha256: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of a finished shard."""

    files: dict[str, File]
    inputs: str
    """Digest of the manifests of the shard's inputs."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Counts, seconds, models: for estimates and reports."""

    @property
    def digest(self) -> str:
        """Digest of the contents; facts such as durations are excluded."""
        return digest_of({name: file.sha256 for name, file in self.files.items()})


_MANIFEST = TypeAdapter(Manifest)


def check_format(work: Path) -> None:
    """Raises: Mismatch when another version of the pipeline made `work`. Changes nothing."""
    for path in sorted(work.glob("*/recipe.json")):
        if (found := read_json(path, _RECIPE.format(path.parent)).get("format", 1)) != DATA_FORMAT:
            raise Mismatch(
                f"{work} has format {found!r}, this version writes format {DATA_FORMAT}",
                remedy="run `semspec train run` with another --work; this folder is left unchanged",
            )


class StageFolder:
    """The shards of one stage."""

    def __init__(self, path: Path) -> None:
        self.path, self.recipe = path, path / "recipe.json"

    def claim(self, recipe: Mapping[str, Any]) -> None:
        """Create the folder, or check that the existing one was made with the same settings. Raises: Mismatch naming
        the settings that differ."""
        if not self.recipe.exists():
            write_json(self.recipe, {"format": DATA_FORMAT, **recipe})
        elif differing := self.differing(recipe):
            raise Mismatch(
                f"{self.path} was made with other settings ({'; '.join(differing)})",
                remedy=f"give another --work, or delete {self.path} to repeat this stage",
            )

    def differing(self, recipe: Mapping[str, Any]) -> list[str]:
        """List settings of the folder that differ from `recipe`. Raises: Mismatch when the folder's are damaged."""
        expected = flat(json.loads(json.dumps({"format": DATA_FORMAT, **recipe})))
        found = flat(read_json(self.recipe, _RECIPE.format(self.path)))
        return [
            f"{name}: {found.get(name)!r} there, {expected.get(name)!r} now"
            for name in sorted(found.keys() | expected.keys())
            if found.get(name) != expected.get(name)
        ]

    def file(self, number: int, suffix: str) -> Path:
        return self.path / f"{number:05d}{suffix}"

    def numbers(self) -> list[int]:
        """Return the numbers of the finished shards."""
        return sorted(int(path.stem) for path in self.path.glob("[0-9]" * 5 + ".json"))

    def manifest(self, number: int) -> Manifest | None:
        """Read the shard's manifest; None if it is not finished. Raises: Mismatch when the manifest is damaged."""
        path = self.file(number, ".json")
        if not path.exists():
            return None
        try:
            return _MANIFEST.validate_python(read_json(path))
        except ValidationError as error:
            raise Mismatch(
                f"{path} is damaged: it is not a manifest", remedy=AGAIN.format(path)
            ) from error

    def manifests(self, numbers: Iterable[int]) -> list[Manifest]:
        """Read the manifests of the finished shards among `numbers`."""
        return [manifest for number in numbers if (manifest := self.manifest(number))]

    def rows(self, number: int) -> list[Row]:
        """The rows of a finished shard. Raises: InvalidRequest when it is missing, Mismatch when it is damaged."""
        self.verify(number, (".parquet",))
        return read_rows(self.file(number, ".parquet"))

    def tensors(self, number: int) -> dict[str, Tensor]:
        """The tensors of a finished shard. Raises: as `rows`."""
        self.verify(number, (".safetensors",))
        return load_file(self.file(number, ".safetensors"))

    def verify(self, number: int, suffixes: Sequence[str]) -> None:
        """Compare files with the manifest. Raises: InvalidRequest when there is none, Mismatch when they differ."""
        manifest = self.manifest(number)
        if manifest is None:
            raise InvalidRequest(
                f"shard {number:05d} of {self.path.name} is missing: run `semspec train run`"
            )
        for path in (self.file(number, suffix) for suffix in suffixes):
            if _differs(path, manifest.files.get(path.name)):
                raise Mismatch(
                    f"{path} is damaged: it is not what its manifest says",
                    remedy=AGAIN.format(path),
                )

    def is_done(self, number: int, inputs: str = "") -> bool:
        """Return whether the shard is complete and made from these inputs."""
        manifest = self.manifest(number)
        if manifest is None or manifest.inputs != inputs:
            return False
        return all(
            _size(self.path / name) == file.num_bytes for name, file in manifest.files.items()
        )

    def commit(
        self, number: int, suffixes: Sequence[str], inputs: str = "", **facts: object
    ) -> None:
        """Mark the shard as finished by writing its manifest, after its files."""
        paths = [self.file(number, suffix) for suffix in suffixes]
        files = {path.name: File(file_digest(path), path.stat().st_size) for path in paths}
        write_json(self.file(number, ".json"), asdict(Manifest(files, inputs, dict(facts))))

    def damaged(self, number: int) -> list[str]:
        """Files of the shard whose contents differ from its manifest, or the manifest itself; reads all files."""
        try:
            manifest = self.manifest(number)
        except Mismatch:
            return [self.file(number, ".json").name]
        files = manifest.files if manifest else {}
        return [name for name, file in files.items() if _differs(self.path / name, file)]

    @property
    def digest(self) -> str:
        """Digest of all finished shards' contents."""
        return digest_of([manifest.digest for manifest in self.manifests(self.numbers())])


def _differs(path: Path, file: File | None) -> bool:
    return file is None or _size(path) != file.num_bytes or file_digest(path) != file.sha256


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else -1
