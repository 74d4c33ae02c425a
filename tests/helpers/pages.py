"""A report's HTML page as a browser takes it."""

from html.parser import HTMLParser

DATA = "data:image/svg+xml;base64,"


def num_pictures(page: str) -> int:
    """Checks that every tag is closed, every picture has words, and nothing comes from elsewhere or runs."""
    outline = _Outline()
    outline.feed(page)
    assert outline.open == []
    return outline.num_pictures


class _Outline(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.num_pictures = 0

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        assert tag not in ("script", "link", "iframe", "b", "i", "u") and "href" not in values
        if tag == "img":
            self.num_pictures += 1
            assert values["alt"]
        assert (values.get("src") or DATA).startswith(DATA)
        if tag not in ("img", "meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
