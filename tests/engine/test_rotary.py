"""Rotary embeddings beyond the trained window: either the engine writes as transformers does, or contexts end there."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Phi3Config, Phi3ForCausalLM, PreTrainedModel

from semspec.decoding import STRATEGIES, Backends, Generation, Options, decode
from semspec.decoding.backends import WithoutProbes
from semspec.engine.causal_lm import EngineName
from semspec.engine.torch_engine import TorchEngine
from semspec.errors import ContextTooLong
from semspec.types import Context, GenerationParams, SamplingParams, SegmentRecord, TokenIds, Writer
from tests.engine.models import LLAMA3_ROPE, TOKENIZER, random_ids
from tests.engine.support import Load, assert_same, tensor
from tests.helpers.checkpoints import SIZES, model_of, randomise

TRAINED = 128
"""The original window, in tokens."""
THETA = {"rope_theta": 10000.0}
STRETCHED: dict[str, dict[str, object]] = {
    "yarn": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": TRAINED,
        **THETA,
    },
    "linear": {"rope_type": "linear", "factor": 4.0, **THETA},
    "llama3": LLAMA3_ROPE,
}
FACTORS = {"long_factor": [4.0, 3.0, 2.0, 1.5], "short_factor": [1.0, 1.1, 1.2, 1.3]}
BOUNDED: dict[str, dict[str, object]] = {
    "dynamic": {"rope_type": "dynamic", "factor": 4.0, **THETA},
    "longrope": {
        "rope_type": "longrope",
        **FACTORS,
        "original_max_position_embeddings": TRAINED,
        **THETA,
    },
}
GREEDY = GenerationParams(
    SamplingParams(0.0), max_segments=1, max_tokens=20, max_segment_tokens=20, want_states=True
)
ENGINES: tuple[EngineName, ...] = ("fast", "transformers")


def llama(kind: str) -> PreTrainedModel:
    """Return a Llama with the `max_position_embeddings` that its rotary embedding requires."""
    rope = STRETCHED.get(kind) or BOUNDED[kind]
    positions = 4 * TRAINED if kind in ("llama3", "longrope") else TRAINED
    return model_of(
        "llama", rope_parameters=rope, max_position_embeddings=positions, bos_token_id=None
    )


def phi3(kind: str) -> PreTrainedModel:
    """Return a Phi-3 that rotates half of each head, as Phi-4 mini rotates a part."""
    factors = {name: values[:2] for name, values in FACTORS.items()}
    rope = (
        {**BOUNDED["longrope"], **factors, "partial_rotary_factor": 0.5}
        if kind == "longrope"
        else {**THETA}
    )
    return Phi3ForCausalLM(
        Phi3Config(
            **SIZES,
            vocab_size=len(TOKENIZER),
            rope_parameters=rope | {"partial_rotary_factor": 0.5},
            original_max_position_embeddings=TRAINED,
            max_position_embeddings=4 * TRAINED,
            eos_token_id=1,
            bos_token_id=None,
            pad_token_id=0,
        )
    )


@dataclass(frozen=True)
class Pair:
    """A draft and a target, and the target as plain transformers loads it."""

    draft: TorchEngine
    target: TorchEngine
    plain: PreTrainedModel

    async def written(self, ids: list[int], strategy: str, max_tokens: int) -> list[int]:
        """Return the tokens that `strategy` writes greedily after `ids`."""
        context = Context((await self.target.encode(TokenIds(tuple(ids))),))
        generation = Generation(
            context, SamplingParams(0.0), max_tokens, strategy=STRATEGIES[strategy](Options())
        )
        events = decode(generation, Backends(self.draft, self.target, WithoutProbes()))
        records = [event async for event in events if isinstance(event, SegmentRecord)]
        assert not any(record.fallback for record in records)
        return [token for record in records for token in record.segment.token_ids]

    def generated(self, ids: list[int], max_tokens: int) -> list[int]:
        """Return the tokens that transformers generates greedily after `ids`."""
        output = self.plain.generate(
            torch.tensor([ids]), max_new_tokens=max_tokens, do_sample=False, pad_token_id=0
        )
        tokens: list[int] = output[0, len(ids) :].tolist()
        return tokens


def save(model: PreTrainedModel, folder: Path, seed: int) -> Path:
    torch.manual_seed(seed)
    randomise(model).save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


@pytest.fixture
async def pair(request: pytest.FixtureRequest, tmp_path: Path, load: Load) -> Pair:
    """Return a pair of a class, a rotary embedding and an engine; the draft differs a little from the target."""
    build, kind, engine = request.param
    target = save(build(kind), tmp_path / "target", seed=0)
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    with torch.no_grad():
        model.lm_head.weight += 0.05 * torch.randn(model.lm_head.weight.shape)
    model.save_pretrained(tmp_path / "draft")
    TOKENIZER.save_pretrained(tmp_path / "draft")
    draft = load(tmp_path / "draft", Writer.DRAFT, engine=engine)
    plain = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    return Pair(draft, load(target, engine=engine), plain)


STRETCHED_PAIRS = [(llama, kind, engine) for kind in STRETCHED for engine in ENGINES] + [
    (phi3, "part", "auto")
]
BOUNDED_PAIRS = [(llama, kind, "auto") for kind in BOUNDED] + [(phi3, "longrope", "auto")]


def named(parameters: object) -> str:
    build, kind, engine = parameters if isinstance(parameters, tuple) else (None, parameters, "")
    return f"{build.__name__}-{kind}-{engine}" if build else str(kind)


@pytest.mark.parametrize("pair", STRETCHED_PAIRS, indirect=True, ids=named)
@pytest.mark.parametrize("strategy", ["target", "token-level"])
async def test_greedy_beyond_trained_window_equals_transformers(pair: Pair, strategy: str) -> None:
    ids = random_ids(TRAINED - 20)
    expected = pair.generated(ids, 80)
    assert len(expected) == 80, "the model ends no sequence before"
    assert await pair.written(ids, strategy, 80) == expected


@pytest.mark.parametrize("pair", BOUNDED_PAIRS, indirect=True, ids=named)
@pytest.mark.parametrize("strategy", ["target", "token-level"])
async def test_context_ends_where_earlier_keys_change(pair: Pair, strategy: str) -> None:
    ids = random_ids(TRAINED - 20)
    assert (await pair.target.info()).max_context_tokens == TRAINED
    assert await pair.written(ids, strategy, 80) == pair.generated(ids, 20)
    with pytest.raises(ContextTooLong, match=f"no room in the window of {TRAINED}"):
        await pair.target.encode(TokenIds((5,) * TRAINED))


@pytest.mark.parametrize("pair", STRETCHED_PAIRS + BOUNDED_PAIRS, indirect=True, ids=named)
async def test_states_at_the_end_of_the_window_equal_transformers(pair: Pair) -> None:
    """Read after a longer text was read, whose positions must leave no trace."""
    window = (await pair.target.info()).max_context_tokens
    [long, short] = [
        await pair.target.encode(TokenIds(tuple(random_ids(window - n, n)))) for n in (1, 30)
    ]
    await pair.target.generate(Context((long,)), GREEDY).__anext__()
    [last] = [result async for result in pair.target.generate(Context((short,)), GREEDY)]
    [score] = await pair.target.score(Context((short,)), [last.segment])
    ids = torch.tensor([[*short.token_ids, *last.segment.token_ids]])
    with torch.no_grad():
        hidden = pair.plain(ids, output_hidden_states=True).hidden_states[:-1]
    expected = torch.stack(hidden)[:, 0, -len(last.segment.token_ids) :].mean(1)
    for states in (last.states, score.states):
        assert_same(tensor(states)[:-1], expected)
