"""The equivalence of meaning that a verifier clusters by: from the probe's card or a file, and only by choice."""

import json
from pathlib import Path
from typing import Any

import pytest

from semspec.clustering.equivalence import Alternatives
from semspec.clustering.loading import served_equivalence
from semspec.commands import EXAMPLE
from semspec.errors import Mismatch
from semspec.stack import BUNDLED_PAIR
from semspec.types import SegmentEnd
from tests.probes.support import card, load, save_pair

PARSER = {"kind": "python", "object": "semspec_demo.probe_data:ParserEquivalence"}
PROBES = BUNDLED_PAIR / "probes"
STARTS = ("starts with Hugo", "comes first to Hugo", "starts with Finn")
STEPS = (*(f"So the ball {text}.\n\n" for text in STARTS), "So the ball st")
ENDS = [SegmentEnd.BOUNDARY, SegmentEnd.BOUNDARY, SegmentEnd.BOUNDARY, SegmentEnd.LENGTH]


@pytest.mark.parametrize("source", ["card", "file"])
async def test_verifier_clusters_by_chosen_equivalence(source: str, tmp_path: Path) -> None:
    if source == "file":
        (tmp_path / "equivalence.json").write_text(json.dumps(PARSER))
        source = str(tmp_path / "equivalence.json")
    verifier = load(PROBES, equivalence=source)
    assert (await verifier.info()).equivalence == PARSER["object"]
    group = Alternatives("", EXAMPLE, "", STEPS)
    assert await verifier.cluster(group, ENDS) == [0, 0, 1, None]


async def test_verifier_without_an_equivalence_says_so() -> None:
    verifier = load(PROBES)
    assert (await verifier.info()).equivalence == ""
    with pytest.raises(Mismatch, match="set SEMSPEC_VERIFIER_EQUIVALENCE"):
        await verifier.cluster(Alternatives("", "", "", STEPS), ENDS)


def test_class_that_a_card_names_is_imported_by_choice_only(tmp_path: Path) -> None:
    foreign = {"equivalence": {"kind": "python", "object": "no.such.module:Equivalence"}}
    save_pair(tmp_path, card("draft", training=foreign), card("target", training=foreign))
    load(tmp_path)
    with pytest.raises(Mismatch, match=r"cannot find no\.such\.module:Equivalence"):
        load(tmp_path, equivalence="card")


@pytest.mark.parametrize(
    ("training", "says"),
    [
        ({}, "names no equivalence of meaning"),
        ({"equivalence": {"kind": "parser"}}, "equivalence of meaning card"),
        ({"equivalence": {"kind": "python", "object": "os"}}, "python.object"),
        (
            {"equivalence": {"kind": "python", "object": "no.such:Class"}},
            "cannot find no.such:Class",
        ),
        ({"equivalence": PARSER | {"strict": True}}, "python.strict"),
    ],
)
def test_unusable_equivalence_is_refused(training: dict[str, Any], says: str) -> None:
    with pytest.raises(Mismatch, match=says) as refusal:
        served_equivalence("card", training)
    assert "SEMSPEC_VERIFIER_EQUIVALENCE" in str(refusal.value)


@pytest.mark.parametrize("content", [None, "no JSON", "[]"])
def test_unreadable_file_is_refused_with_the_remedy(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "equivalence.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(Mismatch, match=r"equivalence\.json.*SEMSPEC_VERIFIER_EQUIVALENCE"):
        served_equivalence(str(path), {})
