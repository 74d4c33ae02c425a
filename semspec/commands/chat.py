"""`semspec chat`: one question, or a conversation in a session of the gateway."""

import argparse
import asyncio
import contextlib
import secrets
import sys
from contextlib import aclosing
from types import ModuleType

from semspec.client import Gateway, Json
from semspec.commands import BUNDLED, EXAMPLE, INTERRUPTED, KNOWN
from semspec.commands.screen import Screen
from semspec.errors import InvalidRequest, SemspecError

CANCEL_TIMEOUT_S = 3.0
FENCE = '"""'
"""Begins and ends a question of several lines."""
RETRY, EDIT = "/retry", "/edit"
HELP = (
    f"{RETRY} asks the last question again, {EDIT} lets you change it first; {FENCE} begins and ends a question of "
    "several lines; Ctrl-C stops an answer, Ctrl-D ends"
)


def run(arguments: argparse.Namespace) -> int:
    with asyncio.Runner() as runner:
        gateway = Gateway.at(arguments.url, arguments.api_key)
        try:
            chat = Chat(gateway, arguments, runner)
            prompt = _given_prompt(arguments)
            return chat.converse() if prompt is None else runner.run(chat.answer(prompt))
        finally:
            runner.run(gateway.aclose())


class Chat:
    """Sends questions to one model and shows the streamed answers."""

    def __init__(
        self, gateway: Gateway, arguments: argparse.Namespace, runner: asyncio.Runner
    ) -> None:
        self._gateway, self._runner = gateway, runner
        self._is_plain = arguments.plain or not sys.stdout.isatty()
        self._options: Json = {**vars(arguments), "trace": not self._is_plain}
        self._question = ""
        """The last question."""
        self._is_stored = False
        """Whether the session has the last question and its answer."""
        self._before: list[Json] = []
        """Earlier messages that the new session does not have yet."""

    def converse(self) -> int:
        """Read questions until end of input; an error or Ctrl-C ends only its question. Raises: SemspecError."""
        self._options["session"] = self._options["session"] or _new_session()
        self._introduce()
        readline = _readline()
        while True:
            try:
                text = _read_question(readline)
                is_edited = text == EDIT
                question = _read_question(readline, self._question) if is_edited else text
            except EOFError:
                print()
                return 0
            except KeyboardInterrupt:
                print()
                continue
            try:
                if is_edited or text == RETRY:
                    self._runner.run(self._rewind())
                    question = self._question if text == RETRY else question
                if question:
                    self._runner.run(self.answer(question))
            except SemspecError as error:
                print(f"semspec chat: {error}", file=sys.stderr)

    async def answer(self, prompt: str) -> int:
        """Send one question, show the answer and return the exit code. Raises: SemspecError."""
        self._question, self._is_stored = prompt, False
        id, screen = "", Screen(self._is_plain, self._options["verbose"])
        try:
            async with aclosing(self._gateway.chat(self._body(prompt), screen.note)) as chunks:
                async for chunk in chunks:
                    id = chunk.get("id") or id
                    screen.show(chunk)
        except asyncio.CancelledError:  # Ctrl-C; a second one exits
            if id:  # the gateway would otherwise finish it
                with contextlib.suppress(SemspecError, TimeoutError):
                    await asyncio.wait_for(self._gateway.cancel(id), CANCEL_TIMEOUT_S)
            screen.end()
            screen.note("cancelled")
            return INTERRUPTED
        finally:
            screen.end()
        self._is_stored, self._before = True, []
        return 0

    def _introduce(self) -> None:
        """Print once which questions the pair knows, and which commands can be typed."""
        notes = [HELP]
        if self._options["model"] is None:
            self._options["model"] = self._runner.run(self._gateway.models())[0]["id"]
            if self._options["model"] == BUNDLED:
                notes.insert(0, f"{KNOWN} {EXAMPLE}")
        for note in notes:
            print(f"semspec chat: {note}", file=sys.stderr)

    async def _rewind(self) -> None:
        """Take back the last question: the next one replaces it, in a new session."""
        if self._options["seed"] is not None:
            self._options["seed"] += 1  # the same seed gives the same answer
        if not self._is_stored:
            return
        turns = await self._gateway.session(self._options["session"])
        last = max(index for index, turn in enumerate(turns) if turn["role"] == "user")
        self._before, self._is_stored = turns[:last], False
        self._options["session"] = _new_session()

    def _body(self, prompt: str) -> Json:
        """Return the request body; options that were not given keep the gateway's defaults."""

        def given(*names: str) -> Json:
            return {name: self._options[name] for name in names if self._options[name] is not None}

        extension = given("trace", "strictness", "gamma", "exact_answer", "session")
        messages = [*self._before, {"role": "user", "content": prompt}]
        return {
            "messages": messages,
            "semspec": extension,
            **given("model", "temperature", "seed", "max_tokens"),
        }


def _new_session() -> str:
    return f"chat-{secrets.token_hex(6)}"


def _readline() -> ModuleType | None:
    """Return the module that gives `input` line editing and history, if Python has it."""
    with contextlib.suppress(ImportError):
        import readline

        return readline
    return None


def _read_question(readline: ModuleType | None, text: str = "") -> str:
    """Read a question that may begin with `text`. Raises: EOFError, KeyboardInterrupt."""
    if readline is not None:
        readline.set_startup_hook(lambda: readline.insert_text(text))
    try:
        question = input("> ").strip()
    finally:
        if readline is not None:
            readline.set_startup_hook()
    if not question.startswith(FENCE):
        return question
    lines = [question.removeprefix(FENCE)]
    while not lines[-1].rstrip().endswith(FENCE):
        lines.append(input(". "))
    lines[-1] = lines[-1].rstrip().removesuffix(FENCE)
    return "\n".join(lines).strip()


def _given_prompt(arguments: argparse.Namespace) -> str | None:
    """Return the question on the command line, else all of stdin; None: ask interactively. Raises: InvalidRequest."""
    if arguments.prompt is None and sys.stdin.isatty():
        return None
    prompt: str = sys.stdin.read() if arguments.prompt is None else arguments.prompt
    if not prompt.strip():
        raise InvalidRequest(
            "the prompt is empty", remedy="give one as an argument or on standard input"
        )
    return prompt.strip()
