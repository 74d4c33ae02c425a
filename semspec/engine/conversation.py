"""Renders conversations with a model's chat template."""

import inspect
import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from jinja2 import meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from semspec.errors import InvalidField, InvalidRequest, is_utf8
from semspec.types import Conversation, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MARK = "semspecmark"
"""Replaces a tool's content and the names of called functions, to test whether a template shows them."""

_SET_BY_TRANSFORMERS = frozenset({"conversations", "messages", "raise_exception", "strftime_now"})
"""Variables that transformers sets, next to the parameters of `apply_chat_template` and special tokens."""

_VARIABLES = "chat_template_kwargs"
"""The request field of the variables."""

CALL = "<tool_call>"
"""Begins a call in the only supported format, that of Hermes and Qwen."""


def render(
    tokenizer: "PreTrainedTokenizerBase",
    conversation: Conversation,
    model: str,
) -> str:
    """Return the text of a conversation up to the start of the assistant's turn; `model` is its name in errors.

    A developer is the system where the template has no such role.
    Raises: InvalidRequest when there is no template, or it refuses the messages, leaves out a tool or a tool's message
    or call, has another format of calls, or does not read one of the variables.
    """
    if tokenizer.chat_template is None:
        raise InvalidRequest(
            f"{model} has no chat template", "messages", remedy="use /v1/completions"
        )
    messages, tools = conversation.messages, list(conversation.tools) or None
    if not any(message.content.strip() for message in messages):
        raise InvalidRequest("the messages are empty", "messages", remedy="send some text")
    if tools and (flaw := tools_flaw(tokenizer, str(tokenizer.chat_template))):
        raise InvalidField(f"the chat template of {model} {flaw}", "tools", remedy="leave them out")
    variables = conversation.variables
    if variables and (unknown := sorted(variables.keys() - template_variables(tokenizer))):
        message = (
            f"the chat template of {model} has no variable {unknown[0]!r} that a request may set"
        )
        raise InvalidField(message, _VARIABLES, remedy="leave it out")
    options = {"tools": tools, **variables}
    text, arguments = _render_turns(tokenizer, messages, options)
    if not is_utf8(text):
        raise InvalidRequest(
            "a text or a call contains a lone surrogate, which is not valid Unicode", "messages"
        )
    if any(message.role == "tool" or message.tool_calls for message in messages):
        marked = [_turn(tokenizer, message, arguments, is_marked=True) for message in messages]
        if _apply(tokenizer, marked, options).count(_MARK) < json.dumps(marked).count(_MARK):
            reason = "does not show tool calls, or messages of the role 'tool'"
            raise InvalidRequest(
                f"the chat template of {model} {reason}", "messages", remedy="leave them out"
            )
    return text


class _GenerationTag(Extension):
    """The tag `generation`, with which templates mark an assistant's turn, and which transformers supports."""

    tags = {"generation"}  # noqa: RUF012  # as in the base class

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@lru_cache(maxsize=8)
def _undeclared_variables(template: str) -> frozenset[str]:
    """Return the variables that a template reads and does not set. Raises: TemplateSyntaxError."""
    environment = ImmutableSandboxedEnvironment(
        extensions=[_GenerationTag, "jinja2.ext.loopcontrols"]
    )
    return frozenset(meta.find_undeclared_variables(environment.parse(template)))


def template_variables(tokenizer: "PreTrainedTokenizerBase") -> frozenset[str]:
    """Return the variables of the chat template that a request may set: transformers does not set them.

    Raises: TemplateSyntaxError when the template is malformed.
    """
    template = tokenizer.chat_template
    templates = (
        list(template.values()) if isinstance(template, dict) else [template] if template else []
    )
    parameters = inspect.signature(type(tokenizer).apply_chat_template).parameters
    special = (*tokenizer.SPECIAL_TOKENS_ATTRIBUTES, *tokenizer.special_tokens_map)
    return frozenset().union(*map(_undeclared_variables, templates)) - {
        *parameters,
        *special,
        *_SET_BY_TRANSFORMERS,
    }


