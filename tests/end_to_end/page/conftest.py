"""A browser, and a container that starts in seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, expect

from tests.conftest import Endpoint
from tests.support.browsing import Visitor, chromium
from tests.support.front import front, key_lines

KEY = "the-secret"
APPLICATION = "tests.support.browsing:build()"
expect.set_options(timeout=30_000)  # a machine may be slow


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def site(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    with front(tmp_path_factory.mktemp("page"), APPLICATION) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def closed_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """One that wants a key."""
    folder = tmp_path_factory.mktemp("closed")
    keys = folder / "keys"
    keys.write_text(key_lines("inference", shop=KEY))
    with front(folder, APPLICATION, API_KEYS_FILE=str(keys), PAGE="on") as endpoint:
        yield endpoint


@contextmanager
def visiting(browser: Browser, site: Endpoint) -> Iterator[Visitor]:
    """A person, for whom nothing may go wrong that is not an answer."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    one = Visitor(context.new_page(), site)
    yield one
    context.close()
    assert not one.wrong
    assert not one.elsewhere


@pytest.fixture
def visitor(browser: Browser, site: Endpoint) -> Iterator[Visitor]:
    """A person with the page open."""
    with visiting(browser, site) as one:
        yield one.open()
