"""Connects to a server of a DSN through libpq, without blocking: one server and address at a time.

libpq blocks while it resolves host names, so it only gets addresses, which a short-lived child has
resolved (`process/name_lookup.py`). With several addresses it would stay with the first that does
not answer.
"""

from __future__ import annotations

import random
import select
import selectors
import socket
from collections import deque
from typing import TYPE_CHECKING, Final

from psycopg import conninfo, pq

from jobherd.supervisor.database.hosts import Servers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from psycopg.pq.abc import PGconn

CONNECT_PATIENCE: Final = 10.0
"""Seconds for a connection, for all servers of the DSN together, unless it has a `connect_timeout`
for each."""
LEAST_PATIENCE: Final = 2.0
"""Minimum seconds for each of them, however many there are."""


class ConnectError(Exception):
    """No server of the DSN could be reached. The text has the reason for each server, without secrets."""


class Connector:
    """Attempts to connect, to one server and address after the other.

    Attributes:
        conn: the connection that is being made, and then the one that is.
        epoch: grows with each socket: a new one may have an old one's number.
        names: host names that must be resolved before `set_out`.
        give_up_at: when the current step is given up.
    """

    def __init__(self, dsn: str, *, application_name: str) -> None:
        self._given = conninfo.conninfo_to_dict(dsn)
        self._application_name = application_name
        self.conn: PGconn | None = None
        self.epoch = 0
        self.names: list[str] = []
        self.give_up_at = 0.0
        self._poll = pq.PollingStatus.OK
        self._named = Servers(self._given)
        self._servers: deque[dict[str, str]] = deque()
        """Servers still to be tried, as host, hostaddr and port."""
        self._share = CONNECT_PATIENCE
        self._refusals: list[str] = []
        """Why the servers tried so far failed."""

    def begin(self, now: float) -> None:
        """Begin an attempt: read which servers there are. The file of services may have changed."""
        self.give_up_at = now + CONNECT_PATIENCE
        self._named = Servers(self._given)
        self.names = self._named.names

    def set_out(self, addresses: Mapping[str, Sequence[str]], now: float) -> None:
        """Try the servers of the DSN one after the other, and each address of a name.

        Raises:
            ConnectError: there is none, or none can be tried.
        """
        self._servers = deque(self._named.found(addresses))
        if self._given.get("load_balance_hosts") == "random":
            random.shuffle(self._servers)
        asked = str(self._given.get("connect_timeout") or "")
        self._share = (
            float(asked)
            if asked.isascii() and asked.isdigit() and len(asked) < 10 and int(asked)
            else max(CONNECT_PATIENCE / max(len(self._servers), 1), LEAST_PATIENCE)
        )
        self._refusals = []
        self._try_next("" if self._servers else f"no address is known for {', '.join(self._named.names)}", now)

    def step(self, now: float) -> bool:
        """Continue; return whether the connection is made.

        Raises:
            ConnectError: the last server has failed too.
        """
        if now >= self.give_up_at:
            self._try_next(f"no connection to {self.where} within {self._share:g} s", now)
        conn = self.conn
        if conn is None or not _is_ready(conn.socket, self._poll):
            return False
        self._poll = pq.PollingStatus(conn.connect_poll())
        self.epoch += 1  # a new attempt without TLS uses a new socket, which may have the old one's number
        if self._poll is pq.PollingStatus.FAILED:
            self._try_next(self._message(), now)
        elif self._poll is pq.PollingStatus.OK:
            conn.nonblocking = 1
            return True
        return False

    def close(self) -> None:
        """Close the connection, whatever its state."""
        if self.conn is not None:
            self.conn.finish()
            self.conn = None

    def fileno(self) -> int:
        """Return the socket, or -1."""
        return self.conn.socket if self.conn is not None else -1

    def events(self) -> int:
        """Return the events to wait for on the socket while the connection is being made."""
        return selectors.EVENT_WRITE if self._poll is pq.PollingStatus.WRITING else selectors.EVENT_READ

    @property
    def where(self) -> str:
        """The server that is being tried, for people."""
        host, port = (self.conn.host.decode(), self.conn.port.decode()) if self.conn is not None else ("", "")
        return f"{host} port {port}" if host else "the server"

    def _try_next(self, why: str, now: float) -> None:
        """Try the next server, since this one failed."""
        if why:
            self._refusals.append(why.strip().splitlines()[0])
        while self._servers:
            self.close()
            if self._connect(self._servers.popleft(), now):
                return
            self._refusals.append(self._message())
        raise ConnectError("; ".join(dict.fromkeys(self._refusals)))

    def _connect(self, where: Mapping[str, str], now: float) -> bool:
        given = {key: value for key, value in self._given.items() if key not in where}
        given |= {key: value for key, value in where.items() if value}
        given.setdefault("keepalives_idle", "10")
        given.setdefault("keepalives_interval", "3")
        given.setdefault("keepalives_count", "3")
        given.setdefault("tcp_user_timeout", "10000")
        given.setdefault("target_session_attrs", "read-write")  # a standby accepts no LISTEN and no renewal
        given.setdefault("gssencmode", "disable")  # the GSSAPI library contacts a server of its own, and blocks
        given["application_name"] = self._application_name
        given["client_encoding"] = "UTF8"
        given.pop("connect_timeout", None)
        self.conn = pq.PGconn.connect_start(conninfo.make_conninfo("", **given).encode())
        self.give_up_at = now + self._share
        self._poll = pq.PollingStatus.WRITING
        self.epoch += 1
        return self.conn.status != pq.ConnStatus.BAD

    def _message(self) -> str:
        text = self.conn.error_message.decode(errors="replace") if self.conn is not None else ""
        # Indented lines are guesses at the reason; a detail or hint is useless without its error.
        lines = [
            line
            for line in text.splitlines()
            if line and not line[0].isspace() and not line.startswith(("DETAIL:", "HINT:"))
        ]
        return lines[-1] if lines else _no_message()


def _no_message() -> str:
    """Return why there is no connection if libpq does not report it: it got no socket."""
    try:
        socket.socket(socket.AF_UNIX).close()
    except OSError as problem:
        return f"the connection failed: {problem.strerror}"
    return "the connection failed"


def _is_ready(fd: int, wanted: pq.PollingStatus) -> bool:
    """Return whether the socket is in the state that libpq waits for.

    Called earlier, libpq takes the connection for established and blocks until it is: for a host
    that is gone, that takes long.
    """
    poll = select.poll()
    poll.register(fd, select.POLLOUT if wanted is pq.PollingStatus.WRITING else select.POLLIN)
    return bool(poll.poll(0))
