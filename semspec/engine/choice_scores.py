"""A question beside the work: what the chat template puts between a context and the beginning of the answer."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from semspec.errors import InvalidRequest, Mismatch

EARLIER_TURN = "semspec: an earlier turn"
"""Stands for the context where the template is rendered. The context itself never passes through it, since templates
strip an earlier turn of its reasoning; it is continued token by token."""
THINK = "<think>"
REMEDY = "choose another strategy, or a target that can be asked"


def turn_after(tokenizer: PreTrainedTokenizerBase, question: str, prefill: str) -> list[int]:
    """Tokens that end the assistant's turn, put `question` in a user's, and begin the answer with `prefill`.

    A `<think>` that the template opens itself is not doubled. Raises: Mismatch when the template drops earlier turns.
    """
    rendered = _render(tokenizer, question)
    _, found, suffix = rendered.rpartition(EARLIER_TURN)
    if not found or question.strip() not in suffix:
        raise Mismatch(f"the target's chat template drops earlier turns, so it cannot be asked; {REMEDY}")
    if suffix.rstrip().endswith(THINK):
        prefill = prefill.removeprefix(THINK)
    token_ids: list[int] = tokenizer.encode(suffix + prefill, add_special_tokens=False)
    return token_ids


def can_be_asked(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether `turn_after` works with this tokenizer's chat template."""
    try:
        return bool(turn_after(tokenizer, "A question?", ""))
    except Mismatch:
        return False


def option_ids(tokenizer: PreTrainedTokenizerBase, options: Sequence[str]) -> list[int]:
    """The one token of each option. Raises: InvalidRequest when an option is not one, or there are none."""
    if not options:
        raise InvalidRequest("options: at least one is needed", "options")
    return [_single_token(tokenizer, option, f"options[{index}]") for index, option in enumerate(options)]


def _single_token(tokenizer: PreTrainedTokenizerBase, option: str, field: str) -> int:
    token_ids: list[int] = tokenizer.encode(option, add_special_tokens=False)
    if len(token_ids) != 1 or token_ids[0] == tokenizer.unk_token_id:
        raise InvalidRequest(f"{field}: {option!r} is not one token of the target's vocabulary", field)
    return token_ids[0]


def _render(tokenizer: PreTrainedTokenizerBase, question: str) -> str:
    if tokenizer.chat_template is None:
        raise Mismatch(f"the target has no chat template, so it cannot be asked; {REMEDY}")
    turns = [
        {"role": "user", "content": "A task."},
        {"role": "assistant", "content": EARLIER_TURN},
        {"role": "user", "content": question},
    ]
    try:
        return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # templates raise what they like
        raise Mismatch(f"the target's chat template refuses a question after a turn: {error}; {REMEDY}") from error
