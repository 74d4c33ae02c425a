"""Answers in natural language: Markdown, formulas and code, as they grow and when they are hostile, at both sizes."""

import random
import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.helpers.records import record
from tests.playground.browser import PHONE, WIDE, Site, finished, opened, send
from tests.playground.fakes import PARAMETERS, ScriptedGateway, drafted

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="package")]

SEGMENTS = (
    "To solve \\(x^2 - 5x + 6 = 0\\), note 12*3 = 36 = 20*3, and **bold** *text*.\n\n",
    "1. Find two numbers:\n   - their product is 6\n   - their sum is 5\n\n",
    "2. Those are `2` and `3`:\n   \\[\n   x^2 - 5x + 6 = (x - 2)(x - 3)\n   \\]\n\n",
    "3. So $x = 2$ or $x = 3$.\n\n",
    "### A check\n\n```python\ndef check(x):\n    # two blank lines\n\n",
    "    return x**2 - 5*x + 6 == 0\n```\n\n",
    "| root | value |\n|---|---|\n| a | 2 |\n\n$$\nx_1 = 2\n\nx_2 = 3\n$$\n\n",
    "Text\n- of a list\n- without a blank line\n\n> a quote\n\nThe answer is \\boxed{2}, from $5 to $10.",
)
LONG = "x" * 400
WIDE_THINGS = (
    f"{LONG}\n\n```\n{LONG}\n```\n\n| {' | '.join(['a wide cell'] * 20)} |\n|{'---|' * 20}\n\n"
    f"$$ {' + '.join(f'a_{{{i}}}' for i in range(60))} $$\n\n"
    f"1. In a list: ${' + '.join(f'b_{{{i}}}' for i in range(60))}$\n\n"
    "$\\rule{900em}{1em}$\n\n- - - - - - deep\n\n`" + LONG + "`\n"
)
HOSTILE = (
    '<img src=x onerror="document.title=\'owned\'"><script>document.title="owned"</script>\n\n'
    "![picture](https://example.com/a.png) ![picture](/v1/models)\n\n"
    "[there](javascript:alert(1)) [data](data:text/html,x)\n\n"
    '<iframe src="https://example.com"></iframe>\n\n<a href="javascript:alert(1)" onclick="alert(1)">x</a>\n\n'
    "[file](file:///etc/passwd) <javascript:alert(1)> [ref][r]\n\n[r]: javascript:alert(1)\n\n"
    "$\\includegraphics{https://example.com/b.png}$ $\\href{javascript:alert(1)}{x}$ $\\class{boxed}{x}$ "
    "$\\htmlStyle{position:fixed}{x}$\n\n$$\\def\\a{\\a\\a}\\a$$\n\n```<script>\n<script>document.title='owned'</script>\n```"
)


@pytest_asyncio.fixture(loop_scope="package", params=[WIDE, PHONE], ids=["1280", "390"])
async def page(
    request: pytest.FixtureRequest, browser: Browser, scripted: ScriptedGateway
) -> AsyncIterator[Page]:
    """Over the scripted gateway."""
    async with opened(browser, Site(scripted.base_url), request.param) as page:
        yield page


async def ask(page: Page, scripted: ScriptedGateway, *texts: str) -> None:
    """Get a whole answer of these segments."""
    await send(page, "a question")
    for index, text in enumerate(texts):
        scripted.say(segment=record(index, text))
    scripted.end()
    await finished(page)


async def markup(page: Page) -> str:
    """What the answer consists of, without the margin."""
    return str(
        await page.locator(".answer").evaluate(
            """node => {
          const copy = node.cloneNode(true);
          copy.querySelectorAll(".segments").forEach((margin) => margin.remove());
          return copy.innerHTML;
        }"""
        )
    )


