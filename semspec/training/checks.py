"""Checks that the models of a pair can do what a configuration asks for, before the first segment is written."""

import unicodedata
from collections.abc import Sequence
from pathlib import Path

from semspec.engine.conversation import EARLIER_TURN
from semspec.engine.tokenization import ModelTokenizer
from semspec.errors import InvalidRequest, Mismatch
from semspec.probes.probe import PROBE_FORMAT, card_format
from semspec.reporting.files import read_json
from semspec.training.config import PipelineConfig
from semspec.training.data.contexts import prompts
from semspec.training.data.questions import Question
from semspec.types import Writer

NUM_QUESTIONS = 16
"""Questions that the tokenizers are tried on."""


def check_output(folder: Path) -> None:
    """Raises: Mismatch when `folder` contains probes of another format, which a run would overwrite."""
    for weights in sorted(folder.rglob("*.safetensors")):
        card = weights.with_suffix(".json")
        if card.exists() and (found := card_format(read_json(card))) != PROBE_FORMAT:
            raise Mismatch(
                f"output: {folder} contains probes of format {found}, a run writes format {PROBE_FORMAT}",
                remedy="name another folder, or move them",
            )


def check_models(
    config: PipelineConfig, tokenizers: dict[Writer, ModelTokenizer], questions: Sequence[Question]
) -> None:
    """Raises: Mismatch when a tokenizer changes text, a chat template loses turns, or a segment fills a window."""
    for writer, tokenizer in tokenizers.items():
        name, window = f"the {writer}'s", tokenizer.info.max_context_tokens
        if config.max_segment_tokens >= window:
            raise Mismatch(
                f"max_segment_tokens is {config.max_segment_tokens}, {name} window has {window} tokens",
                remedy="lower it",
            )
        _check_round_trip(
            name, tokenizer, [question.text for question in questions[:NUM_QUESTIONS]]
        )
        if config.prompt.chat and tokenizer.raw.chat_template is not None:
            _check_turns(name, tokenizer)
        has_own = tokenizer.raw.chat_template is not None
        if config.prompt.chat and (
            has_own or writer is Writer.TARGET
        ):  # a draft without one reads the target's
            _check_prompt(config, f"the {writer}", tokenizer, questions[0])


def _check_round_trip(name: str, tokenizer: ModelTokenizer, texts: Sequence[str]) -> None:
    """Segments are text: a model reads the other's, and a boundary is found in it. A few questions may contain what is
    a special token here, so that most must fail."""
    originals = [_plain(f"{text}\n\n{text}") for text in texts]
    changed = [
        (text, found)
        for text in originals
        if (found := _plain(tokenizer.text_of([], tokenizer.ids_of(text)))) != text
    ]
    if 2 * len(changed) > len(texts):
        before, after = changed[0]
        start = next(
            (i for i, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]),
            len(after),
        )
        start = max(start - 8, 0)
        raise Mismatch(
            f"{name} tokenizer does not keep text: {before[start : start + 24]!r} becomes "
            f"{after[start : start + 24]!r}",
            remedy="choose a model whose tokenizer keeps case, white space and the questions' words",
        )


def _plain(text: str) -> str:
    """Without differences that many tokenizers make and that do not matter."""
    return unicodedata.normalize("NFKC", text).strip()


def _check_turns(name: str, tokenizer: ModelTokenizer) -> None:
    """The end of a turn is read from the template, and the next turn of a conversation follows it."""
    turns = [{"role": "user", "content": "A task."}, {"role": "assistant", "content": EARLIER_TURN}]
    try:
        rendered = str(tokenizer.raw.apply_chat_template(turns, tokenize=False))
    except Exception as error:  # templates may raise any error
        raise Mismatch(
            f"{name} chat template refuses an assistant's turn: {error}", remedy=REMEDY
        ) from error
    _, separator, suffix = rendered.rpartition(EARLIER_TURN)
    if not separator:
        raise Mismatch(f"{name} chat template drops the assistant's turn", remedy=REMEDY)
    if len(tokenizer.eos_ids) > 1 and not tokenizer.eos_ids & set(tokenizer.ids_of(suffix)):
        raise Mismatch(
            f"{name} chat template ends the assistant's turn with none of the {len(tokenizer.eos_ids)} end-of-sequence "
            "tokens, so the end of a turn is unknown",
            remedy=f"correct eos_token_id in generation_config.json, or {REMEDY}",
        )


REMEDY = "correct the template, or set prompt.chat: false"


def _check_prompt(
    config: PipelineConfig, name: str, tokenizer: ModelTokenizer, question: Question
) -> None:
    if tokenizer.raw.chat_template is None:
        raise Mismatch(
            f"{name} has no chat template",
            remedy="set prompt.chat: false, or choose a model that has one",
        )
    try:
        rendered = prompts(question, config.prompt, tokenizer, tokenizer).target.text
    except InvalidRequest as error:
        raise Mismatch(
            f"{name} cannot render a question: {error.message}", remedy=REMEDY
        ) from error
    if question.text.strip() not in rendered:
        raise Mismatch(f"{name}'s chat template drops or changes the user's turn", remedy=REMEDY)
