"""The page over the bundled pair's whole stack, as a person uses it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from tests.playground.browser import PHONE, WIDE, Scheme, Site, finished, opened, send, settings

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="package")]

SEED = 6
"""With it some of the draft's segments of the example are refused, under the default and the strictest rule alike."""

SPREAD = (
    "Style 3. Dina passes to June. Bea passes to Cora. Ivan passes to Ada. Cora passes to Hugo. Hugo "
    "passes to Dina. Jack passes to Emil. Ada passes to Jack. June passes to Ivan. Emil passes to Bea. "
    "Cards: June 46, Ada 77, Jack 15, Hugo 94, Emil 23, Ivan 53, Cora 64, Dina 89, Bea 39. The ball "
    "starts with Ada. Round 1: 4 passes. Round 2: 1 pass. Round 3: 1 pass. Round 4: 1 pass. Round 5: 4 "
    "passes. Which card has the ball at the end?"
)

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


async def generate(page: Page, seed: int = SEED, compares: bool = False) -> None:
    """Send the example with a seed in a new chat, and wait for the end."""
    await page.get_by_role("button", name="New chat").click()
    async with settings(page) as dialog:
        await dialog.get_by_label("Seed", exact=True).fill(str(seed))
        await dialog.get_by_label("Compare with the target alone").set_checked(compares)
    await page.get_by_label("Examples").get_by_role("button").first.click()
    await send(page)
    await finished(page)


async def shown(page: Page) -> list[str | None]:
    """The segments' kinds and what is said of each."""
    segments = await page.locator("button.segment").all()
    return [
        f"{await each.get_attribute('class')} {await each.get_attribute('aria-label')}"
        for each in segments
    ]


def posted(page: Page) -> list[Any]:
    """The bodies that the page sends from now on."""
    bodies: list[Any] = []
    page.on(
        "request",
        lambda request: bodies.append(request.post_data_json) if request.method == "POST" else None,
    )
    return bodies


async def test_segments_are_shown_as_they_were_decided(page: Page) -> None:
    await generate(page)
    assert await page.locator("button.segment.accepted").count() >= 1
    rewritten = page.locator("button.segment.target").first
    await expect(rewritten).to_have_text("✎")
    await expect(rewritten).to_have_attribute(
        "aria-label", re.compile("^Segment .*: Rewritten by the target")
    )
    await rewritten.hover()
    await expect(page.get_by_label("Segment details")).to_contain_text("Refused draft")
    await expect(page.locator(".numbers-line")).to_contain_text(
        re.compile(r"✓ \d+ accepted · ✎ \d+ by the target")
    )
    assert await page.locator(".segment.flight").count() == 0
    await expect(page.locator(".answer .boxed")).to_have_text(re.compile(r"^\d+$"))
    assert not re.search(r"</think>|\\boxed", await page.locator("#thread").inner_text())


async def test_link_and_export_have_the_same_segments_and_numbers(
    page: Page, browser: Browser, site: Site
) -> None:
    await generate(page)
    assert "#generation=chatcmpl-" in page.url
    async with opened(browser, site) as other:
        await other.goto("about:blank")
        await other.goto(f"{page.url}&key={site.api_key}")
        await expect(other.locator("button.segment")).to_have_count(
            await page.locator("button.segment").count()
        )
        assert await shown(other) == await shown(page) and other.url == page.url
        share = ".meters div:first-child strong"
        for each in (page, other):
            await each.get_by_text("Decisions").click()
        assert await other.locator(share).inner_text() == await page.locator(share).inner_text()
        await expect(other.locator(".asked")).to_contain_text("Style 1. Ivy passes")
        async with other.expect_download() as download:
            await other.get_by_role("button", name="Export trace").click()
        exported = json.loads(Path(await (await download.value).path()).read_text())
    assert (
        exported["segments"]
        == site.get(f"/v1/generations/{exported['id']}/trace").json()["segments"]
    )
    assert exported["seed"] == SEED and exported["prompt"].startswith("Style 1. Ivy passes")


