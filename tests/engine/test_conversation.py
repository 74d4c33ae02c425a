"""Conversations in a model's chat template: developers, tools' messages and calls, and questions about a context: the
right turn for the template, the right probabilities, nothing left behind."""

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerBase

from semspec.engine.causal_lm import CausalLM
from semspec.engine.checkpoint import load_tokenizer
from semspec.engine.conversation import render, supports_choices, template_variables, turn_after
from semspec.engine.transformers_engine import TransformersEngine
from semspec.errors import ContextTooLong, InvalidRequest, Mismatch
from semspec.reasoning import HARMONY, MISTRAL, ReasoningForm
from semspec.types import Context, Message, Segment, SegmentEnd, Writer
from tests.engine.support import CHATML, Load, params, prompt, segment, sizes_of, written

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

FUNCTION = {"name": "count", "arguments": '{"of": "pens"}'}
CALL = json.dumps([{"id": "call-1", "type": "function", "function": FUNCTION}])
ASKED = Message("user", "How many?")
CALLED = Message("assistant", "", CALL)
ANSWERED = Message("tool", "25", tool_call_id="call-1")
CUT = '{"of": "pe'
BROKEN = Message(
    "assistant",
    "",
    json.dumps([{"type": "function", "function": {"name": "count", "arguments": CUT}}]),
)


@pytest.fixture
def tokenizer(checkpoints: dict[str, Path]) -> PreTrainedTokenizerBase:
    return load_tokenizer(str(checkpoints["qwen2"]))


TOOLS = json.dumps([{"type": "function", "function": {"name": "weigh"}}])
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
        (THINKING, [ASKED], {"variables": "{}"}, ANSWERS),
        (THINKING, [ASKED], {"variables": '{"enable_thinking": true}'}, ANSWERS),
        (THINKING, [ASKED], {"variables": '{"enable_thinking": false}'}, f"{ANSWERS}</think>"),
    ],
)
def test_conversation_is_rendered_in_the_form_that_the_template_takes(
    tokenizer: PreTrainedTokenizerBase,
    template: str,
    messages: list[Message],
    fields: dict[str, str],
    text: str,
) -> None:
    """A developer is the system unless the template knows the role; a tool that is rendered needs no call."""
    tokenizer.chat_template = template
    assert render(tokenizer, messages, "m", **fields) == text


REFUSING = "{{ raise_exception('only users') }}"
NO_TOOLS = ("\x00", "{}", "[1]", '[{"function": {}}]', '[{"function": {"name": 1}}]', "[" * 20_000)
NO_VARIABLES = (
    "\x00",
    "[]",
    "1",
    '{"enable_thinking": []}',
    '{"enable_thinking": "\\ud800"}',
    "[" * 20_000,
)
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
            (THINKING, [ASKED], {"tools": one}, "tools", "not a JSON list of functions")
            for one in NO_TOOLS
        ),
        *(
            (THINKING, [ASKED], {"variables": one}, "chat_template_kwargs", "not a JSON object of")
            for one in NO_VARIABLES
        ),
        *(
            (
                SET_ALREADY,
                [ASKED],
                {"variables": json.dumps({name: False})},
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
    fields: dict[str, str],
    parameter: str,
    complaint: str,
) -> None:
    tokenizer.chat_template = template
    with pytest.raises(InvalidRequest, match=complaint) as refused:
        render(tokenizer, messages, "m", **fields)
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


def test_malformed_template_for_tools_is_refused_at_start(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    tokenizer.chat_template = {"default": PLAIN, "tool_use": "{% for m in messages %}"}
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(Mismatch, match=r"chat template of .* is malformed in line 1"):
        load_tokenizer(str(tmp_path))


REASONING = (
    "{% for m in messages %}{% if m.role == 'user' %}<|User|>{{ m.content | trim }}{% endif %}"
    "{% if m.role == 'assistant' %}{% set text = m.content %}"
    "{% if '</think>' in text %}{% set text = text.split('</think>')[-1] %}{% endif %}"
    "<|Assistant|>{{ text }}<eos>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|Assistant|><think>\n{% endif %}"
)
"""As DeepSeek-R1's: an earlier turn is stripped of its reasoning, the next one's is opened."""
LAST_TURN = "{{ messages[-1]['content'] + '\n\n<think>\n\n' }}"
FIRST_ANSWER = "{{ messages[0]['content'] }}{{ messages[1]['content'] }}"
STRICT = "{{ raise_exception('one question at a time') }}"

QUESTION, PREFILL, DIGITS = "How many pens?", "<think>Tom has ", [str(digit) for digit in range(10)]


def text_after(
    tokenizer: PreTrainedTokenizerBase, template: str, question: str, prefill: str
) -> str:
    tokenizer.chat_template = template
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "encode", lambda text, **_: text)
        return str(turn_after(tokenizer, question, prefill))


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (
            CHATML,
            "<|im_end|>\n<|im_start|>user\nHow many pens?<|im_end|>\n<|im_start|>assistant\n<think>Tom has ",
        ),
        (REASONING, "<eos><|User|>How many pens?<|Assistant|><think>\nTom has "),
    ],
)
def test_turn_ends_the_assistants_and_begins_its_next(
    tokenizer: PreTrainedTokenizerBase, template: str, expected: str
) -> None:
    assert text_after(tokenizer, template, QUESTION, PREFILL) == expected


