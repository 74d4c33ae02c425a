"""The pictures of docs/playground.md, taken of the bundled pair: `scripts/screenshots`."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from playwright.async_api import Browser, expect

from semspec.stack import Stack
from tests.playground.browser import PHONE, WIDE, Scheme, Site, finished, launched, opened, send, settings

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "images"
SEED = 3
"""With it one of the draft's segments is refused."""


@dataclass(frozen=True, slots=True)
class Picture:
    """What to show, and how large."""

    name: str
    size: tuple[int, int]
    scheme: Scheme = "light"
    compares: bool = False


PICTURES = (Picture("wide", WIDE, compares=True), Picture("dark", WIDE, "dark"), Picture("phone", PHONE))


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
        async with settings(page) as dialog:
            await dialog.get_by_label("Seed", exact=True).fill(str(SEED))
            await dialog.get_by_label("Compare with the target alone").set_checked(picture.compares)
        await send(page)
        if picture.compares:
            await expect(page.locator(".meters")).to_contain_text("answer")
        await finished(page)
        await page.get_by_text("refused draft").first.click()
        if picture.size != PHONE:
            await page.locator(".segment.target").first.hover()
        await page.locator("#thread").evaluate(f"node => node.scrollTo(0, {0 if picture.compares else 10_000})")
        return await page.screenshot()


if __name__ == "__main__":
    asyncio.run(main())
