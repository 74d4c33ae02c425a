"""Size of a datastore, and times of searches in it with one thread.

    python -m studies.retrieval.datastore FOLDER

A query is `drafter.propose` after the beginning of one of the datastore's own documents and one random token more, so
that long n-grams are rare: with the source `all` nearly each query searches the neighbours too, the slowest case.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
from numpy.typing import NDArray

from semspec.decoding.retrieval.datastore import Datastore, import_faiss
from semspec.decoding.retrieval.drafter import propose
from semspec.errors import SemspecError
from semspec.training.report.document import Table
from semspec.types import Context, Piece, Retrieval, RetrievalSource

NUM_QUERIES = 2000
NUM_TOKENS = 8
SOURCES: tuple[RetrievalSource, ...] = ("context", "ngrams", "all")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table. Exits 2 when the datastore cannot be used."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the datastore's")
    folder = parser.parse_args(arguments).folder
    start = perf_counter()
    try:
        datastore = Datastore.load(folder)
    except SemspecError as error:
        print(f"datastore: {error.message}", file=sys.stderr)
        sys.exit(2)
    card, load_s = datastore.card, perf_counter() - start
    if card.layer is not None:
        import_faiss().omp_set_num_threads(1)
    num_bytes = sum(card.sizes.values())
    print(f"{card.num_tokens} tokens, {card.num_entries} entries, {num_bytes / 1e6:.0f} MB, loaded in {load_s:.1f} s\n")
    rows = []
    for source in SOURCES:
        times = times_ms(datastore, source)
        rows.append((source, f"{np.median(times):.2f}", f"{np.percentile(times, 95):.2f}", f"{times.max():.2f}"))
    print(Table(("source", "ms of CPU, median", "95%", "most"), tuple(rows)).as_markdown(), end="")


def times_ms(datastore: Datastore, source: RetrievalSource) -> NDArray[np.float64]:
    """CPU time of each query, `[NUM_QUERIES]`."""
    times = []
    for context, state in _queries(datastore):
        start = process_time()
        propose(datastore, context, (), Retrieval(state, source), NUM_TOKENS)
        times.append((process_time() - start) * 1e3)
    return np.array(times)


def _queries(datastore: Datastore) -> Iterator[tuple[Context, bytes]]:
    """Contexts, each with a random state."""
    rng, documents, neighbours = np.random.default_rng(0), datastore.static.documents, datastore.neighbours
    for number in rng.integers(0, len(documents), NUM_QUERIES):
        document = documents[number]
        begun = document[: rng.integers(1, len(document) + 1)]
        piece = Piece("", (*begun, documents[number - 1][0]), datastore.card.tokenizer)
        state = b"" if neighbours is None else rng.normal(size=neighbours.hidden_size).astype("<f4").tobytes()
        yield Context((piece,)), state


if __name__ == "__main__":
    main()
