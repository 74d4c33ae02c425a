"""What a client sees of a text, however it arrives; segments as streams of tokens."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semspec.reasoning import ReasoningParser
from semspec.types import Segment, SegmentEnd, SegmentRecord, TokenLogprob, Writer
from semspec_gateway.api.tgi.stream import TokenStream
from semspec_gateway.generation.parsers import Delta, StopChecker

LETTERS = st.text("ab</think>\n ", max_size=30)
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|start|>assistant<|channel|>final<|message|>"
COMMENTARY = "<|start|>assistant<|channel|>commentary<|message|>"
MARKS = "< <think> </think> [THINK] [/THINK] <|end|>".split()
SNIPPETS = ("a", "\n", " b", *MARKS, ANALYSIS, FINAL, COMMENTARY)
TEXTS_WITH_MARKS = st.lists(st.sampled_from(SNIPPETS), max_size=9).map("".join)


def cut(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


def read(stop_checker: StopChecker, parts: list[str]) -> Delta:
    shown = Delta()
    for part in parts:
        shown += stop_checker.add(part)
    shown += stop_checker.close()
    assert shown == stop_checker.seen
    return shown


@given(
    TEXTS_WITH_MARKS,
    st.lists(st.integers(0, 60)),
    st.lists(st.sampled_from(["\n", "a", "\n b", "<"]), max_size=2),
)
def test_parts_show_what_the_whole_shows(text: str, places: list[int], stops: list[str]) -> None:
    for prompt in ("", "<think>\n", "[THINK]", f"<|start|>assistant{ANALYSIS}"):
        whole, parts = (
            StopChecker(stops, reasoning_parser=ReasoningParser.after(prompt)) for _ in range(2)
        )
        assert read(parts, cut(text, places)) == read(whole, [text])
        assert parts.stop == whole.stop


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("keep_stop", [False, True])
@pytest.mark.parametrize(
    ("prompt", "text", "stops", "reasoning", "content", "stop"),
    [
        (
            "<think>\n",
            "so\n\nand\n</think>\n\nfive\n\nsix",
            ["\n\n"],
            "so\n\nand\n",
            "\n\nfive",
            "\n\n",
        ),
        ("", "<think>so\n\nand</think>five\n\nsix", ["\n\n"], "so\n\nand", "five", "\n\n"),
        ("", f"{ANALYSIS}so. And<|end|>{FINAL}five. Six", ["."], "so. And", "five", "."),
        ("[THINK]", "Human: so[/THINK]five Human: six", ["Human:"], "Human: so", "five ", "Human:"),
        ("<think>", "so</think>\n", ["\n"], "so", "\n", None),
        ("<think>", "so", ["</think>", "so"], "so", "", None),
        ("", "five\n\nsix", ["\n\n"], "", "five", "\n\n"),
        ("", "\n\nsix", ["\n\n"], "", "", "\n\n"),
        ("", "<thi", ["<th"], "", "", "<th"),
    ],
)
def test_stop_belongs_to_the_answer_and_not_to_the_reasoning(
    prompt: str,
    text: str,
    stops: list[str],
    reasoning: str,
    content: str,
    stop: str | None,
    size: int,
    keep_stop: bool,
) -> None:
    checker = StopChecker(stops, keep_stop, ReasoningParser.after(prompt))
    shown = read(checker, [text[start : start + size] for start in range(0, len(text), size)])
    assert shown == Delta(reasoning, content + (stop or "" if keep_stop else ""))
    assert checker.stop == stop


@given(LETTERS, st.lists(st.text("ab<", min_size=1, max_size=4), min_size=1, max_size=3))
def test_text_ends_at_the_first_stop(text: str, stops: list[str]) -> None:
    stop_checker = StopChecker(stops)
    content = read(stop_checker, [text]).content
    end, start = min(
        ((text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text),
        default=(0, None),
    )
    assert content == text[:start]
    assert stop_checker.stop == (None if start is None else text[start:end])


@pytest.mark.parametrize(
    ("prompt", "text", "reasoning", "content"),
    [
        ("<think>\n", "so\n\n</think>\nfive", "so\n\n", "\nfive"),
        ("", "<think>\nso</think>five", "\nso", "five"),
        ("", "\n<think>so</think>", "so", ""),
        ("", "five </think> six", "", "five </think> six"),
        ("", "<thi", "", "<thi"),
        ("[THINK]", "so[/THINK]five", "so", "five"),
        ("", "[THINK]so [1][/THINK]five", "so [1]", "five"),
        ("", f"{ANALYSIS}so<|end|>{FINAL}five", "so", "five"),
        (
            "",
            f"{ANALYSIS}so<|end|><|start|>assistant{ANALYSIS} and<|end|>{FINAL}five",
            "so and",
            "five",
        ),
        ("", f"{ANALYSIS}so<|end|>{COMMENTARY}Wait.<|end|>{FINAL}five", "so", "Wait.five"),
        ("", "<|channel|>final<|message|>five", "", "five"),
        ("", f"{ANALYSIS}so<|end|><|start|>assist", "so", ""),
        (f"<|start|>assistant{ANALYSIS}", f"so<|end|>{FINAL}five", "so", "five"),
    ],
)
def test_reasoning_ends_at_its_mark(prompt: str, text: str, reasoning: str, content: str) -> None:
    assert read(StopChecker(reasoning_parser=ReasoningParser.after(prompt)), list(text)) == Delta(
        reasoning, content
    )


def record(*data: bytes, end: SegmentEnd = SegmentEnd.BOUNDARY) -> SegmentRecord:
    tokens = tuple(TokenLogprob(number, piece, -1.0) for number, piece in enumerate(data))
    text = b"".join(data).decode(errors="replace")
    return SegmentRecord(
        0, Segment(text, tuple(range(len(data))), "", Writer.TARGET, end), None, logprobs=tokens
    )


@pytest.mark.parametrize(
    ("written", "text", "first", "last"),
    [
        (record(b"a", b"\xe2\x82", b"\xac", b"b"), "a€b", ["a", "", "€"], [("b", False)]),
        (record(b"a", b"", end=SegmentEnd.EOS), "a", [], [("a", False), ("", True)]),
        (record(b"a", b"\xe2\x82", end=SegmentEnd.LENGTH), "a", [], [("a", False), ("", False)]),
        (
            record(b"one", b" STOPPED", b"", b"never"),
            "one STOP",
            [],
            [("one", False), (" STOP", False)],
        ),
    ],
    ids=[
        "character of several tokens",
        "end of sequence",
        "character cut by the budget",
        "beyond the stop",
    ],
)
def test_tokens_are_shown_with_whole_characters_and_without_what_follows_a_stop(
    written: SegmentRecord, text: str, first: list[str], last: list[tuple[str, bool]]
) -> None:
    told = TokenStream()
    assert [token.text for token in told.add(written.logprobs or (), 0, text)] == first
    assert [(token.text, token.special) for token in told.close("", "STOP" in text)] == last


def test_text_that_may_begin_a_stop_waits() -> None:
    told = TokenStream()
    assert [
        token.text for token in told.add(record(b"one", b" ST").logprobs or (), 0, "one ")
    ] == []
    assert [token.text for token in told.add(record(b"AY", b".").logprobs or (), 0, "STAY.")] == [
        "one",
        " ST",
        "AY",
    ]
