"""Checks of the two probes: readable, trained on the configured models, with operating points and defaults."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from semspec.commands.checks import Check, fail, ok, warn
from semspec.commands.checks.models import find_folder
from semspec.errors import Mismatch
from semspec.likelihood import load_calibration
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
    if config.draft_probe is None or config.target_probe is None:
        yield ok("probes", "none: the pair is served without the verifier")
        yield from _calibration(config)
        yield _serving(config)
        return
    try:
        pair = ProbePair.load(Path(config.draft_probe), Path(config.target_probe))
    except Mismatch as error:
        message, _, remedy = error.message.rpartition("; ")
        yield fail("probes", message or error.message, remedy or "train them with `semspec train run`")
        return
    fits = [
        _fit("draft", pair.draft, str(config.draft_model)),
        _fit("target", pair.target, str(config.target_model)),
    ]
    yield from fits
    if not any(check.level == "fail" for check in fits):
        yield from _calibration(config)
    yield _curve(pair.target)
    yield _serving(config)


def _fit(role: str, probe: "ServedProbe", model: str) -> Check:
    """Check that a probe was trained on the states of this model."""
    from semspec.engine.checkpoint import model_fingerprint

    name, card, folder = f"{role} probe", probe.card, find_folder(model)
    if folder is None or not (folder / "config.json").is_file():
        return warn(name, f"of {card.model} ({card.fingerprint}); the model is not there to compare", "see its check")
    fingerprint = model_fingerprint(str(folder), None)
    if fingerprint != card.fingerprint:
        remedy = f"give --{role}-probe the probe of this model, or train one with `semspec train run`"
        return fail(name, f"of {card.model} ({card.fingerprint}), but {model} is {fingerprint}", remedy)
    return ok(name, f"of this model ({fingerprint}), {card.recipe} recipe, {card.features}")


def _calibration(config: StackConfig) -> Iterator[Check]:
    """Check that the calibration of `likelihood`, if there is one, is of these models, as far as they are there."""
    from semspec.engine.checkpoint import model_fingerprint

    if config.calibration is None:
        return
    try:
        found = load_calibration(config.calibration)
    except Mismatch as error:
        message, _, remedy = error.message.rpartition("; ")
        yield fail("likelihood", message, remedy)
        return
    for own, model in ((found.draft, config.draft_model), (found.target, config.target_model)):
        folder = find_folder(str(model))
        if folder is None or not (folder / "config.json").is_file():
            message = f"of {own.model} ({own.fingerprint}); the model is not there to compare"
            yield warn("likelihood", message, "see its check")
            return
        if (fingerprint := model_fingerprint(str(folder), None)) != own.fingerprint:
            remedy = "make it again with `semspec train calibrate`, or take it away"
            yield fail("likelihood", f"of {own.model} ({own.fingerprint}), but {model} is {fingerprint}", remedy)
            return
    yield ok("likelihood", f"of these models, from {found.num_questions} questions, threshold {found.threshold:.3g}")


def _curve(target: "ServedProbe") -> Check:
    points = target.card.metrics.get("strictness") or []
    if not points:
        remedy = "`semspec train report` makes it; until then set acceptance by hand"
        return warn("strictness", "the target's probe has no operating curve: what a setting brings is unknown", remedy)
    return ok("strictness", f"{len(points)} operating points")


def _serving(config: StackConfig) -> Check:
    try:
        values = config.read_serving()
    except StackError as error:
        message, _, remedy = str(error).rpartition("; ")
        return fail("serving", message, remedy)
    words = ", ".join(f"{name} {value}" for name, value in values.items())
    return ok("serving", words or "no serving.json beside the probes: the gateway's own defaults")
