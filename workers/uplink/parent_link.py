"""The connection to the supervisor: one JSON object a line, in both directions.

    {"begin": {"session": "17", "living": [3, 4]}}      first: the session, and its workers that live or
                                                        are not recovered
    {"id": 7, "ask": "recover/requeue_child", "with": {…}}
    {"id": 7, "rows": [["123"]]}                        the answer; or {"id": 7, "refused": true}
    {"event": "session", "connected": false, "session": "17", "trouble": "why"}
    {"event": "cancel", "incarnation": 3, "token": 9, "job": 4}

The events are `session`, `cancel`, `lost`, `release_rest` and `rejected`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jobherd.workers.uplink.sockets import Connection


class ParentLink:
    """The supervisor, once it is connected. What is told before that is told then.

    Args:
        begin: called once with the session to resume and the workers that live or are not recovered.
        carry_out: carries out a statement. Returns False if it is unknown.
    """

    def __init__(
        self,
        begin: Callable[[str, set[int]], None],
        carry_out: Callable[[str, Mapping[str, Any], Callable[[Any], None]], bool],
    ) -> None:
        self._begin, self._carry_out = begin, carry_out
        self._connection: Connection | None = None
        self._rest = b""
        self._untold: list[dict[str, object]] = []

    def accept(self, connection: Connection) -> None:
        """Take the connection of the supervisor, in place of an earlier one."""
        if self._connection is not None:
            self._connection.close()
        self._connection, self._rest = connection, b""
        connection.on_data = self._on_data
        connection.on_end = lambda: self._on_end(connection)
        for event in self._untold:
            self.tell(event)
        self._untold.clear()

    def tell(self, event: dict[str, object]) -> None:
        """Send an event or an answer."""
        if self._connection is None:
            self._untold.append(event)
        else:
            self._connection.send(json.dumps(event).encode() + b"\n")

    def _on_end(self, connection: Connection) -> None:
        if self._connection is connection:
            self._connection = None

    def _on_data(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._on_line(json.loads(line))

    def _on_line(self, message: dict[str, Any]) -> None:
        if "begin" in message:
            self._begin(message["begin"]["session"], set(message["begin"]["living"]))
            return
        number, connection = message["id"], self._connection

        def answer(rows: Any) -> None:
            if self._connection is connection:  # Otherwise the supervisor has given that request up.
                self.tell({"id": number, "rows": rows})

        if not self._carry_out(message["ask"], message["with"], answer):
            self.tell({"id": number, "refused": True})
