"""Small datastores of given tokens."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from semspec.decoding.retrieval.datastore import Card, Projection, build_index, write_datastore
from semspec.decoding.retrieval.ngrams import DOCUMENT_END, sorted_places
from semspec.types import ModelInfo

WIDTH = 32
TARGET = ModelInfo("target", "sha256-full:1", "tokens.1", 2, 64, 1000)
STATES = np.random.default_rng(0).normal(size=(40, 64)).astype(np.float32)
DOCUMENTS = [list(range(10, 49))]


def write(
    folder: Path,
    target: ModelInfo,
    documents: Sequence[Sequence[int]],
    states: NDArray[np.float32] | None = None,
) -> Card:
    """`states`: `[num_tokens, hidden_size]`, the state before each token of all documents and their ends."""
    tokens = np.array([token for one in documents for token in (*one, DOCUMENT_END)], np.uint32)
    neighbours = None
    if states is not None:
        projection = Projection.fitted(states, min(WIDTH, states.shape[1]))
        index = build_index(projection.keys(states), np.arange(len(states)))
        neighbours = 1, projection, index, len(states)
    return write_datastore(folder, target, "data", tokens, sorted_places(tokens), neighbours)
