"""`semspec chat`: one question, or a conversation in a session of the gateway."""

import argparse
import asyncio
import contextlib
import secrets
import sys
from contextlib import aclosing

from rich.console import Console

from semspec.client import Gateway, Json
from semspec.commands import BUNDLED, EXAMPLE, INTERRUPTED, KNOWN
from semspec.commands.screen import ColourScreen, PlainScreen
from semspec.errors import InvalidRequest, SemspecError

CANCEL_TIMEOUT_S = 3.0


def run(arguments: argparse.Namespace) -> int:
    with asyncio.Runner() as runner:
        gateway = Gateway.at(arguments.url, arguments.api_key)
        try:
            chat = Chat(gateway, arguments, runner)
            prompt = _given_prompt(arguments)
            return chat.converse() if prompt is None else chat.ask(prompt)
        finally:
            runner.run(gateway.aclose())


class Chat:
    """Sends questions to one model and shows the streamed answers."""

    def __init__(self, gateway: Gateway, arguments: argparse.Namespace, runner: asyncio.Runner) -> None:
        self._gateway, self._arguments, self._runner = gateway, arguments, runner
        self._is_plain = arguments.plain or not sys.stdout.isatty()
        self._console = Console(highlight=False)
        self._model: str | None = arguments.model
        self._session: str | None = arguments.session

    def ask(self, prompt: str) -> int:
        """Send one question and return the exit code. Raises: SemspecError."""
        return 0 if self._runner.run(self._answer(prompt)) else INTERRUPTED

    def converse(self) -> int:
        """Read questions until end of input or Ctrl-C; an error ends only its question."""
        self._session = self._session or f"chat-{secrets.token_hex(6)}"
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
                    self.ask(prompt)
            except SemspecError as error:
                print(f"semspec chat: {error.message}", file=sys.stderr)

    async def _answer(self, prompt: str) -> bool:
        """Show the answer; False if it was cancelled. Raises: SemspecError."""
        id = ""
        with PlainScreen() if self._is_plain else ColourScreen(self._console, self._arguments.verbose) as screen:
            try:
                body = self._body(prompt, await self._chosen_model(screen))
                async with aclosing(self._gateway.chat(body, screen.note)) as chunks:
                    async for chunk in chunks:
                        id = chunk.get("id") or id
                        screen.show(chunk)
            except asyncio.CancelledError:  # Ctrl-C; a second one exits
                await self._cancel(id)
                screen.note("cancelled")
                return False
        return True

    async def _cancel(self, id: str) -> None:
        """Cancel the generation, which the gateway would otherwise finish."""
        if not id:
            return
        with contextlib.suppress(SemspecError, TimeoutError):
            await asyncio.wait_for(self._gateway.cancel(id), CANCEL_TIMEOUT_S)

    async def _chosen_model(self, screen: PlainScreen | ColourScreen) -> str:
        """The model; the first time, what is to be known of the bundled one is shown."""
        if self._model is None:
            self._model = (await self._gateway.models())[0]["id"]
            if self._model == BUNDLED:
                screen.note(f"{KNOWN} {EXAMPLE}")
        return self._model

    def _body(self, prompt: str, model: str) -> Json:
        """The request body; options that were not given keep the gateway's defaults."""
        own = {"strictness": self._arguments.strictness, "gamma": self._arguments.gamma, "session": self._session}
        fields = {name: getattr(self._arguments, name) for name in ("temperature", "seed", "max_tokens")}
        return {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            **_given(fields),
            "semspec": {"trace": not self._is_plain, **_given(own)},
        }


def _given(fields: Json) -> Json:
    return {name: value for name, value in fields.items() if value is not None}


def _given_prompt(arguments: argparse.Namespace) -> str | None:
    """The question on the command line, else all of stdin; None: read it interactively. Raises: InvalidRequest."""
    if arguments.prompt is None and sys.stdin.isatty():
        return None
    prompt: str = sys.stdin.read() if arguments.prompt is None else arguments.prompt
    if not prompt.strip():
        raise InvalidRequest("the prompt is empty; give one as an argument or on standard input", "prompt")
    return prompt.strip()
