"""Output held to a grammar: it is valid, drawn as ever, and everything else stays as it is."""

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from jsonschema import validate  # type: ignore[import-untyped]

from semspec.engine.causal_lm import CausalLM
from semspec.engine.grammars import MAX_KEPT, MAX_KEPT_BYTES, Grammars
from semspec.engine.torch_engine import TorchEngine
from semspec.errors import InvalidRequest
from semspec.types import (
    Context,
    Conversation,
    GeneratedSegment,
    GenerationParams,
    Message,
    SamplingParams,
    Segmentation,
    SegmentEnd,
)
from semspec_gateway.generation.grammar import json_grammar, output_grammar, tools_grammar
from semspec_gateway.generation.parsers import CallParser
from tests.engine.support import PROMPT, Load, answered, one_by_one, prompt, segment, written
from tests.grammars.schemas import COSTLY, COUNTED, MANY, grammar_of
from tests.helpers.checkpoints import save_spelling_checkpoint
from tests.helpers.words import build_tokenizer

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "kind": {"enum": ["one. Two", "three? Four"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 9999},
        "is_new": {"type": "boolean"},
        "parts": {"type": "array", "items": {"$ref": "#/$defs/part"}, "maxItems": 2},
    },
    "required": ["name", "kind", "count", "is_new", "parts"],
    "additionalProperties": False,
    "$defs": {"part": {"anyOf": [{"type": "null"}, {"type": "boolean"}]}},
}
GRAMMAR = "start: answer\n" + json_grammar(SCHEMA, True, "schema")


@pytest.fixture(scope="module")
def spelling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_spelling_checkpoint(tmp_path_factory.mktemp("spelling"))


@pytest.fixture(params=["fast", "transformers"])
async def engine(spelling: Path, request: pytest.FixtureRequest, load: Load) -> TorchEngine:
    return load(spelling, engine=request.param)


def params(seed: int = 0, temperature: float = 1.0, **fields: Any) -> GenerationParams:
    sampling = SamplingParams(temperature, 1.0, 0, seed)
    return GenerationParams(
        sampling, **{"max_segments": 0, "max_tokens": 500, "grammar": GRAMMAR, **fields}
    )


def text_of(generated: list[GeneratedSegment]) -> str:
    return "".join(one.segment.text for one in generated)


async def test_every_sample_is_valid(engine: TorchEngine, request: pytest.FixtureRequest) -> None:
    assert (await engine.info()).supports_grammars
    num_samples = (
        20 if request.node.callspec.params["engine"] == "fast" else 3
    )  # the other computes them one by one
    asked = [params(seed) for seed in range(num_samples)]
    answers = await asyncio.gather(*(answered(engine, one) for one in asked))  # in shared steps
    for generated in answers:
        validate(json.loads(text_of(generated)), SCHEMA)
        assert generated[-1].segment.end is SegmentEnd.EOS
    assert len({text_of(generated) for generated in answers}) > num_samples - 3
    alone = [await answered(engine, one) for one in asked[:3]]
    assert [[one.segment for one in own] for own in alone] == [
        [one.segment for one in own] for own in answers[:3]
    ]


async def test_greedy_answer_is_valid_whatever_the_filters(engine: TorchEngine) -> None:
    validate(json.loads(text_of(await answered(engine, params(temperature=0.0)))), SCHEMA)
    narrow = replace(params(3), sampling=SamplingParams(1.0, 0.05, 3, 3))
    validate(json.loads(text_of(await answered(engine, narrow))), SCHEMA)


@pytest.mark.parametrize("segmentation", Segmentation)
async def test_many_calls_equal_one(engine: TorchEngine, segmentation: Segmentation) -> None:
    """Each call gets the grammar's state from the context, so that any replica can go on."""
    cuts: dict[str, Any] = {"segmentation": segmentation, "max_segment_tokens": 7}
    whole = [one.segment for one in await answered(engine, params(5, **cuts))]
    parts = await one_by_one(engine, await prompt(engine), params(5, **cuts))
    assert parts == whole and len(parts) > 3


