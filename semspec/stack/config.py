"""Configuration of the stack."""

import json
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from semspec.decoding.likelihood.calibration import CALIBRATION_FILE
from semspec.keys import OPERATOR, entry
from semspec.stack.child import StackError
from semspec.types import GOOD_ENOUGH

ROLES = ("draft", "target", "verifier")
Command = tuple[str, ...]

API_KEYS = "SEMSPEC_GATEWAY_API_KEYS"
MODEL_NAME = "SEMSPEC_GATEWAY_MODEL_NAME"
DEFAULTS = "SEMSPEC_GATEWAY_DEFAULTS"
ENDING_S = 4
"""Seconds that the gateway may take to end after its grace period."""
OWNER = "stack"
"""Name of the stack's API key."""

BUNDLED_PAIR = (Path(__file__).parents[1] / "demo" / "pair").resolve()


def _default_commands() -> dict[str, Command]:
    commands: dict[str, Command] = {role: (sys.executable, "-m", f"semspec.services.{role}") for role in ROLES}
    return commands | {"gateway": (sys.executable, "-m", "semspec.gateway")}


@dataclass(frozen=True, slots=True)
class StackConfig:
    """Models and probes to serve, addresses and timeouts."""

    draft_model: Path | str | None = BUNDLED_PAIR / "draft"
    """None: the draft service has the datastore alone, and there are no probes."""
    target_model: Path | str = BUNDLED_PAIR / "target"
    draft_probe: Path | None = BUNDLED_PAIR / "probes" / "draft.safetensors"
    """None, as `target_probe`: the pair is served without probes and without the verifier."""
    target_probe: Path | None = BUNDLED_PAIR / "probes" / "target.safetensors"
    likelihood: Path | None = None
    """Calibration of the strategy `likelihood`; None: `likelihood.json` next to the target's probe, if it exists."""
    host: str = "127.0.0.1"
    port: int = 0
    """Port of the gateway; 0 takes a free one."""
    serving: Mapping[str, object] | None = None
    """Default request options of the gateway, named as in `SEMSPEC_GATEWAY_DEFAULTS`. None: those in `serving.json`
    next to the target's probe, or without probes to the calibration, the recommended rule, if it exists."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of every child process."""
    api_key: str | None = field(default=None, repr=False)
    """API key of the gateway, in addition to keys in the environment; None generates one."""
    commands: Mapping[str, Command] = field(default_factory=_default_commands)
    """Command of each role; tests replace them."""
    num_targets: int = 1
    """Replicas of the target service."""
    datastore: Path | None = None
    """Folder of a datastore of the target's answers, for the strategy `retrieval`."""
    start_timeout_s: float = 120.0
    stop_grace_s: float = 8.0

    @classmethod
    def of_pair(cls, folder: Path) -> "StackConfig":
        """The configuration of a pair in one folder with the layout of the bundled pair."""
        probes, models = folder / "probes", (folder / "draft", folder / "target")
        datastore = folder / "datastore" if (folder / "datastore").is_dir() else None
        draft = None if datastore and not models[0].exists() else models[0]
        if draft is None or not probes.exists():
            return cls(draft, models[1], None, None, datastore=datastore)
        if not (probes / "target.safetensors").exists() and (probes / CALIBRATION_FILE).exists():
            return cls(*models, None, None, probes / CALIBRATION_FILE, datastore=datastore)
        return cls(*models, probes / "draft.safetensors", probes / "target.safetensors", datastore=datastore)

    @property
    def has_probes(self) -> bool:
        return self.target_probe is not None

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles of the service processes."""
        return ROLES if self.has_probes else ("draft", "target")

    @property
    def services(self) -> Mapping[str, str]:
        """Role of each service process by the process's name; the first of a role has the role's name."""
        more = {f"target-{number}": "target" for number in range(2, self.num_targets + 1)}
        return {role: role for role in self.roles} | more

    @property
    def alternatives(self) -> Path | None:
        """Folder of other probes for the pair: `alternatives` next to the two probes, if it exists."""
        if self.draft_probe is None or self.target_probe is None:
            return None
        draft_folder, target_folder = Path(self.draft_probe).parent, Path(self.target_probe).parent
        folder = target_folder / "alternatives"
        return folder if draft_folder == target_folder and folder.is_dir() else None

    @property
    def bad_verdict(self) -> str:
        """What the report of the probes says unless they are good enough to serve: the verdict in the target's card."""
        if self.target_probe is None:
            return ""
        card = json.loads(Path(self.target_probe).with_suffix(".json").read_text())
        verdict = str(card.get("metrics", {}).get("verdict", GOOD_ENOUGH))
        return "" if verdict == GOOD_ENOUGH else verdict

    @property
    def calibration(self) -> Path | None:
        """The file of `likelihood` that is served."""
        if self.likelihood is not None or self.target_probe is None:
            return self.likelihood
        beside = Path(self.target_probe).parent / CALIBRATION_FILE
        return beside if beside.is_file() else None

    @property
    def model_name(self) -> str:
        """The pair's name in the API: the target's, of its folder or on the hub; empty for the bundled pair, which has
        the gateway's default. A folder named `target` gives that of the folder around it."""
        path = Path(self.target_model)
        if path.resolve() == BUNDLED_PAIR / "target":
            return ""
        name = path.resolve().parent.name if path.name in ("", "target") else path.name
        return re.sub(r"[^\w.-]", "-", name, flags=re.ASCII)[:128]

    def service_environment(self, role: str) -> dict[str, str]:
        """The settings of one service, without its port file and its token."""
        prefix = f"SEMSPEC_{role.upper()}"
        common = {
            "SEMSPEC_HOST": "127.0.0.1",
            f"{prefix}_PORT": "0",
            "SEMSPEC_SETTLE_S": "0",  # its only client, the gateway, stops first
        }
        match role:
            case "draft":
                given = {"MODEL": self.draft_model, "DATASTORE": self.datastore, "PROBES": _folder(self.draft_probe)}
            case "target":
                given = {"MODEL": self.target_model, "PROBES": _folder(self.target_probe)}
            case _:
                probes = {"DRAFT_PROBE": self.draft_probe, "TARGET_PROBE": self.target_probe}
                given = {**probes, "ALTERNATIVES": self.alternatives}
        return common | {f"{prefix}_{name}": str(value) for name, value in given.items() if value is not None}

    def gateway_environment(self, addresses: Mapping[str, str], port: int, api_key: str) -> dict[str, str]:
        """The settings of the gateway, without its token for the services.

        `addresses`: of each role, with commas between replicas, and the URL of `redis`. Raises: StackError for a
        malformed serving.json.
        """
        replicas = {f"SEMSPEC_GATEWAY_{role.upper()}_ADDRESS": addresses.get(role) or "none" for role in ROLES}
        calibration = {"SEMSPEC_GATEWAY_LIKELIHOOD": str(self.calibration)} if self.calibration else {}
        own = {
            "SEMSPEC_HOST": self.host,
            "SEMSPEC_TLS_CERTIFICATE": "",  # those in the environment are the services'; this process asks by HTTP
            "SEMSPEC_TLS_KEY": "",
            "SEMSPEC_GATEWAY_PORT": str(port),
            "SEMSPEC_GATEWAY_REDIS_URL": addresses["redis"],
            # The grace period ends, and who still waits is told, before the gateway is killed.
            "SEMSPEC_GRACE_S": str(max(0, int(self.stop_grace_s) - ENDING_S)),
            API_KEYS: " ".join((self.given(API_KEYS), f"{entry(OWNER, api_key)}:{OPERATOR}")),
        }
        name = {MODEL_NAME: self.model_name} if self.model_name and not self.given(MODEL_NAME) else {}
        return self.gateway_defaults() | name | replicas | own | calibration

    def given(self, variable: str) -> str:
        """Value of an environment variable in every child process; empty if unset."""
        return self.environment.get(variable) or os.environ.get(variable, "")

    def gateway_defaults(self) -> dict[str, str]:
        """`SEMSPEC_GATEWAY_DEFAULTS` with the values in `serving`; the gateway rejects wrong ones."""
        values = self.read_serving() if self.serving is None else self.serving
        given = self.given(DEFAULTS) or "{}"
        with suppress(ValueError, TypeError):  # which the gateway reports
            given = json.dumps({**json.loads(given), **values})
        return {DEFAULTS: given} if given != "{}" else {}

    def read_serving(self) -> Mapping[str, object]:
        """The contents of `serving.json` next to the target's probe, or else the calibration.

        Empty if there is none, or if it is the rule of probes that are not served.

        Raises: StackError when it is no file, or no JSON object.
        """
        neighbour = self.target_probe or self.likelihood
        path = Path(neighbour or "").parent / "serving.json"
        if neighbour is None or not (path.exists() or path.is_symlink()):
            return {}
        if not path.is_file():
            raise StackError(f"{path} is no file; train the probes again, or delete it")
        try:
            values = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise StackError(f"cannot read {path}: {error}; train the probes again, or delete it") from error
        if not isinstance(values, dict):
            raise StackError(f"{path} holds no JSON object; train the probes again, or delete it")
        return values if self.has_probes or values.get("strategy") != "semantic" else {}


def _folder(probe: Path | None) -> Path | None:
    return None if probe is None else Path(probe).parent
