"""Finds checkpoints in folders, in GGUF files and on the Hugging Face hub, and downloads them."""

import errno
import glob
import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from tqdm.auto import tqdm

from semspec.errors import Mismatch

logger = logging.getLogger(__name__)

FILES: dict[str, Any] = {
    "allow_patterns": ["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt"],
    "ignore_patterns": ["*/*.safetensors", "consolidated*.safetensors"],
}
"""The files of a checkpoint that are used; weights elsewhere in it are copies in other formats."""
GGUF_FILE = re.compile(r"([\w.-]+/[\w.-]+):(.+\.gguf)")
"""A GGUF file in a repository of the hub: `REPOSITORY:FILE`."""
PROGRESS_INTERVAL_S = 60.0
MAKE_ROOM = "make room, or set HF_HOME to a folder on a larger disk"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The folder of a checkpoint, the size of its weights, and of its files that are not on this machine yet."""

    folder: Path
    """For a GGUF file on this machine, the folder that `semspec.engine.gguf` writes."""
    weight_bytes: int
    missing_bytes: int = 0


def look_up(model: str, revision: str | None = None) -> Checkpoint:
    """Find a checkpoint in its folder or GGUF file, or on the hub, or in the hub's cache if the hub cannot be reached.

    Downloads nothing. Raises: Mismatch when it is not found, or is a GGUF file that cannot be served.
    """
    if model.endswith(".gguf"):
        return _look_up_file(model, revision)
    is_path = os.path.isabs(model) or model.startswith((".", "~")) or model.count("/") > 1
    folder = Path(model)
    if is_path and not folder.is_dir():
        raise Mismatch(
            f"there is no folder {model}",
            remedy="give a checkpoint's folder, a GGUF file or a hub id",
        )
    if folder.is_dir():
        return _folder_checkpoint(folder)
    try:
        files = _list_files(model, revision, FILES)
    except Exception as error:  # errors of the hub's client, of httpx, or of the system
        return _folder_checkpoint(_find_cached(model, model, revision, FILES, error))
    root = next(
        (Path(file.local_path).parent for file in files if "/" not in file.filename), folder
    )
    weights = sum(file.file_size or 0 for file in files if file.filename.endswith(".safetensors"))
    return Checkpoint(
        root, weights, sum(file.file_size or 0 for file in files if file.will_download)
    )


def safetensors_advice(model: str) -> str:
    """Return a remedy that names the safetensors checkpoint of a model, which is given as a GGUF file."""
    named = GGUF_FILE.fullmatch(model)
    advice = "give the model's safetensors checkpoint"
    if named and named[1].endswith("-GGUF"):
        return f"{advice}, such as {named[1].removesuffix('-GGUF')}"
    return advice


def _look_up_file(model: str, revision: str | None) -> Checkpoint:
    """Find a GGUF file, on this machine or `REPOSITORY:FILE`."""
    if GGUF_FILE.fullmatch(model) is None or Path(model).exists():
        return _gguf_checkpoint(Path(model))
    repository, wanted = _download_options(model)
    try:
        files = _list_files(repository, revision, wanted)
    except Exception as error:  # as above
        cached = _find_cached(model, repository, revision, wanted, error) / model.partition(":")[2]
        if not cached.is_file():
            raise _unavailable(model, revision, error.__cause__ or error) from error
        return _gguf_checkpoint(cached)
    if not files:
        page = f"{constants.ENDPOINT}/{repository}/tree/{revision or 'main'}"
        name = model.partition(":")[2]
        raise Mismatch(
            f"{repository} has no file {name}",
            remedy=f"give the name of a file that it has, see {page}",
        )
    [file] = files
    if file.will_download:
        return Checkpoint(Path(file.local_path).parent, file.file_size or 0, file.file_size or 0)
    return _gguf_checkpoint(Path(file.local_path))


def _download_options(model: str) -> tuple[str, Mapping[str, Any]]:
    """Return the repository of a model and the options that select its files: one for `REPOSITORY:FILE`."""
    named = GGUF_FILE.fullmatch(model)
    return (named[1], {"allow_patterns": [glob.escape(named[2])]}) if named else (model, FILES)


def _list_files(repository: str, revision: str | None, wanted: Mapping[str, Any]) -> list[Any]:
    """Return the hub client's descriptions of the `wanted` files of a repository. Raises: the client's errors."""
    lines = _progress_lines(logger.info)
    files: Any = snapshot_download(
        repository, revision=revision, dry_run=True, tqdm_class=lines, **wanted
    )
    return list(files)


def _find_cached(
    model: str, repository: str, revision: str | None, wanted: Mapping[str, Any], error: Exception
) -> Path:
    """Return a model's folder in the hub's cache, after an `error` of the hub. Raises: Mismatch when there is none."""
    try:
        return Path(
            snapshot_download(repository, revision=revision, local_files_only=True, **wanted)
        )
    except (OSError, ValueError):
        raise _unavailable(model, revision, error.__cause__ or error) from error


def _folder_checkpoint(folder: Path) -> Checkpoint:
    # A path that does not exist is a dead link.
    weights = sum(path.stat().st_size for path in folder.glob("*.safetensors") if path.exists())
    return Checkpoint(folder, weights)


def _gguf_checkpoint(file: Path) -> Checkpoint:
    from semspec.engine.gguf import checkpoint_of  # needs NumPy and the tokenizers

    if not file.is_file():
        raise Mismatch(
            f"there is no file {file}",
            remedy="give a GGUF file, or REPOSITORY:FILE.gguf for one on the hub",
        )
    return Checkpoint(checkpoint_of(file), file.stat().st_size)


def fetch(
    model: str, revision: str | None = None, tell: Callable[[str], object] = logger.info
) -> str:
    """Return the folder of a checkpoint as `look_up` does, after downloading missing files.

    On a terminal, the hub's client shows its progress; elsewhere, `tell` is called with a line a minute.

    Raises: Mismatch when the checkpoint is not available.
    """
    found = look_up(model, revision)
    if not found.missing_bytes:
        return str(found.folder)
    folder = _download(model, revision, found.missing_bytes, tell)
    named = GGUF_FILE.fullmatch(model)
    return str(_gguf_checkpoint(folder / named[2]).folder if named else folder)


def fetch_file(model: str, revision: str | None, tell: Callable[[str], object]) -> Path:
    """Return the GGUF file `REPOSITORY:FILE`, after downloading it if it is missing. Raises: Mismatch as `fetch`."""
    repository, wanted = _download_options(model)
    try:
        missing = sum(
            file.file_size or 0
            for file in _list_files(repository, revision, wanted)
            if file.will_download
        )
    except Exception as error:  # as above
        raise _unavailable(model, revision, error.__cause__ or error) from error
    file = _download(model, revision, missing, tell) / model.partition(":")[2]
    if not file.is_file():
        raise Mismatch(
            f"{repository} has no file {file.name} at {revision or 'main'}",
            remedy=f"see {constants.ENDPOINT}/{repository}",
        )
    return file


def _download(
    model: str, revision: str | None, missing: int, tell: Callable[[str], object]
) -> Path:
    """Download a model and return its folder in the hub's cache. Raises: Mismatch when it is not available."""
    cache = Path(constants.HF_HUB_CACHE)
    existing = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if missing > free:
        raise Mismatch(
            f"{model} needs {format_bytes(missing)} in {cache}, which has {format_bytes(free)} free",
            remedy=MAKE_ROOM,
        )
    tell(f"downloading {model}: {format_bytes(missing)}")
    repository, wanted = _download_options(model)
    try:
        bars = None if sys.stderr.isatty() else _progress_lines(tell)
        return Path(snapshot_download(repository, revision=revision, tqdm_class=bars, **wanted))
    except Exception as error:  # errors of the hub's client, of httpx, or of the system
        raise _unavailable(model, revision, error) from error


