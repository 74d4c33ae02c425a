"""The page over the bundled pair's whole stack, as a person uses it."""

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from tests.playground.browser import PHONE, Scheme, Site, opened

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="package")]

SEED = 6
"""With it some of the draft's segments of the example are refused, under the default and the strictest rule alike."""

STATIC = files("semspec.gateway").joinpath("api", "static")

LOW_CONTRAST = r"""() => {
  const numbers = (colour) => colour.match(/[\d.]+/g).map(Number);
  const light = (colour) => {
    const [r, g, b] = numbers(colour).slice(0, 3).map((v) => v / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    const own = getComputedStyle(node).backgroundColor;
    return numbers(own)[3] === 0 && node.parentElement ? behind(node.parentElement) : own;
  };
  const holdsText = (node) => [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
  const isShown = (node) => node.checkVisibility() && !node.closest(".unseen, .skip, [aria-disabled=true]");
  return [...document.body.querySelectorAll("*")].filter((node) => holdsText(node) && isShown(node))
    .map((node) => {
      const [a, b] = [light(getComputedStyle(node).color), light(behind(node))];
      return [node.className + ": " + node.textContent.slice(0, 30), (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)];
    })
    .filter(([, ratio]) => ratio < 4.5);
}"""


async def generate(page: Page, seed: int = SEED) -> None:
    """Send the question with a seed, and wait for the end."""
    await page.get_by_label("Seed", exact=True).fill(str(seed))
    await page.get_by_role("button", name="Generate").click()
    await finished(page)


async def finished(page: Page) -> None:
    await expect(page.get_by_role("status")).to_contain_text("finished")


async def shown(page: Page) -> list[str]:
    """The segments with their marks, as text."""
    return await page.locator(".segment").all_inner_texts()


def posted(page: Page) -> list[Any]:
    """The bodies that the page sends from now on."""
    bodies: list[Any] = []
    page.on("request", lambda request: bodies.append(request.post_data_json) if request.method == "POST" else None)
    return bodies


async def test_segments_are_shown_as_they_were_decided(page: Page) -> None:
    await generate(page)
    assert await page.locator(".segment.accepted").count() >= 1
    rewritten = page.locator(".segment.target")
    assert await rewritten.count() >= 1
    assert "✎" in await rewritten.first.inner_text() and "target" in await rewritten.first.inner_text()
    await expect(rewritten.first.locator("details")).to_contain_text("refused draft")
    assert await page.locator(".segment.flight").count() == 0
    await expect(page.locator(".answer .boxed strong")).to_have_text(re.compile(r"^\d+$"))
    assert "</think>" not in await page.locator("#panes").inner_text()


async def test_link_shows_the_same_segments_and_numbers(page: Page, browser: Browser, site: Site) -> None:
    await generate(page)
    assert "#generation=chatcmpl-" in page.url
    async with opened(browser, site) as other:
        await other.goto(page.url)
        await expect(other.locator(".segment")).to_have_count(await page.locator(".segment").count())
        assert await shown(other) == await shown(page)
        share = "#meters div:first-child strong"
        assert await other.locator(share).inner_text() == await page.locator(share).inner_text()
        await expect(other.locator("#asked")).to_contain_text("Ben has coins: 52.")


async def test_strictest_setting_accepts_fewer(page: Page) -> None:
    slider = page.get_by_label("Strictness")
    assert await slider.get_attribute("aria-valuetext") == "default"
    shares = []
    for key in ("Home", "End"):
        await slider.press(key)
        await generate(page)
        num_accepted = await page.locator(".segment.accepted").count()
        shares.append(num_accepted / await page.locator(".segment").count())
    assert shares[1] < shares[0]
    await expect(page.locator("#parameters")).to_contain_text("strictness 1")
    await page.get_by_role("button", name="back to default").click()
    assert await slider.get_attribute("aria-valuetext") == "default"


