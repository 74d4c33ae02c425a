"""The gateway that the commands call."""

import pytest

from semspec.stack import Stack
from tests.commands.support import Live


@pytest.fixture(scope="package")
def live(bundled: Stack) -> Live:
    return Live(bundled.base_url, bundled.api_key)
