"""What is proposed, and in which order of preference."""

import struct
from pathlib import Path

import numpy as np
import pytest

from semspec.decoding.retrieval.datastore import Datastore
from semspec.decoding.retrieval.drafter import LEAST_MATCH, propose
from semspec.errors import InvalidRequest, Mismatch
from semspec.types import Context, Piece, Retrieval, RetrievalSource
from tests.retrieval.support import DOCUMENTS, STATES, TARGET, write


def context(*ids: int) -> Context:
    return Context((Piece("", ids, TARGET.tokenizer),))


def proposed(
    datastore: Datastore,
    what: Context,
    source: RetrievalSource = "ngrams",
    state: bytes = b"",
    open_ids: tuple[int, ...] = (),
) -> list[int]:
    return list(propose(datastore, what, open_ids, Retrieval(state, source), 4).token_ids)


@pytest.fixture
def datastore(tmp_path: Path) -> Datastore:
    write(tmp_path, TARGET, DOCUMENTS)
    return Datastore.load(tmp_path)


def test_longest_ngram_wins_and_of_equal_ones_the_contexts_own(datastore: Datastore) -> None:
    own = (10, 11, 12, 90, 91, 92, 93)
    assert proposed(datastore, context(*own, 10, 11, 12)) == [90, 91, 92, 93]
    assert proposed(datastore, context(*own, 9, 10, 11, 12), open_ids=(13,)) == [14, 15, 16, 17]
    assert proposed(datastore, context(*own, 10, 11, 12), open_ids=(13,)) == [14, 15, 16, 17]
    assert proposed(datastore, context(5, 6, 7)) == []


def test_source_context_leaves_the_datastore_out(datastore: Datastore) -> None:
    assert proposed(datastore, context(20, 21, 22)) == [23, 24, 25, 26]
    assert proposed(datastore, context(20, 21, 22), "context") == []
    assert proposed(datastore, context(20, 21, 1, 20, 21), "context") == [1, 20, 21]


def test_source_datastore_leaves_the_context_out(datastore: Datastore) -> None:
    own = (10, 11, 12, 90, 91, 92, 93)
    assert proposed(datastore, context(*own, 10, 11, 12), "datastore") == [13, 14, 15, 16]
    assert proposed(datastore, context(90, 91, 92, 90, 91), "datastore") == []


SECRET, ANSWER = (71, 72, 73, 74, 75), (81, 82, 83, 84, 85, 86)


def test_nothing_of_one_call_reaches_another(datastore: Datastore) -> None:
    answer = Piece("", ANSWER[:4], TARGET.tokenizer)
    propose(datastore, Context((*context(*SECRET).pieces, answer)), ANSWER[4:], Retrieval(), 4)
    assert (
        proposed(datastore, context(81, 82, 83)) == proposed(datastore, context(71, 72, 73)) == []
    )


def test_every_token_is_certain_and_of_the_targets_tokenizer(datastore: Datastore) -> None:
    proposal = propose(datastore, context(20), (21,), Retrieval(), 3)
    assert proposal.token_ids == (22, 23, 24) and proposal.tokenizer == TARGET.tokenizer
    assert [one.token_ids for one in proposal.distributions] == [
        struct.pack("<I", token) for token in (22, 23, 24)
    ]
    assert {one.probabilities for one in proposal.distributions} == {struct.pack("<f", 1.0)}
    assert proposal.state_layer is None, "without neighbours no state is wanted"


def test_ids_of_another_vocabulary_are_not_read(datastore: Datastore) -> None:
    foreign = Piece("", (20, 21), "others.1")
    drafted = Piece("", (20, 21), f"{TARGET.tokenizer.partition('.')[0]}.9")
    assert proposed(datastore, Context((drafted,))) == [22, 23, 24, 25], (
        "only special tokens may differ"
    )
    assert proposed(datastore, Context((foreign,))) == []
    assert proposed(
        datastore, Context((*context(20, 21).pieces, foreign, *context(30).pieces))
    ) == [31, 32, 33, 34]


@pytest.mark.parametrize("token", [0x110000, 2**32 - 1])
def test_id_beyond_any_vocabulary_is_refused(datastore: Datastore, token: int) -> None:
    with pytest.raises(InvalidRequest, match="open_ids: an id is beyond the vocabulary"):
        proposed(datastore, context(20), open_ids=(token,))


@pytest.fixture
def with_neighbours(tmp_path: Path) -> Datastore:
    pytest.importorskip("faiss")
    write(tmp_path, TARGET, DOCUMENTS, STATES)
    return Datastore.load(tmp_path)


def state_before(token: int) -> bytes:
    data: bytes = STATES[token - 10].tobytes()
    return data


def test_neighbours_propose_what_followed_the_same_token(with_neighbours: Datastore) -> None:
    """Without an n-gram of `LEAST_MATCH` tokens, and only where the token that was written after the state is the
    same."""
    alone = context(1, 2, 3)
    assert proposed(with_neighbours, alone, "all", state_before(30), open_ids=(30,)) == [
        31,
        32,
        33,
        34,
    ]
    assert proposed(with_neighbours, alone, "all", state_before(30), open_ids=(5,)) == []
    assert proposed(with_neighbours, alone, "all", b"", open_ids=(30,)) == [31, 32, 33, 34], (
        "the short n-gram"
    )
    assert propose(with_neighbours, alone, (), Retrieval(), 4).state_layer == 1
    assert propose(with_neighbours, alone, (), Retrieval(source="ngrams"), 4).state_layer is None


def test_long_ngrams_rank_before_neighbours(with_neighbours: Datastore) -> None:
    again = (30, *range(70, 70 + LEAST_MATCH), 30)
    own = context(*range(70, 70 + LEAST_MATCH), *again, *range(70, 70 + LEAST_MATCH))
    assert proposed(with_neighbours, own, "all", state_before(30), open_ids=(30,)) != [
        31,
        32,
        33,
        34,
    ]
    short = context(77, 30, 88, 77)
    assert proposed(with_neighbours, short, "all", state_before(30), open_ids=(30,)) == [
        31,
        32,
        33,
        34,
    ]


def test_state_of_another_size_is_refused_by_field(with_neighbours: Datastore) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        proposed(with_neighbours, context(1, 2), "all", np.zeros(63, "<f4").tobytes())
    assert refusal.value.parameter == "retrieval.state"


def test_neighbours_without_the_library_are_refused_with_the_remedy(
    with_neighbours: Datastore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(Mismatch, match=r"install .*\[retrieval\]"):
        Datastore.load(tmp_path)
