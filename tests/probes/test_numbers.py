"""Numbers that are none, or too large, or not those that were trained: refused by name, never served."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from semspec.errors import InvalidRequest, Mismatch
from semspec.probes.probe import Probe, load_probe, save_probe
from semspec.probes.verifier import ProbeVerifier
from tests.probes.support import QUESTION, card, save, spoilt

NUMBERS = (math.nan, math.inf, -math.inf, 3e38, -3e38)


@pytest.mark.parametrize("value", NUMBERS)
@pytest.mark.parametrize(
    "field", ["draft_states[1].data", "scores[1].states.data", "scores[1].surprisal"]
)
async def test_bad_state_is_refused(verifier: ProbeVerifier, field: str, value: float) -> None:
    (drafted,), (read,) = QUESTION
    bad_draft, bad_read = {
        "draft_states[1].data": (spoilt(drafted, value), read),
        "scores[1].states.data": (drafted, replace(read, states=spoilt(read.states, value))),
        "scores[1].surprisal": (drafted, replace(read, surprisal=(*read.surprisal[:-1], value))),
    }[field]
    with pytest.raises(InvalidRequest) as refusal:
        await verifier.judge([drafted, bad_draft], [read, bad_read])
    assert refusal.value.parameter == field
    assert await verifier.judge(*QUESTION)


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        *(
            (name, value, "not finite")
            for name in ("network.0.weight", "network.4.bias", "mean", "scale")
            for value in (math.nan, math.inf, -math.inf)
        ),
        ("scale", 0.0, "a scale of 0"),
    ],
)
def test_bad_weights_are_refused(tmp_path: Path, name: str, value: float, complaint: str) -> None:
    path, probe = tmp_path / "p.safetensors", Probe(12)
    probe.state_dict()[name].view(-1)[0] = value
    save_probe(probe, card("m"), path)
    with pytest.raises(Mismatch, match=complaint):
        load_probe(path)


def test_flipped_bit_of_the_weights_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "p.safetensors", card("m"))
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(Mismatch, match=r"but its card states.*fetch both files again"):
        load_probe(path)
