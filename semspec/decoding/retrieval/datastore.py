"""A datastore on disk: the tokens of a target's answers, their order, and the index of the states before them, which
finds semantic neighbours: places whose target's hidden state is near to a given one.

The folder holds `card.json` and the files that it names, each with its size and digest. The names contain the digests,
and the card is replaced last, so a folder always holds one whole datastore, or none.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from semspec.decoding.retrieval.ngrams import StaticTokens, TokenArray
from semspec.errors import Mismatch
from semspec.files import digest_of, file_digest, read_json
from semspec.installation import install_command
from semspec.types import ModelInfo

Vectors = NDArray[np.float32]

FORMAT = 1
_AGAIN = "build it again with `semspec train datastore`"
NUM_NEIGHBOURS = 32
NUM_PROBES = 16
"""Lists of the inverted file that a query scans."""
LEAST_QUANTISED = 20_000
"""Entries from which on the index is quantised; fewer are compared exactly."""
LISTS_PER_ROOT = 2
"""Lists of the inverted file, times the square root of the number of entries."""


def import_faiss() -> Any:
    """The library. Raises: Mismatch when it is not installed."""
    try:
        import faiss
    except ImportError as error:
        raise Mismatch(
            f"semantic neighbours need the library faiss ({error}): {install_command('retrieval')}"
        ) from error
    return faiss


class Projection:
    """Standardisation and principal components of states: weight * (state - mean)."""

    def __init__(self, mean: Vectors, weight: Vectors) -> None:
        """`mean`: `[hidden_size]`; `weight`: `[width, hidden_size]`."""
        self.mean, self.weight = mean, weight

    def keys(self, states: Vectors) -> Vectors:
        """Project `states`, `[num_states, hidden_size]`, to keys, `[num_states, width]`."""
        return np.asarray((states - self.mean) @ self.weight.T, np.float32)

    @classmethod
    def fitted(cls, states: Vectors, width: int) -> "Projection":
        """The first `width` principal components of the standardised `states` `[num_states, hidden_size]`."""
        mean, deviation = states.mean(0, dtype=np.float64), states.std(0, dtype=np.float64)
        scale = 1 / np.maximum(deviation, 1e-6)
        standardised = (states - mean) * scale
        components = np.linalg.eigh(standardised.T @ standardised)[1][:, ::-1][
            :, :width
        ]  # by falling variance
        return cls(mean.astype(np.float32), (components.T * scale).astype(np.float32))


class Neighbours:
    """An index of keys, each with its place."""

    def __init__(self, index: Any, projection: Projection) -> None:
        self._index, self._projection = index, projection

    @property
    def hidden_size(self) -> int:
        return len(self._projection.mean)

    def near(self, state: Vectors) -> list[int]:
        """Places of the nearest keys, nearest first; `state`: `[hidden_size]`."""
        _, places = self._index.search(self._projection.keys(state[None]), NUM_NEIGHBOURS)
        return [place for place in places[0].tolist() if place >= 0]

    @classmethod
    def load(cls, path: Path, projection: Projection) -> "Neighbours":
        """Raises: Mismatch when the library is missing or the file is no index."""
        faiss = import_faiss()
        try:
            index = faiss.read_index(str(path))
        except RuntimeError as error:
            raise Mismatch(
                f"{path} is not an index of neighbours", remedy="build the datastore again"
            ) from error
        if hasattr(inner := faiss.downcast_index(getattr(index, "index", index)), "nprobe"):
            inner.nprobe = NUM_PROBES
        return cls(index, projection)


def build_index(keys: Vectors, places: NDArray[np.int64]) -> Any:
    """An index of `keys` `[num_keys, width]` with the place of each. Raises: Mismatch when the library is missing."""
    faiss = import_faiss()
    num_keys, width = keys.shape
    if num_keys < LEAST_QUANTISED:
        index = faiss.index_factory(width, "IDMap,Flat")
    else:
        num_lists = int(LISTS_PER_ROOT * np.sqrt(num_keys))
        index = faiss.index_factory(width, f"IVF{num_lists},SQ8")  # a byte a component
        sample = np.random.default_rng(0).permutation(num_keys)[: 64 * num_lists]
        index.train(np.ascontiguousarray(keys[sample]))
    index.add_with_ids(np.ascontiguousarray(keys), places)
    return index


@dataclass(frozen=True, slots=True)
class Card:
    """Contents of a datastore."""

    model: str
    """Fingerprint of the target that wrote the answers."""
    model_name: str
    tokenizer: str
    layer: int | None
    """Row of `states-v1` that the neighbours are of; None: there are none."""
    num_tokens: int
    """Tokens of all documents: prompts, answers and an end token each."""
    num_entries: int
    """Neighbours."""
    data: str
    """Digest of the questions and answers."""
    files: Mapping[str, str]
    """Name of each file by its part: `tokens`, `projection`, `neighbours`."""
    sizes: Mapping[str, int]
    digests: Mapping[str, str]
    """SHA-256 of each part."""
    format: int = FORMAT

    @property
    def digest(self) -> str:
        """Return the digest of the card, which names the datastore."""
        return digest_of(asdict(self))


@dataclass(frozen=True, slots=True)
class Datastore:
    """A loaded datastore."""

    card: Card
    static: StaticTokens
    neighbours: Neighbours | None

    @classmethod
    def load(cls, folder: Path) -> "Datastore":
        """Raises: Mismatch in one line when it is missing, half-built, damaged, or of another format."""
        card = _card(folder)
        paths = {part: folder / name for part, name in card.files.items()}
        for part, path in paths.items():
            try:
                is_whole = path.is_file() and path.stat().st_size == card.sizes[part]
                is_whole = is_whole and file_digest(path) == card.digests[part]
            except OSError as error:
                raise Mismatch(
                    f"the datastore {folder} cannot be read: {error}", remedy=_AGAIN
                ) from error
            if not is_whole:
                raise Mismatch(
                    f"the datastore {folder} is damaged: {path.name} is not what its card says",
                    remedy=_AGAIN,
                )
        try:
            arrays = load_file(paths["tokens"])
            static = StaticTokens(arrays["tokens"], arrays["places"])
            neighbours = None
            if card.layer is not None:
                loaded = load_file(paths["projection"])
                neighbours = Neighbours.load(
                    paths["neighbours"], Projection(loaded["mean"], loaded["weight"])
                )
        except (KeyError, SafetensorError, UnicodeDecodeError) as error:
            raise Mismatch(
                f"the datastore {folder} cannot be read: {error}", remedy=_AGAIN
            ) from error
        return cls(card, static, neighbours)


def write_datastore(
    folder: Path,
    target: ModelInfo,
    data: str,
    tokens: TokenArray,
    places: TokenArray,
    neighbours: "tuple[int, Projection, Any, int] | None" = None,
) -> Card:
    """Write a datastore, or replace the one in `folder`; an interrupted call leaves what was there.

    `neighbours`: layer, projection, faiss index and number of entries.
    """
    folder.mkdir(parents=True, exist_ok=True)
    bare = Card(
        target.fingerprint, target.model, target.tokenizer, None, len(tokens), 0, data, {}, {}, {}
    )
    card = _with_file(
        bare, folder, "tokens", ".safetensors", _saver({"tokens": tokens, "places": places})
    )
    if neighbours is not None:
        layer, projection, index, num_entries = neighbours
        card = replace(card, layer=layer, num_entries=num_entries)
        numbers = {"mean": projection.mean, "weight": projection.weight}
        card = _with_file(card, folder, "projection", ".safetensors", _saver(numbers))
        faiss = import_faiss()
        card = _with_file(
            card, folder, "neighbours", ".faiss", lambda path: faiss.write_index(index, str(path))
        )
    text = json.dumps(asdict(card), indent=2) + "\n"
    _partial(folder, "card", lambda path: path.write_text(text)).replace(folder / "card.json")
    for path in folder.iterdir():  # of the datastore before, and of interrupted calls
        if path.name not in {"card.json", *card.files.values()} and path.name.startswith(_PREFIXES):
            path.unlink()
    return card


_PREFIXES = ("tokens-", "projection-", "neighbours-", "partial-")


def _saver(arrays: dict[str, Any]) -> Any:
    def save(path: Path) -> None:
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)
        path.chmod(0o644)  # safetensors creates it private

    return save


def _with_file(card: Card, folder: Path, part: str, suffix: str, save: Any) -> Card:
    """The card with one more file, which `save` writes."""
    partial = _partial(folder, part, save)
    digest = file_digest(partial)
    name = f"{part}-{digest[:16]}{suffix}"
    partial.replace(folder / name)
    return replace(
        card,
        files={**card.files, part: name},
        sizes={**card.sizes, part: (folder / name).stat().st_size},
        digests={**card.digests, part: digest},
    )


def _partial(folder: Path, name: str, save: Any) -> Path:
    """A file that `save` has written, complete on disk but not in its place yet."""
    partial = folder / f"partial-{name}-{os.getpid()}"
    save(partial)
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    return partial


def _card(folder: Path) -> Card:
    path = folder / "card.json"
    if not path.is_file():
        state = "is half-built" if folder.is_dir() and any(folder.iterdir()) else "does not exist"
        raise Mismatch(f"the datastore {folder} {state}: it has no card.json", remedy=_AGAIN)
    try:
        values = read_json(path)
        if values.get("format") != FORMAT:
            raise Mismatch(
                f"the datastore {folder} has format {values.get('format')!r}, not {FORMAT}",
                remedy=_AGAIN,
            )
        card = Card(**values)
        parts = {"tokens"} if card.layer is None else {"tokens", "projection", "neighbours"}
        if {*card.files} != parts or {*card.sizes} != parts or {*card.digests} != parts:
            raise ValueError("it does not name its files")
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise Mismatch(
            f"the datastore {folder} is damaged: card.json: {error}", remedy=_AGAIN
        ) from error
    return card
