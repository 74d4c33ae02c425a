"""A pair of real checkpoints, for answers in natural language."""

import os
from pathlib import Path

from semspec.stack import StackConfig
from tests.helpers.processes import GENEROUS_S
from tests.real.support import DRAFT, TARGET, save_release

FOLDER = "SEMSPEC_REAL_MODELS"
"""Names the folder with the checkpoints."""


class NoModels(Exception):
    """There are none on this machine; `str()` says what to do."""


def real_config(folder: Path) -> StackConfig:
    """The pair, which accepts some segments by their likelihood and rewrites some; its release is saved in `folder`.
    Raises: NoModels."""
    draft, target = (Path(os.environ.get(FOLDER, "/nonexistent"), name) for name in (DRAFT, TARGET))
    if not (draft.is_dir() and target.is_dir()):
        raise NoModels(f"set {FOLDER} to a folder with {DRAFT} and {TARGET}")
    release = save_release(folder, draft, target, strategy="likelihood", temperature=0)
    return StackConfig(draft, target, release, start_timeout_s=GENEROUS_S)
