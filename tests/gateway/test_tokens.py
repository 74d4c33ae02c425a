"""Segments as streams of tokens."""

from semspec.gateway.api.tgi.stream import TokenStream
from semspec.types import Segment, SegmentEnd, SegmentRecord, TokenLogprob, Writer


def record(*data: bytes, end: SegmentEnd = SegmentEnd.BOUNDARY) -> SegmentRecord:
    tokens = tuple(TokenLogprob(number, piece, -1.0) for number, piece in enumerate(data))
    text = b"".join(data).decode(errors="replace")
    return SegmentRecord(0, Segment(text, tuple(range(len(data))), "", Writer.TARGET, end), None, logprobs=tokens)


def test_character_of_several_tokens_is_shown_with_the_last() -> None:
    told = TokenStream()
    first = told.add(record(b"a", b"\xe2\x82", b"\xac", b"b"), "a€b")
    assert [token.text for token in first] == ["a", "", "€"]
    assert [token.text for token in told.close("", False)] == ["b"]


def test_end_of_sequence_is_special_and_last() -> None:
    told = TokenStream()
    assert [token.text for token in told.add(record(b"a", b"", end=SegmentEnd.EOS), "a")] == []
    assert [(token.text, token.special) for token in told.close("", False)] == [("a", False), ("", True)]


def test_character_cut_by_the_budget_is_replaced() -> None:
    told = TokenStream()
    told.add(record(b"a", b"\xe2\x82", end=SegmentEnd.LENGTH), "a\ufffd")
    assert [token.text for token in told.close("", False)] == ["\ufffd"]


def test_token_beyond_the_stop_is_cut_and_those_after_it_are_left_out() -> None:
    told = TokenStream()
    first = told.add(record(b"one", b" STOPPED", b"", b"never"), "one STOP")
    assert [token.text for token in (*first, *told.close("", True))] == ["one", " STOP"]


def test_text_that_may_begin_a_stop_waits() -> None:
    told = TokenStream()
    assert [token.text for token in told.add(record(b"one", b" ST"), "one ")] == []
    assert [token.text for token in told.add(record(b"AY", b"."), "STAY.")] == ["one", " ST", "AY"]
