"""Resolves host names in a short-lived child process, since the C library's resolver blocks."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from contextlib import suppress
from typing import Final, NoReturn

from jobherd.supervisor.process.spawn import fork, start_helper
from jobherd.workers.ipc import pipes

PATIENCE: Final = 8.0
"""Seconds after which unresolved names are left out. An unreachable first name server costs 5 of
them."""


class NameLookup:
    """One look-up. Without a child it would block for half a minute if a name server does not answer.

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


def _look_up(host: str, write: int) -> None:
    """Called in a thread of that child, so that one slow name does not delay the others."""
    with suppress(OSError, UnicodeError):
        found = dict.fromkeys(str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
        os.write(write, f"{' '.join([host, *found])}\n".encode())
