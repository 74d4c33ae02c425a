"""Runner over REST for a stack whose engines are paced: see `semspec_bench.pace`."""

import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from semspec.stack import StackConfig
from semspec.types import Writer
from semspec_bench.pace.counts import Counts, read_counts
from semspec_bench.pace.table import Pace
from semspec_bench.runners.gateway import GatewayRunner, open_stack
from semspec_bench.runners.protocol import Ask, Outcome

HOUR_S = "3600"
START_TIMEOUT_S = 900.0
"""On a small host several processes load models at once."""
_SERVICE = (sys.executable, "-m", "semspec_bench.pace.service")


@dataclass(frozen=True, slots=True)
class Pacing:
    """How a run is paced."""

    pace: Pace
    dilation: float = 1.0
    """Factor by which emulated steps are stretched, for many sessions on a small host."""

    @property
    def settings(self) -> dict[str, Any]:
        """What identifies a paced run."""
        tables = {"draft": self.pace.draft, "target": self.pace.target}
        return {
            "name": self.pace.name,
            "dilation": self.dilation,
            "num_targets": self.pace.num_targets,
            "tables": {
                role: {"name": one.name, "digest": one.digest, **one.facts}
                for role, one in tables.items()
            },
        }


class PacedRunner:
    """See `semspec_bench.runners.protocol.Runner`. Times are divided by the dilation."""

    def __init__(self, runner: GatewayRunner, dilation: float, folder: Path) -> None:
        self._runner, self._dilation, self._folder = runner, dilation, folder

    async def ask(self, ask: Ask) -> Outcome:
        outcome = await self._runner.ask(ask)
        trace = [row | {"times": self._divided(row["times"])} for row in outcome.trace]
        return replace(outcome, latency_s=outcome.latency_s / self._dilation, trace=trace)

    def processes(self) -> Mapping[str, int]:
        return self._runner.processes()

    def counts(self) -> Mapping[Writer, Counts]:
        """Steps of all engines of each role so far."""
        return read_counts(self._folder, (Writer.DRAFT, Writer.TARGET))

    def _divided(self, times: Mapping[str, float]) -> dict[str, float]:
        return {name: value / self._dilation for name, value in times.items()}


@asynccontextmanager
async def open_paced(config: StackConfig, pacing: Pacing) -> AsyncIterator[PacedRunner]:
    """Run the whole stack with paced engines within the block. Raises: StackError."""
    with tempfile.TemporaryDirectory(prefix="semspec-pace-") as name:
        folder = Path(name)
        async with open_stack(config_of(config, pacing, folder)) as runner:
            yield PacedRunner(runner, pacing.dilation, folder)


def config_of(config: StackConfig, pacing: Pacing, folder: Path) -> StackConfig:
    """`config` with paced engines and a model name that says so."""
    times = {"draft": pacing.pace.draft, "target": pacing.pace.target}
    ends = (f"{pacing.dilation:g}", str(folder), *(("gpu",) if pacing.pace.is_colocated else ()))
    commands = {
        role: (*_SERVICE, role, str(one.path.resolve()), *ends) for role, one in times.items()
    }
    environment = {
        "SEMSPEC_GATEWAY_MODEL_NAME": f"paced/{pacing.pace.name}",
        "SEMSPEC_GATEWAY_GENERATION_DEADLINE_S": HOUR_S,
        "SEMSPEC_STALL_S": HOUR_S,
    }
    return replace(
        config,
        commands={**config.commands, **commands},
        environment={**config.environment, **environment},
        num_targets=pacing.pace.num_targets,
        start_timeout_s=START_TIMEOUT_S,
    )
