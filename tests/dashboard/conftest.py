"""Fixtures of the tests of the dashboard.

Most tests use ``page``, a client of the application in this process, over a fresh database. ``tab``
is a new browser window at the dashboard of ``herd``, a real supervisor. The browser and the
supervisor take a second to start, so all tests of this folder share them. Playwright keeps an event
loop in this thread, so tests here run coroutines with ``tests.dashboard.support.finish``.
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
    """Raise the time limits of the dashboard. A test of a limit sets that limit itself."""
    be_patient(monkeypatch.setattr, monkeypatch.setitem)


@pytest.fixture
def page(database: str) -> Iterator[Page]:
    """A client on this host with the role operate, over a fresh database."""
    with Page(application(database)) as client:
        yield client


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, without a window."""
    if not os.access(CHROMIUM, os.X_OK):
        pytest.skip(f"there is no {CHROMIUM}: make chromium")
    from playwright.sync_api import expect, sync_playwright

    # Playwright's default of 5 s is too short for a list that is updated every 3 s.
    expect.set_options(timeout=LIMIT * 1000)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield running
        running.close()


@pytest.fixture(scope="package")
def herd(cluster, template) -> Iterator[Shown]:
    """A real supervisor with the handlers of ``work.py`` and a dashboard."""
    with cluster.database(template=template) as dsn, Shown(dsn) as shown:
        yield shown


@pytest.fixture
def tab(browser: Browser, herd: Shown) -> Iterator[Tab]:
    """A new browser window.

    An error or a warning in its console fails the test, including a violation of the security policy.
    """
    with herd.window(browser) as opened:
        yield opened
