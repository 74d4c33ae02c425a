"""What the stack consists of."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROLES = ("draft", "target", "verifier")
Command = tuple[str, ...]

BUNDLED_PAIR = (Path(__file__).parents[1] / "demo" / "pair").resolve()


def _default_commands() -> dict[str, Command]:
    commands: dict[str, Command] = {role: (sys.executable, "-m", f"semspec.services.{role}") for role in ROLES}
    return commands | {"gateway": (sys.executable, "-m", "semspec.gateway")}


@dataclass(frozen=True, slots=True)
class StackConfig:
    """Which models and probes to serve, where, and how patient to be."""

    draft_model: Path | str = BUNDLED_PAIR / "draft"
    target_model: Path | str = BUNDLED_PAIR / "target"
    draft_probe: Path = BUNDLED_PAIR / "probes" / "draft.safetensors"
    target_probe: Path = BUNDLED_PAIR / "probes" / "target.safetensors"
    host: str = "127.0.0.1"
    port: int = 0
    """Of the gateway; 0 takes a free one."""
    serving: Mapping[str, object] | None = None
    """The gateway's defaults for requests, each named as in `SEMSPEC_GATEWAY_DEFAULT_*`. None: those in `serving.json`
    beside the target's probe, the rule recommended for that pair, if there is one."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to every child's."""
    api_key: str | None = field(default=None, repr=False)
    """Opens the gateway's routes, beside those that the environment names; None makes one up."""
    commands: Mapping[str, Command] = field(default_factory=_default_commands)
    """How to start each role; tests put small programs here."""
    start_timeout_s: float = 120.0
    stop_grace_s: float = 8.0

    @classmethod
    def of_pair(cls, folder: Path) -> "StackConfig":
        """A pair in one folder, laid out as the bundled one."""
        probes = folder / "probes"
        return cls(folder / "draft", folder / "target", probes / "draft.safetensors", probes / "target.safetensors")

    @property
    def alternatives(self) -> Path | None:
        """Other probes of the same pair: the folder `alternatives` beside the two probes, if there is one."""
        draft_folder, target_folder = Path(self.draft_probe).parent, Path(self.target_probe).parent
        folder = target_folder / "alternatives"
        return folder if draft_folder == target_folder and folder.is_dir() else None

    def service_environment(self, role: str) -> dict[str, str]:
        """The settings of one service, the address and the token apart."""
        match role:
            case "draft":
                return {"SEMSPEC_DRAFT_MODEL": str(self.draft_model)}
            case "target":
                return {"SEMSPEC_TARGET_MODEL": str(self.target_model)}
            case _:
                own = {
                    "SEMSPEC_VERIFIER_DRAFT_PROBE": str(self.draft_probe),
                    "SEMSPEC_VERIFIER_TARGET_PROBE": str(self.target_probe),
                }
                return own | ({"SEMSPEC_VERIFIER_ALTERNATIVES": str(self.alternatives)} if self.alternatives else {})

    def given(self, variable: str) -> str:
        """What every child finds in an environment variable; empty for nothing."""
        return self.environment.get(variable) or os.environ.get(variable, "")

    def gateway_defaults(self) -> dict[str, str]:
        """`SEMSPEC_GATEWAY_DEFAULT_*` for the values in `serving`; the gateway refuses names it does not know."""
        values = self.read_serving() if self.serving is None else self.serving
        return {f"SEMSPEC_GATEWAY_DEFAULT_{name.upper()}": str(value) for name, value in values.items()}

    def read_serving(self) -> Mapping[str, object]:
        """What `serving.json` beside the target's probe says; nothing if there is none."""
        path = Path(self.target_probe).parent / "serving.json"
        if not path.is_file():
            return {}
        values: dict[str, object] = json.loads(path.read_text())
        return values
