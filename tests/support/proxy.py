"""A proxy in front of a PostgreSQL socket that counts round trips and can lose an answer with its connection.
with Proxy(dsn) as proxy:
        child = bench.start(dsn=proxy.dsn)
        proxy.swallow()     # the server answers the next message, but the answer and its connection are lost
        proxy.wait()        # until that has happened
        proxy.round_trips() # so far, of all connections
    proxy.cut(2)        # ends the 2 newest connections; 0: all
    proxy.hold()        # nothing passes, as if the network were down, until proxy.heal()

The proxy is a separate process instead of a thread, because the tests fork.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import struct
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Self

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.patience import LIMIT


class Proxy:
    """The test's side of the proxy."""

    def __init__(self, dsn: str) -> None:
        given = conninfo_to_dict(dsn)
        self._target = f"{given['host']}/.s.PGSQL.{given.get('port', 5432)}"
        self._folder = Path(tempfile.mkdtemp(prefix="jobherd-proxy-", dir="/tmp"))
        self._folder.chmod(0o755)
        self.dsn = make_conninfo(dsn, host=str(self._folder), port=5432)
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(str(self._folder / ".s.PGSQL.5432"))
        self._door.listen(64)
        self._ours, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                self._ours.close()
                _relay(self._door, theirs, self._target)
            finally:
                os._exit(0)
        theirs.close()
        self._door.close()

    def swallow(self) -> None:
        self._ours.send(b"s")

    def wait(self, timeout: float = LIMIT) -> None:
        self._ours.settimeout(timeout)
        assert self._ours.recv(1) == b"d"

    def round_trips(self, *, of_workers: bool = False) -> int:
        """Return how often a client has sent a message after an answer of the server.

        Messages that are sent together count once. of_workers: count only workers' sessions.
        """
        self._ours.settimeout(LIMIT)
        self._ours.send(b"w" if of_workers else b"c")
        return struct.unpack("<q", self._ours.recv(8))[0]

    def cut(self, count: int = 0) -> None:
        """End this many connections, newest first; 0: all."""
        self._ours.send(b"x" + bytes([count]))

    def hold(self) -> None:
        """Relay nothing and accept no connections, until `heal`."""
        self._ours.send(b"h")

    def heal(self) -> None:
        """Relay again, including messages sent in the meantime."""
        self._ours.send(b"r")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ours.send(b"q")  # a command, because a proxy that was forked later may keep this socket open
        self._ours.close()
        os.waitpid(self._pid, 0)
        shutil.rmtree(self._folder)


def _relay(door: socket.socket, control: socket.socket, target: str) -> None:
    partner: dict[socket.socket, socket.socket] = {}
    clients: dict[socket.socket, None] = {}  # in order of arrival
    swallow = held = False
    turns = turns_of_workers = 0
    workers: set[socket.socket] = set()  # clients whose first message names a worker
    answered: set[socket.socket] = set()  # clients whose server sent the last message
    losing: dict[socket.socket, bytes] = {}  # servers whose answers are lost, with the last bytes of these answers

    def drop(end: socket.socket) -> None:
        other = partner.pop(end)
        partner.pop(other)
        clients.pop(end, None)
        clients.pop(other, None)
        answered.difference_update((end, other))
        workers.difference_update((end, other))
        end.close()
        other.close()
        losing.pop(end, None)
        losing.pop(other, None)

    while True:
        readable, _, _ = select.select([control] if held else [door, control, *partner], [], [])
        for end in readable:
            if end is control:
                match control.recv(1):
                    case b"c":
                        control.send(struct.pack("<q", turns))
                    case b"w":
                        control.send(struct.pack("<q", turns_of_workers))
                    case b"s":
                        swallow = True
                    case b"h" | b"r" as word:
                        held = word == b"h"
                    case b"x":
                        for client in list(reversed(clients))[: control.recv(1)[0] or None]:
                            drop(client)
                    case _:
                        return
            elif end is door:
                client, _ = door.accept()
                server = socket.socket(socket.AF_UNIX)
                try:
                    server.connect(target)
                except OSError:  # the server is down
                    client.close()
                    server.close()
                    continue
                partner[client], partner[server] = server, client
                clients[client] = None
                answered.add(client)
            elif end in partner:
                data = b""
                with suppress(ConnectionError):
                    data = end.recv(1 << 20)
                if not data:
                    drop(end)
                    continue
                if end in answered:
                    answered.discard(end)
                    turns += 1
                    if b"application_name\0jobherd:worker:" in data:
                        workers.add(end)
                    turns_of_workers += end in workers
                elif end not in clients:
                    answered.add(partner[end])
                if swallow and end in clients:
                    swallow = False
                    losing[partner[end]] = b""
                if end in losing:
                    # Up to ReadyForQuery, idle or in a transaction: the client gets no answer, so nothing
                    # more will be committed.
                    losing[end] = (losing[end] + data)[-6:]
                    if losing[end][:-1] == b"Z\0\0\0\5":
                        del losing[end]
                        drop(end)
                        with suppress(BlockingIOError):  # a test that does not read these must not block the relay
                            control.send(b"d", socket.MSG_DONTWAIT)
                    continue
                with suppress(ConnectionError):
                    partner[end].sendall(data)
