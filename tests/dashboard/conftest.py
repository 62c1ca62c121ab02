"""What tests of the page share.

The application in this process, and one browser before one real supervisor for all of them.

Most tests ask the application directly: ``page`` over a fresh database. ``tab`` is a new window of
a browser, ``herd`` the supervisor that it looks at; both take a second to start, and are there once
for all tests of this folder. Playwright keeps an event loop in this thread, so a test here that
runs something asynchronous does it by ``tests.dashboard.support.finish``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from jobherd.workers.dashboard import application
from tests.dashboard.patient import be_patient
from tests.dashboard.support import CHROMIUM, FLAGS, Page, Shown
from tests.support.patience import LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that is about one of the page's limits sets it itself."""
    be_patient(monkeypatch.setattr, monkeypatch.setitem)


@pytest.fixture
def page(database: str) -> Iterator[Page]:
    """The application over a fresh database, as somebody on this machine sees it who may do everything."""
    with Page(application(database)) as client:
        yield client


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, without a window."""
    if not os.access(CHROMIUM, os.X_OK):
        pytest.skip(f"there is no {CHROMIUM}: make chromium")
    from playwright.sync_api import expect, sync_playwright

    # else five seconds, of which a list that is looked at every three takes most
    expect.set_options(timeout=LIMIT * 1000)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield running
        running.close()


@pytest.fixture(scope="package")
def herd(cluster, template) -> Iterator[Shown]:
    """A real supervisor with jobs of every sort behind its page."""
    with cluster.database(template=template) as dsn, Shown(dsn) as shown:
        yield shown


@pytest.fixture
def tab(browser: Browser, herd: Shown) -> Iterator[Tab]:
    """A new window.

    Whatever its console complains of, a breach of the security policy too, fails the test.
    """
    with herd.window(browser) as opened:
        yield opened
