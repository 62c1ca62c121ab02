"""First paint and weight of each page of the dashboard over a long history.

The history is that of `tests.bench.listing`, counted into the rollup. A supervisor serves the dashboard, and
Chromium opens each page several times with the style sheet and scripts in its cache, as the second page of a
visit has them. First paint is what Chromium reports (`first-contentful-paint`), from the start of the navigation.
The weight is that of the compressed document. With --dsn the database is there already, and it is kept.
"""

from __future__ import annotations

import contextlib
import gzip
import sys
import urllib.request
from typing import Final

import psycopg
from playwright.sync_api import sync_playwright

from jobherd import sql
from jobherd.workers.maintenance.rollup import STEPS
from tests.bench import listing
from tests.dashboard.support import CHROMIUM, FLAGS, Shown
from tests.support.figures import Report
from tests.support.ground import arguments, ground

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
PAINTED: Final = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


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
                for step, coarser, older in STEPS:  # as maintenance does, 24 slices each quarter of an hour
                    merge = {"step": step, "coarser": coarser, "older": older}
                    while connection.execute(sql.load("maintenance/coarsen_rollup"), merge).fetchone()[0]:
                        continue
                connection.execute("VACUUM ANALYZE jobherd.rollup, jobherd.rollup_times, jobherd.rollup_scopes")
        with Shown(dsn) as shown, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
            with shown.window(browser) as tab:
                for name, path in PAGES.items():
                    painted = []
                    for _ in range(given.rounds + 1):
                        tab.goto(path.format(job=given.jobs // 2), wait_until="load")
                        while (seen := tab.evaluate(PAINTED)) is None:
                            tab.wait_for_timeout(10)
                        painted.append(float(seen))
                    request = urllib.request.Request(  # noqa: S310
                        shown.url + path.format(job=given.jobs // 2), headers={"Accept-Encoding": "gzip"}
                    )
                    with urllib.request.urlopen(request) as answer:  # noqa: S310
                        body = answer.read()
                    assert answer.headers["Content-Encoding"] == "gzip"
                    report.figure(name, painted[1:], unit="ms", aim=100)
                    report.fact(
                        f"{name}, document", f"{len(body) / 1024:.1f} KB of {len(gzip.decompress(body)) / 1024:.0f} KB"
                    )
            browser.close()
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
