"""`semspec chat` against a live stack, by subprocess and by terminal; its screen with made-up chunks."""

import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from semspec.commands.screen import Screen
from tests.commands.support import ANSWER, CERTAIN, QUESTION, Live, command, semspec
from tests.helpers.records import record
from tests.helpers.stack import LONG_QUESTION

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
        command(words),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(
            0, termios.TIOCSCTTY, 0
        ),  # so that Ctrl-C typed there is a signal
    )
    os.close(theirs)
    try:
        yield ours
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.parametrize(
    ("words", "stdin"), [([QUESTION], ""), ([], f"{QUESTION}\n")], ids=["argument", "stdin"]
)
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
        (
            ["--url", "http://127.0.0.1:1", "hello"],
            "no gateway answers at http://127.0.0.1:1.*`semspec serve`",
        ),
    ],
)
def test_unanswered_question_ends_with_remedy(live: Live, words: list[str], told: str) -> None:
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
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout and process.stderr
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, complaints = process.stdout.read(), process.stderr.read()
        return process.wait(timeout=10), first, rest, complaints


def asked(window: int, *lines: str) -> str:
    """What a terminal shows from a prompt up to the end of the answer to what is typed there."""
    read_until(window, "^> ")
    os.write(window, "".join(f"{line}\n" for line in lines).encode())
    return read_until(window, r"chatcmpl-[0-9a-f]{32}")


def id_of(shown: str) -> str:
    return str(re.findall(r"chatcmpl-[0-9a-f]{32}", shown)[-1])


def messages(live: Live, shown: str) -> tuple[str, list[str]]:
    """The session of the answer that is shown, and the questions that the session has."""
    session = str(live.get(f"/v1/generations/{id_of(shown)}")["session"])
    turns = live.get(f"/v1/sessions/{session}")["turns"]
    return session, [turn["content"] for turn in turns if turn["role"] == "user"]


def test_conversation_at_a_terminal_is_one_session_with_signs_and_statistics(live: Live) -> None:
    with terminal("chat", *live.options, "--seed", "5") as window:
        first = asked(window, QUESTION)
        second = asked(window, QUESTION)
        for shown in (first, second):
            assert re.search(r"\w\.? ✓$", shown, re.MULTILINE)
            assert re.search(
                r"\d+% accepted · \d+% written by the target · \d+\.\d tokens/s · \d+ ms · chatcmpl-",
                shown,
            )
        read_until(window, "^> ")
        os.write(window, b"\x04")
    session, questions = messages(live, second)
    assert messages(live, first) == (session, questions)
    assert questions == [QUESTION, QUESTION] and session.startswith("chat-")


def test_question_of_several_lines_is_one_question(live: Live) -> None:
    with terminal("chat", *live.options) as window:
        shown = asked(window, '"""What is', "", ' 2 + 2?"""')
        read_until(window, "^> ")
        os.write(window, b"\x04")
    assert messages(live, shown)[1] == ["What is\n\n 2 + 2?"]


def test_retry_and_edit_replace_the_last_question_in_a_new_session(live: Live) -> None:
    with terminal("chat", *live.options, "--seed", "5") as window:
        before = messages(live, asked(window, "first"))
        last = messages(live, asked(window, "second"))
        assert last == (before[0], ["first", "second"])
        again = asked(window, "/retry")
        assert live.get(f"/v1/generations/{id_of(again)}")["seed"] == 6
        session, questions = messages(live, again)
        assert session != last[0] and questions == ["first", "second"]
        edited = asked(window, "/edit", " thought")
        assert messages(live, edited)[1] == ["first", "second thought"]
        assert messages(live, asked(window, "third")) == (
            messages(live, edited)[0],
            ["first", "second thought", "third"],
        )
        read_until(window, "^> ")
        os.write(window, b"\x04")


def test_interrupt_stops_the_answer_and_not_the_program(live: Live) -> None:
    hot = ["--model", "semspec-demo:target", "--temperature", "2", "--seed", "1"]  # a long answer
    with terminal("chat", *live.options, *hot) as window:
        read_until(window, "^> ")
        os.write(window, b"half a line")
        read_until(window, "half a line")
        time.sleep(0.3)  # Python loses a signal that comes just before it waits for a key
        os.write(window, b"\x03")
        read_until(window, "^> ")
        os.write(window, f"{LONG_QUESTION}\n".encode())
        read_until(window, "✎")
        os.write(window, b"\x03")
        read_until(window, "semspec chat: cancelled")
        assert "chatcmpl-" in asked(window, QUESTION)
        read_until(window, "^> ")
        os.write(window, b"\x04")


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a terminal gets of chunks."""

    def show(*chunks: dict[str, Any], verbose: bool = False) -> str:
        screen = Screen(is_plain=False, verbose=verbose)
        for chunk in chunks:
            screen.show(chunk)
        screen.end()
        return capsys.readouterr().out

    return show


def text_chunk(text: str, part: str = "content") -> dict[str, Any]:
    """A piece of a segment."""
    return {"choices": [{"delta": {part: text}}]}


def segment_chunk(
    index: int, text: str, verdict: str = "accepted", rest: str | None = None, **fields: Any
) -> dict[str, Any]:
    """A segment's record, with what is new of its text."""
    return {
        **text_chunk(text if rest is None else rest),
        "semspec": {"segment": record(index, text, verdict, **fields)},
    }


REFUSED = {"text": "On day 1, Tom gets 5 more pens.\n\n", "num_tokens": 12}
REWRITTEN = segment_chunk(0, "On day 1, Tom gets 4 more pens.\n\n", "rewritten", rejected=REFUSED)


def test_refused_draft_is_shown_only_when_asked(shown: Callable[..., str]) -> None:
    brief = shown(REWRITTEN)
    assert "gets 4 more pens. \x1b[33m✎" in brief and "gets 5 more" not in brief
    verbose = shown(REWRITTEN, verbose=True)
    assert "gets 5 more" in verbose and "q 0.5  p 0.4  p/q 0.8  draw 0.1" in verbose


def test_control_sequences_of_a_model_do_not_reach_the_terminal(shown: Callable[..., str]) -> None:
    text = shown(segment_chunk(0, "a\x1b[2Jb\x07\n\n"))
    assert "a[2Jb" in text and "\x1b[2J" not in text and "\x07" not in text
