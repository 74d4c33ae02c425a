"""Offline, each model reads the question in its own chat template, as when served."""

import asyncio
import shutil
from pathlib import Path

import numpy as np
import pytest

from semspec.decoding import render_prompts
from semspec.engine.torch_engine import TorchEngine
from semspec.training.config import ContextsConfig, PromptConfig
from semspec.training.data.contexts import contexts_of, mixed_trace, prompts, trace_row
from semspec.training.data.pair import Pair
from semspec.training.data.questions import Question
from semspec.types import Context, GenerationParams, Message, SamplingParams, Writer, derive_seed
from tests.training import support

OWN = "{{ 'Q: ' + messages[-1]['content'] + '\n\n<think>\n\n' }}"
QUESTION = Question("7", "Tom has pens: 25. How many pens does Tom have now?", "all", "test")


@pytest.fixture
def folders(models: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """Draft and target, whose tokenizers and templates differ."""
    draft = shutil.copytree(models[0], tmp_path / "draft")
    (draft / "chat_template.jinja").write_text(OWN)
    return draft, models[1]


async def test_draft_reads_its_own_prompt(folders: tuple[Path, Path], tmp_path: Path) -> None:
    config = support.config(*folders, tmp_path / "out")
    pair = Pair(config)
    start = prompts(QUESTION, PromptConfig(), pair.target.tokenizer, pair.draft.tokenizer)
    assert start.draft is not None and start.draft.text.startswith("Q: Tom")
    limits = ContextsConfig(draft_share=1.0, max_segments=3)
    trace = mixed_trace(QUESTION, start, pair.writers, limits, seed=1)
    assert trace[0] == start.target and len(trace) > 2
    most = len(start.target.token_ids) + sum(len(piece.token_ids) for piece in trace[1:3])
    tighter = limits.model_copy(update={"max_tokens": most - 1})
    assert mixed_trace(QUESTION, start, pair.writers, tighter, seed=1) == trace[:2]
    row = trace_row(0, trace, [0], start.draft)
    [context] = contexts_of(row, QUESTION)
    assert context.read_by(Writer.TARGET) == Context((start.target,))
    rows, tensors = pair.sample(context)
    engine = TorchEngine.load(str(folders[0]), writer=Writer.DRAFT, device="cpu")
    info, messages = await engine.info(), [Message("user", QUESTION.text)]
    served = await render_prompts(
        messages, asyncio.sleep(0, start.target), engine, info, pair.target.info
    )
    assert served == start
    base = derive_seed(config.samples.seed, "sample draft 7", 0)
    sampling = SamplingParams(1.0, 1.0, seed=derive_seed(base, "sample", 0))
    params = GenerationParams(sampling, max_segment_tokens=12, want_states=True)
    [written] = [one async for one in engine.generate(Context((start.draft,)), params)]
    await engine.aclose()
    assert rows[4]["token_ids"] == list(written.segment.token_ids)
    assert written.states is not None
    states = np.frombuffer(written.states.data, "<f4").reshape(written.states.shape)
    assert np.allclose(tensors["draft_states"][0].float().numpy(), states, atol=2e-2)
    by_row = tensors["token_statistics"].split([row["num_tokens"] for row in rows])
    means = [float(values[:, 0].mean()) for values in by_row]
    assert np.allclose(tensors["surprisal"][:, 0], means, atol=1e-5)


def test_plain_question_has_one_prompt(folders: tuple[Path, Path], tmp_path: Path) -> None:
    pair = Pair(support.config(*folders, tmp_path / "out"))
    start = prompts(QUESTION, PromptConfig(chat=False), pair.target.tokenizer, pair.draft.tokenizer)
    assert start.draft is None
    row = trace_row(0, [start.target], [0], None)
    [context] = contexts_of(
        {name: row[name] for name in ("question", "pieces", "depths")}, QUESTION
    )
    assert (
        context.read_by(Writer.DRAFT) == context.read_by(Writer.TARGET) == Context((start.target,))
    )
