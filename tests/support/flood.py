"""Clients that overload an HTTP server: fast ones, slow ones, and ones that stop in the middle."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import threading
from typing import TYPE_CHECKING, Self

from tests.support.patience import LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Flood:
    """Ten clients, each in a thread, while the block `with Flood(port):` runs.

    Four request /metrics without a pause. Two never read a response, two send half a request, two send endless headers.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._over = threading.Event()
        self._news = threading.Condition()
        self.done: dict[str, int] = {}
        """Number of finished rounds, by the name of the method."""
        deeds = [self.scrapes] * 4 + [self.never_reads] * 2 + [self.asks_half] * 2 + [self.sends_a_long_head] * 2
        self._threads = [threading.Thread(target=self._go_on, args=(deed,), daemon=True) for deed in deeds]

    def _go_on(self, deed) -> None:
        with contextlib.ExitStack() as kept:
            while not self._over.is_set():
                with contextlib.suppress(OSError):
                    deed(kept)
                with self._news:
                    self.done[deed.__name__] = self.done.get(deed.__name__, 0) + 1
                    self._news.notify_all()

    def _connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._port), timeout=LIMIT)

    def scrapes(self, _kept: contextlib.ExitStack) -> None:
        with self._connect() as connection:
            connection.sendall(SCRAPE)
            while connection.recv(65536):
                pass

    def never_reads(self, kept: contextlib.ExitStack) -> None:
        connection = kept.enter_context(self._connect())
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        connection.sendall(SCRAPE)

    def asks_half(self, kept: contextlib.ExitStack) -> None:
        kept.enter_context(self._connect()).sendall(SCRAPE[:20])

    def sends_a_long_head(self, _kept: contextlib.ExitStack) -> None:
        with self._connect() as connection:
            connection.sendall(SCRAPE[:-2])
            for _ in range(160):
                connection.sendall(b"X-Long: " + b"a" * 65536 + b"\r\n")

    def wait(self, more: int) -> None:
        """Wait until each kind of client has finished `more` rounds from now on."""
        with self._news:
            wanted = {
                name: self.done.get(name, 0) + more
                for name in ("scrapes", "never_reads", "asks_half", "sends_a_long_head")
            }
            met = self._news.wait_for(
                lambda: all(self.done.get(name, 0) >= count for name, count in wanted.items()), LIMIT
            )
            assert met, (self.done, wanted)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(LIMIT)


@contextlib.contextmanager
def flooded(port: int) -> Iterator[int]:
    """Run the clients in a separate process with the lowest priority (nice 19); yield its pid."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_flood, args=(port, theirs), daemon=True)
    process.start()
    try:
        ours.recv()
        assert process.pid is not None
        yield process.pid
    finally:
        ours.send("enough")
        process.join(LIMIT)


def _flood(port: int, orders: Connection) -> None:
    os.nice(19)
    with Flood(port) as flood:
        flood.wait(1)
        orders.send("it has begun")
        orders.recv()
