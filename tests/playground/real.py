"""A pair of real checkpoints, for answers in natural language."""

import json
import os
from pathlib import Path

from semspec.stack import StackConfig
from tests.processes import GENEROUS_S

FOLDER = "SEMSPEC_REAL_MODELS"
"""Names the folder with the checkpoints."""
DRAFT, TARGET = "smollm2-135m", "qwen-coder-0.5b"


class NoModels(Exception):
    """There are none on this machine; `str()` says what to do."""


def real_config() -> StackConfig:
    """The pair, with a strategy by text that accepts some steps and rewrites some. Raises: NoModels."""
    draft, target = (Path(os.environ.get(FOLDER, "/nonexistent"), name) for name in (DRAFT, TARGET))
    if not (draft.is_dir() and target.is_dir()):
        raise NoModels(f"set {FOLDER} to a folder with {DRAFT} and {TARGET}")
    acceptance = {"threshold": 6.38, "score_method": "average"}
    defaults = {"strategy": "spec-reason", "acceptance": acceptance, "temperature": 0}
    environment = {"SEMSPEC_GATEWAY_DEFAULTS": json.dumps(defaults)}
    return StackConfig(draft, target, None, environment=environment, start_timeout_s=GENEROUS_S)
