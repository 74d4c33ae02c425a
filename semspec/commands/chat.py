"""`semspec chat`: one question, or a conversation in a session of the gateway."""

import argparse
import asyncio
import contextlib
import secrets
import sys
from contextlib import aclosing

from semspec.client import Gateway, Json
from semspec.commands import BUNDLED, EXAMPLE, INTERRUPTED, KNOWN
from semspec.commands.screen import Screen
from semspec.errors import InvalidRequest, SemspecError

CANCEL_TIMEOUT_S = 3.0


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

    def __init__(self, gateway: Gateway, arguments: argparse.Namespace, runner: asyncio.Runner) -> None:
        self._gateway, self._runner = gateway, runner
        self._is_plain = arguments.plain or not sys.stdout.isatty()
        self._options: Json = {**vars(arguments), "trace": not self._is_plain}

    def converse(self) -> int:
        """Read questions until end of input or Ctrl-C; an error ends only its question."""
        self._options["session"] = self._options["session"] or f"chat-{secrets.token_hex(6)}"
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  # line editing and history in input()
        while True:
            try:
                prompt = input("> ").strip()
            except (EOFError, KeyboardInterrupt) as end:
                print()
                return 0 if isinstance(end, EOFError) else INTERRUPTED
            try:
                if prompt:
                    self._runner.run(self.answer(prompt))
            except SemspecError as error:
                print(f"semspec chat: {error.message}", file=sys.stderr)

    async def answer(self, prompt: str) -> int:
        """Send one question, show the answer and return the exit code. Raises: SemspecError."""
        id, screen = "", Screen(self._is_plain, self._options["verbose"])
        try:
            if self._options["model"] is None:
                self._options["model"] = (await self._gateway.models())[0]["id"]
                if self._options["model"] == BUNDLED:
                    screen.note(f"{KNOWN} {EXAMPLE}")
            async with aclosing(self._gateway.chat(self._body(prompt), screen.note)) as chunks:
                async for chunk in chunks:
                    id = chunk.get("id") or id
                    screen.show(chunk)
        except asyncio.CancelledError:  # Ctrl-C; a second one exits
            if id:  # the gateway would otherwise finish it
                with contextlib.suppress(SemspecError, TimeoutError):
                    await asyncio.wait_for(self._gateway.cancel(id), CANCEL_TIMEOUT_S)
            screen.note("cancelled")
            return INTERRUPTED
        finally:
            screen.end()
        return 0

    def _body(self, prompt: str) -> Json:
        """The request body; options that were not given keep the gateway's defaults."""

        def given(*names: str) -> Json:
            return {name: self._options[name] for name in names if self._options[name] is not None}

        own = given("trace", "strictness", "gamma", "exact_answer", "session")
        messages = [{"role": "user", "content": prompt}]
        return {"messages": messages, "semspec": own, **given("model", "temperature", "seed", "max_tokens")}


def _given_prompt(arguments: argparse.Namespace) -> str | None:
    """The question on the command line, else all of stdin; None: read it interactively. Raises: InvalidRequest."""
    if arguments.prompt is None and sys.stdin.isatty():
        return None
    prompt: str = sys.stdin.read() if arguments.prompt is None else arguments.prompt
    if not prompt.strip():
        raise InvalidRequest("the prompt is empty; give one as an argument or on standard input", "prompt")
    return prompt.strip()