async def test_strictest_setting_accepts_fewer(page: Page) -> None:
    slider = page.get_by_label("Strictness")
    shares = []
    for key in ("Home", "End"):
        async with settings(page):
            await slider.press(key)
        await generate(page, 2)
        num_accepted = await page.locator("button.segment.accepted").count()
        shares.append(num_accepted / await page.locator("button.segment").count())
    assert shares[1] < shares[0]
    await page.get_by_text("Decisions").click()
    await expect(page.locator(".decisions > .hint")).to_contain_text("strictness 1")
    await expect(page.locator("#used")).to_contain_text("strictness 1.00")
    async with settings(page) as dialog:
        await dialog.get_by_role("button", name="back to default").click()
        assert await slider.get_attribute("aria-valuetext") == "default"
        await dialog.get_by_label("Model and strategy").select_option("target")
        await expect(slider).to_be_disabled()
        await expect(dialog).to_contain_text("does not support: retrieval (no datastore)")


async def test_comparison_measures_the_target_alone_with_the_same_seeds(page: Page) -> None:
    asked = posted(page)
    async with settings(page) as dialog:
        await dialog.get_by_label("Seeds to compare over").fill("2")
    await generate(page, compares=True)
    speed_up, rows = page.locator(".meters div").nth(4), page.locator(".spread tr")
    await expect(speed_up).to_contain_text("median of 2 seeds")
    await expect(rows).to_have_count(4)
    await expect(rows.nth(2)).to_contain_text(str(SEED + 1))
    await expect(rows.last).to_contain_text(re.compile(r"median.*\d of 2"))
    order = [(body["model"], body["seed"]) for body in asked]
    own, alone = "semspec-demo", "semspec-demo:target"
    assert order == [(own, SEED), (alone, SEED), (alone, SEED + 1), (own, SEED + 1)]
    assert [bool(body["semspec"].get("session")) for body in asked] == [True, False, False, False]
    assert await page.locator(".replies .pane").nth(1).locator("button.segment.target").count() >= 1
    assert await page.locator(".timeline .row").count() == 2
    await expect(page.locator(".answer")).to_have_count(2)
    async with settings(page) as dialog:
        await dialog.get_by_label("Seeds to compare over").fill("1")
    await page.get_by_role("button", name="Regenerate").click()
    await expect(speed_up).to_contain_text(
        re.compile(r"\d+\.\d+\u00d7target alone .*(same|another) answer")
    )


@pytest.mark.parametrize("size", [WIDE, PHONE])
async def test_message_stays_in_view_through_three_turns(
    browser: Browser, site: Site, size: tuple[int, int]
) -> None:
    async with opened(browser, site, size) as page:
        controls = [
            page.get_by_label("Message"),
            page.get_by_role("button", name=re.compile("Send|Stop")),
        ]

        async def in_view() -> None:
            for control in controls:
                box = await control.bounding_box()
                assert box and box["y"] >= 0 and box["y"] + box["height"] <= size[1]
            assert await page.evaluate("document.documentElement.scrollWidth") <= size[0]

        box = await page.locator("#introduction > p").first.bounding_box()
        assert box and box["y"] >= 0 and box["y"] + box["height"] <= size[1], (
            "the explanation comes first"
        )
        asked, answers = posted(page), page.locator(".turn .replies .answer")
        for number in range(3):
            await in_view()
            async with settings(page) as dialog:
                await dialog.get_by_label("System prompt").fill("Be brief." if number == 2 else "")
            await send(page, SPREAD.replace("June 46", f"June {40 + number}"))
            await expect(page.get_by_role("button", name="Stop")).to_be_visible()
            await in_view()
            await finished(page)
            await expect(answers).to_have_count(number + 1)
            await expect(answers.last).to_be_in_viewport()
        await page.locator("button.segment").last.click()
        await expect(page.locator("#inspector")).to_contain_text("written by")
        await in_view()
        names = [body["semspec"]["session"] for body in asked]
        assert names[0] == names[1] != names[2], "another system prompt makes another conversation"
        assert [len(body["messages"]) for body in asked] == [1, 1, 6]
        turns = site.get(f"/v1/sessions/{names[2]}").json()["turns"]
        assert [turn["role"] for turn in turns] == ["system", *["user", "assistant"] * 3]