async def test_comparison_measures_the_target_alone_with_the_same_seed(page: Page) -> None:
    asked = posted(page)
    await page.get_by_label("Compare with the target alone").check()
    await page.get_by_role("button", name="Generate").click()
    speed_up = page.locator("#meters div").nth(4)
    await expect(speed_up.locator("strong")).to_have_text(re.compile(r"^\d+\.\d+\u00d7$"))
    await expect(speed_up).to_contain_text(re.compile("same answer|another answer"))
    assert [body["model"] for body in asked] == ["semspec-demo", "semspec-demo:target"]
    assert str(asked[1]["seed"]) in await page.locator("#parameters").inner_text()
    assert await page.locator(".pane").nth(1).locator(".segment.target").count() >= 1
    assert await page.locator("#timeline .row").count() == 2


async def test_comparison_over_seeds_shows_the_spread(page: Page) -> None:
    asked = posted(page)
    await page.get_by_label("Compare with the target alone").check()
    await page.get_by_label("Seeds to compare over").fill("2")
    await page.get_by_label("Seed", exact=True).fill(str(SEED))
    await page.get_by_role("button", name="Generate").click()
    rows = page.locator("#spread tr")
    await expect(rows).to_have_count(4)
    await expect(rows.nth(2)).to_contain_text(str(SEED + 1))
    await expect(rows.last).to_contain_text(re.compile(r"median.*\d of 2"))
    await expect(page.locator("#meters div").nth(4)).to_contain_text("median of 2 seeds")
    order = [(body["model"], body["seed"]) for body in asked]
    own, alone = "semspec-demo", "semspec-demo:target"
    assert order == [(own, SEED), (alone, SEED), (alone, SEED + 1), (own, SEED + 1)]
    assert await page.locator(".pane").count() == 2


async def test_conversation_goes_on_and_is_kept_by_the_server(page: Page, site: Site) -> None:
    asked = posted(page)
    await page.get_by_label("Conversation", exact=True).check()
    await page.get_by_label("Compare with the target alone").check()
    await generate(page)
    await expect(page.locator(".pane")).to_have_count(2)
    await expect(page.locator("#meters div").nth(4).locator("strong")).to_have_text(re.compile(r"\d"))
    await expect(page.get_by_label("Question")).to_be_empty()
    await page.get_by_role("button", name="Put in an example").click()
    second = await page.get_by_label("Question").input_value()
    await page.get_by_label("Compare with the target alone").uncheck()
    await page.get_by_role("button", name="Generate").click()
    await expect(page.locator("#turns li")).to_have_count(2)
    await finished(page)
    await expect(page.locator("#turns .said .boxed")).to_have_count(1)
    names = [body["semspec"].get("session") for body in asked]
    assert names[0] and names == [names[0], None, names[0]], "the comparison leaves the session alone"
    turns = site.get(f"/v1/sessions/{names[0]}").json()["turns"]
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user", "assistant"]
    assert turns[2]["content"] == second
    async with page.expect_download() as download:
        await page.get_by_role("button", name="Export text").click()
    text = Path(await (await download.value).path()).read_text()
    assert text.count("## Question") == 2 and text.count("<summary>Reasoning") == 1 and turns[1]["content"] in text
    await page.reload()
    await expect(page.locator("#turns li")).to_have_count(2)  # the address names the second answer
    listed = page.get_by_label("Conversations").get_by_role("listitem").first
    await expect(listed).to_contain_text("2 questions")
    await listed.get_by_role("button").click()
    await expect(page.locator("#turns li")).to_have_count(4)
    await page.get_by_role("button", name="Begin a new one").click()
    await expect(page.locator("#turns li")).to_have_count(0)


async def test_refusal_names_its_field_and_the_remedy(browser: Browser, site: Site) -> None:
    async with opened(browser, site, expected="400 (Bad Request)") as page:
        await page.get_by_label("Most tokens").fill("100000")
        await page.get_by_role("button", name="Generate").click()
        alert = page.get_by_role("alert")
        await expect(alert).to_contain_text("exceed the window")
        await expect(alert).to_contain_text("ask for fewer tokens")
        assert await page.locator("[aria-invalid=true]").count() == 1


