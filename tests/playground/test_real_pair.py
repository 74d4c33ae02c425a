"""The page with real checkpoints, in natural language, at both sizes."""

import re

import pytest
from playwright.async_api import Browser, Page, expect

from tests.playground.browser import PHONE, WIDE, Site, finished, opened, send, settings

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="package")]

QUESTION = "How do I add two numbers in Python? Begin with a sentence, then show the code."
PATIENCE_MS = 300_000
SIZES = pytest.mark.parametrize("size", [WIDE, PHONE], ids=["1280", "390"])


async def ask(page: Page, text: str, strategy: str, max_tokens: int) -> None:
    expect.set_options(timeout=PATIENCE_MS)
    await expect(page.locator("#model option")).not_to_have_count(0)
    async with settings(page) as dialog:
        await dialog.get_by_label("Model and strategy").select_option(label=strategy)
        await dialog.get_by_label("Max tokens").fill(str(max_tokens))
    await send(page, text)


@SIZES
async def test_answer_of_a_real_pair_is_readable_with_its_segments(
    browser: Browser, real_site: Site, size: tuple[int, int]
) -> None:
    async with opened(browser, real_site, size) as page:
        await ask(page, QUESTION, "likelihood", 80)
        await finished(page)
        answer = page.locator(".answer")
        await expect(answer.locator("p").first).to_contain_text(re.compile(r"\w+ \w+ \w+"))
        await expect(answer.locator("pre code").first).to_contain_text("+")
        num_segments = await page.locator("button.segment").count()
        assert num_segments >= 2
        await expect(page.locator(".numbers-line")).to_contain_text(
            f"likelihood · {num_segments} segments"
        )
        await page.locator("button.segment").first.click()
        await expect(page.get_by_label("Segment details")).to_contain_text(
            "probability of this meaning"
        )
        for selector in ("html", "#thread", ".answer"):
            assert (
                await page.locator(selector).evaluate("node => node.scrollWidth - node.clientWidth")
                <= 0
            )


@SIZES
async def test_answer_of_a_real_target_is_stopped_and_asked_again(
    browser: Browser, real_site: Site, size: tuple[int, int]
) -> None:
    async with opened(browser, real_site, size) as page:
        await ask(page, "Write ten short paragraphs about rivers.", "target", 300)
        await expect(page.locator(".answer")).not_to_be_empty()
        await page.get_by_role("button", name="Stop").click()
        await expect(page.locator(".notices")).to_contain_text("Stopped")
        await expect(page.locator(".answer")).not_to_be_empty()
        await page.get_by_role("button", name="Edit").click()
        async with settings(page) as dialog:
            await dialog.get_by_label("Max tokens").fill("16")
        await send(page, "Say hello.")
        await finished(page)
        await expect(page.locator(".turn")).to_have_count(1)
        await expect(page.locator(".answer")).to_contain_text(re.compile("hello", re.IGNORECASE))
