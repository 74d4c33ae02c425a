"""Draft and target with unlike chat templates: each reads the conversation in its own."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from semspec.decoding import Prompts, render_prompts
from semspec.decoding.loop import align_reasoning
from semspec.engine.checkpoint import chat_template_digest
from semspec.engine.torch_engine import TorchEngine
from semspec.errors import ContextTooLong, DeadlineExceeded, InvalidRequest, Unavailable
from semspec.reasoning import HARMONY
from semspec.types import Message, Piece
from tests.gateway.engines import Engines, served
from tests.helpers.checkpoints import loaded
from tests.helpers.gateway import Gateway, GatewayFactory, assert_error
from tests.helpers.gateway_fakes import WINDOW, Fakes
from tests.helpers.variants import OF_PRODUCT, VARIANTS

TARGETS = (
    "{% for message in messages %}{{ message['content'] + '\n\n' }}{% endfor %}"
    "{{ '<think>\n\n' }}{% if thinking is defined and not thinking %}{{ '</think>\n\n' }}{% endif %}"
)
DRAFTS = "{{ 'Day 1: ' }}{% for message in messages %}{{ message['content'] + ' ' }}{% endfor %}{{ '<think>\n\n' }}"
QUESTION = "Tom has pens: 25. Day 1: Tom sells 6 pens. How many pens does Tom have now?"
DRAFTING = [name for name in OF_PRODUCT if name not in ("target", "retrieval")]


@pytest.fixture
def fakes() -> Fakes:
    """A draft with a template of its own."""
    return Fakes.make().told(drafter={"chat_template": "[own]"})


@pytest.fixture
async def engines(checkpoints: dict[str, Path], tmp_path: Path) -> AsyncIterator[Engines]:
    """A Llama that drafts for a Qwen2 of the same vocabulary."""
    draft, target = (
        Path(shutil.copytree(checkpoints[name], tmp_path / name)) for name in ("llama", "qwen2")
    )
    (draft / "chat_template.jinja").write_text(DRAFTS)
    (target / "chat_template.jinja").write_text(TARGETS)
    async with loaded(draft, target) as engines:
        yield engines


def rendered(engine: TorchEngine) -> list[int]:
    """The ids that the model's own template gives."""
    turns = [{"role": "user", "content": QUESTION}]
    text = str(
        engine.tokenizer.raw.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    )
    return engine.tokenizer.ids_of(text)


async def ask(gateway: Gateway, **fields: Any) -> Any:
    return (await gateway.chat(messages=[{"role": "user", "content": QUESTION}], **fields)).json()


async def test_each_engine_reads_its_own_template(
    engines: Engines, tmp_path: Path, redis_url: str
) -> None:
    draft, target = engines
    async with served(engines, tmp_path, redis_url=redis_url) as gateway:
        answer = await ask(gateway, max_tokens=50)
        assert answer["semspec"]["fallback"] is None
        stored = await gateway.stored(answer["id"])
        assert stored["prompt"]["token_ids"] == rendered(target)
        assert stored["draft_prompt"]["token_ids"] == rendered(draft) != rendered(target)


async def test_cached_tokens_of_a_prompt_are_told_by_choice(
    engines: Engines, tmp_path: Path, redis_url: str
) -> None:
    async with (
        served(engines, tmp_path, redis_url=redis_url, prompt_tokens_details=True) as told,
        served(engines, tmp_path, redis_url=redis_url) as silent,
    ):
        for day, strategy in enumerate(("semantic", "token-level", "target"), start=2):
            question = [{"role": "user", "content": f"Day {day}: {QUESTION}"}]
            fields: Any = {"messages": question, "max_tokens": 20}
            fields |= {"semspec": {"strategy": strategy, "trace": True}}
            first, again = [await told.answer(**fields) for _ in range(2)]
            num_prompt = first["usage"]["prompt_tokens"]
            before, cached = (
                one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in (first, again)
            )
            assert before < num_prompt - 1 <= cached <= num_prompt
            *_, last = again["semspec"]["trace"]
            assert last["index"] == 0 or last["num_cached_tokens"] > num_prompt
            assert (await told.stored(again["id"]))["usage"] == again["usage"]
            assert "cached_tokens" not in (await silent.chat(**fields)).text
        asked = {"model": "semspec-demo:target", "input": question, "max_output_tokens": 9}
        usage = (await told.answer("/v1/responses", **asked))["usage"]
        assert usage["input_tokens_details"]["cached_tokens"] > 0