async def test_message_is_edited_and_answer_regenerated_and_copied(page: Page) -> None:
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    asked = posted(page)
    await generate(page)
    await page.get_by_role("button", name="Copy", exact=True).last.click()
    await expect(page.get_by_role("button", name="Copied")).to_be_visible()
    copied = await page.evaluate("navigator.clipboard.readText()")
    assert f"\\boxed{{{await page.locator('.answer .boxed').inner_text()}}}" in copied
    await page.get_by_role("button", name="Regenerate").click()
    await finished(page)
    assert asked[1]["messages"] == asked[0]["messages"] and asked[1]["seed"] == SEED + 1
    await send(page, SPREAD)
    await expect(page.locator(".turn")).to_have_count(2)
    await finished(page)
    edit = page.get_by_role("button", name="Edit")
    await edit.first.click()
    await expect(page.get_by_label("Message")).to_have_value(re.compile("^Style 1. Ivy passes"))
    async with settings(page):
        pass  # Escape closes them, and not the edit
    await expect(page.get_by_label("Message")).to_have_value(re.compile("^Style 1. Ivy passes"))
    await page.keyboard.press("Escape")
    await expect(page.get_by_label("Message")).to_be_empty()
    await edit.first.click()
    await send(page, SPREAD.replace("June 46", "June 47"))
    await expect(page.locator(".turn")).to_have_count(1)
    await finished(page)
    assert [message["content"] for message in asked[-1]["messages"]] == [
        SPREAD.replace("June 46", "June 47")
    ]
    names = [body["semspec"]["session"] for body in asked]
    assert len(set(names)) == 3 and names[1] == names[2], (
        "what is changed is a conversation of its own"
    )


async def test_conversations_lead_back_to_their_decisions_and_can_be_deleted(
    page: Page, site: Site
) -> None:
    await generate(page)
    first = await shown(page)
    await send(page, SPREAD)
    await expect(page.locator(".turn")).to_have_count(2)
    await finished(page)
    async with page.expect_download() as download:
        await page.get_by_role("button", name="Export this one as Markdown").click()
    text = Path(await (await download.value).path()).read_text()
    assert text.count("## Question") == 2 and text.count("<summary>Reasoning") == 2
    await page.reload()  # the address names the second answer
    await expect(page.locator(".turn")).to_have_count(2)
    await page.get_by_role("button", name="New chat").click()
    listed = page.get_by_role("list", name="Conversations").get_by_role("listitem")
    await expect(listed.first).to_contain_text("2 questions")
    await listed.first.get_by_role("button").first.click()
    await expect(page.locator(".answer .boxed")).to_have_count(2)
    await page.get_by_text("Decisions").first.click()
    await expect(page.locator("button.segment")).to_have_count(len(first))
    assert await shown(page) == first
    num_listed = await listed.count()
    await listed.first.get_by_role("button", name="Delete").click()
    await expect(listed).to_have_count(num_listed - 1)
    await expect(page.locator(".turn")).to_have_count(0)


async def test_refusal_names_its_field_and_the_remedy(browser: Browser, site: Site) -> None:
    async with opened(browser, site, expected="400 (Bad Request)") as page:
        async with settings(page) as dialog:
            await dialog.get_by_label("Max tokens").fill("100000")
        await send(page)
        alert = page.get_by_role("alert")
        await expect(alert).to_contain_text("exceed the window")
        await expect(alert).to_contain_text("ask for fewer tokens")
        await expect(page.get_by_label("Message")).to_have_value(re.compile("^Style 1. Ivy passes"))
        assert await page.locator("[aria-invalid=true]").count() == 1


async def test_keyboard_alone_asks_and_reads_the_details(page: Page) -> None:
    for name in ("prompt", "send", "open-settings"):
        assert await page.evaluate("document.activeElement.id") == name
        await page.keyboard.press("Tab")
    async with settings(page) as dialog:
        await dialog.get_by_label("Seed", exact=True).fill(str(SEED))
    await page.get_by_label("Message").press("Enter")
    await finished(page)
    details = page.get_by_role("complementary", name="Segment details")
    while not await page.evaluate("document.activeElement.matches('button.segment')"):
        await page.keyboard.press("Tab")
    for name in ("ratio p/q", "draw", "written by", "read"):
        await expect(details).to_contain_text(name)
    await expect(details).to_contain_text("Segment 1")
    await page.keyboard.press("ArrowDown")
    await expect(details).to_contain_text("Segment 2")
    about = await page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert re.match(r"Segment 2: .* tokens by the (draft|target)", about)
    assert await page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    await page.keyboard.press("Escape")
    await expect(details).to_contain_text("Point at the line")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_text_stands_out_from_its_ground(
    browser: Browser, site: Site, scheme: Scheme
) -> None:
    async with opened(browser, site, scheme=scheme) as page:
        await generate(page)
        await page.get_by_text("Decisions").click()
        await page.locator("button.segment.target").first.hover()
        assert await page.evaluate(LOW_CONTRAST) == []
        await page.get_by_role("button", name="Settings", exact=True).click()
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
