"""The page over streams that do what a healthy stack rarely does on cue."""

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.helpers.records import record
from tests.playground.browser import Site, finished, opened, send, settings
from tests.playground.fakes import ID, ScriptedGateway, drafted

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="package")]

BROKEN = "ERR_INCOMPLETE_CHUNKED_ENCODING"


@pytest_asyncio.fixture(loop_scope="package")
async def page(
    request: pytest.FixtureRequest, browser: Browser, scripted: ScriptedGateway
) -> AsyncIterator[Page]:
    """Over the scripted gateway; the parameter is a complaint that is part of the test."""
    async with opened(
        browser, Site(scripted.base_url), expected=getattr(request, "param", "")
    ) as page:
        yield page


async def kinds(page: Page, expected: list[str]) -> None:
    """Wait until the segments in the margin are these."""
    await expect(page.locator("button.segment")).to_have_class(
        [f"segment {kind}" for kind in expected]
    )


async def test_drafts_are_in_flight_until_decided_or_void(
    page: Page, scripted: ScriptedGateway
) -> None:
    await send(page)
    scripted.say(drafted=drafted(0, "first", "second", "third"))
    await kinds(page, ["flight"] * 3)
    await expect(page.locator(".flight.segment").first).to_have_css("animation-name", "pulse")
    await page.emulate_media(reduced_motion="reduce")
    await expect(page.locator(".flight.segment").first).to_have_css("animation-name", "none")
    scripted.say(segment=record(0, "first"))
    await kinds(page, ["accepted", "flight", "flight"])
    scripted.say(segment=record(1, "rewritten", "rewritten"))
    await kinds(page, ["accepted", "target"])
    assert not await page.get_by_text("refused 1", exact=True).is_visible()
    await page.locator("button.segment").last.click()
    await expect(page.get_by_label("Segment details")).to_contain_text("refused 1")
    scripted.end()
    await expect(page.get_by_role("status")).to_contain_text("1 of 2 drafts accepted")


async def test_example_and_settings_follow_the_pair(page: Page, scripted: ScriptedGateway) -> None:
    names = [{"id": name} for name in ("own", "own:likelihood", "own:draft")]
    lacks = {"semantic": "no probes", "a-new-one": "no patience"}
    await page.route(
        "**/v1/models", lambda route: route.fulfill(json={"data": names, "unsupported": lacks})
    )
    await page.reload()
    await expect(page.get_by_label("Message")).to_have_value(re.compile("^A train"))
    await expect(page.locator("#introduction")).to_contain_text(
        "own is served. It supports likelihood, draft."
    )
    await expect(page.locator("#judged")).to_be_hidden()
    async with settings(page) as dialog:
        await expect(dialog).to_contain_text(
            "This pair does not support: semantic (no probes), a-new-one (no patience)."
        )
        await expect(dialog.get_by_label("Compare with the target alone")).to_be_disabled()


@pytest.mark.parametrize("page", ["ERR_FAILED"], indirect=True)
async def test_gateway_that_does_not_answer_is_told_until_it_does(
    page: Page, scripted: ScriptedGateway
) -> None:
    notice = page.locator("#offline")
    await expect(page.get_by_label("Services")).to_contain_text("target ok")
    await expect(notice).to_be_empty()
    await page.route("**/v1/services", lambda route: route.abort())
    await expect(notice).to_contain_text("This gateway does not answer (since ")
    await page.unroute("**/v1/services")
    await expect(notice).to_be_empty()


@pytest.mark.parametrize("page", [BROKEN], indirect=True)
async def test_broken_stream_is_taken_up_once_then_shown_and_resumed(
    page: Page, scripted: ScriptedGateway
) -> None:
    await send(page)
    scripted.say(segment=record(0, "first"))
    await kinds(page, ["accepted"])
    scripted.hang_up()
    notices, resume = page.locator(".notices"), page.get_by_role("button", name="Resume")
    await expect(notices).to_contain_text("attaching again")
    scripted.say(segment=record(1, "second", "rewritten"))
    await kinds(page, ["accepted", "target"])
    scripted.hang_up()
    await expect(notices).to_contain_text("What arrived is shown")
    await kinds(page, ["accepted", "target"])
    await resume.click()
    scripted.say(segment=record(2, "third"))
    scripted.end()
    await finished(page)
    await kinds(page, ["accepted", "target", "accepted"])
    assert scripted.attached == ["1", "2"]
    await expect(resume).to_be_hidden()
    await expect(page.get_by_role("alert")).to_be_empty()


async def test_failure_in_the_middle_is_told_with_its_remedy(
    page: Page, scripted: ScriptedGateway
) -> None:
    await send(page)
    scripted.say(segment=record(0, "first"))
    scripted.fail("the target service does not answer", "service_unavailable")
    alert = page.get_by_role("alert")
    await expect(alert).to_contain_text("the target service does not answer")
    await expect(alert).to_contain_text("which service is away")
    await kinds(page, ["accepted"])
    await expect(page.get_by_label("Services").get_by_text("draft away")).to_be_visible()


@pytest.mark.parametrize("page", ["ERR_INTERNET_DISCONNECTED"], indirect=True)
async def test_gateway_out_of_reach_is_told(page: Page, scripted: ScriptedGateway) -> None:
    await expect(page.get_by_label("Model and strategy").locator("option")).to_have_count(2)
    await page.context.set_offline(True)
    await send(page)
    await expect(page.get_by_role("alert")).to_contain_text("the gateway does not answer")
    await page.context.set_offline(False)
    await send(page)
    scripted.say(segment=record(0, "first"))
    await kinds(page, ["accepted"])
    await expect(page.get_by_role("alert")).to_be_empty()


async def test_stop_cancels_on_the_server_and_keeps_what_was_written(
    page: Page, scripted: ScriptedGateway
) -> None:
    await send(page)
    scripted.say(segment=record(0, "first"))
    scripted.say(drafted=drafted(1, "second"))
    await kinds(page, ["accepted", "flight"])
    await page.get_by_role("button", name="Stop").click()
    await asyncio.wait_for(scripted.cancelled.wait(), 5)
    await expect(page.locator(".notices")).to_contain_text("Stopped")
    await kinds(page, ["accepted"])


@pytest.mark.parametrize("status", ["running", "interrupted"])
async def test_link_to_a_generation_under_way_follows_it(
    page: Page, scripted: ScriptedGateway, status: str
) -> None:
    scripted.status = status
    scripted.records = [record(0, "first")]
    await page.goto(f"/#generation={ID}")
    await kinds(page, ["accepted"])
    if status == "interrupted":
        await page.get_by_role("button", name="Resume").click()
    scripted.say(segment=record(1, "second"))
    scripted.end()
    await kinds(page, ["accepted", "accepted"])
    await expect(page.locator(".asked p")).to_have_text("a stored question")
    await finished(page)
