"""Prompts and answers in the log: only where the operator asked for it."""

import logging

_log = logging.getLogger(__name__)


def log_texts(wanted: bool, generation_id: str, prompt: str, answer: str) -> None:
    """One line at the end of a generation, if `wanted` (`SEMSPEC_GATEWAY_LOG_PROMPTS`); nowhere else are texts logged.

    `prompt` is the rendered one, as the target read it.
    """
    if wanted:
        fields = {"generation": generation_id, "prompt": prompt, "answer": answer}
        _log.info("generation ended", extra=fields)
