"""Resolves host names in a short-lived child process, since the C library's resolver blocks."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NoReturn

from jobherd.supervisor.process.spawn import fork, start_helper
from jobherd.workers.ipc import pipes

if TYPE_CHECKING:
    from jobherd.supervisor.database.connection import DatabaseConnection

PATIENCE: Final = 8.0
"""Seconds after which unresolved names are left out. An unreachable first name server costs 5 of
them."""


class NameLookup:
    """One look-up in a child process: it may take half a minute if a name server does not answer.

    Attributes:
        fd: readable when the child has found addresses or has finished.
    """

    def __init__(self, hosts: list[str]) -> None:
        self.fd, write = pipes.open_pipe()
        self._data = b""

        def life() -> NoReturn:
            start_helper(keep=write)
            lookups = [threading.Thread(target=_look_up, args=(host, write), daemon=True) for host in hosts]
            for lookup in lookups:
                lookup.start()
            until = time.monotonic() + PATIENCE
            for lookup in lookups:
                lookup.join(max(until - time.monotonic(), 0.0))
            os._exit(0)

        try:
            self.pid = fork(life)
        except OSError:
            os.close(self.fd)
            raise
        finally:
            os.close(write)

    def read(self) -> dict[str, list[str]] | None:
        """Return the addresses by host once the child has finished, else None."""
        try:
            while chunk := os.read(self.fd, 65536):
                self._data += chunk
        except BlockingIOError:
            return None
        return {host: addresses for host, *addresses in map(str.split, self._data.decode().splitlines())}

    def close(self) -> None:
        """End the child, whatever its state."""
        os.close(self.fd)
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class NameLookups:
    """Starts a look-up whenever the database connection needs one, and gives it the addresses."""

    def __init__(self, db: DatabaseConnection, selector: selectors.BaseSelector) -> None:
        self._db = db
        self._selector = selector
        self._lookup: NameLookup | None = None

    @property
    def fds(self) -> list[int]:
        """Descriptors that a child must close."""
        return [] if self._lookup is None else [self._lookup.fd]

    def wake_at(self, _now: float) -> float:
        """Return when `step` must be called at the latest. The end of a look-up wakes the loop itself."""
        return 0.0 if self._db.wants_addresses and self._lookup is None else float("inf")

    def step(self, now: float) -> None:
        """Start a look-up, or take the addresses that were found."""
        hosts = self._db.wants_addresses
        if hosts and self._lookup is None:
            try:
                self._lookup = NameLookup(hosts)
            except OSError as problem:
                self._db.lose(f"cannot start a process that looks up a host name: {problem.strerror}", now)
                return
            self._selector.register(self._lookup.fd, selectors.EVENT_READ)
        if self._lookup is not None:
            found = self._lookup.read()
            if found is not None or not hosts:
                self._selector.unregister(self._lookup.fd)
                self._lookup.close()
                self._lookup = None
                if found is not None:
                    self._db.addressed(found, now)


def _look_up(host: str, write: int) -> None:
    """Resolve one name, in its own thread of that child, so that one slow name does not delay the others."""
    with suppress(OSError, UnicodeError):
        found = dict.fromkeys(str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
        os.write(write, f"{' '.join([host, *found])}\n".encode())
