"""Unix sockets of one event loop: a listener, and connections that buffer what they cannot send.

It does not know what is sent.
"""

from __future__ import annotations

import os
import selectors
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_CHUNK = 1 << 18


class Connection:
    """An accepted connection.

    Attributes:
        on_data: called with what was received.
        on_end: called once when the connection has ended.
    """

    def __init__(self, selector: selectors.BaseSelector, accepted: socket.socket) -> None:
        self.on_data: Callable[[bytes], None]
        self.on_end: Callable[[], None] = _do_nothing
        self._selector, self._socket = selector, accepted
        self._waiting = bytearray()
        self._closed = False
        accepted.setblocking(False)
        selector.register(accepted, selectors.EVENT_READ, self._on_ready)

    def send(self, data: bytes) -> None:
        """Send, now or once the other side reads."""
        if not self._closed:
            self._waiting += data
            self._flush()

    def close(self) -> None:
        """End the connection. What was not sent is dropped."""
        if not self._closed:
            self._closed = True
            self._selector.unregister(self._socket)
            self._socket.close()
            self.on_end()

    def _flush(self) -> None:
        try:
            while self._waiting:
                del self._waiting[: self._socket.send(self._waiting)]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._waiting else 0)
        self._selector.modify(self._socket, events, self._on_ready)

    def _on_ready(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush()
        if events & selectors.EVENT_READ and not self._closed:
            try:
                data = self._socket.recv(_CHUNK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if data:
                self.on_data(data)
            else:
                self.close()


def listen(selector: selectors.BaseSelector, path: Path, accept: Callable[[Connection], object]) -> None:
    """Listen on a path, from now until the process ends. An earlier process may have left the file there.

    accept: called with each connection. It sets `on_data`.
    """
    with suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(1024)
    listener.setblocking(False)

    def on_ready(_events: int) -> None:
        with suppress(OSError):
            accept(Connection(selector, listener.accept()[0]))

    selector.register(listener, selectors.EVENT_READ, on_ready)


def _do_nothing() -> None:
    return