@pytest.mark.parametrize("form", [MISTRAL, HARMONY], ids=["mistral", "harmony"])
def test_prefill_opens_the_reasoning_in_the_models_own_form(
    tokenizer: PreTrainedTokenizerBase, form: ReasoningForm
) -> None:
    tokenizer.add_tokens(
        [AddedToken(mark, special=True, normalized=False) for mark in sorted(form.marks)]
    )
    assert text_after(tokenizer, CHATML, QUESTION, PREFILL).endswith(
        f"assistant\n{form.opening}Tom has "
    )
    opened = CHATML.replace("assistant\n{% endif %}", f"assistant\n{form.opening}{{% endif %}}")
    assert text_after(tokenizer, opened, QUESTION, PREFILL).endswith(
        f"assistant\n{form.opening}Tom has "
    )


def test_prefill_without_a_thought_is_taken_as_it_is(tokenizer: PreTrainedTokenizerBase) -> None:
    assert text_after(tokenizer, REASONING, f" {QUESTION}\n", "So ").endswith(
        "<|Assistant|><think>\nSo "
    )


@pytest.mark.parametrize("template", [LAST_TURN, FIRST_ANSWER, STRICT, None])
def test_template_that_drops_a_turn_cannot_be_asked(
    tokenizer: PreTrainedTokenizerBase, template: str | None
) -> None:
    tokenizer.chat_template = template
    assert not supports_choices(tokenizer)
    with pytest.raises(Mismatch, match="choose another strategy"):
        turn_after(tokenizer, QUESTION, PREFILL)


@pytest.fixture(params=[CHATML, REASONING], ids=["chatml", "reasoning"])
def checkpoint(
    request: pytest.FixtureRequest, checkpoints: dict[str, Path], tmp_path: Path
) -> Path:
    """The Qwen2 one with another chat template."""
    folder = tmp_path / "asked"
    shutil.copytree(checkpoints["qwen2"], folder)
    (folder / "chat_template.jinja").write_text(request.param)
    return folder


async def reasoned(engine: TransformersEngine) -> Context:
    """A context of a prompt and two steps, the first of which ends a thought."""
    texts = "Tom has pens.</think>\n\n", "Tom sells 6 pens.\n\n"
    return (await prompt(engine)).extended(*(segment(engine, text) for text in texts))


