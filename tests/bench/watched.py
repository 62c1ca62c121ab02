"""Measure what open pages of the dashboard cost the jobs.

The figure is the drain rate with open pages against the rate without, in interleaved pairs.

An open page does what a browser does: it loads the page, and keeps a stream of its live parts.
Reading the streams costs this process almost nothing, and uses the same machine as the jobs, like a
browser on it.
"""

from __future__ import annotations

import http.client
import re
import selectors
import sys
import threading
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urlencode, urlsplit

import psycopg

from tests.bench.drain import WORK
from tests.bench.jobs import drain
from tests.support.figures import Report
from tests.support.ground import arguments, fresh, ground
from tests.support.herd import Herd

if TYPE_CHECKING:
    import socket

PAGES: Final = ("/", "/fleet", "/queues", "/jobs", "/jobs/1")
LIMIT: Final = 30.0


class Viewers:
    """A number of open pages.

    ``with Viewers(url, 20) as viewers:`` returns once the stream of each page has answered.
    """

    def __init__(self, url: str, pages: int) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 0)
        self._open: list[tuple[http.client.HTTPConnection, http.client.HTTPResponse]] = []
        self._pages = pages
        self._selector = selectors.DefaultSelector()
        self._left = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self.read = 0
        """Bytes read from the streams."""
        self.streams = 0

    def __enter__(self) -> Self:
        for number in range(self._pages):
            path = PAGES[number % len(PAGES)]
            topics = re.findall(r'data-live="([a-z][^"]*)"', self._get(path).read().decode())
            if topics:
                answer = self._get(f"/live?{urlencode([('topic', topic) for topic in dict.fromkeys(topics)])}")
                assert answer.status == 200, (path, answer.status)
                sock: socket.socket = answer.fp.raw._sock
                sock.setblocking(False)
                self._selector.register(sock, selectors.EVENT_READ)
                self.streams += 1
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._reader.join(LIMIT)
        for connection, answer in self._open:
            answer.close()
            connection.close()
        self._selector.close()

    def _get(self, path: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(*self._address, timeout=LIMIT)
        connection.request("GET", path)
        answer = connection.getresponse()
        self._open.append((connection, answer))
        return answer

    def _read(self) -> None:
        while not self._left.is_set():
            for key, _ in self._selector.select(0.2):
                try:
                    self.read += len(key.fileobj.recv(1 << 20))
                except BlockingIOError:
                    continue


def main() -> int:
    given = arguments(__doc__, jobs=150_000, children=64, pages=20, pairs=10)
    report = Report(f"watched: {given.jobs} no-op jobs, {given.children} children, {given.pages} open pages")
    alone: list[float] = []
    watched: list[float] = []
    with ground() as (cluster, dsn):
        report.on(dsn)
        with (
            fresh(cluster) as own,
            Herd(own, WORK, "--http", "127.0.0.1:0", workers=given.children) as herd,
            psycopg.connect(own, autocommit=True) as connection,
        ):
            url = herd.wait_event(lambda event: event.message.startswith("the dashboard is ")).message.removeprefix(
                "the dashboard is "
            )
            drain(connection, given.jobs)  # Warm up: all plans are made and all pages are cached.
            for number in range(given.pairs):
                for looked_at in (False, True) if number % 2 else (True, False):
                    if looked_at:
                        with Viewers(url, given.pages) as viewers:
                            watched.append(drain(connection, given.jobs))
                        report.holds("every page received the changes", viewers.read > 0)
                    else:
                        alone.append(drain(connection, given.jobs))
            report.fact("streams, and bytes sent to them in the last run", f"{viewers.streams}, {viewers.read:,}")
    report.figure(
        f"drain under {given.pages} open pages, against none", watched, alone, unit="jobs/s", aim=0.97, at_least=True
    )
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
