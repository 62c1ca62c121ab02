"""Sends requests to the uplink and receives answers, as lines of JSON over a Unix socket.

It has the interface of `database/connection.py`. The uplink turns requests into messages of the gateway's protocol.
If the uplink dies, the requests without an answer are answered with None, and its successor gets what it needs to
continue the session: its name, and which workers live or are not recovered. `step` does what is possible now and
never waits.
"""

from __future__ import annotations

import json
import selectors
import socket
from typing import TYPE_CHECKING, Final

from jobherd.supervisor.database.connection import Link
from jobherd.supervisor.policy.child_kinds import UPLINK
from jobherd.supervisor.policy.slot import State
from jobherd.supervisor.uplink.events import Answered, SessionChanged, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from jobherd.supervisor.database.requests import Answer
    from jobherd.supervisor.policy.slot_table import SlotTable
    from jobherd.supervisor.uplink.events import Event

AGAIN: Final = 0.05
"""Seconds between two attempts to connect to an uplink that has not accepted yet."""
SOCKET: Final = "parent"
"""Name of the socket in the folder that the uplink shares with this process."""
_CHUNK: Final = 1 << 16


class UplinkLink:
    """The connection to the current uplink. `answered` callbacks run inside `step` and may send again.

    Attributes:
        link: the connection to the uplink.
        connected: the uplink has a stream to a gateway.
        trouble: why it has none.
        epoch: grows with each connection.
        happened: the events of the uplink since the owner last took them.
    """

    peer: Final = "gateway"
    write_problem: Final = ""
    polls: Final = False
    reclaimed: Final = 0
    renewals: Final = 0

    def __init__(self, slot_table: SlotTable, selector: selectors.BaseSelector, folder: Path) -> None:
        self.link = Link.AWAY
        self.connected = False
        self.trouble = ""
        self.epoch = 0
        self.happened: list[Event] = []
        self._slot_table = slot_table
        self._selector = selector
        self._path = str(folder / SOCKET)
        self._socket: socket.socket | None = None
        self._session = ""
        self._requests = 0
        self._open: dict[int, tuple[Callable[[Answer], None], Callable[[], None] | None]] = {}
        self._received = b""
        self._unsent = b""
        self._again_at = 0.0

    @property
    def receives_notifications(self) -> bool:
        """Whether the gateway can notify this supervisor."""
        return self.connected

    @property
    def is_quiet(self) -> bool:
        """Whether the uplink is there and no request is under way."""
        return self.link is Link.UP and not self._open

    def change_lease(self, lease: float) -> None:
        """Do nothing: the gateway decides how long the lease is."""

    def forget(self) -> int:
        """Return the socket's number in a forked child, which closes it, or -1."""
        return -1 if self._socket is None else self._socket.fileno()

    def ask(
        self,
        name: str,
        parameters: Mapping[str, object],
        answered: Callable[[Answer], None],
        refused: Callable[[], None] | None = None,
    ) -> None:
        """Send the statement of that name. Without an uplink, the answer is None at the next step."""
        self._requests += 1
        self._open[self._requests] = answered, refused
        if self.link is Link.UP:
            self._say({"id": self._requests, "ask": name, "with": parameters})

    def wake_at(self, _now: float) -> float:
        """Return when `step` must be called at the latest."""
        if self.link is Link.UP:
            return float("inf")
        if self._open:
            return 0.0
        return self._again_at if self._is_uplink_ready() else float("inf")

    def step(self, now: float) -> None:
        """Connect, send and receive what is possible."""
        if self.link is Link.AWAY and now >= self._again_at and self._is_uplink_ready():
            self._connect(now)
        if self.link is Link.UP:
            self._send()
            self._receive(now)
        if self.link is Link.AWAY:
            self._answer_none()

    def close(self) -> None:
        """End the connection."""
        if self._socket is not None:
            self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = None
        self.link, self.connected = Link.AWAY, False

    def _is_uplink_ready(self) -> bool:
        return any(slot.kind is UPLINK and slot.state is State.READY for slot in self._slot_table.alive())

    def _connect(self, now: float) -> None:
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(False)
        try:
            connection.connect(self._path)
        except OSError:
            connection.close()
            self._again_at = now + AGAIN
            return
        self._socket, self.link = connection, Link.UP
        self.epoch += 1
        self._received, self._unsent = b"", b""
        self._selector.register(connection, selectors.EVENT_READ)
        # A dead worker's jobs stay in the session until its recovery has settled them: their crash counts.
        living = [
            *(slot.process.incarnation for slot in self._slot_table.workers() if slot.alive),
            *self._slot_table.unrecovered,
        ]
        self._say({"begin": {"session": self._session, "living": living}})
        # They were made without a connection. If they stayed open, they would never be sent or answered: a crash that
        # is recovered in the turn of this connect would hold its job until the timeout.
        self._answer_none()

    def _say(self, message: Mapping[str, object]) -> None:
        self._unsent += json.dumps(message).encode() + b"\n"
        self._send()

    def _send(self) -> None:
        if self._socket is None or not self._unsent:
            return
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent = b""  # `_receive` sees the end of the connection
        writes = selectors.EVENT_WRITE if self._unsent else 0
        self._selector.modify(self._socket, selectors.EVENT_READ | writes)

    def _receive(self, now: float) -> None:
        while self._socket is not None:
            try:
                data = self._socket.recv(_CHUNK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.close()
                self.trouble, self._again_at = "the uplink has ended", now + AGAIN
                return
            *lines, self._received = (self._received + data).split(b"\n")
            for line in lines:
                self._take(line)

    def _take(self, line: bytes) -> None:
        match parse(line):
            case None:
                pass
            case Answered(number, rows):
                answered, refused = self._open.pop(number, (None, None))
                if rows is None and refused is not None:
                    refused()
                elif answered is not None:
                    answered(rows)
            case SessionChanged(connected, session, trouble) as event:
                self.connected, self._session, self.trouble = connected, session, trouble
                self.happened.append(event)
            case event:
                self.happened.append(event)

    def _answer_none(self) -> None:
        lost, self._open = self._open, {}
        for answered, _ in lost.values():
            answered(None)
