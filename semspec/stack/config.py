"""Configuration of the stack."""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from semspec.errors import Mismatch
from semspec.files import read_json
from semspec.keys import OPERATOR, entry
from semspec.pairs import NamedPair
from semspec.release import Release, load_release

ROLES = ("draft", "target", "verifier")
Command = tuple[str, ...]

API_KEYS = "SEMSPEC_GATEWAY_API_KEYS"
MODEL_NAME = "SEMSPEC_GATEWAY_MODEL_NAME"
PAIR = "SEMSPEC_GATEWAY_PAIR"
ENDING_S = 4
"""Seconds that the gateway may take to end after its grace period."""
OWNER = "stack"
"""Name of the stack's API key."""


def _bundled_pair() -> Path:
    """Return the folder of the bundled pair; in an installation without the demo, one that does not exist."""
    found = find_spec("semspec_demo")
    return (
        Path(found.origin).parent / "pair" if found and found.origin else Path("semspec_demo/pair")
    )


BUNDLED_PAIR = _bundled_pair()


def _default_commands() -> dict[str, Command]:
    commands: dict[str, Command] = {
        role: (sys.executable, "-m", f"semspec_{role}") for role in ROLES
    }
    return commands | {"gateway": (sys.executable, "-m", "semspec_gateway")}


