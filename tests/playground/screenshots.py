"""The pictures of README.md and docs/playground.md, taken of a named pair: `scripts/screenshots`."""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

from playwright.async_api import Browser, expect

from semspec.commands.options import pair_config
from semspec.stack import Stack
from tests.playground.browser import (
    PHONE,
    WIDE,
    Scheme,
    Site,
    finished,
    launched,
    opened,
    send,
    settings,
)

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "images"
MODELS = "SEMSPEC_REAL_MODELS"
"""Names the folder with the checkpoints."""
PAIR = "qwen2.5-coder"
PATIENCE_MS = 600_000


@dataclass(frozen=True, slots=True)
class Picture:
    """What to show, and how large."""

    name: str
    size: tuple[int, int]
    question: str
    scheme: Scheme = "light"


PURCHASE = (
    "Pens cost 3 dollars and books 12 dollars. Ann buys 4 pens and 2 books. How much does she pay? "
    "Explain the steps with formulas in LaTeX."
)
PRIMES = (
    "Write a Python function that checks whether a number is prime, and explain it in a short list."
)
PICTURES = (
    Picture("wide", WIDE, PURCHASE),
    Picture("dark", WIDE, PRIMES, "dark"),
    Picture("phone", PHONE, PRIMES),
)


async def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    config = pair_config(PAIR, Path(os.environ[MODELS]), None)
    async with launched() as browser, Stack(config) as stack:
        for picture in PICTURES:
            path = FOLDER / f"playground-{picture.name}.png"
            path.write_bytes(await _take(picture, browser, Site(stack.base_url, stack.api_key)))


async def _take(picture: Picture, browser: Browser, site: Site) -> bytes:
    async with opened(browser, site, picture.size, picture.scheme) as page:
        expect.set_options(timeout=PATIENCE_MS)
        await page.emulate_media(color_scheme=picture.scheme, reduced_motion="reduce")
        async with settings(page) as dialog:
            await dialog.get_by_label("Model and strategy").select_option(label="likelihood")
            await dialog.get_by_label("Temperature").fill("0")
            await dialog.get_by_label("Max tokens").fill("220")
        await send(page, picture.question)
        await finished(page)
        if picture.size != PHONE:
            await page.locator("button.segment.target").first.hover()
        await page.locator("#thread").evaluate("node => node.scrollTo(0, 0)")
        return await page.screenshot()


if __name__ == "__main__":
    asyncio.run(main())
