"""What the service manager is told (systemd's sd_notify protocol), if one listens. Never waits, never fails."""

from __future__ import annotations

import os
import re
import socket
import time


class ServiceManager:
    """The other end of $NOTIFY_SOCKET, or nobody."""

    def __init__(self) -> None:
        address = os.environ.pop("NOTIFY_SOCKET", "")  # popped: children must not speak for us
        usec = os.environ.pop("WATCHDOG_USEC", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) if address else None
        self.interval = int(usec) / 2_000_000 if re.fullmatch(r"[0-9]{1,18}", usec) and address else 0.0
        """Seconds between signs of life; 0 if nobody asks for them."""
        self._status = ""
        self._unsaid: dict[str, bytes] = {}
        """What there was no room for, by its first word's name, oldest first."""

    @property
    def fds(self) -> list[int]:
        """What a child must close."""
        return [self._socket.fileno()] if self._socket is not None else []

    def tell(self, *words: str) -> None:
        """Send assignments such as READY=1, now or when there is room: a manager that is not told that we are ready ends us."""
        name = words[0].partition("=")[0]
        self._unsaid.pop(name, None)  # of each the latest counts
        self._unsaid[name] = "\n".join(words).encode()
        self.flush()

    def flush(self) -> None:
        """Send what there is room for."""
        while self._unsaid:
            name = next(iter(self._unsaid))
            if self._socket is not None:
                try:
                    self._socket.sendto(self._unsaid[name], self._address)
                except BlockingIOError:
                    return
                except OSError:
                    pass  # nobody is there
            del self._unsaid[name]

    def status(self, text: str) -> None:
        """Say what we are at, if that has changed."""
        if text != self._status:
            self._status = text
            self.tell(f"STATUS={text}")

    def reloading(self) -> None:
        """Say that a reload has begun."""
        self.tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
