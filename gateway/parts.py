"""The objects of one gateway application, made once."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from gateway.generations.admission import Admission
from gateway.generations.costs import CostTable
from gateway.metrics import Metrics
from gateway.readiness import Readiness
from gateway.settings import GatewaySettings
from gateway.storage.store import Store
from gateway.tasks import Background
from semspec.decoding import Backends
from semspec.keys import Keys


@dataclass(frozen=True, slots=True)
class Parts:
    """No module holds any of these as a global."""

    settings: GatewaySettings
    backends: Backends
    store: Store
    metrics: Metrics
    readiness: Readiness
    admission: Admission
    background: Background
    costs: CostTable
    keys: Keys | None
    """None: everyone may ask."""


def _parts(request: Request) -> Parts:
    parts: Parts = request.app.state.parts
    return parts


PartsOf = Annotated[Parts, Depends(_parts)]
"""A route's parameter of this type is given the application's parts."""
