"""A tiny pair whose tokenizers differ, and a configuration of the whole pipeline over it."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pytest
import torch
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from semspec.clustering.equivalence import Alternatives, in_order_of_appearance
from semspec.clustering.nli import TextPair, TokenIds
from semspec.training.cli import main
from semspec.training.config import PipelineConfig
from semspec_demo.documents import DELIMITER, write_document
from semspec_demo.problems import SPLITS
from semspec_demo.tokenizer import vocabulary_texts
from tests.helpers.checkpoints import model_of
from tests.helpers.words import END, build_tokenizer


class FakeJudge:
    """Says that one character entails another as a set of arrows has it; remembers what it was asked."""

    def __init__(self, arrows: Collection[str]) -> None:
        self._arrows = arrows
        self.asked: list[str] = []
        self.batches: list[int] = []

    def encode(self, context: str, texts: Sequence[str]) -> list[TokenIds | None]:
        return [tuple(map(ord, text)) for text in texts]

    def judge(self, pairs: Sequence[TextPair]) -> list[bool]:
        self.batches.append(len(pairs))
        asked = ["".join(chr(token) for side in pair for token in side) for pair in pairs]
        self.asked += asked
        return [pair in self._arrows for pair in asked]


def group(*segments: str, question: str = "?") -> Alternatives:
    return Alternatives("1", question, "", segments)


class ByLength:
    """Segments whose lengths leave the same remainder by four mean the same."""

    def clusters(self, groups: Sequence[Alternatives]) -> list[list[int | None]]:
        return [
            in_order_of_appearance([len(text) % 4 for text in group.segments]) for group in groups
        ]


class ByAlphabet:
    """Segments in plain letters mean the same; the target writes no others, the draft does."""

    def clusters(self, groups: Sequence[Alternatives]) -> list[list[int]]:
        return [[int(text.isascii()) for text in group.segments] for group in groups]


def solved() -> Iterator[dict[str, str]]:
    """Problems with a solution."""
    for seed in SPLITS["tune"]:
        document = write_document(seed)
        yield {
            "id": str(seed),
            "question": document.problem.question,
            "solution": document.solution,
        }


def bytes_tokenizer() -> PreTrainedTokenizerFast:
    """Byte pairs, a blank line among them; another vocabulary than the demo language's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([f"{text}\n\n" for text in vocabulary_texts()], trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, clean_up_tokenization_spaces=False
    )
    wrapped.chat_template = build_tokenizer().chat_template
    return wrapped


def save_bytes_llama(folder: Path) -> Path:
    """A Llama over byte pairs."""
    wrapped = bytes_tokenizer()
    sizes = {
        "vocab_size": len(wrapped),
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    ends = {"eos_token_id": wrapped.eos_token_id, "bos_token_id": None}
    model = model_of("llama", max_position_embeddings=1200, **sizes, **ends)
    return save_ending(model, wrapped, folder)


def save_ending(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> Path:
    """Save a model whose random weights are changed so that most segments of twelve tokens end, in either way."""
    ends = [tokenizer.eos_token_id, *tokenizer.encode(DELIMITER, add_special_tokens=False)]
    with torch.no_grad():
        for (
            name,
            weight,
        ) in (
            model.named_parameters()
        ):  # the first dimension is constant, and raises the ends' logits
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight[0] = 0.0
        states = model(torch.arange(3, 40)[None], output_hidden_states=True).hidden_states[-2]
        model.get_input_embeddings().weight[:, 0] = states.norm(dim=-1).mean()
        model.get_output_embeddings().weight[:, 0] = 0.0
        model.get_output_embeddings().weight[ends, 0] = 1.2
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def config(draft: Path, target: Path, output: Path, **changes: object) -> PipelineConfig:
    """Twenty questions with solutions, two contexts each, four samples of at most twelve tokens."""
    questions = {
        "python": "tests.training.support:solved",
        "id": "id",
        "trace": "solution",
        "limit": 20,
    }
    values: dict[str, object] = {
        "name": "tiny",
        "draft": {"model": str(draft), "device": "cpu"},
        "target": {"model": str(target), "device": "cpu"},
        "questions": [questions],
        "shares": {"validation": 0.25, "calibration": 0.15, "test": 0.25},
        "max_segment_tokens": 12,
        "contexts": {"traces": "data", "per_question": 2},
        "samples": {"num_samples": 4, "temperature": 1.0, "top_p": 1.0},
        "equivalence": {"kind": "python", "object": "tests.training.support:ByLength"},
        "probes": {"num_epochs": 3, "device": "cpu"},
        "shard_questions": 4,
        "output": str(output),
    }
    return PipelineConfig.model_validate(values | changes)


def semspec_train(command: str, settings: PipelineConfig, folder: Path) -> object:
    """The exit code of the command; its configuration is then `folder`/pair.yaml, its work folder `folder`/work."""
    content = settings.model_dump(mode="json", exclude_none=True)
    (folder / "pair.yaml").write_text(yaml.safe_dump(content))
    return semspec_train_in(folder / "work", command, folder / "pair.yaml")


def semspec_train_in(work: Path, command: str, path: Path, *options: str) -> object:
    """The exit code of the command with the configuration in `path`."""
    with pytest.raises(SystemExit) as end:
        main([command, "--config", str(path), "--work", str(work), "--threads", "1", *options])
    return end.value.code


def complaints(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines in which `semspec train` said why it ended."""
    return [
        line for line in capsys.readouterr().err.splitlines() if line.startswith("semspec train: ")
    ]
