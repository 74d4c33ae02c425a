"""A browser for the page's tests, and pages that report errors and policy violations."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx
from playwright.async_api import Browser, Locator, Page, Playwright, async_playwright, expect

from tests.helpers.gateway import bearer

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
WIDE, PHONE = (1280, 900), (390, 844)
PATIENCE_MS = 60_000
"""Of every expectation: models answer slowly on a busy machine."""

LOUD = ("error", "warning")
"""Messages of the console that are complaints."""

Scheme = Literal["light", "dark"]


class NoBrowser(Exception):
    """There is none on this machine; `str()` says what to do."""


@asynccontextmanager
async def launched() -> AsyncIterator[Browser]:
    """Playwright's own Chromium if it was installed, else one on the PATH, while the block runs. Raises: NoBrowser."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=_program(playwright), args=ARGUMENTS
        )
        yield browser
        await browser.close()


def _program(playwright: Playwright) -> str:
    own = playwright.chromium.executable_path
    found = own if Path(own).exists() else next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        raise NoBrowser(
            "no browser: run `playwright install chromium`, or install your distribution's chromium"
        )
    return found


@dataclass(frozen=True, slots=True)
class Site:
    """Where a playground is, and the key that its gateway asks for, if it does."""

    base_url: str
    api_key: str = ""

    @property
    def path(self) -> str:
        """What the page's first address ends in; the part with the key never leaves the browser."""
        return f"/#key={self.api_key}" if self.api_key else "/"

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.base_url}{path}", headers=bearer(self.api_key), trust_env=False)


@asynccontextmanager
async def opened(
    browser: Browser,
    site: Site,
    size: tuple[int, int] = WIDE,
    scheme: Scheme = "light",
    expected: str = "",
) -> AsyncIterator[Page]:
    """A fresh page of the playground. At the end there are no complaints but those with `expected` in them: what it
    said on its console, threw, was forbidden by its policy, or asked of others than its server."""
    width, height = size
    context = await browser.new_context(
        base_url=site.base_url, viewport={"width": width, "height": height}, color_scheme=scheme
    )
    page, complaints = await context.new_page(), list[str]()
    own = (site.base_url, "data:", "blob:")
    page.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    page.on(
        "console",
        lambda one: complaints.append(f"{one.type}: {one.text}") if one.type in LOUD else None,
    )
    page.on("pageerror", lambda error: complaints.append(f"thrown: {error}"))
    page.on(
        "request",
        lambda one: None if one.url.startswith(own) else complaints.append(f"foreign: {one.url}"),
    )
    await page.goto(site.path)
    yield page
    await context.close()
    assert [line for line in complaints if not (expected and expected in line)] == []


@asynccontextmanager
async def settings(page: Page) -> AsyncIterator[Locator]:
    """The page's settings, open while the block runs."""
    await page.get_by_role("button", name="Settings", exact=True).click()
    yield page.get_by_role("dialog", name="Settings")
    await page.keyboard.press("Escape")


async def send(page: Page, text: str = "") -> None:
    """Send a text, or the one that the page has put in."""
    if text:
        await page.get_by_label("Message").fill(text)
    await expect(page.get_by_label("Message")).not_to_be_empty()
    await page.get_by_role("button", name="Send").click()


async def finished(page: Page) -> None:
    """Wait for the end of an answer."""
    await expect(page.get_by_role("status")).to_contain_text("finished")
