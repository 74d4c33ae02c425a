"""Render conversations with a model's chat template."""

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
"""Stands for a tool's content and for the names of called functions, to see whether a template shows them."""

_SET_BY_TRANSFORMERS = frozenset({"conversations", "messages", "raise_exception", "strftime_now"})
"""What a template may read, beside the parameters of `apply_chat_template` and special tokens."""

_VARIABLES = "chat_template_kwargs"
"""The request field of the variables."""

CALL = "<tool_call>"
"""Begins a call in the only format of calls that is read: that of Hermes and Qwen."""


def render(
    tokenizer: "PreTrainedTokenizerBase",
    conversation: Conversation,
    model: str,
) -> str:
    """The text of a conversation up to the start of the assistant's turn; `model` is the name in errors.

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
    text, arguments = _rendered(tokenizer, messages, options)
    if not is_utf8(text):
        raise InvalidRequest(
            "a text or a call contains a lone surrogate, which is not valid Unicode", "messages"
        )
    if any(message.role == "tool" or message.tool_calls for message in messages):
        marked = [_turn(tokenizer, message, arguments, is_marked=True) for message in messages]
        if _applied(tokenizer, marked, options).count(_MARK) < json.dumps(marked).count(_MARK):
            reason = "does not show tool calls, or messages of the role 'tool'"
            raise InvalidRequest(
                f"the chat template of {model} {reason}", "messages", remedy="leave them out"
            )
    return text


class _AssistantsTurn(Extension):
    """The tag `generation`, with which templates mark an assistant's turn; transformers knows it when it renders."""

    tags = {"generation"}  # noqa: RUF012  # as the base class has it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@lru_cache(maxsize=8)
def _read_by(template: str) -> frozenset[str]:
    """The variables that a template takes from outside. Raises: TemplateSyntaxError."""
    environment = ImmutableSandboxedEnvironment(
        extensions=[_AssistantsTurn, "jinja2.ext.loopcontrols"]
    )
    return frozenset(meta.find_undeclared_variables(environment.parse(template)))


def template_variables(tokenizer: "PreTrainedTokenizerBase") -> frozenset[str]:
    """Variables of the chat template that a request may set: it reads them, and nothing else that renders it sets them.
    Raises: TemplateSyntaxError when the template is malformed."""
    template = tokenizer.chat_template
    templates = (
        list(template.values()) if isinstance(template, dict) else [template] if template else []
    )
    parameters = inspect.signature(type(tokenizer).apply_chat_template).parameters
    special = (*tokenizer.SPECIAL_TOKENS_ATTRIBUTES, *tokenizer.special_tokens_map)
    return frozenset().union(*map(_read_by, templates)) - {
        *parameters,
        *special,
        *_SET_BY_TRANSFORMERS,
    }


@lru_cache(maxsize=8)
def tools_flaw(tokenizer: "PreTrainedTokenizerBase", template: str) -> str:
    """Why no tools can be offered by the tokenizer's `template`, rendered with and without one; empty if they can."""
    parameters = {"type": "object", "properties": {}}
    tool = {
        "type": "function",
        "function": {"name": _MARK, "description": "", "parameters": parameters},
    }
    turns = [{"role": "user", "content": "A task."}]
    try:
        bare, shown = (_applied(tokenizer, turns, {"tools": tools}) for tools in (None, [tool]))
    except Exception as error:  # templates may raise any error
        return f"refuses them: {error}"
    if shown == bare:
        return "does not show them"
    return (
        ""
        if CALL in shown
        else f"has another format of calls than {CALL}, which is the only one that is read"
    )


def _rendered(
    tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Message], options: dict[str, Any]
) -> tuple[str, Callable[[str], Any]]:
    """The text, and the form of a call's arguments that the template takes: an object, as Hugging Face's documentation
    has it, or their JSON text, as in OpenAI's format."""
    forms: list[Callable[[str], Any]] = (
        [_parse_arguments, str] if any(turn.tool_calls for turn in messages) else [str]
    )
    for arguments in forms:
        try:
            turns = [_turn(tokenizer, message, arguments) for message in messages]
            return _applied(tokenizer, turns, options), arguments
        except Exception as error:  # templates may raise any error
            failure = error
    raise InvalidRequest(
        f"the chat template refuses these messages: {failure}", "messages"
    ) from failure


def _parse_arguments(arguments: str) -> Any:
    """Return the value of a call's arguments, or their text if it is not JSON: models make mistakes."""
    try:
        return json.loads(arguments)
    except json.JSONDecodeError:
        return arguments


def _applied(
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
    """A message as templates expect it, with the fields it has; with marks, if wanted."""
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
"""Stands for an assistant's turn in a rendered template, to find what the template writes after it."""


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
