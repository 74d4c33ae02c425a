"""A pair, a template or an output that cannot do what is asked is refused before the first segment is written."""

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from tokenizers import normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from semspec.engine.checkpoint import load_tokenizer
from semspec.engine.tokenization import ModelTokenizer
from semspec.errors import InvalidRequest, Mismatch
from semspec.probes.probe import Probe, ProbeCard, save_probe
from semspec.training.checks import check_models, check_output
from semspec.training.data.questions import Question
from semspec.training.pipeline import Pipeline
from semspec.types import ModelInfo, Segmentation, Writer
from tests.training import support

QUESTIONS = [
    Question(row["id"], row["question"], "all", "train") for row in islice(support.solved(), 4)
]
TURNS = "{% for message in messages %}{{ message['content'] + '<eos>' }}{% endfor %}"

Change = Callable[[PreTrainedTokenizerFast], object]
Check = Callable[..., None]


def template(text: str | None) -> Change:
    return lambda raw: setattr(raw, "chat_template", text)


def backend(name: str, part: object) -> Change:
    return lambda raw: setattr(raw.backend_tokenizer, name, part)


@pytest.fixture
def check(checkpoints: dict[str, Path]) -> Check:
    """Checks a pair of which the target has another tokenizer, template or end-of-sequence tokens."""

    def tokenizer(change: Change | None, eos_ids: tuple[int, ...]) -> ModelTokenizer:
        raw = load_tokenizer(str(checkpoints["qwen2"]))
        assert isinstance(raw, PreTrainedTokenizerFast)
        if change:
            change(raw)
        info = ModelInfo("m", "f", "t", 3, 32, max_context_tokens=600)
        return ModelTokenizer(raw, info, frozenset(eos_ids), len(raw))

    def check(
        change: Change | None = None, eos_ids: tuple[int, ...] = (1,), **changes: object
    ) -> None:
        config = support.config(Path("draft"), Path("target"), Path("out"), **changes)
        pair = {Writer.DRAFT: tokenizer(None, (1,)), Writer.TARGET: tokenizer(change, eos_ids)}
        check_models(config, pair, QUESTIONS)

    return check


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (backend("normalizer", normalizers.Lowercase()), "does not keep text: .* becomes"),
        (backend("normalizer", normalizers.Replace("\n\n", "\n")), "does not keep text"),
        (backend("pre_tokenizer", pre_tokenizers.Whitespace()), "does not keep text"),
        (template("{{ messages[0]['content'] }}"), "drops the assistant's turn"),
        (template("{{ raise_exception('one turn only') }}"), "refuses an assistant's turn"),
        (
            template("{{ messages[-1]['content'] if messages|length > 1 else 'Hello' }}"),
            "drops or changes the user's turn",
        ),
        (
            template(
                "{{ messages[-1]['content'] if messages|length > 1 else raise_exception('no') }}"
            ),
            "cannot render a question: .*no; correct the template, or set prompt.chat: false",
        ),
        (template(None), "no chat template; set prompt.chat: false"),
    ],
    ids=[
        "case",
        "boundary",
        "white-space",
        "one-turn",
        "refused-turn",
        "no-user",
        "refused-user",
        "none",
    ],
)
def test_loss_of_text_is_refused(check: Check, change: Change, complaint: str) -> None:
    check()
    with pytest.raises(Mismatch, match=complaint):
        check(change)


def test_template_must_say_which_of_several_tokens_ends_a_turn(check: Check) -> None:
    with pytest.raises(Mismatch, match="none of the 2 end-of-sequence tokens"):
        check(eos_ids=(0, 1))
    check(template(TURNS), eos_ids=(0, 1))


def test_output_with_probes_of_another_format_is_refused_first(tmp_path: Path) -> None:
    folder = tmp_path / "out" / "alternatives" / "surprisal"
    card = ProbeCard("m", "m", "t", (1, 4), "states", "all", (Segmentation.PARAGRAPH,), "own", "d")
    save_probe(Probe(4), card, folder / "draft.safetensors")
    check_output(tmp_path / "out")
    path = folder / "draft.json"
    fields = json.loads(path.read_text())
    del fields["format"]
    path.write_text(json.dumps(fields))
    config = support.config(tmp_path / "nowhere", tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(Mismatch, match="contains probes of format 1, a run writes format 2"):
        Pipeline(config, tmp_path / "work").run()
    assert not (tmp_path / "work").exists() and json.loads(path.read_text()) == fields


def test_truth_that_is_not_there_is_refused_before_a_model_loads(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    config = support.config(
        nowhere, nowhere, tmp_path / "out", truth="tests.training.support:nothing"
    )
    with pytest.raises(InvalidRequest, match=r"cannot find tests\.training\.support:nothing"):
        Pipeline(config, tmp_path / "work").run()
