"""Clients for tests of the dashboard.

`Page` sends HTTP requests to an application in this process, without a network. `Shown` runs a real
supervisor with a dashboard.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import psycopg
from starlette.testclient import TestClient

from tests.support.gate import VARIABLE, Gate
from tests.support.herd import Herd
from tests.support.patience import LIMIT

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from httpx2 import Response
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab
    from starlette.types import ASGIApp

T = TypeVar("T")
CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
WORK = Path(__file__).with_name("work.py")
W01 = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'><svg/onload=alert(1)>",
    "javascript:alert(1)",
    "</textarea><script>alert(1)</script>",
    "{{7*7}} {% raise %} ${7*7}",
    "<!--<script>alert(1)//-->",
    "\u202etxt.exe\u202c",
    "a\u0000b".replace("\u0000", "\ufffd"),
    "&lt;b&gt; &amp; <b>bold</b>",
)
"""Hostile texts. Pages must show them as text and never execute them."""


class Page(TestClient):
    """An HTTP client of the application that behaves like a browser.

    ``page.act("/queues/action", queue="mail")`` sends a form with its CSRF token.

    address: IP address of the client; default this host.
    """

    def __init__(self, app: ASGIApp, *, host: str = "localhost", address: str = "127.0.0.1", **more: Any) -> None:
        super().__init__(app, base_url=f"http://{host}", client=(address, 50000), **more)

    def csrf(self, path: str = "/") -> str:
        """Return the CSRF token of the forms on the page `path`."""
        found = re.search(r'<meta name="csrf" content="([^"]*)">', self.get(path).text)
        assert found, f"{path} has no token"
        return found[1]

    def act(self, path: str, *, follow: bool = False, **fields: Any) -> Response:
        """Send a form with its token. follow: follow the redirect."""
        return self.act_at("/", path, follow=follow, **fields)

    def act_at(self, form: str, path: str, *, follow: bool = False, **fields: Any) -> Response:
        """Load the page `form`, then send a form with its token."""
        sent = {"csrf": self.csrf(form), **fields}
        headers = {"Origin": str(self.base_url).rstrip("/"), "Referer": str(self.base_url.join(form))}
        return self.post(path, data=sent, headers=headers, follow_redirects=follow)


class Shown(Herd):
    """A supervisor with its dashboard at `url` and the handlers of ``work.py``."""

    def __init__(self, dsn: str, *flags: str, workers: int = 2) -> None:
        self.gate = Gate()
        super().__init__(
            dsn,
            WORK,
            "--http",
            "127.0.0.1:0",
            *flags,
            workers=workers,
            env={VARIABLE: str(self.gate.path)},
            program="tests.dashboard.patient",
        )
        self.dsn = dsn
        self.url = ""

    def __enter__(self) -> Self:
        super().__enter__()
        self.url = (
            self.wait_event(lambda event: event.message.startswith("the dashboard is "))
            .message.removeprefix("the dashboard is ")
            .rstrip("/")
        )
        return self

    def __exit__(self, *how: object) -> None:
        self.gate.close()  # a handler that still waits at the gate fails, so the drain does not wait for it
        super().__exit__(*how)

    def enqueue(self, kind: str, payload: object = None, **options: object) -> int:
        """Enqueue a job of ``work.py``."""
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            sent = (kind, json.dumps(payload or {}), json.dumps(options))
            row = conn.execute("SELECT jobherd.enqueue(%s, %s::jsonb, %s::jsonb)", sent).fetchone()
            assert row
            return int(row[0])

    def window(self, browser: Browser, **options: Any) -> contextlib.AbstractContextManager[Tab]:
        """Open a new browser window at this dashboard. Otherwise as `window_at`."""
        return window_at(self.url, browser, **options)


@contextlib.contextmanager
def window_at(url: str, browser: Browser, **options: Any) -> Iterator[Tab]:
    """Open a new browser window; fail at exit if its console has an error or a warning.

    url: of the dashboard. options: of Playwright's new_context, such as `java_script_enabled=False`.
    """
    context = browser.new_context(base_url=url, **options)
    context.set_default_timeout(LIMIT * 1000)
    complaints: list[str] = []
    tab = context.new_page()
    tab.on("console", lambda message: complaints.append(message.text) if message.type in {"error", "warning"} else None)
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    try:
        yield tab
    finally:
        context.close()
    assert complaints == []


def finish(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in a separate thread, since Playwright's event loop may run in this one."""
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(asyncio.run(work))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(LIMIT)
    assert not thread.is_alive(), "the coroutine did not end"
    if failed:
        raise failed[0]
    return done[0]
