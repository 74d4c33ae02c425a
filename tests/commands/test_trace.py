"""`semspec trace` of a real generation."""

import json

import pytest

from tests.commands.support import QUESTION, Live, exit_code, semspec

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def generation(live: Live) -> str:
    body = {"model": "semspec-demo", "seed": 5, "messages": [{"role": "user", "content": QUESTION}]}
    return str(live.ask("POST", "/v1/chat/completions", json=body).json()["semspec"]["id"])


def test_table_has_a_row_for_each_segment(live: Live, generation: str) -> None:
    result = semspec("trace", generation, *live.options)
    assert (result.returncode, result.stderr) == (0, "")
    title, header, *rows = result.stdout.splitlines()
    segments = live.get(f"/v1/generations/{generation}/trace")["segments"]
    assert title.startswith(f"{generation} · finished · semspec-demo · semantic · {len(segments)} segments")
    assert header.split() == "# writer tokens q p p/q draw draft read judge write wire text".split()
    assert len(rows) == len(segments)
    for row, segment in zip(rows, segments, strict=True):
        assert row.split()[:4] == [
            str(segment["index"]),
            "✓" if segment["verdict"] == "accepted" else "✎",
            segment["writer"],
            str(segment["num_tokens"]),
        ]


def test_json_is_what_the_gateway_gives(live: Live, generation: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("trace", generation, "--json", *live.options) == 0
    given = json.loads(capsys.readouterr().out)
    assert given["trace"] == live.get(f"/v1/generations/{generation}/trace")
    assert given["generation"] == live.get(f"/v1/generations/{generation}")


def test_unknown_generation_ends_with_the_servers_words(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("trace", "chatcmpl-0", *live.options) == 1
    assert capsys.readouterr().err.startswith("semspec trace: generation chatcmpl-0 ")
