# ruff: noqa: INP001  # a script, no package
"""Takes the pictures in `docs/pictures/`.

Every page of a real supervisor with an hour of work behind it, in light, in dark and on a phone.

    make screenshots [PAGES="overview jobs"]

The work is made up (`DEMO`), what is shown of it is not: a supervisor runs the jobs, some crash,
some fail. Then their times are spread over the last hour, since a run should not take that long for a
chart. Needs the extras `embedded`, `web` and `dev`, and Chromium.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
from playwright.sync_api import sync_playwright

from jobherd.supervisor.embedded import lifecycle
from tests.dashboard.support import CHROMIUM, FLAGS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parents[1]
PICTURES: Final = ROOT / "docs" / "pictures"
PATIENCE: Final = 60.0
"""Seconds after which something has gone wrong."""
TALL: Final = 1500
"""Pixels: a long list is cut there."""
WAYS: Final[dict[str, dict[str, Any]]] = {
    "light": {"viewport": {"width": 1280, "height": 860}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 860}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "device_scale_factor": 2},
}
DEMO: Final = """\
import os, random, signal, time
from jobherd import Job, Poison, handler

@handler("mail:receipt", queue="mail")
def receipt(order_id: int, to: str) -> dict[str, object]:
    time.sleep(random.uniform(0.002, 0.03))
    return {"sent": True, "order_id": order_id}

@handler("image:thumbnail", queue="media", max_attempts=2, backoff="20m")
def thumbnail(path: str, width: int = 320) -> dict[str, int]:
    time.sleep(random.uniform(0.01, 0.08))
    if path.endswith(".tiff"):
        raise ValueError(f"cannot identify image file {path!r}")
    return {"width": width, "height": width * 3 // 4}

@handler("report:build", queue="reports", timeout="10m")
def build(job: Job, year: int) -> str:
    for month in range(1, 13):
        job.progress(month / 12, f"month {month} of 12")
        print(f"month {month}: {random.randint(900, 4000)} rows")
        time.sleep(1.5 if month < 4 else 60)  # it is still at it when the last picture is taken
    return f"the report of {year}"

@handler("card:charge", queue="billing", redact=["$.card"])
def charge(card: str, amount: int, currency: str = "EUR") -> dict[str, object]:
    time.sleep(random.uniform(0.01, 0.05))
    if amount > 900:
        raise Poison(f"card {card} was declined")
    return {"charged": amount, "currency": currency}

@handler("video:encode", queue="media", max_crashes=1)
def encode(job: Job, path: str) -> None:
    job.progress(0.4, "frame 9,600 of 24,000")
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGSEGV)
"""


def main(only: list[str]) -> None:
    """Take them all, or those of the pages that are named."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="shop-") as name:
        folder = Path(name)
        (folder / "handlers.d").mkdir()
        (folder / "handlers.d" / "demo.py").write_text(DEMO)
        server = lifecycle.start(folder)
        try:
            with supervisor(folder, server.dsn) as url:
                pages = fill(server.dsn)
                take(url, {page: path for page, path in pages.items() if not only or page in only})
        finally:
            server.leave()