@pytest.mark.parametrize("opens", [True, False], ids=["open", "plain"])
async def test_reasoning_that_a_request_leaves_out_is_left_out_of_the_drafts_prompt(
    engines: Engines, tmp_path: Path, redis_url: str, opens: bool
) -> None:
    """The draft's template has no such variable."""
    draft, target = engines
    draft.tokenizer.raw.chat_template = DRAFTS if opens else DRAFTS.replace("<think>\n\n", "")
    async with served((draft, target), tmp_path, redis_url=redis_url) as gateway:
        for thinking in (False, True):
            answer = await ask(gateway, chat_template_kwargs={"thinking": thinking}, max_tokens=20)
            assert answer["semspec"]["fallback"] is None
            stored = await gateway.stored(answer["id"])
            end = "<think>\n\n" if thinking else "<think>\n\n</think>\n\n"
            assert stored["prompt"]["text"] == f"{QUESTION}\n\n{end}"
            assert stored["draft_prompt"]["text"] == f"Day 1: {QUESTION} {end}"
            assert bool(answer["choices"][0]["message"]["reasoning"]) is thinking


@pytest.mark.parametrize(
    ("draft", "target", "expected"),
    [
        ("Tom ", "Tom\n[THINK]", "Tom [THINK]"),
        ("Tom <think>\n", "Tom\n[THINK]", "Tom <think>\n"),
        ("Tom [THINK]", "Tom\n", "Tom "),
        ("Tom ", "Tom\n[THINK][/THINK]", "Tom [THINK][/THINK]"),
        ("Tom <think>\n</think>\n", "Tom\n[THINK]", "Tom [THINK]"),
        ("Tom <think>\n</think>\n", "Tom\n", "Tom <think>\n</think>\n"),
        ("Tom ", f"Tom{HARMONY.opening}", f"Tom {HARMONY.opening}"),
    ],
)
def test_drafts_prompt_follows_the_targets_form_of_reasoning(
    draft: str, target: str, expected: str
) -> None:
    assert align_reasoning(Piece(draft, (), ""), Piece(target, (), "")).text == expected


async def test_draft_without_a_template_or_with_the_same_reads_the_targets_prompt(
    engines: Engines,
) -> None:
    draft, target = engines
    info, messages = await target.info(), [Message("user", QUESTION)]
    prompt = await target.encode(messages)
    for draft_info in (
        replace(await draft.info(), chat_template=""),
        replace(await draft.info(), chat_template=info.chat_template),
    ):
        assert await render_prompts(
            messages, target.encode(messages), draft, draft_info, info
        ) == Prompts(prompt)
    plain = await target.encode(QUESTION)
    assert await render_prompts(
        QUESTION, target.encode(QUESTION), draft, await draft.info(), info
    ) == Prompts(plain)


async def test_digest_tells_templates_and_their_special_tokens_apart(engines: Engines) -> None:
    tokenizer = engines[0].tokenizer.raw
    own = chat_template_digest(tokenizer)
    assert own == (await engines[0].info()).chat_template != (await engines[1].info()).chat_template
    tokenizer.add_special_tokens({"eos_token": ":"})
    assert chat_template_digest(tokenizer) not in ("", own)
    tokenizer.chat_template = None
    assert chat_template_digest(tokenizer) == ""


@pytest.mark.parametrize("strategy", DRAFTING)
async def test_draft_reads_its_own_prompt_in_every_strategy(
    start_gateway: GatewayFactory, fakes: Fakes, strategy: str
) -> None:
    await (await start_gateway(fakes)).chat(semspec=VARIANTS[strategy])
    assert fakes.drafter.prompts == ["[own]<user>How many?"]
    assert set(fakes.drafter.read) <= {"[own]<user>How many?"}
    assert set(fakes.target.read) <= {"<user>How many?"}


