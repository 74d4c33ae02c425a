"""One browser for the folder, and two servers for it: the bundled pair's stack, and gateways that follow a script."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page

from semspec.stack import Stack, StackConfig
from tests.playground.browser import NoBrowser, Site, launched, opened
from tests.playground.fakes import ScriptedGateway

GENEROUS_S = 120.0


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def browser() -> AsyncIterator[Browser]:
    try:
        async with launched() as browser:
            yield browser
    except NoBrowser as error:
        pytest.skip(str(error))


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def site(browser: Browser) -> AsyncIterator[Site]:
    """The bundled pair, served; not even started where there is no browser."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("REDIS_URL", raising=False)
        async with Stack(StackConfig(start_timeout_s=GENEROUS_S)) as stack:
            yield Site(stack.base_url, stack.api_key)


@pytest_asyncio.fixture(loop_scope="package")
async def page(browser: Browser, site: Site) -> AsyncIterator[Page]:
    async with opened(browser, site) as page:
        yield page


@pytest_asyncio.fixture(loop_scope="package")
async def scripted(browser: Browser) -> AsyncIterator[ScriptedGateway]:
    async with ScriptedGateway() as gateway:
        yield gateway
