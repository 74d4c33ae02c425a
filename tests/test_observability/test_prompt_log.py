"""Texts reach the log only where the operator asked for it."""

import logging

import pytest

from semspec.gateway.generation.choice import log_texts
from semspec.observability import KeyValueFormatter


def test_texts_are_logged_in_one_line_if_wanted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        log_texts(True, "chatcmpl-1", "How many?\n", "Two.\n\n")
    [record] = caplog.records
    line = KeyValueFormatter().format(record)
    assert line.endswith(r'generation=chatcmpl-1 prompt="How many?\n" answer="Two.\n\n"') and "\n" not in line


def test_texts_are_not_logged_otherwise(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        log_texts(False, "chatcmpl-1", "How many?", "Two.")
    assert caplog.records == []
