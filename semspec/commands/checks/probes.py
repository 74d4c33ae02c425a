"""Checks of probes and calibration: readable, with operating points and defaults. Whether they are of the configured
models is asked with the pair."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from semspec.commands.checks import Check, fail, ok, refused, warn
from semspec.decoding.likelihood.calibration import load_calibration
from semspec.errors import Mismatch
from semspec.stack import StackConfig, StackError

if TYPE_CHECKING:
    from semspec.probes.projection import ServedProbe


def check_probes(config: StackConfig) -> Iterator[Check]:
    try:
        from semspec.probes.verifier import ProbePair
    except ImportError as error:
        remedy = "pip install 'semspec[engine]', or `make setup`"
        yield fail("probes", f"cannot be read without {error.name}", remedy)
        return
    if config.calibration is not None:
        yield _calibration(config.calibration)
    if config.draft_probe is None or config.target_probe is None:
        yield ok("probes", "none: the pair is served without the verifier")
        yield _serving(config)
        return
    try:
        pair = ProbePair.load(Path(config.draft_probe), Path(config.target_probe))
    except Mismatch as error:
        yield refused("probes", error.message, "train them with `semspec train run`")
        return
    for role, card in (("draft", pair.draft.card), ("target", pair.target.card)):
        yield ok(f"{role} probe", f"of {card.model} ({card.fingerprint}), {card.recipe} recipe, {card.features}")
    yield _curve(pair.target)
    yield _serving(config)


def _calibration(path: Path) -> Check:
    try:
        found = load_calibration(path)
    except Mismatch as error:
        return refused("likelihood", error.message)
    words = f"of {found.draft.model} and {found.target.model}, from {found.num_questions} questions"
    return ok("likelihood", f"{words}, threshold {found.threshold:.3g}")


def _curve(target: "ServedProbe") -> Check:
    points = target.card.metrics.get("strictness") or []
    if not points:
        remedy = "`semspec train run` makes it; until then set acceptance by hand"
        return warn("strictness", "the target's probe has no operating curve: what a setting brings is unknown", remedy)
    return ok("strictness", f"{len(points)} operating points")


def _serving(config: StackConfig) -> Check:
    try:
        values = config.read_serving()
    except StackError as error:
        return refused("serving", str(error))
    words = ", ".join(f"{name} {value}" for name, value in values.items())
    return ok("serving", words or "no serving.json beside the probes: the gateway's own defaults")
