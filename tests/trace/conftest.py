"""The browser, one for all tests of a module, and a fresh context in it for each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.trace.browser import started


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started() as browser:
        yield browser


@pytest.fixture
def context(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield context
    context.close()
