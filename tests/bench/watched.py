"""What it costs the drain that the page is looked at: 64 children at full load, with 20 open pages and with none.

In turn, the order swapped in each pair. A page is what a browser holds open of it: a stream of server-sent events with the topics that the
page itself names, read as fast as it comes: four each of overview, fleet, jobs, one job, and queues. The same supervisor, with the same web child,
drains both times. A drain is loaded into a held queue, and runs from its release to the last job's end.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

import psycopg

from tests.bench.jobs import drain
from tests.support.figures import Report
from tests.support.ground import arguments, fresh, ground
from tests.support.herd import Herd

if TYPE_CHECKING:
    from collections.abc import Iterator

WORK = Path(__file__).with_name("work.py")
EACH = 4


class Viewer(threading.Thread):
    """Somebody who looks at a page: gets it, and reads what its stream sends until he is told to leave."""

    def __init__(self, url: str, path: str) -> None:
        super().__init__(daemon=True)
        self._where = urlsplit(url)
        self._path = path
        self._left = False
        self.events = 0
        self.watched: list[str] = []

    def run(self) -> None:
        page = self._get(self._path).read().decode()
        self.watched = sorted(set(re.findall(r'data-live="([^"/]+)"', page)))
        if not self.watched:
            return
        answer = self._get("/live?" + urlencode([("topic", topic) for topic in self.watched]))
        while not self._left and (line := answer.readline()):
            self.events += line.startswith(b"event: fragment")

    def leave(self) -> None:
        self._left = True

    def _get(self, path: str):
        connection = HTTPConnection(self._where.hostname or "", self._where.port, timeout=60)
        connection.request("GET", self._where.path.rstrip("/") + path, headers={"Accept": "text/html"})
        answer = connection.getresponse()
        assert answer.status == 200, (path, answer.status)
        return answer


@contextmanager
def watched(url: str, paths: list[str]) -> Iterator[list[Viewer]]:
    """So many pages are open meanwhile."""
    viewers = [Viewer(url, path) for path in paths for _ in range(EACH)]
    for viewer in viewers:
        viewer.start()
    time.sleep(2.0)
    yield viewers
    for viewer in viewers:
        viewer.leave()
    for viewer in viewers:
        viewer.join(60)


def main() -> int:
    given = arguments(__doc__, jobs=200_000, children=64, pairs=10, batch=100)
    report = Report(f"watched: {given.children} children at full load, {5 * EACH} open pages")
    seen: list[float] = []
    alone: list[float] = []
    events: dict[str, int] = {}
    with (
        ground() as (cluster, _),
        fresh(cluster) as dsn,
        Herd(dsn, WORK, "--batch", str(given.batch), "--http", "127.0.0.1:0", workers=given.children) as herd,
        psycopg.connect(dsn, autocommit=True) as connection,
    ):
        report.on(dsn)
        said = herd.wait_event(lambda event: event.message.startswith("the page is ")).message
        url = said.removeprefix("the page is ").rstrip("/")
        drain(connection, given.jobs // 4)  # warm
        (job,) = connection.execute("SELECT id FROM jobherd.history LIMIT 1").fetchone()
        paths = ["/", "/fleet", "/jobs", f"/jobs/{job}", "/queues"]
        for number in range(given.pairs):
            for looked_at in (number % 2 == 0, number % 2 == 1):
                if not looked_at:
                    alone.append(drain(connection, given.jobs))
                    continue
                with watched(url, paths) as viewers:
                    seen.append(drain(connection, given.jobs))
                for place, viewer in enumerate(viewers):
                    events[paths[place // EACH]] = events.get(paths[place // EACH], 0) + viewer.events
            print(
                f"  pair {number + 1}: {seen[-1]:.0f} and {alone[-1]:.0f} jobs/s, ratio {seen[-1] / alone[-1]:.4f}",
                file=sys.stderr,
                flush=True,
            )
        report.holds("the supervisor left well", herd.stop() == 0)
    report.figure("drain with 20 open pages, against none", seen, alone, unit="jobs/s", aim=0.97, at_least=True)
    report.fact("updates sent to each page's viewers", ", ".join(f"{path}: {count}" for path, count in events.items()))
    report.holds("the overview was live", events["/"] > 0, events["/"])
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
