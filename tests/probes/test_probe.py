"""Probes: artifacts that refuse what they do not fit, and a verifier that refuses foreign states."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from semspec.errors import InvalidRequest, Mismatch
from semspec.probes.probe import (
    LEAST_PROBABILITY,
    Probe,
    ProbeCard,
    load_probe,
    save_probe,
)
from semspec.probes.verifier import ProbeVerifier
from semspec.types import Segmentation
from tests.probes.support import QUESTION, card, load, load_with, reading, save, save_pair, states

SENTENCES = (Segmentation.SENTENCE,)


async def test_alternatives_judge_as_they_would_alone(alternatives: Path) -> None:
    verifier = load_with(alternatives)
    assert (await verifier.info()).alternatives == ("last-hidden", "surprisal")
    drafted, readings = [states("draft-fingerprint", 0.3)], [reading("target-fingerprint", 0.7)]
    judged = {}
    for name in ("", "last-hidden", "surprisal"):
        alone = load(alternatives / name if name else alternatives.parent)
        judged[name] = await verifier.judge(drafted, readings, name)
        assert judged[name] == await alone.judge(drafted, readings)
    assert len({judgement.target_probability for [judgement] in judged.values()}) == 3


async def test_unknown_alternative_is_refused_with_those_there_are(alternatives: Path) -> None:
    with pytest.raises(InvalidRequest, match="'psychic'") as caught:
        await load_with(alternatives).judge(*QUESTION, probes="psychic")
    assert caught.value.parameter == "probes"
    with pytest.raises(InvalidRequest, match="alternatives to the pair's own probes: none"):
        await load(alternatives / "last-hidden").judge(*QUESTION, probes="last-hidden")


@pytest.mark.parametrize(
    ("draft", "target", "complaint"),
    [
        (card("other"), card("target"), "'third': the draft probe was trained on other"),
        (card("draft"), card("other"), "'third': the target probe was trained on other"),
        (card("draft", "states+surprisal"), card("target"), "'third': the draft probe needs"),
        (
            replace(card("draft"), segmentations=SENTENCES),
            replace(card("target"), segmentations=SENTENCES),
            "'third'",
        ),
    ],
)
def test_bad_pair(alternatives: Path, draft: ProbeCard, target: ProbeCard, complaint: str) -> None:
    save_pair(alternatives / "third", draft, target)
    with pytest.raises(Mismatch, match=complaint):
        load_with(alternatives)


def test_folder_that_is_no_alternative_is_refused_by_name(alternatives: Path) -> None:
    (alternatives / "empty").mkdir()
    with pytest.raises(Mismatch, match=r"'empty': cannot read probe"):
        load_with(alternatives)
    bare = alternatives.parent / "bare" / "alternatives"
    bare.mkdir(parents=True)
    with pytest.raises(Mismatch, match="holds no folder of probes"):
        load_with(bare)


async def test_states_of_another_model_are_refused_with_the_remedy(verifier: ProbeVerifier) -> None:
    with pytest.raises(Mismatch, match="serve that model or train a probe"):
        await verifier.judge([states("other")], [reading("target-fingerprint")])
    with pytest.raises(Mismatch, match="target probe"):
        await verifier.judge([states("draft-fingerprint")], [reading("other")])
    with pytest.raises(Mismatch, match="shape"):
        await verifier.judge(
            [states("draft-fingerprint", shape=(2, 4))], [reading("target-fingerprint")]
        )
    with pytest.raises(InvalidRequest):
        await verifier.judge([], [reading("target-fingerprint")])


def test_artifact_survives_a_round_trip(tmp_path: Path) -> None:
    torch.manual_seed(1)
    probe = Probe(8, (5, 3)).eval()
    wanted = card("m", layers=(0, 2), calibration="temperature", metrics={"r2": 0.9})
    save_probe(probe, wanted, tmp_path / "p.safetensors")
    artifact = load_probe(tmp_path / "p.safetensors")
    assert artifact.card == wanted
    inputs = torch.randn(20, 8)
    assert torch.equal(artifact.probe(inputs), probe(inputs))


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("state_convention", "states-v0", "states-v0"),
        ("shape", [9, 9], "size"),
        ("fingerprint", "3677a2a112fa8da2", r"earlier definition.*semspec train run"),
        ("weights_digest", None, "its card states none"),
        ("layers", [0, 3], "layers 0 to 2"),
        ("layers", [], "layers 0 to 2"),
        ("layers", "first", "layers"),
        ("calibration", "beta", "calibration: Input should be 'none' or 'temperature'"),
        ("fingerprint", ["m"], "fingerprint: Input should be a valid string"),
        ("novel", 1, "novel: Unexpected keyword argument"),
        ("format", None, "has format 1, but this build serves format 2; .*`semspec train run`"),
        ("format", 3, "has format 3, but this build serves format 2; .*`semspec train run`"),
    ],
)
def test_bad_card_is_refused(tmp_path: Path, field: str, value: object, complaint: str) -> None:
    """A field whose value is None is left out."""
    path = save(tmp_path / "p.safetensors", card("m"))
    fields = json.loads(path.with_suffix(".json").read_text()) | {field: value}
    path.with_suffix(".json").write_text(
        json.dumps({name: one for name, one in fields.items() if one is not None})
    )
    with pytest.raises(Mismatch, match=complaint):
        load_probe(path)


async def test_draft_probability_that_divides_is_never_zero(tmp_path: Path) -> None:
    never = Probe(12)
    torch.nn.init.constant_(never.network[-1].bias, -200.0)  # type: ignore[arg-type]
    for role in ("draft", "target"):
        save_probe(never, card(role), tmp_path / f"{role}.safetensors")
    [judgement] = await load(tmp_path).judge(*QUESTION)
    assert judgement.draft_probability == pytest.approx(LEAST_PROBABILITY)
    assert judgement.target_probability == 0
