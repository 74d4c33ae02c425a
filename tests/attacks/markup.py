"""Markup in every text that a client or a model may choose: no response is a page with it, no browser runs it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from urllib.parse import quote

import httpx
from playwright.async_api import Browser, expect

from tests.attacks.case import Broken, Case, Draw, Family, Verdict, shown
from tests.attacks.fixtures import CONTROL, Fixtures, Victim
from tests.playground import browser as browsing
from tests.playground.fakes import ScriptedGateway, drafted, record

RUN = (
    "document.title='owned'",
    "window.owned=1",
    "fetch('//127.0.0.1:9/')",
    "alert(1)",
    "top.location='//127.0.0.1:9'",
)
SHAPES = (
    "<script>{}</script>", "<img src=x onerror=\"{}\">", "<svg/onload={}>", "<svg><script>{}</script></svg>",
    "<a href=\"javascript:{}\">x</a>", "<iframe srcdoc=\"<script>{}</script>\"></iframe>", "<body onload={}>",
    "'\"><script>{}</script>", "</textarea><script>{}</script>", "<math><mtext><img src=x onerror=\"{}\">",
    "<details open ontoggle=\"{}\">x</details>", "<style>@import 'javascript:{}';</style>", "${{{}}}", "javascript:{}",
    "<template><script>{}</script></template>", "<object data=\"javascript:{}\"></object>", "]]><script>{}</script>",
    "<base href=//127.0.0.1:9><script src=x></script>{}", "<isindex action=\"javascript:{}\">",
    "<input autofocus onfocus=\"{}\">", "<video><source onerror=\"{}\">", "<meta http-equiv=refresh content='0;{}'>",
)  # fmt: skip
FIELDS = ("model", "user", "stop", "messages", "session", "strategy", "name")


def payload(chance: Random) -> str:
    """A piece of markup that would do something."""
    text = chance.choice(SHAPES).format(chance.choice(RUN))
    match chance.choice(("plain",) * 4 + ("case", "entity", "nested", "broken", "think")):
        case "case":
            return "".join(chance.choice((letter.upper(), letter.lower())) for letter in text)
        case "entity":
            return text.replace("<", "&lt;").replace("'", "&#39;") + text
        case "nested":
            return text.replace("<", "<<", 1).replace("script", "scr<script>ipt", 1)
        case "broken":
            return text.replace(">", chance.choice(("\n>", "\x00>", "/>", " >")), 1)
        case "think":
            return f"</think>{text}</think>"
    return text


def _body(field: str, text: str) -> dict[str, object]:
    match field:
        case "messages":
            return {**CONTROL, "messages": [{"role": text, "content": text}]}
        case "session" | "strategy":
            return {**CONTROL, "semspec": {field: text}}
        case "name":
            return {**CONTROL, text: text}
        case "stop":
            return {**CONTROL, "stop": [text]}
    return {**CONTROL, field: text}


def _reflected(victim: Victim, chance: Random) -> Case:
    text, place = payload(chance), chance.choice(("path", "id", "query", "header", *FIELDS))
    escaped = quote(text, safe="")

    async def sent(http: httpx.AsyncClient) -> httpx.Response:
        match place:
            case "path":
                return await http.get(f"/{escaped}")
            case "id":
                return await http.get(f"/v1/generations/{escaped}")
            case "query":
                return await http.get(f"/?q={escaped}&key={escaped}")
            case "header":
                raw = text.encode("latin-1", "replace").replace(b"\0", b"").replace(b"\n", b"")
                names = (b"x-request-id", b"referer", b"origin", b"user-agent", b"idempotency-key")
                return await http.post("/v1/chat/completions", json=CONTROL, headers=[(name, raw) for name in names])
        return await http.post("/v1/chat/completions", json=_body(place, text))

    async def run() -> None:
        async with victim.watched():
            answer = await sent(victim.http)
            kind = answer.headers.get("content-type", "").partition(";")[0]
            if kind not in ("application/json", "text/event-stream") and text in answer.text:
                raise Broken(Verdict.MEDIUM, f"repeated as {kind}: {answer.text[:200]}")
            if any(text in value for value in answer.headers.values()):
                raise Broken(Verdict.MEDIUM, f"repeated in a header: {dict(answer.headers)}")
            if answer.status_code >= 500:
                raise Broken(Verdict.MEDIUM, f"{answer.status_code}: {answer.text[:200]}")

    return Case("reflected", shown(f"{place}: {text}"), run)


def _rendered(browser: Browser, chance: Random) -> Case:
    """The playground shows a generation whose texts are markup."""
    question, draft, answer, reason = (payload(chance) for _ in range(4))

    async def run() -> None:
        async with ScriptedGateway() as gateway, browsing.opened(browser, browsing.Site(gateway.base_url)) as page:
            await page.get_by_label("Question").fill(question)
            await page.get_by_role("button", name="Generate").click()
            gateway.say(drafted=drafted(1, draft))
            refused = {"text": draft, "num_tokens": 1}
            written = f"x{answer}</think>{answer}"
            gateway.say(segment=record(0, written, "rewritten", rejected=refused, fallback=reason))
            gateway.end()
            await expect(page.locator("#history a")).to_have_count(1)
            await page.locator(".segment").first.hover()
            added = await page.locator("main").locator("script, img, iframe, svg script, object, form form").count()
            if added or await page.title() != "semspec playground" or await page.evaluate("window.owned"):
                raise Broken(Verdict.MEDIUM, f"markup was run: {added} elements, title {await page.title()}")

    return Case("rendered", shown(f"{question} | {answer}"), run)


@asynccontextmanager
async def opened(fixtures: Fixtures) -> AsyncIterator[Draw]:
    victim = await fixtures.victim()
    async with AsyncExitStack() as held:
        try:
            browser = await held.enter_async_context(browsing.launched()) if fixtures.has_browser else None
        except browsing.NoBrowser:
            browser = None

        def draw(chance: Random) -> Case:
            is_rendered = chance.random() < 0.4
            return _rendered(browser, chance) if browser and is_rendered else _reflected(victim, chance)

        yield draw


FAMILY = Family("XSS", 60, opened)