async def test_markdown_formulas_and_code_are_set(page: Page, scripted: ScriptedGateway) -> None:
    await ask(page, scripted, *SEGMENTS)
    answer = page.locator(".answer")
    await expect(answer.locator("strong").first).to_have_text("bold")
    await expect(answer.locator("em")).to_have_text(["text"])
    await expect(answer.locator("p").first).to_contain_text("12*3 = 36 = 20*3")
    await expect(answer.locator("math")).to_have_count(5)
    await expect(answer.locator("li.cell")).to_have_count(5)
    await expect(answer.locator("li li")).to_have_text(["their product is 6", "their sum is 5"])
    await expect(answer.locator("h6")).to_have_text("A check")
    await expect(answer.locator("pre code")).to_have_text(
        re.compile(r"^def check[\s\S]*\n\n    return x\*\*2 - 5\*x")
    )
    await expect(answer.locator("td")).to_have_text(["a", "2"])
    await expect(answer.locator("blockquote")).to_have_text("a quote")
    await expect(answer.locator(".boxed")).to_have_text("2")
    await expect(answer.locator("p").last).to_contain_text("from $5 to $10")
    labels = await page.locator("button.segment").evaluate_all(
        "nodes => nodes.map((node) => node.ariaLabel)"
    )
    assert [label.partition(":")[0] for label in labels] == [
        f"Segment {n + 1}" for n in range(len(SEGMENTS))
    ]


@pytest.mark.parametrize(
    ("text", "emphasised"),
    [
        ("12*3 = 36 = 20 * 3", []),
        ("2**3 = 8 and 3**2 = 9", []),
        ("*it is 3*4 here*", ["it is 3*4 here"]),
        ("*a* times **b**", ["a", "b"]),
        ("so $a*b$ is *not* $c*d$", ["not"]),
        ("**粗体**中文", ["粗体"]),
        ("about ~5 or ~6", []),
    ],
)
async def test_asterisk_between_factors_is_multiplication(
    page: Page, scripted: ScriptedGateway, text: str, emphasised: list[str]
) -> None:
    await ask(page, scripted, text)
    await expect(page.locator(".answer :is(em, strong, del)")).to_have_text(emphasised)


async def test_answer_that_grows_by_pieces_ends_as_one_that_comes_at_once(
    page: Page, scripted: ScriptedGateway
) -> None:
    await ask(page, scripted, *SEGMENTS)
    whole, margin = await markup(page), await page.locator("button.segment").count()
    pieces = random.Random(3)
    for _ in range(2):
        await page.get_by_role("button", name="Regenerate").click()
        for index, text in enumerate(SEGMENTS):
            while text.startswith(scripted.written) and scripted.written != text:
                at = len(scripted.written)
                scripted.write(text[at : at + pieces.randint(1, 9)])
                await page.wait_for_timeout(pieces.choice([0, 0, 20]))
            scripted.say(segment=record(index, text, "rewritten"))
        scripted.end()
        await finished(page)
        assert await markup(page) == whole
        await expect(page.locator("button.segment.target")).to_have_count(margin)


async def test_text_appears_before_its_segment_is_decided(
    page: Page, scripted: ScriptedGateway
) -> None:
    await send(page, "a question")
    await expect(page.locator(".notices")).to_contain_text("Reading the question")
    scripted.say(segment=record(0, "First. "))
    scripted.say(drafted=drafted(1, "A draft. "))
    await expect(page.locator("button.segment")).to_have_class(
        ["segment accepted", "segment flight"]
    )
    scripted.write("Ano")
    scripted.write("ther")
    await expect(page.locator(".answer p")).to_have_text(re.compile("First. Another$"))
    await expect(page.locator("button.segment")).to_have_class(
        ["segment accepted", "segment flight"]
    )
    scripted.say(segment=record(1, "Another one.", "rewritten"))
    await expect(page.locator("button.segment")).to_have_class(
        ["segment accepted", "segment target"]
    )
    await expect(page.locator(".answer p")).to_have_text(re.compile("First. Another one.$"))
    scripted.write("Kept")
    await expect(page.locator(".answer p")).to_contain_text("Kept")
    await page.get_by_role("button", name="Stop").click()
    await expect(page.locator(".notices")).to_contain_text("Stopped")
    await expect(page.locator(".answer p")).to_contain_text("Another one.Kept")


async def test_reasoning_that_the_server_tells_apart_is_shown_apart(
    page: Page, scripted: ScriptedGateway
) -> None:
    await send(page, "a question")
    scripted.write("I think", "reasoning_content")
    await expect(page.locator(".reasoning")).to_contain_text("I think")
    scripted.write("So it is", "content")
    await expect(page.locator(".answer")).to_contain_text("So it is")
    await expect(page.locator(".reasoning")).not_to_contain_text("So")
    scripted.say(segment=record(0, "I think.</think>So it is 4."))
    scripted.end()
    await finished(page)
    await expect(page.locator(".answer")).to_contain_text("So it is 4.")
    await page.locator(".reasoning summary").click()
    await expect(page.locator(".reasoning p")).to_be_hidden()


