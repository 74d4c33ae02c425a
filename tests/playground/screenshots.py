"""The pictures of docs/playground.md, taken of the bundled pair: `scripts/screenshots`."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from playwright.async_api import Browser, Page, expect

from semspec.stack import Stack
from tests.playground.browser import PHONE, Scheme, Site, launched, opened

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "images"
SEED = 6
"""With it one of the draft's segments is refused."""


@dataclass(frozen=True, slots=True)
class Picture:
    """What to show, and how large."""

    name: str
    size: tuple[int, int]
    scheme: Scheme = "light"
    compares: bool = False


PICTURES = (
    Picture("wide", (1400, 760), compares=True),
    Picture("dark", (1280, 760), "dark"),
    Picture("phone", PHONE),
)


async def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    async with launched() as browser, Stack() as stack:
        site = Site(stack.base_url, stack.api_key)
        await _take(Picture("unused", PHONE, compares=True), browser, site)  # the first run is slower
        for picture in PICTURES:
            path = FOLDER / f"playground-{picture.name}.png"
            path.write_bytes(await _take(picture, browser, site))


async def _take(picture: Picture, browser: Browser, site: Site) -> bytes:
    async with opened(browser, site, picture.size, picture.scheme) as page:
        await page.emulate_media(color_scheme=picture.scheme, reduced_motion="reduce")
        await page.get_by_label("Seed", exact=True).fill(str(SEED))
        await page.get_by_label("Compare with the target alone").set_checked(picture.compares)
        await page.get_by_role("button", name="Generate").click()
        await _settled(page, picture)
        return await page.screenshot()


async def _settled(page: Page, picture: Picture) -> None:
    if picture.compares:
        await expect(page.locator("#meters")).to_contain_text("answer")
    await expect(page.get_by_role("status")).to_contain_text("finished")
    await page.get_by_text("refused draft").click()
    if picture.size == PHONE:
        await page.locator("#timeline").scroll_into_view_if_needed()
        await page.evaluate("document.getElementById('timeline').scrollIntoView()")
    else:
        await page.locator(".segment.target").first.hover()


if __name__ == "__main__":
    asyncio.run(main())
