"""Sends messages to the service manager, if there is one, by systemd's sd_notify protocol.

It never blocks or fails.
"""

from __future__ import annotations

import os
import re
import socket
import time


class ServiceManager:
    """The socket of $NOTIFY_SOCKET, if that is set."""

    def __init__(self) -> None:
        address = os.environ.pop("NOTIFY_SOCKET", "")  # removed: children must not send in the supervisor's name
        usec = os.environ.pop("WATCHDOG_USEC", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket = (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            if address
            else None
        )
        self.interval = int(usec) / 2_000_000 if re.fullmatch(r"[0-9]{1,18}", usec) and address else 0.0
        """Seconds between watchdog messages; 0 if none are requested."""
        self._status = ""
        self._unsaid: dict[str, bytes] = {}
        """Messages that did not fit yet, by the name of their first assignment, oldest first."""

    @property
    def fds(self) -> list[int]:
        """Descriptors that a child must close."""
        return [self._socket.fileno()] if self._socket is not None else []

    def tell(self, *words: str) -> None:
        """Send assignments such as READY=1, now or when there is room.

        Without READY=1 the service manager would stop the supervisor.
        """
        name = words[0].partition("=")[0]
        self._unsaid.pop(name, None)  # of each name, the latest message counts
        self._unsaid[name] = "\n".join(words).encode()
        self.flush()

    def flush(self) -> None:
        """Send as much as there is room for."""
        while self._unsaid:
            name = next(iter(self._unsaid))
            if self._socket is not None:
                try:
                    self._socket.sendto(self._unsaid[name], self._address)
                except BlockingIOError:
                    return
                except OSError:
                    pass  # the service manager is gone
            del self._unsaid[name]

    def status(self, text: str) -> None:
        """Send the status text if it has changed."""
        if text != self._status:
            self._status = text
            self.tell(f"STATUS={text}")

    def reloading(self) -> None:
        """Report that a reload has begun."""
        self.tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