async def test_long_reasoning_is_folded_when_it_has_ended(
    page: Page, scripted: ScriptedGateway
) -> None:
    await send(page, "a question")
    for index in range(20):
        scripted.say(segment=record(index, f"step {index}\n\n"))
    scripted.say(segment=record(20, "the end</think>the answer"))
    await expect(page.locator(".reasoning p").first).to_be_visible()
    scripted.end()
    await expect(page.locator(".reasoning p").first).to_be_hidden()
    await expect(page.locator(".answer")).to_contain_text("the answer")
    await page.locator(".reasoning summary").click()
    await expect(page.locator(".reasoning p")).to_have_count(21)


async def test_finished_blocks_are_rendered_once(page: Page, scripted: ScriptedGateway) -> None:
    """4,000 pieces add elements in proportion to the text, not to its square."""
    await send(page, "a question")
    scripted.write("The *first* paragraph with $x^2$.\n\nThe")
    await expect(page.locator(".answer math")).to_have_count(1)
    await page.evaluate(
        """() => {
          window.first = document.querySelector(".answer p");
          window.numAdded = 0;
          const count = (node) => 1 + (node.querySelectorAll?.("*").length ?? 0);
          new MutationObserver((changes) => changes.forEach(({ addedNodes }) =>
            addedNodes.forEach((node) => (window.numAdded += count(node)))))
            .observe(document.querySelector(".answer"), { childList: true, subtree: true });
        }"""
    )
    paragraphs = [
        f" paragraph {n} of *many* words\n\n1. a list `{n}`\n2. and $x_{n}$\n\nThe"
        for n in range(160)
    ]
    words = re.findall(r"\S+\s*|\s+", "".join(paragraphs))
    for index, word in enumerate(words):
        scripted.write(word)
        if index % 8 == 0:
            await page.wait_for_timeout(1)
    scripted.write(" end.")
    await expect(page.locator(".answer")).to_contain_text("The end.")
    added, shown = await page.evaluate(
        "[window.numAdded, document.querySelectorAll('.answer *').length]"
    )
    assert added < 15 * shown
    assert await page.evaluate(
        "window.first.isConnected && window.first === document.querySelector('.answer p')"
    )


async def test_hostile_answer_stays_text(page: Page, scripted: ScriptedGateway) -> None:
    pictures: list[str] = []
    page.on(
        "request",
        lambda request: pictures.append(request.url) if request.resource_type == "image" else None,
    )
    await send(page, HOSTILE)
    scripted.say(drafted=drafted(1, HOSTILE))
    for at in range(0, len(HOSTILE), 40):
        scripted.write(HOSTILE[at : at + 40])
    refused = {"text": HOSTILE, "num_tokens": 1}
    scripted.say(segment=record(0, HOSTILE, "rewritten", rejected=refused, fallback=HOSTILE))
    scripted.end()
    await finished(page)
    await page.locator("button.segment").first.click()
    await expect(page.get_by_label("Segment details")).to_contain_text("onerror")
    await expect(page.locator(".asked p")).to_have_text(HOSTILE)
    await expect(page.locator(".answer")).to_contain_text("![picture](https://example.com/a.png)")
    await expect(page.locator(".answer")).to_contain_text("[there](javascript:alert(1))")
    tags = "img, image, script, iframe, object, embed, form, video, audio, link, style, [src], [onclick], [onerror]"
    assert await page.locator(f":is(main, aside) :is({tags})").count() == 0
    hrefs = await page.locator("main [href]").evaluate_all(
        "nodes => nodes.map((node) => node.getAttribute('href'))"
    )
    assert [href for href in hrefs if not href.startswith(("https://", "http://"))] == []
    assert await page.title() == "semspec playground"
    assert pictures == []


