"""A gate at which a handler in another process reports to the test and waits until the test opens it.

In the handler, in any process that has the environment variable JOBHERD_TEST_GATE:

    from tests.support.gate import at_gate

    @handler("test:gated")
    def gated(name: str) -> str:
        return at_gate(name)            # blocks until the test opens it

In the test, with the fixture ``gate``:

    arrival = gate.wait_arrival("a")    # blocks until a handler with this label is at the gate
    os.kill(arrival.pid, signal.SIGKILL)
    arrival.wait_gone()                 # the handler left the closed gate: killed or interrupted
    gate.wait_arrival("a").open("hello")

Both sides wait on a socket, and the kernel closes a dead handler's end. The handler also checks for
signals twice a second.
"""

from __future__ import annotations

import os
import select
import selectors
import shutil
import socket
import struct
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.support.patience import GLANCE, LIMIT

VARIABLE = "JOBHERD_TEST_GATE"


def at_gate(label: object = "") -> str:
    """Report to the test and wait until it opens the gate; return the word that it passes to `Arrival.open`.

    Raises:
        ConnectionError: the test has closed the gate.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(os.environ[VARIABLE])
        connection.send(str(label).encode() + b"\n")
        # Race: a signal after Python's last check for signals, but before the call blocks, does not end the wait.
        while not select.select([connection], [], [], GLANCE)[0]:
            pass
        word = connection.recv(65536)
    if not word:
        raise ConnectionError("the test closed the gate while the handler waited")
    return word.decode().removesuffix("\n")


@dataclass(frozen=True, slots=True)
class Arrival:
    """A handler that waits at the gate."""

    label: str
    pid: int
    _connection: socket.socket

    def open(self, word: str = "") -> None:
        """Open the gate for this handler: its ``at_gate`` returns the word."""
        self._connection.send(word.encode() + b"\n")

    def wait_gone(self, timeout: float = LIMIT) -> None:
        """Wait until the handler has left the gate: let through, killed or interrupted."""
        self._connection.settimeout(timeout)
        try:
            self._connection.recv(1)
        except ConnectionResetError:
            pass
        except TimeoutError:
            raise TimeoutError(
                f"{self.label!r} (process {self.pid}) still waits at the gate after {timeout} s"
            ) from None


class Gate:
    """The test's side of the gate.

    Use it as a context manager, or close it: a handler that still waits then gets a ConnectionError.
    """

    def __init__(self) -> None:
        # a short path: that of a socket has at most 107 bytes
        self._folder = Path(tempfile.mkdtemp(prefix="jobherd-gate-", dir="/tmp"))
        self._folder.chmod(0o711)  # handlers may run as another OS user
        self.path = self._folder / "gate"
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._door.bind(str(self.path))
        self.path.chmod(0o777)
        self._door.listen(1024)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._door, selectors.EVENT_READ)
        self._connections: list[socket.socket] = []
        self._waiting: list[Arrival] = []

    def wait_arrival(self, label: object = None, timeout: float = LIMIT) -> Arrival:
        """Wait for the next handler at the gate, with this label if given; others wait for a later call."""
        wanted = None if label is None else str(label)
        until = time.monotonic() + timeout
        while True:
            for arrival in self._waiting:
                if wanted in (None, arrival.label):
                    self._waiting.remove(arrival)
                    return arrival
            self._note_arrivals(wanted, until, timeout)

    def _note_arrivals(self, wanted: str | None, until: float, timeout: float) -> None:
        events = self._selector.select(max(0.0, until - time.monotonic()))
        if not events:
            others = [arrival.label for arrival in self._waiting]
            raise TimeoutError(
                f"no handler{f' with label {wanted!r}' if wanted else ''} reached the gate in {timeout} s; waiting: {others}"
            )
        for key, _ in events:
            if key.fileobj is self._door:
                connection, _ = self._door.accept()
                self._connections.append(connection)
                self._selector.register(connection, selectors.EVENT_READ)
                continue
            connection = key.fileobj
            self._selector.unregister(connection)
            try:
                word = connection.recv(65536)
            except ConnectionResetError:
                continue
            if word:  # otherwise the handler died between its two calls
                pid, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                self._waiting.append(Arrival(word.decode().removesuffix("\n"), pid, connection))

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        self._selector.close()
        self._door.close()
        shutil.rmtree(self._folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