async def test_resumed_generation_keeps_the_drafts_prompt(
    start_gateway: GatewayFactory, fakes: Fakes
) -> None:
    """Also when the draft's template has changed: the stored prompt counts."""
    undisturbed = (await (await start_gateway(fakes)).chat(max_tokens=120)).json()
    heirs = Fakes.make().told(drafter={"chat_template": "[changed]"})
    first, second = await start_gateway(fakes), await start_gateway(heirs)
    id = (await first.hang_up_after(1, max_tokens=120))[0]["id"]
    await second.events(id, after="1")
    assert set(heirs.drafter.read) == {"[own]<user>How many?"} and heirs.drafter.prompts == []
    stored = await second.stored(id)
    assert stored["draft_prompt"]["text"] == "[own]<user>How many?"
    assert stored["usage"] == undisturbed["usage"]


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (Unavailable("gone"), "the draft does not answer"),
        (DeadlineExceeded("late"), "the draft took too long"),
        (InvalidRequest("no system turns here"), "the draft refuses what it was sent"),
        (None, "the draft took too long"),
    ],
)
async def test_draft_that_cannot_render_leaves_the_answer_to_the_target(
    start_gateway: GatewayFactory,
    fakes: Fakes,
    refusal: Exception | None,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fakes.drafter.refusal = refusal
    if refusal is None:  # it hangs
        monkeypatch.setattr("semspec_gateway.generation.preparation.ENCODE_DEADLINE_S", 0.5)
        fakes.drafter.before_encode = asyncio.Event().wait
    gateway, heir = await start_gateway(fakes), await start_gateway()
    answer = (await gateway.chat(semspec={"trace": True})).json()
    assert answer["semspec"]["fallback"] == reason and fakes.drafter.read == []
    assert {record["writer"] for record in answer["semspec"]["trace"]} == {"target"}
    assert await gateway.metric("semspec_gateway_fallbacks_total") == 1
    id = (await gateway.hang_up_after(2))[0]["id"]
    await heir.events(id, after="2")
    assert heir.fakes.drafter.read == [], "nor does a gateway that resumes it ask the draft"


async def test_prompt_too_long_for_the_drafts_window_is_refused_by_field(
    start_gateway: GatewayFactory, fakes: Fakes
) -> None:
    gateway = await start_gateway(fakes)
    nearly = [{"role": "user", "content": "x" * (WINDOW - len("<user>") - 3)}]
    assert_error(await gateway.chat(messages=nearly), 400, param="messages")
    await gateway.answer(messages=nearly, semspec={"strategy": "target"})
    shorter = [{"role": "user", "content": "x" * (WINDOW - len("[own]<user>") - 20)}]
    assert (await gateway.chat(messages=shorter, max_tokens=21)).status_code == 400
    await gateway.answer(messages=shorter, max_tokens=20)


async def test_both_models_render_at_the_same_time(
    start_gateway: GatewayFactory, fakes: Fakes
) -> None:
    both = asyncio.Barrier(2)
    fakes.drafter.before_encode = fakes.target.before_encode = both.wait
    async with asyncio.timeout(60):
        answer = (await (await start_gateway(fakes)).chat()).json()
    assert answer["semspec"]["fallback"] is None
    assert fakes.drafter.prompts == ["[own]<user>How many?"]


@pytest.mark.parametrize(
    "too_long", [True, False], ids=["the draft refuses first", "the draft hangs"]
)
async def test_refusal_of_the_target_counts_and_ends_the_drafts_call(
    start_gateway: GatewayFactory, fakes: Fakes, too_long: bool
) -> None:
    called, ended = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        called.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def refuse() -> None:
        called.set()
        ended.set()
        raise ContextTooLong("too long for the draft")

    fakes.drafter.before_encode = refuse if too_long else hang
    fakes.target.before_encode = called.wait
    fakes.target.refusal = InvalidRequest("no system turns here")
    async with asyncio.timeout(60):
        error = (await (await start_gateway(fakes)).chat()).json()["error"]
    assert (error["message"], error["param"]) == (
        "no system turns here",
        "messages",
    )
    assert ended.is_set()
