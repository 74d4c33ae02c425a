"""The page over streams that do what a healthy stack rarely does on cue."""

import asyncio

import pytest
from playwright.async_api import Browser, Page, expect

from tests.playground.browser import Site, opened
from tests.playground.fakes import ID, ScriptedGateway, drafted, record

pytestmark = pytest.mark.asyncio(loop_scope="package")

BROKEN = "ERR_INCOMPLETE_CHUNKED_ENCODING"


async def begin(page: Page) -> None:
    await page.get_by_role("button", name="Generate").click()


async def kinds(page: Page, expected: list[str]) -> None:
    """Wait until the segments are these, by the word each is tagged with."""
    words = page.locator(".segment .tag")
    await expect(words).to_have_count(len(expected))
    for index, word in enumerate(expected):
        await expect(words.nth(index)).to_contain_text(word)


async def test_drafts_are_in_flight_until_decided_and_void_after_a_rewrite(
    browser: Browser, scripted: ScriptedGateway
) -> None:
    async with opened(browser, Site(scripted.base_url)) as page:
        await begin(page)
        scripted.say(drafted=drafted(0, "first", "second", "third"))
        await kinds(page, ["in flight"] * 3)
        scripted.say(segment=record(0, "first"))
        await kinds(page, ["accepted", "in flight", "in flight"])
        scripted.say(segment=record(1, "rewritten", "rewritten"))
        await kinds(page, ["accepted", "target"])
        assert not await page.get_by_text("refused 1", exact=True).is_visible()
        await page.get_by_text("refused draft").click()
        assert await page.get_by_text("refused 1", exact=True).is_visible()
        scripted.end()
        await expect(page.get_by_role("status")).to_contain_text("1 of 2 drafts accepted")


async def test_pulse_stands_still_for_those_who_asked_for_less_motion(
    browser: Browser, scripted: ScriptedGateway
) -> None:
    async with opened(browser, Site(scripted.base_url)) as page:
        await begin(page)
        scripted.say(drafted=drafted(0, "first"))
        name = "node => getComputedStyle(node).animationName"
        assert await page.locator(".flight.segment").evaluate(name) == "pulse"
        await page.emulate_media(reduced_motion="reduce")
        assert await page.locator(".flight.segment").evaluate(name) == "none"


async def test_markup_from_a_model_stays_text(browser: Browser, scripted: ScriptedGateway) -> None:
    hostile = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    async with opened(browser, Site(scripted.base_url)) as page:
        await page.get_by_label("Question").fill(hostile)
        await begin(page)
        scripted.say(drafted=drafted(1, hostile))
        refused = {"text": hostile, "num_tokens": 1}
        scripted.say(segment=record(0, f"{hostile}</think>{hostile}", "rewritten", rejected=refused, fallback=hostile))
        scripted.end()
        await expect(page.locator("#history a")).to_have_text(hostile)
        await expect(page.locator(".answer")).to_contain_text(hostile)
        await page.locator(".segment").hover()
        assert await page.locator("img, main script").count() == 0
        assert await page.title() == "semspec playground"


async def test_broken_stream_is_taken_up_after_the_last_event(browser: Browser, scripted: ScriptedGateway) -> None:
    async with opened(browser, Site(scripted.base_url), expected=BROKEN) as page:
        await begin(page)
        scripted.say(segment=record(0, "first"))
        await kinds(page, ["accepted"])
        scripted.hang_up()
        await expect(page.locator("#notices")).to_contain_text("attaching again")
        scripted.say(segment=record(1, "second", "rewritten"))
        scripted.end()
        await kinds(page, ["accepted", "target"])
        await expect(page.get_by_role("status")).to_contain_text("finished")
        assert scripted.attached == ["1"]
        await expect(page.get_by_role("alert")).to_be_empty()


async def test_stream_that_breaks_twice_is_an_error(browser: Browser, scripted: ScriptedGateway) -> None:
    async with opened(browser, Site(scripted.base_url), expected=BROKEN) as page:
        await begin(page)
        scripted.say(segment=record(0, "first"))
        await kinds(page, ["accepted"])
        scripted.hang_up()
        scripted.hang_up()
        await expect(page.get_by_role("alert")).to_contain_text("lost twice")
        await kinds(page, ["accepted"])


async def test_failure_in_the_middle_is_told_with_its_remedy(browser: Browser, scripted: ScriptedGateway) -> None:
    async with opened(browser, Site(scripted.base_url)) as page:
        await begin(page)
        scripted.say(segment=record(0, "first"))
        scripted.fail("the target service does not answer", "service_unavailable")
        alert = page.get_by_role("alert")
        await expect(alert).to_contain_text("the target service does not answer")
        await expect(alert).to_contain_text("which service is away")
        await kinds(page, ["accepted"])
        await expect(page.get_by_label("Services").get_by_text("draft away")).to_be_visible()


async def test_gateway_out_of_reach_is_told(browser: Browser, scripted: ScriptedGateway) -> None:
    async with opened(browser, Site(scripted.base_url), expected="ERR_INTERNET_DISCONNECTED") as page:
        await expect(page.get_by_label("Model").locator("option")).to_have_count(2)
        await page.context.set_offline(True)
        await begin(page)
        await expect(page.get_by_role("alert")).to_contain_text("the gateway does not answer")
        await page.context.set_offline(False)
        await begin(page)
        scripted.say(segment=record(0, "first"))
        await kinds(page, ["accepted"])
        await expect(page.get_by_role("alert")).to_be_empty()


async def test_stop_cancels_on_the_server_and_keeps_what_was_written(
    browser: Browser, scripted: ScriptedGateway
) -> None:
    async with opened(browser, Site(scripted.base_url)) as page:
        await begin(page)
        scripted.say(segment=record(0, "first"))
        scripted.say(drafted=drafted(1, "second"))
        await kinds(page, ["accepted", "in flight"])
        await page.get_by_role("button", name="Stop").click()
        await asyncio.wait_for(scripted.cancelled.wait(), 5)
        await expect(page.locator("#notices")).to_contain_text("Stopped")
        await kinds(page, ["accepted"])


@pytest.mark.parametrize("status", ["running", "interrupted"])
async def test_link_to_a_generation_under_way_follows_it(
    browser: Browser, scripted: ScriptedGateway, status: str
) -> None:
    scripted.status = status
    scripted.records = [record(0, "first")]
    async with opened(browser, Site(scripted.base_url)) as page:
        await page.goto(f"/#generation={ID}")
        await kinds(page, ["accepted"])
        if status == "interrupted":
            await page.get_by_role("button", name="Go on").click()
        scripted.say(segment=record(1, "second"))
        scripted.end()
        await kinds(page, ["accepted", "accepted"])
        await expect(page.locator("#asked")).to_have_text("a stored question")
        await expect(page.get_by_role("status")).to_contain_text("finished")