async def test_link_opens_elsewhere_only_when_clicked(
    page: Page, scripted: ScriptedGateway
) -> None:
    await ask(page, scripted, "[here](https://example.com/a) and https://example.org/b")
    links = page.locator(".answer a")
    await expect(links).to_have_text(["here", "https://example.org/b"])
    await expect(links.first).to_have_attribute("title", "https://example.com/a")
    for link in await links.all():
        assert await link.get_attribute("rel") == "noopener noreferrer nofollow"
        assert await link.get_attribute("target") == "_blank"


async def test_code_is_copied_as_it_was_written(page: Page, scripted: ScriptedGateway) -> None:
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await ask(page, scripted, "Run:\n\n```sh\necho '<b>' \\\n  && ls *\n```\n")
    await page.get_by_role("button", name="Copy code").click()
    await expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert await page.evaluate("navigator.clipboard.readText()") == "echo '<b>' \\\n  && ls *"


async def test_only_wide_blocks_scroll_sideways(page: Page, scripted: ScriptedGateway) -> None:
    await ask(page, scripted, WIDE_THINGS, "\n\nThe end.")
    await expect(page.locator(".answer math").first).to_be_visible()
    overflow = "node => node.scrollWidth - node.clientWidth"
    for selector in ("html", "#thread", ".turn", ".answer"):
        assert await page.locator(selector).first.evaluate(overflow) <= 0, selector
    for selector in ("pre", "div.formula", "table", "span.formula.wide"):
        assert await page.locator(f".answer {selector}").first.evaluate(overflow) > 0, selector


async def test_long_answer_stays_at_its_end_unless_the_reader_scrolls_up(
    page: Page, scripted: ScriptedGateway
) -> None:
    thread, to_end = page.locator("#thread"), page.get_by_role("button", name="To the end")
    distance = "node => Math.round(node.scrollHeight - node.scrollTop - node.clientHeight)"
    await send(page, "a question")
    for index in range(60):
        scripted.say(segment=record(index, f"Paragraph {index} with $x^{{{index}}}$.\n\n"))
    await expect(page.locator(".answer p").last).to_contain_text("Paragraph 59")
    await expect(page.locator(".answer p").last).to_be_in_viewport()
    await expect(to_end).to_be_hidden()
    await thread.hover(position={"x": 200, "y": 200})
    await page.mouse.wheel(0, -60)
    await expect(to_end).to_be_visible()
    top = await thread.evaluate("node => node.scrollTop")
    for index in range(60, 80):
        scripted.say(segment=record(index, f"Paragraph {index}.\n\n"))
    await expect(page.locator(".answer p").last).to_contain_text("Paragraph 79")
    assert abs(await thread.evaluate("node => node.scrollTop") - top) < 60
    await to_end.click()
    await expect(to_end).to_be_hidden()
    assert await thread.evaluate(distance) <= 1
    scripted.say(segment=record(80, "Paragraph 80.\n\n" * 10))
    await expect(page.locator(".answer p").last).to_be_in_viewport()


async def test_decision_by_likelihood_names_its_threshold(
    page: Page, scripted: ScriptedGateway
) -> None:
    scripted.parameters = {**PARAMETERS, "strategy": "likelihood"}
    await send(page, "a question")
    scripted.say(segment=record(0, "Paragraph 0."))
    scripted.end()
    await finished(page)
    await expect(page.locator("button.segment")).to_have_attribute(
        "aria-label", re.compile(r"Accepted .* probability .* reaches the threshold 0\.500")
    )


async def test_focus_on_a_segment_survives_what_follows(
    page: Page, scripted: ScriptedGateway
) -> None:
    await send(page, "a question")
    for index in range(3):
        scripted.say(segment=record(index, f"Paragraph {index}.\n\n"))
    segments = page.locator("button.segment")
    await expect(segments).to_have_count(3)
    await segments.first.focus()
    await page.keyboard.press("ArrowDown")
    await expect(segments.nth(1)).to_be_focused()
    scripted.say(segment=record(3, "Paragraph 3."))
    scripted.end()
    await finished(page)
    await expect(segments.nth(1)).to_be_focused()
    await expect(segments.nth(1)).to_have_attribute(
        "aria-label", re.compile(r"Segment 2: Accepted .* fell under")
    )
    await expect(page.locator("button.segment[tabindex='0']")).to_have_count(1)
