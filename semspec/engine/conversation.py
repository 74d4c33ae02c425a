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


CALL = "<tool_call>"
"""Begins a call in the only format of calls that is read: that of Hermes and Qwen."""


def render(tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Message], model: str, tools: str = "") -> str:
    """The text of a conversation up to the start of the assistant's turn; `model` is the name in errors.

    `tools`: a JSON list in OpenAI's format, or empty. A developer is the system where the template has no such role.
    Raises: InvalidRequest when there is no template, or it refuses the messages, leaves out a tool or a tool's message
    or call, or has another format of calls.
    """
    if tokenizer.chat_template is None:
        raise InvalidRequest(f"{model} has no chat template; use /v1/completions", "messages")
    if not any(message.content.strip() for message in messages):
        raise InvalidRequest("the messages are empty; send some text", "messages")
    offered = _offered(tools) if tools else None
    text, arguments = _rendered(tokenizer, messages, offered)
    if offered:
        _check_tools(text, offered, model)
    if any(message.role == "tool" or message.tool_calls for message in messages):
        marked = [_turn(tokenizer, message, arguments, is_marked=True) for message in messages]
        if _applied(tokenizer, marked, offered).count(_MARK) < json.dumps(marked).count(_MARK):
            reason = "does not show tool calls, or messages of the role 'tool'; leave them out"
            raise InvalidRequest(f"the chat template of {model} {reason}", "messages")
    return text


def _offered(tools: str) -> list[dict[str, Any]]:
    """Raises: InvalidRequest when `tools` is no JSON list in OpenAI's format."""
    try:
        offered = json.loads(tools)
        if isinstance(offered, list) and all(isinstance(tool["function"]["name"], str) for tool in offered):
            return offered
    except (ValueError, LookupError, TypeError, RecursionError):
        pass
    raise InvalidRequest("tools: not a JSON list of functions in OpenAI's format", "tools")


def _check_tools(text: str, tools: list[dict[str, Any]], model: str) -> None:
    """Raises: InvalidRequest when `text` does not show the `tools`, or not the format in which they are called."""
    if not all(tool["function"]["name"] in text for tool in tools):
        raise InvalidRequest(f"tools: the chat template of {model} does not show them; leave them out", "tools")
    if CALL not in text:
        reason = f"has another format of calls than {CALL}, which is the only one that is read"
        raise InvalidRequest(f"tools: the chat template of {model} {reason}; leave them out", "tools")


def _rendered(
    tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Message], tools: list[dict[str, Any]] | None
) -> tuple[str, Callable[[str], Any]]:
    """The text, and the form of a call's arguments that the template takes: an object, as Hugging Face's documentation
    has it, or their JSON text, as in OpenAI's format."""
    forms: list[Callable[[str], Any]] = [json.loads, str] if any(one.tool_calls for one in messages) else [str]
    for arguments in forms:
        try:
            turns = [_turn(tokenizer, message, arguments) for message in messages]
            return _applied(tokenizer, turns, tools), arguments
        except Exception as error:  # templates may raise any error
            failure = error
    raise InvalidRequest(f"the chat template refuses these messages: {failure}", "messages") from failure


def _applied(
    tokenizer: "PreTrainedTokenizerBase", turns: list[dict[str, Any]], tools: list[dict[str, Any]] | None
) -> str:
    return str(tokenizer.apply_chat_template(turns, tools=tools, tokenize=False, add_generation_prompt=True))


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
