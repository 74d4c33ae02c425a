"""One browser for the folder, and two servers for it: the bundled pair's stack, and gateways that follow a script."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page

from semspec.stack import Stack
from tests.helpers.gateway import listening
from tests.playground.browser import NoBrowser, Site, launched, opened
from tests.playground.fakes import ScriptedGateway


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def browser() -> AsyncIterator[Browser]:
    try:
        async with launched() as browser:
            yield browser
    except NoBrowser as error:
        pytest.skip(str(error))


@pytest.fixture(scope="package")
def site(browser: Browser, bundled: Stack) -> Site:
    """The bundled pair, served."""
    return Site(bundled.base_url, bundled.api_key)


@pytest_asyncio.fixture(loop_scope="package")
async def page(browser: Browser, site: Site) -> AsyncIterator[Page]:
    async with opened(browser, site) as page:
        yield page


@pytest_asyncio.fixture(loop_scope="package")
async def scripted(browser: Browser) -> AsyncIterator[ScriptedGateway]:
    gateway = ScriptedGateway()
    async with listening(gateway.app(), graceful_s=1) as gateway.base_url:
        yield gateway