@dataclass(frozen=True, slots=True)
class StackConfig:
    """Models and probes to serve, addresses and timeouts."""

    draft_model: Path | str | None = BUNDLED_PAIR / "draft"
    """None: the draft service has the datastore alone, and there are no probes."""
    target_model: Path | str = BUNDLED_PAIR / "target"
    pair: Path | None = BUNDLED_PAIR / "probes"
    """Folder of the release: `pair.json`, probes, calibration. None: the pair is served without."""
    host: str = "127.0.0.1"
    port: int = 0
    """Port of the gateway; 0 takes a free one."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of every child process."""
    api_key: str | None = field(default=None, repr=False)
    """API key of the gateway, in addition to keys in the environment; None generates one."""
    commands: Mapping[str, Command] = field(default_factory=_default_commands)
    """Command of each role; tests replace them."""
    datastore: Path | None = None
    """Folder of a datastore of the target's answers, for the strategy `retrieval`."""
    start_timeout_s: float = 120.0
    stop_grace_s: float = 8.0

    @classmethod
    def of_pair(cls, folder: Path) -> "StackConfig":
        """Return the configuration of a pair in one folder with the layout of the bundled pair."""
        probes, models = folder / "probes", (folder / "draft", folder / "target")
        datastore = folder / "datastore" if (folder / "datastore").is_dir() else None
        draft = None if datastore and not models[0].exists() else models[0]
        return cls(
            draft, models[1], probes if draft and probes.exists() else None, datastore=datastore
        )

    @classmethod
    def of_release(cls, folder: Path) -> "StackConfig":
        """Return the configuration of a release and its models. Raises: Mismatch when it cannot be read."""
        release = load_release(folder)
        models = {"DRAFT": release.draft, "TARGET": release.target}
        environment = dict[str, str]()
        for role, model in models.items():
            if model.revision:
                environment[f"SEMSPEC_{role}_REVISION"] = model.revision
            if model.dtype != "auto" and not os.environ.get(f"SEMSPEC_{role}_DTYPE"):
                environment[f"SEMSPEC_{role}_DTYPE"] = model.dtype
        return cls(
            release.model_location("draft"),
            release.model_location("target"),
            release.folder,
            environment=environment,
        )

    @classmethod
    def of_named(cls, pair: NamedPair, models: Mapping[str, str]) -> "StackConfig":
        """Return the configuration of a named pair. `models`: by role, a path or a name on the hub."""
        environment = {MODEL_NAME: pair.name}
        for role, model in models.items():
            prefix = f"SEMSPEC_{role.upper()}"
            environment |= {
                f"{prefix}_{name.upper()}": value for name, value in pair.settings.items()
            }
            if model == pair.files[role].model:
                environment[f"{prefix}_REVISION"] = pair.files[role].revision
        unset = {name: value for name, value in environment.items() if not os.environ.get(name)}
        return cls(models["draft"], models["target"], pair.release, environment=unset)

    @property
    def release(self) -> Release | None:
        """Raises: Mismatch when it cannot be read."""
        return None if self.pair is None else load_release(self.pair)

    @property
    def has_probes(self) -> bool:
        return self.pair is not None and (self.pair / "target.safetensors").exists()

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles of the service processes."""
        return ROLES if self.has_probes else ("draft", "target")

    @property
    def verdicts(self) -> str:
        """Return the verdicts of the probes' report, one for each definition of right; empty without a report."""
        return " ".join(verdict["text"] for verdict in self._verdicts())

    @property
    def bad_verdicts(self) -> str:
        """Return all verdicts of the probes' report if one of them is not "good enough", else an empty text."""
        is_good = all(verdict["standing"] == "good" for verdict in self._verdicts())
        return "" if is_good else self.verdicts

    def _verdicts(self) -> list[dict[str, str]]:
        """Read the target's card; `standing` and `text` of each verdict."""
        if self.pair is None or not self.has_probes:
            return []
        path = self.pair / "target.json"
        try:
            verdicts = read_json(path).get("metrics", {}).get("verdicts", [])
            return [
                {name: str(verdict[name]) for name in ("standing", "text")} for verdict in verdicts
            ]
        except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
            raise Mismatch(
                f"cannot read the card {path} of the target's probe: {error}",
                remedy="fetch it again",
            ) from error

    @property
    def model_name(self) -> str:
        """Return the API's name of a pair without a release: that of the target's folder, GGUF file or hub id.
        A folder named `target` gives the name of its parent."""
        path = Path(self.target_model)
        name = path.resolve().parent.name if path.name in ("", "target") else path.name
        if path.suffix == ".gguf":
            name = name.rpartition(":")[2].removesuffix(".gguf")
        return re.sub(r"[^\w.-]", "-", name, flags=re.ASCII)[:128]

    def service_environment(self, role: str) -> dict[str, str]:
        """Return the settings of one service, without its port file and its token."""
        prefix = f"SEMSPEC_{role.upper()}"
        common = {
            "SEMSPEC_HOST": "127.0.0.1",
            f"{prefix}_PORT": "0",
            "SEMSPEC_METRICS_PORT": "",  # one port is not for three processes
            "SEMSPEC_SETTLE_S": "0",  # its only client, the gateway, stops first
        }
        values: dict[str, Path | str | None] = {"PAIR": self.pair}
        if role == "draft":
            values |= {"MODEL": self.draft_model, "DATASTORE": self.datastore}
        elif role == "target":
            values |= {"MODEL": self.target_model}
        return common | {
            f"{prefix}_{name}": str(value) for name, value in values.items() if value is not None
        }

    def gateway_environment(
        self, addresses: Mapping[str, str], port: int, api_key: str
    ) -> dict[str, str]:
        """Return the settings of the gateway, without its token for the services. `addresses`: by role, and the URL of
        `redis`."""
        services = {
            f"SEMSPEC_GATEWAY_{role.upper()}_ADDRESS": addresses.get(role) or "none"
            for role in ROLES
        }
        gateway = {
            "SEMSPEC_HOST": self.host,
            "SEMSPEC_TLS_CERTIFICATE": "",  # those in the environment are the services'; this process asks by HTTP
            "SEMSPEC_TLS_KEY": "",
            "SEMSPEC_GATEWAY_PORT": str(port),
            "SEMSPEC_GATEWAY_REDIS_URL": addresses["redis"],
            # The grace period ends, and who still waits is told, before the gateway is killed.
            "SEMSPEC_GRACE_S": str(max(0, int(self.stop_grace_s) - ENDING_S)),
            API_KEYS: " ".join((self.given(API_KEYS), f"{entry(OWNER, api_key)}:{OPERATOR}")),
        }
        if self.pair is not None:
            gateway[PAIR] = str(self.pair)
        elif not self.given(MODEL_NAME):
            gateway[MODEL_NAME] = self.model_name
        return services | gateway

    def given(self, variable: str) -> str:
        """Return an environment variable's value in every child process; empty if unset."""
        return self.environment.get(variable) or os.environ.get(variable, "")
