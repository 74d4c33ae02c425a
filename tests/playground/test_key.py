"""The API key in the page: where it comes from, where it stays, and what is said without one."""

import pytest
from playwright.async_api import Browser, Page, Request, expect

from tests.playground.browser import Site, opened

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="package")]

REFUSED = "401 (Unauthorized)"
STORED = "sessionStorage.getItem('semspec.key')"


async def answers(page: Page) -> None:
    """The gateway has told its models and its services."""
    await expect(page.locator("#model option")).not_to_have_count(1)
    lamps = [f"{name} ok" for name in ("gateway", "draft", "target", "verifier", "redis")]
    await expect(page.get_by_label("Services").get_by_role("listitem")).to_have_text(lamps)


async def test_key_of_the_address_is_kept_in_the_tab_and_nowhere_else(
    page: Page, site: Site
) -> None:
    asked: list[Request] = []
    page.on("request", lambda request: asked.append(request))
    await page.goto("about:blank")
    await page.goto(site.path)
    await answers(page)
    assert page.url == f"{site.base_url}/"
    assert await page.evaluate(STORED) == site.api_key
    assert await page.evaluate("JSON.stringify(localStorage) + document.cookie") == "{}"
    assert asked and not any(site.api_key in request.url.partition("#")[0] for request in asked)
    headers = [request.headers for request in asked if "/v1/" in request.url]
    assert headers and all(each["authorization"] == f"Bearer {site.api_key}" for each in headers)
    await page.reload()
    await answers(page)
    await expect(page.get_by_label("API key")).to_have_attribute("type", "password")


async def test_page_without_a_key_says_what_to_do_and_takes_one(
    browser: Browser, site: Site
) -> None:
    async with opened(browser, Site(site.base_url), expected=REFUSED) as page:
        field, alert = page.get_by_label("API key"), page.get_by_role("alert")
        await expect(alert).to_contain_text("Put your key into the field “API key”")
        await alert.get_by_role("button", name="Open the settings").click()
        await expect(field).to_be_focused()
        await expect(field).to_have_attribute("aria-invalid", "true")
        await expect(page.get_by_label("Services").get_by_role("listitem")).to_have_text(
            ["gateway ok"]
        )
        await field.fill(f" {site.api_key} ")
        await field.press("Tab")
        await answers(page)
        await expect(alert).to_be_empty()
        assert await page.locator("[aria-invalid=true]").count() == 0
        assert site.api_key not in page.url


async def test_wrong_key_is_refused_and_another_address_brings_the_right_one(
    browser: Browser, site: Site
) -> None:
    async with opened(browser, Site(site.base_url, "sk-wrong"), expected=REFUSED) as page:
        await expect(page.get_by_role("alert")).to_contain_text("this API key is not known")
        await page.goto(site.path)
        await answers(page)
        await expect(page.get_by_role("alert")).to_be_empty()
