"""Measure first paint and size of each page of the dashboard over a long history.

The history is that of `tests.bench.listing`, counted into the rollup. A supervisor serves the
dashboard. Chromium opens each page several times with the style sheet and scripts in its cache, as for
the second page of a visit. First paint is what Chromium reports (`first-contentful-paint`), from the
start of the navigation. The size is that of the compressed document. With --dsn the benchmark uses and
keeps an existing database.

In turn, Chromium opens a copy of each page: the same bytes from a server that has them in memory. The
time for a copy is the browser's part, which no dashboard can avoid with this page. A page of one word
shows the browser's minimum.
"""

from __future__ import annotations

import contextlib
import gzip
import http.server
import re
import sys
import threading
import urllib.request
from typing import TYPE_CHECKING, Final, Self

import psycopg
from playwright.sync_api import sync_playwright

from jobherd import sql
from jobherd.workers.maintenance.rollup import STEPS
from tests.bench import listing
from tests.dashboard.support import CHROMIUM, FLAGS, Shown
from tests.support.figures import Report
from tests.support.ground import arguments, ground

if TYPE_CHECKING:
    from playwright.sync_api import Page

PAGES: Final = {
    "overview, hour": "/",
    "overview, week": "/?window=week",
    "overview, week, a kind": "/?window=week&kind=common:kind1",
    "overview, week, a queue": "/?window=week&queue=q1",
    "jobs": "/jobs",
    "jobs, failed": "/jobs?state=failed",
    "jobs, a rare kind": "/jobs?kind=rare:kind",
    "jobs, by end": "/jobs?sort=end",
    "jobs, a payload field": "/jobs?field=action:send_welcome_email",
    "a job": "/jobs/{job}",
    "queues": "/queues",
    "kinds, week": "/kinds?window=week",
    "a kind, week": "/kinds/common:kind1?window=week",
    "errors, week": "/errors?window=week",
    "fleet": "/fleet",
    "schedules": "/schedules",
    "flows": "/flows",
    "audit": "/audit",
    "enqueue": "/enqueue?kind=common:kind1",
}
READING: Final = 500
"""Milliseconds between two navigations: people read a page before they leave it. Without this pause, the figure would
include work of the previous page, which still starts its scripts and its connection for updates.
"""
STATIC: Final = re.compile(r'(?:href|src)="(/static/[^"]*)"')
SENT: Final = ("Content-Type", "Content-Encoding", "Cache-Control", "Content-Security-Policy")
PAINTED: Final = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


class Copy:
    """Serves the bytes of pages from memory. Updates over `/live` get an empty answer."""

    def __init__(self, of: str) -> None:
        self._of = of
        self._kept: dict[str, tuple[bytes, dict[str, str]]] = {
            "/word": (b"<!doctype html>word", {"Content-Type": "text/html"})
        }
        kept = self._kept

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                """Print nothing."""

            def do_GET(self) -> None:
                body, headers = kept.get(self.path, (b"", {}))
                self.send_response(200 if body else 204)
                for name, value in (headers | {"Content-Length": str(len(body))}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def keep(self, path: str) -> bytes:
        """Store the dashboard's present answer, and the files that the page loads. Return the page's bytes."""
        request = urllib.request.Request(self._of + path, headers={"Accept-Encoding": "gzip"})  # noqa: S310
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            headers = {name: answer.headers[name] for name in SENT if name in answer.headers}
            body: bytes = answer.read()
        self._kept[path] = body, headers
        if headers["Content-Type"].startswith("text/html"):
            for found in STATIC.findall(gzip.decompress(body).decode()):
                if found not in self._kept:
                    self.keep(found)
        return body

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def first_paint(tab: Page, url: str) -> float:
    """Return the milliseconds until a page shows something, after a pause on the previous page."""
    tab.wait_for_timeout(READING)
    tab.goto(url, wait_until="load")
    while (seen := tab.evaluate(PAINTED)) is None:
        tab.wait_for_timeout(10)
    return float(seen)


def main() -> int:
    given = arguments(__doc__, jobs=10_000_000, rounds=7, dsn="")
    report = Report(f"paint: {given.jobs:,} jobs of the past")
    with contextlib.nullcontext((None, given.dsn)) if given.dsn else ground() as (_, dsn):
        report.on(dsn)
        if not given.dsn:
            with psycopg.connect(dsn, autocommit=True) as connection:
                listing.fill(connection, given.jobs)
                while connection.execute("SELECT behind FROM jobherd.count_past('8 days', '30 seconds')").fetchone()[0]:
                    continue
                for step, coarser, older in STEPS:  # Like the maintenance process: 24 slices each quarter of an hour.
                    merge = {"step": step, "coarser": coarser, "older": older}
                    while connection.execute(sql.load("maintenance/coarsen_rollup"), merge).fetchone()[0]:
                        continue
                connection.execute("VACUUM ANALYZE jobherd.rollup, jobherd.rollup_times, jobherd.rollup_scopes")
        with Shown(dsn) as shown, Copy(shown.url) as copy, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
            with shown.window(browser) as tab:
                for name, pattern in PAGES.items():
                    path = pattern.format(job=given.jobs // 2)
                    body = copy.keep(path)
                    pages, copies = [], []
                    for _ in range(given.rounds + 1):
                        pages.append(first_paint(tab, shown.url + path))
                        copies.append(first_paint(tab, copy.url + path))
                    report.figure(name, pages[1:], unit="ms", aim=100)
                    report.figure(f"{name}, of its copy", pages[1:], copies[1:], unit="ms")
                    report.fact(
                        f"{name}, document", f"{len(body) / 1024:.1f} KB of {len(gzip.decompress(body)) / 1024:.0f} KB"
                    )
                report.figure(
                    "a page of one word", [first_paint(tab, f"{copy.url}/word") for _ in range(given.rounds)], unit="ms"
                )
            browser.close()
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