def _progress_lines(tell: Callable[[str], object]) -> type[tqdm]:
    """Return a class that replaces the progress bars of the hub's client by lines."""
    reported_at = time.monotonic()

    class ProgressLines(tqdm):  # type: ignore[misc]
        def display(self, msg: str | None = None, pos: int | None = None) -> None:
            nonlocal reported_at
            if (
                self.unit == "B"
                and 0 < self.n < (self.total or 0)
                and time.monotonic() - reported_at >= PROGRESS_INTERVAL_S
            ):
                reported_at, rate = time.monotonic(), self.n / self.format_dict["elapsed"]
                left = self.format_interval((self.total - self.n) / rate)
                tell(f"{format_bytes(self.n)} of {format_bytes(self.total)}, {left} left")

        def close(self) -> None:
            self.disable = True

    return ProgressLines


def format_bytes(num_bytes: float) -> str:
    """Return a size in GB or MB."""
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"


def _unavailable(model: str, revision: str | None, error: BaseException) -> Mismatch:
    """Return the error for a model that is not on this machine and cannot be downloaded."""
    repository = model.partition(":")[0]
    page = f"{constants.ENDPOINT}/{repository}"
    match error:
        case GatedRepoError():
            message = f"{model} is gated"
            remedy = f"ask for access at {page}, and log in with `hf auth login`"
        case RevisionNotFoundError():
            message = f"{model} has no revision {revision}"
            remedy = f"correct it, see {page}/commits/main"
        case RepositoryNotFoundError() | HFValidationError():
            message = f"the hub has no {repository}"
            remedy = "correct the name; for a private model log in with `hf auth login`"
        case OSError(errno=errno.ENOSPC):
            message, remedy = f"no room for {model} in {constants.HF_HUB_CACHE}", MAKE_ROOM
        case _:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            kind = "file" if model.endswith(".gguf") else "folder"
            message = (
                f"{model} is neither a {kind} nor in the hub's cache, and {constants.ENDPOINT} does not answer "
                f"({reason})"
            )
            remedy = (
                f"connect, set HF_ENDPOINT to a mirror, or give the {kind} of a copy: "
                f"`hf download {model.replace(':', ' ')} --local-dir FOLDER` elsewhere"
            )
    return Mismatch(message, remedy=remedy)