@lru_cache(maxsize=8)
def tools_flaw(tokenizer: "PreTrainedTokenizerBase", template: str) -> str:
    """Return why the tokenizer's `template` cannot offer tools, after a trial; empty if it can."""
    parameters = {"type": "object", "properties": {}}
    tool = {
        "type": "function",
        "function": {"name": _MARK, "description": "", "parameters": parameters},
    }
    turns = [{"role": "user", "content": "A task."}]
    try:
        bare, shown = (_apply(tokenizer, turns, {"tools": tools}) for tools in (None, [tool]))
    except Exception as error:  # templates may raise any error
        return f"refuses them: {error}"
    if shown == bare:
        return "does not show them"
    if CALL not in shown:
        return f"has another format of calls than {CALL}, which is the only one that is read"
    return ""


def _render_turns(
    tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Message], options: dict[str, Any]
) -> tuple[str, Callable[[str], Any]]:
    """Return the text, and the function that converts a call's arguments to the form that the template accepts.

    This is an object, as in Hugging Face's documentation, or JSON text, as in OpenAI's format.
    """
    forms: list[Callable[[str], Any]] = (
        [_parse_arguments, str] if any(turn.tool_calls for turn in messages) else [str]
    )
    for arguments in forms:
        try:
            turns = [_turn(tokenizer, message, arguments) for message in messages]
            return _apply(tokenizer, turns, options), arguments
        except Exception as error:  # templates may raise any error
            failure = error
    raise InvalidRequest(
        f"the chat template refuses these messages: {failure}", "messages"
    ) from failure


def _parse_arguments(arguments: str) -> Any:
    """Return the value of a call's arguments, or their text if a model wrote invalid JSON."""
    try:
        return json.loads(arguments)
    except json.JSONDecodeError:
        return arguments


def _apply(
    tokenizer: "PreTrainedTokenizerBase", turns: list[dict[str, Any]], options: dict[str, Any]
) -> str:
    return str(
        tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, **options)
    )


def _turn(
    tokenizer: "PreTrainedTokenizerBase",
    message: Message,
    arguments: Callable[[str], Any],
    is_marked: bool = False,
) -> dict[str, Any]:
    """Return a message as templates expect it, without empty fields; `is_marked`: with `_MARK` in its content."""
    has_developer = "developer" in str(tokenizer.chat_template)
    role = "system" if message.role == "developer" and not has_developer else message.role
    turn: dict[str, Any] = {"role": role, "content": message.content}
    turn |= {"name": message.name} if message.name else {}
    if message.role == "tool":
        turn |= {"tool_call_id": message.tool_call_id} if message.tool_call_id else {}
        turn |= {"content": _MARK} if is_marked else {}
    if message.tool_calls:
        calls = [call.openai for call in message.tool_calls]
        for call in calls:
            call["function"]["arguments"] = arguments(call["function"]["arguments"])
            if is_marked:
                call["function"]["name"] = _MARK
        turn |= {"content": message.content or None, "tool_calls": calls}
    return turn


EARLIER_TURN = "semspec: an earlier turn"
"""Content of an assistant's turn, by which the text that a template writes after it is found."""


def ids_after_turn(tokenizer: "PreTrainedTokenizerBase") -> list[int]:
    """Return the tokens that the chat template writes after an assistant's turn; empty if no template renders one."""
    turns = [{"role": "user", "content": "A task."}, {"role": "assistant", "content": EARLIER_TURN}]
    try:
        rendered = str(tokenizer.apply_chat_template(turns, tokenize=False))
    except Exception:  # templates may raise any error, and there may be none
        return []
    _, separator, suffix = rendered.rpartition(EARLIER_TURN)
    token_ids: list[int] = tokenizer.encode(suffix if separator else "", add_special_tokens=False)
    return token_ids