@pytest.mark.parametrize("has_ended", [False, True])
async def test_probabilities_are_those_of_the_whole_sequence(
    engine: TransformersEngine, checkpoint: Path, has_ended: bool
) -> None:
    """The context token by token, what a template would have stripped included, then the turn, ended once."""
    context = await reasoned(engine)
    lm = CausalLM.load(str(checkpoint), None, "cpu", "float32")
    tokens, turn = (
        lm.tokenizer.context_ids(context),
        turn_after(lm.tokenizer.raw, QUESTION, PREFILL),
    )
    if has_ended:
        [eos] = lm.tokenizer.eos_ids
        context = context.extended(
            Segment("", (eos,), lm.info.tokenizer, Writer.DRAFT, SegmentEnd.EOS)
        )
        tokens, turn = [*tokens, eos], turn[1:] if turn[0] == eos else turn
    reply = await engine.score_choices(context, QUESTION, PREFILL, DIGITS)
    expected = torch.softmax(lm.forward([*tokens, *turn], lm.new_kv()).logits[-1], -1)
    ids = [lm.tokenizer.raw.convert_tokens_to_ids(digit) for digit in DIGITS]
    assert reply.probabilities == pytest.approx(expected[ids].tolist(), rel=1e-4)
    assert reply.likeliest == lm.tokenizer.token_text(int(expected.argmax()))
    assert 0 < sum(reply.probabilities) < 1


async def test_asking_leaves_the_context_in_the_cache_and_nothing_else(
    engine: TransformersEngine, uncached: TransformersEngine
) -> None:
    context = await reasoned(engine)
    first = await engine.score_choices(context, QUESTION, PREFILL, DIGITS, "s")
    while not engine.cache.prefixes:  # it gives its prefix back after the answer
        await asyncio.sleep(0.001)
    assert [one.tokens for one in engine.cache.prefixes] == [engine.tokenizer.context_ids(context)]
    sizes = sizes_of(engine)
    again = await engine.score_choices(context, QUESTION, PREFILL, DIGITS, "s")
    assert sizes == [len(turn_after(engine.tokenizer.raw, QUESTION, PREFILL))]
    sizes.clear()
    [mine] = await written(engine, context, params(session="s", max_tokens=5, want_states=True))
    assert sizes == [1] * len(mine.segment.token_ids)
    [fresh] = await written(uncached, context, params(max_tokens=5))
    assert mine.segment == fresh.segment
    recomputed = await uncached.score_choices(context, QUESTION, PREFILL, DIGITS)
    for reply in (first, again):
        assert reply.probabilities == pytest.approx(recomputed.probabilities, rel=1e-4)


async def test_handshake_says_who_can_be_asked(
    engine: TransformersEngine, checkpoints: dict[str, Path], load: Load
) -> None:
    silent = load(checkpoints["llama"])  # its template drops earlier turns
    assert (await engine.info()).supports_choices
    assert not (await silent.info()).supports_choices
    with pytest.raises(Mismatch, match="drops earlier turns"):
        await silent.score_choices(await reasoned(silent), QUESTION, PREFILL, DIGITS)


@pytest.mark.parametrize("option", ["12", "", "sesquipedalian"])
async def test_option_that_is_not_one_token_is_refused_by_name(
    engine: TransformersEngine, option: str
) -> None:
    context = Context((await engine.encode([Message("user", QUESTION)]),))
    with pytest.raises(InvalidRequest) as refusal:
        await engine.score_choices(context, QUESTION, PREFILL, ["7", option])
    assert refusal.value.parameter == "options[1]"
    with pytest.raises(InvalidRequest, match="options"):
        await engine.score_choices(context, QUESTION, PREFILL, [])


async def test_question_that_does_not_fit_is_refused(engine: TransformersEngine) -> None:
    context = Context((await engine.encode("Tom has pens. " * 118),))
    with pytest.raises(ContextTooLong, match="600"):
        await engine.score_choices(context, QUESTION * 60, PREFILL, DIGITS)
