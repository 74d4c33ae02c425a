"""Offline results from the probes' `report.json`, which a run cannot measure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any, TypeVar

from semspec.errors import InvalidRequest
from semspec.files import read_json
from semspec.training.evaluation.report import MEASURES, domain_table, learning_table
from semspec.training.evaluation.verification import DomainCell, LearningPoint
from semspec.training.report.document import Block, Code, Table, Text
from semspec.training.report.numbers import Measured, measured_decimal

TRAIN_COMMAND = "semspec train run --config CONFIG"

Json = Mapping[str, Any]
T = TypeVar("T", LearningPoint, DomainCell)


@dataclass(frozen=True, slots=True)
class ProbesReport:
    name: str
    variants: Sequence[tuple[str, Measured, Measured]]
    """Name, AUROC of p/q, share of the wrong segments accepted where 95% of the right ones are."""
    learning_curve: Sequence[LearningPoint]
    domains: Sequence[DomainCell]

    def variants_table(self) -> Table:
        return Table(("probes", *MEASURES), [_row(*one) for one in self.variants])


def read_probes(path: Path) -> ProbesReport:
    """Raises: InvalidRequest when the file is no report of probes."""
    try:
        return _report(read_json(path))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(
            f"{path} is no report of probes ({type(error).__name__}: {error}); "
            "give the report.json that `semspec train run` writes",
            "probes",
        ) from None


def offline(probes: ProbesReport | None) -> Iterator[Block]:
    """The learning curve and the domain matrix, or the command that measures them."""
    if probes and probes.learning_curve:
        yield Text(f"Probes for {probes.name}, fitted on shares of the training questions:")
        yield learning_table(probes.learning_curve)
    else:
        yield Text(
            "Not measured: the learning curve. It is in the probes' report; give it with `--probes report.json`."
        )
        yield Code((TRAIN_COMMAND,))
    if probes and probes.domains:
        yield Text(
            f"AUROC of p/q of probes for {probes.name} that learned from one domain, on questions of another:"
        )
        yield domain_table(probes.domains)
    else:
        yield Text(
            "Not measured: within and across domains. It takes questions of two domains or more."
        )
        yield Code((TRAIN_COMMAND,))


def _report(found: Json) -> ProbesReport:
    variants = [
        (one["name"], _measures(one["verifications"][found["criterion"]]))
        for one in found["variants"]
    ]
    return ProbesReport(
        name=found["name"],
        variants=[(name, one["auroc"], one["wrong_accepted"]) for name, one in variants],
        learning_curve=[_fields(LearningPoint, one) for one in found["learning_curve"]],
        domains=[_fields(DomainCell, one) for one in found["domains"]],
    )


def _fields(kind: type[T], found: Json) -> T:
    """An object of `kind` with its fields of `found`, which may have more."""
    return kind(**_measures({name: found[name] for name in kind.__dataclass_fields__}))


def _measures(found: Json) -> dict[str, Any]:
    """The fields with each `{value, standard_error}` as `Measured`; null in the report means nan."""
    return {
        name: Measured(
            *(nan if number is None else number for number in (one["value"], one["standard_error"]))
        )
        if isinstance(one, dict) and "standard_error" in one
        else one
        for name, one in found.items()
    }


def _row(name: str, auroc: Measured, wrong_accepted: Measured) -> tuple[str, str, str]:
    return name, measured_decimal(auroc), measured_decimal(wrong_accepted)