@contextlib.contextmanager
def supervisor(folder: Path, dsn: str) -> Iterator[str]:
    """Run one on the demonstration; give the address of its page."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JOBHERD_")} | {
        "PYTHONPATH": str(ROOT)
    }
    words = [
        "run",
        "--dsn",
        dsn,
        "--handlers",
        "handlers.d",
        "--workers",
        "4",
        "--http",
        "127.0.0.1:0",
        "--log-format",
        "text",
        "--spawn-timeout",
        "60s",  # a slow start on a busy machine would be in the picture of the fleet
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "jobherd.supervisor", *words], cwd=folder, env=environment, stderr=log
        )
        try:
            until = time.monotonic() + PATIENCE
            while not (found := re.search(r"the dashboard is (http://\S+?)/\s", (folder / "log").read_text())):
                if time.monotonic() > until:
                    raise RuntimeError((folder / "log").read_text())
                time.sleep(0.05)
            yield found[1]
        finally:
            process.terminate()
            time.sleep(0.7)  # one that comes sooner counts as the same
            process.terminate()  # a second one: what still runs goes back
            process.wait(PATIENCE)


def fill(dsn: str) -> dict[str, str]:
    """Enqueue the work and wait for it; return what to take pictures of."""
    chance = random.Random(7)
    with psycopg.connect(dsn, autocommit=True) as connection:

        def enqueue(kind: str, payload: dict[str, object], **options: object) -> int:
            sent = (kind, psycopg.types.json.Jsonb(payload), psycopg.types.json.Jsonb(options))
            row = connection.execute("SELECT jobherd.enqueue(%s, %s, %s)", sent).fetchone()
            assert row is not None
            return int(row[0])

        def wait(condition: str) -> None:
            until = time.monotonic() + PATIENCE
            # this file's own text
            while not (row := connection.execute(f"SELECT {condition}").fetchone()) or not row[0]:
                if time.monotonic() > until:
                    raise RuntimeError(condition)
                time.sleep(0.1)

        for number in range(900):
            enqueue("mail:receipt", {"order_id": 4000 + number, "to": f"customer{number}@example.com"})
        for number in range(160):
            enqueue(
                "image:thumbnail",
                {"path": f"uploads/2026/{number:04}.{'tiff' if number % 23 == 0 else 'png'}"},
                max_attempts=1,
            )
        for number in range(60):
            enqueue("card:charge", {"card": f"4111 1111 1111 {number:04}", "amount": chance.randint(5, 950)})
        crashed = enqueue("video:encode", {"path": "uploads/2026/holiday.mov"})
        wait("NOT EXISTS (SELECT FROM jobherd.waiting) AND NOT EXISTS (SELECT FROM jobherd.running)")
        connection.execute(
            "UPDATE jobherd.history SET created_at = created_at - d, run_at = run_at - d, started_at = "
            "started_at - d, finished_at = finished_at - d"
            " FROM (SELECT id AS i, make_interval(secs => 3500 * (0.5 + 0.5 * sin(id * 7.3))) AS d FROM "
            "jobherd.history) AS h WHERE id = i AND id <> %s",
            (crashed,),
        )
        # The charts are of what was counted at its time: count it again.
        connection.execute(
            "TRUNCATE jobherd.rollup, jobherd.rollup_times, jobherd.rollup_failures, jobherd.rollup_scopes, "
            "jobherd.rollup_gaps, jobherd.rollup_mark"
        )
        wait("NOT behind AND EXISTS (SELECT FROM jobherd.rollup) FROM jobherd.count_past('8 days', '30 seconds')")
        for number in range(120):
            enqueue("image:thumbnail", {"path": f"uploads/2026/next-{number:04}.png"}, delay=f"{60 * (number + 1)}s")
        connection.execute("SELECT jobherd.pause('newsletter', 'the template has a wrong link', actor => 'alice')")
        for number in range(30):
            enqueue(
                "mail:receipt", {"order_id": 9000 + number, "to": f"customer{number}@example.com"}, queue="newsletter"
            )
        running = [enqueue("report:build", {"year": 2024 + number}) for number in range(2)]
        wait("EXISTS (SELECT FROM jobherd.jobs WHERE kind = 'report:build' AND state = 'running')")
        time.sleep(6)
    return {
        "overview": "/",
        "jobs": "/jobs",
        "job": f"/jobs/{crashed}",
        "running": f"/jobs/{running[0]}",
        "fleet": "/fleet",
        "queues": "/queues",
        "kinds": "/kinds",
        "kind": "/kinds/image:thumbnail",
        "audit": "/audit",
    }


def take(url: str, pages: dict[str, str]) -> None:
    """Take a picture of each page in each way."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        for way, options in WAYS.items():
            context = browser.new_context(base_url=url, timezone_id="Europe/Berlin", **options)
            tab = context.new_page()
            for name, path in pages.items():
                tab.goto(path)
                tab.wait_for_timeout(1500)  # a look of the live updates
                size = tab.viewport_size or {"width": 0, "height": 0}
                high = (
                    size["height"]
                    if way == "phone"
                    else min(TALL, max(size["height"], tab.evaluate("document.documentElement.scrollHeight")))
                )
                clip = {"x": 0, "y": 0, "width": size["width"], "height": high}
                tab.screenshot(path=PICTURES / f"{name}-{way}.png", full_page=True, clip=clip)
                print(f"docs/pictures/{name}-{way}.png")
            context.close()
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