async def test_keyboard_alone_asks_and_reads_the_details(page: Page) -> None:
    await page.get_by_label("Seed", exact=True).fill(str(SEED))
    await page.get_by_label("Question").press("Control+Enter")
    await finished(page)
    details = page.get_by_role("complementary", name="Segment details")
    while not await page.evaluate("document.activeElement.matches('.segment')"):
        await page.keyboard.press("Tab")
    for name in ("ratio p/q", "draw", "written by", "read"):
        await expect(details).to_contain_text(name)
    await expect(details).to_contain_text("Segment 1")
    await page.keyboard.press("ArrowDown")
    await expect(details).to_contain_text("Segment 2")
    about = await page.evaluate("document.activeElement.getAttribute('aria-describedby')")
    assert re.search(r"tokens by the (draft|target)", await page.locator(f"#{about}").text_content() or "")
    assert await page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    await page.keyboard.press("Escape")
    await expect(details).to_contain_text("Point at a segment")


async def test_history_leads_back_and_can_be_cleared(page: Page) -> None:
    await generate(page)
    first = await shown(page)
    await generate(page, seed=SEED + 1)
    assert await shown(page) != first
    entries = page.locator("#history a")
    await expect(entries).to_have_count(2)
    await entries.nth(1).click()
    await expect(page.locator("#parameters")).to_contain_text(f"seed {SEED} ")
    assert await shown(page) == first
    await page.reload()
    await expect(entries).to_have_count(2)
    await page.get_by_role("button", name="Clear").click()
    await expect(entries).to_have_count(0)


async def test_export_holds_the_stored_trace(page: Page, site: Site) -> None:
    await generate(page)
    async with page.expect_download() as download:
        await page.get_by_role("button", name="Export trace").click()
    exported = json.loads(Path(await (await download.value).path()).read_text())
    assert exported["segments"] == site.get(f"/v1/generations/{exported['id']}/trace").json()["segments"]
    assert exported["seed"] == SEED and exported["prompt"].startswith("Ben has coins: 52.")


async def test_phone_shows_the_explanation_first_and_has_no_sideways_scroll(browser: Browser, site: Site) -> None:
    async with opened(browser, site, PHONE) as page:
        box = await page.locator("#introduction").bounding_box()
        assert box is not None and box["y"] >= 0 and box["y"] + box["height"] <= PHONE[1]
        width = "document.documentElement.scrollWidth"
        assert await page.evaluate(width) <= PHONE[0]
        await page.get_by_label("Compare with the target alone").check()
        await generate(page)
        await page.locator(".segment").first.click()
        await expect(page.get_by_role("button", name="Close the details")).to_be_visible()
        assert await page.evaluate(width) <= PHONE[0]


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_text_stands_out_from_its_ground(browser: Browser, site: Site, scheme: Scheme) -> None:
    async with opened(browser, site, scheme=scheme) as page:
        await generate(page)
        await page.get_by_text("refused draft").first.click()
        await page.locator(".segment.target").first.hover()
        assert await page.evaluate(LOW_CONTRAST) == []


async def test_page_and_its_files_carry_strict_headers(site: Site) -> None:
    for path, media_type in {"/": "text/html", "/static/playground.js": "text/javascript"}.items():
        response = site.get(path)
        assert response.status_code == 200
        assert response.headers["content-type"].startswith(media_type)
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cache-control"] == "no-cache"
        assert "default-src 'none'" in response.headers["content-security-policy"]
        assert "unsafe" not in response.headers["content-security-policy"]
    for name in ("unknown.js", "..%2Fapp.py", "__init__.py"):
        response = site.get(f"/static/{name}")
        assert response.status_code == 404 and response.json()["error"]["code"] == "not_found"


async def test_page_has_nothing_inline_and_no_way_to_write_markup() -> None:
    html = STATIC.joinpath("index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", html)
    assert not re.search(r"""(src|href)=["'](https?:)?//""", html)
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|cssText|DOMParser"
    )
    for script in (entry for entry in STATIC.iterdir() if entry.name.endswith(".js")):
        assert not forbidden.search(script.read_text()), script.name
