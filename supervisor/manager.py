"""What the service manager is told (systemd's sd_notify protocol), if one listens. Never waits, never fails."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress


class ServiceManager:
    """The other end of $NOTIFY_SOCKET, or nobody."""

    def __init__(self) -> None:
        address = os.environ.pop("NOTIFY_SOCKET", "")  # popped: children must not speak for us
        usec = os.environ.pop("WATCHDOG_USEC", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) if address else None
        self.interval = int(usec) / 2_000_000 if usec.isdigit() and address else 0.0
        """Seconds between signs of life; 0 if nobody asks for them."""
        self._status = ""

    @property
    def fds(self) -> list[int]:
        """What a child must close."""
        return [self._socket.fileno()] if self._socket is not None else []

    def tell(self, *words: str) -> None:
        """Send assignments such as READY=1."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.sendto("\n".join(words).encode(), self._address)

    def status(self, text: str) -> None:
        """Say what we are at, if that has changed."""
        if text != self._status:
            self._status = text
            self.tell(f"STATUS={text}")

    def reloading(self) -> None:
        """Say that a reload has begun."""
        self.tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
