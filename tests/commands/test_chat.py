"""`semspec chat` against a live stack, by subprocess and by terminal; its screen with made-up chunks."""

import os
import pty
import re
import select
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from semspec.commands.screen import Screen
from tests.commands.support import ANSWER, CERTAIN, QUESTION, Live, command, semspec
from tests.records import record
from tests.stack.support import LONG_QUESTION

pytestmark = pytest.mark.slow


def read_until(terminal: int, pattern: str) -> str:
    """All that a terminal shows up to the end of a match, without control sequences."""
    shown, text = b"", ""
    while not re.search(pattern, text, re.MULTILINE):
        ready, _, _ = select.select([terminal], [], [], 30)
        assert ready, f"no {pattern} in {text!r}"
        shown += os.read(terminal, 1)
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", shown.decode(errors="ignore"))
    return text


@contextmanager
def terminal(*words: str) -> Iterator[int]:
    """The terminal of a command, which has ended well afterwards."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    process = subprocess.Popen(
        command(words), stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)
    try:
        yield ours
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.parametrize(("words", "stdin"), [([QUESTION], ""), ([], f"{QUESTION}\n")], ids=["argument", "stdin"])
def test_prompt_is_answered_as_text_only(live: Live, words: list[str], stdin: str) -> None:
    result = semspec("chat", *live.options, *CERTAIN, *words, stdin=stdin)
    assert (result.returncode, result.stderr) == (0, "")
    assert ANSWER in result.stdout and "\x1b" not in result.stdout and result.stdout.endswith("\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "the prompt is empty"),
        (["--model", "gpt-9", "hello"], "gpt-9.*does not exist"),
        (["--api-key", "", "hello"], "an API key is missing.*SEMSPEC_API_KEY"),
        (["--url", "http://127.0.0.1:1", "hello"], "no gateway answers at http://127.0.0.1:1.*`semspec serve`"),
    ],
)
def test_question_that_gets_no_answer_ends_with_the_reason_and_the_remedy(
    live: Live, words: list[str], told: str
) -> None:
    result = semspec("chat", *live.options, *words, stdin=" \n")
    assert (result.returncode, result.stdout) == (1, "")
    assert re.match(f"semspec chat: .*{told}", result.stderr)


def test_interrupt_during_an_answer_cancels_it_at_the_gateway(live: Live) -> None:
    hot = ["--model", "semspec-demo:target", "--temperature", "2", "--seed", "1"]  # a long answer
    words = command(["chat", *live.options, *hot, LONG_QUESTION])
    for _ in range(5):  # on a busy machine the answer may be there before the signal is
        status, first, rest, complaints = interrupted_after_a_line(words)
        if status == 130:
            break
    assert status == 130 and first.strip() and "boxed" not in rest
    assert complaints == "semspec chat: cancelled\n"
    assert 'route="/v1/generations/{id}/cancel",status="200"' in live.ask("GET", "/metrics").text


def interrupted_after_a_line(words: Sequence[str]) -> tuple[int, str, str, str]:
    """The exit status of a command, its first line, what it said after the interrupt, and its complaints."""
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stderr
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, complaints = process.stdout.read(), process.stderr.read()
        return process.wait(timeout=10), first, rest, complaints


def test_conversation_at_a_terminal_is_one_session_with_marks_and_statistics(live: Live) -> None:
    with terminal("chat", *live.options, "--seed", "5") as window:
        ids = []
        for _ in range(2):
            read_until(window, "^> ")
            os.write(window, f"{QUESTION}\n".encode())
            shown = read_until(window, r"chatcmpl-[0-9a-f]{32}")
            assert "✓ " in shown
            assert re.search(r"\d+% accepted · \d+% written by the target · \d+ tokens/s · \d+ ms · chatcmpl-", shown)
            ids += re.findall(r"chatcmpl-[0-9a-f]{32}", shown)
        read_until(window, "^> ")
        os.write(window, b"\x04")
    sessions = {live.get(f"/v1/generations/{id}")["session"] for id in ids}
    assert len(ids) == 2 and len(sessions) == 1 and str(sessions.pop()).startswith("chat-")


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a terminal gets of chunks."""

    def show(*chunks: dict[str, Any], verbose: bool = False) -> str:
        screen = Screen(is_plain=False, verbose=verbose)
        for chunk in chunks:
            screen.show(chunk)
        return capsys.readouterr().out

    return show


REFUSED = {"text": "On day 1, Tom gets 5 more pens.\n\n", "num_tokens": 12}
REWRITTEN = {"semspec": {"segment": record(0, "On day 1, Tom gets 4 more pens.\n\n", "rewritten", rejected=REFUSED)}}


def test_rewritten_segment_shows_the_refused_draft_only_when_asked(shown: Callable[..., str]) -> None:
    brief = shown(REWRITTEN)
    assert "\x1b[33m✎" in brief and "gets 5 more" not in brief
    verbose = shown(REWRITTEN, verbose=True)
    assert "gets 5 more" in verbose and "q 0.5  p 0.4  p/q 0.8  draw 0.1" in verbose


def test_control_sequences_of_a_model_do_not_reach_the_terminal(shown: Callable[..., str]) -> None:
    text = shown({"semspec": {"segment": record(0, "a\x1b[2Jb\x07\n\n")}})
    assert "a[2Jb" in text and "\x1b[2J" not in text and "\x07" not in text


@pytest.mark.parametrize(
    "delta", [{"content": "x"}, {"reasoning_content": None, "content": "x"}], ids=["all content", "told apart"]
)
def test_answer_behind_the_reasoning_is_bold(shown: Callable[..., str], delta: dict[str, object]) -> None:
    text = shown(
        {"semspec": {"segment": record(0, "</think>\nIt is 5.\n\n")}, "choices": [{"delta": delta}]},
        {"semspec": {"segment": record(1, "Truly.")}, "choices": [{"delta": delta}]},
    )
    assert "\x1b[1;32mIt is 5.\x1b[0m" in text and "\x1b[1;32mTruly.\x1b[0m" in text


def test_text_is_shown_while_it_is_written_and_once(shown: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    parts = [
        {"semspec": {"writing": 0}, "choices": [{"delta": {"reasoning_content": text}}]}
        for text in ("\nOn day", " 1,\n")
    ]
    assert shown(*parts) == "✎ On day 1,"
    last: dict[str, Any] = {"semspec": {"segment": record(0, "\nOn day 1,\nTom.\n\n")}}
    last["choices"] = [{"delta": {"reasoning_content": "Tom.\n\n"}}]
    buffered = {"choices": [{"delta": {"content": "held back to the end"}}]}
    assert shown(*parts, last, buffered) == "✎ On day 1,\n  Tom.\n"
