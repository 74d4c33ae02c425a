"""Conversations in a model's chat template: developers, tools' messages and calls."""

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from semspec.engine.checkpoint import load_tokenizer
from semspec.engine.conversation import render, template_variables
from semspec.errors import InvalidRequest, Mismatch
from semspec.types import Message

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}{% endfor %}"
SPOKEN = "{% for m in messages if m.role in ('user', 'system') %}<{{ m.role }}>{{ m.content }}{% endfor %}"
WITH_DEVELOPER = "{# knows the role developer #}" + PLAIN
CALLS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    "[{{ c.function.name }} {{ ARGUMENTS }}]{% endfor %}{% endfor %}"
)
OBJECTS = CALLS.replace("ARGUMENTS", "c.function.arguments['of']")
TEXTS = CALLS.replace("ARGUMENTS", "'of: ' + c.function.arguments")

FUNCTION = {"name": "count", "arguments": '{"of": "pens"}'}
CALL = json.dumps([{"id": "call-1", "type": "function", "function": FUNCTION}])
ASKED = Message("user", "How many?")
CALLED = Message("assistant", "", CALL)
ANSWERED = Message("tool", "25", tool_call_id="call-1")


@pytest.fixture
def tokenizer(checkpoints: dict[str, Path]) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(checkpoints["qwen2"])


@pytest.mark.parametrize(("template", "role"), [(PLAIN, "system"), (WITH_DEVELOPER, "developer")])
def test_developer_is_the_system_unless_the_template_knows_the_role(
    tokenizer: PreTrainedTokenizerBase, template: str, role: str
) -> None:
    tokenizer.chat_template = template
    assert render(tokenizer, [Message("developer", "Be brief."), ASKED], "m") == f"<{role}>Be brief.<user>How many?"


@pytest.mark.parametrize(("template", "shown"), [(OBJECTS, "pens"), (TEXTS, 'of: {"of": "pens"}')])
def test_calls_are_rendered_in_the_form_that_the_template_takes(
    tokenizer: PreTrainedTokenizerBase, template: str, shown: str
) -> None:
    tokenizer.chat_template = template
    text = render(tokenizer, [ASKED, CALLED, ANSWERED], "m")
    assert text == f"<user>How many?<assistant>[count {shown}]<tool>25"


@pytest.mark.parametrize(
    ("template", "messages"),
    [(SPOKEN, [ASKED, ANSWERED]), (PLAIN, [ASKED, CALLED, ANSWERED]), (PLAIN, [ASKED, CALLED])],
)
def test_what_the_template_leaves_out_is_refused(
    tokenizer: PreTrainedTokenizerBase, template: str, messages: list[Message]
) -> None:
    tokenizer.chat_template = template
    with pytest.raises(InvalidRequest, match="does not show tool calls, or messages of the role 'tool'") as refused:
        render(tokenizer, messages, "m")
    assert refused.value.parameter == "messages"


def test_template_that_refuses_is_quoted(tokenizer: PreTrainedTokenizerBase) -> None:
    tokenizer.chat_template = "{{ raise_exception('only users') }}"
    for messages in ([ASKED], [ASKED, CALLED]):
        with pytest.raises(InvalidRequest, match="refuses these messages: only users"):
            render(tokenizer, messages, "m")


def test_tool_that_is_rendered_needs_no_call(tokenizer: PreTrainedTokenizerBase) -> None:
    tokenizer.chat_template = PLAIN
    assert render(tokenizer, [ASKED, ANSWERED], "m") == "<user>How many?<tool>25"


TOOLS = json.dumps([{"type": "function", "function": {"name": "weigh"}}])
WITH_TOOLS = "{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}"


def test_tools_are_shown_in_a_known_format_or_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    tokenizer.chat_template = WITH_TOOLS + "{% if tools %}<tool_call>{% endif %}" + PLAIN
    assert render(tokenizer, [ASKED], "m", TOOLS) == "[weigh]<tool_call><user>How many?"
    assert render(tokenizer, [ASKED], "m") == "<user>How many?"
    for template, reason in ((PLAIN, "does not show them"), (WITH_TOOLS + PLAIN, "another format of calls")):
        tokenizer.chat_template = template
        with pytest.raises(InvalidRequest, match=reason) as refused:
            render(tokenizer, [ASKED], "m", TOOLS)
        assert refused.value.parameter == "tools"


THINKING = PLAIN + "<assistant>{% if enable_thinking is defined and enable_thinking is false %}</think>{% endif %}"
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


@pytest.mark.parametrize(
    ("variables", "end"),
    [("", ""), ("{}", ""), ('{"enable_thinking": true}', ""), ('{"enable_thinking": false}', "</think>")],
)
def test_template_is_rendered_with_its_variables(tokenizer: PreTrainedTokenizerBase, variables: str, end: str) -> None:
    tokenizer.chat_template = THINKING
    assert render(tokenizer, [ASKED], "m", variables=variables) == f"<user>How many?<assistant>{end}"


@pytest.mark.parametrize("name", ["thinking", "messages", "add_generation_prompt", "bos_token", "tokenize", "self"])
def test_variable_that_changes_nothing_or_is_set_already_is_refused(
    tokenizer: PreTrainedTokenizerBase, name: str
) -> None:
    tokenizer.chat_template = THINKING + "{% if add_generation_prompt %}{{ bos_token }}{% endif %}"
    with pytest.raises(
        InvalidRequest, match=f"chat_template_kwargs: the chat template of m has no .*{name}"
    ) as refused:
        render(tokenizer, [ASKED], "m", variables=json.dumps({"enable_thinking": False, name: False}))
    assert refused.value.parameter == "chat_template_kwargs"


NO_TOOLS = ("\x00", "{}", "[1]", '[{"function": {}}]', '[{"function": {"name": 1}}]', "[" * 20_000)
NO_VARIABLES = ("\x00", "[]", "1", '{"enable_thinking": []}', '{"enable_thinking": "\\ud800"}', "[" * 20_000)


@pytest.mark.parametrize(
    ("field", "given", "complaint"),
    [
        *(("tools", text, "tools: not a JSON list of functions") for text in NO_TOOLS),
        *(("variables", text, "chat_template_kwargs: not a JSON object of") for text in NO_VARIABLES),
    ],
)
def test_tools_and_variables_that_are_none_are_refused(
    tokenizer: PreTrainedTokenizerBase, field: str, given: str, complaint: str
) -> None:
    tokenizer.chat_template = THINKING
    with pytest.raises(InvalidRequest, match=complaint):
        render(tokenizer, [ASKED], "m", **{field: given})


def test_malformed_template_for_tools_is_refused_at_start(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    tokenizer.chat_template = {"default": PLAIN, "tool_use": "{% for m in messages %}"}
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(Mismatch, match=r"chat template of .* is malformed in line 1"):
        load_tokenizer(str(tmp_path))