async def test_logprobs_and_scores_are_those_of_all_tokens(engine: TorchEngine) -> None:
    """A grammar changes what is drawn, not what the model finds likely."""
    generated = await answered(engine, params(2, num_logprobs=3, want_states=True))
    told = [token for one in generated for token in one.logprobs or ()]
    assert (
        sum(token.logprob < -1 for token in told) > len(told) / 2
    )  # a forced token is as unlikely as it is
    assert any(
        token.token_id not in {other.token_id for other in token.alternatives} for token in told
    )
    context = await prompt(engine)
    scores = await engine.score(context, [one.segment for one in generated])
    total = sum(score.surprisal[2] for score in scores)
    assert total == pytest.approx(sum(token.logprob for token in told), abs=1e-3)


@pytest.mark.parametrize(
    "grammar",
    [
        GRAMMAR,
        'start: "a" start',
        'start: "(" start ")"',
        "start: /(a|b)*a(a|b){200}/",
        "start: answer\n"
        + json_grammar({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, True, "schema"),
    ],
)
async def test_endless_grammar_is_cut_by_budget(engine: TorchEngine, grammar: str) -> None:
    endless, other = await asyncio.gather(
        answered(engine, params(1, grammar=grammar, max_tokens=30)), answered(engine, params(5))
    )
    assert endless[-1].segment.end is SegmentEnd.LENGTH
    assert sum(len(one.segment.token_ids) for one in endless) == 30
    assert other[-1].segment.end is SegmentEnd.EOS, "others' answers go on"


@pytest.mark.parametrize(
    ("grammar", "complaint"),
    [
        ('start: start "a"', "NoExtension"),
        ("start: x\nx: x", "NoExtension"),
        ("start: ]", "."),
        (grammar_of(COSTLY["patterns"]), "it takes too much time"),
        (grammar_of(COUNTED["required"][0]), ".*requires 30000 properties"),
        (grammar_of(MANY), "has too many continuations"),
    ],
    ids=["no end", "no beginning", "syntax", "costly", "large", "costly at each token"],
)
async def test_bad_grammar_is_refused(engine: TorchEngine, grammar: str, complaint: str) -> None:
    """Also one that a call over gRPC may have, which no gateway has checked."""
    refused = asyncio.create_task(answered(engine, params(1, grammar=grammar)))
    assert await answered(engine, params(5))
    with pytest.raises(InvalidRequest, match=f"grammar:? {complaint}") as refusal:
        await refused
    assert refusal.value.parameter == "grammar" and "\n" not in str(refusal.value)


async def test_compiled_grammars_are_bounded(spelling: Path, load: Load) -> None:
    grammars = Grammars.of(load(spelling).tokenizer)
    assert grammars
    for number in range(MAX_KEPT + 5):
        await compile_checked(grammars, grammar_of({"const": number}))
        assert len(grammars._compiled) == min(number + 1, MAX_KEPT)
    large = [grammar_of({"const": {f"k{i}": number for i in range(4000)}}) for number in range(8)]
    for grammar in large:
        await compile_checked(grammars, grammar)
    kept = [grammar for grammar in large if grammars.is_compiled(grammar, 1)]
    sizes = [await grammars.size(grammar, "") for grammar in large]
    assert kept == large[-len(kept) :]
    assert sum(sizes[-len(kept) :]) <= MAX_KEPT_BYTES < sum(sizes[-len(kept) - 1 :])
    grammars.close()


async def compile_checked(grammars: Grammars, grammar: str) -> None:
    await grammars.check(grammar, "")
    await grammars.compile(grammar, "")


@pytest.mark.slow
@pytest.mark.parametrize("are_known", [False, True])
async def test_costly_grammars_of_one_owner_leave_room_for_another(
    spelling: Path, load: Load, are_known: bool
) -> None:
    """`are_known`: the grammars were found to compile before, but are not kept."""
    engine = load(spelling)
    costly = [grammar_of({"const": {f"k{i}": number for i in range(5000)}}) for number in range(6)]
    assert engine._grammars
    for grammar in costly if are_known else ():
        await engine._grammars.check(grammar, "")
    flood = [params(grammar=grammar, owner="attacker", max_tokens=1) for grammar in costly]
    asked = [asyncio.create_task(answered(engine, request)) for request in flood]
    await asyncio.sleep(0.2)
    request = params(grammar=grammar_of({"const": f"{are_known}"}), owner="neighbour")
    assert text_of(await answered(engine, request)) == f'"{are_known}"'
    assert sum(not task.done() for task in asked) >= 4
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_grammar_is_waited_for_until_it_is_compiled_or_fails(
    spelling: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's scheduler asks before each step whether the grammar is compiled."""
    grammars = Grammars.of(CausalLM.load(str(spelling), None, "meta", "float32").tokenizer)
    assert grammars and not grammars.is_compiled(GRAMMAR, 1)
    while not grammars.is_compiled(GRAMMAR, 1):
        time.sleep(0.01)
    monkeypatch.setattr("semspec.grammars.worker.on_large_stack", Mock(side_effect=MemoryError))
    while not grammars.is_compiled("start: other", 1):
        time.sleep(0.01)
    with pytest.raises(MemoryError):
        grammars.matcher("start: other", ())
    grammars.close()


async def test_reasoning_is_free_and_the_answer_is_not(engine: TorchEngine) -> None:
    grammar = output_grammar(json_grammar({"type": "boolean"}, True, "schema"), "Why? <think>\n")
    thought = segment(engine, "So.</think>")
    for seed in range(5):
        free = text_of(await answered(engine, params(seed, grammar=grammar, max_tokens=20)))
        assert not free.startswith(("true", "false"))
        answer = text_of(
            await answered(engine, params(seed, grammar=grammar, max_tokens=60), thought)
        )
        assert json.loads(answer) in (True, False)


FUNCTIONS: list[dict[str, Any]] = [
    {
        "name": "look",
        "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    },
    {
        "name": "count",
        "parameters": {**SCHEMA, "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]},
    },
]


@pytest.mark.parametrize("is_required", [True, False])
async def test_calls_have_the_form_that_is_read(engine: TorchEngine, is_required: bool) -> None:
    tools = tuple({"type": "function", "function": function} for function in FUNCTIONS)
    piece = await engine.encode(Conversation((Message("user", PROMPT),), tools))
    assert "look" in piece.text and "count" in piece.text
    grammar = output_grammar(tools_grammar(FUNCTIONS, is_required, False, ["", ""]), "<think>")
    begun = segment(engine, "</think>" if is_required else "</think>I look.<tool_call>")
    names = set()
    for seed in range(6):
        asked = params(seed, grammar=grammar)
        answer = text_of(await written(engine, Context((piece, begun)), asked))
        parser = CallParser("chatcmpl-1")
        seen = parser.split(begun.text.removeprefix("</think>") + answer) + parser.close()
        assert seen.content == ("" if is_required else "I look.") and len(seen.calls) == 1
        names.add(seen.calls[0].name)
        validate(json.loads(seen.calls[0].arguments), {"enum": [{}, {"n": 1}, {"n": 2}]})
    assert names == {"look", "count"}


@pytest.mark.parametrize(
    "before", ['{"name": "count", "arguments": ', '```json\n{\n  "name": "look",\n  "arguments": ']
)
async def test_bare_calls_have_the_form_that_is_read(engine: TorchEngine, before: str) -> None:
    grammar = output_grammar(tools_grammar(FUNCTIONS, False, False, ["", ""]), "Count.")
    begun = segment(engine, before)
    for seed in range(4):
        answer = text_of(await answered(engine, params(seed, grammar=grammar), begun))
        parser = CallParser("chatcmpl-1", [function["name"] for function in FUNCTIONS])
        seen = parser.split(before + answer) + parser.close()
        assert seen.content == "" and len(seen.calls) == 1, before + answer
        validate(json.loads(seen.calls[0].arguments), {"enum": [{}, {"n": 1}, {"n": 2}]})


async def test_code_block_around_calls_may_be_closed(engine: TorchEngine) -> None:
    grammar = output_grammar(tools_grammar(FUNCTIONS, False, True, ["", ""]), "Count.")
    call = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    closed = segment(engine, f"```json\n{call}\n{call}\n```")
    [end] = await answered(engine, params(grammar=grammar), closed)
    assert end.segment.end is SegmentEnd.EOS and not end.segment.text.strip()


async def test_context_that_does_not_follow_the_grammar_is_refused(engine: TorchEngine) -> None:
    with pytest.raises(InvalidRequest, match="do not follow the grammar"):
        await answered(engine, params(), segment(engine, "Not JSON"))


async def test_vocabulary_without_json_refuses(checkpoints: dict[str, Path], load: Load) -> None:
    words = load(checkpoints["qwen2"])
    assert Grammars.of(words.tokenizer) is None and len(build_tokenizer()) < 500
    assert not (await words.info()).supports_grammars
    with pytest.raises(InvalidRequest, match="grammar: this model does not support it"):
        await answered(words, params())
