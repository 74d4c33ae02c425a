"""A file that lets an interrupted fit go on where it was."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from training.files import replacing

log = logging.getLogger(__name__)


class Checkpoint:
    """Tensors and facts, written whole or not at all. One of other work (another `identity`) is as good as none."""

    def __init__(self, path: Path | None, identity: str) -> None:
        """Without a path nothing is kept."""
        self._path, self._identity = path, identity

    def save(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        if self._path is None:
            return
        metadata = {"identity": self._identity, "facts": json.dumps(facts)}
        with replacing(self._path) as partial:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, partial, metadata)

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """What was saved last; None when nothing of this work is there."""
        if self._path is None or not self._path.exists():
            return None
        try:
            with safe_open(self._path, "pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("identity") == self._identity:
                    names = list(file.keys())
                    return {name: file.get_tensor(name).clone() for name in names}, json.loads(metadata["facts"])
            log.warning("checkpoint %s is of another fit: starting afresh", self._path)
        except (OSError, SafetensorError) as error:
            log.warning("checkpoint %s cannot be read (%s): starting afresh", self._path, error)
        return None
