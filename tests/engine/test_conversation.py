"""Conversations in a model's chat template: developers, tools' messages and calls."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from semspec.engine.checkpoint import load_tokenizer
from semspec.engine.conversation import render, template_variables
from semspec.errors import InvalidRequest, Mismatch
from semspec.types import Conversation, Message, ToolCall

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}{% endfor %}"
SPOKEN = "{% for m in messages if m.role in ('user', 'system') %}<{{ m.role }}>{{ m.content }}{% endfor %}"
WITH_DEVELOPER = "{# knows the role developer #}" + PLAIN
CALLS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    "[{{ c.function.name }} {{ ARGUMENTS }}]{% endfor %}{% endfor %}"
)
OBJECTS = CALLS.replace("ARGUMENTS", "c.function.arguments['of']")
TEXTS = CALLS.replace("ARGUMENTS", "'of: ' + c.function.arguments")
AS_JSON = CALLS.replace("ARGUMENTS", "c.function.arguments | tojson")
NAMED = "{% for m in messages %}<{{ m.role }}{{ ' ' + m.name if m.name }}>{{ m.content or '' }}{% endfor %}"

ASKED = Message("user", "How many?")
CALLED = Message("assistant", "", (ToolCall("call-1", "count", '{"of": "pens"}'),))
ANSWERED = Message("tool", "25", tool_call_id="call-1")
CUT = '{"of": "pe'
BROKEN = Message("assistant", "", (ToolCall("", "count", CUT),))


@pytest.fixture
def tokenizer(checkpoints: dict[str, Path]) -> PreTrainedTokenizerBase:
    return load_tokenizer(str(checkpoints["qwen2"]))


TOOLS = ({"type": "function", "function": {"name": "weigh"}},)
WITH_TOOLS = "{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}" + PLAIN
WITH_FORMAT = "{% if tools %}<tool_call>{% endif %}" + WITH_TOOLS
THINKING = (
    PLAIN
    + "<assistant>{% if enable_thinking is defined and enable_thinking is false %}</think>{% endif %}"
)
ANSWERS = "<user>How many?<assistant>"


@pytest.mark.parametrize(
    ("template", "messages", "fields", "text"),
    [
        (PLAIN, [Message("developer", "Be brief."), ASKED], {}, "<system>Be brief.<user>How many?"),
        (
            WITH_DEVELOPER,
            [Message("developer", "Be brief."), ASKED],
            {},
            "<developer>Be brief.<user>How many?",
        ),
        (OBJECTS, [ASKED, CALLED, ANSWERED], {}, f"{ANSWERS}[count pens]<tool>25"),
        (TEXTS, [ASKED, CALLED, ANSWERED], {}, f'{ANSWERS}[count of: {{"of": "pens"}}]<tool>25'),
        (
            AS_JSON,
            [ASKED, CALLED, BROKEN],
            {},
            f'{ANSWERS}[count {{"of": "pens"}}]<assistant>[count {json.dumps(CUT)}]',
        ),
        (TEXTS, [ASKED, BROKEN], {}, f"{ANSWERS}[count of: {CUT}]"),
        (PLAIN, [ASKED, ANSWERED], {}, "<user>How many?<tool>25"),
        (
            NAMED,
            [replace(ASKED, name="Ann"), replace(ANSWERED, name="count")],
            {},
            "<user Ann>How many?<tool count>25",
        ),
        (PLAIN, [replace(ASKED, name="Ann")], {}, "<user>How many?"),
        (WITH_FORMAT, [ASKED], {"tools": TOOLS}, "<tool_call>[weigh]<user>How many?"),
        (WITH_FORMAT, [ASKED], {}, "<user>How many?"),
        (THINKING, [ASKED], {}, ANSWERS),
        (THINKING, [ASKED], {"variables": {}}, ANSWERS),
        (THINKING, [ASKED], {"variables": {"enable_thinking": True}}, ANSWERS),
        (THINKING, [ASKED], {"variables": {"enable_thinking": False}}, f"{ANSWERS}</think>"),
    ],
)
def test_conversation_is_rendered_in_the_form_that_the_template_takes(
    tokenizer: PreTrainedTokenizerBase,
    template: str,
    messages: list[Message],
    fields: dict[str, Any],
    text: str,
) -> None:
    """A developer is the system unless the template knows the role; a tool that is rendered needs no call."""
    tokenizer.chat_template = template
    assert render(tokenizer, Conversation(tuple(messages), **fields), "m") == text


REFUSING = "{{ raise_exception('only users') }}"
SET_ALREADY = THINKING + "{% if add_generation_prompt %}{{ bos_token }}{% endif %}"
UNSHOWN = "does not show tool calls, or messages of the role 'tool'"


@pytest.mark.parametrize(
    ("template", "messages", "fields", "parameter", "complaint"),
    [
        (SPOKEN, [ASKED, ANSWERED], {}, "messages", UNSHOWN),
        (PLAIN, [ASKED, CALLED, ANSWERED], {}, "messages", UNSHOWN),
        (PLAIN, [ASKED, CALLED], {}, "messages", UNSHOWN),
        (REFUSING, [ASKED], {}, "messages", "refuses these messages: only users"),
        (REFUSING, [ASKED, CALLED], {}, "messages", "refuses these messages: only users"),
        (PLAIN, [ASKED], {"tools": TOOLS}, "tools", "does not show them"),
        (
            PLAIN,
            [Message("user", "<tool_call> or weigh?")],
            {"tools": TOOLS},
            "tools",
            "does not show them",
        ),
        (WITH_TOOLS, [ASKED], {"tools": TOOLS}, "tools", "another format of calls"),
        *(
            (
                SET_ALREADY,
                [ASKED],
                {"variables": {name: False}},
                "chat_template_kwargs",
                f"has no .*{name}",
            )
            for name in (
                "thinking",
                "messages",
                "add_generation_prompt",
                "bos_token",
                "tokenize",
                "self",
            )
        ),
    ],
)
def test_what_the_template_does_not_take_is_refused_by_field(
    tokenizer: PreTrainedTokenizerBase,
    template: str,
    messages: list[Message],
    fields: dict[str, Any],
    parameter: str,
    complaint: str,
) -> None:
    tokenizer.chat_template = template
    with pytest.raises(InvalidRequest, match=complaint) as refused:
        render(tokenizer, Conversation(tuple(messages), **fields), "m")
    assert refused.value.parameter == parameter


EFFORT = (
    "{% macro system() %}{% if effort is not defined %}{% set effort = 'medium' %}{% endif %}"
    "{{ effort }} {{ strftime_now('%Y') }}{{ bos_token }}{% endmacro %}"
    "{{ system() }}{% set ns = namespace(n=1) %}{% generation %}{{ ns.n }}{{ budget }}{% endgeneration %}"
    "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ raise_exception(m) }}{% endfor %}{{ tools }}"
)


@pytest.mark.parametrize(
    ("template", "names"),
    [
        (None, set()),
        (PLAIN, set()),
        (THINKING, {"enable_thinking"}),
        (EFFORT, {"effort", "budget"}),
        ({"default": THINKING, "tool_use": EFFORT}, {"enable_thinking", "effort", "budget"}),
    ],
    ids=["none", "plain", "thinking", "effort", "two templates"],
)
def test_variables_are_those_that_a_template_reads_and_nothing_else_sets(
    tokenizer: PreTrainedTokenizerBase, template: str | None, names: set[str]
) -> None:
    tokenizer.chat_template = template
    assert template_variables(tokenizer) == names


def test_bad_tool_template_is_refused(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    tokenizer.chat_template = {"default": PLAIN, "tool_use": "{% for m in messages %}"}
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(Mismatch, match=r"chat template of .* is malformed in line 1"):
        load_tokenizer(str(tmp_path))
