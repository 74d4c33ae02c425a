"""Renders conversations with a model's chat template."""

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from semspec.errors import InvalidRequest
from semspec.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MARK = "semspecmark"
"""Stands for a tool's content and for the names of called functions, to see whether a template shows them."""


def render(tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Message], model: str) -> str:
    """The text of a conversation up to the start of the assistant's turn; `model` is the name in errors.

    A developer is the system where the template has no such role. Raises: InvalidRequest when there is no template, or
    it refuses the messages or leaves out a tool's message or call.
    """
    if tokenizer.chat_template is None:
        raise InvalidRequest(f"{model} has no chat template; use /v1/completions", "messages")
    if not any(message.content.strip() for message in messages):
        raise InvalidRequest("the messages are empty; send some text", "messages")
    text, arguments = _rendered(tokenizer, messages)
    if any(message.role == "tool" or message.tool_calls for message in messages):
        marked = [_turn(tokenizer, message, arguments, is_marked=True) for message in messages]
        if _applied(tokenizer, marked).count(_MARK) < json.dumps(marked).count(_MARK):
            reason = "does not show tool calls, or messages of the role 'tool'; leave them out"
            raise InvalidRequest(f"the chat template of {model} {reason}", "messages")
    return text


def _rendered(tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Message]) -> tuple[str, Callable[[str], Any]]:
    """The text, and the form of a call's arguments that the template takes: an object, as Hugging Face's documentation
    has it, or their JSON text, as in OpenAI's format."""
    forms: list[Callable[[str], Any]] = [json.loads, str] if any(one.tool_calls for one in messages) else [str]
    for arguments in forms:
        try:
            return _applied(tokenizer, [_turn(tokenizer, message, arguments) for message in messages]), arguments
        except Exception as error:  # templates may raise any error
            failure = error
    raise InvalidRequest(f"the chat template refuses these messages: {failure}", "messages") from failure


def _applied(tokenizer: "PreTrainedTokenizerBase", turns: list[dict[str, Any]]) -> str:
    return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))


def _turn(
    tokenizer: "PreTrainedTokenizerBase", message: Message, arguments: Callable[[str], Any], is_marked: bool = False
) -> dict[str, Any]:
    """A message as templates expect it, with the fields it has; with marks, if wanted."""
    has_developer = "developer" in str(tokenizer.chat_template)
    role = "system" if message.role == "developer" and not has_developer else message.role
    turn: dict[str, Any] = {"role": role, "content": message.content}
    if message.role == "tool":
        turn |= {"tool_call_id": message.tool_call_id} if message.tool_call_id else {}
        turn |= {"content": _MARK} if is_marked else {}
    if message.tool_calls:
        calls = json.loads(message.tool_calls)
        for call in calls:
            call["function"]["arguments"] = arguments(call["function"]["arguments"])
            if is_marked:
                call["function"]["name"] = _MARK
        turn |= {"content": message.content or None, "tool_calls": calls}
    return turn
