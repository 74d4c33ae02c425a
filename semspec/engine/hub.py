"""Checkpoints in folders, in GGUF files and on the Hugging Face hub: looked up and downloaded before anything is
loaded."""

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
"""The files of a checkpoint that are used; weights in other places are copies in other formats."""
GGUF_FILE = re.compile(r"([\w.-]+/[\w.-]+):(.+\.gguf)")
"""A GGUF file in a repository of the hub: `REPOSITORY:FILE`."""
TELL_EVERY_S = 60.0
MAKE_ROOM = "make room, or set HF_HOME to a folder on a larger disk"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a checkpoint is: bytes of its weights, and of its files that are not on this machine yet."""

    folder: Path
    """Of a GGUF file, the folder of `semspec.engine.gguf`, once the file is on this machine."""
    weight_bytes: int
    missing_bytes: int = 0


def look_up(model: str, revision: str | None = None) -> Checkpoint:
    """Look up a checkpoint in its folder or GGUF file, on the hub, or where that cannot be reached in the hub's cache.
    Downloads nothing. Raises: Mismatch when it is nowhere, or is a GGUF file that cannot be served."""
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
        return _of_folder(folder)
    try:
        files = _described(model, revision, FILES)
    except Exception as error:  # of the hub's client: its own errors, httpx's, the system's
        return _of_folder(_cached(model, model, revision, FILES, error))
    root = next(
        (Path(file.local_path).parent for file in files if "/" not in file.filename), folder
    )
    weights = sum(file.file_size or 0 for file in files if file.filename.endswith(".safetensors"))
    return Checkpoint(
        root, weights, sum(file.file_size or 0 for file in files if file.will_download)
    )


def safetensors_advice(model: str) -> str:
    """Name the safetensors checkpoint of a model that is named by its GGUF file, as a remedy."""
    named = GGUF_FILE.fullmatch(model)
    place = (
        f", such as {named[1].removesuffix('-GGUF')}"
        if named and named[1].endswith("-GGUF")
        else ""
    )
    return f"give the model's safetensors checkpoint{place}"


def _look_up_file(model: str, revision: str | None) -> Checkpoint:
    """Look up a GGUF file, on this machine or `REPOSITORY:FILE`."""
    if GGUF_FILE.fullmatch(model) is None or Path(model).exists():
        return _of_file(Path(model))
    repository, wanted = _wanted(model)
    try:
        files = _described(repository, revision, wanted)
    except Exception as error:  # as above
        if not (
            file := _cached(model, repository, revision, wanted, error) / model.partition(":")[2]
        ).is_file():
            raise _absence(model, revision, error.__cause__ or error) from error
        return _of_file(file)
    if not files:
        place = f"{constants.ENDPOINT}/{repository}/tree/{revision or 'main'}"
        name = model.partition(":")[2]
        raise Mismatch(
            f"{repository} has no file {name}",
            remedy=f"give the name of one that it has, see {place}",
        )
    [file] = files
    if file.will_download:
        return Checkpoint(Path(file.local_path).parent, file.file_size or 0, file.file_size or 0)
    return _of_file(Path(file.local_path))


def _wanted(model: str) -> tuple[str, Mapping[str, Any]]:
    """Return the repository of a model, and which of its files are used: of `REPOSITORY:FILE`, that one alone."""
    named = GGUF_FILE.fullmatch(model)
    return (named[1], {"allow_patterns": [glob.escape(named[2])]}) if named else (model, FILES)


def _described(repository: str, revision: str | None, wanted: Mapping[str, Any]) -> list[Any]:
    """Describe the files of a repository that are `wanted`. Raises: errors of the hub's client."""
    lines = _lines(logger.info)
    files: Any = snapshot_download(
        repository, revision=revision, dry_run=True, tqdm_class=lines, **wanted
    )
    return list(files)


def _cached(
    model: str, repository: str, revision: str | None, wanted: Mapping[str, Any], error: Exception
) -> Path:
    """Return the folder in the hub's cache, because the hub gave an `error`. Raises: Mismatch when there is none."""
    try:
        return Path(
            snapshot_download(repository, revision=revision, local_files_only=True, **wanted)
        )
    except (OSError, ValueError):
        raise _absence(model, revision, error.__cause__ or error) from error


def _of_folder(folder: Path) -> Checkpoint:
    weights = sum(
        path.stat().st_size for path in folder.glob("*.safetensors") if path.exists()
    )  # else a dead link
    return Checkpoint(folder, weights)


def _of_file(file: Path) -> Checkpoint:
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
    """The folder of a checkpoint, after a download of what is not on this machine; of a GGUF file, the one that
    `look_up` gives. On a terminal the hub's client shows its progress, elsewhere `tell` gets a line a minute.
    Raises: Mismatch when it cannot be had."""
    found = look_up(model, revision)
    if not found.missing_bytes:
        return str(found.folder)
    folder = _download(model, revision, found.missing_bytes, tell)
    named = GGUF_FILE.fullmatch(model)
    return str(_of_file(folder / named[2]).folder if named else folder)


def fetch_file(model: str, revision: str | None, tell: Callable[[str], object]) -> Path:
    """The GGUF file `REPOSITORY:FILE` itself, after a download if it is not on this machine. Raises: as `fetch`."""
    repository, wanted = _wanted(model)
    try:
        missing = sum(
            file.file_size or 0
            for file in _described(repository, revision, wanted)
            if file.will_download
        )
    except Exception as error:  # as above
        raise _absence(model, revision, error.__cause__ or error) from error
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
    """Return the folder in the hub's cache that has all files of a model. Raises: Mismatch when they cannot be had."""
    cache = Path(constants.HF_HUB_CACHE)
    free = shutil.disk_usage(
        next(place for place in (cache, *cache.parents) if place.exists())
    ).free
    if missing > free:
        raise Mismatch(
            f"{model} takes {size_of(missing)} in {cache}, where {size_of(free)} are free",
            remedy=MAKE_ROOM,
        )
    tell(f"downloading {model}: {size_of(missing)}")
    repository, wanted = _wanted(model)
    try:
        bars = None if sys.stderr.isatty() else _lines(tell)
        return Path(snapshot_download(repository, revision=revision, tqdm_class=bars, **wanted))
    except Exception as error:  # of the hub's client: its own errors, httpx's, the system's
        raise _absence(model, revision, error) from error


def _lines(tell: Callable[[str], object]) -> type[tqdm]:
    """The hub's client's bars as lines."""
    told_at = time.monotonic()

    class Lines(tqdm):  # type: ignore[misc]
        def display(self, msg: str | None = None, pos: int | None = None) -> None:
            nonlocal told_at
            if (
                self.unit == "B"
                and 0 < self.n < (self.total or 0)
                and time.monotonic() - told_at >= TELL_EVERY_S
            ):
                told_at, rate = time.monotonic(), self.n / self.format_dict["elapsed"]
                left = self.format_interval((self.total - self.n) / rate)
                tell(f"{size_of(self.n)} of {size_of(self.total)}, {left} left")

        def close(self) -> None:
            self.disable = True

    return Lines


def size_of(num_bytes: float) -> str:
    """In GB or MB."""
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"


def _absence(model: str, revision: str | None, error: BaseException) -> Mismatch:
    """Return why a model is neither on this machine nor fetched."""
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
