"""`semspec trace` of a real generation, and its page with hostile text."""

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from semspec import cli
from semspec.commands.waterfall import page
from tests.commands.support import Json, Live, record, semspec

pytestmark = pytest.mark.slow
STAGES = {"draft", "read", "judge", "write", "wire"}


class Page(HTMLParser):
    """Which tags a page has and what a reader sees."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    @property
    def bars(self) -> list[str]:
        return [str(attributes["title"]) for tag, attributes in self.tags if tag == "i" and "title" in attributes]

    def num(self, name: str) -> int:
        return sum(tag == name for tag, _ in self.tags)


@pytest.fixture(scope="module")
def generation(live: Live) -> str:
    return live.generate()


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
    assert run("trace", generation, "--json", *live.options) == 0
    given = json.loads(capsys.readouterr().out)
    assert given["trace"] == live.get(f"/v1/generations/{generation}/trace")
    assert given["generation"] == live.get(f"/v1/generations/{generation}")


def test_page_has_a_bar_for_each_stage_that_took_time(live: Live, generation: str, tmp_path: Path) -> None:
    assert run("trace", generation, "--html", str(tmp_path / "trace.html"), *live.options) == 0
    shown = Page((tmp_path / "trace.html").read_text())
    segments = live.get(f"/v1/generations/{generation}/trace")["segments"]
    assert shown.num("li") == len(segments)
    assert len(shown.bars) == sum(bool(value) for segment in segments for value in segment["times"].values())
    assert {bar.split()[0] for bar in shown.bars} <= STAGES
    assert all(segment["text"].strip() in shown.text for segment in segments)
    assert shown.num("script") == 0


def test_unknown_generation_ends_with_the_servers_words(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("trace", "chatcmpl-0", *live.options) == 1
    assert capsys.readouterr().err.startswith("semspec trace: generation chatcmpl-0 ")


def test_page_that_cannot_be_written_is_refused(
    live: Live, generation: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("trace", generation, "--html", str(tmp_path / "no" / "trace.html"), *live.options) == 1
    assert "No such file or directory; give --html another file" in capsys.readouterr().err


def made_up(*records: Json) -> Page:
    meta = {"model": HOSTILE, "seed": 1, "parameters": {"strategy": "semantic"}, "prompt": {"text": HOSTILE}}
    trace = {"id": "chatcmpl-1", "status": "finished", "degraded": False, "segments": list(records)}
    return Page(page(meta, trace))


HOSTILE = """</pre><script>alert('$id')</script><img src=x onerror="x"> &amp; ${rows}"""


def test_hostile_text_is_shown_and_nothing_more() -> None:
    refused = {"text": HOSTILE, "num_tokens": 1}
    shown = made_up(record(text=HOSTILE, verdict="rewritten", writer="target", rejected=refused, fallback=HOSTILE))
    assert shown.num("script") == shown.num("img") == 0
    assert not any("onerror" in attributes for _, attributes in shown.tags)
    assert shown.text.count(HOSTILE) == 6  # model, prompt, summary, kept, refused, fallback


def test_bars_follow_each_other_along_the_time_line() -> None:
    shown = made_up(record(), record(index=1))
    styles = [str(attributes["style"]) for tag, attributes in shown.tags if tag == "i" and "style" in attributes]
    assert styles[:4] == [
        "left:0.000%;width:15.625%",
        "left:15.625%;width:31.250%",
        "left:46.875%;width:3.125%",
        "left:0.000%;width:7.812%",
    ]
    assert styles[4].startswith("left:50.000%")


def test_generation_without_segments_is_a_page_all_the_same() -> None:
    assert "No segment was kept." in made_up().text


def run(*words: str) -> object:
    """The exit code."""
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    return end.value.code
